//! How long to wait before the next try.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(50);

/// A restarted engine answers within this of its being ready.
const LONGEST: Duration = Duration::from_secs(1);

/// The wait before try `tries + 1`: 50 ms, doubled each time, 1 s at most.
pub fn wait_after(tries: u32) -> Duration {
    FIRST
        .saturating_mul(2u32.saturating_pow(tries.saturating_sub(1)))
        .min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_to_a_second_and_stays_there() {
        assert_eq!(wait_after(1), Duration::from_millis(50));
        assert_eq!(wait_after(2), Duration::from_millis(100));
        assert_eq!(wait_after(5), Duration::from_millis(800));
        assert_eq!(wait_after(6), LONGEST);
        assert_eq!(wait_after(u32::MAX), LONGEST);
    }
}
