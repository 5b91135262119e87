//! What a kernel has to compute, on whatever device: tensor types and their block formats, half
//! precision conversions, codecs of the key/value cache, an f64-accumulating reference of every op,
//! and how far a kernel may stay from it. No device code and no unsafe.

pub mod half;
pub mod kv;
pub mod reference;
mod tensor_type;
pub mod tolerance;

mod dequantise;

pub use dequantise::{
    Codebook, CodebookBlock, DequantiseError, dequantise_row, half_of_ue4m3, iq4_xs_scale,
    six_bit_pair, six_bit_scale,
};
pub use kv::{KvCodec, KvHeads, bytes_per_token};
pub use tensor_type::TensorType;
