use std::{
    ffi::c_void,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::atomic::{Ordering, fence},
};

use rustix::{
    fs::{
        FallocateFlags, MemfdFlags, SealFlags, SeekFrom, fallocate, fcntl_add_seals,
        fcntl_get_seals, fstat, seek,
    },
    io::Errno,
    mm::{self, Advice, MapFlags, MlockFlags, ProtFlags},
};

use crate::EXTENT_BYTES;

/// Its size can never change, so no access behind its end (SIGBUS) can come of a peer that cuts it off.
const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Why shared memory could not be made or taken over.
#[derive(Debug, thiserror::Error)]
pub enum MemfdError {
    #[error("shared memory of {bytes} bytes: cannot {operation}")]
    Create {
        bytes: usize,
        operation: &'static str,
        source: io::Error,
    },
    #[error("shared memory that was handed over: cannot {operation}")]
    TakeOver {
        operation: &'static str,
        source: io::Error,
    },
    #[error("what was handed over as shared memory can change its size")]
    NotSealed,
    #[error("what was handed over as shared memory is empty")]
    Empty,
    #[error("{bytes} bytes of shared memory at {offset}: cannot {operation}")]
    Part {
        bytes: usize,
        offset: usize,
        operation: &'static str,
        source: io::Error,
    },
}

/// The pages that a [`Memfd`] got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    /// Of 2 MiB, from the machine's reserve (`vm.nr_hugepages`).
    pub huge: bool,
    /// Not to be swapped out (`RLIMIT_MEMLOCK` allowed it).
    pub locked: bool,
}

/// Memory that processes share by a file descriptor, mapped whole.
///
/// Parts of it can be given back to the machine and taken again ([`Memfd::give_back`]); whoever maps it sees
/// zeroes there. It lives as long as anybody holds the descriptor or a mapping. Others may write any byte at any
/// moment, so it is only ever copied in and out, and what is copied out is checked by who wants to
/// believe it.
#[derive(Debug)]
pub struct Memfd {
    file: OwnedFd,
    start: NonNull<c_void>,
    len: usize,
    pages: Pages,
}

// SAFETY: the mapping belongs to this value until Drop; its bytes are accessed by copies through raw
// pointers alone, never by reference.
unsafe impl Send for Memfd {}
// SAFETY: as above; two threads that copy the same bytes race as two processes do, and what they get
// is bytes that mean nothing before a checksum says so.
unsafe impl Sync for Memfd {}

impl Memfd {
    /// At least `bytes` of zeroes, rounded up to whole extents, of fixed size. All of it is there and
    /// charged to this process when the call returns. Huge pages and a lock in memory are tried for;
    /// [`Memfd::pages`] tells.
    ///
    /// Errors: it is more than the machine has, or the kernel refuses. Of more than is free the kernel
    /// mostly gives until its OOM killer ends somebody, so whoever calls asks first what is available.
    pub fn create(name: &str, bytes: usize) -> Result<Self, MemfdError> {
        let failed = |operation| {
            move |source: Errno| MemfdError::Create {
                bytes,
                operation,
                source: source.into(),
            }
        };
        let len = bytes
            .max(1)
            .checked_next_multiple_of(EXTENT_BYTES)
            .ok_or_else(|| failed("round up")(Errno::OVERFLOW))?;
        // The kernel gives shared memory page by page and never says that it is too much.
        let machine = rustix::system::sysinfo();
        let total = (machine.totalram as u64).saturating_mul(machine.mem_unit.into());
        if len as u64 > total {
            return Err(failed("find as much memory")(Errno::NOMEM));
        }
        let allocate = |flags: MemfdFlags| -> Result<OwnedFd, MemfdError> {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | flags;
            let file = rustix::fs::memfd_create(name, flags).map_err(failed("make it"))?;
            // Allocated here: a page that were missing later would be a SIGBUS at a write.
            rustix::fs::ftruncate(&file, len as u64).map_err(failed("set its size"))?;
            fallocate(&file, FallocateFlags::empty(), 0, len as u64).map_err(failed("fill it"))?;
            fcntl_add_seals(&file, SIZE_SEALS | SealFlags::SEAL).map_err(failed("seal it"))?;
            Ok(file)
        };
        // Most machines keep no huge pages; then ordinary ones do.
        let (file, huge) = match allocate(MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB) {
            Ok(file) => (file, true),
            Err(_) => (allocate(MemfdFlags::empty())?, false),
        };
        let start = map(&file, len).map_err(failed("map it"))?;
        let memory = Self::with(file, start, len, huge);
        memory.populate(0, len);
        Ok(memory)
    }

