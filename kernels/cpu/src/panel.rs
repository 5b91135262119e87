mod transcode;

use std::alloc::Layout;
use std::ptr::NonNull;

use thiserror::Error;
use vitriol_kernels_core::half::{bf16_to_f32, f16_to_f32};
use vitriol_kernels_core::{TensorType, dequantise_row};
use vitriol_shm::{EXTENT_BYTES, Reservation, ReservationError};

use crate::generic::formats::panel_bytes;
use crate::generic::matmul::PanelView;

/// Why a weight matrix could not be packed.
#[derive(Debug, Error)]
pub enum PackError {
    /// Not a type that weights are stored in.
    #[error("{0} is not a type of weights")]
    Unsupported(TensorType),
    /// The rows are not whole blocks, or there is nothing in the matrix.
    #[error("a ({rows}, {cols}) matrix cannot be {tensor_type}: rows are blocks of {}", tensor_type.block_len())]
    Shape {
        /// Type of the matrix.
        tensor_type: TensorType,
        /// Its rows.
        rows: usize,
        /// Its columns.
        cols: usize,
    },
    /// The bytes given are not those of the matrix.
    #[error("a ({rows}, {cols}) {tensor_type} matrix takes {needed} bytes, but {given} were given")]
    Length {
        /// Type of the matrix.
        tensor_type: TensorType,
        /// Its rows.
        rows: usize,
        /// Its columns.
        cols: usize,
        /// Bytes it takes.
        needed: usize,
        /// Bytes given.
        given: usize,
    },
    /// No memory for the panels.
    #[error("cannot allocate {bytes} bytes for weight panels: use a smaller model or free memory")]
    Memory {
        /// Bytes asked for.
        bytes: usize,
    },
    /// No memory for a large matrix.
    #[error("cannot map memory for weight panels")]
    Map(#[from] ReservationError),
}

/// A weight matrix in panels of 16 interleaved rows, the layout the matmul kernels stream.
///
/// Shapes: (rows, cols), rows padded to 16 with zero weights
/// Cost:   f32, f16, bf16, q8_0, q4_0 and q4_1 take the bytes of the file (padding aside) and are
///         packed by one transpose in 2- or 4-byte words. Types whose weights are a small integer
///         times one f16 a block (q5_0, iq4_nl, mxfp4, the ternary ones) become q8_0 panels, 34 bytes
///         for 32 weights, the same values to the bit; where a block of a matrix does not fit (an
///         mxfp4 scale beyond f16), and for every other type, f32 panels, 4 bytes a weight
pub struct PanelMatrix {
    /// Type of the weights in the file.
    tensor_type: TensorType,
    /// Type of the weights in the panels.
    panel_type: TensorType,
    rows: usize,
    cols: usize,
    panel_bytes: usize,
    memory: Memory,
}

// SAFETY: the memory is owned and, after `pack`, only read.
unsafe impl Send for PanelMatrix {}
// SAFETY: as above.
unsafe impl Sync for PanelMatrix {}

/// From this size on a matrix gets extents of its own (huge pages); a smaller one would waste too
/// much of its last extent.
const MAPPED_FROM: usize = 8 * EXTENT_BYTES;

enum Memory {
    Heap { base: NonNull<u8>, layout: Layout },
    Mapped { range: Reservation, bytes: usize },
}

impl Memory {
    fn zeroed(bytes: usize) -> Result<Self, PackError> {
        if bytes >= MAPPED_FROM {
            let mut range = Reservation::new(bytes)?;
            range.commit(0..bytes)?;
            return Ok(Memory::Mapped { range, bytes });
        }
        let layout = Layout::from_size_align(bytes.max(64), 64);
        let layout = layout.map_err(|_| PackError::Memory { bytes })?;
        // SAFETY: the layout has a size above zero.
        let base = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) });
        let base = base.ok_or(PackError::Memory { bytes })?;
        Ok(Memory::Heap { base, layout })
    }

    fn base(&self) -> *mut u8 {
        match self {
            Memory::Heap { base, .. } => base.as_ptr(),
            Memory::Mapped { range, .. } => range.as_ptr(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Memory::Heap { layout, .. } => layout.size(),
            Memory::Mapped { bytes, .. } => *bytes,
        }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes are allocated and initialised (zeroed at least).
        unsafe { std::slice::from_raw_parts(self.base(), self.len()) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes the borrow unique.
        unsafe { std::slice::from_raw_parts_mut(self.base(), self.len()) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Memory::Heap { base, layout } = self {
            // SAFETY: allocated in `zeroed` with this layout.
            unsafe { std::alloc::dealloc(base.as_ptr(), *layout) };
        }
    }
}

impl PanelMatrix {
    /// Repacks a row-major matrix as found in a GGUF file.
    ///
    /// Shapes: src rows × row_bytes(cols)
    /// Errors: a type without kernel, a shape or length that does not fit, no memory
    pub fn pack(
        tensor_type: TensorType,
        rows: usize,
        cols: usize,
        src: &[u8],
    ) -> Result<Self, PackError> {
        let shape = PackError::Shape {
            tensor_type,
            rows,
            cols,
        };
        if rows == 0 || cols == 0 || !cols.is_multiple_of(tensor_type.block_len()) {
            return Err(shape);
        }
        let Some(row_bytes) = tensor_type.row_bytes(cols) else {
            return Err(shape);
        };
        let Some(needed) = row_bytes.checked_mul(rows) else {
            return Err(shape);
        };
        if src.len() != needed {
            let given = src.len();
            return Err(PackError::Length {
                tensor_type,
                rows,
                cols,
                needed,
                given,
            });
        }
        let source = Source {
            tensor_type,
            rows,
            cols,
            row_bytes,
            bytes: src,
        };
        // From the least memory to the most; f32 takes everything.
        let candidates = match panel_bytes(tensor_type, cols) {
            Some(_) => &[tensor_type][..],
            None if !tensor_type.is_dequantisable() => {
                return Err(PackError::Unsupported(tensor_type));
            }
            None if transcode::has_one_scale(tensor_type) => &[TensorType::Q8_0, TensorType::F32],
            None => &[TensorType::F32],
        };
        for &panel_type in candidates {
            if let Some(packed) = source.packed_as(panel_type)? {
                return Ok(packed);
            }
        }
        Err(PackError::Unsupported(tensor_type))
    }

    /// Rows: outputs of a matmul.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns: inputs of a matmul.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes of memory, padding included.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.memory.len()
    }

    /// Type of the weights in the file.
    #[must_use]
    pub fn tensor_type(&self) -> TensorType {
        self.tensor_type
    }

    /// Decodes one row (an embedding, say).
    ///
    /// Shapes:   out (cols)
    /// Numerics: the values of `vitriol_kernels_core::dequantise_row`
    ///
    /// # Panics
    /// If `row` is not a row of the matrix or `out` is not `cols` long.
    pub fn dequantise_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        assert_eq!(out.len(), self.cols, "out is one row of {}", self.cols);
        let panel = &self.memory.bytes()[row / 16 * self.panel_bytes..][..self.panel_bytes];
        let lane = row % 16;
        let half = |at: usize| u16::from_le_bytes([panel[at], panel[at + 1]]);
        match self.panel_type {
            TensorType::F32 => {
                for (value, column) in out.iter_mut().zip(panel.as_chunks::<64>().0) {
                    let at = 4 * lane;
                    *value = f32::from_le_bytes([
                        column[at],
                        column[at + 1],
                        column[at + 2],
                        column[at + 3],
                    ]);
                }
            }
            TensorType::F16 => {
                for (k, value) in out.iter_mut().enumerate() {
                    *value = f16_to_f32(half(32 * k + 2 * lane));
                }
            }
            TensorType::BF16 => {
                for (k, value) in out.iter_mut().enumerate() {
                    *value = bf16_to_f32(half(32 * k + 2 * lane));
                }
            }
            TensorType::Q8_0 => {
                for (block, values) in out.chunks_exact_mut(32).enumerate() {
                    let d = f16_to_f32(half(block * 32 + 2 * lane));
                    for (k, value) in values.iter_mut().enumerate() {
                        let line = self.cols + block * 512 + k / 4 * 64;
                        let q = panel[line + 4 * lane + k % 4] ^ 0x80;
                        *value = f32::from(q as i8) * d;
                    }
                }
            }
            TensorType::Q4_0 => {
                for (block, values) in out.chunks_exact_mut(32).enumerate() {
                    let d = f16_to_f32(half(block * 32 + 2 * lane));
                    let line = self.cols + block * 256;
                    for (k, value) in values.iter_mut().enumerate() {
                        let byte = panel[line + k % 16 / 4 * 64 + 4 * lane + k % 4];
                        let q = if k < 16 { byte & 15 } else { byte >> 4 };
                        *value = (f32::from(q) - 8.0) * d;
                    }
                }
            }
            TensorType::Q4_1 => {
                for (block, values) in out.chunks_exact_mut(32).enumerate() {
                    let at = block * 320;
                    let d = f16_to_f32(half(at + 256 + 2 * lane));
                    let m = f16_to_f32(half(at + 288 + 2 * lane));
                    for (k, value) in values.iter_mut().enumerate() {
                        let byte = panel[at + k % 16 / 4 * 64 + 4 * lane + k % 4];
                        let q = if k < 16 { byte & 15 } else { byte >> 4 };
                        *value = f32::from(q) * d + m;
                    }
                }
            }
            other => unreachable!("{other} cannot be packed"),
        }
    }

    pub(crate) fn view(&self) -> PanelView {
        PanelView {
            tensor_type: self.panel_type,
            base: self.memory.base(),
            panel_bytes: self.panel_bytes,
            rows: self.rows,
            cols: self.cols,
        }
    }

    pub(crate) fn panels(&self) -> usize {
        self.rows.div_ceil(16)
    }

    pub(crate) fn panel_bytes(&self) -> usize {
        self.panel_bytes
    }
}

