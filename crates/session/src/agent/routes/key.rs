//! Which cell of an app a client is for, if the app has one for each key: read where the client connects, from its address or its
//! first bytes.

use super::{Arrival, FIRST_BYTES_MAX, RouteProtocol, Sni, rule::masked, server_name};
use alloc::{
    format,
    string::{String, ToString},
};
use bytes::{Bytes, BytesMut};
use core::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};
use marram_wire::{
    codec::{Error, Field},
    key::CellKey,
    limits::CELL_KEY_MAX,
};

/// Bits of an IPv6 address that name a site, if a key is a shorter prefix of addresses than all of an IPv4 address.
const SITE_BITS: u8 = 64;

/// What the key of a client is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeySource {
    /// Where it is: the first bits of its address, of version 4 and of version 6.
    Client(u8, u8),
    /// The bytes that it sends first: so many.
    FirstBytes(u8),
    /// The path of its WebSocket's address, without the query.
    Path,
    /// The TLS server that it asks for.
    ServerName,
    /// This name, for every client.
    Name(String),
}

/// Of a client's key: whether it is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum KeyRead {
    /// It is this one.
    Key(CellKey),
    /// More of its first bytes are needed.
    More,
    /// It has none, and why.
    None(String),
}

/// The text names no source of keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadSource;

impl fmt::Display for BadSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "does not say what the key is; write \"client\" (its address), \"client/24\" (the first bits of that), \"first-bytes/8\" (at \
             most {FIRST_BYTES_MAX}), \"path\" (of a WebSocket's address), \"sni\" (the TLS server's name), or \"name/lobby\" (always \
             this name, of at most {CELL_KEY_MAX} bytes)"
        )
    }
}

impl FromStr for KeySource {
    type Err = BadSource;
    fn from_str(text: &str) -> Result<Self, BadSource> {
        let (kind, rest) = match text.split_once('/') {
            Some((kind, rest)) => (kind, Some(rest)),
            None => (text, None),
        };
        let number = |text: &str, most: u8| {
            text.parse().ok().filter(|number| (1..=most).contains(number)).ok_or(BadSource)
        };
        match (kind, rest) {
            ("client", None) => Ok(Self::Client(32, 128)),
            ("client", Some(bits)) => match bits.split_once('/') {
                Some((four, six)) => Ok(Self::Client(number(four, 32)?, number(six, 128)?)),
                None => Ok(Self::Client(number(bits, 32)?, SITE_BITS)),
            },
            ("first-bytes", Some(count)) => {
                let most = u8::try_from(FIRST_BYTES_MAX).unwrap_or(u8::MAX);
                Ok(Self::FirstBytes(number(count, most)?))
            }
            ("path", None) => Ok(Self::Path),
            ("sni", None) => Ok(Self::ServerName),
            ("name", Some(name)) if CellKey::new(name.as_bytes().to_vec()).is_ok() => {
                Ok(Self::Name(name.to_string()))
            }
            _ => Err(BadSource),
        }
    }
}

/// As it is written.
impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(32, 128) => f.write_str("client"),
            Self::Client(four, SITE_BITS) => write!(f, "client/{four}"),
            Self::Client(four, six) => write!(f, "client/{four}/{six}"),
            Self::FirstBytes(count) => write!(f, "first-bytes/{count}"),
            Self::Path => f.write_str("path"),
            Self::ServerName => f.write_str("sni"),
            Self::Name(name) => write!(f, "name/{name}"),
        }
    }
}

impl Field for KeySource {
    fn put(&self, out: &mut BytesMut) {
        self.to_string().put(out);
    }
    fn take(from: &mut Bytes) -> Result<Self, Error> {
        String::take(from)?.parse().map_err(|BadSource| Error::Unknown)
    }
}

impl KeySource {
    /// Why clients of this protocol never have such a key, if that is so.
    #[must_use]
    pub fn unfit_for(&self, protocol: RouteProtocol) -> Option<&'static str> {
        match (self, protocol) {
            (Self::Path, RouteProtocol::Tcp | RouteProtocol::Udp) => Some(
                "\"path\" is that of a WebSocket's address; write protocol = \"websocket\", or another key",
            ),
            (Self::ServerName, RouteProtocol::Udp | RouteProtocol::WebSocket) => Some(
                "\"sni\" is in the first bytes of a TLS stream; write protocol = \"tcp\", or another key",
            ),
            (Self::FirstBytes(_), RouteProtocol::WebSocket) => Some(
                "the first bytes of a WebSocket are those of its HTTP request; write \"path\", or another key",
            ),
            _ => None,
        }
    }

    /// The key of a client that has sent `first`; with `last` no more of that will come.
    pub(super) fn read(&self, arrival: &Arrival<'_>, first: &[u8], last: bool) -> KeyRead {
        if self.unfit_for(arrival.protocol).is_some() {
            return KeyRead::None(format!("a client by {} has no \"{self}\"", arrival.protocol.name()));
        }
        match self {
            Self::Client(four, six) => found(address(arrival.client.ip(), *four, *six).as_bytes()),
            Self::FirstBytes(count) => match first.get(..usize::from(*count)) {
                Some(bytes) => found(bytes),
                None if last => {
                    let sent = first.len();
                    KeyRead::None(format!(
                        "the client has sent {sent} bytes; its key is the first {count} that it sends"
                    ))
                }
                None => KeyRead::More,
            },
            Self::Path => match path(first) {
                Some(path) => match found(path) {
                    KeyRead::None(why) => {
                        KeyRead::None(format!("{why}. It is the path of the request; shorten that"))
                    }
                    key => key,
                },
                None => KeyRead::None("the client's request has no path".to_string()),
            },
            Self::ServerName => match server_name(first) {
                Sni::Name(name) => found(name.as_bytes()),
                Sni::More if !last => KeyRead::More,
                Sni::More | Sni::Nameless => {
                    KeyRead::None("the client asks for no TLS server by name".to_string())
                }
                Sni::NotTls => KeyRead::None("the client does not begin with TLS".to_string()),
            },
            Self::Name(name) => found(name.as_bytes()),
        }
    }
}

fn found(bytes: &[u8]) -> KeyRead {
    match CellKey::new(bytes.to_vec()) {
        Ok(key) => KeyRead::Key(key),
        Err(bad) => KeyRead::None(bad.to_string()),
    }
}

/// The prefix of an address, as text. An IPv4-mapped IPv6 address counts as IPv4.
fn address(address: IpAddr, four: u8, six: u8) -> String {
    let address = address.to_canonical();
    match address {
        IpAddr::V4(_) => {
            let high = masked(address, four) >> 96;
            format!("{}/{four}", Ipv4Addr::from(u32::try_from(high).unwrap_or_default()))
        }
        IpAddr::V6(_) => format!("{}/{six}", Ipv6Addr::from(masked(address, six))),
    }
}

/// The path in the head of an HTTP request, without the query.
fn path(head: &[u8]) -> Option<&[u8]> {
    let mut words = head.split(|byte| *byte == b' ');
    let target = words.nth(1)?;
    target.split(|byte| *byte == b'?').next().filter(|path| path.starts_with(b"/"))
}
