//! Processor time: of the whole machine and of single processes.

use crate::{Sysfs, SysfsError};

/// The kernel's unit of time in /proc; fixed on every architecture this runs on.
const TICKS_PER_SECOND: f64 = 100.0;

/// Processor seconds since boot, all cores together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuTime {
    /// Computed by anybody, the kernel included.
    pub busy_s: f64,
    /// Taken by the host from this virtual machine.
    pub stolen_s: f64,
}

impl Sysfs {
    /// Time all cores have spent so far (`/proc/stat`). Resolution: 10 ms a core.
    pub fn cpu_time(&self) -> Result<CpuTime, SysfsError> {
        let text = self.read("proc/stat")?;
        let missing = || SysfsError::Missing {
            path: self.path("proc/stat"),
            field: "cpu",
        };
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "));
        let ticks: Vec<f64> = line
            .ok_or_else(missing)?
            .split_whitespace()
            .map_while(|value| value.parse().ok())
            .collect();
        // user nice system idle iowait irq softirq steal; guests are counted within user.
        match ticks[..] {
            [user, nice, system, _, _, irq, softirq, steal, ..] => Ok(CpuTime {
                busy_s: (user + nice + system + irq + softirq) / TICKS_PER_SECOND,
                stolen_s: steal / TICKS_PER_SECOND,
            }),
            _ => Err(missing()),
        }
    }

    /// Processor seconds of process `pid`, all its threads (`/proc/PID/stat`). Resolution: 10 ms.
    pub fn process_cpu_s(&self, pid: u32) -> Result<f64, SysfsError> {
        let file = format!("proc/{pid}/stat");
        let text = self.read(&file)?;
        // The name in brackets may hold anything, brackets and spaces too.
        let fields = text.rsplit_once(')').map(|(_, rest)| rest);
        let mut times = fields
            .into_iter()
            .flat_map(str::split_whitespace)
            .skip(11)
            .map_while(|value| value.parse::<f64>().ok());
        match (times.next(), times.next()) {
            (Some(user), Some(system)) => Ok((user + system) / TICKS_PER_SECOND),
            _ => Err(SysfsError::Missing {
                path: self.path(&file),
                field: "utime",
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::root;

    #[test]
    fn idle_and_waiting_is_not_busy() {
        let stat = "cpu  100 20 30 4000 500 6 7 80 90 0\ncpu0 1 2 3\n";
        let (_dir, sysfs) = root(&[("proc/stat", stat)]);
        let time = sysfs.cpu_time().unwrap();
        assert!((time.busy_s - 1.63).abs() < 1e-12, "{time:?}");
        assert!((time.stolen_s - 0.8).abs() < 1e-12);
        assert!(root(&[("proc/stat", "cpu  1 2 3\n")]).1.cpu_time().is_err());
        assert!(root(&[("proc/stat", "")]).1.cpu_time().is_err());
    }

    #[test]
    fn a_process_may_have_any_name() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 9 9 20 0 3 0 5\n";
        let (_dir, sysfs) = root(&[("proc/7/stat", stat), ("proc/8/stat", "8 (x) S 1")]);
        assert!((sysfs.process_cpu_s(7).unwrap() - 3.0).abs() < 1e-12);
        assert!(sysfs.process_cpu_s(8).is_err() && sysfs.process_cpu_s(9).is_err());
    }

    #[test]
    fn this_machine_and_this_process_have_computed_something() {
        let host = Sysfs::host();
        let own = host.process_cpu_s(std::process::id()).unwrap();
        assert!(host.cpu_time().unwrap().busy_s > own);
    }
}
