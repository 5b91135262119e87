//! Writing and removing files, each said in one line; or only said, with --dry-run.

use std::{
    fmt,
    fs::{self, File, Permissions},
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use anyhow::Context;
use vitriol_chassis::{Exit, Failure, OrExit};

use super::layout::Layout;

/// The file system of the machine that gets the house: this one, or one in a directory.
#[derive(Debug)]
pub struct Tree<'a> {
    root: Option<&'a Path>,
    dry_run: bool,
}

impl<'a> Tree<'a> {
    pub fn new(layout: &'a Layout, dry_run: bool) -> Self {
        Self {
            root: layout.root.as_deref(),
            dry_run,
        }
    }

    /// Where `path` of that machine lies here.
    pub fn place(&self, path: &Path) -> PathBuf {
        match self.root {
            Some(root) => root.join(path.strip_prefix("/").unwrap_or(path)),
            None => path.to_owned(),
        }
    }

    /// [`place`](Self::place), to write or remove there.
    ///
    /// Errors: in another machine's tree a link on the way (69), which would lead out of the tree,
    /// into this machine.
    fn reach(&self, path: &Path) -> Result<PathBuf, Failure> {
        let place = self.place(path);
        let Some(root) = self.root else {
            return Ok(place);
        };
        let mut at = root.to_owned();
        for part in place.strip_prefix(root).unwrap_or(path).components() {
            at.push(part);
            if at.is_symlink() {
                let message = format!(
                    "write {}: {} is a symbolic link, which may lead out of the tree {}; make it a \
                     directory or file, or install on that machine itself",
                    place.display(),
                    at.display(),
                    root.display()
                );
                return Err(Failure::new(Exit::Dependency, message));
            }
        }
        Ok(place)
    }

    /// As [`reach`](Self::reach), for what is itself a link or may be one.
    fn reach_parent(&self, path: &Path) -> Result<PathBuf, Failure> {
        self.reach(path.parent().unwrap_or(path))?;
        Ok(self.place(path))
    }

    /// Whether there is anything at `path`.
    pub fn has(&self, path: &Path) -> bool {
        fs::symlink_metadata(self.place(path)).is_ok()
    }

    /// Makes `path` a file with this text, whole or not at all.
    pub fn write(&self, path: &Path, text: &str, mode: u32) -> Result<(), Failure> {
        let place = self.reach(path)?;
        let same = fs::read(&place).is_ok_and(|bytes| bytes == text.as_bytes());
        if same && has_mode(&place, mode) {
            say("kept", path);
            return Ok(());
        }
        self.replace(path, mode, |draft| draft.write_all(text.as_bytes()))
    }

    /// As [`write`](Self::write), unless something is there already, which is left; says whether.
    pub fn write_once(&self, path: &Path, text: &str, mode: u32) -> Result<bool, Failure> {
        if !self.has(path) {
            return self.write(path, text, mode).map(|()| false);
        }
        say("kept", path);
        Ok(true)
    }

    /// Makes `path` a copy of `source`, whole or not at all. A running binary goes on with the old
    /// file.
    pub fn copy(&self, source: &Path, path: &Path, mode: u32) -> Result<(), Failure> {
        let place = self.reach(path)?;
        if is_same(source, &place) && has_mode(&place, mode) {
            say("kept", path);
            return Ok(());
        }
        let mut from = File::open(source)
            .with_context(|| format!("read {}", source.display()))
            .or_exit(Exit::Dependency)?;
        self.replace(path, mode, |draft| io::copy(&mut from, draft).map(drop))
    }

