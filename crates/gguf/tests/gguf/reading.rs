use crate::writer::{ARRAY, F32, STRING, U8, U32, array, entry, open, sound, string};
use vitriol_gguf::{Gguf, Problem, Value, ValueType};
use vitriol_testkit::places::zoo_model;

#[test]
fn reads_what_was_written() {
    for version in [2, 3] {
        let gguf = open(sound().with(|file| file.version = version).bytes()).unwrap();
        assert_eq!(gguf.version(), version);
        assert_eq!(gguf.architecture().unwrap(), "llama");
        let metadata = gguf.metadata();
        assert_eq!(metadata.len(), 8);
        assert_eq!(metadata.get_u32("llama.block_count").unwrap(), Some(2));
        assert_eq!(metadata.get_u64("llama.block_count").unwrap(), Some(2));
        assert_eq!(metadata.get_f32("llama.rope.freq_base").unwrap(), Some(1e4));
        assert_eq!(metadata.get_bool("general.sound").unwrap(), Some(true));
        assert_eq!(metadata.get::<i32>("general.negative").unwrap(), Some(-7));
        assert_eq!(metadata.get_u32("absent").unwrap(), None);
        assert_eq!(
            metadata.get_vec::<u32>("general.sizes").unwrap(),
            Some(vec![1, 2, 3])
        );
        assert_eq!(
            metadata.get_vec::<u32>("llama.block_count").unwrap(),
            Some(vec![2])
        );
        let per_layer = |key, n_layers| metadata.get_per_layer::<u32>(key, n_layers).unwrap();
        assert_eq!(per_layer("llama.block_count", 3), Some(vec![2, 2, 2]));
        assert_eq!(per_layer("general.sizes", 3), Some(vec![1, 2, 3]));
        let within = metadata.get_within("llama.block_count", 2..=2);
        assert_eq!(within.unwrap(), Some(2));
        let positive = metadata.get_positive("llama.rope.freq_base");
        assert_eq!(positive.unwrap(), Some(1e4));
        let tags = metadata
            .get_array_of("general.tags", ValueType::String)
            .unwrap()
            .unwrap();
        let tags: Vec<_> = tags.iter().collect();
        assert_eq!(tags, [Value::String(b"x"), Value::String(b"\xff")]);
        let keys: Vec<_> = metadata.iter().map(|(key, _)| key).collect();
        assert_eq!(keys[0], "general.architecture");
        assert_eq!(keys.len(), 8);

        let a = gguf.tensor("a").unwrap();
        assert_eq!(
            (a.dims, a.n_elements(), a.bytes.len()),
            (&[4, 8][..], 32, 128)
        );
        let b = gguf.tensor("b").unwrap();
        assert_eq!(b.tensor_type.name(), "q8_0");
        assert_eq!(b.bytes, (128..128 + 34).collect::<Vec<u8>>());
        assert_eq!(gguf.parts()[0].bytes()[b.file_offset as usize], 128);
        assert!(gguf.tensor("c").is_none());
        assert_eq!(
            gguf.tensors().map(|tensor| tensor.name).collect::<Vec<_>>(),
            ["a", "b"]
        );
    }
}

#[test]
fn getters_say_what_is_wrong_with_a_value() {
    let file = sound().with(|file| {
        let nan = f32::NAN.to_le_bytes().to_vec();
        file.metadata.push(entry("general.nan", F32, nan));
        let many = array(U8, 65_537, vec![0; 65_537]);
        file.metadata.push(entry("general.many", ARRAY, many));
    });
    let gguf = open(file.bytes()).unwrap();
    let metadata = gguf.metadata();
    let messages = [
        metadata.get_u32("general.architecture").unwrap_err(),
        metadata.get_u32("general.size").unwrap_err(),
        metadata.get_u32("general.negative").unwrap_err(),
        metadata.get_str("general.sizes").unwrap_err(),
        metadata
            .get_array_of("general.sizes", ValueType::String)
            .unwrap_err(),
        metadata.require::<f32>("llama.scale").unwrap_err(),
        metadata.get_vec::<&str>("general.tags").unwrap_err(),
        metadata.get_within("llama.block_count", 3..=9).unwrap_err(),
        metadata.get_positive("general.nan").unwrap_err(),
        metadata.get_finite("general.nan").unwrap_err(),
        metadata
            .get_per_layer::<u32>("general.sizes", 2)
            .unwrap_err(),
        metadata.get_vec::<u32>("general.many").unwrap_err(),
    ]
    .map(|error| error.to_string());
    assert_eq!(
        messages,
        [
            "model.gguf: metadata key \"general.architecture\" is of type string, not an unsigned \
             32-bit integer",
            "model.gguf: metadata key \"general.size\" is 1099511627776, which does not fit an \
             unsigned 32-bit integer",
            "model.gguf: metadata key \"general.negative\" is -7, which does not fit an unsigned \
             32-bit integer",
            "model.gguf: metadata key \"general.sizes\" is an array of u8, not a UTF-8 string",
            "model.gguf: metadata key \"general.sizes\" is an array of u8, not an array of string",
            "model.gguf: metadata key \"llama.scale\" is missing",
            "model.gguf: metadata key \"general.tags\" is of type string, not a UTF-8 string",
            "model.gguf: metadata key \"llama.block_count\" is 2, which does not fit 3 to 9",
            "model.gguf: metadata key \"general.nan\" is NaN, which does not fit a positive number",
            "model.gguf: metadata key \"general.nan\" is NaN, which does not fit a finite number",
            "model.gguf: metadata key \"general.sizes\" holds 3 elements; one for each of 2 layers \
             is wanted",
            "model.gguf: metadata key \"general.many\" holds 65537 elements; at most 65536 are read",
        ]
    );
}

