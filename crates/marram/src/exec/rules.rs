//! Resolves redirects, as written, to the rules that a program's connections are compared with.
//!
//! Names are resolved once, here: the library compares addresses, because programs connect to
//! addresses. A destination whose address changes later is not redirected any more.

use anyhow::{Context, bail};
use marram_config::agent::Redirect;
use marram_preload::rules::{Protocol, Rule, SocketEndpoint};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};

/// A rule for each address that a destination has at this time. Those of one destination are in the system's order.
///
/// # Errors
/// If a name has no address, a listener cannot be reached from it (IPv4 to IPv6), or two rules
/// contradict each other.
pub(super) fn resolve(redirects: &[Redirect]) -> anyhow::Result<Vec<Rule>> {
    let mut rules: Vec<Rule> = Vec::new();
    for Redirect { destination, protocol, via } in redirects {
        let via = reached(*via);
        let addresses = destination.to_socket_addrs().with_context(|| {
            format!(
                "the destination {destination} has no address; name one that has, or write a numeric address"
            )
        })?;
        for address in addresses {
            if address.ip().to_canonical().is_ipv4() && !via.ip().to_canonical().is_ipv4() {
                bail!(
                    "{destination} has the address {}, and programs that reach it by IPv4 cannot reach {via}: let the agent listen on an IPv4 address, such as 127.0.0.1",
                    address.ip()
                );
            }
            let destination = SocketEndpoint::new(address.ip(), address.port());
            let rule =
                Rule { protocol: *protocol, destination, via: SocketEndpoint::new(via.ip(), via.port()) };
            let same = |other: &&Rule| (other.protocol, other.destination) == (*protocol, destination);
            match rules.iter().find(same) {
                None => rules.push(rule),
                Some(other) if *other == rule => {}
                Some(other) => {
                    bail!("{address} has two redirections: {other} and {rule}; remove one of them")
                }
            }
        }
    }
    if rules.is_empty() {
        bail!(
            "no destination is named: give --redirect HOST:PORT=LISTENER, or `redirect` in the agent's [[listen]]"
        );
    }
    Ok(rules)
}

/// The address of a listener from the same machine, if it listens on every address.
fn reached(listener: SocketAddr) -> SocketAddr {
    let ip = match listener.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        // It also accepts IPv4 connections.
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        other => other,
    };
    SocketAddr::new(ip, listener.port())
}

/// Addresses with no listener. Sends nothing to find out: an address that can be bound has no listener.
///
/// A guess for a warning: an address on another machine cannot be bound either and counts as
/// served.
pub(super) fn idle(rules: &[Rule]) -> BTreeSet<SocketAddr> {
    let mut idle = BTreeSet::new();
    for rule in rules {
        let ip = rule.via.v4().map_or_else(|| Ipv6Addr::from(rule.via.address).into(), IpAddr::V4);
        let address = SocketAddr::new(ip, rule.via.port);
        let free = match rule.protocol {
            Protocol::Tcp => can_bind(address),
            Protocol::Udp => UdpSocket::bind(address).is_ok(),
        };
        if free {
            idle.insert(address);
        }
    }
    idle
}

/// Binds without listening: no connection must be accepted here, and an agent that starts at this moment can still bind the
/// address.
fn can_bind(address: SocketAddr) -> bool {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    socket.is_ok_and(|socket| {
        sockopt::set_socket_reuseaddr(&socket, true).is_ok() && rustix::net::bind(&socket, &address).is_ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn redirect(destination: &str, via: &str) -> Redirect {
        Redirect { destination: destination.into(), protocol: Protocol::Tcp, via: via.parse().unwrap() }
    }

    #[test]
    fn a_name_has_a_rule_an_address_and_a_listener_on_every_address_is_reached_on_loopback() {
        let rules =
            resolve(&[redirect("localhost:5432", "0.0.0.0:7000"), redirect("10.0.0.7:1", "[::]:7001")])
                .unwrap();
        let written: Vec<String> = rules.iter().map(ToString::to_string).collect();
        assert!(written.contains(&"127.0.0.1:5432=127.0.0.1:7000".to_owned()), "{written:?}");
        assert_eq!(written.last().unwrap(), "10.0.0.7:1=127.0.0.1:7001");
    }

    #[test]
    fn what_cannot_work_is_refused_with_a_way_out() {
        let refused = |redirects: &[Redirect]| format!("{:#}", resolve(redirects).unwrap_err());
        assert!(refused(&[]).contains("--redirect"));
        assert!(refused(&[redirect("10.0.0.7:1", "[::1]:7000")]).contains("127.0.0.1"));
        let twice = [redirect("10.0.0.7:1", "127.0.0.1:1"), redirect("[::ffff:10.0.0.7]:1", "127.0.0.1:2")];
        assert!(refused(&twice).contains("two redirections"));
        assert!(resolve(&[twice[0].clone(), twice[0].clone()]).unwrap().len() == 1, "said twice, meant once");
        assert!(refused(&[redirect("nowhere.invalid:1", "127.0.0.1:1")]).contains("nowhere.invalid"));
    }

    #[test]
    fn a_listener_that_is_there_is_not_idle() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let via = listener.local_addr().unwrap();
        let rules = resolve(&[redirect("10.0.0.7:1", &via.to_string())]).unwrap();
        assert!(idle(&rules).is_empty());
        drop(listener);
        assert_eq!(idle(&rules), BTreeSet::from([via]));
    }
}
