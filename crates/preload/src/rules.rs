//! Redirection rules: which connections go where, as a list in an environment variable:
//!
//! ```text
//! list: rule (',' rule)*
//! rule: ["udp:"] destination '=' via      both a numeric address and port, as 10.0.0.7:5432 or [2001:db8::7]:5432
//! ```
//!
//! A destination may appear once for each protocol; several destinations may have the same `via`.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Most rules of a list.
pub const RULES_MAX: usize = 256;

/// The protocol of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// As a stream.
    Tcp,
    /// As datagrams.
    Udp,
}

/// An address and port, in one form for both IP versions: an IPv4 address is `::ffff:a.b.c.d`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SocketEndpoint {
    /// The address.
    pub address: [u8; 16],
    /// The port.
    pub port: u16,
}

impl SocketEndpoint {
    /// The value of unused entries.
    pub const NONE: Self = Self { address: [0; 16], port: 0 };

    /// The endpoint of an address and port, whichever way the address is written.
    #[must_use]
    pub const fn new(address: IpAddr, port: u16) -> Self {
        let address = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        Self { address: address.octets(), port }
    }

    /// Its IPv4 address, if it has one.
    #[must_use]
    pub fn v4(&self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.address).to_ipv4_mapped()
    }

    fn parse(text: &str) -> Option<Self> {
        let socket: SocketAddr = text.parse().ok()?;
        Some(Self::new(socket.ip(), socket.port()))
    }
}

/// One destination, and where its connections go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule {
    /// For sockets of this kind.
    pub protocol: Protocol,
    /// The destination that the program connects to.
    pub destination: SocketEndpoint,
    /// The address that is used instead.
    pub via: SocketEndpoint,
}

impl Rule {
    fn parse(text: &str) -> Option<Self> {
        let (protocol, text) = match text.strip_prefix("udp:") {
            Some(text) => (Protocol::Udp, text),
            None => (Protocol::Tcp, text),
        };
        let (destination, via) = text.split_once('=')?;
        Some(Self {
            protocol,
            destination: SocketEndpoint::parse(destination)?,
            via: SocketEndpoint::parse(via)?,
        })
    }
}

impl fmt::Display for Rule {
    /// The form that [`Rules::parse`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.protocol == Protocol::Udp {
            f.write_str("udp:")?;
        }
        let socket = |place: &SocketEndpoint| match place.v4() {
            Some(address) => SocketAddr::new(address.into(), place.port),
            None => SocketAddr::new(Ipv6Addr::from(place.address).into(), place.port),
        };
        write!(f, "{}={}", socket(&self.destination), socket(&self.via))
    }
}

/// The rules of a list, in its order.
#[derive(Debug)]
pub struct Rules {
    rules: [Rule; RULES_MAX],
    count: usize,
}

impl Rules {
    /// No rules: no connection is changed.
    pub const NONE: Self = Self {
        rules: [Rule {
            protocol: Protocol::Tcp,
            destination: SocketEndpoint::NONE,
            via: SocketEndpoint::NONE,
        }; RULES_MAX],
        count: 0,
    };

    /// Reads a list. Invalid rules, and rules above the limit, are ignored: there is no way to report them here.
    pub fn parse(&mut self, list: &str) {
        for rule in list.split(',').filter_map(Rule::parse) {
            if let Some(free) = self.rules.get_mut(self.count) {
                *free = rule;
                self.count += 1;
            }
        }
    }

    fn all(&self) -> &[Rule] {
        &self.rules[..self.count]
    }

    /// The number of the rule for a connection to this destination, if there is one.
    #[must_use]
    pub fn find(&self, protocol: Protocol, destination: SocketEndpoint) -> Option<usize> {
        self.all().iter().position(|rule| rule.protocol == protocol && rule.destination == destination)
    }

    /// The rule of this number.
    #[must_use]
    pub fn get(&self, number: usize) -> Option<&Rule> {
        self.all().get(number)
    }

    /// Whether a rule redirects to this endpoint.
    #[must_use]
    pub fn leads(&self, protocol: Protocol, place: SocketEndpoint) -> bool {
        self.all().iter().any(|rule| rule.protocol == protocol && rule.via == place)
    }

