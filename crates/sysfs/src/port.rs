//! Who listens on a TCP port.

use std::{fmt, fs};

use crate::Sysfs;

/// A process that listens on a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortHolder {
    pub pid: u32,
    /// The kernel's short name of it.
    pub name: String,
    /// Its systemd unit, when it runs in one.
    pub unit: Option<String>,
}

impl fmt::Display for PortHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({}", self.pid, self.name)?;
        if let Some(unit) = &self.unit {
            write!(f, ", unit {unit}")?;
        }
        f.write_str(")")
    }
}

/// Connection state "listening" in /proc/net/tcp.
const LISTEN: &str = "0A";

impl Sysfs {
    /// The process that listens on TCP `port`, on any address of either family. `None` when nobody
    /// does, or when it is another user's process, whose sockets this one may not see.
    pub fn port_holder(&self, port: u16) -> Option<PortHolder> {
        let inode = ["proc/net/tcp", "proc/net/tcp6"]
            .iter()
            .filter_map(|file| self.read(file).ok())
            .find_map(|table| listening_inode(&table, port))?;
        let pid = self.socket_owner(inode)?;
        let name = self
            .read(&format!("proc/{pid}/comm"))
            .unwrap_or_default()
            .trim()
            .to_owned();
        Some(PortHolder {
            pid,
            name,
            unit: self.unit_of(pid),
        })
    }

    fn socket_owner(&self, inode: u64) -> Option<u32> {
        let wanted = format!("socket:[{inode}]");
        fs::read_dir(self.path("proc"))
            .ok()?
            .flatten()
            .find_map(|entry| {
                let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
                let holds = fs::read_dir(entry.path().join("fd"))
                    .ok()?
                    .flatten()
                    .filter_map(|fd| fs::read_link(fd.path()).ok())
                    .any(|target| target.as_os_str() == wanted.as_str());
                holds.then_some(pid)
            })
    }

    /// The systemd service that process `pid` belongs to, by its cgroup.
    pub fn unit_of(&self, pid: u32) -> Option<String> {
        let text = self.read(&format!("proc/{pid}/cgroup")).ok()?;
        let last = text
            .lines()
            .find_map(|line| line.strip_prefix("0::"))?
            .rsplit('/')
            .next()?;
        last.ends_with(".service").then(|| last.to_owned())
    }
}

/// Inode of the socket that listens on `port`, from a table in /proc/net.
fn listening_inode(table: &str, port: u16) -> Option<u64> {
    table.lines().skip(1).find_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let (_, local_port) = columns.get(1)?.rsplit_once(':')?;
        let listens = *columns.get(3)? == LISTEN
            && u16::from_str_radix(local_port, 16).is_ok_and(|local| local == port);
        if listens {
            columns.get(9)?.parse().ok()
        } else {
            None
        }
    })
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, os::unix::fs::symlink};

    use super::*;
    use crate::samples::root;

    const TABLE: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when \
        retrnsmt   uid  timeout inode\n   0: 0100007F:2049 00000000:0000 0A 00000000:00000000 \
        00:00000000 00000000  1000        0 4711 1 0000000000000000 100 0 0 10 0\n";

    #[test]
    fn the_holder_is_found_by_its_sockets_inode() {
        let (dir, sysfs) = root(&[
            ("proc/net/tcp", TABLE),
            ("proc/31/comm", "ollama\n"),
            ("proc/31/cgroup", "0::/system.slice/ollama.service\n"),
            ("proc/31/fd/.keep", ""),
            ("proc/32/fd/.keep", ""),
        ]);
        symlink("socket:[4711]", dir.path().join("proc/31/fd/5")).unwrap();
        symlink("socket:[4712]", dir.path().join("proc/32/fd/5")).unwrap();
        let holder = sysfs.port_holder(0x2049).unwrap();
        assert_eq!(
            holder.to_string(),
            "process 31 (ollama, unit ollama.service)"
        );
        assert_eq!(sysfs.port_holder(0x2048), None);
    }

    #[test]
    fn a_connected_socket_does_not_count() {
        assert_eq!(listening_inode(TABLE, 0x2049), Some(4711));
        assert_eq!(
            listening_inode(&TABLE.replace(" 0A ", " 01 "), 0x2049),
            None
        );
        assert_eq!(listening_inode("header\nshort line\n\n", 1), None);
    }

    #[test]
    fn a_port_of_this_process_is_found_on_this_machine() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let holder = Sysfs::host()
            .port_holder(listener.local_addr().unwrap().port())
            .unwrap();
        assert_eq!(holder.pid, std::process::id());
    }
}
