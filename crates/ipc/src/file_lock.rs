//! Locks on files that end when they are dropped.

use std::{
    fs::{File, TryLockError},
    io,
};

/// An exclusive lock (`flock`) on an open file.
///
/// A lock belongs to the open file, of which a child has a copy between its fork and its exec: closing
/// ours would leave it locked for that moment, so dropping unlocks.
#[derive(Debug)]
pub struct FileLock {
    file: File,
}

impl FileLock {
    /// Errors: another open file has the lock (`WouldBlock`), or the file system knows none.
    pub fn take(file: File) -> io::Result<Self> {
        match file.try_lock() {
            Ok(()) => Ok(Self { file }),
            Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Waits until no other open file has the lock.
    pub fn wait(file: File) -> io::Result<Self> {
        file.lock()?;
        Ok(Self { file })
    }

    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // What cannot be unlocked is as the close leaves it.
        let _ = self.file.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The copy stands for that of a child between fork and exec.
    #[test]
    fn a_copy_of_the_descriptor_does_not_keep_the_lock() {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let file = File::open(&path).unwrap();
        let copy = file.try_clone().unwrap();
        let lock = FileLock::take(file).unwrap();
        let refused = FileLock::take(File::open(&path).unwrap()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        drop(lock);
        FileLock::take(File::open(&path).unwrap()).unwrap();
        drop(copy);
    }
}
