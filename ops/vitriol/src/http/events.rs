//! Server-sent events: bytes in any cut in, the data of whole events out.

use std::collections::VecDeque;

use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::{Connection, HttpError};

/// Longest event that is taken; the house's own are far shorter.
const EVENT_BYTES_MAX: usize = 4 << 20;

/// Splits a byte stream into events. Comments and all fields but `data` are passed over; lines end in
/// LF, CRLF or CR; an event that the stream's end cuts short never comes out.
#[derive(Debug, Default)]
pub struct Events {
    line: Vec<u8>,
    data: Vec<u8>,
    /// The event has a `data` line, be it empty.
    has_data: bool,
    /// The last byte was a CR, whose LF does not end another line.
    after_cr: bool,
}

impl Events {
    /// Takes in `bytes` and appends the data of every event they complete to `out`.
    ///
    /// Errors: an event is larger than any the house sends.
    pub fn feed(&mut self, bytes: &[u8], out: &mut VecDeque<String>) -> Result<(), HttpError> {
        for &byte in bytes {
            let after_cr = std::mem::take(&mut self.after_cr);
            match byte {
                b'\n' if after_cr => {}
                b'\n' => self.end_line(out),
                b'\r' => {
                    self.end_line(out);
                    self.after_cr = true;
                }
                _ => self.line.push(byte),
            }
            if self.line.len() + self.data.len() > EVENT_BYTES_MAX {
                return Err(HttpError::Malformed(format!(
                    "an event beyond {EVENT_BYTES_MAX} bytes"
                )));
            }
        }
        Ok(())
    }

    fn end_line(&mut self, out: &mut VecDeque<String>) {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            if std::mem::take(&mut self.has_data) {
                let data = std::mem::take(&mut self.data);
                out.push_back(String::from_utf8_lossy(&data).into_owned());
            }
        } else if let Some(value) = line.strip_prefix(b"data") {
            let value = match value {
                [] => value,
                [b':', b' ', rest @ ..] | [b':', rest @ ..] => rest,
                // Another field whose name begins the same.
                _ => return,
            };
            if std::mem::replace(&mut self.has_data, true) {
                self.data.push(b'\n');
            }
            self.data.extend_from_slice(value);
        }
    }
}

/// The events of an answer; dropping it closes the connection.
#[derive(Debug)]
pub struct EventStream {
    body: Incoming,
    events: Events,
    ready: VecDeque<String>,
    _connection: Connection,
}

impl EventStream {
    pub(super) fn new(body: Incoming, connection: Connection) -> Self {
        Self {
            body,
            events: Events::default(),
            ready: VecDeque::new(),
            _connection: connection,
        }
    }

    /// The data of the next event; `None` at the end of the stream. Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<String>, HttpError> {
        loop {
            if let Some(data) = self.ready.pop_front() {
                return Ok(Some(data));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(HttpError::Broken(error)),
                Some(Ok(frame)) => {
                    if let Some(bytes) = frame.data_ref() {
                        self.events.feed(bytes, &mut self.ready)?;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn events(bytes: &[u8]) -> Vec<String> {
        let mut out = VecDeque::new();
        Events::default().feed(bytes, &mut out).unwrap();
        out.into()
    }

    #[test]
    fn the_forms_of_the_standard() {
        assert_eq!(
            events(b": ping\n\ndata: one\n\ndata:two\r\n\r\n"),
            ["one", "two"]
        );
        assert_eq!(events(b"event: x\nid: 3\ndata: a\ndata: b\n\n"), ["a\nb"]);
        assert_eq!(events(b"data\n\ndata:\n\n\n"), ["", ""]);
        assert_eq!(events(b"data: a\r\rdata:  b\r\r"), ["a", " b"]);
        assert_eq!(events(b"database: a\n\n"), Vec::<String>::new());
        assert_eq!(events("data: é\n\ndata: cut".as_bytes()), ["é"]);
    }

    #[test]
    fn an_endless_event_is_refused() {
        let mut parser = Events::default();
        let result = parser.feed(&vec![b'x'; EVENT_BYTES_MAX + 1], &mut VecDeque::new());
        assert!(matches!(result, Err(HttpError::Malformed(_))));
    }

    proptest! {
        #[test]
        fn cuts_make_no_difference(
            bytes in proptest::collection::vec(
                prop_oneof![Just(b'\n'), Just(b'\r'), Just(b':'), Just(b'd'), any::<u8>()], 0..80),
            text in "(data: ?[a-z]{0,5}(\r|\n|\r\n){1,2}|: [a-z]{0,3}\n){0,8}",
            cut in 0usize..60,
        ) {
            for stream in [bytes.as_slice(), text.as_bytes()] {
                let cut = cut.min(stream.len());
                let (mut parser, mut out) = (Events::default(), VecDeque::new());
                parser.feed(&stream[..cut], &mut out).unwrap();
                parser.feed(&stream[cut..], &mut out).unwrap();
                prop_assert_eq!(Vec::from(out), events(stream));
            }
        }
    }
}
