//! Models in several files.

use crate::writer::{GgufFile, part_names, sound, split};
use std::{fs, path::Path};
use vitriol_gguf::{Gguf, GgufError};
use vitriol_testkit::{
    gguf_file::{Described, entry},
    places::zoo_model,
};

/// What was read of a file, for the writer.
fn written(gguf: &Gguf) -> GgufFile {
    let whole = gguf.parts()[0].bytes();
    let start = gguf.parts()[0].header().len();
    let describe = |tensor: vitriol_gguf::Tensor<'_>| Described {
        name: tensor.name.into(),
        n_dims: None,
        dims: tensor.dims.into(),
        type_id: tensor.tensor_type as u32,
        offset: tensor.file_offset - start as u64,
    };
    let architecture = gguf.architecture().expect("an architecture");
    let value = crate::writer::string(architecture.as_bytes());
    GgufFile {
        metadata: vec![entry("general.architecture", crate::writer::STRING, value)],
        tensors: gguf.tensors().map(describe).collect(),
        alignment: gguf.alignment() as usize,
        data: whole[start..].to_vec(),
        ..sound()
    }
}

fn write(directory: &Path, parts: &[GgufFile]) {
    for (name, part) in part_names("m", parts.len()).iter().zip(parts) {
        fs::write(directory.join(name), part.bytes()).expect("a part is written");
    }
}

#[test]
fn a_model_in_three_files_is_the_model() {
    let whole = Gguf::open(&zoo_model("llama.f32").unwrap()).unwrap();
    let n = whole.n_tensors();
    let parts = split(&written(&whole), &[n / 3, n / 3, n - 2 * (n / 3)]);
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), &parts);
    for opened in part_names("m", 3) {
        let gguf = Gguf::open(&directory.path().join(&opened)).unwrap();
        assert_eq!((gguf.parts().len(), gguf.n_tensors()), (3, n), "{opened}");
        assert!(gguf.path().ends_with("m-00001-of-00003.gguf"));
        assert_eq!(gguf.architecture().unwrap(), whole.architecture().unwrap());
        let sizes = gguf.parts().iter().map(|part| part.bytes().len() as u64);
        assert_eq!(gguf.file_bytes(), sizes.sum::<u64>());
        for (ours, theirs) in gguf.tensors().zip(whole.tensors()) {
            assert_eq!((ours.name, ours.dims), (theirs.name, theirs.dims));
            assert_eq!(ours.tensor_type, theirs.tensor_type);
            assert!(ours.bytes == theirs.bytes, "{}", ours.name);
            let found = gguf.tensor(ours.name).unwrap();
            assert_eq!(found.bytes.as_ptr(), ours.bytes.as_ptr());
            let start = ours.file_offset as usize;
            let file = fs::read(ours.file).unwrap();
            assert!(file[start..].starts_with(ours.bytes), "{}", ours.name);
        }
        gguf.advise_dont_need();
    }
}

#[test]
fn a_missing_part_is_named_from_disk() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), &split(&sound(), &[1, 1]));
    fs::remove_file(directory.path().join("m-00001-of-00002.gguf")).unwrap();
    let second = directory.path().join("m-00002-of-00002.gguf");
    let message = Gguf::open(&second).unwrap_err().to_string();
    let path = directory.path().join("m-00001-of-00002.gguf");
    let expected = format!(
        "{}: no such file: it is part 1 of 2 of the model (fetch it too)",
        path.display()
    );
    assert_eq!(message, expected);
}

#[test]
fn a_part_that_cannot_be_read_is_not_missing() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), &split(&sound(), &[1, 1]));
    let second = directory.path().join("m-00002-of-00002.gguf");
    fs::remove_file(&second).unwrap();
    fs::create_dir(&second).unwrap();
    let first = directory.path().join("m-00001-of-00002.gguf");
    assert!(matches!(Gguf::open(&first), Err(GgufError::Map(_))));
}

/// `split.count` of 1 is written by tools that could have split.
#[test]
fn one_part_is_a_whole_model_whatever_its_name() {
    let one = split(&sound(), &[2]).remove(0).bytes();
    let gguf = Gguf::from_bytes(Path::new("any.gguf"), one).unwrap();
    assert_eq!((gguf.parts().len(), gguf.n_tensors()), (1, 2));
}
