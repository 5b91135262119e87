//! How far back, and how much.

use std::str::FromStr;

use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// From when on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// So many seconds ago.
    Ago { seconds: u64 },
    /// At this time.
    At(OffsetDateTime),
}

impl Since {
    /// The moment, seen from `now`.
    pub fn moment(self, now: OffsetDateTime) -> OffsetDateTime {
        match self {
            Since::At(time) => time,
            Since::Ago { seconds } => {
                let span = time::Duration::seconds(i64::try_from(seconds).unwrap_or(i64::MAX));
                now.checked_sub(span).unwrap_or(OffsetDateTime::UNIX_EPOCH)
            }
        }
    }
}

impl FromStr for Since {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || "write 90s, 10m, 2h or 3d, or a time such as 2026-11-30T08:00:00Z".to_owned();
        if let Ok(time) = OffsetDateTime::parse(text, &Rfc3339) {
            return Ok(Since::At(time));
        }
        let unit = text.chars().next_back().ok_or_else(wrong)?;
        let seconds_each: u64 = match unit {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86_400,
            _ => return Err(wrong()),
        };
        let count: u64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
        let seconds = count.checked_mul(seconds_each).ok_or_else(wrong)?;
        Ok(Since::Ago { seconds })
    }
}

/// How many lines at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    All,
    Last(usize),
}

impl FromStr for Lines {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Lines::All),
            count => count
                .parse()
                .map(Lines::Last)
                .map_err(|_| "write a number or 'all'".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_are_read() {
        assert_eq!("90s".parse(), Ok(Since::Ago { seconds: 90 }));
        assert_eq!("2h".parse(), Ok(Since::Ago { seconds: 7200 }));
        assert_eq!("3d".parse(), Ok(Since::Ago { seconds: 259_200 }));
        let at: Since = "1970-01-01T01:00:05+01:00".parse().unwrap();
        assert_eq!(at.moment(OffsetDateTime::now_utc()).unix_timestamp(), 5);
        for wrong in [
            "",
            "s",
            "1",
            "1w",
            "yesterday",
            "-5m",
            "1é",
            "99999999999999999d",
        ] {
            assert!(wrong.parse::<Since>().is_err(), "{wrong}");
        }
        let now = OffsetDateTime::from_unix_timestamp(1000).unwrap();
        let minute: Since = "1m".parse().unwrap();
        assert_eq!(minute.moment(now).unix_timestamp(), 940);
        assert_eq!("all".parse(), Ok(Lines::All));
        assert_eq!("7".parse(), Ok(Lines::Last(7)));
        assert!("-7".parse::<Lines>().is_err());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,12}") {
            if let Ok(since) = text.parse::<Since>() {
                since.moment(OffsetDateTime::UNIX_EPOCH);
            }
        }
    }
}
