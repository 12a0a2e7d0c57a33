//! Identifiers. Each has its own type, so that two of them cannot be confused.

use core::{cmp::Ordering, fmt};

/// Bytes as lower-case hexadecimal.
pub struct Hex<'a>(pub &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Parses two hexadecimal digits for each byte, exactly `N` bytes.
#[must_use]
pub fn parse_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(core::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

/// Names one client's conversation with an app, from open to close: 128 random bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SessionId(pub [u8; 16]);

impl Ord for SessionId {
    /// The order of the bytes. As numbers, since each message looks its session up many times.
    fn cmp(&self, other: &Self) -> Ordering {
        u128::from_be_bytes(self.0).cmp(&u128::from_be_bytes(other.0))
    }
}

impl PartialOrd for SessionId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Names an image: a digest over the module, its quotas and the determinism version.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ImageHash(pub [u8; 32]);

/// Names one agent, so that an edge can find the wire of a session's other end: a digest of the agent's public key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct HostId(pub [u8; 16]);

/// One attempt to own a session: ordered by count, then by opener; never reused (docs/protocol.md, "Identities").
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Generation {
    /// One more than the newest count that the opener knew of.
    pub count: u64,
    /// Random bits that the opener drew for this attempt alone.
    pub opener: u64,
}

impl HostId {
    /// The id of the agent that holds the private half of this Ed25519 key.
    #[must_use]
    pub fn of_key(public: &[u8; 32]) -> Self {
        let digest = blake3::derive_key("marram 2026 agent id", public);
        let mut id = [0; 16];
        id.copy_from_slice(&digest[..16]);
        Self(id)
    }
}

impl Generation {
    /// Older than every generation that an edge can open.
    pub const NONE: Self = Self { count: 0, opener: 0 };
}

/// A handle on one peer of a cell.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Port(pub u32);

impl Port {
    /// The session's client.
    pub const CLIENT: Self = Self(0);
    /// The session's server, where it has one.
    pub const SERVER: Self = Self(1);
    /// The first server to which a shared cell connects. Each further one has the next number, and none is used twice: the cell knows
    /// the number before any machine has said whether the server is there.
    pub const FIRST_CONNECTED: Self = Self(1 << 31);

    /// Whether it leads to a server to which a shared cell has connected, or connects.
    #[must_use]
    pub const fn is_from_connect(self) -> bool {
        self.0 >= Self::FIRST_CONNECTED.0
    }
}

impl SessionId {
    /// The session between a shared cell and the server at a port of it. Each edge that runs the cell finds the same one, without asking.
    #[must_use]
    pub fn of_connection(cell: Self, port: Port) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("marram 2026 connection of a shared cell");
        hasher.update(&cell.0).update(&port.0.to_le_bytes());
        let mut id = [0; 16];
        id.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Self(id)
    }
}

macro_rules! hex_format {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&Hex(&self.0), f)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&Hex(&self.0), f)
            }
        }
    )*};
}
hex_format!(SessionId, ImageHash, HostId);

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:016x}", self.count, self.opener)
    }
}

impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:x}", self.count, self.opener)
    }
}

mod encoding {
    //! Identifiers on the wire: their bytes; a generation is two integers.
    use super::{Generation, HostId, ImageHash, Port, SessionId};
    use crate::codec::{Error, Field};
    use bytes::{Bytes, BytesMut};

    macro_rules! as_array {
        ($($name:ident),*) => {$(
            impl Field for $name {
                fn put(&self, out: &mut BytesMut) {
                    self.0.put(out);
                }
                fn take(from: &mut Bytes) -> Result<Self, Error> {
                    Field::take(from).map(Self)
                }
            }
        )*};
    }
    as_array!(SessionId, ImageHash, HostId, Port);

    impl Field for Generation {
        fn put(&self, out: &mut BytesMut) {
            self.count.put(out);
            self.opener.to_le_bytes().put(out);
        }
        fn take(from: &mut Bytes) -> Result<Self, Error> {
            Ok(Self { count: u64::take(from)?, opener: u64::from_le_bytes(Field::take(from)?) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn identifiers_are_read_as_they_are_shown() {
        assert_eq!(parse_hex("00ff7a"), Some([0, 0xff, 0x7a]));
        assert_eq!(Hex(&[0, 0xff, 0x7a]).to_string(), "00ff7a");
        for text in ["", "00ff7", "00ff7g", "+0ff7a", "00ff7a00"] {
            assert_eq!(parse_hex::<3>(text), None, "{text}");
        }
    }
}
