//! Where the house keeps its files: whether there is room, and whether it may write.

use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};
use vitriol_sysfs::free_bytes;
use vitriol_units::Bytes;

use super::Check;

/// A place on a disk and what has to go there.
#[derive(Clone, Debug)]
pub struct Place {
    /// The directory that stands; what is below it may not yet.
    dir: PathBuf,
    needed: u64,
    /// What moves the place elsewhere.
    variable: &'static str,
    /// `None` where the file system does not tell.
    free: Option<u64>,
    /// Places of one device share what is free.
    device: Option<u64>,
}

impl Place {
    pub fn look(dir: &Path, needed: u64, variable: &'static str) -> Self {
        let dir = standing_ancestor(dir);
        Self {
            needed,
            variable,
            free: free_bytes(&dir).ok(),
            device: dir.metadata().ok().map(|found| found.dev()),
            dir,
        }
    }
}

/// Every place must hold what goes there, together with what goes elsewhere on the same device.
pub fn judge_disk(places: &[Place]) -> Check {
    let show =
        |place: &Place, free| format!("{} free in {}", Bytes(free).rounded(), place.dir.display());
    for place in places.iter().filter(|place| place.needed > 0) {
        let beside = places.iter().filter(|other| other.device == place.device);
        let needed: u64 = beside.map(|place| place.needed).sum();
        if let Some(free) = place.free.filter(|free| *free < needed) {
            let needed = Bytes(needed).rounded();
            return Check::fail(
                "disk",
                show(place, free),
                format!("free {needed} or more, or set {}", place.variable),
            );
        }
    }
    match places
        .iter()
        .filter_map(|place| Some((place.free?, place)))
        .min_by_key(|(free, _)| *free)
    {
        None => Check::warn("disk", "free space unknown", ""),
        Some((free, place)) => Check::ok("disk", show(place, free)),
    }
}

/// Whether a file can be made in a directory, without making one that anybody sees. Asking for the
/// rights would not do: root has them all, on a read-only file system too.
pub fn try_writing(dir: &Path) -> Result<(), Errno> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    match rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR) {
        Ok(_unnamed) => Ok(()),
        // A file system without such files: the rights are all there is to ask for.
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
            rustix::fs::access(dir, rustix::fs::Access::WRITE_OK)
        }
        Err(error) => Err(error),
    }
}

/// The directory itself or the nearest one above it that exists.
pub fn standing_ancestor(dir: &Path) -> PathBuf {
    dir.ancestors()
        .find(|dir| dir.is_dir())
        .unwrap_or(Path::new("/"))
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::{super::check::Level, *};

    #[test]
    fn too_little_room_names_the_variable_of_its_own_place() {
        let place = |variable, needed, free, device| Place {
            dir: "/x".into(),
            needed,
            variable,
            free: Some(free),
            device: Some(device),
        };
        let judge = |cache: (u64, u64, u64), state: (u64, u64, u64)| {
            judge_disk(&[
                place("XDG_CACHE_HOME", cache.0, cache.1, cache.2),
                place("XDG_STATE_HOME", state.0, state.1, state.2),
            ])
        };
        assert_eq!(judge((10, 30, 1), (20, 30, 1)).level, Level::Ok);
        let state = judge((0, 19, 1), (20, 19, 1));
        assert!(
            state.remedy.ends_with("set XDG_STATE_HOME"),
            "{}",
            state.remedy
        );
        let cache = judge((10, 9, 1), (20, 100, 2));
        assert!(
            cache.remedy.ends_with("set XDG_CACHE_HOME"),
            "{}",
            cache.remedy
        );
        let together = judge((10, 29, 1), (20, 29, 1));
        assert_eq!(together.level, Level::Fail);
        assert!(
            together.remedy.starts_with("free 30 B"),
            "{}",
            together.remedy
        );
        assert_eq!(judge((10, 10, 1), (20, 20, 2)).level, Level::Ok);
    }
}
