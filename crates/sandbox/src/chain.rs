//! What a session names: one stage, or several stages connected in a row; and the file format of the list of stages.
//!
//! A chain is stored as its own small file beside the apps that it lists, so that one app can be a
//! stage of many chains and is compiled once. To a session a chain is one image: one digest, one
//! log, one checkpoint (see `docs/decisions/stacks.md`).
//!
//! ```text
//! client -- stage 0 -- stage 1 -- ... -- stage n-1 -- server
//!               \ port 1   port 0 /
//! ```
//! Each stage knows two ports, as a cell without a chain does: 0 towards the client and 1 towards
//! the server. What lies behind a port, a peer or another stage, it cannot tell.
//!
//! This module does not run stages; `cells` does.

use crate::bytes_io::Reader;
use crate::image::{ImageFault, ImageInfo, StageImage};
use crate::limits::{STAGE_NAME_BYTES_MAX, STAGES_MAX};
use crate::quotas::Quotas;
use marram_wire::id::ImageHash;
use std::fmt;
use std::sync::Arc;

/// What cells start from: the stages of a chain in order, the one next to the client first. Most have one.
#[derive(Debug)]
pub struct Image {
    pub(crate) hash: ImageHash,
    pub(crate) stages: Vec<Stage>,
    /// Whether the session has a server. If so, the stages are connected when the server's port opens.
    /// A chain without a server ends at its last stage: a message that this stage sends to port 1
    /// has no port to go to, and traps.
    pub(crate) server: bool,
}

/// One stage of an image.
#[derive(Debug)]
pub(crate) struct Stage {
    /// Name for people; empty if there is only one stage.
    pub(crate) name: Box<str>,
    pub(crate) image: Arc<StageImage>,
}

impl Image {
    /// The image of an app that is not a chain.
    pub(crate) fn single(image: StageImage) -> Self {
        let hash = image.hash;
        // With one stage there is nothing to connect.
        Self { hash, stages: vec![Stage { name: "".into(), image: Arc::new(image) }], server: false }
    }

    /// The image's name.
    #[must_use]
    pub fn hash(&self) -> ImageHash {
        self.hash
    }

    /// Number of stages of each cell: at least one.
    #[must_use]
    pub fn stage_count(&self) -> usize {
        self.stages.len()
    }

    /// The quotas of each stage.
    pub fn quotas(&self) -> impl Iterator<Item = &Quotas> {
        self.stages.iter().map(|stage| &stage.image.quotas)
    }

    /// Information for the operator about each stage.
    pub fn info(&self) -> impl Iterator<Item = ImageInfo> {
        self.stages.iter().map(|stage| stage.image.info())
    }

    /// Why a stage was compiled again when it was loaded; `None` if no stage was.
    #[must_use]
    pub fn rebuilt(&self) -> Option<&ImageFault> {
        self.stages.iter().find_map(|stage| stage.image.rebuilt.as_ref())
    }
}

/// Begins every stored list of stages.
const MAGIC: [u8; 4] = *b"MRCN";
/// Version of the layout below.
const VERSION: u8 = 1;

/// Why stages are no chain. Who deploys the app can fix the first two; for the others, the file is fetched again, or its app is
/// deployed again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ChainError {
    /// It has so many stages.
    StageCount(usize),
    /// A stage has this name, which is empty, too long, or has control characters.
    StageName(String),
    /// The bytes begin with another header.
    Header,
    /// The bytes have another format version.
    Version,
    /// The flag of the server is neither 0 nor 1.
    ServerFlag,
    /// The bytes end too early.
    Truncated,
    /// A name is not UTF-8.
    NotUtf8,
    /// There are bytes after the last stage.
    ExtraBytes,
}

impl fmt::Display for ChainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StageCount(count) => {
                write!(f, "a chain has {count} stages; it must have 2 to {STAGES_MAX}")
            }
            Self::StageName(name) => write!(
                f,
                "a stage has the name `{}`; give it a name of 1 to {STAGE_NAME_BYTES_MAX} bytes",
                name.escape_debug()
            ),
            Self::Header => f.write_str("it does not begin with the header of a chain"),
            Self::Version => f.write_str("it has another format version"),
            Self::ServerFlag => f.write_str("its server flag is invalid"),
            Self::Truncated => f.write_str("it is truncated"),
            Self::NotUtf8 => f.write_str("a name is not UTF-8"),
            Self::ExtraBytes => f.write_str("it has extra bytes at its end"),
        }
    }
}

impl std::error::Error for ChainError {}

/// A chain as it is deployed: two stages or more, each of which is also deployed as an app. Encoded:
///
/// ```text
/// | magic 4 | version 1 | has server 1 | stage count 1 | (name length 1 | name | image hash 32)* |
/// ```
///
/// The chain's image hash is a digest of exactly these bytes, so they need no checksum of their own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chain {
    server: bool,
    stages: Vec<(String, ImageHash)>,
}

