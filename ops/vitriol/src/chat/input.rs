//! What the user types: lines of any bytes, put together to messages and commands.

use std::{
    io::{self, BufRead, Read},
    thread,
};

use tokio::sync::mpsc;

/// Longest line taken at once; a longer one comes as several.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// One thing the user wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    Message(String),
    Reset,
    Stats,
    Help,
    Exit,
    Unknown(String),
    /// An empty line.
    Nothing,
    /// Standard input has ended.
    End,
}

/// Lines of standard input, read by a thread of their own: a blocking read cannot be cancelled, a
/// channel can be left.
#[derive(Debug)]
pub struct Lines {
    lines: mpsc::Receiver<io::Result<String>>,
    /// Lines ended in `\` that wait for their next one.
    pending: String,
}

impl Lines {
    pub fn from_stdin() -> io::Result<Self> {
        let (sender, lines) = mpsc::channel(1);
        thread::Builder::new().name("input".into()).spawn(move || {
            let mut input = io::stdin().lock();
            while let Some(line) = read_line(&mut input).transpose() {
                if sender.blocking_send(line).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self {
            lines,
            pending: String::new(),
        })
    }
}

/// The next line without its end; invalid UTF-8 becomes U+FFFD. `None` at the end of the input.
fn read_line(input: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut bytes = Vec::new();
    if input.take(LINE_BYTES_MAX).read_until(b'\n', &mut bytes)? == 0 {
        return Ok(None);
    }
    let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    Ok(Some(String::from_utf8_lossy(line).into_owned()))
}

/// The next entry. Cancel-safe: a line begun with `\` is kept.
pub async fn read_entry(lines: &mut Lines) -> io::Result<Entry> {
    loop {
        match lines.lines.recv().await.transpose()? {
            Some(line) => match line.strip_suffix('\\') {
                Some(begun) => {
                    lines.pending.push_str(begun);
                    lines.pending.push('\n');
                }
                None => return Ok(entry_of(std::mem::take(&mut lines.pending) + &line)),
            },
            None if lines.pending.is_empty() => return Ok(Entry::End),
            None => return Ok(entry_of(std::mem::take(&mut lines.pending))),
        }
    }
}

fn entry_of(text: String) -> Entry {
    let trimmed = text.trim();
    match trimmed {
        "" => Entry::Nothing,
        "/reset" => Entry::Reset,
        "/stats" => Entry::Stats,
        "/help" | "/?" => Entry::Help,
        "/exit" | "/quit" | "/bye" => Entry::Exit,
        // A path or a quoted command in a longer text is a message.
        command
            if command.starts_with('/')
                && !command.contains([' ', '\n'])
                && !command[1..].contains('/') =>
        {
            Entry::Unknown(command.to_owned())
        }
        _ => Entry::Message(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn entries(input: &[u8]) -> Vec<Entry> {
        let (sender, receiver) = mpsc::channel(64);
        let mut reader = input;
        while let Some(line) = read_line(&mut reader).transpose() {
            sender.send(line).await.unwrap();
        }
        drop(sender);
        let mut lines = Lines {
            lines: receiver,
            pending: String::new(),
        };
        let mut entries = Vec::new();
        loop {
            match read_entry(&mut lines).await.unwrap() {
                Entry::End => return entries,
                entry => entries.push(entry),
            }
        }
    }

    #[tokio::test]
    async fn messages_and_commands() {
        let message = |text: &str| Entry::Message(text.to_owned());
        assert_eq!(
            entries(b"hello\r\n\n/reset\n /stats \n/nope\n/etc/passwd is?\n/exit").await,
            [
                message("hello"),
                Entry::Nothing,
                Entry::Reset,
                Entry::Stats,
                Entry::Unknown("/nope".into()),
                message("/etc/passwd is?"),
                Entry::Exit,
            ]
        );
    }

    #[tokio::test]
    async fn a_backslash_joins_lines_also_at_the_end() {
        assert_eq!(
            entries(b"a\\\nb\nc\\").await,
            [Entry::Message("a\nb".into()), Entry::Message("c\n".into()),]
        );
    }

    #[tokio::test]
    async fn invalid_utf8_is_replaced_and_valid_kept() {
        assert_eq!(
            entries(b"caf\xc3\xa9 \xff\n").await,
            [Entry::Message("café \u{fffd}".into())]
        );
    }
}
