use std::{
    fs::Permissions,
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// A report could not be written; what was there before still is.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}", path.display())]
pub struct WriteError {
    path: PathBuf,
    source: io::Error,
}

/// Writes `path` in one move: whoever looks, and whatever interrupts this process, finds the old
/// content or all of the new.
pub fn write_whole(path: &Path, content: &str) -> Result<(), WriteError> {
    let failed = |source| WriteError {
        path: path.to_owned(),
        source,
    };
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut file = tempfile::Builder::new()
        .prefix(".vitriol-")
        .permissions(Permissions::from_mode(0o644))
        .tempfile_in(directory)
        .map_err(failed)?;
    file.write_all(content.as_bytes()).map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_nothing_is_left_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.md");
        for content in ["long, the first", "short"] {
            write_whole(&path, content).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_place_that_cannot_be_written_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = write_whole(&dir.path().join("no/report.md"), "x").unwrap_err();
        assert!(error.to_string().ends_with("no/report.md"), "{error}");
        // A directory in the file's place: the temporary file is removed again.
        std::fs::create_dir(dir.path().join("taken")).unwrap();
        assert!(write_whole(&dir.path().join("taken"), "x").is_err());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