    /// Takes over what [`Memfd::create`] made in another process, or in this one before a restart. What was
    /// given back stays so.
    ///
    /// Errors: it is empty, or its size is not sealed.
    pub fn take_over(file: OwnedFd) -> Result<Self, MemfdError> {
        let failed = |operation| {
            move |source: Errno| MemfdError::TakeOver {
                operation,
                source: source.into(),
            }
        };
        let seals = fcntl_get_seals(&file).map_err(failed("read its seals"))?;
        if !seals.contains(SIZE_SEALS) {
            return Err(MemfdError::NotSealed);
        }
        let stat = fstat(&file).map_err(failed("read its size"))?;
        let len =
            usize::try_from(stat.st_size).map_err(|_| failed("map as much")(Errno::OVERFLOW))?;
        if len == 0 {
            return Err(MemfdError::Empty);
        }
        let huge = stat.st_blksize as usize >= EXTENT_BYTES;
        let start = map(&file, len).map_err(failed("map it"))?;
        let memory = Self::with(file, start, len, huge);
        let mut at = 0;
        while let Some(data) = memory.data_from(at) {
            let hole = seek(&memory.file, SeekFrom::Hole(data as u64));
            at = hole.map_or(len, |hole| hole as usize);
            memory.populate(data, at - data);
        }
        Ok(memory)
    }

    fn with(file: OwnedFd, start: NonNull<c_void>, len: usize, huge: bool) -> Self {
        // SAFETY: the range was just mapped. Advice and locking change no byte; refusals (kernel
        // without them, limits) cost speed only.
        let locked = unsafe {
            if !huge {
                let _ = mm::madvise(start.as_ptr(), len, Advice::LinuxHugepage);
            }
            // Pages as they come: what was given back must not come by this.
            mm::mlock_with(start.as_ptr(), len, MlockFlags::ONFAULT).is_ok()
        };
        Self {
            file,
            start,
            len,
            pages: Pages { huge, locked },
        }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// Gives the memory of a range, whole pages, back to the machine: it is zero for everybody who maps it, and
    /// what is written there takes memory again. Of huge pages none is given back, since the machine has no
    /// other use for its reserve of them.
    ///
    /// Errors: they are huge (`Unsupported`), or the kernel refuses; nothing changed then.
    /// Panics: the range lies outside.
    pub fn give_back(&self, offset: usize, bytes: usize) -> Result<(), MemfdError> {
        self.check(offset, bytes);
        let punched = match self.pages.huge {
            true => Err(io::ErrorKind::Unsupported.into()),
            false => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let punched = fallocate(&self.file, flags, offset as u64, bytes as u64);
                punched.map_err(io::Error::from)
            }
        };
        punched.map_err(|source| MemfdError::Part {
            bytes,
            offset,
            operation: "give it back",
            source,
        })
    }

    /// Takes memory for a range that was given back, so that nobody who writes there waits or dies for want
    /// of it.
    ///
    /// Errors: the machine has none left. Panics: the range lies outside.
    pub fn take_again(&self, offset: usize, bytes: usize) -> Result<(), MemfdError> {
        self.check(offset, bytes);
        let taken = fallocate(
            &self.file,
            FallocateFlags::empty(),
            offset as u64,
            bytes as u64,
        );
        taken.map_err(|source| MemfdError::Part {
            bytes,
            offset,
            operation: "take it again",
            source: source.into(),
        })?;
        self.populate(offset, bytes);
        Ok(())
    }

    /// Whether all of a range was given back.
    pub fn is_given_back(&self, offset: usize, bytes: usize) -> bool {
        self.data_from(offset)
            .is_none_or(|data| data >= offset.saturating_add(bytes))
    }

    /// Bytes of memory that it takes.
    ///
    /// Errors: the kernel does not say.
    pub fn held_bytes(&self) -> io::Result<u64> {
        // In blocks of 512 bytes, whatever the file system's are.
        Ok(fstat(&self.file)?.st_blocks as u64 * 512)
    }

    /// Where memory is that was not given back, from `offset` on.
    fn data_from(&self, offset: usize) -> Option<usize> {
        // The position that this moves is nobody's: nothing reads or writes the file by its descriptor.
        let data = seek(&self.file, SeekFrom::Data(offset as u64)).ok()?;
        usize::try_from(data).ok()
    }

    /// Maps the pages of a range now, so that no access waits for it.
    fn populate(&self, offset: usize, bytes: usize) {
        self.check(offset, bytes);
        // SAFETY: the range lies inside the mapping. No byte changes; a refusal costs speed only.
        unsafe {
            let at = self.start.as_ptr().cast::<u8>().add(offset);
            let _ = mm::madvise(at.cast(), bytes, Advice::LinuxPopulateWrite);
        }
    }