    fn replace(
        &self,
        path: &Path,
        mode: u32,
        fill: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> Result<(), Failure> {
        if self.dry_run {
            say("would write", path);
            return Ok(());
        }
        let place = self.reach(path)?;
        let directory = self.make_parent(&place)?;
        let write = || -> io::Result<()> {
            // A new file under a name of its own, so never one that somebody put there or a link.
            let mut draft = tempfile::Builder::new()
                .prefix(".vitriol-new-")
                .tempfile_in(directory)?;
            fill(draft.as_file_mut())?;
            let file = draft.as_file();
            file.set_permissions(Permissions::from_mode(mode))?;
            file.sync_all()?;
            draft.persist(&place).map(drop).map_err(|error| error.error)
        };
        write()
            .with_context(|| format!("write {}", place.display()))
            .or_exit(Exit::Dependency)?;
        say("wrote", path);
        Ok(())
    }

    /// Makes `path` a link to `target`.
    pub fn link(&self, target: &Path, path: &Path) -> Result<(), Failure> {
        let place = self.reach_parent(path)?;
        if fs::read_link(&place).is_ok_and(|found| found == target) {
            say("kept", path);
            return Ok(());
        }
        if self.dry_run {
            say("would link", path);
            return Ok(());
        }
        self.make_parent(&place)?;
        if self.has(path) {
            self.remove(path)?;
        }
        symlink(target, &place)
            .with_context(|| format!("link {}", place.display()))
            .or_exit(Exit::Dependency)?;
        say("linked", path);
        Ok(())
    }

    fn make_parent<'p>(&self, place: &'p Path) -> Result<&'p Path, Failure> {
        let directory = place.parent().unwrap_or(place);
        fs::create_dir_all(directory)
            .with_context(|| format!("make directory {}", directory.display()))
            .or_exit(Exit::Dependency)?;
        Ok(directory)
    }

    /// Removes a file or link, if it is there.
    pub fn remove(&self, path: &Path) -> Result<(), Failure> {
        self.take_away(path, fs::remove_file)
    }

    /// Removes a directory with all that is in it, if it is there.
    pub fn remove_all(&self, path: &Path) -> Result<(), Failure> {
        self.take_away(path, fs::remove_dir_all)
    }

    /// Removes a directory of ours in which nobody put anything.
    pub fn remove_if_empty(&self, path: &Path) -> Result<(), Failure> {
        let mut entries = fs::read_dir(self.place(path)).into_iter().flatten();
        match entries.next() {
            None => self.take_away(path, fs::remove_dir),
            Some(_) => Ok(()),
        }
    }

    fn take_away(
        &self,
        path: &Path,
        remove: impl FnOnce(PathBuf) -> io::Result<()>,
    ) -> Result<(), Failure> {
        if !self.has(path) {
            return Ok(());
        }
        let place = self.reach_parent(path)?;
        if self.dry_run {
            say("would remove", path);
            return Ok(());
        }
        remove(place.clone())
            .with_context(|| format!("remove {}", place.display()))
            .or_exit(Exit::Dependency)?;
        say("removed", path);
        Ok(())
    }
}

/// One line a deed, with the path on the machine that gets the house.
fn say(deed: &str, path: &Path) {
    print_line(format_args!("{deed:<8} {}", path.display()));
}

/// A line for whoever reads along. Nobody must: the deed goes on where standard output is closed.
pub fn print_line(line: impl fmt::Display) {
    let _ = writeln!(io::stdout(), "{line}");
}

fn has_mode(path: &Path, mode: u32) -> bool {
    fs::metadata(path).is_ok_and(|found| found.mode() & 0o7777 == mode)
}

