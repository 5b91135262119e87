//! What this release can run: asked of a profile by everything that takes one into use or says that
//! it is good.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{Profile, ProfileError, load::MAIN};

impl Profile {
    /// Whether this release can run the house that the profile describes: it listens where only this
    /// machine reaches it, and has no engine beside `main`.
    ///
    /// Errors: the first thing that stands in the way, with the remedy after its semicolon.
    pub fn check_runnable(&self) -> Result<(), ProfileError> {
        check_loopback(self.house.listen.ip())?;
        match self.engines.keys().find(|name| *name != MAIN) {
            None => Ok(()),
            Some(other) => Err(ProfileError::OtherEngine {
                name: other.clone(),
                runs: MAIN,
            }),
        }
    }
}

/// Refuses an address that other machines reach: whoever reaches the port may use the model, and
/// keys that tell clients apart come in a later release.
///
/// Errors: the address is none of loopback.
pub fn check_loopback(address: IpAddr) -> Result<(), ProfileError> {
    match is_loopback(address) {
        true => Ok(()),
        false => Err(ProfileError::NotLoopback { address }),
    }
}

/// Whether an address reaches this machine only, IPv4 in IPv6 clothes included.
pub fn is_loopback(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => Ipv4Addr::is_loopback(&v4),
        IpAddr::V6(v6) => {
            Ipv6Addr::is_loopback(&v6) || v6.to_ipv4_mapped().is_some_and(|v4| v4.is_loopback())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::Overrides;

    fn check(text: &str) -> Result<(), String> {
        let profile = Profile::parse(Path::new("p.toml"), text, &Overrides::new()).unwrap();
        profile.check_runnable().map_err(|error| error.to_string())
    }

    #[test]
    fn one_engine_on_loopback_is_what_runs() {
        for listen in [
            "127.0.0.1:0",
            "127.9.9.9:80",
            "[::1]:8265",
            "[::ffff:127.0.0.1]:1",
        ] {
            assert_eq!(check(&format!("[house]\nlisten = '{listen}'\n")), Ok(()));
        }
        for listen in [
            "0.0.0.0:8265",
            "192.168.1.2:8265",
            "[::]:0",
            "[::ffff:10.0.0.1]:1",
        ] {
            let refused = check(&format!("[house]\nlisten = '{listen}'\n")).unwrap_err();
            assert!(refused.contains("; listen on 127.0.0.1"), "{refused}");
        }
        let refused = check("[engine.main]\n[engine.big]\n").unwrap_err();
        assert!(refused.ends_with("; remove [engine.big]"), "{refused}");
    }
}
