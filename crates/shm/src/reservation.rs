use crate::EXTENT_BYTES;
use rustix::{
    io::Errno,
    mm::{self, Advice, MapFlags, MprotectFlags, ProtFlags},
    param::page_size,
};
use std::{ffi::c_void, ops::Range, ptr::NonNull, sync::Arc};

/// Why address space could not be reserved or memory committed.
#[derive(Debug, thiserror::Error)]
pub enum ReservationError {
    #[error("cannot reserve {bytes} bytes of address space")]
    Reserve {
        bytes: usize,
        source: std::io::Error,
    },
    #[error("cannot commit {to} bytes of a reservation of {bytes}")]
    Commit {
        to: usize,
        bytes: usize,
        source: std::io::Error,
    },
    #[error("cannot give back what lies beyond {to} bytes of a reservation of {bytes}")]
    Decommit {
        to: usize,
        bytes: usize,
        source: std::io::Error,
    },
}

/// A fixed range of anonymous address space, aligned to [`EXTENT_BYTES`], of which a beginning is
/// memory.
///
/// ```text
///   |committed (zeroed, read-write)   |  reserved (no access, no memory) |
///   0                     a watermark that moves                        len
/// ```
/// Memory comes and goes in whole extents, each a huge page where the system has one. Only the first grows
/// by ordinary pages while no more is wanted: whoever keeps many small things would pay for each with a
/// huge page that is mostly idle, and with the time it takes to zero it. The kernel may make one of
/// them later (khugepaged). The address never changes, so readers may keep offsets.
#[derive(Debug)]
pub struct Reservation {
    mapping: Arc<Mapping>,
    start: NonNull<u8>,
    len: usize,
    /// Bytes from the start that are accessible, whole extents.
    accessible: usize,
    /// Bytes from the start that are to be huge pages, whole extents.
    huge: usize,
    /// Bytes from the start that have been made present; what is between the two comes when touched.
    present: usize,
}

// SAFETY: access to the range goes through raw pointers whose users answer for their own aliasing.
unsafe impl Send for Reservation {}
// SAFETY: as above; all methods that change the mapping take `&mut self`.
unsafe impl Sync for Reservation {}

/// The mapping itself, which ends with its last holder.
#[derive(Debug)]
struct Mapping {
    at: NonNull<c_void>,
    len: usize,
}

