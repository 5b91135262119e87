//! Quantities with units, as people write them in profiles, flags and reports.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// An amount of memory or storage.
///
/// Read from `"1 GiB"`, `"512MiB"`, `"1.5 GiB"`, `"64 kB"` (decimal units count in thousands) or a
/// plain count of bytes. Written in the largest binary unit that holds it exactly, so that
/// `bytes.to_string().parse()` gives the same amount back; [`Bytes::rounded`] is for reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl Bytes {
    /// `n` KiB; saturates.
    pub const fn kib(n: u64) -> Self {
        Self(n.saturating_mul(KIB))
    }

    /// `n` MiB; saturates.
    pub const fn mib(n: u64) -> Self {
        Self(n.saturating_mul(MIB))
    }

    /// `n` GiB; saturates.
    pub const fn gib(n: u64) -> Self {
        Self(n.saturating_mul(GIB))
    }

    /// The amount as a count of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// For people: at most one decimal, in the unit that keeps it under 1,024 (`"93.8 MiB"`).
    pub const fn rounded(self) -> Rounded {
        Rounded(self.0)
    }
}

/// [`Bytes`] written for people, to one decimal.
#[derive(Clone, Copy, Debug)]
pub struct Rounded(u64);

impl fmt::Display for Rounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            TIB.. => (TIB, "TiB"),
            GIB.. => (GIB, "GiB"),
            MIB.. => (MIB, "MiB"),
            KIB.. => (KIB, "KiB"),
            bytes => return f.pad(&format!("{bytes} B")),
        };
        let amount = self.0 as f64 / unit as f64;
        f.pad(&if self.0.is_multiple_of(unit) {
            format!("{amount:.0} {name}")
        } else {
            format!("{amount:.1} {name}")
        })
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = |unit: u64| self.0 != 0 && self.0.is_multiple_of(unit);
        let (unit, name) = match () {
            () if exact(TIB) => (TIB, "TiB"),
            () if exact(GIB) => (GIB, "GiB"),
            () if exact(MIB) => (MIB, "MiB"),
            () if exact(KIB) => (KIB, "KiB"),
            () => (1, "B"),
        };
        f.pad(&format!("{} {name}", self.0 / unit))
    }
}

/// Why a text is not an amount of bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BytesError {
    #[error("'{0}' is not an amount of bytes; write for instance \"512 MiB\" or 4096")]
    Malformed(String),
    #[error("'{0}' has an unknown unit; use B, KiB, MiB, GiB, TiB or kB, MB, GB, TB")]
    Unit(String),
    #[error("'{0}' is more than 64 bits of bytes hold")]
    TooLarge(String),
}

impl FromStr for Bytes {
    type Err = BytesError;

    fn from_str(text: &str) -> Result<Self, BytesError> {
        let trimmed = text.trim();
        let split = trimmed
            .find(|c: char| !(c.is_ascii_digit() || c == '.'))
            .unwrap_or(trimmed.len());
        let (number, suffix) = (&trimmed[..split], trimmed[split..].trim());
        let unit = parse_unit(suffix).ok_or_else(|| BytesError::Unit(text.to_owned()))?;
        let malformed = || BytesError::Malformed(text.to_owned());
        let too_large = || BytesError::TooLarge(text.to_owned());

        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
        if whole.is_empty() || !digits(fraction) || number.ends_with('.') || fraction.len() > 9 {
            return Err(malformed());
        }
        let whole: u64 = whole.parse().map_err(|_| too_large())?;
        let mut total = u128::from(whole) * u128::from(unit);
        if !fraction.is_empty() {
            // At most nine digits, so this neither overflows nor loses any.
            let numerator: u128 = fraction.parse().map_err(|_| malformed())?;
            total += numerator * u128::from(unit) / 10u128.pow(fraction.len() as u32);
        }
        u64::try_from(total).map(Self).map_err(|_| too_large())
    }
}

fn parse_unit(suffix: &str) -> Option<u64> {
    Some(match suffix.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kib" | "k" => KIB,
        "mib" | "m" => MIB,
        "gib" | "g" => GIB,
        "tib" | "t" => TIB,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return None,
    })
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = Bytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an amount of bytes such as \"512 MiB\" or 4096")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Bytes, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Bytes, E> {
                Ok(Bytes(bytes))
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Bytes, E> {
                u64::try_from(bytes)
                    .map(Bytes)
                    .map_err(|_| E::custom("bytes cannot be negative"))
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_what_people_write() {
        let cases = [
            ("4096", 4096),
            (" 1 GiB ", 1 << 30),
            ("512MiB", 512 << 20),
            ("1.5 GiB", 3 << 29),
            ("64 kB", 64_000),
            ("2k", 2048),
            ("0", 0),
            ("7 B", 7),
            ("0.5 KiB", 512),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_amount() {
        let text = |t: &str| t.to_owned();
        assert_eq!("".parse::<Bytes>(), Err(BytesError::Malformed(text(""))));
        assert_eq!(
            "GiB".parse::<Bytes>(),
            Err(BytesError::Malformed(text("GiB")))
        );
        assert_eq!(
            "1..5 GiB".parse::<Bytes>(),
            Err(BytesError::Malformed(text("1..5 GiB")))
        );
        assert_eq!(
            "1. GiB".parse::<Bytes>(),
            Err(BytesError::Malformed(text("1. GiB")))
        );
        assert_eq!("-1".parse::<Bytes>(), Err(BytesError::Unit(text("-1"))));
        assert_eq!(
            "5 parsecs".parse::<Bytes>(),
            Err(BytesError::Unit(text("5 parsecs")))
        );
        let huge = "17179869184 GiB";
        assert_eq!(huge.parse::<Bytes>(), Err(BytesError::TooLarge(text(huge))));
    }

    #[test]
    fn writes_for_files_and_for_people() {
        assert_eq!(Bytes::gib(1).to_string(), "1 GiB");
        assert_eq!(Bytes(98_362_432).to_string(), "98362432 B");
        assert_eq!(Bytes(98_362_432).rounded().to_string(), "93.8 MiB");
        assert_eq!(Bytes::mib(64).rounded().to_string(), "64 MiB");
        assert_eq!(Bytes(0).to_string(), "0 B");
        assert_eq!(format!("{:>10}", Bytes(512).rounded()), "     512 B");
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(bytes in any::<u64>(), shift in 0u32..50) {
            let amount = Bytes(bytes >> shift << (shift / 2));
            prop_assert_eq!(amount.to_string().parse(), Ok(amount));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,24}") {
            let _ = text.parse::<Bytes>();
        }
    }
}
