//! Each way of being damaged has its own error, which says where and, if there is one, the remedy.

use crate::{
    damages,
    writer::{problem, sound},
};
use std::{collections::HashMap, fmt::Write, path::PathBuf};
use vitriol_gguf::Gguf;

#[test]
fn every_damage_has_its_own_error() {
    let (mut seen, mut snapshot) = (HashMap::new(), String::new());
    let table = damages::table();
    assert!(table.len() >= 40, "{} damages", table.len());
    for damage in table {
        let name = damage.name;
        let file = damage.files[0].0.clone();
        let files = damage.files.into_iter();
        let files = files.map(|(path, bytes)| (PathBuf::from(path), bytes));
        let Err(error) = Gguf::from_files(files.collect()) else {
            panic!("{name}: the file was taken for sound");
        };
        let variant = format!("{:?}", error.problem().expect("nothing was mapped"));
        let variant = variant.split([' ', '{']).next().unwrap_or_default();
        assert_eq!(variant, damage.variant, "{name}: {error}");
        let message = error.to_string();
        let stem = file.split(['-', '.']).next().unwrap_or_default();
        assert!(
            message.starts_with(stem),
            "{name} names the file: {message}"
        );
        for words in damage.words {
            assert!(
                message.contains(words),
                "{name}: {words:?} is not in {message:?}"
            );
        }
        writeln!(snapshot, "{name}\n    {message}").unwrap();
        if let Some(other) = seen.insert(message, name) {
            panic!("{name} and {other} have the same message");
        }
    }
    insta::assert_snapshot!(snapshot);
}

#[test]
fn every_truncation_is_an_error() {
    let whole = sound().bytes();
    for len in 0..whole.len() {
        let message = problem(whole[..len].to_vec()).to_string();
        let known = ["needs", "claims", "not a GGUF file"];
        assert!(
            known.iter().any(|words| message.contains(words)),
            "{len}: {message}"
        );
    }
}

/// Absurd names do not make absurd messages, and cannot steer a terminal.
#[test]
fn names_are_cut_and_escaped_in_messages() {
    let twice = (vec![b'k'; 60_000], 0, vec![0]);
    let file = sound().with(|file| file.metadata.extend([twice.clone(), twice]));
    let message = problem(file.bytes()).to_string();
    assert!(
        message.len() < 200 && message.contains("… (60000 bytes)"),
        "{message}"
    );
    let file = sound().with(|file| file.tensors[1].name = b"\x1b[2J".to_vec());
    let file = file.with(|file| file.tensors[1].type_id = 4);
    let message = problem(file.bytes()).to_string();
    assert!(message.contains("\"\\u{1b}[2J\""), "{message}");
}
