//! A profile as a document that explains itself.

use crate::{
    Profile,
    reference::{fields_of, table_doc},
    schema::Field,
};

/// Columns of a comment, its mark included.
const WIDTH: usize = 100;

impl Profile {
    /// The whole profile as TOML source with what each setting means above it; it loads to the same
    /// settings. `heading` comes first, as a comment.
    pub fn to_document(&self, heading: &str) -> String {
        let mut text = comment(heading);
        let mut table = String::new();
        for entry in self.entries() {
            let (section, name) = entry.key.rsplit_once('.').unwrap_or(("", &entry.key));
            if section != table {
                text.push_str(&format!("\n{}[{section}]\n", comment(table_doc(section))));
                section.clone_into(&mut table);
            }
            if let Some(field) = fields_of(section).iter().find(|field| field.name == name) {
                text.push_str(&comment(&explain(field)));
            }
            text.push_str(&format!("{name} = {}\n", entry.value));
        }
        text
    }
}

fn explain(field: &Field) -> String {
    let doc = field.doc.trim();
    match field.unit.is_empty() {
        true => doc.to_owned(),
        false => format!("{doc} Unit: {}.", field.unit),
    }
}

/// The words as comment lines of [`WIDTH`] at most, unless one word is longer.
fn comment(words: &str) -> String {
    let mut text = String::new();
    let mut line = String::from("#");
    for word in words.split_whitespace() {
        if line.len() + 1 + word.len() > WIDTH && line.len() > 1 {
            text.push_str(&line);
            text.push('\n');
            line.truncate(1);
        }
        line.push(' ');
        line.push_str(word);
    }
    text.push_str(&line);
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;
    use crate::Overrides;

    fn parse(text: &str) -> Profile {
        Profile::parse(Path::new("p.toml"), text, &Overrides::new()).unwrap()
    }

    #[test]
    fn every_setting_stands_below_its_explanation() {
        let text = Profile::default().to_document("Saved.");
        assert!(text.starts_with("# Saved.\n\n# "), "{text}");
        let explained = "# Compute threads; 0 = one for each core this process may use. Unit: \
                         threads.\nthreads = 0\n";
        assert!(text.contains(explained), "{text}");
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
        let lines: Vec<&str> = text.lines().collect();
        let is_setting = |line: &str| !line.starts_with('#') && line.contains(" = ");
        let settings = lines.windows(2).filter(|pair| is_setting(pair[1]));
        assert!(
            settings.clone().all(|pair| pair[0].starts_with("# ")),
            "{text}"
        );
        assert_eq!(settings.count(), Profile::default().entries().len());
    }

    proptest! {
        #[test]
        fn a_document_reads_back_to_the_same_settings(
            threads in 0u32..=1024,
            kv_mib in 1u64..5000,
            alias in "[ -!#-\\[\\]-~]{0,12}",
            second in any::<bool>(),
        ) {
            let more = if second { "[engine.b-2]\nthreads = 2\n" } else { "" };
            let profile = parse(&format!(
                "[engine.main]\nthreads = {threads}\nkv_bytes_max = '{kv_mib} MiB'\n\
                 alias = \"{alias}\"\n{more}"
            ));
            let again = parse(&profile.to_document("A heading\nof two lines."));
            prop_assert_eq!(profile.changes_to(&again), []);
            prop_assert_eq!(&again.engines, &profile.engines);
        }
    }
}
