use vitriol_kernels_core::TensorType;

use crate::generic::quants::QuantFormat;

/// How the weights of a panel are laid out: `generic::formats` for the plain ones, `generic::quants`
/// for those that meet tokens as bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PanelFormat {
    F32,
    F16,
    Bf16,
    Q8_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q4K,
    Q5K,
    Q6K,
    Iq4Nl,
    TwoBits,
    Q2K,
    Q3K,
    Iq4Xs,
    Mxfp4,
    Nvfp4,
    Codebook,
}

/// Gives the names of the quantised formats to the macro `$then`, behind what it is given.
macro_rules! quant_formats {
    ($($then:ident)::+ ! ($($given:tt)*)) => {
        $($then)::+!($($given)*
            Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q4K Q5K Q6K Iq4Nl TwoBits Q2K Q3K Iq4Xs Mxfp4 Nvfp4 Codebook)
    };
}
pub(crate) use quant_formats;

/// `$body` with `$format`, a quantised one, as the type `$q`.
macro_rules! by_quant_format {
    ($format:expr, $q:ident => $body:expr) => {
        crate::panel::format::quant_formats!(
            crate::panel::format::by_quant_format!(@ $format, $q, $body,))
    };
    (@ $format:expr, $q:ident, $body:expr, $($name:ident)*) => {
        match $format {
            $(crate::panel::format::PanelFormat::$name => {
                type $q = crate::generic::quants::$name;
                $body
            })*
            plain => unreachable!("{plain:?} panels are not quantised"),
        }
    };
}
pub(crate) use by_quant_format;

impl PanelFormat {
    /// The layout that holds the values of a type (of mxfp4 all but the rarest scales,
    /// [`super::interleave::mxfp4_fits`]); `None` for what are no weights.
    pub(crate) fn of(tensor_type: TensorType) -> Option<Self> {
        Some(match tensor_type {
            TensorType::F32 => Self::F32,
            TensorType::F16 => Self::F16,
            TensorType::BF16 => Self::Bf16,
            TensorType::Q8_0 => Self::Q8_0,
            TensorType::Q4_0 => Self::Q4_0,
            TensorType::Q4_1 => Self::Q4_1,
            TensorType::Q5_0 => Self::Q5_0,
            TensorType::Q5_1 => Self::Q5_1,
            TensorType::Q4_K => Self::Q4K,
            TensorType::Q5_K => Self::Q5K,
            TensorType::Q6_K => Self::Q6K,
            TensorType::IQ4_NL => Self::Iq4Nl,
            TensorType::TQ1_0 | TensorType::TQ2_0 | TensorType::Q1_0 | TensorType::Q2_0 => {
                Self::TwoBits
            }
            TensorType::Q2_K => Self::Q2K,
            TensorType::Q3_K => Self::Q3K,
            TensorType::IQ4_XS => Self::Iq4Xs,
            TensorType::MXFP4 => Self::Mxfp4,
            TensorType::NVFP4 => Self::Nvfp4,
            TensorType::IQ1_S
            | TensorType::IQ1_M
            | TensorType::IQ2_XXS
            | TensorType::IQ2_XS
            | TensorType::IQ2_S
            | TensorType::IQ3_XXS
            | TensorType::IQ3_S => Self::Codebook,
            TensorType::Q8_1
            | TensorType::Q8_K
            | TensorType::I8
            | TensorType::I16
            | TensorType::I32
            | TensorType::I64
            | TensorType::F64 => return None,
        })
    }

    /// Whether the kernels multiply its weights as integers with quantised tokens.
    pub(crate) fn is_quantised(self) -> bool {
        !matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }

    /// Bytes of one panel of 16 rows by `cols`; `None` beyond the address space.
    pub(crate) fn panel_bytes(self, cols: usize) -> Option<usize> {
        match self {
            Self::F32 => cols.checked_mul(64),
            Self::F16 | Self::Bf16 => cols.checked_mul(32),
            _ => by_quant_format!(self, Q => Q::panel_bytes(cols)),
        }
    }
}