/// Whether two files have the same bytes; one that cannot be read is another.
fn is_same(one: &Path, other: &Path) -> bool {
    let compare = || -> io::Result<bool> {
        let (mut one, mut other) = (File::open(one)?, File::open(other)?);
        if one.metadata()?.len() != other.metadata()?.len() {
            return Ok(false);
        }
        let (mut left, mut right) = (vec![0; 1 << 20], vec![0; 1 << 20]);
        loop {
            let read = one.read(&mut left)?;
            if read == 0 {
                return Ok(true);
            }
            other.read_exact(&mut right[..read])?;
            if left[..read] != right[..read] {
                return Ok(false);
            }
        }
    };
    compare().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(root: &Path) -> Layout {
        Layout::system().below(root)
    }

    #[test]
    fn a_file_is_written_once_and_mended_when_it_differs() {
        let root = tempfile::tempdir().unwrap();
        let layout = layout(root.path());
        let tree = Tree::new(&layout, false);
        let (path, place) = (Path::new("/a/b.conf"), root.path().join("a/b.conf"));
        tree.write(path, "one", 0o644).unwrap();
        let first = fs::metadata(&place).unwrap().ino();
        tree.write(path, "one", 0o644).unwrap();
        assert_eq!(fs::metadata(&place).unwrap().ino(), first, "kept");
        fs::set_permissions(&place, Permissions::from_mode(0o600)).unwrap();
        tree.write(path, "one", 0o644).unwrap();
        assert!(has_mode(&place, 0o644));
        fs::write(&place, "damaged").unwrap();
        tree.write(path, "one", 0o644).unwrap();
        assert_eq!(fs::read_to_string(&place).unwrap(), "one");
        assert_eq!(
            fs::read_dir(root.path().join("a")).unwrap().count(),
            1,
            "no draft is left"
        );
    }

    /// Root would otherwise write into, or remove from, the machine on which it prepares another.
    #[test]
    fn a_link_never_leads_out_of_the_tree() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let layout = layout(root.path());
        let tree = Tree::new(&layout, false);
        fs::write(outside.path().join("passwd"), "theirs").unwrap();
        symlink(outside.path(), root.path().join("etc")).unwrap();
        fs::create_dir(root.path().join("usr")).unwrap();
        let file = outside.path().join("passwd");
        symlink(&file, root.path().join("usr/passwd")).unwrap();
        let (below, last) = (Path::new("/etc/passwd"), Path::new("/usr/passwd"));
        for refused in [
            tree.write(below, "ours", 0o644),
            tree.write(Path::new("/etc/new/file"), "ours", 0o644),
            tree.write(last, "ours", 0o644),
            tree.copy(&file, last, 0o644),
            tree.link(Path::new("/x"), Path::new("/etc/x")),
            tree.remove(below),
            tree.remove_all(below),
        ] {
            let failure = refused.unwrap_err();
            assert_eq!(failure.exit, Exit::Dependency);
            assert!(failure.message.contains("is a symbolic link"), "{failure}");
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "theirs");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
        // The link itself may go.
        tree.remove(last).unwrap();
        tree.remove_all(Path::new("/etc")).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "theirs");
    }

    /// A draft under a name that can be told beforehand would be written through a link put there.
    #[test]
    fn a_draft_follows_no_link() {
        let root = tempfile::tempdir().unwrap();
        let layout = layout(root.path());
        let tree = Tree::new(&layout, false);
        let theirs = root.path().join("theirs");
        fs::write(&theirs, "theirs").unwrap();
        symlink(&theirs, root.path().join("a.vitriol-new")).unwrap();
        tree.write(Path::new("/a"), "ours", 0o644).unwrap();
        assert_eq!(fs::read_to_string(&theirs).unwrap(), "theirs");
    }

    #[test]
    fn what_is_the_administrators_is_left() {
        let root = tempfile::tempdir().unwrap();
        let layout = layout(root.path());
        let tree = Tree::new(&layout, false);
        assert!(!tree.write_once(&layout.config, "ours", 0o644).unwrap());
        let place = tree.place(&layout.config);
        fs::write(&place, "theirs").unwrap();
        assert!(tree.write_once(&layout.config, "ours", 0o644).unwrap());
        assert_eq!(fs::read_to_string(&place).unwrap(), "theirs");
    }

    #[test]
    fn a_dry_run_changes_nothing() {
        let root = tempfile::tempdir().unwrap();
        let layout = layout(root.path());
        let tree = Tree::new(&layout, true);
        let source = root.path().join("source");
        fs::write(&source, "x").unwrap();
        tree.write(Path::new("/a"), "one", 0o644).unwrap();
        tree.copy(&source, Path::new("/b"), 0o755).unwrap();
        tree.link(Path::new("/x"), Path::new("/c")).unwrap();
        tree.remove(Path::new("/source")).unwrap();
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
        assert!(source.exists());
    }

    #[test]
    fn a_copy_is_compared_by_its_bytes() {
        let root = tempfile::tempdir().unwrap();
        let layout = layout(root.path());
        let tree = Tree::new(&layout, false);
        let (source, place) = (root.path().join("source"), root.path().join("bin/x"));
        let bytes: Vec<u8> = (0..3_000_000u32).map(|i| i as u8).collect();
        fs::write(&source, &bytes).unwrap();
        tree.copy(&source, Path::new("/bin/x"), 0o755).unwrap();
        assert!(is_same(&source, &place) && has_mode(&place, 0o755));
        let mut damaged = bytes.clone();
        damaged[2_999_999] ^= 1;
        fs::write(&place, &damaged).unwrap();
        assert!(!is_same(&source, &place));
        tree.copy(&source, Path::new("/bin/x"), 0o755).unwrap();
        assert!(is_same(&source, &place));
    }

    #[test]
    fn an_error_names_the_file_and_removing_twice_is_none() {
        let root = tempfile::tempdir().unwrap();
        let layout = layout(root.path());
        let tree = Tree::new(&layout, false);
        fs::write(root.path().join("etc"), "a file where a directory must be").unwrap();
        let failure = tree.write(&layout.config, "x", 0o644).unwrap_err();
        assert_eq!(failure.exit, Exit::Dependency);
        assert!(failure.message.contains("etc/vitriol"), "{failure}");
        tree.remove(Path::new("/etc")).unwrap();
        tree.remove(Path::new("/etc")).unwrap();
        tree.write(&layout.config, "x", 0o644).unwrap();
        tree.remove_if_empty(Path::new("/etc")).unwrap();
        assert!(tree.has(&layout.config));
    }
}
