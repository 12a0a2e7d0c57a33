//! The values that edges of a domain store at their coordinator, and their keys. The prefix contains the version: edges of
//! different versions do not see each other's keys.

use alloc::{format, string::String, vec::Vec};
use bytes::{Bytes, BytesMut};
use core::fmt::Write;
use marram_wire::{
    codec::{self, Field},
    frame::{GroupId, StoreMark},
    id::{Generation, HostId, SessionId},
    record,
};

/// The prefix of every key.
pub const PREFIX: &str = "/marram/v1/";
/// The prefix of all keys that expire with their edge, of [`STORE`] and of [`POLICIES`]. It is watched.
pub const LIVE: &str = "/marram/v1/live/";
/// The key of the store's own record, a [`StoreRecord`], which each decision writes again. It does not expire.
pub const STORE: &str = "/marram/v1/live/store";
/// The key of the domain's replication policies. It does not expire.
pub const POLICIES: &str = "/marram/v1/live/policies";
const EDGES: &str = "/marram/v1/live/edges/";
const IMAGES: &str = "/marram/v1/live/images/";
/// The prefix of the keys of groups' records.
pub const GROUPS: &str = "/marram/v1/generations/group/";
/// What the name of a slot's group begins with. No group of sessions is named so.
const OF_SLOT: &str = "slot-";
const STANDBYS: &str = "/marram/v1/standbys/";
/// Marks in the store's record. The oldest ones are dropped.
pub const ACCEPTED_MAX: usize = 16;
/// Versions of apps that an edge lists. It may have more, but does not list them.
pub const HELD_MAX: usize = 512;

const _: () = assert!(
    HELD_MAX * (32 + 64 + 2) < super::VALUE_BYTES_MAX,
    "what an edge holds fits into a value: a digest and a name each"
);

/// Parts of an edge's list of standbys.
pub const PARTS: u8 = 32;
/// Sessions in one part; further ones are not listed.
pub const PART_SESSIONS_MAX: usize = 512;
/// Longest name of an edge in the list, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

const _: () = assert!(
    PART_SESSIONS_MAX * (16 + 2 * 10 + 2 + NAME_BYTES_MAX + 1) + 2 < super::VALUE_BYTES_MAX,
    "a part fits into a value: a session, a generation, a name and a word each"
);
const _: () = assert!(PART_SESSIONS_MAX <= marram_wire::limits::LIST_MAX, "a part can be read");

record! {
    /// An edge, as it registers itself.
    Registration {
        /// Random, drawn at its start: two edges of the same name differ in it.
        life: u64,
        /// Addresses where agents connect to it.
        addresses: Vec<String>,
        /// Its admin URL, if other edges can reach it.
        admin: Option<String>,
        /// Its embedded agent, if it has one.
        host: Option<HostId>,
        /// How many shards it has.
        shards: u8,
        /// Sessions that it owns, as of its last report.
        sessions: u64,
        /// Whether it refuses new sessions because it drains.
        draining: bool,
        /// Whether the store at which it is registered is in this edge.
        has_store: bool,
    }
}

record! {
    /// Which store this is.
    StoreRecord {
        /// Random, drawn when the store was begun or when an operator accepted that it had lost decisions.
        identity: [u8; 16],
        /// What edges remembered that the store had lost when an operator accepted it.
        accepted: Vec<StoreMark>,
    }
}

record! {
    /// Who may open a generation, and who keeps what it does.
    Claimed {
        /// The generation.
        generation: Generation,
        /// The edge that may open it.
        primary: String,
        /// The edge that may claim the next one; none while the primary runs alone.
        backup: Option<String>,
    }
}

impl Claimed {
    /// What the backup that this claim names writes in its place if it was started again and has no copy any more: the primary alone may go
    /// on. The opener is a digest of this claim, so the primary that has written this one knows what it finds, and no other life of it does.
    #[must_use]
    pub fn resigned(&self) -> Self {
        let generation = self.next_generation("marram 2026 resigned claim", "");
        Self { generation, primary: self.primary.clone(), backup: None }
    }

    /// What an edge writes in its place to which its primary has handed the group over beside the backup. The opener is a digest of this claim
    /// and of that edge's name, so the backup that knows this one knows what it finds.
    #[must_use]
    pub fn handed_to(&self, edge: &str) -> Self {
        let generation = self.next_generation("marram 2026 handed claim", edge);
        Self { generation, primary: edge.into(), backup: self.backup.clone() }
    }

    /// The generation that follows this one, with a digest of this claim.
    fn next_generation(&self, context: &str, edge: &str) -> Generation {
        let mut hasher = blake3::Hasher::new_derive_key(context);
        hasher.update(&encode(self));
        hasher.update(edge.as_bytes());
        let mut opener = [0; 8];
        hasher.finalize_xof().fill(&mut opener);
        Generation { count: self.generation.count.saturating_add(1), opener: u64::from_le_bytes(opener) }
    }
}

record! {
    /// What a client was seen to have of its session.
    Witnessed {
        /// The generation of the owner that saw it.
        generation: Generation,
        /// Bytes of log.
        log_end: u64,
        /// The running digest of the log at this point, shortened.
        tag: [u8; 8],
    }
}

