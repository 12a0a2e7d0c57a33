//! What is known of a session's client: what its agent reports, and what the edge has verified.
//!
//! ```text
//! address := 4 | IPv4 (4) | port (2, little endian)
//!          | 6 | IPv6 (16) | port (2, little endian)
//! origin  := has client (1) [address] | has local (1) [address] | listener (text)
//! peer    := has address (1) [address] | listener (text) | has identity (1) [text]
//! ```

use crate::{
    codec::{Error, Field},
    limits::TEXT_MAX,
    record,
};
use alloc::string::String;
use bytes::{Bytes, BytesMut};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The scope and flow of an IPv6 address have no meaning on another machine, and are omitted.
impl Field for SocketAddr {
    fn put(&self, out: &mut BytesMut) {
        match self.ip() {
            IpAddr::V4(ip) => {
                4u8.put(out);
                ip.octets().put(out);
            }
            IpAddr::V6(ip) => {
                6u8.put(out);
                ip.octets().put(out);
            }
        }
        self.port().to_le_bytes().put(out);
    }
    fn take(from: &mut Bytes) -> Result<Self, Error> {
        let ip = match u8::take(from)? {
            4 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::take(from)?)),
            6 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::take(from)?)),
            _ => return Err(Error::Unknown),
        };
        Ok(Self::new(ip, u16::from_le_bytes(Field::take(from)?)))
    }
}

record! {
    /// Where a client connected, as its agent reports it.
    #[derive(Default)]
    Origin {
        /// The client's address; none if it has no address, such as a program in the agent's own process.
        client: Option<SocketAddr>,
        /// The local address that the client connected to.
        local: Option<SocketAddr>,
        /// The name of the listener; empty if there is none.
        listener: String,
    }
}

record! {
    /// What a cell can ask of a client. Logged where the session starts, so that a replay gives the same answers.
    #[derive(Default)]
    Peer {
        /// The client's address, as its agent reports it.
        address: Option<SocketAddr>,
        /// The name of the listener that the client connected to, as its agent reports it; empty if there is none.
        listener: String,
        /// The identity in the certificate that the client's agent showed, as the edge verified it.
        identity: Option<String>,
    }
}

impl Peer {
    /// Combines what the agent reports and what the edge has verified, in the form that the log stores; none if both are missing.
    #[must_use]
    pub fn new(origin: Option<&Origin>, identity: Option<&str>) -> Option<Self> {
        let plain = |address: SocketAddr| SocketAddr::new(address.ip(), address.port());
        let peer = Self {
            address: origin.and_then(|origin| origin.client).map(plain),
            listener: origin.map(|origin| cut(&origin.listener)).unwrap_or_default(),
            identity: identity.map(cut),
        };
        (peer != Self::default()).then_some(peer)
    }
}

/// Cuts a text to the limit of the log.
fn cut(text: &str) -> String {
    let mut end = text.len().min(TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::SocketAddrV6;

    fn survives<T: Field + PartialEq + core::fmt::Debug>(value: &T) -> usize {
        let mut out = BytesMut::new();
        value.put(&mut out);
        let whole = out.freeze();
        let mut bytes = whole.clone();
        assert_eq!(T::take(&mut bytes).as_ref(), Ok(value));
        assert!(bytes.is_empty());
        for len in 0..whole.len() {
            assert!(T::take(&mut whole.slice(..len)).is_err(), "{value:?} cut to {len}");
        }
        whole.len()
    }

    #[test]
    fn addresses_of_both_families_survive_and_no_other_family_is_read() {
        assert_eq!(survives(&SocketAddr::from(([192, 0, 2, 7], 443))), 7);
        assert_eq!(survives(&SocketAddr::from(([1, 2, 3, 4, 5, 6, 7, 8], 65_535))), 19);
        assert_eq!(SocketAddr::take(&mut Bytes::from_static(&[5; 32])), Err(Error::Unknown));
    }

    #[test]
    fn a_cells_answer_is_what_is_read_from_the_log() {
        let scoped = SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::LOCALHOST, 9, 5, 7));
        let origin = Origin { client: Some(scoped), local: None, listener: "ü".repeat(TEXT_MAX) };
        survives(&Origin { listener: "web".into(), client: None, ..origin.clone() });
        let peer = Peer::new(Some(&origin), Some(&"x".repeat(TEXT_MAX + 1))).unwrap();
        survives(&peer);
        assert_eq!(peer.address, Some(SocketAddr::from((Ipv6Addr::LOCALHOST, 9))));
        assert_eq!((peer.listener.len(), peer.identity.unwrap().len()), (TEXT_MAX, TEXT_MAX));
        assert_eq!(Peer::new(None, None), None);
        assert_eq!(Peer::new(Some(&Origin::default()), None), None);
        survives(&Peer::new(None, Some("spiffe://example.org/web")).unwrap());
    }
}
