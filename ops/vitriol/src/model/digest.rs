//! SHA-256 of files, while they are copied or as they lie.

use std::{
    fs::File,
    io::{self, Read, Write},
    path::Path,
};

use sha2::{Digest, Sha256};
use vitriol_profile::try_reading;

/// Read and hashed at once.
const CHUNK_BYTES: usize = 1 << 20;

/// What went by.
#[derive(Debug, PartialEq, Eq)]
pub struct Digested {
    pub bytes: u64,
    /// Lower-case hexadecimal.
    pub sha256: String,
}

/// A hash over several streams, as if they were one.
#[derive(Debug, Default)]
pub struct Hasher {
    hash: Sha256,
    bytes: u64,
}

impl Hasher {
    /// Copies all of `from` to `to`, reporting the bytes so far over all streams after each chunk.
    pub fn copy(
        &mut self,
        from: &mut impl Read,
        to: &mut impl Write,
        mut progress: impl FnMut(u64),
    ) -> io::Result<()> {
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let read = match from.read(&mut chunk) {
                Ok(0) => return Ok(()),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            self.hash.update(&chunk[..read]);
            to.write_all(&chunk[..read])?;
            self.bytes += read as u64;
            progress(self.bytes);
        }
    }

    /// Bytes of all streams so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn finish(self) -> Digested {
        let sha256 = self
            .hash
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        Digested {
            bytes: self.bytes,
            sha256,
        }
    }
}

/// The digest of a regular file.
pub fn digest_file(path: &Path) -> io::Result<Digested> {
    try_reading(path)?;
    let mut hasher = Hasher::default();
    hasher.copy(&mut File::open(path)?, &mut io::sink(), |_| {})?;
    Ok(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_hash_as_if_joined() {
        let mut hasher = Hasher::default();
        let (mut copied, mut seen) = (Vec::new(), Vec::new());
        hasher
            .copy(&mut &b"a"[..], &mut copied, |bytes| seen.push(bytes))
            .unwrap();
        hasher
            .copy(&mut &b"bc"[..], &mut copied, |bytes| seen.push(bytes))
            .unwrap();
        assert_eq!(
            (copied.as_slice(), seen.as_slice()),
            (&b"abc"[..], &[1, 3][..])
        );
        // The example of FIPS 180.
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad".to_owned();
        assert_eq!(hasher.finish(), Digested { bytes: 3, sha256 });
    }
}
