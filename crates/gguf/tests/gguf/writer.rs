//! The test writer of `vitriol_testkit`, and the reader's answer to what it wrote.

use std::path::Path;
use vitriol_gguf::{Gguf, GgufError, Problem};
pub use vitriol_testkit::gguf_file::*;

pub fn open(bytes: Vec<u8>) -> Result<Gguf, GgufError> {
    Gguf::from_bytes(Path::new("model.gguf"), bytes)
}

pub fn problem(bytes: Vec<u8>) -> Problem {
    let error = open(bytes).expect_err("the file is damaged");
    let message = error.to_string();
    assert!(
        message.starts_with("model.gguf: "),
        "the message names the file: {message}"
    );
    match error {
        GgufError::File { problem, .. } => *problem,
        GgufError::Map(error) => panic!("nothing was mapped: {error}"),
    }
}
