//! Memory of the machine and of its processes.

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
