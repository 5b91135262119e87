//! The types a setting can have: how each is read from TOML or a flag, and written back.

use std::{fmt, net::SocketAddr, path::PathBuf, str::FromStr};

use vitriol_kernels_core::KvCodec;
use vitriol_units::Bytes;

use crate::ValueError;

/// A value as it was written, before its setting's type is known.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Raw<'a> {
    /// A TOML string.
    Text(&'a str),
    Integer(i64),
    Float(f64),
    Boolean(bool),
    /// Any other TOML value, by the name of its type.
    Other(&'static str),
    /// The text of a flag, which stands for whatever type its setting has.
    Flag(&'a str),
}

impl Raw<'_> {
    fn mismatch(self, expected: &'static str) -> ValueError {
        let found = match self {
            Raw::Text(text) | Raw::Flag(text) => format!("'{text}'"),
            Raw::Integer(n) => n.to_string(),
            Raw::Float(x) => format!("{x:?}"),
            Raw::Boolean(b) => b.to_string(),
            Raw::Other(kind) => format!("a TOML {kind}"),
        };
        ValueError::Type { expected, found }
    }
}

/// A type that settings have.
pub(crate) trait Setting: Sized {
    /// The type's name in the field reference.
    const TYPE: &'static str;

    fn read(raw: Raw<'_>) -> Result<Self, ValueError>;

    /// The value as TOML source; reading it gives the value back.
    fn write(&self) -> String;

    /// The value as a number, for range checks; `None` where a range has no meaning.
    fn magnitude(&self) -> Option<i128> {
        None
    }
}

macro_rules! integer_setting {
    ($($ty:ty),*) => {$(
        impl Setting for $ty {
            const TYPE: &'static str = "integer";

            fn read(raw: Raw<'_>) -> Result<Self, ValueError> {
                let wide: i128 = match raw {
                    Raw::Integer(n) => n.into(),
                    Raw::Flag(text) => {
                        text.trim().parse().map_err(|_| raw.mismatch("a whole number"))?
                    }
                    _ => return Err(raw.mismatch("a whole number")),
                };
                let range = |_| ValueError::Range { value: wide, low: 0, high: <$ty>::MAX.into() };
                <$ty>::try_from(wide).map_err(range)
            }

            fn write(&self) -> String {
                self.to_string()
            }

            fn magnitude(&self) -> Option<i128> {
                Some((*self).into())
            }
        }
    )*};
}

integer_setting!(u32, u64);

/// A part of a whole, from 0 to 1; kept in millionths, so that sums are exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share(u32);

impl Share {
    const ONE: u32 = 1_000_000;

    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / f64::from(Self::ONE)
    }

    /// Whether these together are no more than the whole.
    pub fn fit(shares: impl IntoIterator<Item = Share>) -> bool {
        let all = shares.into_iter().map(|share| u64::from(share.0));
        all.sum::<u64>() <= u64::from(Self::ONE)
    }
}

impl Setting for Share {
    const TYPE: &'static str = "share";

    fn read(raw: Raw<'_>) -> Result<Self, ValueError> {
        let value = match raw {
            Raw::Float(x) => x,
            Raw::Integer(n) => n as f64,
            Raw::Flag(text) => text.trim().parse().unwrap_or(f64::NAN),
            _ => f64::NAN,
        };
        match (0.0..=1.0).contains(&value) {
            true => Ok(Self((value * f64::from(Self::ONE)).round() as u32)),
            false => Err(raw.mismatch("a number from 0 to 1")),
        }
    }

    fn write(&self) -> String {
        format!("{:?}", self.as_f64())
    }
}

impl Setting for bool {
    const TYPE: &'static str = "boolean";

    fn read(raw: Raw<'_>) -> Result<Self, ValueError> {
        match raw {
            Raw::Boolean(value) => Ok(value),
            Raw::Flag("true") => Ok(true),
            Raw::Flag("false") => Ok(false),
            _ => Err(raw.mismatch("true or false")),
        }
    }

    fn write(&self) -> String {
        self.to_string()
    }
}

impl Setting for String {
    const TYPE: &'static str = "string";

    fn read(raw: Raw<'_>) -> Result<Self, ValueError> {
        match raw {
            Raw::Text(text) | Raw::Flag(text) => Ok(text.to_owned()),
            _ => Err(raw.mismatch("a quoted text")),
        }
    }

    fn write(&self) -> String {
        toml::Value::String(self.clone()).to_string()
    }
}

/// Names of processes as the kernel keeps them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessNames(Vec<String>);

impl ProcessNames {
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

impl Setting for ProcessNames {
    const TYPE: &'static str = "names";

    fn read(raw: Raw<'_>) -> Result<Self, ValueError> {
        let (Raw::Text(text) | Raw::Flag(text)) = raw else {
            return Err(raw.mismatch("names such as \"postgres, java\""));
        };
        let names = text.split(',').map(str::trim);
        let names: Vec<String> = names.map(str::to_owned).collect();
        let fits = |name: &String| !name.is_empty() && !name.contains('/');
        match text.trim().is_empty() {
            true => Ok(Self::default()),
            false if names.iter().all(fits) => Ok(Self(names)),
            false => Err(raw.mismatch("names of processes, not paths, between single commas")),
        }
    }

    fn write(&self) -> String {
        toml::Value::String(self.0.join(", ")).to_string()
    }
}

impl Setting for PathBuf {
    const TYPE: &'static str = "path";

    fn read(raw: Raw<'_>) -> Result<Self, ValueError> {
        match raw {
            Raw::Text(text) | Raw::Flag(text) => Ok(text.into()),
            _ => Err(raw.mismatch("a quoted path")),
        }
    }

    fn write(&self) -> String {
        // Read from UTF-8 above, so nothing is lost here.
        toml::Value::String(self.to_string_lossy().into_owned()).to_string()
    }
}

impl Setting for Bytes {
    const TYPE: &'static str = "bytes";

    fn read(raw: Raw<'_>) -> Result<Self, ValueError> {
        match raw {
            Raw::Text(text) | Raw::Flag(text) => Ok(text.parse()?),
            Raw::Integer(n) if n >= 0 => Ok(Bytes(n.unsigned_abs())),
            _ => Err(raw.mismatch("an amount such as \"512 MiB\" or 4096")),
        }
    }

    fn write(&self) -> String {
        format!("\"{self}\"")
    }

    fn magnitude(&self) -> Option<i128> {
        Some(self.get().into())
    }
}

impl Setting for SocketAddr {
    const TYPE: &'static str = "address";

    fn read(raw: Raw<'_>) -> Result<Self, ValueError> {
        match raw {
            Raw::Text(text) | Raw::Flag(text) => parse_address(text),
            _ => Err(raw.mismatch("an address such as \"127.0.0.1:8265\"")),
        }
    }

    fn write(&self) -> String {
        format!("\"{self}\"")
    }
}

/// `localhost:PORT` is taken as 127.0.0.1, without asking a resolver.
fn parse_address(text: &str) -> Result<SocketAddr, ValueError> {
    let wrong = || ValueError::Address(text.to_owned());
    match text.strip_prefix("localhost:") {
        Some(port) => Ok(([127, 0, 0, 1], port.parse::<u16>().map_err(|_| wrong())?).into()),
        None => text.parse().map_err(|_| wrong()),
    }
}

macro_rules! choice_setting {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant),* }

        impl $name {
            /// Every choice, as it is written in a profile.
            pub const CHOICES: &'static [&'static str] = &[$($text),*];

            /// The choice as it is written in a profile.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }
        }

        impl FromStr for $name {
            type Err = ValueError;

            fn from_str(text: &str) -> Result<Self, ValueError> {
                match text {
                    $($text => Ok(Self::$variant),)*
                    _ => Err(ValueError::Choice {
                        found: text.to_owned(),
                        choices: Self::CHOICES.join(", "),
                    }),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl Setting for $name {
            const TYPE: &'static str = concat!("one of" $(, " ", $text)*);

            fn read(raw: Raw<'_>) -> Result<Self, ValueError> {
                match raw {
                    Raw::Text(text) | Raw::Flag(text) => text.parse(),
                    _ => Err(raw.mismatch(Self::TYPE)),
                }
            }

            fn write(&self) -> String {
                format!("\"{}\"", self.as_str())
            }
        }
    };
}

choice_setting! {
    /// How a daemon writes its log lines.
    LogFormat {
        /// Lines for people.
        Text = "text",
        /// One JSON object a line.
        Json = "json",
    }
}

choice_setting! {
    /// The instruction set whose kernels the engine uses.
    Isa {
        /// The best one this CPU has.
        Auto = "auto",
        /// Plain Rust, for every CPU.
        Scalar = "scalar",
        /// SSSE3 and SSE4.1.
        Sse41 = "sse41",
        /// AVX2 with FMA and F16C.
        Avx2 = "avx2",
        /// The same with AVX-VNNI.
        AvxVnni = "avxvnni",
        /// AVX-512 F, BW, VL, DQ and VNNI.
        Avx512 = "avx512",
    }
}

choice_setting! {
    /// Where the engine has the panels from that its kernels read weights in.
    Repack {
        /// Made in memory at every start.
        Ram = "ram",
        /// Made at the first start and kept in a file.
        File = "file",
    }
}

choice_setting! {
    /// Where the engine drafts tokens from before it computes them.
    Speculation {
        /// From earlier text of the same sequence.
        PromptLookup = "prompt-lookup",
        /// It drafts none.
        Off = "off",
    }
}

/// How the engine encodes keys or values in its KV pages.
impl Setting for KvCodec {
    const TYPE: &'static str = "one of f32 f16 q8_0 q4_0";

    fn read(raw: Raw<'_>) -> Result<Self, ValueError> {
        match raw {
            Raw::Text(text) | Raw::Flag(text) => {
                KvCodec::from_name(text).ok_or_else(|| ValueError::Choice {
                    found: text.to_owned(),
                    choices: KvCodec::ALL.map(KvCodec::name).join(", "),
                })
            }
            _ => Err(raw.mismatch(Self::TYPE)),
        }
    }

    fn write(&self) -> String {
        format!("\"{}\"", self.name())
    }
}
