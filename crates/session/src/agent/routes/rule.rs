//! One rule: its conditions, and the action for an arrival that matches.

use super::{Arrival, FIRST_BYTES_MAX, KeySource, Sni, server_name};
use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use bytes::{Bytes, BytesMut};
use core::{
    fmt,
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    str::FromStr,
};
use marram_wire::codec::{Error, Field};

/// A peer's protocol.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RouteProtocol {
    /// A stream of bytes.
    Tcp,
    /// Datagrams.
    Udp,
    /// Messages over WebSocket: the first bytes are the head of an HTTP request.
    WebSocket,
}

impl RouteProtocol {
    /// The name in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::WebSocket => "websocket",
        }
    }
}

/// A range of addresses with a common prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prefix {
    /// The first address.
    address: IpAddr,
    /// The length of the prefix.
    bits: u8,
}

/// The address, with the length where an address of a socket has its port.
impl Field for Prefix {
    fn put(&self, out: &mut BytesMut) {
        SocketAddr::new(self.address, self.bits.into()).put(out);
    }
    fn take(from: &mut Bytes) -> Result<Self, Error> {
        let address = SocketAddr::take(from)?;
        let bits = u8::try_from(address.port()).map_err(|_| Error::Unknown)?;
        Ok(Self { address: address.ip(), bits })
    }
}

/// The text is not a prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadPrefix;

impl fmt::Display for BadPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "is not an address prefix; write \"10.1.0.0/16\", \"2001:db8::/32\" or one address, with no bit set \
             after the prefix",
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
        // A bit set after the prefix is a mistake: a narrower prefix was probably meant.
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

/// The first `bits` bits of an address, left-aligned in 128 bits.
pub(super) fn masked(address: IpAddr, bits: u8) -> u128 {
    let number = match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    };
    if bits == 0 { 0 } else { number >> (128 - u32::from(bits.min(128))) << (128 - u32::from(bits.min(128))) }
}

impl Prefix {
    /// Whether the range contains an address. An IPv4-mapped IPv6 address counts as IPv4.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.address.is_ipv4()
            && masked(address, self.bits) == masked(self.address, self.bits)
    }
}

/// The name of a TLS server, or of all names one label below a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ServerName {
    /// This name.
    Exactly(String),
    /// All names one label below this one: written `*.example.org`.
    Below(String),
}

impl ServerName {
    /// Parses a name from the configuration; none if it is invalid.
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

    /// Whether it matches a name, which is in lower case.
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

/// The action for an arrival.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RouteAction {
    /// Open a session of this app.
    App(String),
    /// Refuse, with this reason, for people.
    Refuse(String),
}

/// A rule: all of its conditions must match.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RouteRule {
    /// The rule's name; unique.
    pub name: String,
    /// Higher priorities are checked first.
    pub priority: i32,
    /// The listener's name or address.
    pub listener: Option<String>,
    /// The client's address.
    pub client: Option<Prefix>,
    /// The client's port.
    pub client_port: Option<RangeInclusive<u16>>,
    /// The client's protocol.
    pub protocol: Option<RouteProtocol>,
    /// The TLS server name in the client hello.
    pub sni: Option<ServerName>,
    /// The first bytes of the connection or of the first datagram; 1 to [`FIRST_BYTES_MAX`] bytes.
    pub first_bytes: Option<Vec<u8>>,
    /// The action.
    pub action: RouteAction,
    /// What the key of its clients is, if the app has one cell for each key.
    pub key: Option<KeySource>,
}

/// Whether a rule matches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Match {
    No,
    /// More of the first bytes are needed.
    Undecided,
    Yes,
}

impl RouteRule {
    /// The first invalid field, and the reason.
    pub(super) fn wrong(&self) -> Option<(&'static str, String)> {
        if self.client_port.as_ref().is_some_and(RangeInclusive::is_empty) {
            return Some(("client_port", "ends before it begins; write it as \"1024-65535\"".to_string()));
        }
        if self.protocol.is_some_and(|protocol| protocol != RouteProtocol::Tcp) && self.sni.is_some() {
            let what = "is for TLS, which datagrams and WebSocket listeners do not use; remove it, or write protocol \
                        = \"tcp\"";
            return Some(("sni", what.to_string()));
        }
        let len = self.first_bytes.as_ref().map_or(1, Vec::len);
        if !(1..=FIRST_BYTES_MAX).contains(&len) {
            return Some(("first_bytes", format!("has {len} bytes; write 1 to {FIRST_BYTES_MAX}")));
        }
        let key = self.key.as_ref();
        if let (Some(_), RouteAction::Refuse(_)) = (key, &self.action) {
            return Some(("key", "chooses no cell where the rule refuses; remove it".to_string()));
        }
        if let Some(what) = key.zip(self.protocol).and_then(|(key, protocol)| key.unfit_for(protocol)) {
            return Some(("key", what.to_string()));
        }
        None
    }

    /// `sni` caches the result for `first`.
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
