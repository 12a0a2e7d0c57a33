//! One rule: what it asks of an arrival, and what is done with one that fits.

use super::{Arrival, FIRST_BYTES_MAX, Sni, server_name};
use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::{fmt, net::IpAddr, ops::RangeInclusive, str::FromStr};

/// How a peer speaks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RouteProtocol {
    /// In a stream of bytes.
    Tcp,
    /// In datagrams.
    Udp,
    /// In messages over WebSocket: the first bytes are the head of an HTTP request.
    WebSocket,
}

impl RouteProtocol {
    /// As people write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::WebSocket => "websocket",
        }
    }
}

/// Addresses that begin alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prefix {
    /// The first of them.
    address: IpAddr,
    /// How many bits they share.
    bits: u8,
}

/// A text is no prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadPrefix;

impl fmt::Display for BadPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "is no prefix of addresses; write \"10.1.0.0/16\", \"2001:db8::/32\" or one address, with no bit set behind \
             the prefix",
        )
    }
}

impl FromStr for Prefix {
    type Err = BadPrefix;
    fn from_str(text: &str) -> Result<Self, BadPrefix> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u8>().map_err(|_| BadPrefix)?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| BadPrefix)?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        let prefix = Self { address, bits };
        // A bit behind the prefix is a mistake of whoever wrote it, who meant something narrower.
        if bits > most || masked(address, bits) != masked(address, most) {
            return Err(BadPrefix);
        }
        Ok(prefix)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// The first bits of an address, as the first of 128.
fn masked(address: IpAddr, bits: u8) -> u128 {
    let number = match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    };
    if bits == 0 { 0 } else { number >> (128 - u32::from(bits.min(128))) << (128 - u32::from(bits.min(128))) }
}

impl Prefix {
    /// Whether an address is among them. One of version 4 that a socket of version 6 shows is one of version 4.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.address.is_ipv4()
            && masked(address, self.bits) == masked(self.address, self.bits)
    }
}

/// The name of a TLS server, or of all below one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ServerName {
    /// This one.
    Exactly(String),
    /// Those one label below this one: written `*.example.org`.
    Below(String),
}

impl ServerName {
    /// From what people write; None if it is no name.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (below, name) = match text.strip_prefix("*.") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let name = name.to_ascii_lowercase();
        let label = |label: &str| {
            let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
            (1..=63).contains(&label.len()) && label.bytes().all(legal)
        };
        if name.len() > 253 || !name.split('.').all(label) {
            return None;
        }
        Some(if below { Self::Below(name) } else { Self::Exactly(name) })
    }

    /// Whether a name, in lower case, is meant.
    #[must_use]
    pub fn covers(&self, name: &str) -> bool {
        match self {
            Self::Exactly(own) => own == name,
            Self::Below(own) => {
                name.split_once('.').is_some_and(|(label, rest)| !label.is_empty() && rest == own)
            }
        }
    }
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(name) => f.write_str(name),
            Self::Below(name) => write!(f, "*.{name}"),
        }
    }
}

/// What is done with an arrival.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RouteAction {
    /// A session of this app.
    App(String),
    /// Nothing, and why, for people.
    Refuse(String),
}

/// A rule: all that it asks for must fit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RouteRule {
    /// What people call it; unique.
    pub name: String,
    /// The highest is asked first.
    pub priority: i32,
    /// The listener's name or address.
    pub listener: Option<String>,
    /// Where the client is.
    pub client: Option<Prefix>,
    /// The client's port.
    pub client_port: Option<RangeInclusive<u16>>,
    /// How it speaks.
    pub protocol: Option<RouteProtocol>,
    /// Which TLS server it asks for in its first words.
    pub sni: Option<ServerName>,
    /// What it says first, or how its first datagram begins; 1 to [`FIRST_BYTES_MAX`] bytes.
    pub first_bytes: Option<Vec<u8>>,
    /// What is done.
    pub action: RouteAction,
}

/// Whether a rule fits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Match {
    No,
    /// More of the first bytes has to come.
    Undecided,
    Yes,
}

impl RouteRule {
    /// The first field that cannot be as it is, and why.
    pub(super) fn wrong(&self) -> Option<(&'static str, String)> {
        if self.client_port.as_ref().is_some_and(RangeInclusive::is_empty) {
            return Some(("client_port", "ends before it begins; write it as \"1024-65535\"".to_string()));
        }
        if self.protocol.is_some_and(|protocol| protocol != RouteProtocol::Tcp) && self.sni.is_some() {
            let what = "is of TLS, which is not spoken in datagrams and not to a WebSocket listener; leave it out, or write \
                        protocol = \"tcp\"";
            return Some(("sni", what.to_string()));
        }
        let len = self.first_bytes.as_ref().map_or(1, Vec::len);
        if !(1..=FIRST_BYTES_MAX).contains(&len) {
            return Some(("first_bytes", format!("has {len} bytes; write 1 to {FIRST_BYTES_MAX}")));
        }
        None
    }

    /// `sni` keeps what was found in `first`.
    pub(super) fn matches(&self, arrival: &Arrival<'_>, first: &[u8], sni: &mut Option<Sni>) -> Match {
        let listener = |name: &String| {
            name == arrival.listener || name.parse().is_ok_and(|address| arrival.local == address)
        };
        let (ip, port) = (arrival.client.ip(), arrival.client.port());
        let fits = self.protocol.is_none_or(|protocol| protocol == arrival.protocol)
            && self.listener.as_ref().is_none_or(listener)
            && self.client.is_none_or(|prefix| prefix.contains(ip))
            && self.client_port.as_ref().is_none_or(|ports| ports.contains(&port));
        if !fits {
            return Match::No;
        }
        let begins = self.first_bytes.as_ref().map_or(Match::Yes, |wanted| begins(wanted, first));
        if begins == Match::No {
            return Match::No;
        }
        let named = match &self.sni {
            None => Match::Yes,
            Some(_) if arrival.protocol != RouteProtocol::Tcp => Match::No,
            Some(wanted) => match sni.get_or_insert_with(|| server_name(first)) {
                Sni::Name(name) if wanted.covers(name) => Match::Yes,
                Sni::Name(_) | Sni::Nameless | Sni::NotTls => Match::No,
                Sni::More => Match::Undecided,
            },
        };
        match (begins, named) {
            (_, Match::No) => Match::No,
            (Match::Yes, Match::Yes) => Match::Yes,
            _ => Match::Undecided,
        }
    }
}

fn begins(wanted: &[u8], first: &[u8]) -> Match {
    let common = wanted.len().min(first.len());
    match (wanted[..common] == first[..common], common == wanted.len()) {
        (false, _) => Match::No,
        (true, true) => Match::Yes,
        (true, false) => Match::Undecided,
    }
}
