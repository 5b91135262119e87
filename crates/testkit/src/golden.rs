//! The golden records of the zoo (tests/zoo/golden): what a reference computed from each model.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::places::{checkout, whole_zoo};

/// One record. The fields are named as in the JSON file.
#[derive(Debug, Deserialize)]
pub struct ZooRecord {
    /// Hex digest of the model file.
    pub sha256: String,
    /// The prompt all arrays belong to.
    pub tokens: Vec<u32>,
    /// Token positions of the rows of the secondary arrays.
    pub positions: Vec<usize>,
    /// Token positions of the rows of `logits_batch`.
    pub batch_positions: Vec<usize>,
    /// Texts and the ids the reference tokenizer gives them, BOS included where the model adds it.
    #[serde(default)]
    pub tokenize: Vec<TokenizedText>,
    /// How far runs of the reference are from each other, by what differs between them.
    #[serde(default)]
    pub noise: BTreeMap<String, Noise>,
    arrays: BTreeMap<String, Place>,
    #[serde(skip)]
    bytes: Vec<u8>,
}

/// One text and its token ids.
#[derive(Debug, Deserialize)]
pub struct TokenizedText {
    pub text: String,
    pub ids: Vec<u32>,
}

/// Distance of two runs' logits, over all positions.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Noise {
    /// Largest |Δlogit|.
    pub max_abs: f64,
    /// Mean square of the difference over that of the logits.
    pub nmse: f64,
}

#[derive(Debug, Deserialize)]
struct Place {
    dtype: String,
    shape: Vec<usize>,
    offset: usize,
    nbytes: usize,
}

/// A dense array in C order.
#[derive(Clone, Debug, PartialEq)]
pub struct Array<T> {
    pub shape: Vec<usize>,
    pub values: Vec<T>,
}

impl<T> Array<T> {
    /// Row `index` of the first axis.
    pub fn row(&self, index: usize) -> &[T] {
        let width: usize = self.shape[1..].iter().product();
        &self.values[index * width..(index + 1) * width]
    }
}

impl ZooRecord {
    /// Reads the record of the zoo model `name`, e.g. `llama.f32`: the checkout's, else the one in
    /// the whole zoo.
    pub fn read(name: &str) -> Result<ZooRecord> {
        let own = checkout().join("tests/zoo/golden");
        let is_here = |place: &Path| place.join(format!("{name}.golden.json")).is_file();
        let whole = whole_zoo().map(|out| [out.with_file_name("variants"), out]);
        let elsewhere = whole.into_iter().flatten().find(|place| is_here(place));
        match elsewhere {
            Some(place) if !is_here(&own) => Self::read_in(&place, name),
            _ => Self::read_in(&own, name),
        }
    }

    /// Reads the record of the zoo model `name` from `directory`.
    pub fn read_in(directory: &Path, name: &str) -> Result<ZooRecord> {
        let (json, bin) = (
            directory.join(format!("{name}.golden.json")),
            directory.join(format!("{name}.golden.bin")),
        );
        let text = fs::read(&json).with_context(|| format!("read {}", json.display()))?;
        let mut record: ZooRecord =
            serde_json::from_slice(&text).with_context(|| format!("parse {}", json.display()))?;
        record.bytes = fs::read(&bin).with_context(|| format!("read {}", bin.display()))?;
        Ok(record)
    }

    /// Names of the arrays it holds.
    pub fn arrays(&self) -> impl Iterator<Item = &str> {
        self.arrays.keys().map(String::as_str)
    }

    /// Whether it holds the array `name`.
    pub fn has(&self, name: &str) -> bool {
        self.arrays.contains_key(name)
    }

    /// The f32 array `name`. Errors: there is none, it is of another type, or the file is cut short.
    pub fn f32(&self, name: &str) -> Result<Array<f32>> {
        self.array(name, "f32", f32::from_le_bytes)
    }

    /// The i32 array `name`. Errors as of [`ZooRecord::f32`].
    pub fn i32(&self, name: &str) -> Result<Array<i32>> {
        self.array(name, "i32", i32::from_le_bytes)
    }

    fn array<T>(&self, name: &str, dtype: &str, value: fn([u8; 4]) -> T) -> Result<Array<T>> {
        let place = self
            .arrays
            .get(name)
            .with_context(|| format!("no array {name}"))?;
        ensure!(
            place.dtype == dtype,
            "array {name} is {}, not {dtype}",
            place.dtype
        );
        let bytes = self
            .bytes
            .get(place.offset..place.offset + place.nbytes)
            .with_context(|| format!("array {name}: file cut short"))?;
        let values: Vec<T> = bytes
            .chunks_exact(4)
            .map(|b| value([b[0], b[1], b[2], b[3]]))
            .collect();
        let expected: usize = place.shape.iter().product();
        ensure!(
            values.len() == expected,
            "array {name}: {} values",
            values.len()
        );
        Ok(Array {
            shape: place.shape.clone(),
            values,
        })
    }
}
