//! Whose score is never raised, and why.

use vitriol_profile::ProcessNames;

use crate::process::Process;

/// The kernel keeps this much of a process's name.
const NAME_BYTES_MAX: usize = 15;

/// Why a process is left as it is, however large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spared {
    /// It is one of the house's own.
    House,
    /// The machine, or somebody's session, ends with it.
    Vital(Vital),
    /// The profile names it.
    Extra,
    /// Somebody with the right to has put its score below 0.
    Protected,
}

/// What ends with a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vital {
    /// Every service, the machine or a user's.
    ServiceManager,
    /// The way in from elsewhere.
    RemoteLogin,
    /// What other processes find each other by.
    MessageBus,
    /// Everything on the screen.
    DisplayServer,
    /// Everything that was started in it.
    Terminal,
    LoginShell,
}

/// By the kernel's name of the process, cut as the kernel cuts it.
const VITAL: [(Vital, &[&str]); 5] = [
    (
        Vital::ServiceManager,
        &[
            "init",
            "systemd",
            "systemd-*",
            "(sd-pam)",
            "polkitd",
            "runit",
            "s6-svscan",
        ],
    ),
    (
        Vital::RemoteLogin,
        &["sshd", "sshd-*", "dropbear", "login", "agetty"],
    ),
    (Vital::MessageBus, &["dbus-*", "pipewire", "wireplumber"]),
    (
        Vital::DisplayServer,
        &[
            "X",
            "Xorg",
            "Xwayland",
            "gnome-shell",
            "gnome-session-*",
            "gdm*",
            "sddm*",
            "lightdm",
            "kwin_*",
            "plasmashell",
            "ksmserver",
            "xfwm4",
            "xfce4-session",
            "mutter*",
            "sway",
            "weston",
            "labwc",
            "Hyprland",
            "wayfire",
            "cosmic-comp",
        ],
    ),
    (
        Vital::Terminal,
        &["tmux: server", "screen", "SCREEN", "zellij", "mosh-server"],
    ),
];

/// Login shells: only where they lead a session; elsewhere they run a script.
const SHELLS: [&str; 9] = [
    "sh", "bash", "dash", "zsh", "fish", "ksh", "mksh", "tcsh", "nu",
];

/// Why `process` is left as it is; `None`: it may be raised.
pub fn spared(process: &Process, extra: &ProcessNames) -> Option<Spared> {
    let name = process.name.as_str();
    if is_house(process) {
        return Some(Spared::House);
    }
    if let Some((vital, _)) = VITAL.iter().find(|(_, names)| is_among(name, names)) {
        return Some(Spared::Vital(*vital));
    }
    if process.leads_session && SHELLS.contains(&name) {
        return Some(Spared::Vital(Vital::LoginShell));
    }
    if extra.iter().any(|extra| cut(extra) == name.as_bytes()) {
        return Some(Spared::Extra);
    }
    (process.oom_score_adj < 0).then_some(Spared::Protected)
}

/// Whether a process is a daemon of the house or its supervisor.
pub fn is_house(process: &Process) -> bool {
    is_among(&process.name, &["vitriol", "vitriol-*"])
}

/// `name*` stands for every name that begins so.
fn is_among(name: &str, names: &[&str]) -> bool {
    names.iter().any(|known| match known.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == *known,
    })
}

fn cut(name: &str) -> &[u8] {
    let bytes = name.as_bytes();
    &bytes[..bytes.len().min(NAME_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use vitriol_profile::{Overrides, Profile};

    use super::*;
    use crate::process::ProcessId;

    fn named(name: &str) -> Process {
        Process {
            id: ProcessId {
                pid: 7,
                start_ticks: 1,
            },
            name: name.to_owned(),
            uid: 1000,
            leads_session: false,
            resident_bytes: 1 << 30,
            oom_score: 700,
            oom_score_adj: 0,
        }
    }

    fn extra(names: &str) -> ProcessNames {
        let overrides = Overrides::new().set("shield.extra", Some(names), "--set");
        Profile::load(None, &overrides).unwrap().shield.extra
    }

    #[test]
    fn the_house_and_what_a_machine_needs_is_spared() {
        use Vital::*;
        for (name, expected) in [
            ("vitriol", Spared::House),
            ("vitriol-engine", Spared::House),
            ("vitriol-oom-shi", Spared::House),
            ("systemd", Spared::Vital(ServiceManager)),
            ("systemd-journal", Spared::Vital(ServiceManager)),
            ("init", Spared::Vital(ServiceManager)),
            ("sshd", Spared::Vital(RemoteLogin)),
            ("sshd-session", Spared::Vital(RemoteLogin)),
            ("dbus-daemon", Spared::Vital(MessageBus)),
            ("dbus-broker-lau", Spared::Vital(MessageBus)),
            ("Xorg", Spared::Vital(DisplayServer)),
            ("kwin_wayland", Spared::Vital(DisplayServer)),
            ("tmux: server", Spared::Vital(Terminal)),
        ] {
            assert_eq!(spared(&named(name), &extra("")), Some(expected), "{name}");
        }
        for other in [
            "firefox",
            "python3",
            "llama-server",
            "vitriola",
            "Xterm",
            "initial",
        ] {
            assert_eq!(spared(&named(other), &extra("")), None, "{other}");
        }
    }

    #[test]
    fn a_shell_is_spared_where_it_leads_a_session() {
        let script = named("bash");
        assert_eq!(spared(&script, &extra("")), None);
        let login = Process {
            leads_session: true,
            ..script
        };
        assert_eq!(
            spared(&login, &extra("")),
            Some(Spared::Vital(Vital::LoginShell))
        );
    }

    #[test]
    fn the_profile_names_more_as_long_as_it_likes() {
        let extra = extra("postgres, a-name-longer-than-the-kernel-keeps");
        assert_eq!(spared(&named("postgres"), &extra), Some(Spared::Extra));
        assert_eq!(
            spared(&named("a-name-longer-t"), &extra),
            Some(Spared::Extra)
        );
        assert_eq!(spared(&named("a-name"), &extra), None);
    }

    #[test]
    fn who_was_protected_by_others_stays_so() {
        let mut process = named("mariadbd");
        process.oom_score_adj = -600;
        assert_eq!(spared(&process, &extra("")), Some(Spared::Protected));
    }
}
