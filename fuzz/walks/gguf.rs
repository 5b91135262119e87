//! What is done with a model file that may be damaged. Shared by the fuzz target and by the test
//! that replays `fuzz/regressions`.

use std::path::{Path, PathBuf};
use vitriol_gguf::{Gguf, GgufError, Metadata, Value};
use vitriol_testkit::gguf_file::part_names;
use vitriol_tokens::{EncodeOptions, Tokenizer};

/// Parts two files of a split model in one input.
pub const PART_BORDER: &[u8] = b"\n--- next part ---\n";

/// Text with what tokenizers treat apart: scripts, digits, spaces, special tokens, bytes that are
/// no UTF-8.
const TEXT: &[u8] =
    b"<s>Hello,  w\xc3\xb6rld 12345\n\n\t<|im_end|> \xe2\x96\x81 \xf0\x9f\xa6\x80 \xff\xc3 don't";

/// Opens `input` and touches all that it gives access to; whether it went as far as a tokenizer.
pub fn walk(input: &[u8]) -> bool {
    match open(input) {
        Ok(gguf) => {
            walk_metadata(gguf.metadata());
            walk_tensors(&gguf);
            walk_tokenizer(&gguf)
        }
        Err(error) => {
            // Its message is all that an error is for.
            assert!(error.to_string().contains("model"), "{error}");
            false
        }
    }
}

fn open(input: &[u8]) -> Result<Gguf, GgufError> {
    let mut files = vec![Vec::new()];
    let mut rest = input;
    while let Some((&byte, tail)) = rest.split_first() {
        match rest.strip_prefix(PART_BORDER) {
            Some(tail) => {
                files.push(Vec::new());
                rest = tail;
            }
            None => {
                files.last_mut().expect("one from the start").push(byte);
                rest = tail;
            }
        }
    }
    match files.len() {
        1 => Gguf::from_bytes(Path::new("model.gguf"), input.to_vec()),
        count => {
            let names = part_names("model", count).into_iter().map(PathBuf::from);
            Gguf::from_files(names.zip(files).collect())
        }
    }
}

fn walk_metadata(metadata: Metadata<'_>) {
    let mut pairs = 0;
    for (key, value) in metadata.iter() {
        pairs += 1;
        let again = metadata.value(key).expect("a key that was listed");
        assert_eq!(again.describe(), value.describe());
        walk_value(value);
        let messages = [
            metadata.get_u32(key).err(),
            metadata.get_u64(key).err(),
            metadata.get::<i32>(key).err(),
            metadata.get::<usize>(key).err(),
            metadata.get_f32(key).err(),
            metadata.get_bool(key).err(),
            metadata.get_bytes(key).err(),
            metadata.get_str(key).err(),
            metadata.get_array(key).err(),
            metadata.get_within(key, 1..=1 << 20).err(),
            metadata.get_finite(key).err(),
            metadata.get_positive(key).err(),
            metadata.get_vec::<u32>(key).err(),
            metadata.get_vec::<bool>(key).err(),
            metadata.get_per_layer::<u64>(key, 2).err(),
            metadata.get_per_layer::<&str>(key, 2).err(),
        ];
        for message in messages.into_iter().flatten() {
            assert!(message.to_string().len() < 2048, "{message}");
        }
    }
    assert_eq!(pairs, metadata.len());
    assert!(metadata.value("no such key").is_none());
}

fn walk_value(value: Value<'_>) {
    if let Value::Array(array) = value {
        let mut elements = 0;
        for element in array.iter() {
            elements += 1;
            walk_value(element);
        }
        assert_eq!(elements, array.len());
    }
}

fn walk_tensors(gguf: &Gguf) {
    let _ = gguf.architecture().map(str::len);
    assert!(!format!("{gguf:?}").is_empty());
    let mut tensors = 0;
    for part in gguf.parts() {
        assert!(part.header().len() <= part.bytes().len());
        tensors += part.tensors().len();
    }
    assert_eq!(tensors, gguf.n_tensors());
    for tensor in gguf.tensors() {
        let found = gguf.tensor(tensor.name).expect("a tensor that was listed");
        assert_eq!(found.bytes.as_ptr(), tensor.bytes.as_ptr());
        let row = tensor.dims.first().map_or(1, |&dim| dim as usize);
        let row_bytes = tensor.tensor_type.row_bytes(row).expect("whole blocks");
        let rows: u64 = tensor.dims.iter().skip(1).product();
        assert_eq!(tensor.bytes.len() as u64, row_bytes as u64 * rows);
        assert!(tensor.n_elements() > 0 && !format!("{tensor:?}").is_empty());
        // Reads all of it: the sanitizer watches the borders.
        std::hint::black_box(tensor.bytes.iter().fold(0u8, |sum, byte| sum ^ byte));
    }
}

fn walk_tokenizer(gguf: &Gguf) -> bool {
    let tokenizer = match Tokenizer::from_gguf(gguf) {
        Ok(tokenizer) => tokenizer,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return false;
        }
    };
    for parse_special in [false, true] {
        let options = EncodeOptions {
            add_special: true,
            parse_special,
        };
        let ids = tokenizer.encode(TEXT, options);
        assert!(ids.iter().all(|&id| (id as usize) < tokenizer.n_vocab()));
        tokenizer.decode(&ids, true);
    }
    let n_vocab = tokenizer.n_vocab() as u32;
    let mut piece = Vec::new();
    for id in (0..n_vocab).chain([n_vocab, u32::MAX]) {
        piece.clear();
        tokenizer.piece(id, &mut piece, true);
        let _ = (tokenizer.is_eog(id), tokenizer.is_control(id));
    }
    true
}
