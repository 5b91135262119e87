//! Whether systemd's units run the house that somebody wants to start in the foreground.

use std::{
    fmt,
    net::SocketAddr,
    process::{Command, Stdio},
};

/// The unit that has the port when the house runs as units.
const SOCKET: &str = "vitriol-demiurge.socket";

/// The manager whose units hold a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manager {
    System,
    User,
}

impl Manager {
    fn flag(self) -> &'static str {
        match self {
            Manager::System => "--system",
            Manager::User => "--user",
        }
    }

    /// The command that stops the house.
    pub fn stop_command(self) -> &'static str {
        match self {
            Manager::System => "sudo systemctl stop vitriol.target",
            Manager::User => "systemctl --user stop vitriol.target",
        }
    }
}

impl fmt::Display for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Manager::System => write!(f, "{SOCKET}"),
            Manager::User => write!(f, "{SOCKET} of this user"),
        }
    }
}

/// The manager whose [`SOCKET`] listens on `listen`, the machine's before this user's. Where systemd
/// does not run nobody's does.
pub fn holder_of(listen: SocketAddr) -> Option<Manager> {
    [Manager::System, Manager::User]
        .into_iter()
        .find(|manager| {
            let shown = Command::new("systemctl")
                .args([
                    manager.flag(),
                    "show",
                    "--property=ActiveState,Listen",
                    SOCKET,
                ])
                .stdin(Stdio::null())
                .stderr(Stdio::null())
                .output();
            shown.is_ok_and(|shown| listens(&String::from_utf8_lossy(&shown.stdout), listen))
        })
}

/// Whether the properties that systemctl showed are of a socket that listens on `listen` now.
fn listens(shown: &str, listen: SocketAddr) -> bool {
    let active = shown.lines().any(|line| line == "ActiveState=active");
    let address = format!("{listen} (Stream)");
    let on = |line: &str| line.strip_prefix("Listen=") == Some(address.as_str());
    active && shown.lines().any(on)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_counts_only_while_it_listens_there() {
        let listen: SocketAddr = "127.0.0.1:8265".parse().unwrap();
        let shown = "Listen=127.0.0.1:8265 (Stream)\nActiveState=active\n";
        assert!(listens(shown, listen));
        assert!(!listens(shown, "127.0.0.1:826".parse().unwrap()));
        assert!(!listens(shown, "127.0.0.1:9000".parse().unwrap()));
        // The socket that is just being started asks for itself.
        assert!(!listens(&shown.replace("active", "activating"), listen));
        assert!(!listens("ActiveState=inactive\n", listen));
        assert!(!listens("", listen));
    }
}
