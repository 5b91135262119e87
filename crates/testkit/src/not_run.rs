use std::io::{self, Write};

/// Says that `what` was not tested and what would make it so (`remedy`), in the line that `ops/test`
/// collects: `NOT RUN: what: remedy`. Written past the capture of a passing test's output.
pub fn not_run(what: &str, remedy: &str) {
    let line = format!("NOT RUN: {what}: {remedy}\n");
    // A terminal that is gone has nobody to tell.
    let _ = io::stderr().write_all(line.as_bytes());
}
