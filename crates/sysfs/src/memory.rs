//! Memory of the machine and of its processes.

use std::path::Path;

use crate::{Sysfs, SysfsError};

/// The machine's memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    pub total_bytes: u64,
    /// What new work can take without swapping, page cache given up.
    pub available_bytes: u64,
}

/// When the kernel backs memory by transparent huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThpMode {
    Always,
    /// Only where a process asks.
    Madvise,
    Never,
}

impl Sysfs {
    /// Total and available memory (`/proc/meminfo`).
    pub fn memory(&self) -> Result<Memory, SysfsError> {
        let text = self.read("proc/meminfo")?;
        let field = |name| {
            kib_field(&text, name).ok_or(SysfsError::Missing {
                path: self.path("proc/meminfo"),
                field: name,
            })
        };
        Ok(Memory {
            total_bytes: field("MemTotal")?,
            available_bytes: field("MemAvailable")?,
        })
    }

    /// Most memory that this process and what shares its control groups may have, bytes: the machine's, or less
    /// where a group has a limit (`memory.max` of cgroup v2, `memory.limit_in_bytes` of v1).
    pub fn memory_limit_bytes(&self) -> Result<u64, SysfsError> {
        let total = self.memory()?.total_bytes;
        let groups = self.read("proc/self/cgroup").unwrap_or_default();
        let limits = groups.lines().flat_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, group) = (fields.next().unwrap_or(""), fields.next().unwrap_or(""));
            let (mount, file) = match controllers {
                "" => ("sys/fs/cgroup", "memory.max"),
                "memory" => ("sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                _ => return Vec::new(),
            };
            self.limits_above(mount, group, file)
        });
        Ok(limits.fold(total, u64::min))
    }

    /// What `file` says of a group and of each one above it, where it names a number. In a container the group may
    /// lie elsewhere; then it is the mount itself.
    fn limits_above(&self, mount: &str, group: &str, file: &str) -> Vec<u64> {
        let group = Path::new(group.trim_start_matches('/'));
        let read = |group: &Path| {
            let path = Path::new(mount).join(group).join(file);
            self.read(path.to_str()?).ok()?.trim().parse().ok()
        };
        group.ancestors().filter_map(read).collect()
    }

    /// Resident memory of process `pid` in bytes (`VmRSS`).
    pub fn process_resident_bytes(&self, pid: u32) -> Result<u64, SysfsError> {
        self.process_memory(pid, "VmRSS")
    }

    /// The most resident memory process `pid` has had so far, in bytes (`VmHWM`).
    pub fn process_resident_bytes_max(&self, pid: u32) -> Result<u64, SysfsError> {
        self.process_memory(pid, "VmHWM")
    }

    fn process_memory(&self, pid: u32, field: &'static str) -> Result<u64, SysfsError> {
        let file = format!("proc/{pid}/status");
        let text = self.read(&file)?;
        kib_field(&text, field).ok_or(SysfsError::Missing {
            path: self.path(&file),
            field,
        })
    }

    /// The transparent-huge-page mode; `None` on a kernel without them.
    pub fn thp_mode(&self) -> Option<ThpMode> {
        let text = self
            .read("sys/kernel/mm/transparent_hugepage/enabled")
            .ok()?;
        let chosen = text.split('[').nth(1)?.split(']').next()?;
        match chosen {
            "always" => Some(ThpMode::Always),
            "madvise" => Some(ThpMode::Madvise),
            "never" => Some(ThpMode::Never),
            _ => None,
        }
    }
}

/// `name:   1234 kB` in bytes.
fn kib_field(text: &str, name: &str) -> Option<u64> {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::root;

    #[test]
    fn the_tightest_of_machine_and_groups_is_the_limit() {
        let limit = |files: &[(&str, &str)]| {
            let meminfo = [("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 10 kB\n")];
            let files = [&meminfo[..], files].concat();
            let (_dir, sysfs) = root(&files);
            sysfs.memory_limit_bytes().unwrap()
        };
        assert_eq!(limit(&[]), 1_024_000);
        let v2 = [
            ("proc/self/cgroup", "0::/vitriol.slice/engine.service\n"),
            (
                "sys/fs/cgroup/vitriol.slice/engine.service/memory.max",
                "max\n",
            ),
            ("sys/fs/cgroup/vitriol.slice/memory.max", "500000\n"),
        ];
        assert_eq!(limit(&v2), 500_000);
        let v1 = [
            ("proc/self/cgroup", "5:cpu:/\n4:memory:/a\n0::/\n"),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "400000\n"),
            (
                "sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
        ];
        assert_eq!(limit(&v1), 400_000);
    }

    #[test]
    fn meminfo_is_read_in_bytes() {
        let text = "MemTotal:       16310432 kB\nMemFree:  1 kB\nMemAvailable:   12000000 kB\n";
        let (_dir, sysfs) = root(&[("proc/meminfo", text)]);
        let memory = sysfs.memory().unwrap();
        assert_eq!(memory.total_bytes, 16_310_432 * 1024);
        assert_eq!(memory.available_bytes, 12_000_000 * 1024);
    }

    #[test]
    fn a_field_that_is_not_there_is_named() {
        let (_dir, sysfs) = root(&[("proc/meminfo", "MemTotal: 5 kB\n")]);
        let error = sysfs.memory().unwrap_err().to_string();
        assert!(error.ends_with("no 'MemAvailable' in it"), "{error}");
    }

    #[test]
    fn resident_memory_of_a_process_and_of_this_one() {
        let status = "Name:\tx\nVmHWM:\t  3072 kB\nVmRSS:\t  2048 kB\n";
        let (_dir, sysfs) = root(&[("proc/7/status", status)]);
        assert_eq!(sysfs.process_resident_bytes(7).unwrap(), 2 << 20);
        assert_eq!(sysfs.process_resident_bytes_max(7).unwrap(), 3 << 20);
        assert!(sysfs.process_resident_bytes(8).is_err());
        assert!(
            Sysfs::host()
                .process_resident_bytes(std::process::id())
                .unwrap()
                > 0
        );
    }

    #[test]
    fn the_bracketed_thp_mode_is_the_chosen_one() {
        let file = "sys/kernel/mm/transparent_hugepage/enabled";
        let (_dir, sysfs) = root(&[(file, "always [madvise] never\n")]);
        assert_eq!(sysfs.thp_mode(), Some(ThpMode::Madvise));
        assert_eq!(root(&[]).1.thp_mode(), None);
    }
}
