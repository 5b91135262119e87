//! Which file is meant by what somebody wrote for a model.

use std::{
    fs::{self, File},
    io,
    path::{Component, Path, PathBuf},
};

use crate::catalog::{self, KnownModel};

/// A model as a profile, a flag or an argument names it: nothing for the default model, a name of the
/// catalog, or a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelReference<'a> {
    pub given: &'a Path,
    /// Where a relative path starts; empty = the current directory.
    pub relative_to: &'a Path,
}

/// What a reference stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelFile {
    /// A model of the catalog, which has its place in the cache.
    Known(&'static KnownModel),
    Path(PathBuf),
}

/// Why a reference stands for nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelReferenceError {
    #[error("model {}: HOME is not set, so ~ stands for nothing; write the whole path", .0.display())]
    NoHome(PathBuf),
    #[error(
        "model {}: only ~/ is understood, no other user's home; write the whole path (./~… for a file \
         of such a name)",
        .0.display()
    )]
    OthersHome(PathBuf),
}

impl<'a> ModelReference<'a> {
    /// What a command line says, where a path starts in the current directory.
    pub fn argument(given: &'a Path) -> Self {
        Self {
            given,
            relative_to: Path::new(""),
        }
    }

    /// The model meant; `home` is the user's. A name of the catalog goes before a file of that name,
    /// which is written `./NAME`.
    ///
    /// Errors: a `~` that stands for no directory known here.
    pub fn resolve(&self, home: Option<&Path>) -> Result<ModelFile, ModelReferenceError> {
        if self.given.as_os_str().is_empty() {
            return Ok(ModelFile::Known(catalog::default_model()));
        }
        if let Some(known) = self.known() {
            return Ok(ModelFile::Known(known));
        }
        let given = || self.given.to_owned();
        if let Ok(below) = self.given.strip_prefix("~") {
            let home = home.ok_or_else(|| ModelReferenceError::NoHome(given()))?;
            return Ok(ModelFile::Path(home.join(below)));
        }
        if self.given.as_os_str().as_encoded_bytes().starts_with(b"~") {
            return Err(ModelReferenceError::OthersHome(given()));
        }
        Ok(ModelFile::Path(self.relative_to.join(self.given)))
    }

    /// Whether it means another file when it is written elsewhere.
    pub fn is_relative(&self) -> bool {
        let first = self.given.components().next();
        let is_home = first == Some(Component::Normal("~".as_ref()));
        !self.given.as_os_str().is_empty()
            && self.given.is_relative()
            && !is_home
            && self.known().is_none()
    }

    fn known(&self) -> Option<&'static KnownModel> {
        let name = self.given.to_str().filter(|name| !name.is_empty())?;
        catalog::find(Some(name))
    }
}

/// Whether a model file can be read. What is not a regular file is not opened: a FIFO would be waited
/// for, and opening a device may act on it.
///
/// Errors: as of opening a file; `InvalidInput` for what is no regular file.
pub fn try_reading(file: &Path) -> io::Result<()> {
    match fs::metadata(file)?.is_file() {
        true => File::open(file).map(|_readable| ()),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "is not a regular file",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Overrides, Profile};

    fn resolve(given: &str, relative_to: &str) -> Result<ModelFile, ModelReferenceError> {
        let reference = ModelReference {
            given: given.as_ref(),
            relative_to: relative_to.as_ref(),
        };
        reference.resolve(Some("/home/u".as_ref()))
    }

    fn path(path: &str) -> Result<ModelFile, ModelReferenceError> {
        Ok(ModelFile::Path(path.into()))
    }

    #[test]
    fn catalog_names_are_taken_wherever_a_model_is_named() {
        for name in [
            "",
            "smollm2-135m-instruct",
            "SmolLM2-135M-Instruct",
            "smollm2-135m",
        ] {
            let found = resolve(name, "/p").unwrap();
            assert_eq!(found, ModelFile::Known(catalog::default_model()), "{name}");
        }
        let gemma = resolve("gemma-3-270m", "").unwrap();
        assert_eq!(gemma, ModelFile::Known(&catalog::KNOWN[1]));
        // A path is a path, whatever its last word.
        assert_eq!(resolve("./gemma-3-270m", "/p"), path("/p/./gemma-3-270m"));
        assert_eq!(resolve("smollm2-135", "/p"), path("/p/smollm2-135"));
    }

    #[test]
    fn a_relative_path_starts_at_the_profiles_file() {
        assert_eq!(resolve("m.gguf", "/etc/x"), path("/etc/x/m.gguf"));
        assert_eq!(resolve("../m.gguf", ""), path("../m.gguf"));
        assert_eq!(resolve("/m.gguf", "/etc/x"), path("/m.gguf"));

        let text = "[engine.main]\nmodel = \"models/m.gguf\"\n";
        let at = |flags: &Overrides| {
            let profile = Profile::parse("/etc/x/p.toml".as_ref(), text, flags).unwrap();
            profile.model("main").unwrap().resolve(None)
        };
        assert_eq!(at(&Overrides::new()), path("/etc/x/models/m.gguf"));
        let flag = Overrides::new().set("engine.main.model", Some("m.gguf"), "--model");
        assert_eq!(at(&flag), path("m.gguf"));
        assert_eq!(Profile::default().model("other"), None);
    }

    #[test]
    fn home_is_expanded_and_no_other_users() {
        assert_eq!(resolve("~/m.gguf", "/p"), path("/home/u/m.gguf"));
        let given = PathBuf::from("~root/m.gguf");
        let others = ModelReferenceError::OthersHome(given.clone());
        assert_eq!(resolve("~root/m.gguf", "/p"), Err(others));
        assert_eq!(resolve("./~root", "/p"), path("/p/./~root"));
        let nowhere = ModelReference::argument("~/m".as_ref()).resolve(None);
        assert_eq!(nowhere, Err(ModelReferenceError::NoHome("~/m".into())));
    }

    #[test]
    fn what_is_no_regular_file_is_not_opened() {
        for odd in ["/", "/dev/null"] {
            let error = try_reading(odd.as_ref()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{odd}");
        }
        let missing = try_reading("/nonexistent".as_ref()).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn only_relative_paths_change_with_their_place() {
        for (given, is_relative) in [
            ("m.gguf", true),
            ("../m.gguf", true),
            ("./gemma-3-270m", true),
            ("", false),
            ("/m.gguf", false),
            ("~/m.gguf", false),
            ("gemma-3-270m", false),
        ] {
            let reference = ModelReference::argument(given.as_ref());
            assert_eq!(reference.is_relative(), is_relative, "{given}");
        }
    }
}
