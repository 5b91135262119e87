//! A blocking HTTP/1.1 client on plain sockets: one connection a request, server-sent events, and
//! the rudeness that tests need (half a request, leaving in the middle of an answer).

mod body;
mod events;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use self::body::Body;
pub use self::events::{Event, EventStream};

/// Longest wait for any single read or write.
const IO_DEADLINE: Duration = Duration::from_secs(120);

/// Requests to one server.
#[derive(Clone, Debug)]
pub struct Client {
    address: SocketAddr,
    headers: Vec<(String, String)>,
}

/// Status line and headers of an answer.
#[derive(Clone, Debug)]
pub struct Head {
    pub status: u16,
    headers: Vec<(String, String)>,
}

/// An answer read to its end.
#[derive(Clone, Debug)]
pub struct Response {
    pub head: Head,
    pub body: Vec<u8>,
}

impl Client {
    /// Requests to `address`; nothing is connected yet.
    pub fn new(address: SocketAddr) -> Client {
        Client {
            address,
            headers: Vec::new(),
        }
    }

    /// The same server, with one more header in every request.
    #[must_use]
    pub fn with_header(&self, name: &str, value: &str) -> Client {
        let mut with = self.clone();
        with.headers.push((name.to_owned(), value.to_owned()));
        with
    }

    /// GETs `path`.
    pub fn get(&self, path: &str) -> Result<Response> {
        self.request("GET", path, None)
    }

    /// The value that /metrics shows for `name`, a metric without labels.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let page = self.get("/metrics").ok()?.text();
        page.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }

    /// POSTs `body` as JSON.
    pub fn post(&self, path: &str, body: &Value) -> Result<Response> {
        self.request("POST", path, Some(body.to_string().as_bytes()))
    }

    /// Sends `method` with these body bytes and reads the answer to its end.
    /// Errors: no connection, a deadline, an answer that is cut short.
    pub fn request(&self, method: &str, path: &str, body: Option<&[u8]>) -> Result<Response> {
        let what = || format!("{method} {path}");
        let (head, mut answer) = self.open(method, path, body).with_context(what)?;
        let mut bytes = Vec::new();
        if method != "HEAD" {
            answer.read_to_end(&mut bytes).with_context(what)?;
        }
        Ok(Response { head, body: bytes })
    }

    /// POSTs `body` as JSON and reads the answer as events while they come.
    /// Errors: as of [`Client::request`], and an answer that is no event stream (it is in the error).
    pub fn post_stream(&self, path: &str, body: &Value) -> Result<EventStream> {
        let (head, mut answer) = self.open("POST", path, Some(body.to_string().as_bytes()))?;
        if !head
            .header("content-type")
            .is_some_and(|t| t.starts_with("text/event-stream"))
        {
            let mut text = String::new();
            answer.read_to_string(&mut text).ok();
            bail!("POST {path}: no event stream but {}: {text}", head.status);
        }
        Ok(EventStream::new(head, answer))
    }

    /// Opens a connection and sends these bytes as they are; what comes of it is the caller's.
    pub fn send_raw(&self, bytes: &[u8]) -> Result<TcpStream> {
        let mut stream = TcpStream::connect_timeout(&self.address, IO_DEADLINE)
            .with_context(|| format!("connect to {}", self.address))?;
        stream.set_read_timeout(Some(IO_DEADLINE))?;
        stream.set_write_timeout(Some(IO_DEADLINE))?;
        stream.set_nodelay(true)?;
        stream.write_all(bytes).context("send the request")?;
        Ok(stream)
    }

    fn open(&self, method: &str, path: &str, body: Option<&[u8]>) -> Result<(Head, Body)> {
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n",
            self.address
        );
        for (name, value) in &self.headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        if let Some(body) = body {
            request.push_str("Content-Type: application/json\r\n");
            request.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        let mut bytes = format!("{request}\r\n").into_bytes();
        bytes.extend_from_slice(body.unwrap_or_default());
        let mut reader = BufReader::new(self.send_raw(&bytes)?);
        let head = read_head(&mut reader)?;
        let body = Body::of(&head, reader);
        Ok((head, body))
    }
}

impl Head {
    /// The first header called `name`, in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, v)| v.as_str())
    }
}

impl Response {
    /// The status code.
    pub fn status(&self) -> u16 {
        self.head.status
    }

    /// The first header called `name`, in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.header(name)
    }

    /// The body as text; what is no UTF-8 shows as U+FFFD.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON. Errors: it is none (the text is in the error).
    pub fn json(&self) -> Result<Value> {
        serde_json::from_slice(&self.body)
            .with_context(|| format!("{} answer is no JSON: {}", self.status(), self.text()))
    }

    /// The body as JSON of an answer that must be 200.
    pub fn ok_json(&self) -> Result<Value> {
        if self.status() != 200 {
            bail!("status {}: {}", self.status(), self.text());
        }
        self.json()
    }
}

fn read_head(reader: &mut impl BufRead) -> Result<Head> {
    let status_line = read_line(reader).context("read the status line")?;
    let status = status_line
        .strip_prefix("HTTP/1.1 ")
        .and_then(|rest| rest.get(..3)?.parse().ok())
        .with_context(|| format!("not an HTTP/1.1 status line: {status_line:?}"))?;
    let mut headers = Vec::new();
    loop {
        let line = read_line(reader).context("read the headers")?;
        if line.is_empty() {
            return Ok(Head { status, headers });
        }
        let (name, value) = line
            .split_once(':')
            .with_context(|| format!("not a header: {line:?}"))?;
        headers.push((name.to_owned(), value.trim().to_owned()));
    }
}

/// One line without its CRLF. Errors: the connection ends before the line does.
fn read_line(reader: &mut impl BufRead) -> Result<String> {
    let mut line = Vec::new();
    reader.read_until(b'\n', &mut line)?;
    if line.pop() != Some(b'\n') {
        bail!("connection closed in the middle of a line");
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    String::from_utf8(line).context("a line is no UTF-8")
}
