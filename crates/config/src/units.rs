//! Values as written in configurations: sizes, times, addresses, names. Each error says what form is expected.
//!
//! ```text
//! size    := number ["." digits] [" "] ("B" | "KiB" | "MiB" | "GiB" | "TiB")
//! time    := number ["." digits] [" "] ("us" | "ms" | "s" | "m" | "min" | "h" | "d")
//! address := host ":" port            host in brackets if it contains ":"
//! server  := ["tcp://" | "udp://"] address
//! listen  := ["tcp://" | "udp://" | "ws://"] address in numbers
//! name    := 1 to 64 of a-z A-Z 0-9 - _ .   not beginning with "."
//! ```
//!
//! Each type reads itself from TOML and from a command's arguments by the same code (`written!`). A
//! unit is always written: a bare number would leave the reader to guess.

use marram_session::agent::routes::RouteProtocol;
use serde::de::{self, Deserialize, Deserializer, Unexpected, Visitor};
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// Bytes, written `"16MiB"`, `"64 KiB"`, `"1.5GiB"` or `"512B"`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size(pub u64);

/// A span of time, written `"300us"`, `"5 ms"`, `"1.5s"`, `"10m"`, `"1h"` or `"2d"`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Time(pub Duration);

/// A host and a port, written `"edge-a.example.org:7400"` or `"[::1]:7400"`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Address(pub String);

/// A server: its address, and whether it uses datagrams; written `"127.0.0.1:80"` or `"udp://127.0.0.1:53"`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerAddress {
    /// Host and port.
    pub address: Address,
    /// Whether it uses datagrams.
    pub datagrams: bool,
}

/// Where to listen: `"127.0.0.1:8080"`, `"udp://127.0.0.1:53"` for datagrams, `"ws://127.0.0.1:8081"` for browsers. Numeric,
/// since a name could have several addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListenAddress {
    /// Address and port.
    pub address: SocketAddr,
    /// The protocol of its clients.
    pub protocol: RouteProtocol,
}

/// The name of an app, a server or an edge: letters, digits, `-`, `_` and `.`, at most 64 of them.
///
/// Names become parts of file names, URLs and metric labels, hence the narrow alphabet, and no dot
/// in front.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Name(pub String);

impl Name {
    /// Longest one.
    pub const BYTES_MAX: usize = 64;
}

/// A type that is written as one string.
trait Written: Sized {
    /// The end of the sentence "expected ...".
    const EXPECTED: &'static str;
    /// `None` if the text has another form or the value does not fit.
    fn read(text: &str) -> Option<Self>;
}

impl Written for Size {
    const EXPECTED: &'static str = "a size such as \"512B\", \"64KiB\", \"16MiB\" or \"1.5GiB\"";
    fn read(text: &str) -> Option<Self> {
        let (number, unit) = split(text)?;
        let scale = match unit {
            "B" => 1,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            "TiB" => 1 << 40,
            // "KB" and "MB" are ambiguous.
            _ => return None,
        };
        number.times(scale).map(Self)
    }
}

impl Written for Time {
    const EXPECTED: &'static str = "a time such as \"300us\", \"5ms\", \"1.5s\", \"30s\", \"10m\" or \"1h\"";
    fn read(text: &str) -> Option<Self> {
        let (number, unit) = split(text)?;
        let scale = match unit {
            "us" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" | "min" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            "d" => 86_400_000_000_000,
            _ => return None,
        };
        number.times(scale).map(|ns| Self(Duration::from_nanos(ns)))
    }
}

impl Written for Address {
    const EXPECTED: &'static str =
        "an address such as \"127.0.0.1:7400\", \"edge.example.org:7400\" or \"[::1]:7400\"";
    fn read(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host_is_fine = !host.is_empty() && (host.starts_with('[') == host.contains(':'));
        (host_is_fine && port.parse::<u16>().is_ok()).then(|| Self(text.into()))
    }
}

impl Written for ServerAddress {
    const EXPECTED: &'static str =
        "an address of a server such as \"127.0.0.1:80\", \"web.example.org:80\" or \"udp://127.0.0.1:53\"";
    fn read(text: &str) -> Option<Self> {
        let (datagrams, rest) = transport(text);
        Address::read(rest).map(|address| Self { address, datagrams })
    }
}

impl Written for ListenAddress {
    const EXPECTED: &'static str = "an address to listen on, in numbers, such as \"127.0.0.1:8080\", \"[::]:8080\", \"udp://127.0.0.1:53\" or \"ws://127.0.0.1:8081\"";
    fn read(text: &str) -> Option<Self> {
        let (protocol, rest) = match (text.strip_prefix("ws://"), transport(text)) {
            (Some(rest), _) => (RouteProtocol::WebSocket, rest),
            (None, (true, rest)) => (RouteProtocol::Udp, rest),
            (None, (false, rest)) => (RouteProtocol::Tcp, rest),
        };
        rest.parse().ok().map(|address| Self { address, protocol })
    }
}

impl Written for Name {
    const EXPECTED: &'static str = "a name of at most 64 letters, digits, '-', '_' or '.'";
    fn read(text: &str) -> Option<Self> {
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let fine =
            (1..=Name::BYTES_MAX).contains(&text.len()) && text.bytes().all(legal) && !text.starts_with('.');
        fine.then(|| Self(text.into()))
    }
}

/// Splits off the prefix for datagrams: whether it was there, and the rest.
fn transport(text: &str) -> (bool, &str) {
    match text.strip_prefix("udp://") {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix("tcp://").unwrap_or(text)),
    }
}