impl std::fmt::Debug for PanelMatrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "PanelMatrix({} × {}, {})",
            self.rows, self.cols, self.tensor_type
        )
    }
}

/// A row-major matrix as found in a file, its length checked.
struct Source<'a> {
    tensor_type: TensorType,
    rows: usize,
    cols: usize,
    row_bytes: usize,
    bytes: &'a [u8],
}

impl Source<'_> {
    /// The matrix in panels of `panel_type`; `None` if that type cannot hold its values.
    fn packed_as(&self, panel_type: TensorType) -> Result<Option<PanelMatrix>, PackError> {
        let &Source {
            tensor_type,
            rows,
            cols,
            row_bytes,
            bytes,
        } = self;
        let shape = PackError::Shape {
            tensor_type,
            rows,
            cols,
        };
        let Some(panel_bytes) = panel_bytes(panel_type, cols) else {
            return Err(shape);
        };
        let Some(needed) = panel_bytes.checked_mul(rows.div_ceil(16)) else {
            return Err(shape);
        };
        let mut memory = Memory::zeroed(needed)?;
        let panels = memory.bytes_mut().chunks_exact_mut(panel_bytes);
        let (mut row, mut stored_as) = (vec![0f32; cols], Vec::new());
        for (panel, stored) in panels.zip(bytes.chunks(16 * row_bytes)) {
            if panel_type == tensor_type {
                pack_panel(panel_type, cols, stored, panel);
                continue;
            }
            stored_as.clear();
            for stored in stored.chunks_exact(row_bytes) {
                dequantise_row(tensor_type, stored, &mut row)
                    .map_err(|_| PackError::Unsupported(tensor_type))?;
                if panel_type == TensorType::F32 {
                    stored_as.extend(row.iter().flat_map(|value| value.to_le_bytes()));
                } else if !transcode::to_q8_0(tensor_type, stored, &row, &mut stored_as) {
                    return Ok(None);
                }
            }
            pack_panel(panel_type, cols, &stored_as, panel);
        }
        Ok(Some(PanelMatrix {
            tensor_type,
            panel_type,
            rows,
            cols,
            panel_bytes,
            memory,
        }))
    }
}

