//! What the mirror has written to its disk, day by day: flash wears out.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use time::{
    Date, OffsetDateTime, format_description::StaticFormatDescription, macros::format_description,
};

const DAY: StaticFormatDescription = format_description!("[year]-[month]-[day]");

/// Days that are kept.
const DAYS_MAX: usize = 400;

/// Bytes written per day (UTC), kept in a file of lines `YYYY-MM-DD<TAB>bytes`.
#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
    days: BTreeMap<Date, u64>,
}

impl Ledger {
    /// The ledger at `path`. A missing file is an empty ledger; lines that cannot be read are left out.
    pub fn open(path: &Path) -> io::Result<Self> {
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            other => other?,
        };
        let day = |line: &str| {
            let (day, bytes) = line.split_once('\t')?;
            Some((Date::parse(day, DAY).ok()?, bytes.parse().ok()?))
        };
        Ok(Self {
            path: path.to_owned(),
            days: text.lines().filter_map(day).collect(),
        })
    }

    /// Adds what was written at `now`, by a clock that may be wrong.
    pub fn add(&mut self, now: SystemTime, bytes: u64) {
        let today = self.days.entry(day_of(now)).or_default();
        *today = today.saturating_add(bytes);
        while self.days.len() > DAYS_MAX {
            self.days.pop_first();
        }
    }

    /// Bytes written on the day of `now`.
    pub fn on_day(&self, now: SystemTime) -> u64 {
        self.days.get(&day_of(now)).copied().unwrap_or(0)
    }

    /// Writes the file anew, whole or not at all.
    pub fn save(&self) -> io::Result<()> {
        let draft = self.path.with_extension("new");
        let lines = self
            .days
            .iter()
            .map(|(day, bytes)| format!("{day}\t{bytes}\n"));
        fs::write(&draft, lines.collect::<String>())?;
        fs::rename(&draft, &self.path)
    }
}

/// The day in UTC; the last there is for a time beyond all calendars.
fn day_of(now: SystemTime) -> Date {
    let seconds = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let known = OffsetDateTime::from_unix_timestamp(seconds.try_into().unwrap_or(i64::MAX));
    known.map_or(Date::MAX, OffsetDateTime::date)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn days_add_up_and_are_found_again() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("endurance.tsv");
        // 2026-11-30, an hour before its end.
        let evening = SystemTime::UNIX_EPOCH + Duration::from_secs(1_796_079_600);
        let mut ledger = Ledger::open(&path).unwrap();
        ledger.add(evening, 5);
        ledger.add(evening, 6);
        ledger.add(evening + DAY / 12, 7);
        ledger.save().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, "2026-11-30\t11\n2026-12-01\t7\n");
        let mut ledger = Ledger::open(&path).unwrap();
        assert_eq!(
            [evening, evening + DAY].map(|at| ledger.on_day(at)),
            [11, 7]
        );
        for day in 2..500 {
            ledger.add(evening + DAY * day, 1);
        }
        assert_eq!(ledger.days.len(), DAYS_MAX);
        assert_eq!(ledger.on_day(evening), 0);
    }

    #[test]
    fn a_damaged_line_costs_its_day() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("endurance.tsv");
        fs::write(
            &path,
            "2026-11-30\t11\n2026-13-01\t1\nno day\n2026-12-01\t7\n2026-12-02\t",
        )
        .unwrap();
        assert_eq!(Ledger::open(&path).unwrap().days.len(), 2);
    }

    #[test]
    fn a_clock_that_jumps_costs_no_day() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("endurance.tsv");
        let mut ledger = Ledger::open(&path).unwrap();
        let today = SystemTime::UNIX_EPOCH + 20_000 * DAY;
        let beyond = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 40);
        let before = SystemTime::UNIX_EPOCH - DAY;
        for now in [today, beyond, before, today] {
            ledger.add(now, 5);
        }
        ledger.save().unwrap();
        let ledger = Ledger::open(&path).unwrap();
        let bytes = [today, beyond, before].map(|now| ledger.on_day(now));
        assert_eq!(bytes, [10, 5, 5]);
    }
}
