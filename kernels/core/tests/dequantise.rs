//! Decoders against ggml's own values, bit for bit (tests/data/README.md).

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use vitriol_kernels_core::{TensorType, dequantise_row};

fn check(tensor_type: TensorType, records: &[u8]) {
    const COLS: usize = 128;
    let row_bytes = tensor_type.row_bytes(COLS).unwrap();
    let record_bytes = row_bytes + COLS * 4;
    assert_eq!(records.len(), 4 * record_bytes);
    for (index, record) in records.chunks_exact(record_bytes).enumerate() {
        let (row, expected) = record.split_at(row_bytes);
        let mut values = [f32::NAN; COLS];
        dequantise_row(tensor_type, row, &mut values).unwrap();
        for (column, (value, bytes)) in values.iter().zip(expected.as_chunks::<4>().0).enumerate() {
            let expected = f32::from_le_bytes(*bytes);
            assert_eq!(
                value.to_bits(),
                expected.to_bits(),
                "{tensor_type} record {index} column {column}: {value} is not {expected}"
            );
        }
    }
}

#[test]
fn f16_equals_ggml() {
    check(TensorType::F16, include_bytes!("data/f16.rows"));
}

#[test]
fn bf16_equals_ggml() {
    check(TensorType::BF16, include_bytes!("data/bf16.rows"));
}

#[test]
fn q8_0_equals_ggml() {
    check(TensorType::Q8_0, include_bytes!("data/q8_0.rows"));
}

#[test]
fn q4_1_equals_ggml() {
    check(TensorType::Q4_1, include_bytes!("data/q4_1.rows"));
}
