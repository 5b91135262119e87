//! Rust source as the structure checks see it: identifiers only, without comments and literals.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

/// All `.rs` files below `dir`, sorted; hidden directories and `target` are passed over.
pub fn rust_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut open = vec![dir.to_owned()];
    while let Some(at) = open.pop() {
        for entry in fs::read_dir(&at).with_context(|| format!("list {}", at.display()))? {
            let entry = entry?;
            let path = entry.path();
            let name = entry.file_name();
            if entry.file_type()?.is_dir() {
                if name != "target" && !name.to_string_lossy().starts_with('.') {
                    open.push(path);
                }
            } else if path.extension().is_some_and(|e| e == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// The source with comments, string and character literals blanked; line breaks stay, so that line
/// numbers do.
pub fn code_only(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut out = String::with_capacity(source.len());
    let mut i = 0;
    while i < chars.len() {
        let end = skip_comment(&chars, i)
            .or_else(|| skip_raw_string(&chars, i))
            .or_else(|| skip_quoted(&chars, i));
        match end {
            Some(end) => {
                out.extend(
                    chars[i..end]
                        .iter()
                        .map(|&c| if c == '\n' { '\n' } else { ' ' }),
                );
                i = end;
            }
            None => {
                out.push(chars[i]);
                i += 1;
            }
        }
    }
    out
}

/// Line numbers (from 1) where `word` stands as a whole identifier.
pub fn lines_with_word(code: &str, word: &str) -> Vec<usize> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    code.lines()
        .enumerate()
        .filter(|(_, line)| line.split(|c| !is_part(c)).any(|w| w == word))
        .map(|(i, _)| i + 1)
        .collect()
}

fn skip_comment(chars: &[char], at: usize) -> Option<usize> {
    match (chars.get(at)?, chars.get(at + 1)?) {
        ('/', '/') => Some(
            chars[at..]
                .iter()
                .position(|&c| c == '\n')
                .map_or(chars.len(), |n| at + n),
        ),
        ('/', '*') => {
            let (mut depth, mut i) = (1, at + 2);
            while depth > 0 && i < chars.len() {
                match (chars[i], chars.get(i + 1)) {
                    ('/', Some('*')) => (depth, i) = (depth + 1, i + 2),
                    ('*', Some('/')) => (depth, i) = (depth - 1, i + 2),
                    _ => i += 1,
                }
            }
            Some(i.min(chars.len()))
        }
        _ => None,
    }
}

/// `r"…"`, `r#"…"#` and their byte and C forms. The letters before the quote must not be the tail of
/// an identifier.
fn skip_raw_string(chars: &[char], at: usize) -> Option<usize> {
    let continues_word = at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_');
    let mut i = at;
    if matches!(chars.get(i), Some('b' | 'c')) {
        i += 1;
    }
    if continues_word || chars.get(i) != Some(&'r') {
        return None;
    }
    i += 1;
    let hashes = chars[i..].iter().take_while(|&&c| c == '#').count();
    i += hashes;
    if chars.get(i) != Some(&'"') {
        return None;
    }
    i += 1;
    while i < chars.len() {
        let closes = chars[i] == '"'
            && chars[i + 1..]
                .iter()
                .take(hashes)
                .filter(|&&c| c == '#')
                .count()
                == hashes;
        if closes {
            return Some(i + 1 + hashes);
        }
        i += 1;
    }
    Some(chars.len())
}

/// `"…"` and `'x'`; a lifetime (`'a` without a closing quote) is code.
fn skip_quoted(chars: &[char], at: usize) -> Option<usize> {
    let quote = *chars.get(at)?;
    if quote == '\'' {
        let escaped = chars.get(at + 1) == Some(&'\\');
        if !escaped && chars.get(at + 2) != Some(&'\'') {
            return None;
        }
    } else if quote != '"' {
        return None;
    }
    let mut i = at + 1;
    while i < chars.len() && chars[i] != quote {
        i += if chars[i] == '\\' { 2 } else { 1 };
    }
    Some((i + 1).min(chars.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_not_code() {
        let source = concat!(
            "// unsafe here\n",
            "/* unsafe /* nested unsafe */ unsafe */ let a = \"unsafe \\\" unsafe\";\n",
            "let b = r#\"unsafe \" unsafe\"#; let c = b'\\''; let d = '\"'; fn f<'a>(x: &'a str) {}\n",
            "unsafe { g() }\n",
        );
        assert_eq!(lines_with_word(&code_only(source), "unsafe"), [4]);
        assert_eq!(code_only(source).lines().count(), source.lines().count());
        assert!(code_only(source).contains("fn f<'a>(x: &'a str)"));
    }

    #[test]
    fn only_whole_identifiers_count() {
        let code = "#![allow(unsafe_code)]\nlet not_unsafe = 1;\nunsafe fn f() {}";
        assert_eq!(lines_with_word(code, "unsafe"), [3]);
    }

    #[test]
    fn an_unclosed_literal_ends_with_the_file() {
        assert_eq!(code_only("let a = \"unsafe"), "let a =        ");
        assert_eq!(code_only("let a = r#\"unsafe\"").trim_end(), "let a =");
        assert_eq!(code_only("/* unsafe").trim_end(), "");
        assert_eq!(code_only("'\\").trim_end(), "");
    }
}
