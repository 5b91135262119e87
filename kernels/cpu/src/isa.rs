use std::fmt;

use thiserror::Error;

/// Instruction set a kernel table is compiled for, from the most portable to the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Whatever the build target guarantees; multiply, then add.
    Scalar,
    /// SSSE3 and SSE4.1 (x86-64-v2); multiply, then add.
    Sse41,
    /// AVX2 with FMA and F16C (x86-64-v3).
    Avx2,
    /// The same with AVX-VNNI, the int8 dot product (Alder Lake, Zen 5 and later).
    AvxVnni,
    /// AVX-512 F, BW, VL, DQ and VNNI (Ice Lake, Zen 4 and later).
    Avx512,
}

/// Why an instruction set cannot be used.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum IsaError {
    /// No such name.
    #[error("unknown instruction set {0:?}: use auto, scalar, sse41, avx2, avxvnni or avx512")]
    Unknown(String),
    /// The name is right, the processor lacks it.
    #[error("this processor cannot run {requested} kernels: use auto, or at most {best}")]
    Absent {
        /// What was asked for.
        requested: Isa,
        /// The fastest the processor has.
        best: Isa,
    },
}

impl Isa {
    /// All instruction sets with a kernel table, ascending.
    pub const ALL: [Isa; 5] = [
        Isa::Scalar,
        Isa::Sse41,
        Isa::Avx2,
        Isa::AvxVnni,
        Isa::Avx512,
    ];

    /// Fastest instruction set of the processor this runs on.
    #[must_use]
    pub fn detect() -> Isa {
        Isa::ALL
            .into_iter()
            .rev()
            .find(|isa| isa.is_present())
            .unwrap_or(Isa::Scalar)
    }

    /// Whether this processor (and its operating system) can run the kernels.
    #[must_use]
    pub fn is_present(self) -> bool {
        match self {
            Isa::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Sse41 => is_x86_feature_detected!("ssse3") && is_x86_feature_detected!("sse4.1"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => Isa::Avx2.is_present() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.is_present()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// Reads a name as written in a profile: `auto` gives `None` (use [`Isa::detect`]).
    ///
    /// Errors: [`IsaError::Unknown`]; whether the processor has it is checked by `Cpu::new`.
    pub fn parse(name: &str) -> Result<Option<Isa>, IsaError> {
        if name == "auto" {
            return Ok(None);
        }
        let found = Isa::ALL.into_iter().find(|isa| isa.name() == name);
        found
            .map(Some)
            .ok_or_else(|| IsaError::Unknown(name.to_owned()))
    }

    /// The slowest instruction set that computes the same bits.
    #[must_use]
    pub const fn family(self) -> Isa {
        match self {
            Isa::Scalar | Isa::Sse41 => Isa::Scalar,
            Isa::Avx2 | Isa::AvxVnni | Isa::Avx512 => Isa::Avx2,
        }
    }

    /// Name as written in a profile.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Sse41 => "sse41",
            Isa::Avx2 => "avx2",
            Isa::AvxVnni => "avxvnni",
            Isa::Avx512 => "avx512",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for isa in Isa::ALL {
            assert_eq!(Isa::parse(isa.name()), Ok(Some(isa)));
        }
        assert_eq!(Isa::parse("auto"), Ok(None));
        let error = Isa::parse("sse9").unwrap_err().to_string();
        assert!(error.contains("sse9") && error.contains("avx2"), "{error}");
    }

    #[test]
    fn what_is_detected_is_present() {
        assert!(Isa::detect().is_present());
    }
}
