//! Whether parts were cut from one quantisation of a model.
//!
//! Only the first part of a split model has its metadata; the others say no more than `split.*`, which
//! is the same for every quantisation. Their tensors tell: a quantiser gives the matrices of one role
//! (`attn_q` of every layer) the same type, or the same few types in turn.

use crate::{
    error::{GgufError, Problem},
    file::Tensor,
    part::Part,
};
use std::collections::{BTreeMap, BTreeSet};

/// Fewer roles in common say nothing: mixtures change the type of one or two between layers.
const ROLES_MIN: usize = 3;

/// Names of the types that the matrices of a role have, by role.
type Roles = BTreeMap<String, BTreeSet<&'static str>>;

/// Errors: a part in which most roles have no type that they have in the parts before it.
pub(super) fn check_types(parts: &[Part]) -> Result<(), GgufError> {
    let mut before = Roles::new();
    for part in parts {
        let here = roles(part);
        let common = here.iter().filter_map(|(role, types)| {
            let expected = before.get(role)?;
            Some((role, types, expected))
        });
        let (n, mut other) = common.fold((0, Vec::new()), |(n, mut other), found| {
            if found.1.is_disjoint(found.2) {
                other.push(found);
            }
            (n + 1, other)
        });
        if n >= ROLES_MIN
            && 2 * other.len() > n
            && let Some((role, types, expected)) = other.pop()
        {
            return Err(part.error(Problem::SplitTypes {
                role: role.clone(),
                found: listed(types),
                expected: listed(expected),
            }));
        }
        for (role, types) in here {
            before.entry(role).or_default().extend(types);
        }
    }
    Ok(())
}

fn roles(part: &Part) -> Roles {
    let mut roles = Roles::new();
    for tensor in part.tensors() {
        if let Some(role) = role(&tensor) {
            let name = tensor.tensor_type.name();
            roles.entry(role).or_default().insert(name);
        }
    }
    roles
}

/// `blk.attn_q.weight` of the matrix `blk.7.attn_q.weight`; `None` of what no other layer has, and of
/// vectors, which no quantiser touches.
fn role(tensor: &Tensor<'_>) -> Option<String> {
    let is_matrix = tensor.dims.iter().filter(|&&dim| dim > 1).count() > 1;
    let is_number = |word: &&str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
    let words: Vec<&str> = tensor.name.split('.').collect();
    let kept: Vec<&str> = words
        .iter()
        .copied()
        .filter(|word| !is_number(word))
        .collect();
    (is_matrix && kept.len() < words.len()).then(|| kept.join("."))
}

fn listed(types: &BTreeSet<&'static str>) -> String {
    types.iter().copied().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::part::Content;
    use vitriol_testkit::gguf_file::{Described, GgufFile, sound};

    /// A part with one layer's matrices, each of the given type (id, bytes of 32 elements).
    fn layer(number: usize, types: &[(u32, u64)]) -> Part {
        let mut offset = 0;
        let names = ["attn_q", "attn_k", "attn_v", "ffn_up"];
        let tensors = names.iter().zip(types).map(|(name, &(type_id, bytes))| {
            let tensor = Described {
                name: format!("blk.{number}.{name}.weight").into(),
                n_dims: None,
                dims: vec![32, 2],
                type_id,
                offset,
            };
            offset = (offset + 2 * bytes).next_multiple_of(32);
            tensor
        });
        let file = GgufFile {
            tensors: tensors.collect(),
            data: vec![0; offset as usize],
            ..sound()
        };
        let path = format!("part-{number}.gguf").into();
        Part::parse(path, Content::Owned(file.bytes().into())).unwrap()
    }

    const Q4_0: (u32, u64) = (2, 18);
    const Q8_0: (u32, u64) = (8, 34);
    const F16: (u32, u64) = (1, 64);

    #[test]
    fn parts_of_the_same_model_in_another_type_are_refused() {
        let parts = [layer(0, &[Q4_0; 4]), layer(1, &[Q8_0; 4])];
        let message = check_types(&parts).unwrap_err().to_string();
        assert!(message.starts_with("part-1.gguf: "), "{message}");
        assert!(
            message.contains("q8_0") && message.contains("q4_0"),
            "{message}"
        );
        // Mixtures that have one type in common are told apart by the others.
        let parts = [
            layer(0, &[Q4_0, Q4_0, Q8_0, Q4_0]),
            layer(1, &[F16, F16, Q8_0, F16]),
        ];
        check_types(&parts).unwrap_err();
    }

    #[test]
    fn mixtures_within_a_model_are_taken() {
        let parts = [
            layer(0, &[Q4_0, Q4_0, Q8_0, Q8_0]),
            layer(1, &[Q4_0, Q4_0, Q4_0, Q4_0]),
            layer(2, &[Q4_0, Q4_0, F16, F16]),
        ];
        check_types(&parts).unwrap();
        // Two matrices are too few to judge by.
        check_types(&[layer(0, &[Q4_0; 2]), layer(1, &[Q8_0; 2])]).unwrap();
        check_types(&[]).unwrap();
    }
}
