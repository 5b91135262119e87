use super::ModelError;
use std::collections::HashSet;
use vitriol_gguf::{Gguf, Tensor};
use vitriol_kernels_core::dequantise_row;
use vitriol_kernels_cpu::PanelMatrix;

/// How far the weights are read, bytes of the file's tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    pub bytes_done: u64,
    pub bytes_all: u64,
}

/// Hands out a file's tensors once each, checking name, shape and type.
pub struct TensorSource<'a> {
    gguf: &'a Gguf,
    used: HashSet<String>,
    progress: &'a mut dyn FnMut(LoadProgress),
    state: LoadProgress,
    parameters: u64,
}

impl<'a> TensorSource<'a> {
    pub fn new(gguf: &'a Gguf, progress: &'a mut dyn FnMut(LoadProgress)) -> Self {
        let bytes_all = gguf.tensors().map(|t| t.bytes.len() as u64).sum();
        let state = LoadProgress {
            bytes_done: 0,
            bytes_all,
        };
        progress(state);
        Self {
            gguf,
            used: HashSet::new(),
            progress,
            state,
            parameters: 0,
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
        let packed =
            PanelMatrix::pack(tensor.tensor_type, rows, cols, tensor.bytes).map_err(|source| {
                ModelError::Pack {
                    file: self.gguf.path().into(),
                    tensor: name.to_owned(),
                    source,
                }
            })?;
        self.count(&tensor);
        Ok(packed)
    }

    /// A vector of `len` numbers as f32.
    pub fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        let tensor = self.take(name, &[len as u64])?;
        let mut values = vec![0.0; len];
        dequantise_row(tensor.tensor_type, tensor.bytes, &mut values).map_err(|_| {
            ModelError::TensorType {
                file: self.gguf.path().into(),
                tensor: name.to_owned(),
                tensor_type: tensor.tensor_type.name(),
            }
        })?;
        self.count(&tensor);
        Ok(values)
    }

    /// Parameters read in all. Errors: the file holds tensors nobody asked for.
    pub fn finish(self) -> Result<u64, ModelError> {
        let mut unused = self.gguf.tensors().filter(|t| !self.used.contains(t.name));
        match unused.next() {
            None => Ok(self.parameters),
            Some(first) => Err(ModelError::UnusedTensors {
                file: self.gguf.path().into(),
                count: 1 + unused.count(),
                first: first.name.to_owned(),
            }),
        }
    }

    fn take(&mut self, name: &str, shape: &[u64]) -> Result<Tensor<'a>, ModelError> {
        let file = || self.gguf.path().to_owned();
        let missing = || ModelError::MissingTensor {
            file: file(),
            tensor: name.to_owned(),
        };
        let tensor = self.gguf.tensor(name).ok_or_else(missing)?;
        let significant = tensor
            .dims
            .iter()
            .rposition(|&d| d != 1)
            .map_or(1, |last| last + 1);
        if tensor.dims[..significant.max(shape.len()).min(tensor.dims.len())] != *shape {
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
        Ok(tensor)
    }

    fn count(&mut self, tensor: &Tensor<'_>) {
        self.parameters += tensor.n_elements();
        self.state.bytes_done += tensor.bytes.len() as u64;
        (self.progress)(self.state);
    }
}
