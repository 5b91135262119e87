pub(crate) mod format;
mod interleave;

use std::alloc::Layout;
use std::ptr::NonNull;

use thiserror::Error;
use vitriol_kernels_core::{TensorType, dequantise_row};
use vitriol_shm::{EXTENT_BYTES, Reservation, ReservationError};

use self::format::PanelFormat;
use self::interleave::{interleave, mxfp4_fits};
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

/// What panels hold: with their bytes it makes the matrix again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PanelKind {
    /// Type of the weights in the file.
    pub tensor_type: TensorType,
    /// The weights are plain floats, because the type's own layout could not hold one of them.
    pub is_decoded: bool,
    /// Rows of the matrix.
    pub rows: usize,
    /// Its columns.
    pub cols: usize,
}

/// A weight matrix in panels of 16 interleaved rows, the layout the matmul kernels stream.
///
/// Shapes: (rows, cols), rows padded to 16 with zero weights
/// Cost:   the bytes of the file (within 4%, padding aside), but tq1_0, tq2_0, q1_0 and q2_0 2.5 bits a
///         weight, the iq1, iq2 and iq3 types 4.6 and nvfp4 5. An mxfp4 matrix with a scale beyond
///         2^-125..2^125 takes 4 bytes a weight, as plain floats
pub struct PanelMatrix {
    /// Type of the weights in the file.
    tensor_type: TensorType,
    format: PanelFormat,
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
            range.commit(bytes)?;
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
        // SAFETY: `len` bytes are allocated and initialised (zeroed at least), and only `&mut self`
        // writes them.
        unsafe { std::slice::from_raw_parts(self.base(), self.len()) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: `len` bytes are allocated and initialised (zeroed at least), and `&mut self` makes
        // the borrow unique.
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

/// Whether a matrix can have this shape: something of both, in whole blocks.
fn is_shape(tensor_type: TensorType, rows: usize, cols: usize) -> bool {
    rows > 0 && cols > 0 && cols.is_multiple_of(tensor_type.block_len())
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
        if !is_shape(tensor_type, rows, cols) {
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
        let format = PanelFormat::of(tensor_type).ok_or(PackError::Unsupported(tensor_type))?;
        if format == PanelFormat::Mxfp4 && !mxfp4_fits(src) {
            return source.decoded();
        }
        source.interleaved(format)
    }

    /// A matrix of panels that were made before: `fill` writes the [`panel_bytes`](Self::panel_bytes)
    /// of that matrix into zeroed memory of their length. Other bytes give other weights, never
    /// undefined behaviour.
    ///
    /// Errors: a shape that no matrix has, no memory, whatever `fill` says
    pub fn restore<E: From<PackError>>(
        kind: PanelKind,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Self, E> {
        let PanelKind {
            tensor_type,
            is_decoded,
            rows,
            cols,
        } = kind;
        if !is_shape(tensor_type, rows, cols) {
            let shape = PackError::Shape {
                tensor_type,
                rows,
                cols,
            };
            return Err(shape.into());
        }
        let format = match is_decoded {
            true => Some(PanelFormat::F32),
            false => PanelFormat::of(tensor_type),
        };
        let format = format.ok_or(PackError::Unsupported(tensor_type))?;
        let mut matrix = Self::empty(tensor_type, format, rows, cols)?;
        let len = matrix.panel_bytes * matrix.panels();
        fill(&mut matrix.memory.bytes_mut()[..len])?;
        Ok(matrix)
    }

    /// What beside [`panel_bytes`](Self::panel_bytes) makes the matrix.
    #[must_use]
    pub fn kind(&self) -> PanelKind {
        PanelKind {
            tensor_type: self.tensor_type,
            is_decoded: PanelFormat::of(self.tensor_type) != Some(self.format),
            rows: self.rows,
            cols: self.cols,
        }
    }

    /// The panels, one after the other: the same bytes whichever ISA computes with them.
    #[must_use]
    pub fn panel_bytes(&self) -> &[u8] {
        &self.memory.bytes()[..self.panel_bytes * self.panels()]
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

    /// Whether products with it round the tokens to bytes; else they are multiplied as they are.
    #[must_use]
    pub fn is_quantised(&self) -> bool {
        self.format.is_quantised()
    }

    /// Type of the weights in the file.
    #[must_use]
    pub fn tensor_type(&self) -> TensorType {
        self.tensor_type
    }

    pub(crate) fn view(&self) -> PanelView {
        PanelView {
            format: self.format,
            base: self.memory.base(),
            panel_bytes: self.panel_bytes,
            rows: self.rows,
            cols: self.cols,
        }
    }

    pub(crate) fn panels(&self) -> usize {
        self.rows.div_ceil(16)
    }

    /// A zeroed matrix of this shape.
    fn empty(
        tensor_type: TensorType,
        format: PanelFormat,
        rows: usize,
        cols: usize,
    ) -> Result<Self, PackError> {
        let panel_bytes = format.panel_bytes(cols);
        let bytes = panel_bytes.and_then(|panel| panel.checked_mul(rows.div_ceil(16)));
        let (Some(panel_bytes), Some(bytes)) = (panel_bytes, bytes) else {
            return Err(PackError::Shape {
                tensor_type,
                rows,
                cols,
            });
        };
        Ok(Self {
            tensor_type,
            format,
            rows,
            cols,
            panel_bytes,
            memory: Memory::zeroed(bytes)?,
        })
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
    /// Panels of the bytes as they are.
    fn interleaved(&self, format: PanelFormat) -> Result<PanelMatrix, PackError> {
        let mut matrix = PanelMatrix::empty(self.tensor_type, format, self.rows, self.cols)?;
        let panels = matrix
            .memory
            .bytes_mut()
            .chunks_exact_mut(matrix.panel_bytes);
        for (panel, rows) in panels.zip(self.bytes.chunks(16 * self.row_bytes)) {
            interleave(
                format,
                self.tensor_type,
                self.cols,
                rows,
                self.row_bytes,
                panel,
            )
            .map_err(|_| PackError::Unsupported(self.tensor_type))?;
        }
        Ok(matrix)
    }

    /// f32 panels, which take everything.
    fn decoded(&self) -> Result<PanelMatrix, PackError> {
        let mut matrix =
            PanelMatrix::empty(self.tensor_type, PanelFormat::F32, self.rows, self.cols)?;
        let panels = matrix
            .memory
            .bytes_mut()
            .chunks_exact_mut(matrix.panel_bytes);
        let mut values = vec![0f32; self.cols];
        for (panel, rows) in panels.zip(self.bytes.chunks(16 * self.row_bytes)) {
            for (lane, row) in rows.chunks_exact(self.row_bytes).enumerate() {
                self.decode(row, &mut values)?;
                for (column, value) in panel.as_chunks_mut::<64>().0.iter_mut().zip(&values) {
                    column[4 * lane..][..4].copy_from_slice(&value.to_le_bytes());
                }
            }
        }
        Ok(matrix)
    }

    fn decode(&self, row: &[u8], values: &mut [f32]) -> Result<(), PackError> {
        dequantise_row(self.tensor_type, row, values)
            .map_err(|_| PackError::Unsupported(self.tensor_type))
    }
}