#[test]
fn a_missing_architecture_is_an_error_of_its_own() {
    let gguf = open(sound().with(|file| drop(file.metadata.remove(0))).bytes()).unwrap();
    let missing = Problem::MissingKey {
        key: "general.architecture".into(),
    };
    assert_eq!(gguf.architecture().unwrap_err().problem(), Some(&missing));
}

#[test]
fn a_file_without_tensors_or_keys_is_sound() {
    let bare = sound().with(|file| {
        file.tensors.clear();
        file.metadata.clear();
        file.data.clear();
    });
    let gguf = open(bare.bytes()).unwrap();
    assert_eq!((gguf.metadata().len(), gguf.n_tensors()), (0, 0));
}

#[test]
fn alignment_moves_the_data() {
    let file = sound().with(|file| {
        file.metadata
            .push(entry("general.alignment", U32, 128u32.to_le_bytes().into()));
        file.alignment = 128;
    });
    let gguf = open(file.bytes()).unwrap();
    assert_eq!(gguf.alignment(), 128);
    let b = gguf.tensor("b").unwrap();
    assert_eq!((b.file_offset % 128, b.bytes[0]), (0, 128));
}

#[test]
fn nested_arrays_are_read() {
    let inner = array(STRING, 1, string(b"deep"));
    let file = sound().with(|file| {
        file.metadata.push(entry(
            "nested",
            ARRAY,
            array(ARRAY, 2, [&inner[..], &inner].concat()),
        ));
        file.metadata
            .push(entry("after", U32, 9u32.to_le_bytes().into()));
    });
    let gguf = open(file.bytes()).unwrap();
    let nested = gguf.metadata().get_array("nested").unwrap().unwrap();
    for element in nested.iter() {
        let Value::Array(strings) = element else {
            panic!("{element:?}")
        };
        assert_eq!(strings.iter().collect::<Vec<_>>(), [Value::String(b"deep")]);
    }
    assert_eq!(nested.len(), 2);
    assert_eq!(gguf.metadata().get_u32("after").unwrap(), Some(9));
}

#[test]
fn opens_a_file_from_disk_and_names_one_that_is_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sound.gguf");
    std::fs::write(&path, sound().bytes()).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    assert_eq!(gguf.path(), path);
    assert_eq!(gguf.tensor("a").unwrap().bytes.len(), 128);
    gguf.advise_dont_need();
    assert_eq!(gguf.tensor("b").unwrap().bytes[0], 128);

    let missing = dir.path().join("missing.gguf");
    let message = Gguf::open(&missing).unwrap_err().to_string();
    assert!(message.contains("missing.gguf"), "{message}");
}

#[test]
fn an_architecture_that_is_no_name_is_refused() {
    for bad in [&b""[..], b"llama\x1b[2J", &[b'l'; 65]] {
        let value = entry("general.architecture", STRING, string(bad));
        let gguf = open(sound().with(|file| file.metadata[0] = value).bytes()).unwrap();
        let message = gguf.architecture().unwrap_err().to_string();
        assert!(message.contains("names no architecture"), "{message}");
    }
}

/// The zoo has model files of many architectures and tensor types, also of those that cannot be
/// computed yet.
#[test]
fn zoo_files_open() {
    let model = zoo_model("llama.f32").unwrap();
    let mut opened = 0;
    for file in std::fs::read_dir(model.parent().unwrap()).unwrap() {
        let path = file.unwrap().path();
        if path
            .extension()
            .is_some_and(|extension| extension == "gguf")
        {
            let gguf = Gguf::open(&path).unwrap_or_else(|error| panic!("{error}"));
            assert!(!gguf.architecture().unwrap().is_empty());
            let held: u64 = gguf.tensors().map(|tensor| tensor.bytes.len() as u64).sum();
            assert!(held > 0 && held < gguf.file_bytes());
            opened += 1;
        }
    }
    assert!(opened > 0, "{} has no model", model.display());
}
