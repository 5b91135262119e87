//! The processor.

use std::{collections::BTreeSet, num::NonZero, thread};

use crate::{Sysfs, SysfsError};

/// The processor as `/proc/cpuinfo` describes its first core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// "unknown" where the kernel gives no name.
    pub model: String,
    /// Features in the kernel's words: `avx2`, `avx512_vnni`, ...
    pub flags: BTreeSet<String>,
    /// Cores the kernel lists, whether this process may use them or not.
    pub cores: usize,
}

impl Cpu {
    pub fn has(&self, flag: &str) -> bool {
        self.flags.contains(flag)
    }
}

impl Sysfs {
    /// Name, features and cores of the processor.
    pub fn cpu(&self) -> Result<Cpu, SysfsError> {
        let text = self.read("proc/cpuinfo")?;
        let field = |name: &str| {
            text.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                (key.trim() == name).then(|| value.trim())
            })
        };
        let cores = text
            .lines()
            .filter(|line| line.starts_with("processor"))
            .count();
        if cores == 0 {
            let path = self.path("proc/cpuinfo");
            return Err(SysfsError::Missing {
                path,
                field: "processor",
            });
        }
        Ok(Cpu {
            model: field("model name").unwrap_or("unknown").to_owned(),
            // Arm kernels say Features.
            flags: field("flags")
                .or_else(|| field("Features"))
                .unwrap_or_default()
                .split_whitespace()
                .map(str::to_owned)
                .collect(),
            cores,
        })
    }
}

/// Cores that this process may use: its affinity mask and its cgroup's CPU quota, whichever is
/// less; 1 when neither can be read.
pub fn usable_cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::root;

    #[test]
    fn the_first_core_speaks_for_all() {
        let core = "processor\t: 0\nmodel name\t: Example 9000\nflags\t\t: fpu avx2 fma\n\n";
        let (_dir, sysfs) = root(&[("proc/cpuinfo", &core.repeat(4))]);
        let cpu = sysfs.cpu().unwrap();
        assert_eq!((cpu.model.as_str(), cpu.cores), ("Example 9000", 4));
        assert!(cpu.has("avx2") && !cpu.has("avx"));
    }

    #[test]
    fn an_empty_cpuinfo_is_an_error_and_a_bare_one_is_not() {
        assert!(root(&[("proc/cpuinfo", "")]).1.cpu().is_err());
        let cpu = root(&[("proc/cpuinfo", "processor : 0\nFeatures : asimd\n")])
            .1
            .cpu()
            .unwrap();
        assert_eq!(cpu.model, "unknown");
        assert!(cpu.has("asimd"));
    }

    #[test]
    fn this_process_may_use_a_core() {
        assert!(usable_cores() >= 1);
    }
}
