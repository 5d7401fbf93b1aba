//! `-p [ADDR:]HOST:GUEST[/tcp|/udp]`: forwards a port of this machine to the guest.

use std::net::{Ipv4Addr, SocketAddrV4};

use inarch_jobs::run::PublishedPort;

/// Parses a port; ADDR is 127.0.0.1 by default.
pub fn parse(text: &str) -> Result<PublishedPort, String> {
    let wrong = || format!("'{text}' is not a pair of ports; write [ADDR:]HOST:GUEST[/tcp|/udp], as 8080:80");
    let (ports, udp) = match text.split_once('/') {
        None | Some((_, "tcp")) => (text.trim_end_matches("/tcp"), false),
        Some((ports, "udp")) => (ports, true),
        Some(_) => return Err(wrong()),
    };
    let (address, ports) = match ports.rsplitn(3, ':').collect::<Vec<_>>()[..] {
        [guest, host] => (Ipv4Addr::LOCALHOST, (host, guest)),
        [guest, host, address] => {
            let no_address = |_| format!("'{text}': '{address}' is not an IPv4 address of this machine");
            (address.parse().map_err(no_address)?, (host, guest))
        }
        _ => return Err(wrong()),
    };
    let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port != 0).ok_or_else(wrong);
    Ok(PublishedPort { udp, host: SocketAddrV4::new(address, port(ports.0)?), guest: port(ports.1)? })
}

/// Refuses the same port of this machine twice: it can lead to one port of the guest only.
pub fn check(ports: &[PublishedPort]) -> Result<(), String> {
    let collides = |one: &PublishedPort, other: &PublishedPort| {
        let (a, b) = (one.host.ip(), other.host.ip());
        one.udp == other.udp
            && one.host.port() == other.host.port()
            && (a == b || a.is_unspecified() || b.is_unspecified())
    };
    for (i, port) in ports.iter().enumerate() {
        if ports[..i].iter().any(|other| collides(other, port)) {
            return Err(format!(
                "-p names port {} of this machine twice; give each guest port its own",
                port.host.port()
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_of_this_machine_leads_to_one_of_the_guest() {
        let check = |texts: &[&str]| check(&texts.iter().map(|text| parse(text).unwrap()).collect::<Vec<_>>());
        assert!(check(&["80:1", "81:1", "80:1/udp", "127.0.0.2:80:2"]).is_ok());
        for twice in [["80:1", "80:2"], ["80:1", "80:1"], ["0.0.0.0:80:1", "127.0.0.1:80:2"]] {
            assert!(check(&twice).unwrap_err().contains("port 80"), "{twice:?}");
        }
    }

    #[test]
    fn ports_are_read_as_docker_s_users_write_them() {
        for (text, udp, host, guest) in [
            ("8080:80", false, "127.0.0.1:8080", 80),
            ("8080:80/tcp", false, "127.0.0.1:8080", 80),
            ("53:5353/udp", true, "127.0.0.1:53", 5353),
            ("0.0.0.0:8080:80", false, "0.0.0.0:8080", 80),
        ] {
            assert_eq!(parse(text), Ok(PublishedPort { udp, host: host.parse().unwrap(), guest }), "{text}");
        }
        for wrong in
            ["", "80", "80:", ":80", "0:80", "80:0", "80:80/sctp", "x:80:80", "1:2:3:4", "70000:80", "80:80/udp/tcp"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
