//! The checks. Each looks, changes nothing, and says what helps.

use std::{
    ffi::OsString,
    net::TcpListener,
    path::{Path, PathBuf},
};

use vitriol_ipc::HouseDirs;
use vitriol_profile::{
    Isa, Profile,
    budget::{Balance, Budget},
    catalog::{self, KnownModel},
};
use vitriol_sysfs::{Cpu, Memory, Sysfs, ThpMode, usable_cores};
use vitriol_units::Bytes;

use super::{
    Check,
    storage::{Place, judge_disk, standing_ancestor, try_writing},
};
use crate::model::{
    digest::digest_file,
    python::{can_make_venv, find_python},
};

/// Decisions and logs at their default bounds.
const STATE_BYTES: u64 = 192 << 20;

/// What `sun_path` holds.
const SOCKET_PATH_MAX: usize = 107;

/// What is looked at.
pub struct Subject {
    pub profile: Profile,
    /// The file of the engine's model.
    pub model: PathBuf,
    pub dirs: HouseDirs,
    pub sysfs: Sysfs,
    pub search_path: Option<OsString>,
    /// Where the daemons' binaries should be.
    pub bin_dir: PathBuf,
    /// The pid of the house's own Demiurge, when it runs.
    pub running: Option<u32>,
}

impl Subject {
    pub fn check_all(&self) -> Vec<Check> {
        let model = &self.model;
        vec![
            self.check_profile(),
            self.check_binaries(),
            self.check_cpu(),
            self.check_memory(model),
            self.check_model(model),
            self.check_disk(model),
            self.check_state(),
            self.check_port(),
            self.check_sockets(),
            self.check_python(model),
        ]
    }

    fn check_binaries(&self) -> Check {
        let needed = [
            "vitriol-engine",
            "vitriol-demiurge",
            "vitriol-oom-shield",
            "vitriol-persist",
        ];
        let tier = self.profile.kvtier.enabled.then_some("vitriol-kvtier");
        let missing: Vec<&str> = needed
            .into_iter()
            .chain(tier)
            .filter(|name| !self.bin_dir.join(name).is_file())
            .collect();
        if missing.is_empty() {
            return Check::ok("binaries", format!("{}", self.bin_dir.display()));
        }
        let found = format!("{} not in {}", missing.join(", "), self.bin_dir.display());
        Check::fail("binaries", found, "build them: cargo build --release")
    }

    fn check_cpu(&self) -> Check {
        let cpu = match self.sysfs.cpu() {
            Ok(cpu) => cpu,
            Err(error) => return Check::warn("cpu", error.to_string(), "mount /proc"),
        };
        let asked = self
            .profile
            .engine("main")
            .map_or(Isa::Auto, |engine| engine.isa);
        let best = best_isa(&cpu);
        let found = format!(
            "{}, {} of {} cores usable",
            cpu.model,
            usable_cores(),
            cpu.cores
        );
        match asked {
            Isa::Auto if matches!(best, Isa::Scalar | Isa::Sse41) => Check::warn(
                "cpu",
                format!("{found}, {best} kernels"),
                "a CPU with AVX2 and FMA computes several times as fast",
            ),
            Isa::Auto => Check::ok("cpu", format!("{found}, {best} kernels")),
            asked if can_run(&cpu, asked) => Check::ok("cpu", format!("{found}, {asked} kernels")),
            asked => Check::fail(
                "cpu",
                format!("{found}, but no {asked}"),
                format!("set engine.main.isa to 'auto' or '{best}'"),
            ),
        }
    }

    fn check_memory(&self, model: &Path) -> Check {
        let memory = match self.sysfs.memory() {
            Ok(memory) => memory,
            Err(error) => return Check::warn("memory", error.to_string(), "mount /proc"),
        };
        let known = catalog::find(None).map_or(0, |known| known.bytes);
        let weights = model.metadata().map_or(known, |found| found.len());
        let budget = Budget::of(&self.profile, "main", weights);
        judge_memory(memory, budget, self.sysfs.thp_mode())
    }

    fn check_model(&self, model: &Path) -> Check {
        let Ok(found) = model.metadata() else {
            let remedy = match model == self.dirs.default_model() {
                true => "fetch it: vitriol model fetch",
                false => "correct engine.main.model in the profile",
            };
            return Check::fail("model", format!("{}: not found", model.display()), remedy);
        };
        if !found.is_file() {
            let found = format!("{} is not a regular file", model.display());
            return Check::fail("model", found, "name another file with engine.main.model");
        }
        let size = Bytes(found.len()).rounded();
        let name = model
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        match catalog::by_file(name) {
            Some(known) => judge_digest(model, known),
            None => match vitriol_gguf::Gguf::open(model) {
                Ok(gguf) => Check::ok(
                    "model",
                    format!(
                        "{} ({size}), architecture {}",
                        model.display(),
                        gguf.architecture().unwrap_or("not named")
                    ),
                ),
                Err(error) => {
                    let remedy = "name another file with engine.main.model";
                    Check::fail("model", error.to_string(), remedy)
                }
            },
        }
    }

