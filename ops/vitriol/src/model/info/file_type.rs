/// What `general.file_type` calls a mixture of tensor types.
///
/// Source: llama.cpp `include/llama.h`, `enum llama_ftype`; ids that were withdrawn there are
/// left out.
const NAMES: [(u64, &str); 34] = [
    (0, "F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (7, "Q8_0"),
    (8, "Q5_0"),
    (9, "Q5_1"),
    (10, "Q2_K"),
    (11, "Q3_K_S"),
    (12, "Q3_K_M"),
    (13, "Q3_K_L"),
    (14, "Q4_K_S"),
    (15, "Q4_K_M"),
    (16, "Q5_K_S"),
    (17, "Q5_K_M"),
    (18, "Q6_K"),
    (19, "IQ2_XXS"),
    (20, "IQ2_XS"),
    (21, "Q2_K_S"),
    (22, "IQ3_XS"),
    (23, "IQ3_XXS"),
    (24, "IQ1_S"),
    (25, "IQ4_NL"),
    (26, "IQ3_S"),
    (27, "IQ3_M"),
    (28, "IQ2_S"),
    (29, "IQ2_M"),
    (30, "IQ4_XS"),
    (31, "IQ1_M"),
    (32, "BF16"),
    (36, "TQ1_0"),
    (37, "TQ2_0"),
    (38, "MXFP4_MOE"),
    (1024, "guessed"),
];

/// The name of a file type; `None` for one that is newer than this list.
pub fn name(id: u64) -> Option<&'static str> {
    let found = NAMES.binary_search_by_key(&id, |&(id, _)| id);
    found.ok().map(|at| NAMES[at].1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_ids_have_names() {
        assert!(NAMES.is_sorted_by_key(|&(id, _)| id));
        assert_eq!((name(15), name(4)), (Some("Q4_K_M"), None));
    }
}