// SAFETY: it says where the mapping is, and gives no access to it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// Keeps a [`Reservation`]'s address range mapped beyond its end. What is decommitted is gone all the same.
#[derive(Clone, Debug)]
pub struct KeptRange(#[expect(dead_code, reason = "held for its Drop")] Arc<Mapping>);

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
        let mapping = Mapping {
            at: mapping,
            len: mapping_len,
        };
        Ok(Self {
            mapping: Arc::new(mapping),
            start,
            len,
            accessible: 0,
            huge: 0,
            present: 0,
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

    /// The address range stays mapped as long as this or what is returned lives.
    pub fn keep(&self) -> KeptRange {
        KeptRange(Arc::clone(&self.mapping))
    }

    /// Bytes that hold memory now.
    pub fn committed_bytes(&self) -> usize {
        self.present
    }

    /// Makes `to` bytes from the start readable and writable, and present (Linux 5.14; on older ones
    /// memory comes when it is touched). New ones are zero, old ones keep their content. On an error
    /// nothing is lost.
    ///
    /// # Panics
    /// If `to` is more than was reserved.
    pub fn commit(&mut self, to: usize) -> Result<(), ReservationError> {
        self.give_access(to)?;
        self.populate(to)
            .map_err(|source| self.not_committed(to, source))
    }

    /// Does of [`Reservation::commit`] what changes the address space and takes no memory. The kernel lets
    /// nobody change it while somebody finds memory, and nobody find memory meanwhile: where several
    /// reservations are committed at once, all are given access before.
    ///
    /// # Panics
    /// If `to` is more than was reserved.
    pub fn give_access(&mut self, to: usize) -> Result<(), ReservationError> {
        assert!(to <= self.len, "{to} of {} reserved bytes", self.len);
        let extents = to.next_multiple_of(EXTENT_BYTES);
        if self.accessible < extents {
            let (from, access) = (self.accessible, MprotectFlags::READ | MprotectFlags::WRITE);
            // SAFETY: the extents lie inside our mapping; giving access to memory that nobody could
            // access before breaks no borrow.
            unsafe { mm::mprotect(self.at(from), extents - from, access) }
                .map_err(|source| self.not_committed(to, source))?;
            self.accessible = extents;
            if to < EXTENT_BYTES {
                self.advise(0..extents, Advice::LinuxNoHugepage);
            }
        }
        if self.huge < extents && to >= EXTENT_BYTES {
            self.advise(self.huge..extents, Advice::LinuxHugepage);
            self.huge = extents;
        }
        Ok(())
    }

    fn advise(&mut self, range: Range<usize>, advice: Advice) {
        // SAFETY: the range is ours, and advice changes no content. A refusal (no huge pages here) leaves
        // ordinary ones: slower by a little, never wrong.
        let _ = unsafe { mm::madvise(self.at(range.start), range.len(), advice) };
    }

    fn populate(&mut self, to: usize) -> Result<(), Errno> {
        while self.present < to {
            let end = match to < EXTENT_BYTES {
                true => to.next_multiple_of(page_size()),
                false => (self.present / EXTENT_BYTES + 1) * EXTENT_BYTES,
            };
            let bytes = end - self.present;
            // SAFETY: the range is accessible and ours; touching it changes no content.
            match unsafe { mm::madvise(self.at(self.present), bytes, Advice::LinuxPopulateWrite) } {
                Err(Errno::NOMEM) => return Err(Errno::NOMEM),
                // Older kernels do not know it.
                Err(_) | Ok(()) => self.present = end,
            }
        }
        Ok(())
    }

    fn not_committed(&self, to: usize, source: Errno) -> ReservationError {
        ReservationError::Commit {
            to,
            bytes: self.len,
            source: source.into(),
        }
    }

    /// Gives back the memory of all extents beyond the first `to` bytes; their content is lost.
    pub fn decommit(&mut self, to: usize) -> Result<(), ReservationError> {
        let kept = to.div_ceil(EXTENT_BYTES).saturating_mul(EXTENT_BYTES);
        if kept >= self.accessible {
            return Ok(());
        }
        let bytes = self.accessible - kept;
        // SAFETY: `&mut self` shows that no reader of the range is active; it lies inside our mapping.
        // After DONTNEED an anonymous page reads as zero when committed again.
        let given_back = unsafe {
            mm::madvise(self.at(kept), bytes, Advice::LinuxDontNeed)
                .and_then(|()| mm::mprotect(self.at(kept), bytes, MprotectFlags::empty()))
        };
        given_back.map_err(|source| ReservationError::Decommit {
            to,
            bytes: self.len,
            source: source.into(),
        })?;
        self.accessible = kept;
        self.huge = self.huge.min(kept);
        self.present = self.present.min(kept);
        Ok(())
    }

    fn at(&self, offset: usize) -> *mut c_void {
        self.as_ptr().wrapping_add(offset).cast()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and its last holder is gone.
        let unmapped = unsafe { mm::munmap(self.at.as_ptr(), self.len) };
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
    fn what_is_committed_is_zero_kept_and_given_back() {
        let mut r = Reservation::new(5 * EXTENT_BYTES - 7).unwrap();
        assert_eq!(r.len(), 5 * EXTENT_BYTES);
        assert_eq!(r.as_ptr().align_offset(EXTENT_BYTES), 0);
        assert_eq!(r.committed_bytes(), 0);

        r.commit(EXTENT_BYTES + 1).unwrap();
        assert_eq!(r.committed_bytes(), 2 * EXTENT_BYTES);
        // SAFETY: extents 0 and 1 are committed; nobody else uses the reservation.
        unsafe {
            assert_eq!(byte(&r, 0).read(), 0);
            byte(&r, 0).write(7);
            byte(&r, 2 * EXTENT_BYTES - 1).write(8);
        }
        r.commit(3 * EXTENT_BYTES).unwrap();
        // SAFETY: as above.
        unsafe {
            assert_eq!(byte(&r, 0).read(), 7);
            assert_eq!(byte(&r, 2 * EXTENT_BYTES - 1).read(), 8);
        }
        // A part of an extent is not given back.
        r.decommit(2 * EXTENT_BYTES + 1).unwrap();
        assert_eq!(r.committed_bytes(), 3 * EXTENT_BYTES);
        r.decommit(2 * EXTENT_BYTES).unwrap();
        assert_eq!(r.committed_bytes(), 2 * EXTENT_BYTES);
        r.decommit(0).unwrap();
        assert_eq!(r.committed_bytes(), 0);
        r.commit(EXTENT_BYTES).unwrap();
        // SAFETY: extent 0 is committed again.
        unsafe { assert_eq!(byte(&r, 0).read(), 0) };
    }

    #[test]
    fn a_little_takes_little_and_keeps_its_content_when_it_grows() {
        let mut r = Reservation::new(EXTENT_BYTES).unwrap();
        let page = page_size();
        for used in [1, page, 3 * page + 1, EXTENT_BYTES - page] {
            r.commit(used).unwrap();
            assert_eq!(r.committed_bytes(), used.next_multiple_of(page));
            // SAFETY: committed, and nobody else uses it.
            unsafe { byte(&r, used - 1).write(used as u8 | 1) };
        }
        r.commit(EXTENT_BYTES).unwrap();
        assert_eq!(r.committed_bytes(), EXTENT_BYTES);
        for used in [1, page, 3 * page + 1, EXTENT_BYTES - page] {
            // SAFETY: as above.
            assert_eq!(unsafe { byte(&r, used - 1).read() }, used as u8 | 1);
        }
        // SAFETY: as above.
        assert_eq!(unsafe { byte(&r, EXTENT_BYTES - 1).read() }, 0);
        r.decommit(0).unwrap();
        r.commit(1).unwrap();
        assert_eq!(r.committed_bytes(), page);
        // SAFETY: as above.
        assert_eq!(unsafe { byte(&r, 0).read() }, 0);
    }

    #[test]
    fn a_range_that_is_kept_outlives_its_reservation() {
        let mut r = Reservation::new(EXTENT_BYTES).unwrap();
        r.commit(EXTENT_BYTES).unwrap();
        let (first, kept) = (byte(&r, 0), r.keep());
        // SAFETY: committed, and nobody else uses it.
        unsafe { first.write(7) };
        drop(r);
        // SAFETY: the range is kept, and nothing of it was decommitted.
        assert_eq!(unsafe { first.read() }, 7);
        drop(kept);
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