    fn check_disk(&self, model: &Path) -> Check {
        let fetch = match model.exists() {
            true => 0,
            // The package, and the model that is unpacked from it.
            false => catalog::find(None).map_or(0, |known| known.bytes * 2),
        };
        let places = [
            Place::look(&self.dirs.cache, fetch, "XDG_CACHE_HOME"),
            Place::look(&self.dirs.state, STATE_BYTES, "XDG_STATE_HOME"),
        ];
        judge_disk(&places)
    }

    /// Decisions and logs must find a directory that can be written; `up` makes what is missing.
    fn check_state(&self) -> Check {
        let remedy = "make it writable for this user, or set XDG_STATE_HOME to a directory that is";
        let state = &self.dirs.state;
        let logs = self.dirs.log("engine");
        for dir in [state.as_path(), logs.parent().unwrap_or(state)] {
            if dir.exists() && !dir.is_dir() {
                let found = format!("{} is no directory", dir.display());
                return Check::fail("state", found, "move it away, or set XDG_STATE_HOME");
            }
            let standing = standing_ancestor(dir);
            if let Err(error) = try_writing(&standing) {
                let found = format!("{} cannot be written: {error}", standing.display());
                return Check::fail("state", found, remedy);
            }
        }
        for file in [self.dirs.decisions(), logs, self.dirs.log("demiurge")] {
            let writable = rustix::fs::access(&file, rustix::fs::Access::WRITE_OK);
            if let Err(error) = writable
                && file.exists()
            {
                let found = format!("{} cannot be written: {error}", file.display());
                return Check::fail("state", found, remedy);
            }
        }
        Check::ok("state", format!("{}", state.display()))
    }

    /// What `up` and `config check` say of the profile.
    fn check_profile(&self) -> Check {
        match self.profile.check_runnable() {
            Ok(()) => Check::ok("profile", "this release can run it"),
            Err(error) => {
                let said = error.to_string();
                let (found, remedy) = said.split_once("; ").unwrap_or((&said, ""));
                Check::fail("profile", found, remedy)
            }
        }
    }

    fn check_port(&self) -> Check {
        let listen = self.profile.house.listen;
        let Err(error) = TcpListener::bind(listen) else {
            return Check::ok("port", format!("{listen} is free"));
        };
        match self.sysfs.port_holder(listen.port()) {
            Some(holder) if Some(holder.pid) == self.running => {
                Check::ok("port", format!("{listen} is held by this house, {holder}"))
            }
            Some(holder) => Check::fail(
                "port",
                format!("{listen} is held by {holder}"),
                "stop it, or choose another address with --listen",
            ),
            None => Check::fail(
                "port",
                format!("{listen}: {error}"),
                "choose another address with --listen",
            ),
        }
    }

    fn check_sockets(&self) -> Check {
        let socket = self.dirs.engine_socket("main");
        let length = socket.as_os_str().len();
        if length > SOCKET_PATH_MAX {
            return Check::fail(
                "sockets",
                format!("{} is longer than the kernel takes", socket.display()),
                "set XDG_RUNTIME_DIR to a shorter directory",
            );
        }
        let dir = standing_ancestor(&self.dirs.runtime);
        let writable = rustix::fs::access(&dir, rustix::fs::Access::WRITE_OK).is_ok();
        match writable {
            true => Check::ok("sockets", format!("{}", self.dirs.runtime.display())),
            false => Check::fail(
                "sockets",
                format!("{} is not writable", dir.display()),
                "set XDG_RUNTIME_DIR to a directory of your own",
            ),
        }
    }

    /// Python is needed to fetch a model and for nothing else.
    fn check_python(&self, model: &Path) -> Check {
        let lacking = |found: String, remedy: &str| match model.exists() {
            true => Check::ok(
                "python",
                format!("{found}; needed only for 'vitriol model fetch'"),
            ),
            false => Check::fail("python", found, remedy),
        };
        match find_python(self.search_path.as_deref()) {
            None => lacking("no python3".into(), "apt install python3 python3-venv"),
            Some(python) if can_make_venv(&python) => {
                Check::ok("python", format!("{} with venv", python.display()))
            }
            Some(python) => lacking(
                format!("{} without venv", python.display()),
                "apt install python3-venv",
            ),
        }
    }
}

