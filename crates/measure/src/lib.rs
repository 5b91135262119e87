//! What measurements become: medians with their spread, a trend with its confidence, tables and
//! charts. All of it is pure but [`write_whole`].

mod chart;
mod summary;
mod table;
mod trend;
mod whole_file;

pub use chart::{Bar, Chart};
pub use summary::Summary;
pub use table::Table;
pub use trend::Trend;
pub use whole_file::{WriteError, write_whole};

/// `value` with about three significant digits: `1234`, `56.7`, `8.90`, `0.123`.
#[must_use]
pub fn rounded(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_are_enough() {
        let written = [1234.5, 56.72, -8.901, 0.1234, 0.0].map(rounded);
        assert_eq!(written, ["1234", "56.7", "-8.90", "0.123", "0.000"]);
    }
}
