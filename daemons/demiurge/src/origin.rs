//! Whether a request may come from where it says it comes from.
//!
//! A page on the web can make a browser talk to a loopback port: directly (Origin is the page's),
//! or by a name that resolves to 127.0.0.1 for a moment (DNS rebinding: Host is the page's). The
//! two checks here close both doors; programs that are no browsers send neither header wrongly.

use std::net::{IpAddr, Ipv6Addr};

use vitriol_profile::is_loopback;

/// Whether `authority` (a Host header or an absolute target: `name[:port]`) names this machine:
/// `localhost`, a loopback address, or the address Demiurge listens on. The port is not compared,
/// because forwarded ports differ.
pub fn is_own_authority(authority: &str, listen: IpAddr) -> bool {
    let Some(host) = host_of(authority) else {
        return false;
    };
    is_own_host(host, listen)
}

/// Whether an Origin header names a page served from this machine. `null` (sandboxed frames, files)
/// does not.
pub fn is_own_origin(origin: &str, listen: IpAddr) -> bool {
    let Some((scheme, authority)) = origin.split_once("://") else {
        return false;
    };
    (scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https"))
        && is_own_authority(authority, listen)
}

fn is_own_host(host: &str, listen: IpAddr) -> bool {
    let name = host.strip_suffix('.').unwrap_or(host);
    // RFC 6761: resolvers keep localhost and all below it on the machine.
    if name.eq_ignore_ascii_case("localhost")
        || name.len() > 10 && name[name.len() - 10..].eq_ignore_ascii_case(".localhost")
    {
        return true;
    }
    match name.parse::<IpAddr>() {
        Ok(address) => is_loopback(address) || address == listen,
        Err(_) => false,
    }
}

/// The host part of `host[:port]`, brackets of an IPv6 address removed; None when malformed.
fn host_of(authority: &str) -> Option<&str> {
    if !authority.is_ascii() {
        return None;
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']')?;
            host.parse::<Ipv6Addr>().ok()?;
            match after.strip_prefix(':') {
                Some(port) => (host, port),
                None if after.is_empty() => (host, ""),
                None => return None,
            }
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, port),
            None => (authority, ""),
        },
    };
    let port_is_sound = port.is_empty() || port.parse::<u16>().is_ok();
    (port_is_sound && !host.is_empty()).then_some(host)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use std::net::Ipv4Addr;

    use super::*;

    const LISTEN: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn names_of_this_machine_pass() {
        for host in [
            "localhost",
            "LOCALHOST:8265",
            "localhost.",
            "chat.localhost:80",
            "127.0.0.1",
            "127.0.0.1:8265",
            "127.8.9.1:1",
            "[::1]",
            "[::1]:8265",
            "[::ffff:127.0.0.1]:8265",
        ] {
            assert!(is_own_authority(host, LISTEN), "{host}");
        }
    }

    #[test]
    fn names_of_others_do_not() {
        for host in [
            "",
            ":8265",
            "example.org",
            "example.org:8265",
            "localhost.example.org",
            "127.0.0.1.example.org",
            "notlocalhost",
            "xlocalhost:80",
            ".localhost.example.org",
            "127.0.0.1:port",
            "127.0.0.1:99999",
            "10.0.0.1",
            "0.0.0.0",
            "[::1",
            "[::1]x",
            "[localhost]",
            "user@localhost",
            "löcalhost",
        ] {
            assert!(!is_own_authority(host, LISTEN), "{host}");
        }
    }

    #[test]
    fn origins() {
        for origin in [
            "http://localhost:3000",
            "https://127.0.0.1",
            "HTTP://[::1]:8265",
        ] {
            assert!(is_own_origin(origin, LISTEN), "{origin}");
        }
        for origin in [
            "null",
            "",
            "http://example.org",
            "file://",
            "ftp://localhost",
            "localhost",
        ] {
            assert!(!is_own_origin(origin, LISTEN), "{origin}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_judged_without_panic(text in "\\PC{0,60}") {
            is_own_authority(&text, LISTEN);
            is_own_origin(&text, LISTEN);
        }

        #[test]
        fn a_public_name_never_passes(name in "[a-z]{1,12}(\\.[a-z]{2,8}){1,3}", port: u16) {
            prop_assume!(!name.ends_with(".localhost"));
            let authority = format!("{name}:{port}");
            prop_assert!(!is_own_authority(&authority, LISTEN));
        }
    }
}