/// The features that the kernels of an instruction set are built with, in the kernel's words.
fn can_run(cpu: &Cpu, isa: Isa) -> bool {
    const AVX2: &[&str] = &["avx2", "fma", "f16c"];
    const AVX512: &[&str] = &["avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"];
    let has_avx2 = || AVX2.iter().all(|flag| cpu.has(flag));
    match isa {
        Isa::Auto | Isa::Scalar => true,
        Isa::Sse41 => cpu.has("ssse3") && cpu.has("sse4_1"),
        Isa::Avx2 => has_avx2(),
        Isa::AvxVnni => has_avx2() && cpu.has("avx_vnni"),
        Isa::Avx512 => has_avx2() && AVX512.iter().all(|flag| cpu.has(flag)),
    }
}

fn best_isa(cpu: &Cpu) -> Isa {
    [Isa::Avx512, Isa::AvxVnni, Isa::Avx2, Isa::Sse41]
        .into_iter()
        .find(|isa| can_run(cpu, *isa))
        .unwrap_or(Isa::Scalar)
}

/// What is taken at the start must fit; of the KV pages, which grow as they are used, all should.
fn judge_memory(memory: Memory, budget: Budget, thp: Option<ThpMode>) -> Check {
    let huge_pages = match thp {
        Some(ThpMode::Always | ThpMode::Madvise) => ", huge pages",
        _ => "",
    };
    let found = format!(
        "{} of {} available{huge_pages}; the house takes {} to {} ({})",
        Bytes(memory.available_bytes).rounded(),
        Bytes(memory.total_bytes).rounded(),
        Bytes(budget.least()).rounded(),
        Bytes(budget.most()).rounded(),
        budget.terms(),
    );
    match budget.balance(memory.available_bytes) {
        Balance::Closes => Check::ok("memory", found),
        Balance::Tight { remedy } => Check::warn("memory", found, remedy),
        Balance::Short { bytes, remedy } => {
            let found = format!("{found}: {} too much", Bytes(bytes).rounded());
            Check::fail("memory", found, remedy)
        }
    }
}

