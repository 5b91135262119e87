//! Server-sent events as they come.

use std::{
    io::{BufRead, BufReader, Read},
    net::TcpStream,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{Head, body::Body};

/// What one block of the stream holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A JSON chunk.
    Chunk(Value),
    /// `data: [DONE]`.
    Done,
    /// A comment, e.g. a ping.
    Comment(String),
}

/// The events of one answer. Dropping it leaves in the middle: the connection closes with what the
/// server still sends unread.
#[derive(Debug)]
pub struct EventStream<R = TcpStream>
where
    R: Read,
{
    pub head: Head,
    reader: BufReader<Body<R>>,
}

impl<R: Read> EventStream<R> {
    pub(super) fn new(head: Head, body: Body<R>) -> EventStream<R> {
        EventStream {
            head,
            reader: BufReader::new(body),
        }
    }

    /// The next event; none at the end of the answer.
    /// Errors: the answer is cut short, or a line is no part of an event stream.
    pub fn next_event(&mut self) -> Result<Option<Event>> {
        loop {
            let mut line = String::new();
            if self
                .reader
                .read_line(&mut line)
                .context("event stream cut short")?
                == 0
            {
                return Ok(None);
            }
            let line = line.trim_end_matches(['\n', '\r']);
            if let Some(comment) = line.strip_prefix(':') {
                return Ok(Some(Event::Comment(comment.trim().to_owned())));
            }
            match line.strip_prefix("data:").map(str::trim) {
                Some("[DONE]") => return Ok(Some(Event::Done)),
                Some(data) => {
                    let chunk = serde_json::from_str(data)
                        .with_context(|| format!("event data is no JSON: {data}"))?;
                    return Ok(Some(Event::Chunk(chunk)));
                }
                None if line.is_empty() => {}
                None => bail!("unexpected line in an event stream: {line:?}"),
            }
        }
    }

    /// The next JSON chunk, comments passed over; none at `[DONE]`.
    /// Errors: as of [`EventStream::next_event`], and an end without `[DONE]`.
    pub fn next_chunk(&mut self) -> Result<Option<Value>> {
        loop {
            match self.next_event()? {
                Some(Event::Chunk(chunk)) => return Ok(Some(chunk)),
                Some(Event::Done) => return Ok(None),
                Some(Event::Comment(_)) => {}
                None => bail!("event stream ended without [DONE]"),
            }
        }
    }

    /// All chunks up to `[DONE]`.
    pub fn chunks(mut self) -> Result<Vec<Value>> {
        let mut all = Vec::new();
        while let Some(chunk) = self.next_chunk()? {
            all.push(chunk);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(wire: &str) -> EventStream<&[u8]> {
        let head = Head {
            status: 200,
            headers: Vec::new(),
        };
        let body = Body::of(&head, BufReader::new(wire.as_bytes()));
        EventStream::new(head, body)
    }

    #[test]
    fn chunks_pings_and_the_end() {
        let wire = "data: {\"a\":1}\n\n: ping\n\ndata: {\"a\":2}\r\n\r\ndata: [DONE]\n\n";
        let values: Vec<Value> = stream(wire).chunks().unwrap();
        assert_eq!(
            values.iter().map(|v| v["a"].as_i64()).collect::<Vec<_>>(),
            [Some(1), Some(2)]
        );
        let mut events = stream(": ping\n\n");
        assert_eq!(
            events.next_event().unwrap(),
            Some(Event::Comment("ping".to_owned()))
        );
        assert_eq!(events.next_event().unwrap(), None);
    }

    #[test]
    fn an_end_without_done_is_an_error() {
        assert!(stream("data: {\"a\":1}\n\n").chunks().is_err());
        assert!(stream("what is this\n").chunks().is_err());
    }
}
