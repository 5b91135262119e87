use crate::EXTENT_BYTES;
use rustix::{
    io::Errno,
    mm::{self, Advice, MapFlags, MprotectFlags, ProtFlags},
};
use std::{ffi::c_void, ops::Range, ptr::NonNull};

/// Why address space could not be reserved or memory committed.
#[derive(Debug, thiserror::Error)]
pub enum ReservationError {
    #[error("cannot reserve {bytes} bytes of address space")]
    Reserve {
        bytes: usize,
        source: std::io::Error,
    },
    #[error("cannot commit bytes {}..{} of a reservation of {bytes}", range.start, range.end)]
    Commit {
        range: Range<usize>,
        bytes: usize,
        source: std::io::Error,
    },
    #[error("cannot give back bytes {}..{} of a reservation of {bytes}", range.start, range.end)]
    Decommit {
        range: Range<usize>,
        bytes: usize,
        source: std::io::Error,
    },
}

/// A fixed range of anonymous address space, aligned to [`EXTENT_BYTES`].
///
/// ```text
///   reserved (no access, no memory) --commit--> committed (zeroed, read-write)
///            ^                                      |
///            +-------------decommit-----------------+
/// ```
/// Commits and decommits are in whole extents, so each can be a huge page. The address never
/// changes, so readers may keep offsets. What is committed is counted in
/// [`Reservation::committed_bytes`].
#[derive(Debug)]
pub struct Reservation {
    mapping: NonNull<c_void>,
    mapping_len: usize,
    start: NonNull<u8>,
    len: usize,
    committed: Vec<bool>,
}

// SAFETY: the range is owned by this value alone; access to its bytes goes through raw pointers
// whose users answer for their own aliasing.
unsafe impl Send for Reservation {}
// SAFETY: as above; all methods that change the mapping take `&mut self`.
unsafe impl Sync for Reservation {}

