//! What a domain's edges keep at their coordinator, and under which keys. The version is in the prefix: edges of another
//! version neither see nor disturb this one's.

use alloc::{format, string::String, vec::Vec};
use bytes::{Bytes, BytesMut};
use core::fmt::Write;
use marram_wire::{
    codec::{self, Field},
    id::{Generation, HostId, ImageHash, SessionId},
    record,
};

/// Before every key.
pub const PREFIX: &str = "/marram/v1/";
/// Before what lives only while its edge does: this is watched.
pub const LIVE: &str = "/marram/v1/live/";
const EDGES: &str = "/marram/v1/live/edges/";
const IMAGES: &str = "/marram/v1/live/images/";
const STANDBYS: &str = "/marram/v1/standbys/";
/// Images that an edge says it has; it has more, but does not say so.
pub const HELD_MAX: usize = 512;

const _: () = assert!(
    HELD_MAX * (32 + 64 + 2) < super::VALUE_BYTES_MAX,
    "what an edge holds fits into a value: a digest and a name each"
);

/// Parts of an edge's list of who stands by for its sessions.
pub const PARTS: u8 = 32;
/// Sessions in one part; further ones are not listed.
pub const PART_SESSIONS_MAX: usize = 512;
/// Longest name of an edge that is listed, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

const _: () = assert!(
    PART_SESSIONS_MAX * (16 + 2 * 10 + 2 + NAME_BYTES_MAX + 1) + 2 < super::VALUE_BYTES_MAX,
    "a part fits into a value: a session, a generation, a name and a word each"
);
const _: () = assert!(PART_SESSIONS_MAX <= marram_wire::limits::LIST_MAX, "a part can be read");

record! {
    /// An edge, as it registers itself.
    Registration {
        /// Drawn at its start: two edges of one name differ in it.
        life: u64,
        /// Where agents reach it.
        addresses: Vec<String>,
        /// Its admin URL, where other edges reach that.
        admin: Option<String>,
        /// Its embedded agent, if it has one.
        host: Option<HostId>,
        /// How many shards it has.
        shards: u8,
        /// Sessions that it owns, as of its last report.
        sessions: u64,
        /// Whether it takes new ones.
        draining: bool,
    }
}

record! {
    /// An image that an edge has, and its app.
    HeldImage {
        /// The app's name.
        app: String,
        /// The image.
        image: ImageHash,
    }
}

record! {
    /// Who holds a generation.
    Claimed {
        /// Which.
        generation: Generation,
        /// The edge.
        holder: String,
    }
}

record! {
    /// What a client was seen to have of its session.
    Witnessed {
        /// Of the owner that saw it.
        generation: Generation,
        /// Bytes of log.
        log_end: u64,
        /// Of the running digest there.
        tag: [u8; 8],
    }
}

record! {
    /// Who stands by for a session, and could take over.
    Stands {
        /// Of the owner that says so.
        generation: Generation,
        /// The edge.
        standby: String,
        /// Whether it replays as the cell goes.
        hot: bool,
    }
}

record! {
    /// One session in a part of an edge's list.
    Listed {
        /// Which.
        session: SessionId,
        /// Where.
        at: Stands,
    }
}

/// What a decision is about.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Subject {
    /// One session.
    Session(SessionId),
    /// A replication group: at most 64 bytes, as names have.
    Group(String),
}

impl Subject {
    fn key(&self, kind: &str) -> String {
        match self {
            Self::Session(session) => format!("{PREFIX}{kind}/session/{session}"),
            Self::Group(name) => format!("{PREFIX}{kind}/group/{name}"),
        }
    }

    /// Where (generation, holder) is.
    #[must_use]
    pub fn generation_key(&self) -> String {
        self.key("generations")
    }
}

/// Where a session's witness is.
#[must_use]
pub fn witness_key(session: SessionId) -> String {
    format!("{PREFIX}witness/{session}")
}

/// In which part of its owner's list a session is.
#[must_use]
pub fn part_of(session: SessionId) -> u8 {
    session.0[0] % PARTS
}

/// Before the keys of one part, of all edges.
#[must_use]
pub fn part_prefix(part: u8) -> String {
    format!("{STANDBYS}{part:02x}/")
}

/// Where an edge has a part of its list.
#[must_use]
pub fn part_key(part: u8, edge: &str) -> String {
    format!("{}{edge}", part_prefix(part))
}

/// Whose part a key has.
#[must_use]
pub fn part_owner(key: &str) -> Option<&str> {
    key.strip_prefix(STANDBYS)?.split_once('/').map(|(_, edge)| edge)
}

/// Where an edge registers itself.
#[must_use]
pub fn edge_key(edge: &str) -> String {
    format!("{EDGES}{edge}")
}

/// Where an edge says which images it has.
#[must_use]
pub fn images_key(edge: &str) -> String {
    format!("{IMAGES}{edge}")
}

/// What a key under [`LIVE`] is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum About<'a> {
    /// An edge's registration.
    Edge(&'a str),
    /// An edge's images.
    Images(&'a str),
}

/// Reads a key; none if this version knows no such.
#[must_use]
pub fn about(key: &str) -> Option<About<'_>> {
    let edge = key.strip_prefix(EDGES).map(About::Edge);
    edge.or_else(|| key.strip_prefix(IMAGES).map(About::Images))
}

/// A value's bytes.
#[must_use]
pub fn encode<T: Field>(value: &T) -> Bytes {
    let mut out = BytesMut::new();
    value.put(&mut out);
    out.freeze()
}

/// Reads a value.
///
/// # Errors
/// If the bytes are not exactly one.
pub fn decode<T: Field>(bytes: &Bytes) -> Result<T, codec::Error> {
    let mut bytes = bytes.clone();
    let value = T::take(&mut bytes)?;
    if bytes.is_empty() { Ok(value) } else { Err(codec::Error::Trailing) }
}

/// The end of a range of all keys with a prefix: the prefix with its last byte raised.
#[must_use]
pub fn range_end(prefix: &str) -> Vec<u8> {
    let mut end = Vec::from(prefix.as_bytes());
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            break;
        }
    }
    end
}

/// For people: the first of a list of names, and how many more there are.
#[must_use]
pub fn named(names: &[String]) -> String {
    let mut text = names.iter().take(8).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > 8 {
        write!(text, " and {} more", names.len() - 8).expect("writing to a string never fails");
    }
    text
}
