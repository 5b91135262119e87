//! What goes to the terminal, and how.

use std::{
    fmt,
    io::{self, IsTerminal, Write},
};

use vitriol_chassis::{Exit, Failure, OrExit};

/// Writes to standard output and flushes. A reader that has gone (`| head`) ends the command quietly
/// with 0.
pub fn print(text: impl fmt::Display) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match write!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::new(Exit::Ok, "")),
        other => other
            .map_err(|error| anyhow::anyhow!("standard output: {error}"))
            .or_exit(Exit::Internal),
    }
}

/// A line on standard error for people; lost when nobody can read it.
pub fn note(text: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Colours where they are wanted: on a terminal without `NO_COLOR`.
#[derive(Clone, Copy, Debug)]
pub struct Paint(pub bool);

impl Paint {
    pub fn green(self, text: &str) -> String {
        self.with("32", text)
    }

    pub fn yellow(self, text: &str) -> String {
        self.with("33", text)
    }

    pub fn red(self, text: &str) -> String {
        self.with("31", text)
    }

    pub fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    pub fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    fn with(self, code: &str, text: &str) -> String {
        match self.0 {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }
}

/// Lines at the bottom of standard error that are redrawn in place on a terminal; elsewhere a line's
/// log form is written when it changes, so that a log keeps one line a change.
#[derive(Debug)]
pub struct LiveLines {
    terminal: bool,
    /// Lines drawn now, or last written.
    drawn: Vec<Line>,
}

/// A line as it stands on a terminal, and its form for a log, without what moves all the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub text: String,
    pub log: String,
}

impl LiveLines {
    pub fn on_stderr() -> Self {
        Self {
            terminal: io::stderr().is_terminal(),
            drawn: Vec::new(),
        }
    }

    /// Shows these lines in place of those shown before.
    pub fn show(&mut self, lines: Vec<Line>) {
        if lines == self.drawn {
            return;
        }
        let width = width();
        let _ = io::stderr().write_all(self.frame(&lines, width).as_bytes());
        self.drawn = lines;
    }

    /// Writes a lasting line above them.
    pub fn message(&mut self, text: &str) {
        self.above(|| note(text));
    }

    /// Lets `write` write lasting lines above them, to either stream of the terminal.
    pub fn above<R>(&mut self, write: impl FnOnce() -> R) -> R {
        if !self.terminal {
            return write();
        }
        let drawn = std::mem::take(&mut self.drawn);
        let _ = io::stderr().write_all(erase(drawn.len()).as_bytes());
        let written = write();
        self.show(drawn);
        written
    }

    fn frame(&self, lines: &[Line], width: usize) -> String {
        if self.terminal {
            let drawn = lines.iter().map(|line| clip(&line.text, width) + "\n");
            return erase(self.drawn.len()) + &drawn.collect::<String>();
        }
        let is_new = |(at, line): &(usize, &Line)| {
            self.drawn
                .get(*at)
                .is_none_or(|before| before.log != line.log)
        };
        let written = lines.iter().enumerate().filter(is_new);
        written.map(|(_, line)| format!("{}\n", line.log)).collect()
    }
}

/// Moves up over `lines` lines and clears them.
fn erase(lines: usize) -> String {
    match lines {
        0 => String::new(),
        n => format!("\x1b[{n}F\x1b[J"),
    }
}

/// Columns of the terminal at standard error; 80 when it does not say.
fn width() -> usize {
    match rustix::termios::tcgetwinsize(io::stderr()) {
        Ok(size) if size.ws_col > 0 => size.ws_col.into(),
        _ => 80,
    }
}

/// The first `width` characters; a wrapped line could not be erased. Colour codes take no room.
fn clip(text: &str, width: usize) -> String {
    let mut clipped = String::new();
    let (mut columns, mut in_code) = (0, false);
    for c in text.chars() {
        if c == '\x1b' {
            in_code = true;
        } else if in_code {
            in_code = c != 'm';
        } else if columns == width {
            continue;
        } else {
            columns += 1;
        }
        clipped.push(c);
    }
    clipped
}

/// `[#####-----]  50%`; nothing when the whole is not known.
pub fn bar(done: u64, all: u64) -> String {
    const CELLS: u64 = 24;
    if all == 0 {
        return String::new();
    }
    let done = done.min(all);
    let scaled = |to: u64| u64::try_from(u128::from(done) * u128::from(to) / u128::from(all));
    let cells = usize::try_from(scaled(CELLS).unwrap_or(0)).unwrap_or(0);
    let rest = CELLS as usize - cells;
    format!(
        "[{}{}] {:>3}%",
        "#".repeat(cells),
        "-".repeat(rest),
        scaled(100).unwrap_or(0)
    )
}

/// A span of time for people: `4.2 s`, `3 min 12 s`, `5 h 2 min`, `3 d 4 h`.
pub fn span(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0..60 => format!("{}.{} s", seconds, ms % 1000 / 100),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// The text without control characters other than newline and tab, which could otherwise drive the
/// terminal.
pub fn printable(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_control() || matches!(c, '\n' | '\t'))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(text: &str, log: &str) -> Line {
        Line {
            text: text.into(),
            log: log.into(),
        }
    }

    #[test]
    fn a_terminal_is_redrawn_and_a_log_gets_changes_only() {
        let before = vec![line("engine 10%", "loading"), line("demiurge up", "ready")];
        let after = [
            line("engine 20%", "loading"),
            line("demiurge gone", "waiting"),
        ];
        let terminal = LiveLines {
            terminal: true,
            drawn: before.clone(),
        };
        assert_eq!(
            terminal.frame(&after, 80),
            "\x1b[2F\x1b[Jengine 20%\ndemiurge gone\n"
        );
        let log = LiveLines {
            terminal: false,
            drawn: before,
        };
        assert_eq!(log.frame(&after, 80), "waiting\n");
    }

    #[test]
    fn lines_are_clipped_to_the_window_but_keep_their_colours() {
        assert_eq!(clip("\x1b[32mready\x1b[0m", 3), "\x1b[32mrea\x1b[0m");
        assert_eq!(clip("ready", 80), "ready");
    }

    #[test]
    fn bars_and_spans() {
        assert_eq!(bar(1, 2), "[############------------]  50%");
        assert_eq!(bar(0, 0), "");
        assert_eq!(span(4_230), "4.2 s");
        assert_eq!(span(192_000), "3 min 12 s");
        assert_eq!(span(7_320_000), "2 h 2 min");
        assert_eq!(span(90_000_000), "1 d 1 h");
    }

    #[test]
    fn text_cannot_drive_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\u{9b}c\n\td\r\u{7}"), "a[2Jbc\n\td");
    }

    proptest! {
        #[test]
        fn a_bar_never_overflows(done in any::<u64>(), all in 1..u64::MAX) {
            prop_assert_eq!(bar(done, all).len(), 31);
        }
    }
}