/// Interleaves up to 16 rows; lanes without a row stay zero.
fn pack_panel(tensor_type: TensorType, cols: usize, rows: &[u8], panel: &mut [u8]) {
    let row_bytes = panel.len() / 16;
    for (lane, row) in rows.chunks_exact(row_bytes).enumerate() {
        match tensor_type {
            TensorType::F32 => {
                for (column, element) in panel
                    .as_chunks_mut::<64>()
                    .0
                    .iter_mut()
                    .zip(row.as_chunks::<4>().0)
                {
                    column[4 * lane..][..4].copy_from_slice(element);
                }
            }
            TensorType::F16 | TensorType::BF16 => {
                for (column, element) in panel
                    .as_chunks_mut::<32>()
                    .0
                    .iter_mut()
                    .zip(row.as_chunks::<2>().0)
                {
                    column[2 * lane..][..2].copy_from_slice(element);
                }
            }
            TensorType::Q8_0 => {
                let (scales, quants) = panel.split_at_mut(cols);
                let blocks = quants
                    .as_chunks_mut::<512>()
                    .0
                    .iter_mut()
                    .zip(scales.as_chunks_mut::<32>().0);
                for ((quants, scales), block) in blocks.zip(row.as_chunks::<34>().0) {
                    scales[2 * lane..][..2].copy_from_slice(&block[..2]);
                    for (line, word) in block[2..].as_chunks::<4>().0.iter().enumerate() {
                        let word = word.map(|q| q ^ 0x80);
                        quants[64 * line + 4 * lane..][..4].copy_from_slice(&word);
                    }
                }
            }
            TensorType::Q4_0 => {
                let (scales, quants) = panel.split_at_mut(cols);
                let blocks = quants
                    .as_chunks_mut::<256>()
                    .0
                    .iter_mut()
                    .zip(scales.as_chunks_mut::<32>().0);
                for ((quants, scales), block) in blocks.zip(row.as_chunks::<18>().0) {
                    scales[2 * lane..][..2].copy_from_slice(&block[..2]);
                    for (line, word) in block[2..].as_chunks::<4>().0.iter().enumerate() {
                        quants[64 * line + 4 * lane..][..4].copy_from_slice(word);
                    }
                }
            }
            TensorType::Q4_1 => {
                for (to, block) in panel
                    .as_chunks_mut::<320>()
                    .0
                    .iter_mut()
                    .zip(row.as_chunks::<20>().0)
                {
                    to[256 + 2 * lane..][..2].copy_from_slice(&block[..2]);
                    to[288 + 2 * lane..][..2].copy_from_slice(&block[2..4]);
                    for (line, word) in block[4..].as_chunks::<4>().0.iter().enumerate() {
                        to[64 * line + 4 * lane..][..4].copy_from_slice(word);
                    }
                }
            }
            other => unreachable!("{other} has no panel layout"),
        }
    }
}
