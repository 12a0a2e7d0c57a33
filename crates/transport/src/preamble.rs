//! The first bytes in each direction on a connection, before encryption.
//!
//! ```text
//! preamble := "MARM" | oldest version (1) | newest version (1) | wanted shard (1) | flags (1: bit 0 TLS, bit 1 token)
//! answer   := "MARM" | verdict (1)        | oldest version (1) | newest version (1) | 0 (1)
//! ```
//!
//! They contain no secret and decide nothing that is not authenticated later: if they are altered, the wire fails. With them, an
//! edge can route a connection to a shard, or refuse it with a reason, before the cost of a handshake.

use marram_wire::limits::{WIRE_VERSION, WIRE_VERSION_OLDEST};
use std::fmt;

/// Size of either, in bytes.
pub const SIZE: usize = 8;
const MAGIC: [u8; 4] = *b"MARM";
const TLS: u8 = 1;
const TOKEN: u8 = 2;

/// An agent's request for its new connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Preamble {
    /// The wanted shard; an edge with fewer shards takes it modulo their number.
    pub shard: u8,
    /// Whether a TLS handshake follows.
    pub tls: bool,
    /// Whether the agent has a token and requires the edge's proof of it.
    pub token: bool,
}

/// Why a preamble is invalid: the peer is no agent, or one of another version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotUnderstood {
    /// Not an agent.
    Garbage,
    /// An agent that supports only these versions.
    Version {
        /// Oldest.
        oldest: u8,
        /// Newest.
        newest: u8,
    },
}

impl Preamble {
    /// Encodes it.
    pub fn encode(self) -> [u8; SIZE] {
        let flags = if self.tls { TLS } else { 0 } | if self.token { TOKEN } else { 0 };
        let [a, b, c, d] = MAGIC;
        [a, b, c, d, WIRE_VERSION_OLDEST, WIRE_VERSION, self.shard, flags]
    }

    /// Decodes it. Versions are compared here; the greeting chooses the wire's version.
    pub fn decode(bytes: [u8; SIZE]) -> Result<Self, NotUnderstood> {
        let [magic @ .., oldest, newest, shard, flags] = bytes;
        if magic != MAGIC || oldest > newest {
            return Err(NotUnderstood::Garbage);
        }
        if oldest > WIRE_VERSION || newest < WIRE_VERSION_OLDEST {
            return Err(NotUnderstood::Version { oldest, newest });
        }
        if flags & !(TLS | TOKEN) != 0 {
            return Err(NotUnderstood::Garbage);
        }
        Ok(Self { shard, tls: flags & TLS != 0, token: flags & TOKEN != 0 })
    }

    /// Whether `bytes`, the first received ones, can be the start of a preamble.
    pub fn may_begin(bytes: &[u8]) -> bool {
        bytes.iter().zip(MAGIC).all(|(byte, magic)| *byte == magic)
    }
}

/// An edge's answer to a preamble.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PreambleVerdict {
    /// Continue.
    Welcome = 0,
    /// No version in common.
    Version = 1,
    /// Not encrypted, and not both addresses are loopback.
    PlainRefused = 2,
    /// The edge has no certificate, and no token that could authenticate a self-signed one.
    NoTls = 3,
    /// The edge has a token and the agent has none.
    TokenMissing = 4,
    /// The agent has a token and the edge has none.
    TokenUnknown = 5,
    /// Too many connections at once, or the shard is being restarted: retry.
    Busy = 6,
    /// The edge requires a certificate, and so encryption.
    CertificateMissing = 7,
}

/// A verdict with the versions of the edge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PreambleAnswer {
    /// The verdict of the edge.
    pub verdict: PreambleVerdict,
    /// Oldest version that it supports.
    pub oldest: u8,
    /// Newest version that it supports.
    pub newest: u8,
}

impl PreambleAnswer {
    /// This build's answer.
    pub fn new(verdict: PreambleVerdict) -> Self {
        Self { verdict, oldest: WIRE_VERSION_OLDEST, newest: WIRE_VERSION }
    }

    /// Encodes it.
    pub fn encode(self) -> [u8; SIZE] {
        let [a, b, c, d] = MAGIC;
        [a, b, c, d, self.verdict as u8, self.oldest, self.newest, 0]
    }

    /// Decodes it; `None` if the peer is no edge.
    pub fn decode(bytes: [u8; SIZE]) -> Option<Self> {
        use PreambleVerdict::*;
        let [magic @ .., verdict, oldest, newest, _] = bytes;
        let all =
            [Welcome, Version, PlainRefused, NoTls, TokenMissing, TokenUnknown, Busy, CertificateMissing];
        let verdict = *all.get(usize::from(verdict))?;
        (magic == MAGIC).then_some(Self { verdict, oldest, newest })
    }
}

impl fmt::Display for PreambleAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.verdict {
            PreambleVerdict::Welcome => f.write_str("the edge accepts this agent"),
            PreambleVerdict::Version => write!(
                f,
                "the edge supports wire versions {} to {}, this agent {WIRE_VERSION_OLDEST} to {WIRE_VERSION}: \
                 upgrade the older of the two",
                self.oldest, self.newest
            ),
            PreambleVerdict::PlainRefused => f.write_str(
                "the edge refuses unencrypted wires that are not on loopback: give this agent a token or a ca, \
                 or set insecure_plain = true at both",
            ),
            PreambleVerdict::NoTls => f.write_str(
                "the edge has neither certificate nor token, so it cannot encrypt: give it a certificate and key, or \
                 this agent's token",
            ),
            PreambleVerdict::TokenMissing => {
                f.write_str("the edge requires a token: give this agent the edge's token (`--token-file`, or \
                    `security.token_file`)")
            }
            PreambleVerdict::TokenUnknown => {
                f.write_str("this agent has a token and the edge has none: configure the token at the edge too, or \
                    remove it from this agent")
            }
            PreambleVerdict::CertificateMissing => f.write_str(
                "the edge requires a certificate, also on loopback: give this agent a ca, certificate and key, and \
                 remove insecure_plain",
            ),
            PreambleVerdict::Busy => {
                f.write_str("the edge has too many new connections or is restarting a shard; retrying")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_survive_and_nothing_else_passes() {
        for (shard, tls, token) in [(0, false, false), (255, true, false), (3, false, true), (1, true, true)]
        {
            let preamble = Preamble { shard, tls, token };
            assert_eq!(Preamble::decode(preamble.encode()), Ok(preamble));
        }
        for verdict in [PreambleVerdict::Welcome, PreambleVerdict::Version, PreambleVerdict::Busy] {
            let answer = PreambleAnswer::new(verdict);
            assert_eq!(PreambleAnswer::decode(answer.encode()), Some(answer));
        }
        assert_eq!(Preamble::decode(*b"GET / HT"), Err(NotUnderstood::Garbage));
        assert_eq!(Preamble::decode(*b"MARM\x01\x01\x00\x80"), Err(NotUnderstood::Garbage));
        assert_eq!(
            Preamble::decode(*b"MARM\xf0\xf1\x00\x00"),
            Err(NotUnderstood::Version { oldest: 0xf0, newest: 0xf1 })
        );
        assert_eq!(PreambleAnswer::decode(*b"HTTP/1.1"), None);
        assert_eq!(PreambleAnswer::decode(*b"MARM\x63\x01\x01\x00"), None);
        assert!(
            Preamble::may_begin(b"MA") && Preamble::may_begin(b"MARMxyz") && !Preamble::may_begin(b"MAX")
        );
    }
}
