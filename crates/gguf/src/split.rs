//! Models split over several files: how the parts are named, found and checked against each other.
//!
//! Each part is a whole GGUF file with some of the tensors. `split.count` says how many parts there
//! are, `split.no` which one this is (from 0), `split.tensors.count` how many tensors all parts hold
//! together; the model's own metadata is in the first. The files are called
//! `NAME-00001-of-00003.gguf`, counted from 1.
//!
//! Source: llama.cpp's `gguf-split` writes them so.

mod types;

use crate::{
    error::{GgufError, Problem},
    metadata::FromValue,
    part::Part,
};
use std::{
    fmt,
    path::{Path, PathBuf},
};

const COUNT_KEY: &str = "split.count";
const NUMBER_KEY: &str = "split.no";
const TENSORS_KEY: &str = "split.tensors.count";
/// Most parts of a model: `split.count` is 16 bits wide where it is written.
const PARTS_MAX: u32 = u16::MAX as u32;

/// What all parts of a model are called but for their number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartName {
    prefix: String,
    /// From 1.
    number: u32,
    count: u32,
}

impl PartName {
    /// Reads `NAME-00001-of-00003.gguf`; `None` for any other name.
    pub(crate) fn parse(file_name: &str) -> Option<Self> {
        let rest = file_name.strip_suffix(".gguf")?;
        let (rest, count) = rest.rsplit_once("-of-")?;
        let (prefix, number) = rest.rsplit_once('-')?;
        let digits = |text: &str| {
            let is_number = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| text.parse().ok())?
        };
        let (number, count) = (digits(number)?, digits(count)?);
        let is_sound = !prefix.is_empty() && (1..=count).contains(&number);
        is_sound.then(|| Self {
            prefix: prefix.to_owned(),
            number,
            count,
        })
    }

    fn of_part(&self, number: u32) -> String {
        Self {
            number,
            ..self.clone()
        }
        .to_string()
    }
}

impl fmt::Display for PartName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            prefix,
            number,
            count,
        } = self;
        write!(f, "{prefix}-{number:05}-of-{count:05}.gguf")
    }
}

/// What a model's file is called without `.gguf` and, if it is a part, without the part's number:
/// `models/a-00001-of-00003.gguf` is `a`. Empty where the path ends in no name.
pub fn model_name(path: &Path) -> String {
    let file_name = path.file_name().unwrap_or_default().to_string_lossy();
    match PartName::parse(&file_name) {
        Some(part) => part.prefix,
        None => path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
    }
}

/// All parts of the model that `asked` is a part of, in order; `asked` alone if it is no part.
///
/// `open` opens another part; `Ok(None)` where there is no such file. Errors: see the `Split…`
/// cases of [`Problem`]. Cost: memory grows only with parts that were really opened.
pub(crate) fn gather(
    asked: Part,
    mut open: impl FnMut(&Path) -> Result<Option<Part>, GgufError>,
) -> Result<Vec<Part>, GgufError> {
    let Some(claim) = Claim::read(&asked)? else {
        return Ok(vec![asked]);
    };
    let name = claim.name(&asked)?;
    let mut asked = Some(asked);
    let mut parts: Vec<Part> = Vec::new();
    for number in 1..=claim.count {
        let part = match asked.take_if(|_| number == name.number) {
            Some(part) => part,
            None => open_sibling(&name, number, parts.first().or(asked.as_ref()), &mut open)?,
        };
        check_part(&part, number, &claim)?;
        if let Some(first) = parts.first() {
            check_same_model(first, &part)?;
        }
        parts.push(part);
    }
    check_tensor_count(&parts, claim.tensors)?;
    types::check_types(&parts)?;
    Ok(parts)
}

/// What a part says about all of them.
struct Claim {
    count: u32,
    tensors: u64,
}

impl Claim {
    /// `None` for a model of one file. `split.count` may be 0 or 1 there.
    fn read(part: &Part) -> Result<Option<Self>, GgufError> {
        let Some(count) = number_at::<u32>(part, COUNT_KEY)?.filter(|&count| count > 1) else {
            return Ok(None);
        };
        if count > PARTS_MAX {
            return Err(part.error(Problem::SplitCount {
                count,
                limit: PARTS_MAX,
            }));
        }
        let tensors = require_at(part, TENSORS_KEY)?;
        Ok(Some(Self { count, tensors }))
    }

