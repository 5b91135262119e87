//! Reading a request body within its bounds: bytes of this one, bytes of all together, time.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::api_error::ApiError;

/// Memory of bodies is accounted in blocks of this many bytes.
const BLOCK_BYTES: usize = 16 << 10;

/// How many bodies of the largest size may be in memory at once.
const BODIES_OF_FULL_SIZE: usize = 4;

/// Bodies above this size are parsed on a thread of their own: a megabyte takes about a
/// millisecond, and the runtime's threads carry everybody's tokens.
const PARSE_INLINE_BYTES_MAX: usize = 256 << 10;

/// How much of a refused body is still read (and dropped).
const DISCARD_BYTES_MAX: usize = 256 << 20;

/// How long such reading may take.
const DISCARD_TIME_MAX: Duration = Duration::from_secs(5);

/// Bounds on request bodies, shared by all requests.
#[derive(Clone)]
pub struct BodyBounds {
    bytes_max: usize,
    timeout: Duration,
    blocks: Arc<Semaphore>,
}

/// A body in memory, with its share of the budget.
pub struct BoundedBody {
    bytes: Vec<u8>,
    share: BodyShare,
}

/// A share of the budget of all bodies; goes back when it is dropped.
pub struct BodyShare {
    _blocks: Option<OwnedSemaphorePermit>,
}

impl BoundedBody {
    /// Makes something of the bytes, frees them and keeps their share of the budget with what was
    /// made, which is as large as they and more.
    ///
    /// Errors: `parse`'s own; 500 when it panics.
    pub async fn parse<T: Send + 'static>(
        self,
        parse: impl FnOnce(&[u8]) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<(T, BodyShare), ApiError> {
        if self.bytes.len() <= PARSE_INLINE_BYTES_MAX {
            return Ok((parse(&self.bytes)?, self.share));
        }
        let parsing = tokio::task::spawn_blocking(move || Ok((parse(&self.bytes)?, self.share)));
        parsing
            .await
            .unwrap_or_else(|_| Err(ApiError::internal("reading the request failed")))
    }
}

#[cfg(test)]
impl AsRef<[u8]> for BoundedBody {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl BodyBounds {
    /// Bodies of `bytes_max` at most, each within `timeout`.
    pub fn new(bytes_max: u64, timeout: Duration) -> BodyBounds {
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        let blocks = bytes_max
            .div_ceil(BLOCK_BYTES)
            .saturating_mul(BODIES_OF_FULL_SIZE);
        // One block for each small body in flight, whatever the largest size is.
        let blocks = blocks.clamp(1024, Semaphore::MAX_PERMITS);
        BodyBounds {
            bytes_max,
            timeout,
            blocks: Arc::new(Semaphore::new(blocks)),
        }
    }

    /// Reads a body.
    ///
    /// Errors: 415 when it is compressed, 413 when it is too large (by its Content-Length before a
    /// byte is read, else by count), 408 when it is too slow, 429 when the bodies of all requests
    /// together fill the budget, 400 when it breaks off.
    pub async fn read(&self, headers: &HeaderMap, mut body: Body) -> Result<BoundedBody, ApiError> {
        if let Err(error) = self.check_head(headers) {
            refuse_unread(headers, body);
            return Err(error);
        }
        let read = tokio::time::timeout(self.timeout, self.collect(&mut body)).await;
        let error = match read {
            Ok(Ok(bounded)) => return Ok(bounded),
            Ok(Err(error)) => error,
            Err(_) => return Err(ApiError::body_timeout(self.timeout.as_millis() as u64)),
        };
        tokio::spawn(discard(body));
        Err(error)
    }

    /// What a request's head alone says against its body.
    fn check_head(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        if content_length(headers).is_some_and(|length| length > self.bytes_max as u64) {
            return Err(ApiError::too_large(self.bytes_max as u64));
        }
        let mut encodings = headers.get_all(header::CONTENT_ENCODING).iter();
        match encodings.find(|encoding| !is_identity(encoding)) {
            None => Ok(()),
            Some(encoding) => {
                let encoding = encoding.to_str().unwrap_or("of no known name");
                Err(ApiError::unsupported_encoding(encoding))
            }
        }
    }

    async fn collect(&self, body: &mut Body) -> Result<BoundedBody, ApiError> {
        let mut bytes = Vec::new();
        let mut blocks: Option<OwnedSemaphorePermit> = None;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| ApiError::broken_body())?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            let length = bytes.len() + data.len();
            if length > self.bytes_max {
                return Err(ApiError::too_large(self.bytes_max as u64));
            }
            let held = blocks.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
            let wanted = length.div_ceil(BLOCK_BYTES);
            if wanted > held {
                let more = u32::try_from(wanted - held).unwrap_or(u32::MAX);
                let permit = Arc::clone(&self.blocks).try_acquire_many_owned(more).map_err(|_| {
                    let message = "the bodies of requests in flight fill the memory set aside for \
                                   them; send the request again later";
                    ApiError::busy(message, 1)
                })?;
                match &mut blocks {
                    Some(blocks) => blocks.merge(permit),
                    None => blocks = Some(permit),
                }
            }
            bytes.extend_from_slice(&data);
        }
        Ok(BoundedBody {
            bytes,
            share: BodyShare { _blocks: blocks },
        })
    }
}