    /// Copies `bytes` to `offset`. What was copied in before is visible to others before this is.
    ///
    /// Panics: the range lies outside.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) {
        self.check(offset, bytes.len());
        fence(Ordering::Release);
        // SAFETY: the range lies inside the mapping, and `bytes`, a reference, cannot lie in it.
        unsafe {
            let to = self.start.as_ptr().cast::<u8>().add(offset);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        fence(Ordering::Release);
    }

    /// Copies from `offset` into `bytes`. What is copied out later is not older than this.
    ///
    /// Panics: the range lies outside.
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        self.check(offset, bytes.len());
        fence(Ordering::Acquire);
        // SAFETY: the range lies inside the mapping, and `bytes`, a reference, cannot lie in it.
        unsafe {
            let from = self.start.as_ptr().cast::<u8>().add(offset);
            std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len());
        }
        fence(Ordering::Acquire);
    }

    fn check(&self, offset: usize, len: usize) {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(inside, "{len} bytes at {offset} of {}", self.len);
    }
}

fn map(file: &OwnedFd, len: usize) -> Result<NonNull<c_void>, Errno> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping chosen by the kernel aliases no Rust object; `file` is open, `len` > 0.
    let start = unsafe { mm::mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, file, 0) }?;
    NonNull::new(start).ok_or(Errno::NOMEM)
}

impl AsFd for Memfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Memfd {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by this value and nothing refers into it.
        let unmapped = unsafe { mm::munmap(self.start.as_ptr(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap of shared memory: {unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn out(memory: &Memfd, offset: usize) -> [u8; 3] {
        let mut bytes = [0; 3];
        memory.copy_out(offset, &mut bytes);
        bytes
    }

    #[test]
    fn two_mappings_of_one_descriptor_are_the_same_memory() {
        let one = Memfd::create("test", EXTENT_BYTES + 1).unwrap();
        assert_eq!(one.len(), 2 * EXTENT_BYTES);
        let two = Memfd::take_over(one.as_fd().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(two.pages().huge, one.pages().huge);
        let last = one.len() - 3;
        assert_eq!(out(&two, last), [0; 3]);
        one.copy_in(last, b"abc");
        drop(one);
        assert_eq!(&out(&two, last), b"abc");
    }

    #[test]
    fn what_is_given_back_is_zero_and_the_machines_until_it_is_taken_again() {
        let one = Memfd::create("test", 4 * EXTENT_BYTES).unwrap();
        one.copy_in(EXTENT_BYTES, b"abc");
        one.copy_in(2 * EXTENT_BYTES, b"def");
        let second = (EXTENT_BYTES, EXTENT_BYTES);
        if one.pages().huge {
            let refused = one.give_back(second.0, second.1);
            assert!(matches!(refused, Err(MemfdError::Part { .. })));
            return;
        }
        let all = one.held_bytes().unwrap();
        assert_eq!(all, 4 * EXTENT_BYTES as u64);
        assert!(!one.is_given_back(second.0, second.1));
        one.give_back(second.0, second.1).unwrap();
        assert_eq!(one.held_bytes().unwrap(), all - EXTENT_BYTES as u64);
        // Nor does taking it over bring it back.
        let two = Memfd::take_over(one.as_fd().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(two.held_bytes().unwrap(), all - EXTENT_BYTES as u64);
        assert!(two.is_given_back(second.0, second.1) && !two.is_given_back(0, 2 * EXTENT_BYTES));
        two.take_again(second.0, second.1).unwrap();
        assert!(!one.is_given_back(second.0, second.1));
        assert_eq!(one.held_bytes().unwrap(), all);
        assert_eq!(out(&one, EXTENT_BYTES), [0; 3]);
        assert_eq!(&out(&one, 2 * EXTENT_BYTES), b"def");
    }

    #[test]
    fn its_size_is_fixed() {
        let memory = Memfd::create("test", 1).unwrap();
        for size in [0, 2 * memory.len() as u64] {
            assert_eq!(rustix::fs::ftruncate(&memory, size), Err(Errno::PERM));
        }
    }

    #[test]
    fn more_than_the_machine_has_is_refused_before_any_is_taken() {
        for bytes in [1 << 60, usize::MAX] {
            let refused = Memfd::create("test", bytes);
            assert!(matches!(refused, Err(MemfdError::Create { .. })));
        }
    }

    #[test]
    fn what_can_be_cut_off_is_not_taken_over() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("test", flags).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        assert!(matches!(Memfd::take_over(file), Err(MemfdError::NotSealed)));
        let plain = tempfile::tempfile().unwrap();
        assert!(Memfd::take_over(plain.into()).is_err());
    }

    #[test]
    #[should_panic(expected = "4 bytes at 2097149")]
    fn a_range_outside_is_a_fault_of_ours() {
        Memfd::create("test", 1)
            .unwrap()
            .copy_out(EXTENT_BYTES - 3, &mut [0; 4]);
    }
}
