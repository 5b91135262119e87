use super::ModelError;
use crate::panels::{PanelFile, PanelWriter};
use std::{borrow::Cow, collections::HashSet, path::Path};
use vitriol_gguf::{Gguf, Tensor};
use vitriol_kernels_core::{TensorType, dequantise_row};
use vitriol_kernels_cpu::{Cpu, PanelMatrix, TokenRows};

/// y = w·x + bias.
#[derive(Debug)]
pub struct Linear {
    /// (outputs, inputs)
    pub w: PanelMatrix,
    /// (outputs)
    pub bias: Option<Vec<f32>>,
}

impl Linear {
    pub fn new(w: PanelMatrix, bias: Option<Vec<f32>>) -> Self {
        Self { w, bias }
    }

    /// The product for `n` rows of `x`.
    ///
    /// Shapes: x (n, inputs); out (n, outputs)
    pub fn forward(&self, device: &Cpu, x: &[f32], n: usize, out: &mut [f32]) {
        self.forward_of(device, &TokenRows::Stored(x), n, out);
    }

    /// As [`Linear::forward`], of rows that are made where they are wanted.
    pub fn forward_of(&self, device: &Cpu, x: &TokenRows<'_>, n: usize, out: &mut [f32]) {
        device.matmul_of(&self.w, x, n, out);
        self.add_bias(device, out);
    }

    /// Adds the bias to rows that were multiplied already.
    pub fn add_bias(&self, device: &Cpu, out: &mut [f32]) {
        if let Some(bias) = &self.bias {
            device.add_bias(out, bias);
        }
    }
}

/// What is done with a model's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadPhase {
    /// Their digest is taken, to find the panels that were kept.
    Digest,
    /// Panels are made to be kept; nothing is loaded yet.
    Repack,
    /// Weights come to lie in memory.
    Load,
}

impl LoadPhase {
    /// For people.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Digest => "looking which model it is",
            Self::Repack => "repacking weights",
            Self::Load => "loading weights",
        }
    }
}

/// How far a phase of loading is, bytes of the file's tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    pub phase: LoadPhase,
    pub bytes_done: u64,
    pub bytes_all: u64,
}

impl LoadProgress {
    /// Nothing of `gguf` is done yet.
    pub fn begun(gguf: &Gguf, phase: LoadPhase) -> Self {
        Self {
            phase,
            bytes_done: 0,
            bytes_all: gguf.tensors().map(|t| t.bytes.len() as u64).sum(),
        }
    }
}

/// Where panels come from, or go to.
#[derive(Debug)]
pub enum Panels<'a> {
    /// Made in memory.
    Made,
    /// Made, written, and not kept in memory: what is built computes nothing.
    Written(&'a mut PanelWriter),
    /// Read as they were written.
    Read(&'a PanelFile),
    /// Only of the first block of the first matrix: it proves the type and tells the size, and takes
    /// nearly nothing. What is built computes nothing, and of experts there is one.
    OfFirstBlock,
}

/// What all tensors of a file amount to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    pub parameters: u64,
    /// Bytes of all weights as they lie in memory; where only first blocks were packed, an estimate that
    /// takes every block to be like the first.
    pub weights_bytes: u64,
}

/// Hands out a file's tensors once each, checking name, shape and type.
pub struct TensorSource<'a> {
    gguf: &'a Gguf,
    panels: Panels<'a>,
    /// How many matrices of the tensor taken last there were.
    part: u32,
    used: HashSet<String>,
    progress: &'a mut dyn FnMut(LoadProgress),
    state: LoadProgress,
    totals: Totals,
}

impl<'a> TensorSource<'a> {
    pub fn new(
        gguf: &'a Gguf,
        panels: Panels<'a>,
        progress: &'a mut dyn FnMut(LoadProgress),
    ) -> Self {
        let phase = match panels {
            Panels::Written(_) => LoadPhase::Repack,
            Panels::Made | Panels::Read(_) | Panels::OfFirstBlock => LoadPhase::Load,
        };
        Self {
            gguf,
            panels,
            part: 0,
            used: HashSet::new(),
            progress,
            state: LoadProgress::begun(gguf, phase),
            totals: Totals {
                parameters: 0,
                weights_bytes: 0,
            },
        }
    }

