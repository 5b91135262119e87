//! Reader of GGUF model files, versions 2 and 3, little endian.
//!
//! ```text
//! magic "GGUF"  u32 version  u64 n_tensors  u64 n_metadata
//! n_metadata ×  key: string, u32 value type, value
//! n_tensors  ×  name: string, u32 n_dims, n_dims × u64, u32 tensor type, u64 offset
//! padding to general.alignment (default 32)
//! tensor data   each tensor at its offset, a multiple of the alignment
//! string = u64 length, bytes     array = u32 element type, u64 count, elements
//! ```
//!
//! [`Gguf::open`] maps the file and checks all of it once: every length, count, type, offset and
//! overlap, before anything is allocated or used on its word. After that no accessor can fail on a
//! damaged file; what remains are questions of meaning (a key that is missing or has another type).
//! Values and weights are read where they lie in the map.
//!
//! A model may be split over files `NAME-00001-of-00003.gguf` …: opening one opens all of them, and
//! their tensors are those of one [`Gguf`].
//!
//! Source: ggml's `docs/gguf.md` describes the format.

mod cursor;
mod error;
mod file;
mod layout;
mod metadata;
mod part;
mod split;
mod value;

pub use error::{GgufError, Problem};
pub use file::{Gguf, Tensor};
pub use metadata::{FromValue, Metadata};
pub use part::Part;
pub use split::model_name;
pub use value::{Array, Value, ValueType};
pub use vitriol_shm::FileIdentity;