impl Reservation {
    /// Reserves at least `bytes` (rounded up to whole extents) without using memory.
    pub fn new(bytes: usize) -> Result<Self, ReservationError> {
        let failed = |source: Errno| ReservationError::Reserve {
            bytes,
            source: source.into(),
        };
        let len = bytes
            .max(1)
            .checked_next_multiple_of(EXTENT_BYTES)
            .ok_or_else(|| failed(Errno::OVERFLOW))?;
        let mapping_len = len
            .checked_add(EXTENT_BYTES)
            .ok_or_else(|| failed(Errno::OVERFLOW))?;
        // SAFETY: a fresh anonymous mapping chosen by the kernel aliases no Rust object.
        let mapping = unsafe {
            mm::mmap_anonymous(
                std::ptr::null_mut(),
                mapping_len,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(failed)?;
        let mapping = NonNull::new(mapping).ok_or_else(|| failed(Errno::NOMEM))?;
        let skip = mapping.as_ptr().cast::<u8>().align_offset(EXTENT_BYTES);
        // SAFETY: `skip` < EXTENT_BYTES, which is how much longer the mapping is than `len`.
        let start = unsafe { mapping.cast::<u8>().add(skip) };
        Ok(Self {
            mapping,
            mapping_len,
            start,
            len,
            committed: vec![false; len / EXTENT_BYTES],
        })
    }

    /// Reserved bytes, a multiple of [`EXTENT_BYTES`].
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// First byte of the range. Only committed bytes may be touched.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Bytes that may hold memory now.
    pub fn committed_bytes(&self) -> usize {
        self.committed.iter().filter(|&&c| c).count() * EXTENT_BYTES
    }

    /// Makes all extents that `range` touches readable and writable. New ones are zero, and there
    /// already (Linux 5.14; else memory comes when they are touched); those that were committed keep
    /// their content. Asks for huge pages. On an error nothing is lost.
    pub fn commit(&mut self, range: Range<usize>) -> Result<(), ReservationError> {
        let bytes = self.len;
        let failed = |source: Errno| ReservationError::Commit {
            range: range.clone(),
            bytes,
            source: source.into(),
        };
        for extent in self.extents_touched(&range) {
            if self.committed[extent] {
                continue;
            }
            let at = self.extent_ptr(extent);
            // SAFETY: the extent lies inside our mapping; giving access to memory that nobody could
            // access before breaks no borrow.
            unsafe {
                mm::mprotect(at, EXTENT_BYTES, MprotectFlags::READ | MprotectFlags::WRITE)
                    .map_err(failed)?;
                // A refusal (THP off) leaves ordinary pages: slower by a little, never wrong.
                let _ = mm::madvise(at, EXTENT_BYTES, Advice::LinuxHugepage);
                match mm::madvise(at, EXTENT_BYTES, Advice::LinuxPopulateWrite) {
                    Err(Errno::NOMEM) => Err(failed(Errno::NOMEM)),
                    // Older kernels do not know it.
                    Err(_) | Ok(()) => Ok(()),
                }?;
            }
            self.committed[extent] = true;
        }
        Ok(())
    }

    /// Gives back the memory of all extents that lie wholly inside `range`; their content is lost.
    pub fn decommit(&mut self, range: Range<usize>) -> Result<(), ReservationError> {
        let bytes = self.len;
        for extent in self.extents_inside(&range) {
            if !self.committed[extent] {
                continue;
            }
            let at = self.extent_ptr(extent);
            // SAFETY: `&mut self` shows that no reader of the range is active; the extent lies
            // inside our mapping. After DONTNEED an anonymous page reads as zero when committed
            // again.
            let given_back = unsafe {
                mm::madvise(at, EXTENT_BYTES, Advice::LinuxDontNeed)
                    .and_then(|()| mm::mprotect(at, EXTENT_BYTES, MprotectFlags::empty()))
            };
            given_back.map_err(|source| ReservationError::Decommit {
                range: range.clone(),
                bytes,
                source: source.into(),
            })?;
            self.committed[extent] = false;
        }
        Ok(())
    }

    fn extent_ptr(&self, extent: usize) -> *mut c_void {
        self.start
            .as_ptr()
            .wrapping_add(extent * EXTENT_BYTES)
            .cast()
    }

    fn extents_touched(&self, range: &Range<usize>) -> Range<usize> {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "{range:?} outside reservation"
        );
        if range.is_empty() {
            return 0..0;
        }
        range.start / EXTENT_BYTES..range.end.div_ceil(EXTENT_BYTES)
    }

    fn extents_inside(&self, range: &Range<usize>) -> Range<usize> {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "{range:?} outside reservation"
        );
        let first = range.start.div_ceil(EXTENT_BYTES);
        first..(range.end / EXTENT_BYTES).max(first)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and `&mut self` shows that nobody uses it.
        let unmapped = unsafe { mm::munmap(self.mapping.as_ptr(), self.mapping_len) };
        debug_assert!(unmapped.is_ok(), "munmap of a reservation: {unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn byte(r: &Reservation, at: usize) -> *mut u8 {
        assert!(at < r.len());
        r.as_ptr().wrapping_add(at)
    }

    #[test]
    fn committed_extents_are_zero_kept_and_given_back() {
        let mut r = Reservation::new(5 * EXTENT_BYTES - 7).unwrap();
        assert_eq!(r.len(), 5 * EXTENT_BYTES);
        assert_eq!(r.as_ptr().align_offset(EXTENT_BYTES), 0);
        assert_eq!(r.committed_bytes(), 0);

        r.commit(EXTENT_BYTES - 1..EXTENT_BYTES + 1).unwrap();
        assert_eq!(r.committed_bytes(), 2 * EXTENT_BYTES);
        // SAFETY: extents 0 and 1 are committed; nobody else uses the reservation.
        unsafe {
            assert_eq!(byte(&r, 0).read(), 0);
            byte(&r, 0).write(7);
            byte(&r, 2 * EXTENT_BYTES - 1).write(8);
        }
        r.commit(0..3 * EXTENT_BYTES).unwrap();
        // SAFETY: as above.
        unsafe {
            assert_eq!(byte(&r, 0).read(), 7);
            assert_eq!(byte(&r, 2 * EXTENT_BYTES - 1).read(), 8);
        }
        // Half an extent is not given back.
        r.decommit(1..EXTENT_BYTES).unwrap();
        assert_eq!(r.committed_bytes(), 3 * EXTENT_BYTES);
        r.decommit(0..2 * EXTENT_BYTES).unwrap();
        assert_eq!(r.committed_bytes(), EXTENT_BYTES);
        r.commit(0..EXTENT_BYTES).unwrap();
        // SAFETY: extent 0 is committed again.
        unsafe { assert_eq!(byte(&r, 0).read(), 0) };
    }

    #[test]
    fn refuses_what_the_address_space_cannot_hold() {
        assert!(matches!(
            Reservation::new(usize::MAX - 5),
            Err(ReservationError::Reserve { .. })
        ));
        assert!(matches!(
            Reservation::new(1 << 60),
            Err(ReservationError::Reserve { .. })
        ));
    }
}