    pub fn has(&self, name: &str) -> bool {
        self.gguf.tensor(name).is_some()
    }

    /// A matrix of `rows` outputs and `cols` inputs, repacked for the kernels.
    pub fn matrix(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<PanelMatrix, ModelError> {
        let tensor = self.take(name, &[cols as u64, rows as u64])?;
        let packed = self.pack(&tensor, rows, cols, || Ok(tensor.bytes.into()))?;
        self.count(&tensor);
        Ok(packed)
    }

    /// Several matrices that lie below each other in one tensor (cols, Σ rows).
    pub fn stacked<const N: usize>(
        &mut self,
        name: &str,
        rows: [usize; N],
        cols: usize,
    ) -> Result<[PanelMatrix; N], ModelError> {
        let all_rows: usize = rows.iter().sum();
        let tensor = self.take(name, &[cols as u64, all_rows as u64])?;
        let packed = self.pack_stacked(&tensor, tensor.bytes, rows, cols)?;
        self.count(&tensor);
        Ok(packed)
    }

    /// For each of `count` experts the matrices that lie below each other in its part of a tensor
    /// (cols, Σ rows, count).
    pub fn experts<const N: usize>(
        &mut self,
        name: &str,
        count: usize,
        rows: [usize; N],
        cols: usize,
    ) -> Result<Vec<[PanelMatrix; N]>, ModelError> {
        let all_rows: usize = rows.iter().sum();
        let tensor = self.take(name, &[cols as u64, all_rows as u64, count as u64])?;
        let packed = match self.panels {
            Panels::OfFirstBlock => 1,
            _ => count,
        };
        let before = self.totals.weights_bytes;
        let experts = tensor
            .bytes
            .chunks_exact(tensor.bytes.len() / count)
            .take(packed)
            .map(|expert| self.pack_stacked(&tensor, expert, rows, cols))
            .collect::<Result<_, _>>()?;
        let taken = self.totals.weights_bytes - before;
        self.totals.weights_bytes = before + taken * (count / packed) as u64;
        self.count(&tensor);
        Ok(experts)
    }

    fn pack_stacked<const N: usize>(
        &mut self,
        tensor: &Tensor<'_>,
        bytes: &[u8],
        rows: [usize; N],
        cols: usize,
    ) -> Result<[PanelMatrix; N], ModelError> {
        let row_bytes = bytes.len() / rows.iter().sum::<usize>();
        let mut rest = bytes;
        try_each(rows, |rows| {
            let (matrix, later) = rest.split_at(rows * row_bytes);
            rest = later;
            self.pack(tensor, rows, cols, || Ok(matrix.into()))
        })
    }

    /// The matrices of each head's keys, transposed to (rank, keys), and values (values, rank) of a tensor
    /// that has them below each other, head by head.
    pub fn keys_and_values(
        &mut self,
        name: &str,
        heads: usize,
        keys: usize,
        values: usize,
        rank: usize,
    ) -> Result<(Vec<PanelMatrix>, Vec<PanelMatrix>), ModelError> {
        let rows = heads * (keys + values);
        let tensor = self.take(name, &[rank as u64, rows as u64])?;
        let row_bytes = tensor.bytes.len() / rows;
        let mut matrices = (Vec::with_capacity(heads), Vec::with_capacity(heads));
        let packed = match self.panels {
            Panels::OfFirstBlock => 1,
            _ => heads,
        };
        let before = self.totals.weights_bytes;
        for head in tensor
            .bytes
            .chunks_exact(row_bytes * (keys + values))
            .take(packed)
        {
            let (of_keys, of_values) = head.split_at(row_bytes * keys);
            let as_f32 = Tensor {
                tensor_type: TensorType::F32,
                ..tensor
            };
            let path = self.gguf.path();
            let transposed = || {
                let mut decoded = vec![0.0; keys * rank];
                decode(path, &tensor, of_keys, &mut decoded)?;
                let columns = (0..rank).flat_map(|column| decoded[column..].iter().step_by(rank));
                let bytes: Vec<u8> = columns.flat_map(|value| value.to_le_bytes()).collect();
                Ok(bytes.into())
            };
            matrices.0.push(self.pack(&as_f32, rank, keys, transposed)?);
            let of_values = || Ok(of_values.into());
            matrices
                .1
                .push(self.pack(&tensor, values, rank, of_values)?);
        }
        let taken = self.totals.weights_bytes - before;
        self.totals.weights_bytes = before + taken * (heads / packed) as u64;
        self.count(&tensor);
        Ok(matrices)
    }

    /// The matrix `NAME.weight`, with `NAME.bias` where the file has it.
    pub fn linear(&mut self, name: &str, rows: usize, cols: usize) -> Result<Linear, ModelError> {
        Ok(Linear {
            w: self.matrix(&format!("{name}.weight"), rows, cols)?,
            bias: self.optional_vector(&format!("{name}.bias"), rows)?,
        })
    }

    /// The next matrix of `tensor`, whose rows are `bytes`, if they are needed.
    fn pack<'b>(
        &mut self,
        tensor: &Tensor<'_>,
        rows: usize,
        cols: usize,
        bytes: impl FnOnce() -> Result<Cow<'b, [u8]>, ModelError>,
    ) -> Result<PanelMatrix, ModelError> {
        let part = self.part;
        self.part += 1;
        let tensor_type = tensor.tensor_type;
        let pack = |rows, cols, bytes: &[u8]| {
            let packed = PanelMatrix::pack(tensor_type, rows, cols, bytes);
            packed.map_err(|source| ModelError::Pack {
                file: self.gguf.path().into(),
                tensor: tensor.name.to_owned(),
                source,
            })
        };
        let block = tensor_type.block_len();
        let first_block = |bytes: &[u8]| match cols.is_multiple_of(block) {
            true => pack(1, block, &bytes[..tensor_type.block_bytes()]),
            false => pack(rows, cols, bytes),
        };
        let packed = match &mut self.panels {
            Panels::Made => pack(rows, cols, &bytes()?)?,
            Panels::Read(file) => file.matrix(tensor.name, part, tensor_type, rows, cols)?,
            Panels::OfFirstBlock => first_block(&bytes()?)?,
            Panels::Written(writer) => {
                let bytes = bytes()?;
                writer.add(tensor.name, part, &pack(rows, cols, &bytes)?)?;
                first_block(&bytes)?
            }
        };
        // Panels are 16 rows high, and each column takes what the others do.
        let panels = rows.div_ceil(16) / packed.rows().div_ceil(16);
        let columns = (cols / packed.cols()) as u64;
        self.totals.weights_bytes += (packed.bytes() * panels) as u64 * columns;
        Ok(packed)
    }