record! {
    /// The edge that stands by for a session and could take over.
    Stands {
        /// The generation of the owner that lists it.
        generation: Generation,
        /// The edge.
        standby: String,
        /// Whether it replays the log while the cell runs.
        hot: bool,
    }
}

record! {
    /// One session in a part of an edge's list.
    Listed {
        /// The session.
        session: SessionId,
        /// Its standby.
        at: Stands,
    }
}

record! {
    /// What an edge remembers of its coordinator's store.
    EdgeStoreSeen {
        /// The edge, which has proved its name's credential.
        edge: String,
        /// What it remembers.
        mark: StoreMark,
    }
}

/// What a decision is about.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Subject {
    /// One session.
    Session(SessionId),
    /// A replication group: a name of at most 64 bytes.
    Group(String),
}

impl Subject {
    /// The group of sessions with this id.
    #[must_use]
    pub fn of_group(group: GroupId) -> Self {
        Self::Group(group_name(group))
    }

    /// The group of a slot's cells with this id (docs/protocol-epochs.md, "Slots").
    #[must_use]
    pub fn of_slot_group(group: GroupId) -> Self {
        Self::Group(format!("{OF_SLOT}{}", group_name(group)))
    }

    fn key(&self, kind: &str) -> String {
        match self {
            Self::Session(session) => format!("{PREFIX}{kind}/session/{session}"),
            Self::Group(name) => format!("{PREFIX}{kind}/group/{name}"),
        }
    }

    /// The key of (generation, holder).
    #[must_use]
    pub fn generation_key(&self) -> String {
        self.key("generations")
    }
}

/// A group's name at the coordinator: hexadecimal digits.
pub(crate) fn group_name(group: GroupId) -> String {
    let mut name = String::new();
    for byte in group {
        write!(name, "{byte:02x}").expect("writing to a string never fails");
    }
    name
}

/// The group of sessions that a key is the record of, if its name is one that shards give. A slot's group is none.
#[must_use]
pub fn group_of(key: &str) -> Option<Subject> {
    id_of_digits(key.strip_prefix(GROUPS)?).map(Subject::of_group)
}

/// The slot's group that a key is the record of.
#[must_use]
pub fn slot_group_of(key: &str) -> Option<GroupId> {
    id_of_digits(key.strip_prefix(GROUPS)?.strip_prefix(OF_SLOT)?)
}

/// The id that is written so in hexadecimal digits.
pub(super) fn id_of_digits(name: &str) -> Option<[u8; 16]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut group = GroupId::default();
    let (pairs, rest) = name.as_bytes().as_chunks::<2>();
    if pairs.len() != group.len() || !rest.is_empty() {
        return None;
    }
    for (byte, [high, low]) in group.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(group)
}

/// The key of a session's witness report.
#[must_use]
pub fn witness_key(session: SessionId) -> String {
    format!("{PREFIX}witness/{session}")
}

/// The part of its owner's list that a session is in.
#[must_use]
pub fn part_of(session: SessionId) -> u8 {
    session.0[0] % PARTS
}

/// The prefix of the keys of one part, over all edges.
#[must_use]
pub fn part_prefix(part: u8) -> String {
    format!("{STANDBYS}{part:02x}/")
}

/// The key of an edge's part of the list.
#[must_use]
pub fn part_key(part: u8, edge: &str) -> String {
    format!("{}{edge}", part_prefix(part))
}

/// The edge that a part's key belongs to.
#[must_use]
pub fn part_owner(key: &str) -> Option<&str> {
    key.strip_prefix(STANDBYS)?.split_once('/').map(|(_, edge)| edge)
}

/// The key of an edge's registration.
#[must_use]
pub fn edge_key(edge: &str) -> String {
    format!("{EDGES}{edge}")
}

/// The key of an edge's list of images.
#[must_use]
pub fn images_key(edge: &str) -> String {
    format!("{IMAGES}{edge}")
}

/// What a key under [`LIVE`] is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LiveKey<'a> {
    /// An edge's registration.
    Edge(&'a str),
    /// An edge's images.
    Images(&'a str),
    /// The store's own record.
    Store,
    /// The domain's replication policies.
    Policies,
}

/// Parses a key; none if this version does not know it.
#[must_use]
pub fn about(key: &str) -> Option<LiveKey<'_>> {
    if key == STORE {
        return Some(LiveKey::Store);
    }
    if key == POLICIES {
        return Some(LiveKey::Policies);
    }
    let edge = key.strip_prefix(EDGES).map(LiveKey::Edge);
    edge.or_else(|| key.strip_prefix(IMAGES).map(LiveKey::Images))
}

/// Encodes a value.
#[must_use]
pub fn encode<T: Field>(value: &T) -> Bytes {
    let mut out = BytesMut::new();
    value.put(&mut out);
    out.freeze()
}

/// Decodes a value.
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

/// For log lines: the first names of a list, and how many more there are.
#[must_use]
pub fn named(names: &[String]) -> String {
    let mut text = names.iter().take(8).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > 8 {
        write!(text, " and {} more", names.len() - 8).expect("writing to a string never fails");
    }
    text
}
