//! Waiting for conditions, never for time.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

const POLL: Duration = Duration::from_millis(20);

/// Asks `condition` until it gives a value.
/// Errors: `within` passes first; the message names `what`.
pub fn eventually<T>(
    within: Duration,
    what: &str,
    mut condition: impl FnMut() -> Option<T>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(value) = condition() {
            return Ok(value);
        }
        if start.elapsed() >= within {
            bail!("{what}: not within {within:?}");
        }
        thread::sleep(POLL);
    }
}

/// Asks `condition` again and again for the whole of `period`; what must not happen must be watched.
/// Errors: it was false once; the message names `what` and when.
pub fn holds_for(period: Duration, what: &str, mut condition: impl FnMut() -> bool) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < period {
        if !condition() {
            bail!("{what}: no longer after {:?}", start.elapsed());
        }
        thread::sleep(POLL);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_comes_is_seen_and_one_that_does_not_is_named() {
        let mut asked = 0;
        let third = || {
            asked += 1;
            (asked == 3).then_some(asked)
        };
        assert_eq!(
            eventually(Duration::from_secs(5), "third", third).unwrap(),
            3
        );
        let late = eventually(Duration::from_millis(1), "the moon", || None::<()>);
        assert!(
            late.unwrap_err()
                .to_string()
                .starts_with("the moon: not within")
        );
    }

    #[test]
    fn a_condition_that_lapses_is_an_error() {
        assert!(holds_for(Duration::from_millis(30), "up", || true).is_ok());
        assert!(holds_for(Duration::from_millis(30), "up", || false).is_err());
    }
}