fn judge_digest(model: &Path, known: &KnownModel) -> Check {
    match digest_file(model) {
        Ok(digested) if digested.sha256 == known.sha256 => {
            let size = Bytes(digested.bytes).rounded();
            Check::ok(
                "model",
                format!("{} ({size}, sha256 right)", model.display()),
            )
        }
        Ok(_) => Check::fail(
            "model",
            format!("{}: damaged, its sha256 is wrong", model.display()),
            format!("fetch it again: vitriol model fetch {}", known.name),
        ),
        Err(error) => Check::fail(
            "model",
            format!("{}: cannot be read: {error}", model.display()),
            "make it readable for this user",
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{super::check::Level, *};

    fn subject(root: &Path, profile: Profile) -> Subject {
        let dirs = HouseDirs {
            runtime: root.join("run"),
            state: root.join("state"),
            cache: root.join("cache"),
        };
        Subject {
            profile,
            model: dirs.default_model(),
            dirs,
            sysfs: Sysfs::host(),
            search_path: None,
            bin_dir: root.join("bin"),
            running: None,
        }
    }

    fn default_subject() -> (tempfile::TempDir, Subject) {
        let root = tempfile::tempdir().unwrap();
        let subject = subject(root.path(), Profile::default());
        (root, subject)
    }

    fn cpu(flags: &str) -> Cpu {
        let flags = flags.split_whitespace().map(str::to_owned).collect();
        Cpu {
            model: "x".into(),
            flags,
            cores: 1,
        }
    }

    #[test]
    fn kernels_follow_the_cpus_features() {
        assert_eq!(best_isa(&cpu("sse2 ssse3 avx")), Isa::Scalar);
        assert_eq!(best_isa(&cpu("sse2 ssse3 sse4_1 avx")), Isa::Sse41);
        assert_eq!(best_isa(&cpu("avx2 fma f16c")), Isa::Avx2);
        assert_eq!(best_isa(&cpu("avx2 fma f16c avx512f")), Isa::Avx2);
        assert_eq!(best_isa(&cpu("avx2 fma f16c avx_vnni")), Isa::AvxVnni);
        // Skylake-X: AVX-512 without the int8 dot product.
        let wide = "avx2 fma f16c avx512f avx512bw avx512vl avx512dq";
        assert_eq!(best_isa(&cpu(wide)), Isa::Avx2);
        assert_eq!(best_isa(&cpu(&format!("{wide} avx512_vnni"))), Isa::Avx512);
    }

    #[test]
    fn memory_is_judged_against_weights_and_kv() {
        let judge = |available_mib: u64| {
            let memory = Memory {
                total_bytes: 8 << 30,
                available_bytes: available_mib << 20,
            };
            let budget = Budget {
                weights: 100 << 20,
                overhead: 256 << 20,
                arena: 0,
                kv: 1 << 30,
            };
            judge_memory(memory, budget, None)
        };
        assert_eq!(judge(2048).level, Level::Ok);
        let warn = judge(868);
        assert_eq!(warn.level, Level::Warn);
        assert!(
            warn.remedy.ends_with("kv_bytes_max to at most '512 MiB'"),
            "{}",
            warn.remedy
        );
        assert_eq!(judge(300).level, Level::Fail);
    }

    #[test]
    fn a_bare_machine_lacks_binaries_model_and_python() {
        let (_root, subject) = default_subject();
        let model = subject.model.clone();
        assert_eq!(subject.check_binaries().level, Level::Fail);
        let check = subject.check_model(&model);
        assert_eq!(
            (check.level, check.remedy.as_str()),
            (Level::Fail, "fetch it: vitriol model fetch")
        );
        assert_eq!(subject.check_python(&model).level, Level::Fail);
        assert_eq!(subject.check_sockets().level, Level::Ok);
    }

    #[test]
    fn a_damaged_model_is_found_and_python_no_longer_missed() {
        let (_root, subject) = default_subject();
        let model = subject.model.clone();
        fs::create_dir_all(model.parent().unwrap()).unwrap();
        fs::write(&model, "rot").unwrap();
        assert!(subject.check_model(&model).found.contains("damaged"));
        assert_eq!(subject.check_python(&model).level, Level::Ok);
    }

    #[test]
    fn a_device_in_the_models_place_is_not_read() {
        let (_root, mut subject) = default_subject();
        subject.model = "/dev/zero".into();
        let check = subject.check_model(&subject.model);
        assert_eq!(check.level, Level::Fail);
        assert!(
            check.found.contains("not a regular file"),
            "{}",
            check.found
        );
    }

    #[test]
    fn a_held_port_is_the_houses_own_or_a_strangers() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let root = tempfile::tempdir().unwrap();
        let mut profile = Profile::default();
        profile.house.listen = listener.local_addr().unwrap();
        let mut subject = subject(root.path(), profile);
        let check = subject.check_port();
        assert_eq!(check.level, Level::Fail);
        assert!(
            check.found.contains(&std::process::id().to_string()),
            "{}",
            check.found
        );
        subject.running = Some(std::process::id());
        assert_eq!(subject.check_port().level, Level::Ok);
    }

    #[test]
    fn the_doctor_says_of_a_profile_what_up_says() {
        let root = tempfile::tempdir().unwrap();
        let mut profile = Profile::default();
        assert_eq!(
            subject(root.path(), profile.clone()).check_profile().level,
            Level::Ok
        );
        profile.house.listen = "0.0.0.0:8265".parse().unwrap();
        let check = subject(root.path(), profile).check_profile();
        assert_eq!(check.level, Level::Fail);
        assert!(
            check.found.contains("from other machines"),
            "{}",
            check.found
        );
        assert!(
            check.remedy.starts_with("listen on 127.0.0.1"),
            "{}",
            check.remedy
        );
    }

    #[test]
    fn a_state_directory_that_cannot_be_written_is_noticed() {
        let (root, subject) = default_subject();
        assert_eq!(
            subject.check_state().level,
            Level::Ok,
            "it need not stand yet"
        );
        // A file in its way, or in the logs'.
        fs::write(&subject.dirs.state, "").unwrap();
        let check = subject.check_state();
        assert_eq!(check.level, Level::Fail);
        assert!(check.remedy.contains("XDG_STATE_HOME"), "{}", check.remedy);
        fs::remove_file(&subject.dirs.state).unwrap();
        fs::create_dir(&subject.dirs.state).unwrap();
        fs::write(subject.dirs.state.join("log"), "").unwrap();
        assert_eq!(subject.check_state().level, Level::Fail);
        fs::remove_file(subject.dirs.state.join("log")).unwrap();
        assert_eq!(subject.check_state().level, Level::Ok);
        assert_eq!(
            fs::read_dir(root.path()).unwrap().count(),
            1,
            "nothing is left"
        );

        // What may be read and not written, which root may all the same (tests/cli.rs has a
        // read-only file system for root).
        if !rustix::process::getuid().is_root() {
            use std::os::unix::fs::PermissionsExt;
            fs::set_permissions(&subject.dirs.state, fs::Permissions::from_mode(0o500)).unwrap();
            let check = subject.check_state();
            fs::set_permissions(&subject.dirs.state, fs::Permissions::from_mode(0o700)).unwrap();
            assert_eq!(check.level, Level::Fail);
        }
    }

    #[test]
    fn a_socket_path_beyond_the_kernels_limit_is_found_beforehand() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("x".repeat(100));
        assert_eq!(
            subject(&deep, Profile::default()).check_sockets().level,
            Level::Fail
        );
    }
}
