//! The body of an answer: by length, in chunks, or up to the end of the connection.

use std::{
    io::{self, BufReader, ErrorKind, Read},
    net::TcpStream,
};

use super::{Head, read_line};

/// Reads a body as it comes; a body that ends before it is whole is an error, never an end.
#[derive(Debug)]
pub struct Body<R = TcpStream> {
    reader: BufReader<R>,
    rest: Rest,
}

#[derive(Debug)]
enum Rest {
    Length(u64),
    /// Bytes left of the current chunk.
    Chunks(u64),
    Connection,
    Done,
}

impl<R: Read> Body<R> {
    pub fn of(head: &Head, reader: BufReader<R>) -> Body<R> {
        let chunked = head
            .header("transfer-encoding")
            .is_some_and(|coding| coding.eq_ignore_ascii_case("chunked"));
        let rest = if chunked {
            Rest::Chunks(0)
        } else if matches!(head.status, 204 | 304) {
            Rest::Done
        } else {
            let length = head
                .header("content-length")
                .and_then(|length| length.parse().ok());
            length.map_or(Rest::Connection, Rest::Length)
        };
        Body { reader, rest }
    }

    fn next_chunk(&mut self) -> io::Result<u64> {
        let line = read_line(&mut self.reader).map_err(cut_short)?;
        let digits = line.split(';').next().unwrap_or_default().trim();
        let size = u64::from_str_radix(digits, 16)
            .map_err(|_| io::Error::new(ErrorKind::InvalidData, format!("chunk size {line:?}")))?;
        if size == 0 {
            while !read_line(&mut self.reader).map_err(cut_short)?.is_empty() {}
        }
        Ok(size)
    }
}

impl<R: Read> Read for Body<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Rest::Chunks(0) = self.rest {
            self.rest = match self.next_chunk()? {
                0 => Rest::Done,
                size => Rest::Chunks(size),
            };
        }
        let left = match self.rest {
            Rest::Done | Rest::Length(0) => return Ok(0),
            Rest::Connection => return self.reader.read(buffer),
            Rest::Length(left) | Rest::Chunks(left) => left,
        };
        let most = buffer
            .len()
            .min(usize::try_from(left).unwrap_or(usize::MAX));
        let got = self.reader.read(&mut buffer[..most])?;
        if got == 0 && most > 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let left = left - got as u64;
        match self.rest {
            Rest::Chunks(_) => {
                if left == 0 && !read_line(&mut self.reader).map_err(cut_short)?.is_empty() {
                    return Err(io::Error::new(
                        ErrorKind::InvalidData,
                        "chunk longer than said",
                    ));
                }
                self.rest = Rest::Chunks(left);
            }
            _ => self.rest = Rest::Length(left),
        }
        Ok(got)
    }
}

fn cut_short(error: anyhow::Error) -> io::Error {
    match error.downcast::<io::Error>() {
        Ok(error) => error,
        Err(_) => ErrorKind::UnexpectedEof.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(headers: &[(&str, &str)], wire: &str) -> io::Result<String> {
        let headers = headers
            .iter()
            .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
            .collect();
        let mut text = String::new();
        Body::of(
            &Head {
                status: 200,
                headers,
            },
            BufReader::new(wire.as_bytes()),
        )
        .read_to_string(&mut text)?;
        Ok(text)
    }

    const CHUNKED: [(&str, &str); 1] = [("Transfer-Encoding", "chunked")];

    #[test]
    fn whole_bodies_of_every_form() {
        assert_eq!(read(&[("content-length", "3")], "abcd").unwrap(), "abc");
        assert_eq!(read(&[], "abcd").unwrap(), "abcd");
        assert_eq!(
            read(&CHUNKED, "2\r\nab\r\nA;x=1\r\n0123456789\r\n0\r\n\r\n").unwrap(),
            "ab0123456789"
        );
    }

    #[test]
    fn a_cut_body_is_an_error_wherever_it_is_cut() {
        assert!(read(&[("content-length", "3")], "ab").is_err());
        let whole = "2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n";
        for cut in 0..whole.len() {
            assert!(read(&CHUNKED, &whole[..cut]).is_err(), "cut at {cut}");
        }
    }
}
