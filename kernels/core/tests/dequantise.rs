//! Decoders against ggml's own values, bit for bit (tests/data/README.md), and on arbitrary bytes.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use proptest::prelude::*;
use serde_json::Value;
use vitriol_kernels_core::{TensorType, dequantise_row};

/// Weights of a committed record; types with larger blocks have one block.
const RECORD_COLS: usize = 128;

/// Records of a committed file.
const RECORDS: usize = 5;

/// Decodes `row` and compares it with what ggml made of it (little-endian f32).
fn check_row(tensor_type: TensorType, what: &str, row: &[u8], expected: &[u8]) {
    let mut values = vec![f32::NAN; expected.len() / 4];
    dequantise_row(tensor_type, row, &mut values).unwrap();
    for (column, (value, bytes)) in values.iter().zip(expected.as_chunks::<4>().0).enumerate() {
        let expected = f32::from_le_bytes(*bytes);
        assert_eq!(
            value.to_bits(),
            expected.to_bits(),
            "{tensor_type} {what} column {column}: {value:e} is not {expected:e}"
        );
    }
}

/// Types with weights; f32 is stored as it is computed with, so that no record is needed.
fn recorded_types() -> impl Iterator<Item = TensorType> {
    TensorType::ALL
        .iter()
        .copied()
        .filter(|t| t.is_dequantisable() && *t != TensorType::F32)
}

#[test]
fn every_format_equals_ggml() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    for tensor_type in recorded_types() {
        let file = format!("{}.rows", tensor_type.name().to_lowercase());
        let records = std::fs::read(data.join(&file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        let cols = RECORD_COLS.max(tensor_type.block_len());
        let row_bytes = tensor_type.row_bytes(cols).unwrap();
        let record_bytes = row_bytes + cols * 4;
        assert_eq!(records.len(), RECORDS * record_bytes, "{file}");
        for (index, record) in records.chunks_exact(record_bytes).enumerate() {
            let (row, expected) = record.split_at(row_bytes);
            check_row(tensor_type, &format!("record {index}"), row, expected);
        }
    }
}

#[test]
fn f32_is_taken_as_it_is() {
    let stored = [0.0, -0.0, 1.5, f32::MIN_POSITIVE / 2.0, f32::INFINITY];
    let bytes: Vec<u8> = stored.iter().flat_map(|x: &f32| x.to_le_bytes()).collect();
    check_row(TensorType::F32, "row", &bytes, &bytes);
}

/// `dequant.json` of the zoo and the bytes it describes.
struct ZooRows {
    index: Value,
    bytes: Vec<u8>,
}

impl ZooRows {
    fn read(zoo: &Path) -> Result<ZooRows> {
        let read = |name: &str| {
            let path = zoo.join("out").join(name);
            std::fs::read(&path).with_context(|| format!("read {}", path.display()))
        };
        Ok(ZooRows {
            index: serde_json::from_slice(&read("dequant.json")?)?,
            bytes: read("dequant.bin")?,
        })
    }

    /// Compares all rows of one type. Returns how many there were.
    fn check(&self, tensor_type: TensorType) -> Result<usize> {
        let entry = &self.index["types"][tensor_type.name().to_uppercase()];
        let number = |key: &str| -> Result<usize> {
            let number = entry[key]
                .as_u64()
                .with_context(|| format!("dequant.json says no {key} of {tensor_type}"))?;
            Ok(usize::try_from(number)?)
        };
        ensure!(number("ggml_type")? == tensor_type as usize);
        let (rows, cols) = (number("rows")?, number("cols")?);
        let row_bytes = tensor_type.row_bytes(cols).context("whole blocks")?;
        ensure!(rows * row_bytes == number("raw_nbytes")?);
        for row in 0..rows {
            let at = number("raw_offset")? + row * row_bytes;
            let stored = self.bytes.get(at..at + row_bytes).context("stored row")?;
            let at = number("f32_offset")? + row * cols * 4;
            let expected = self.bytes.get(at..at + cols * 4).context("f32 row")?;
            check_row(tensor_type, &format!("row {row}"), stored, expected);
        }
        Ok(rows)
    }
}

/// All of the zoo's rows, `$VITRIOL_ZOO/out/dequant.bin`. Without it `ops/test` says that this did
/// not run; if it is set, the file has to be there.
#[test]
fn every_row_of_the_zoo_equals_ggml() {
    let Some(zoo) = zoo_directory() else {
        // Straight to the terminal: what a passing test prints is captured.
        let line = "NOT RUN: every_row_of_the_zoo_equals_ggml: set VITRIOL_ZOO\n";
        std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes()).unwrap();
        return;
    };
    let rows = ZooRows::read(&zoo).unwrap();
    let types = rows.index["types"].as_object().unwrap().len();
    let mut compared = 0;
    for tensor_type in recorded_types() {
        assert!(rows.check(tensor_type).unwrap() >= 8, "{tensor_type}");
        compared += 1;
    }
    assert_eq!(compared, types, "types in dequant.json");
}

