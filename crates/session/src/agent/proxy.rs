//! PROXY protocol, version 2: what a proxy sends about a connection's client before the client's first byte.
//!
//! ```text
//! header := 0D 0A 0D 0A 00 0D 0A 51 55 49 54 0A | version 2 (bits 4-7), command (bits 0-3) | family (bits 4-7), transport (bits 0-3)
//!           | length of what follows (2, big endian) | addresses | TLVs
//! command := 0 LOCAL: the proxy's own connection | 1 PROXY
//! addresses of family 1 := source IPv4 (4) | destination IPv4 (4) | source port (2, big endian) | destination port (2)
//! addresses of family 2 := the same with IPv6 (16)
//! ```
//!
//! As in section 2.2 of the specification (<https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>). Pure; knows no connection.
//! TLVs are skipped: nothing here uses their data.

use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Begins every header.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Bytes before the addresses.
const HEAD: usize = 16;
/// Longest header that is read, in bytes. The longest addresses take 216, and what proxies add is mostly names.
pub const HEADER_MAX: usize = 4_096;

/// Both ends of the connection that a proxy has accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProxyAddresses {
    /// The client.
    pub source: SocketAddr,
    /// The address that the client connected to.
    pub destination: SocketAddr,
}

/// The result of reading the first bytes of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProxyHeader {
    /// The header is incomplete.
    More,
    /// The header is complete.
    Header {
        /// Its length in bytes; the client's own bytes follow.
        len: usize,
        /// The addresses in it. None for the proxy's own connections (its health checks), and for families other than IP: then
        /// the connection's own addresses apply.
        ends: Option<ProxyAddresses>,
    },
}

/// Why the first bytes of a connection have no usable header. The configuration of the proxy or of the listener is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProxyError {
    /// They begin with a header of version 1.
    VersionOne,
    /// They begin with something else.
    Absent,
    /// The header has a version or command that is not known.
    UnknownCommand,
    /// The header has an address family or transport that is not known.
    UnknownFamily,
    /// The header ends within its addresses.
    TooShort,
    /// The header is longer than [`HEADER_MAX`].
    TooLong,
}

impl fmt::Display for ProxyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::VersionOne => f.write_str(
                "it begins with a PROXY protocol header of version 1; configure the proxy to send version 2 (haproxy: \
                 `send-proxy-v2`)",
            ),
            Self::Absent => f.write_str(
                "it does not begin with a PROXY protocol header; configure the proxy to send version 2, or remove \
                 `proxy_protocol`",
            ),
            Self::UnknownCommand => f.write_str("its PROXY protocol header has an unknown version or command"),
            Self::UnknownFamily => f.write_str("its PROXY protocol header has an unknown family or transport"),
            Self::TooShort => f.write_str("its PROXY protocol header is too short for its addresses"),
            Self::TooLong => write!(f, "its PROXY protocol header is longer than {HEADER_MAX} bytes"),
        }
    }
}

impl core::error::Error for ProxyError {}

/// Reads the header off the first bytes of a connection.
///
/// # Errors
/// If there is no header, or none that is understood.
pub fn read(first: &[u8]) -> Result<ProxyHeader, ProxyError> {
    let known = first.len().min(SIGNATURE.len());
    if first[..known] != SIGNATURE[..known] {
        let is_first_version = b"PROXY ".starts_with(&first[..first.len().min(6)]);
        return Err(if is_first_version { ProxyError::VersionOne } else { ProxyError::Absent });
    }
    let Some((head, rest)) = first.split_first_chunk::<HEAD>() else { return Ok(ProxyHeader::More) };
    let [.., command, family, high, low] = *head;
    let len = usize::from(u16::from_be_bytes([high, low]));
    let proxied = match command {
        0x20 => false,
        0x21 => true,
        _ => return Err(ProxyError::UnknownCommand),
    };
    // The family of a proxy's own connection is ignored.
    let size = match family {
        _ if !proxied => 0,
        0x11 | 0x12 => 12,
        0x21 | 0x22 => 36,
        0x31 | 0x32 => 216,
        0x00 => 0,
        _ => return Err(ProxyError::UnknownFamily),
    };
    if len < size {
        return Err(ProxyError::TooShort);
    }
    if HEAD + len > HEADER_MAX {
        return Err(ProxyError::TooLong);
    }
    if rest.len() < len {
        return Ok(ProxyHeader::More);
    }
    let ends = match size {
        12 => ends(rest, |ip: [u8; 4]| Ipv4Addr::from(ip).into()),
        36 => ends(rest, |ip: [u8; 16]| Ipv6Addr::from(ip).into()),
        _ => None,
    };
    Ok(ProxyHeader::Header { len: HEAD + len, ends })
}

/// Two addresses, then two ports.
fn ends<const N: usize>(bytes: &[u8], ip: impl Fn([u8; N]) -> IpAddr) -> Option<ProxyAddresses> {
    let (source, rest) = bytes.split_first_chunk::<N>()?;
    let (destination, rest) = rest.split_first_chunk::<N>()?;
    let [a, b, c, d] = *rest.first_chunk::<4>()?;
    Some(ProxyAddresses {
        source: SocketAddr::new(ip(*source), u16::from_be_bytes([a, b])),
        destination: SocketAddr::new(ip(*destination), u16::from_be_bytes([c, d])),
    })
}