    /// The names of the parts, from the file name of one. Errors: it is no part's name, or that of
    /// another part.
    fn name(&self, part: &Part) -> Result<PartName, GgufError> {
        let file_name = part.path().file_name().unwrap_or_default();
        let name = PartName::parse(&file_name.to_string_lossy());
        match name {
            Some(name) if name.count == self.count => Ok(name),
            _ => Err(part.error(Problem::SplitName { count: self.count })),
        }
    }
}

fn open_sibling(
    name: &PartName,
    number: u32,
    known: Option<&Part>,
    open: &mut impl FnMut(&Path) -> Result<Option<Part>, GgufError>,
) -> Result<Part, GgufError> {
    let file = name.of_part(number);
    let directory = known.and_then(|part| part.path().parent());
    let path: PathBuf = directory.unwrap_or(Path::new("")).join(&file);
    match open(&path)? {
        Some(part) => Ok(part),
        None => Err(GgufError::File {
            path,
            problem: Box::new(Problem::SplitMissing {
                number,
                count: name.count,
            }),
        }),
    }
}

/// That `part` is what its file name says, and belongs to parts like the one asked for.
fn check_part(part: &Part, number: u32, claim: &Claim) -> Result<(), GgufError> {
    let count: u32 = require_at(part, COUNT_KEY)?;
    if count != claim.count {
        return Err(part.error(Problem::SplitOther {
            key: COUNT_KEY.to_owned(),
            found: count.to_string(),
            expected: claim.count.to_string(),
        }));
    }
    let index: u32 = require_at(part, NUMBER_KEY)?;
    if index != number - 1 {
        return Err(part.error(Problem::SplitNumber { number, index }));
    }
    let tensors: u64 = require_at(part, TENSORS_KEY)?;
    if tensors != claim.tensors {
        return Err(part.error(Problem::SplitOther {
            key: TENSORS_KEY.to_owned(),
            found: tensors.to_string(),
            expected: claim.tensors.to_string(),
        }));
    }
    Ok(())
}

/// That what `part` says of the model is what `first` says. Parts after the first need say nothing.
fn check_same_model(first: &Part, part: &Part) -> Result<(), GgufError> {
    let of_this_file = [NUMBER_KEY, "general.alignment"];
    for entry in &part.layout().metadata {
        let key = entry.key(part.bytes());
        if of_this_file.contains(&key) {
            continue;
        }
        if let (Some(here), Some(there)) = (part.value_of(entry), first.value(key))
            && !here.same_as(there)
        {
            return Err(part.error(Problem::SplitOther {
                key: key.to_owned(),
                found: here.shown(),
                expected: there.shown(),
            }));
        }
    }
    Ok(())
}

fn check_tensor_count(parts: &[Part], claimed: u64) -> Result<(), GgufError> {
    let found: u64 = parts
        .iter()
        .map(|part| part.layout().tensors.len() as u64)
        .sum();
    match parts.first() {
        Some(first) if found != claimed => Err(first.error(Problem::SplitTensors {
            claimed,
            found,
            parts: parts.len(),
        })),
        _ => Ok(()),
    }
}

fn number_at<T: for<'a> FromValue<'a>>(part: &Part, key: &str) -> Result<Option<T>, GgufError> {
    let Some(value) = part.value(key) else {
        return Ok(None);
    };
    match T::from_value(value) {
        Some(number) => Ok(Some(number)),
        None => Err(part.error(Problem::mismatch::<T>(key, value))),
    }
}

fn require_at<T: for<'a> FromValue<'a>>(part: &Part, key: &str) -> Result<T, GgufError> {
    let missing = || {
        part.error(Problem::MissingKey {
            key: key.to_owned(),
        })
    };
    number_at(part, key)?.ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_names_are_read_and_written() {
        let name = PartName::parse("a-b-00002-of-00003.gguf").unwrap();
        assert_eq!((&*name.prefix, name.number, name.count), ("a-b", 2, 3));
        assert_eq!(name.of_part(1), "a-b-00001-of-00003.gguf");
        for other in [
            "a.gguf",
            "a-00004-of-00003.gguf",
            "a-00000-of-00003.gguf",
            "a-0001-of-0003.gguf",
            "a-00001-of-00003.bin",
            "-00001-of-00003.gguf",
            "a-+0001-of-00003.gguf",
        ] {
            assert_eq!(PartName::parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_model_is_called_without_its_part() {
        let name = |path| model_name(Path::new(path));
        assert_eq!(name("m/a-00001-of-00003.gguf"), "a");
        assert_eq!(name("m/a.Q4_1.gguf"), "a.Q4_1");
        assert_eq!(name("/"), "");
    }
}
