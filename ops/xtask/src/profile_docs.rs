//! profiles/README.md: the reference of every profile key, generated from the schema.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

const PREFACE: &str = "\
# Profile reference

A profile is one TOML file; it need not name more than it changes. `--profile FILE` names it; without that
the profile in use holds, `~/.config/vitriol/vitriol.toml`, if there is one. `vitriol config load FILE` checks
a file and puts it there, `config save FILE` writes the settings in force with what each means. A flag goes
before the file, the file before the default; `vitriol config show --origin` tells which gave a value,
`config diff` where two profiles differ, and `config check FILE` reads a file without starting anything. An
unknown key is an error that names the nearest known one. Byte sizes are written
`\"1 GiB\"`, `\"512 MiB\"` or as a number.

This page is written by `cargo xtask profile-docs` from the schema; change it there.

";

/// The text of profiles/README.md as the schema gives it now.
pub fn expected() -> String {
    format!("{PREFACE}{}", vitriol_profile::reference_markdown())
}

/// Where the file lies in the checkout at `root`.
pub fn path(root: &Path) -> PathBuf {
    root.join("profiles/README.md")
}

/// Writes the file; says whether it changed.
pub fn write(root: &Path) -> Result<bool> {
    let path = path(root);
    let expected = expected();
    if fs::read_to_string(&path).is_ok_and(|found| found == expected) {
        return Ok(false);
    }
    fs::write(&path, expected).with_context(|| format!("write {}", path.display()))?;
    Ok(true)
}
