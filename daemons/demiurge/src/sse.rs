//! Server-sent events: the few lines of framing that completion streams need.

use bytes::{BufMut, Bytes, BytesMut};

/// The line that ends a complete stream, and only a complete one.
pub const DONE: Bytes = Bytes::from_static(b"data: [DONE]\n\n");

/// A comment: keeps hops from giving up on a silent stream; clients skip it.
pub const PING: Bytes = Bytes::from_static(b": ping\n\n");

/// Several events in one buffer, so that what is known at once is sent at once.
#[derive(Default)]
pub struct Events(BytesMut);

impl Events {
    /// Appends `data: …`. `json` must be one line, which JSON without indent is.
    pub fn data(&mut self, json: &str) {
        debug_assert!(!json.contains(['\n', '\r']));
        self.0.reserve(json.len() + 8);
        self.0.put_slice(b"data: ");
        self.0.put_slice(json.as_bytes());
        self.0.put_slice(b"\n\n");
    }

    /// Appends the line that ends a complete stream.
    pub fn done(&mut self) {
        self.0.put_slice(&DONE);
    }

    /// The bytes for the wire.
    pub fn into_bytes(self) -> Bytes {
        self.0.freeze()
    }
}
