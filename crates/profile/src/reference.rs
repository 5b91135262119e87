//! The field reference, generated from the schema, and the search for the nearest name.

use std::fmt::Write;

use crate::{
    Profile,
    load::TENANTS,
    schema::{Demiurge, Engine, Field, House, KvTier, Persist, Section, Shield, Tenant},
};

/// One setting, as profiles/README.md and `vitriol config` explain it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldReference {
    /// Dotted name; engines appear as `engine.main`, tenants as `NAME`.
    pub key: String,
    pub kind: &'static str,
    /// Unit of the number, empty where the type says it.
    pub unit: &'static str,
    /// The default as TOML source.
    pub default: String,
    pub doc: &'static str,
}

/// Every setting there is, in the schema's order.
pub fn reference() -> Vec<FieldReference> {
    let defaults = Profile::with_a_tenant();
    let fields = TABLES
        .iter()
        .flat_map(|(table, fields)| fields.iter().map(move |f| (table, f)));
    fields
        .zip(defaults.entries())
        .map(|((_, field), entry)| FieldReference {
            key: entry.key,
            kind: field.kind,
            unit: field.unit,
            default: entry.value,
            doc: field.doc.trim(),
        })
        .collect()
}

/// The reference as Markdown: one table of settings per table of the profile.
pub fn reference_markdown() -> String {
    let mut page = String::new();
    let mut table = String::new();
    for field in reference() {
        let (section, name) = field.key.rsplit_once('.').unwrap_or(("", &field.key));
        if section != table {
            let _ = write!(
                page,
                "{}## [{section}]\n\n| key | type | unit | default | meaning |\n|---|---|---|---|---|\n",
                if table.is_empty() { "" } else { "\n" }
            );
            section.clone_into(&mut table);
        }
        let _ = writeln!(
            page,
            "| `{name}` | {} | {} | `{}` | {} |",
            field.kind, field.unit, field.default, field.doc
        );
    }
    page
}

const TABLES: [(&str, &[Field]); 7] = [
    ("house", House::FIELDS),
    ("engine.main", Engine::FIELDS),
    ("engine.main.tenants.NAME", Tenant::FIELDS),
    ("demiurge", Demiurge::FIELDS),
    ("shield", Shield::FIELDS),
    ("persist", Persist::FIELDS),
    ("kvtier", KvTier::FIELDS),
];

/// The fields of a table, `"house"`, `"engine.NAME"` or `"engine.NAME.tenants.TENANT"`.
pub(crate) fn fields_of(table: &str) -> &'static [Field] {
    match table {
        "house" => House::FIELDS,
        "demiurge" => Demiurge::FIELDS,
        "shield" => Shield::FIELDS,
        "persist" => Persist::FIELDS,
        "kvtier" => KvTier::FIELDS,
        _ if table.contains(TENANTS) => Tenant::FIELDS,
        _ => Engine::FIELDS,
    }
}

/// What a table is about.
pub(crate) fn table_doc(table: &str) -> &'static str {
    match table {
        "house" => "What every daemon shares.",
        "demiurge" => "The HTTP door.",
        "shield" => "What the kernel's OOM killer is offered instead of the house.",
        "persist" => "The watch over the daemons.",
        "kvtier" => "KV in host memory and on disk, which outlives the process that computed it.",
        _ if table.contains(TENANTS) => "What the engine keeps for a tenant (X-Tenant-Id).",
        _ => "An engine; `main` is the one that runs in this release.",
    }
}

/// The table that has a field of this name.
pub(crate) fn table_of(field: &str) -> Option<&'static str> {
    TABLES
        .iter()
        .find(|(_, fields)| fields.iter().any(|known| known.name == field))
        .map(|(table, _)| *table)
}

/// The candidate with the fewest edits to `word`; the first of several.
pub(crate) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    candidates
        .into_iter()
        .min_by_key(|candidate| edit_distance(word, candidate))
        .unwrap_or_default()
        .to_owned()
}

/// Levenshtein distance in characters, two rows at a time.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_setting_is_explained_in_one_sentence_or_two() {
        for field in reference() {
            assert!(field.doc.ends_with('.'), "{}: {}", field.key, field.doc);
            assert!(
                !field.doc.contains('\n') && !field.doc.contains('|'),
                "{}",
                field.key
            );
            let counted = field.key.ends_with("_ms") || field.key.ends_with("_tokens");
            assert!(
                !counted || !field.unit.is_empty(),
                "{} has no unit",
                field.key
            );
        }
    }

    #[test]
    fn markdown_has_a_row_for_every_setting() {
        let page = reference_markdown();
        assert_eq!(page.matches("\n| `").count(), reference().len());
        assert!(
            page.contains("| `listen` | address |  | `\"127.0.0.1:8265\"` |"),
            "{page}"
        );
    }

    proptest! {
        #[test]
        fn edit_distance_is_a_metric(a in "[a-c]{0,6}", b in "[a-c]{0,6}", c in "[a-c]{0,6}") {
            prop_assert_eq!(edit_distance(&a, &a), 0);
            prop_assert_eq!(edit_distance(&a, &b), edit_distance(&b, &a));
            prop_assert!(edit_distance(&a, &c) <= edit_distance(&a, &b) + edit_distance(&b, &c));
        }
    }
}