    /// The peer that the program sees for a connection to `peer`: the destination of rule `hint`, if that rule redirects to
    /// `peer`, else of the first rule that does; none if no rule redirects there.
    #[must_use]
    pub fn original_peer(
        &self,
        hint: Option<usize>,
        protocol: Protocol,
        peer: SocketEndpoint,
    ) -> Option<SocketEndpoint> {
        let leads = |rule: &&Rule| rule.via == peer && rule.protocol == protocol;
        let hinted = hint.and_then(|number| self.get(number)).filter(leads);
        hinted.or_else(|| self.all().iter().find(leads)).map(|rule| rule.destination)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    fn place(text: &str) -> SocketEndpoint {
        SocketEndpoint::parse(text).unwrap()
    }

    fn rules(list: &str) -> Rules {
        let mut rules = Rules::NONE;
        rules.parse(list);
        rules
    }

    #[test]
    fn a_destination_is_found_however_its_address_is_written_and_only_for_its_protocol() {
        let rules = rules("10.0.0.7:5432=127.0.0.1:1,[2001:db8::7]:5432=127.0.0.1:1,udp:10.0.0.7:53=[::1]:2");
        let find = |protocol, text| rules.find(protocol, place(text));
        assert_eq!(find(Protocol::Tcp, "10.0.0.7:5432"), Some(0));
        assert_eq!(find(Protocol::Tcp, "[::ffff:10.0.0.7]:5432"), Some(0));
        assert_eq!(find(Protocol::Tcp, "[2001:db8::7]:5432"), Some(1));
        assert_eq!(find(Protocol::Udp, "10.0.0.7:53"), Some(2));
        for (protocol, text) in [
            (Protocol::Tcp, "10.0.0.7:53"),
            (Protocol::Udp, "10.0.0.7:5432"),
            (Protocol::Tcp, "10.0.0.8:5432"),
            (Protocol::Tcp, "127.0.0.1:1"),
        ] {
            assert_eq!(find(protocol, text), None, "{protocol:?} {text}");
        }
    }

    #[test]
    fn the_program_sees_its_own_destination_even_if_several_lead_to_one_listener() {
        let rules = rules("10.0.0.7:1=127.0.0.1:9,10.0.0.8:2=127.0.0.1:9,10.0.0.9:3=127.0.0.1:8");
        let original = |hint, text| rules.original_peer(hint, Protocol::Tcp, place(text));
        assert_eq!(original(Some(1), "127.0.0.1:9"), Some(place("10.0.0.8:2")));
        assert_eq!(
            original(None, "127.0.0.1:9"),
            Some(place("10.0.0.7:1")),
            "a descriptor that came from elsewhere"
        );
        assert_eq!(
            original(Some(2), "127.0.0.1:9"),
            Some(place("10.0.0.7:1")),
            "a number that was used again"
        );
        assert_eq!(original(Some(0), "10.0.0.7:1"), None, "a connection that was not redirected");
        assert_eq!(rules.original_peer(Some(0), Protocol::Udp, place("127.0.0.1:9")), None);
        assert!(
            rules.leads(Protocol::Tcp, place("127.0.0.1:9"))
                && !rules.leads(Protocol::Udp, place("127.0.0.1:9"))
        );
    }

    #[test]
    fn what_is_written_is_read_and_what_is_wrong_or_too_much_is_left_out() {
        let list = "10.0.0.7:5432=127.0.0.1:1,udp:[2001:db8::7]:53=[::1]:2";
        let read = rules(list);
        let written: std::vec::Vec<_> = read.all().iter().map(ToString::to_string).collect();
        assert_eq!(written.join(","), list);
        for bad in [
            "",
            ",",
            "10.0.0.7:5432",
            "name:1=127.0.0.1:1",
            "10.0.0.7=127.0.0.1:1",
            "tcp:1.1.1.1:1=1.1.1.1:1",
        ] {
            assert_eq!(rules(bad).count, 0, "{bad}");
        }
        let many: std::vec::Vec<_> =
            (1..=300).map(|port| std::format!("10.0.0.7:{port}=127.0.0.1:1")).collect();
        let many = rules(&many.join(","));
        assert!(many.count == RULES_MAX && many.get(RULES_MAX).is_none());
    }
}