    /// [`Self::vector`] where the file has it.
    pub fn optional_vector(
        &mut self,
        name: &str,
        len: usize,
    ) -> Result<Option<Vec<f32>>, ModelError> {
        match self.has(name) {
            true => self.vector(name, len).map(Some),
            false => Ok(None),
        }
    }

    /// For each of `count` experts its vector in a tensor (len, count); nothing where the file lacks it.
    pub fn expert_vectors(
        &mut self,
        name: &str,
        count: usize,
        len: usize,
    ) -> Result<std::vec::IntoIter<Vec<f32>>, ModelError> {
        if !self.has(name) {
            return Ok(Vec::new().into_iter());
        }
        let all = self.numbers(name, &[len as u64, count as u64])?;
        let vectors: Vec<Vec<f32>> = all.chunks_exact(len).map(<[f32]>::to_vec).collect();
        Ok(vectors.into_iter())
    }

    /// Outputs of a matrix, if the file has it.
    pub fn rows(&self, name: &str) -> Option<usize> {
        let tensor = self.gguf.tensor(name)?;
        usize::try_from(*tensor.dims.get(1)?).ok()
    }

    /// The file lacks a tensor that it needs.
    pub fn missing(&self, name: &str) -> ModelError {
        ModelError::MissingTensor {
            file: self.gguf.path().into(),
            tensor: name.to_owned(),
        }
    }