/// The header of a stream between these ends; without them, that of a proxy's own connection.
#[must_use]
pub fn write(ends: Option<ProxyAddresses>) -> Vec<u8> {
    let mut out = SIGNATURE.to_vec();
    let Some(ProxyAddresses { source, destination }) = ends else {
        out.extend([0x20, 0x00, 0, 0]);
        return out;
    };
    match (source.ip().to_canonical(), destination.ip().to_canonical()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            out.extend([0x21, 0x11, 0, 12]);
            out.extend(from.octets().into_iter().chain(to.octets()));
        }
        // A header has one family: an IPv4 address with an IPv6 one is written as IPv6.
        (from, to) => {
            out.extend([0x21, 0x21, 0, 36]);
            out.extend(v6(from).octets().into_iter().chain(v6(to).octets()));
        }
    }
    out.extend(source.port().to_be_bytes());
    out.extend(destination.port().to_be_bytes());
    out
}

fn v6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// A header with these bytes after the signature.
    fn header(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let len = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [&SIGNATURE[..], &[command, family], &len, rest].concat()
    }

    #[test]
    fn what_haproxy_sends_is_understood() {
        // As captured from `send-proxy-v2`, and with TLVs after the addresses.
        let mut sent = vec![
            0x0d, 0x0a, 0x0d, 0x0a, 0x00, 0x0d, 0x0a, 0x51, 0x55, 0x49, 0x54, 0x0a, 0x21, 0x11, 0x00, 0x0c,
        ];
        sent.extend([192, 0, 2, 1, 198, 51, 100, 2, 0x9c, 0x40, 0x01, 0xbb]);
        let ends = Some(ProxyAddresses {
            source: address("192.0.2.1:40000"),
            destination: address("198.51.100.2:443"),
        });
        for len in 0..sent.len() {
            assert_eq!(read(&sent[..len]), Ok(ProxyHeader::More), "{len}");
        }
        assert_eq!(read(&sent), Ok(ProxyHeader::Header { len: 28, ends }));
        let with_tlvs = header(0x21, 0x11, &[&sent[16..], &[0x03, 0, 4, 1, 2, 3, 4, 0x04, 0, 0]].concat());
        assert_eq!(read(&[&with_tlvs[..], b"GET /"].concat()), Ok(ProxyHeader::Header { len: 38, ends }));
    }

    #[test]
    fn headers_survive_and_families_that_differ_are_written_as_one() {
        for (source, destination) in [
            ("192.0.2.1:1", "192.0.2.2:65535"),
            ("[2001:db8::1]:1", "[2001:db8::2]:65535"),
            ("[::ffff:192.0.2.1]:1", "192.0.2.2:65535"),
            ("192.0.2.1:1", "[2001:db8::2]:65535"),
        ] {
            let (source, destination) = (address(source), address(destination));
            let written = write(Some(ProxyAddresses { source, destination }));
            let Ok(ProxyHeader::Header { len, ends: Some(ends) }) = read(&written) else {
                panic!("{written:?}")
            };
            assert_eq!(len, written.len());
            let plain = |at: SocketAddr| (at.ip().to_canonical(), at.port());
            assert_eq!(plain(ends.source), plain(source));
            assert_eq!(plain(ends.destination), plain(destination));
            assert_eq!(ends.source.is_ipv4(), ends.destination.is_ipv4());
        }
        let own = write(None);
        assert_eq!(read(&own), Ok(ProxyHeader::Header { len: own.len(), ends: None }));
    }

    #[test]
    fn a_header_without_addresses_of_ip_says_nothing_of_the_client() {
        for (command, family, rest) in [
            (0x20, 0x00, 0),
            // The proxy's own connection: its addresses are not the client's.
            (0x20, 0x11, 12),
            (0x20, 0x77, 3),
            (0x21, 0x00, 0),
            (0x21, 0x00, 40),
            (0x21, 0x31, 216),
        ] {
            let header = header(command, family, &vec![7; rest]);
            assert_eq!(read(&header), Ok(ProxyHeader::Header { len: HEAD + rest, ends: None }), "{family:x}");
        }
    }

    #[test]
    fn what_is_no_header_is_refused_as_soon_as_that_shows() {
        let refused = |first: &[u8]| read(first).unwrap_err();
        assert_eq!(refused(b"PROXY TCP4 192.0.2.1"), ProxyError::VersionOne);
        assert_eq!(refused(b"G"), ProxyError::Absent);
        assert_eq!(refused(b"\r\n\r\n\0\r\nQUIX"), ProxyError::Absent);
        assert_eq!(refused(&header(0x11, 0x11, &[0; 12])), ProxyError::UnknownCommand);
        assert_eq!(refused(&header(0x22, 0x11, &[0; 12])), ProxyError::UnknownCommand);
        assert_eq!(refused(&header(0x21, 0x13, &[0; 12])), ProxyError::UnknownFamily);
        assert_eq!(refused(&header(0x21, 0x01, &[0; 12])), ProxyError::UnknownFamily);
        for (family, size) in [(0x11, 12), (0x21, 36), (0x32, 216)] {
            assert_eq!(refused(&header(0x21, family, &vec![0; size - 1])), ProxyError::TooShort);
        }
        let longest = header(0x21, 0x11, &vec![0; HEADER_MAX - HEAD]);
        assert!(matches!(read(&longest), Ok(ProxyHeader::Header { len: HEADER_MAX, .. })));
        let longer = header(0x21, 0x11, &vec![0; HEADER_MAX - HEAD + 1]);
        assert_eq!(refused(&longer[..HEAD]), ProxyError::TooLong);
    }
}
