//! A small HTTP client for the house's own API: plain HTTP/1.1, one connection a request, so that
//! dropping an answer closes the connection and with it stops the generation.

mod events;

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Method, Request, Response, StatusCode, Uri,
    body::Incoming,
    client::conn::http1,
    header::{ACCEPT, CONTENT_TYPE, HOST, RETRY_AFTER},
};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{net::TcpStream, task::JoinHandle};

pub use events::EventStream;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// An error body larger than this is not worth reading.
const ERROR_BYTES_MAX: usize = 64 << 10;

/// Largest JSON answer that is taken.
const JSON_BYTES_MAX: usize = 4 << 20;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error("'{0}' is no address of an API; write for instance http://127.0.0.1:8265")]
    Url(String),
    #[error("nothing answers at {url}; start the house with 'vitriol up'")]
    Connect { url: String, source: std::io::Error },
    #[error("connecting to {0} took too long")]
    ConnectTimeout(String),
    #[error("{message}")]
    Refused {
        status: StatusCode,
        message: String,
        /// The server's word for why, where it has one.
        code: Option<String>,
        /// Seconds after which the server wants to be asked again.
        retry_after: Option<u64>,
    },
    #[error("the connection broke")]
    Broken(#[source] hyper::Error),
    #[error("the answer cannot be read: {0}")]
    Malformed(String),
    #[error("request cannot be built")]
    Build(#[from] hyper::http::Error),
}

/// The API at one address.
#[derive(Clone, Debug)]
pub struct Api {
    url: String,
    authority: String,
}

/// The task that drives a connection; aborting it closes the connection.
#[derive(Debug)]
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Api {
    /// `url` is `http://HOST:PORT`, with or without a trailing `/` or `/v1`.
    pub fn new(url: &str) -> Result<Self, HttpError> {
        let wrong = || HttpError::Url(url.to_owned());
        let trimmed = url.trim_end_matches('/').trim_end_matches("/v1");
        let uri: Uri = trimmed.parse().map_err(|_| wrong())?;
        let host = uri.host().ok_or_else(wrong)?;
        if uri.scheme_str() != Some("http") || !matches!(uri.path(), "" | "/") {
            return Err(wrong());
        }
        let authority = format!("{host}:{}", uri.port_u16().unwrap_or(80));
        Ok(Self {
            url: format!("http://{authority}"),
            authority,
        })
    }

    /// Posts JSON and reads the answer as a stream of events, which it must be.
    ///
    /// Errors: no connection, or any status but 200, with the server's own message.
    pub async fn post_stream(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Result<EventStream, HttpError> {
        let (mut sender, connection) = self.connect().await?;
        let mut request = self.post(path).header(ACCEPT, "text/event-stream");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body.to_string())))?;
        let response = sender
            .send_request(request)
            .await
            .map_err(HttpError::Broken)?;
        if response.status() == StatusCode::OK {
            Ok(EventStream::new(response.into_body(), connection))
        } else {
            Err(refusal(response).await)
        }
    }

    /// What `path` answers in JSON.
    ///
    /// Errors: no connection, any status but 200, or no JSON of a reasonable size.
    pub async fn get_json(&self, path: &str) -> Result<Value, HttpError> {
        let request = Request::builder().uri(path).header(HOST, &self.authority);
        self.ask_json(request.body(Full::default())?).await
    }

    /// As [`Self::get_json`], for JSON that is posted.
    pub async fn post_json(&self, path: &str, body: &Value) -> Result<Value, HttpError> {
        let body = Full::new(Bytes::from(body.to_string()));
        self.ask_json(self.post(path).body(body)?).await
    }

    fn post(&self, path: &str) -> hyper::http::request::Builder {
        Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(HOST, &self.authority)
            .header(CONTENT_TYPE, "application/json")
    }

    async fn ask_json(&self, request: Request<Full<Bytes>>) -> Result<Value, HttpError> {
        let (mut sender, _connection) = self.connect().await?;
        let response = sender.send_request(request).await;
        let response = response.map_err(HttpError::Broken)?;
        if response.status() != StatusCode::OK {
            return Err(refusal(response).await);
        }
        let malformed = |error: &dyn std::fmt::Display| HttpError::Malformed(error.to_string());
        let body = Limited::new(response.into_body(), JSON_BYTES_MAX);
        let body = body.collect().await.map_err(|error| malformed(&error))?;
        serde_json::from_slice(&body.to_bytes()).map_err(|error| malformed(&error))
    }

    /// Whether `path` answers 200.
    pub async fn is_ok(&self, path: &str) -> bool {
        self.get_status(path)
            .await
            .is_ok_and(|status| status == StatusCode::OK)
    }

    async fn get_status(&self, path: &str) -> Result<StatusCode, HttpError> {
        let (mut sender, _connection) = self.connect().await?;
        let request = Request::builder().uri(path).header(HOST, &self.authority);
        let request = request.body(Full::default())?;
        let response = sender
            .send_request(request)
            .await
            .map_err(HttpError::Broken)?;
        Ok(response.status())
    }

    async fn connect(&self) -> Result<(http1::SendRequest<Full<Bytes>>, Connection), HttpError> {
        let connecting = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(&self.authority));
        let stream = connecting
            .await
            .map_err(|_| HttpError::ConnectTimeout(self.url.clone()))?
            .map_err(|source| HttpError::Connect {
                url: self.url.clone(),
                source,
            })?;
        let io = TokioIo::new(stream);
        let (sender, connection) = http1::handshake(io).await.map_err(HttpError::Broken)?;
        let task = tokio::spawn(async move {
            // Its errors reach the reader of the body too.
            let _ = connection.await;
        });
        Ok((sender, Connection(task)))
    }
}