/// A decimal number with at most nine digits after the point.
///
/// Integers and not a float, so that `"1.1s"` is exact and `"0.3B"` is an error.
struct Number {
    whole: u64,
    billionths: u64,
}

const BILLION: u64 = 1_000_000_000;

impl Number {
    /// The number times `scale`; `None` if the product is not an integer.
    fn times(&self, scale: u64) -> Option<u64> {
        let parts = u128::from(self.billionths) * u128::from(scale);
        let parts =
            u64::try_from(parts / u128::from(BILLION)).ok().filter(|_| parts % u128::from(BILLION) == 0)?;
        self.whole.checked_mul(scale)?.checked_add(parts)
    }
}

/// `1.5` and `MiB` in `1.5MiB` or `1.5 MiB`.
fn split(text: &str) -> Option<(Number, &str)> {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let (whole, rest) = text.split_at(digits(text));
    let (parts, unit) = match rest.strip_prefix('.') {
        Some(rest) => {
            rest.split_at_checked(digits(rest)).filter(|(parts, _)| (1..=9).contains(&parts.len()))?
        }
        None => ("0", rest),
    };
    let billionths = format!("{parts:0<9}").parse().ok()?;
    Some((Number { whole: whole.parse().ok()?, billionths }, unit.trim_start()))
}

/// Reads a string and nothing else: a number without a unit is an error with `EXPECTED` in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnitError {
    /// The form of the type.
    expected: &'static str,
}

impl fmt::Display for UnitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}", self.expected)
    }
}

impl std::error::Error for UnitError {}

struct Reader<T>(std::marker::PhantomData<T>);

impl<T: Written> Visitor<'_> for Reader<T> {
    type Value = T;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }
    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        T::read(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

macro_rules! written {
    ($($name:ident),*) => {$(
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_str(Reader(std::marker::PhantomData))
            }
        }
        impl std::str::FromStr for $name {
            type Err = UnitError;
            fn from_str(text: &str) -> Result<Self, UnitError> {
                Self::read(text).ok_or(UnitError { expected: Self::EXPECTED })
            }
        }
    )*};
}
written!(Size, Time, Address, Name, ServerAddress, ListenAddress);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match [(30, "GiB"), (20, "MiB"), (10, "KiB")]
            .into_iter()
            .find(|(shift, _)| self.0 != 0 && self.0.trailing_zeros() >= *shift)
        {
            Some((shift, unit)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}B", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read_as_written() {
        for (text, bytes) in [
            ("0B", 0),
            ("64KiB", 65_536),
            ("16 MiB", 16 << 20),
            ("1GiB", 1 << 30),
            ("1.5GiB", 3 << 29),
            ("0.5 KiB", 512),
        ] {
            assert_eq!(Size::read(text), Some(Size(bytes)), "{text}");
        }
        for (text, ns) in [
            ("300us", 300_000),
            ("5ms", 5_000_000),
            ("30s", 30_000_000_000),
            ("1.5s", 1_500_000_000),
            ("0.25 ms", 250_000),
            ("2min", 120_000_000_000),
            ("1d", 86_400_000_000_000),
        ] {
            assert_eq!(Time::read(text), Some(Time(Duration::from_nanos(ns))), "{text}");
        }
        for text in
            ["", "5", "MiB", "-1MiB", "5MB", "99999999999GiB", "1.5B", "1.GiB", ".5GiB", "1.0000000001GiB"]
        {
            assert_eq!(Size::read(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_as_they_would_be_written() {
        for text in ["0B", "1000B", "64KiB", "16MiB", "3GiB"] {
            assert_eq!(Size::read(text).map(|size| size.to_string()).as_deref(), Some(text));
        }
    }

    #[test]
    fn addresses_have_a_host_and_a_port() {
        for (text, fine) in [
            ("127.0.0.1:80", true),
            ("[::1]:80", true),
            ("edge:7400", true),
            ("::1:80", false),
            (":80", false),
            ("edge", false),
            ("edge:http", false),
            ("edge:70000", false),
        ] {
            assert_eq!(Address::read(text).is_some(), fine, "{text}");
        }
    }

    #[test]
    fn servers_and_listeners_say_how_they_speak() {
        for (text, expected) in [
            ("127.0.0.1:53", Some(false)),
            ("tcp://127.0.0.1:53", Some(false)),
            ("udp://127.0.0.1:53", Some(true)),
            ("sctp://127.0.0.1:53", None),
            ("udp://127.0.0.1", None),
        ] {
            assert_eq!(ServerAddress::read(text).map(|peer| peer.datagrams), expected, "{text}");
            let datagrams = ListenAddress::read(text).map(|socket| socket.protocol == RouteProtocol::Udp);
            assert_eq!(datagrams, expected, "{text}");
        }
        assert!(ServerAddress::read("udp://dns.example.org:53").is_some());
        assert_eq!(
            ListenAddress::read("ws://[::1]:8081").map(|socket| socket.protocol),
            Some(RouteProtocol::WebSocket)
        );
        assert!(ServerAddress::read("ws://127.0.0.1:80").is_none());
        assert!(ListenAddress::read("udp://dns.example.org:53").is_none());
    }

    #[test]
    fn names_stay_out_of_paths() {
        for (text, fine) in [("web-1.b_c", true), ("", false), ("..", false), ("a/b", false), ("a b", false)]
        {
            assert_eq!(Name::read(text).is_some(), fine, "{text}");
        }
    }
}
