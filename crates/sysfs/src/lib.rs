//! What the kernel says of this machine: memory, CPU, processes, file systems, listening ports.
//!
//! Everything is read from below one root, `/` on a real machine and a directory of samples in
//! tests.

mod cpu;
mod load;
mod memory;
mod port;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

pub use cpu::{Cpu, usable_cores};
pub use load::CpuTime;
pub use memory::{Memory, ThpMode};
pub use port::PortHolder;

/// Why the kernel's word could not be had.
#[derive(Debug, thiserror::Error)]
pub enum SysfsError {
    #[error("{path}: cannot be read")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path}: no '{field}' in it")]
    Missing { path: PathBuf, field: &'static str },
}

/// The kernel's files below one root.
#[derive(Clone, Debug)]
pub struct Sysfs {
    root: PathBuf,
}

impl Sysfs {
    /// This machine.
    pub fn host() -> Self {
        Self::at("/")
    }

    /// A machine whose /proc and /sys lie below `root`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn path(&self, relative: &str) -> PathBuf {
        self.root.join(relative)
    }

    fn read(&self, relative: &str) -> Result<String, SysfsError> {
        let path = self.path(relative);
        // Process names and command lines need not be UTF-8.
        match fs::read(&path) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Err(source) => Err(SysfsError::Read { path, source }),
        }
    }
}

/// Bytes that this user may still write on the file system that holds `path`.
pub fn free_bytes(path: &Path) -> Result<u64, SysfsError> {
    let stat = rustix::fs::statvfs(path).map_err(|errno| SysfsError::Read {
        path: path.to_owned(),
        source: errno.into(),
    })?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(test)]
pub(crate) mod samples {
    use super::*;

    /// A root directory that holds `files`.
    pub fn root(files: &[(&str, &str)]) -> (tempfile::TempDir, Sysfs) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let sysfs = Sysfs::at(dir.path());
        (dir, sysfs)
    }

    #[test]
    fn a_missing_file_is_named() {
        let (_dir, sysfs) = root(&[]);
        let error = sysfs.read("proc/meminfo").unwrap_err().to_string();
        assert!(error.ends_with("proc/meminfo: cannot be read"), "{error}");
    }

    #[test]
    fn free_space_of_a_real_directory_is_known() {
        let dir = tempfile::tempdir().unwrap();
        assert!(free_bytes(dir.path()).unwrap() > 0);
        assert!(free_bytes(&dir.path().join("nothing")).is_err());
    }
}