/// The server's refusal in its own words, where it has any.
async fn refusal(response: Response<Incoming>) -> HttpError {
    let status = response.status();
    let header = response.headers().get(RETRY_AFTER);
    let retry_after = header.and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let body = Limited::new(response.into_body(), ERROR_BYTES_MAX)
        .collect()
        .await;
    let bytes = body
        .map(http_body_util::Collected::to_bytes)
        .unwrap_or_default();
    let (message, code) = refusal_words(status, &bytes);
    HttpError::Refused {
        status,
        message,
        code,
        retry_after,
    }
}

/// Message and code of an error body.
fn refusal_words(status: StatusCode, body: &[u8]) -> (String, Option<String>) {
    let json: Value = serde_json::from_slice(body).unwrap_or_default();
    let word = |name: &str| json["error"][name].as_str().map(str::to_owned);
    let message = word("message").unwrap_or_else(|| format!("the server answered {status}"));
    (message, word("code"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_people_write() {
        for url in [
            "http://127.0.0.1:8265",
            "http://127.0.0.1:8265/",
            "http://127.0.0.1:8265/v1/",
        ] {
            assert_eq!(Api::new(url).unwrap().url, "http://127.0.0.1:8265", "{url}");
        }
        assert_eq!(
            Api::new("http://localhost").unwrap().authority,
            "localhost:80"
        );
        assert_eq!(Api::new("http://[::1]:9").unwrap().authority, "[::1]:9");
        for url in [
            "",
            "127.0.0.1:8265",
            "https://127.0.0.1:1",
            "http://h:1/api",
            "http://",
        ] {
            assert!(matches!(Api::new(url), Err(HttpError::Url(_))), "{url}");
        }
    }

    #[test]
    fn a_refusal_speaks_the_servers_words() {
        let body = br#"{"error":{"message":"queue full","code":"busy"}}"#;
        assert_eq!(
            refusal_words(StatusCode::TOO_MANY_REQUESTS, body),
            ("queue full".to_owned(), Some("busy".to_owned()))
        );
        let plain = refusal_words(StatusCode::BAD_GATEWAY, b"<html>");
        assert_eq!(
            plain,
            ("the server answered 502 Bad Gateway".to_owned(), None)
        );
    }

    #[tokio::test]
    async fn a_port_where_nobody_listens_is_named_with_the_remedy() {
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let api = Api::new(&format!("http://127.0.0.1:{port}")).unwrap();
        let error = api
            .post_stream("/x", &[], &Value::Null)
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("start the house with 'vitriol up'"),
            "{error}"
        );
    }
}
