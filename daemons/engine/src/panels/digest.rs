use std::{fmt, io};

/// Bytes that are digested by themselves. Part of what a digest is: another number gives others.
pub const PIECE_BYTES: usize = 1 << 20;

/// What names a model's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ModelDigest(pub [u8; 32]);

impl fmt::Display for ModelDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", blake3::Hash::from_bytes(self.0))
    }
}

impl fmt::Debug for ModelDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModelDigest({self})")
    }
}

/// BLAKE3 of the BLAKE3s of pieces of [`PIECE_BYTES`], so that several threads can take it.
pub fn digest(bytes: &[u8], threads: usize) -> [u8; 32] {
    let pieces = bytes.chunks(PIECE_BYTES).collect();
    let digested = digest_pieces(pieces, threads, |piece| Ok(*blake3::hash(piece).as_bytes()));
    // Hashing does not fail.
    digested.unwrap_or_default()
}

/// Fills `bytes` by `read`, which is told at which of them its piece starts; their [`digest`].
pub fn read_and_digest(
    bytes: &mut [u8],
    threads: usize,
    read: impl Fn(&mut [u8], u64) -> io::Result<()> + Sync,
) -> io::Result<[u8; 32]> {
    let pieces = bytes.chunks_mut(PIECE_BYTES).enumerate().collect();
    digest_pieces(pieces, threads, |(index, piece): (usize, &mut [u8])| {
        read(piece, (index * PIECE_BYTES) as u64)?;
        Ok(*blake3::hash(piece).as_bytes())
    })
}

fn digest_pieces<P: Send>(
    mut pieces: Vec<P>,
    threads: usize,
    of_piece: impl Fn(P) -> io::Result<[u8; 32]> + Sync,
) -> io::Result<[u8; 32]> {
    let share = pieces.len().div_ceil(threads.max(1)).max(1);
    let mut digests = Vec::with_capacity(pieces.len());
    std::thread::scope(|scope| {
        let mut others = Vec::new();
        while pieces.len() > share {
            let of_thread = pieces.split_off(pieces.len() - share);
            let of_piece = &of_piece;
            others.push(scope.spawn(move || -> io::Result<Vec<[u8; 32]>> {
                of_thread.into_iter().map(of_piece).collect()
            }));
        }
        for piece in pieces {
            digests.push(of_piece(piece)?);
        }
        // The last pieces were given away first.
        for thread in others.into_iter().rev() {
            match thread.join() {
                Ok(of_thread) => digests.extend(of_thread?),
                Err(panicked) => std::panic::resume_unwind(panicked),
            }
        }
        io::Result::Ok(())
    })?;
    Ok(*blake3::hash(digests.as_flattened()).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_that_of_the_bytes_whoever_takes_it() {
        let bytes: Vec<u8> = (0..5 * PIECE_BYTES + 77)
            .map(|i| ((i * 31) >> 4) as u8)
            .collect();
        let digests: Vec<[u8; 32]> = bytes
            .chunks(PIECE_BYTES)
            .map(|piece| *blake3::hash(piece).as_bytes())
            .collect();
        let expected = *blake3::hash(digests.as_flattened()).as_bytes();
        for threads in [0, 1, 2, 3, 6, 50] {
            assert_eq!(digest(&bytes, threads), expected, "{threads} threads");
            let mut copy = vec![0; bytes.len()];
            let read = |piece: &mut [u8], at: u64| {
                piece.copy_from_slice(&bytes[at as usize..][..piece.len()]);
                Ok(())
            };
            assert_eq!(read_and_digest(&mut copy, threads, read).unwrap(), expected);
            assert_eq!(copy, bytes);
        }
        let mut other = bytes.clone();
        other[3 * PIECE_BYTES] ^= 1;
        assert_ne!(digest(&other, 2), expected);
        assert_ne!(digest(&[], 2), expected);
    }

    #[test]
    fn one_piece_that_cannot_be_read_fails_all() {
        for bad in 0..4 {
            let read = |_: &mut [u8], at: u64| match at == bad * PIECE_BYTES as u64 {
                true => Err(io::ErrorKind::UnexpectedEof.into()),
                false => Ok(()),
            };
            let mut bytes = vec![0; 4 * PIECE_BYTES];
            assert!(read_and_digest(&mut bytes, 3, read).is_err(), "{bad}");
        }
    }
}
