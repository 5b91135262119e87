//! How long to wait before the next try.

use std::time::Duration;

const SHORTEST: Duration = Duration::from_millis(20);

/// An engine that comes back after a long time answers within this of its being ready.
const LONGEST: Duration = Duration::from_secs(1);

/// The wait after a try, when there has been no engine for so long: a sixteenth of it, so that who waits for an
/// engine waits hardly longer than it takes to start.
pub fn wait_after(absent: Duration) -> Duration {
    (absent / 16).clamp(SHORTEST, LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_of_a_start_is_lost_and_a_second_at_most() {
        let wait = |ms| wait_after(Duration::from_millis(ms)).as_millis();
        assert_eq!([wait(0), wait(320), wait(1600)], [20, 20, 100]);
        assert_eq!([wait(16_000), wait(1_000_000)], [1000, 1000]);
    }
}