    /// A tensor that this configuration does not need.
    pub fn leave(&mut self, name: &str) {
        if let Some(tensor) = self.gguf.tensor(name) {
            self.used.insert(name.to_owned());
            self.count(&tensor);
        }
    }

    /// All tensors of a block that this configuration does not need.
    pub fn leave_block(&mut self, index: usize) {
        let prefix = format!("blk.{index}.");
        let of_block = self.gguf.tensors().filter(|t| t.name.starts_with(&prefix));
        let names: Vec<String> = of_block.map(|tensor| tensor.name.to_owned()).collect();
        for name in names {
            self.leave(&name);
        }
    }

    /// A vector of `len` numbers as f32.
    pub fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        self.numbers(name, &[len as u64])
    }

    /// A tensor of this shape as f32, one row after the other.
    pub fn numbers(&mut self, name: &str, shape: &[u64]) -> Result<Vec<f32>, ModelError> {
        let tensor = self.take(name, shape)?;
        let len = shape.iter().product::<u64>() as usize;
        let mut values = vec![0.0; len];
        decode(self.gguf.path(), &tensor, tensor.bytes, &mut values)?;
        self.totals.weights_bytes += 4 * len as u64;
        self.count(&tensor);
        Ok(values)
    }

    /// What was read in all. Errors: the file holds tensors nobody asked for.
    pub fn finish(self) -> Result<Totals, ModelError> {
        let mut unused = self.gguf.tensors().filter(|t| !self.used.contains(t.name));
        match unused.next() {
            None => Ok(self.totals),
            Some(first) => Err(ModelError::UnusedTensors {
                file: self.gguf.path().into(),
                count: 1 + unused.count(),
                first: first.name.to_owned(),
            }),
        }
    }

    fn take(&mut self, name: &str, shape: &[u64]) -> Result<Tensor<'a>, ModelError> {
        let file = || self.gguf.path().to_owned();
        let tensor = self.gguf.tensor(name).ok_or_else(|| self.missing(name))?;
        // Trailing dimensions of 1 may be left out.
        let significant = |dims: &[u64]| dims.iter().rposition(|&d| d != 1).map_or(0, |at| at + 1);
        let (found, expected) = (significant(tensor.dims), significant(shape));
        if tensor.dims[..found] != shape[..expected] {
            return Err(ModelError::Shape {
                file: file(),
                tensor: name.to_owned(),
                found: tensor.dims.to_vec(),
                expected: shape.to_vec(),
            });
        }
        if !tensor.tensor_type.is_dequantisable() {
            return Err(ModelError::TensorType {
                file: file(),
                tensor: name.to_owned(),
                tensor_type: tensor.tensor_type.name(),
            });
        }
        self.used.insert(name.to_owned());
        self.part = 0;
        Ok(tensor)
    }

    fn count(&mut self, tensor: &Tensor<'_>) {
        self.totals.parameters += tensor.n_elements();
        self.state.bytes_done += tensor.bytes.len() as u64;
        (self.progress)(self.state);
    }
}

fn decode(
    file: &Path,
    tensor: &Tensor<'_>,
    bytes: &[u8],
    values: &mut [f32],
) -> Result<(), ModelError> {
    dequantise_row(tensor.tensor_type, bytes, values).map_err(|_| ModelError::TensorType {
        file: file.into(),
        tensor: tensor.name.to_owned(),
        tensor_type: tensor.tensor_type.name(),
    })
}

/// `f` of each element; the first error ends it.
fn try_each<const N: usize, T, U, E>(
    from: [T; N],
    mut f: impl FnMut(T) -> Result<U, E>,
) -> Result<[U; N], E> {
    let mut failed = None;
    let mapped = from.map(|item| match &failed {
        None => f(item).map_err(|error| failed = Some(error)).ok(),
        Some(_) => None,
    });
    match failed {
        Some(error) => Err(error),
        None => Ok(mapped.map(|item| item.expect("no error means a value"))),
    }
}