#[expect(
    clippy::disallowed_methods,
    reason = "tests have no main; this is where they read it"
)]
fn zoo_directory() -> Option<PathBuf> {
    std::env::var_os("VITRIOL_ZOO")
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

/// A type with a decoder and some rows' worth of arbitrary bytes.
fn arbitrary_row() -> impl Strategy<Value = (TensorType, Vec<u8>)> {
    let types: Vec<TensorType> = recorded_types().chain([TensorType::F32]).collect();
    (proptest::sample::select(types), 1..4usize).prop_flat_map(|(tensor_type, blocks)| {
        let bytes = blocks * tensor_type.block_bytes();
        (
            Just(tensor_type),
            proptest::collection::vec(any::<u8>(), bytes),
        )
    })
}

/// Bits of each value; NaN counts as one, whatever its payload.
fn bits(values: &[f32]) -> Vec<u32> {
    let canonical = |value: &f32| if value.is_nan() { f32::NAN } else { *value };
    values.iter().map(|v| canonical(v).to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    /// No bytes panic, every weight is written, and nothing depends on what was there before.
    #[test]
    fn any_bytes_decode((tensor_type, bytes) in arbitrary_row()) {
        let cols = bytes.len() / tensor_type.block_bytes() * tensor_type.block_len();
        let [over_zeros, over_ones] = [0.0, 1.0].map(|before| {
            let mut values = vec![before; cols];
            dequantise_row(tensor_type, &bytes, &mut values).unwrap();
            bits(&values)
        });
        prop_assert_eq!(over_zeros, over_ones);
    }

    /// A row is its blocks one after the other.
    #[test]
    fn blocks_decode_alone((tensor_type, bytes) in arbitrary_row()) {
        let block_len = tensor_type.block_len();
        let cols = bytes.len() / tensor_type.block_bytes() * block_len;
        let mut row = vec![0.0; cols];
        dequantise_row(tensor_type, &bytes, &mut row).unwrap();
        let blocks = bytes.chunks_exact(tensor_type.block_bytes());
        for (block, in_row) in blocks.zip(row.chunks_exact(block_len)) {
            let mut alone = vec![0.0; block_len];
            dequantise_row(tensor_type, block, &mut alone).unwrap();
            prop_assert_eq!(bits(&alone), bits(in_row));
        }
    }

    /// Lengths that are not those of a row are refused, and the destination is left alone.
    #[test]
    fn other_lengths_are_refused((tensor_type, bytes) in arbitrary_row(), cut in 1..16usize) {
        let cols = bytes.len() / tensor_type.block_bytes() * tensor_type.block_len();
        let mut values = vec![7.0; cols];
        let short = &bytes[..bytes.len().saturating_sub(cut)];
        prop_assert!(dequantise_row(tensor_type, short, &mut values).is_err());
        prop_assert!(values.iter().all(|value| *value == 7.0));
    }
}
