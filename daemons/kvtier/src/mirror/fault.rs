//! A disk that fails on demand.

use std::{
    io,
    sync::{Arc, Mutex},
};

use super::disk::{Disk, LocalDisk};

/// What of a disk fails, shared with the test.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    state: Arc<Mutex<State>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    write: Option<i32>,
    sync: Option<i32>,
    read: Option<i32>,
    /// Of the next write only so many bytes arrive; then it fails.
    short_write: Option<usize>,
    syncs: u64,
}

pub const ENOSPC: i32 = 28;
pub const EIO: i32 = 5;
pub const EROFS: i32 = 30;

impl Faults {
    pub fn write(&self, errno: Option<i32>) {
        self.state.lock().unwrap().write = errno;
    }

    pub fn sync(&self, errno: Option<i32>) {
        self.state.lock().unwrap().sync = errno;
    }

    pub fn read(&self, errno: Option<i32>) {
        self.state.lock().unwrap().read = errno;
    }

    pub fn cut_next_write(&self, bytes: usize) {
        self.state.lock().unwrap().short_write = Some(bytes);
    }

    pub fn syncs(&self) -> u64 {
        self.state.lock().unwrap().syncs
    }
}

/// A [`LocalDisk`] with [`Faults`].
#[derive(Debug)]
pub struct FaultyDisk {
    pub inner: LocalDisk,
    pub faults: Faults,
}

fn fail(errno: Option<i32>) -> io::Result<()> {
    errno.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
}

impl Disk for FaultyDisk {
    fn list(&mut self) -> io::Result<Vec<u64>> {
        self.inner.list()
    }

    fn create(&mut self, segment: u64) -> io::Result<()> {
        fail(self.faults.state.lock().unwrap().write)?;
        self.inner.create(segment)
    }

    fn len(&mut self, segment: u64) -> io::Result<u64> {
        self.inner.len(segment)
    }

    fn write(&mut self, segment: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let cut = self.faults.state.lock().unwrap().short_write.take();
        if let Some(cut) = cut {
            self.inner
                .write(segment, offset, &bytes[..cut.min(bytes.len())])?;
            return fail(Some(EIO));
        }
        fail(self.faults.state.lock().unwrap().write)?;
        self.inner.write(segment, offset, bytes)
    }

    fn read(&mut self, segment: u64, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        fail(self.faults.state.lock().unwrap().read)?;
        self.inner.read(segment, offset, bytes)
    }

    fn sync(&mut self, segment: u64) -> io::Result<()> {
        self.faults.state.lock().unwrap().syncs += 1;
        fail(self.faults.state.lock().unwrap().sync)?;
        self.inner.sync(segment)
    }

    fn overwrite(&mut self, segment: u64, offset: u64, bytes: u64) -> io::Result<()> {
        fail(self.faults.state.lock().unwrap().write)?;
        self.inner.overwrite(segment, offset, bytes)
    }

    fn remove(&mut self, segment: u64) -> io::Result<()> {
        fail(self.faults.state.lock().unwrap().write)?;
        self.inner.remove(segment)
    }
}