/// Whether a Content-Encoding leaves the body as it is.
fn is_identity(encoding: &HeaderValue) -> bool {
    let plain = |coding: &str| coding.is_empty() || coding.eq_ignore_ascii_case("identity");
    let codings = encoding.to_str().ok();
    codings.is_some_and(|codings| codings.split(',').all(|coding| plain(coding.trim())))
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers
        .get(header::CONTENT_LENGTH)?
        .to_str()
        .ok()?
        .parse()
        .ok()
}

/// Lets go of a body of which nothing was read, so that the refusal goes out at once. A client that
/// writes before it reads gets to see it all the same, because what it writes is read beside; one
/// that asks first (Expect: 100-continue) sees it instead of the go-ahead.
pub fn refuse_unread(headers: &HeaderMap, body: Body) {
    if !headers.contains_key(header::EXPECT) {
        tokio::spawn(discard(body));
    }
}

/// Reads on and drops what comes, within bounds; the connection stays open for as long.
async fn discard(mut body: Body) {
    let reading = async {
        let mut bytes = 0;
        while let Some(Ok(frame)) = body.frame().await {
            bytes += frame.data_ref().map_or(0, Bytes::len);
            if bytes > DISCARD_BYTES_MAX {
                return;
            }
        }
    };
    // Past the time the connection is closed under the client, as it would be without reading on.
    let _ = tokio::time::timeout(DISCARD_TIME_MAX, reading).await;
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream;

    use super::*;

    const MIB: usize = 1 << 20;

    fn bounds() -> BodyBounds {
        BodyBounds::new(MIB as u64, Duration::from_secs(10))
    }

    fn chunks(count: usize, bytes: usize) -> Body {
        let chunk = Bytes::from(vec![b'x'; bytes]);
        Body::from_stream(stream::iter(
            (0..count).map(move |_| Ok::<_, Infallible>(chunk.clone())),
        ))
    }

    async fn read(bounds: &BodyBounds, body: Body) -> Result<usize, &'static str> {
        let read = bounds.read(&HeaderMap::new(), body).await;
        read.map(|body| body.as_ref().len())
            .map_err(|error| error.label())
    }

    #[tokio::test]
    async fn a_body_of_the_largest_size_is_read_and_a_byte_more_is_not() {
        assert_eq!(read(&bounds(), chunks(16, MIB / 16)).await, Ok(MIB));
        let over = Body::from(vec![b'x'; MIB + 1]);
        assert_eq!(read(&bounds(), over).await, Err("request_too_large"));
        assert_eq!(
            read(&bounds(), chunks(17, MIB / 16)).await,
            Err("request_too_large")
        );
    }

    #[tokio::test]
    async fn the_announced_length_is_looked_at_first() {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_LENGTH, (MIB as u64 + 1).into());
        headers.insert(
            header::EXPECT,
            http::HeaderValue::from_static("100-continue"),
        );
        let endless = Body::from_stream(stream::pending::<Result<Bytes, Infallible>>());
        let refused = bounds().read(&headers, endless).await;
        assert_eq!(
            refused.err().map(|error| error.label()),
            Some("request_too_large")
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_by_the_head_waits_for_nothing_of_the_body() {
        let begun = tokio::time::Instant::now();
        for (name, value, label) in [
            (
                header::CONTENT_LENGTH,
                "99999999999999999",
                "request_too_large",
            ),
            (header::CONTENT_ENCODING, "gzip", "unsupported_encoding"),
            (
                header::CONTENT_ENCODING,
                "identity, br",
                "unsupported_encoding",
            ),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(value));
            let endless = Body::from_stream(stream::pending::<Result<Bytes, Infallible>>());
            let refused = bounds().read(&headers, endless).await;
            assert_eq!(
                refused.err().map(|error| error.label()),
                Some(label),
                "{value}"
            );
        }
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    #[tokio::test]
    async fn a_body_that_is_encoded_as_itself_is_read() {
        for value in ["identity", "Identity", "", "identity, identity"] {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(value));
            assert!(
                bounds().read(&headers, chunks(1, 8)).await.is_ok(),
                "{value}"
            );
        }
    }

    #[tokio::test]
    async fn all_bodies_together_are_bounded_and_room_comes_back() {
        let bounds = bounds();
        let mut held = Vec::new();
        let refused = loop {
            match bounds.read(&HeaderMap::new(), chunks(16, MIB / 16)).await {
                Ok(body) => held.push(body),
                Err(error) => break error,
            }
            assert!(held.len() < 100, "nothing bounds them");
        };
        assert_eq!(refused.label(), "queue_full");
        held.clear();
        assert_eq!(read(&bounds, chunks(16, MIB / 16)).await, Ok(MIB));
    }

    #[tokio::test]
    async fn large_bodies_are_parsed_off_the_runtime_threads() {
        let parser = async |bytes: usize| {
            let body = Body::from(vec![b'x'; bytes]);
            let body = bounds().read(&HeaderMap::new(), body).await;
            let parsing = body
                .ok()
                .unwrap()
                .parse(|_| Ok(std::thread::current().id()));
            parsing.await.ok().unwrap().0
        };
        let own = std::thread::current().id();
        assert_eq!(parser(PARSE_INLINE_BYTES_MAX).await, own);
        assert_ne!(parser(PARSE_INLINE_BYTES_MAX + 1).await, own);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_comes_times_out() {
        let endless = Body::from_stream(stream::pending::<Result<Bytes, Infallible>>());
        assert_eq!(read(&bounds(), endless).await, Err("request_timeout"));
    }
}