impl Chain {
    /// A chain of these stages, each with the name that reasons and logs use. `server` says whether its sessions have a
    /// server. If so, the stages are connected when the server's port opens, so that each stage has all of its ports before
    /// its first message.
    ///
    /// # Errors
    /// If there are too few or too many, or a name is empty, too long, or has control characters.
    pub fn new(server: bool, stages: Vec<(String, ImageHash)>) -> Result<Self, ChainError> {
        if !(2..=STAGES_MAX).contains(&stages.len()) {
            return Err(ChainError::StageCount(stages.len()));
        }
        let bad = |name: &str| {
            name.is_empty() || name.len() > STAGE_NAME_BYTES_MAX || name.chars().any(char::is_control)
        };
        match stages.iter().find(|(name, _)| bad(name)) {
            Some((name, _)) => Err(ChainError::StageName(name.clone())),
            None => Ok(Self { server, stages }),
        }
    }

    /// The stages with their names, the one next to the client first.
    #[must_use]
    pub fn stages(&self) -> &[(String, ImageHash)] {
        &self.stages
    }

    /// Whether its sessions have a server.
    #[must_use]
    pub fn has_server(&self) -> bool {
        self.server
    }

    /// Whether the bytes that an edge gave as an image encode a chain.
    #[must_use]
    pub fn is_chain(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC)
    }

    /// The image hash of this chain.
    #[must_use]
    pub fn hash(&self) -> ImageHash {
        hash_of(&self.encode())
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let count = u8::try_from(self.stages.len()).expect("checked against STAGES_MAX");
        let mut out = [&MAGIC[..], &[VERSION, u8::from(self.server), count]].concat();
        for (name, hash) in &self.stages {
            out.push(u8::try_from(name.len()).expect("checked against STAGE_NAME_BYTES_MAX"));
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(&hash.0);
        }
        out
    }

    /// Reads a chain's list of stages.
    ///
    /// # Errors
    /// If the bytes do not encode a chain.
    pub fn decode(bytes: &[u8]) -> Result<Self, ChainError> {
        let mut reader = Reader::new(bytes);
        if reader.take(4) != Some(&MAGIC) {
            return Err(ChainError::Header);
        }
        if reader.u8() != Some(VERSION) {
            return Err(ChainError::Version);
        }
        let cut = || ChainError::Truncated;
        let server = match reader.u8().ok_or_else(cut)? {
            flag @ (0 | 1) => flag == 1,
            _ => return Err(ChainError::ServerFlag),
        };
        let count = reader.u8().ok_or_else(cut)?;
        let mut stages = Vec::new();
        for _ in 0..count {
            let len = reader.u8().ok_or_else(cut)?;
            let name = reader.take(len.into()).ok_or_else(cut)?;
            let name = std::str::from_utf8(name).map_err(|_| ChainError::NotUtf8)?;
            stages.push((name.to_owned(), ImageHash(reader.array().ok_or_else(cut)?)));
        }
        if !reader.is_empty() {
            return Err(ChainError::ExtraBytes);
        }
        Self::new(server, stages)
    }
}

/// The image hash of an encoded chain. It uses a hash key of its own, so that an app and a chain never have the same hash.
pub(crate) fn hash_of(encoded: &[u8]) -> ImageHash {
    ImageHash(blake3::derive_key("marram chain hash 1", encoded))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain() -> Chain {
        let stage = |name: &str, byte| (name.to_owned(), ImageHash([byte; 32]));
        Chain::new(true, vec![stage("firewall", 1), stage("shop", 2), stage("firewall", 1)]).unwrap()
    }

    #[test]
    fn a_chain_survives_and_a_damaged_one_is_refused() {
        let bytes = chain().encode();
        assert!(Chain::is_chain(&bytes));
        assert_eq!(Chain::decode(&bytes), Ok(chain()));
        for end in 0..bytes.len() {
            assert!(Chain::decode(&bytes[..end]).is_err(), "{end}");
        }
        for (at, byte) in [(0, b'X'), (4, 2), (5, 2), (6, 1), (6, 4), (7, 0), (7, 9), (8, 0xff), (8, 0)] {
            let mut other = bytes.clone();
            other[at] = byte;
            assert!(Chain::decode(&other).is_err(), "byte {at} = {byte}");
        }
        assert!(Chain::decode(&[&bytes[..], b"x"].concat()).is_err());
    }

    #[test]
    fn the_order_and_the_names_of_stages_name_the_image() {
        let mut swapped = chain();
        swapped.stages.swap(0, 1);
        let mut renamed = chain();
        renamed.stages[1].0 = "store".into();
        let mut alone = chain();
        alone.server = false;
        for other in [swapped, renamed, alone] {
            assert_ne!(other.hash(), chain().hash(), "{other:?}");
        }
    }

    #[test]
    fn chains_of_one_or_too_many_stages_are_refused() {
        for count in [0, 1, STAGES_MAX + 1] {
            let error = Chain::new(false, vec![("a".into(), ImageHash([0; 32])); count]);
            assert_eq!(error, Err(ChainError::StageCount(count)));
        }
    }
}
