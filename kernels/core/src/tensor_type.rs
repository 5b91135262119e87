use std::fmt;

macro_rules! tensor_types {
    ($($(#[$doc:meta])* $variant:ident = $id:literal, $name:literal, $block_len:literal, $block_bytes:literal;)*) => {
        /// Element type of a tensor in a GGUF file: `block_len` consecutive elements of a row are
        /// stored in `block_bytes` bytes. Discriminants are the ids written in the file.
        ///
        /// Source: ggml `ggml.h` (enum ggml_type) and `ggml-common.h` (block structs); ids 4, 5,
        /// 31–33 and 36–38 were withdrawn there and name nothing.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        #[allow(non_camel_case_types, reason = "the field writes these names so")]
        pub enum TensorType {
            $($(#[$doc])* $variant = $id,)*
        }

        impl TensorType {
            /// Every type there is, by ascending id.
            pub const ALL: &'static [TensorType] = &[$(TensorType::$variant),*];

            /// Type with this id in the file, if there is one.
            #[must_use]
            pub const fn from_id(id: u32) -> Option<TensorType> {
                match id {
                    $($id => Some(TensorType::$variant),)*
                    _ => None,
                }
            }

            /// Lower-case name as ggml prints it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(TensorType::$variant => $name,)* }
            }

            /// Elements per block; rows are whole blocks.
            #[must_use]
            pub const fn block_len(self) -> usize {
                match self { $(TensorType::$variant => $block_len,)* }
            }

            /// Bytes per block.
            #[must_use]
            pub const fn block_bytes(self) -> usize {
                match self { $(TensorType::$variant => $block_bytes,)* }
            }
        }
    };
}

tensor_types! {
    /// IEEE binary32.
    F32 = 0, "f32", 1, 4;
    /// IEEE binary16.
    F16 = 1, "f16", 1, 2;
    /// 4 bits, one scale.
    Q4_0 = 2, "q4_0", 32, 18;
    /// 4 bits, scale and minimum.
    Q4_1 = 3, "q4_1", 32, 20;
    /// 5 bits, one scale.
    Q5_0 = 6, "q5_0", 32, 22;
    /// 5 bits, scale and minimum.
    Q5_1 = 7, "q5_1", 32, 24;
    /// 8 bits, one scale.
    Q8_0 = 8, "q8_0", 32, 34;
    /// 8 bits, scale and sum (activations only).
    Q8_1 = 9, "q8_1", 32, 36;
    /// 2-bit super-blocks of 256.
    Q2_K = 10, "q2_K", 256, 84;
    /// 3-bit super-blocks of 256.
    Q3_K = 11, "q3_K", 256, 110;
    /// 4-bit super-blocks of 256.
    Q4_K = 12, "q4_K", 256, 144;
    /// 5-bit super-blocks of 256.
    Q5_K = 13, "q5_K", 256, 176;
    /// 6-bit super-blocks of 256.
    Q6_K = 14, "q6_K", 256, 210;
    /// 8-bit super-blocks of 256 (activations only).
    Q8_K = 15, "q8_K", 256, 292;
    /// 2-bit codebook, 2.06 bits a weight.
    IQ2_XXS = 16, "iq2_xxs", 256, 66;
    /// 2-bit codebook, 2.31 bits a weight.
    IQ2_XS = 17, "iq2_xs", 256, 74;
    /// 3-bit codebook, 3.06 bits a weight.
    IQ3_XXS = 18, "iq3_xxs", 256, 98;
    /// 1-bit codebook, 1.56 bits a weight.
    IQ1_S = 19, "iq1_s", 256, 50;
    /// 4-bit nonlinear, blocks of 32.
    IQ4_NL = 20, "iq4_nl", 32, 18;
    /// 3-bit codebook, 3.44 bits a weight.
    IQ3_S = 21, "iq3_s", 256, 110;
    /// 2-bit codebook, 2.5 bits a weight.
    IQ2_S = 22, "iq2_s", 256, 82;
    /// 4-bit nonlinear super-blocks of 256.
    IQ4_XS = 23, "iq4_xs", 256, 136;
    /// Signed 8-bit integer.
    I8 = 24, "i8", 1, 1;
    /// Signed 16-bit integer.
    I16 = 25, "i16", 1, 2;
    /// Signed 32-bit integer.
    I32 = 26, "i32", 1, 4;
    /// Signed 64-bit integer.
    I64 = 27, "i64", 1, 8;
    /// IEEE binary64.
    F64 = 28, "f64", 1, 8;
    /// 1-bit codebook, 1.75 bits a weight.
    IQ1_M = 29, "iq1_m", 256, 56;
    /// bfloat16.
    BF16 = 30, "bf16", 1, 2;
    /// Ternary, 1.69 bits a weight.
    TQ1_0 = 34, "tq1_0", 256, 54;
    /// Ternary, 2.06 bits a weight.
    TQ2_0 = 35, "tq2_0", 256, 66;
    /// OCP microscaling FP4: E2M1 with an E8M0 scale.
    MXFP4 = 39, "mxfp4", 32, 17;
    /// FP4 E2M1 with a UE4M3 scale per 16.
    NVFP4 = 40, "nvfp4", 64, 36;
    /// Sign bits, one scale per 128.
    Q1_0 = 41, "q1_0", 128, 18;
    /// 2 bits, one scale per 64.
    Q2_0 = 42, "q2_0", 64, 18;
}

impl TensorType {
    /// Bytes of one row of `cols` elements; `None` if `cols` is not a whole number of blocks or
    /// the size does not fit the address space.
    #[must_use]
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Whether tensors of this type can be weights, that is, whether [`crate::dequantise_row`] has
    /// a decoder. Not those for activations (q8_1, q8_K) nor plain integers and f64.
    #[must_use]
    pub const fn is_dequantisable(self) -> bool {
        !matches!(
            self,
            TensorType::Q8_1
                | TensorType::Q8_K
                | TensorType::I8
                | TensorType::I16
                | TensorType::I32
                | TensorType::I64
                | TensorType::F64
        )
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_round_trip_and_gaps_name_nothing() {
        for &tensor_type in TensorType::ALL {
            assert_eq!(TensorType::from_id(tensor_type as u32), Some(tensor_type));
        }
        for gap in [4, 5, 31, 32, 33, 36, 37, 38, 43, u32::MAX] {
            assert_eq!(TensorType::from_id(gap), None, "id {gap}");
        }
    }

    #[test]
    fn rows_are_whole_blocks() {
        assert_eq!(TensorType::Q4_1.row_bytes(576), Some(360));
        assert_eq!(TensorType::Q8_0.row_bytes(576), Some(612));
        assert_eq!(TensorType::F32.row_bytes(3), Some(12));
        assert_eq!(TensorType::Q4_K.row_bytes(576), None);
        assert_eq!(TensorType::F64.row_bytes(usize::MAX), None);
    }
}
