//! An agent's key pair. Its id is a digest of the public key, and the private key signs each connection, so that no other program
//! can use that id.
//!
//! ```text
//! file := the Ed25519 seed, 64 hexadecimal digits, and a new line
//! ```
//!
//! Knows no wire.

use super::random;
use marram_wire::id::{HostId, parse_hex};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use rustix::fs::{FlockOperation, flock};
use std::{
    fmt,
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

/// Size of a public key, in bytes.
pub(crate) const PUBLIC_SIZE: usize = 32;
/// Size of a signature, in bytes.
pub(crate) const SIGNATURE_SIZE: usize = 64;
const SEED_SIZE: usize = 32;
/// The digits and a new line; a longer file is not a key file.
const FILE_SIZE_MAX: u64 = 2 * SEED_SIZE as u64 + 2;

/// Why an agent has no key. The operator can fix all but the first.
#[derive(Debug)]
pub enum AgentKeyError {
    /// The operating system gave no random bytes.
    Random(io::Error),
    /// The file cannot be opened or created.
    Open(PathBuf, io::Error),
    /// The file cannot be read.
    Read(PathBuf, io::Error),
    /// Another agent uses the file.
    InUse(PathBuf),
    /// Other users can read the file.
    Exposed(PathBuf),
    /// The file is longer than a key: it is another file.
    OtherFile(PathBuf),
    /// The file has the size of a key, and contains none.
    Damaged(PathBuf),
}

impl fmt::Display for AgentKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Random(error) => write!(f, "{error}"),
            Self::Open(path, error) => {
                write!(f, "cannot use {} for this agent's key (`identity_file`): {error}", path.display())
            }
            Self::Read(path, error) => write!(f, "cannot read {}: {error}", path.display()),
            Self::InUse(path) => write!(
                f,
                "another agent uses the key in {}: give each agent its own `identity_file`",
                path.display()
            ),
            Self::Exposed(path) => {
                let shown = path.display();
                write!(f, "other users can read this agent's private key in {shown}: run `chmod 600 {shown}`")
            }
            Self::OtherFile(path) => write!(
                f,
                "{} does not contain an agent's key: set `identity_file` to another file",
                path.display()
            ),
            Self::Damaged(path) => write!(
                f,
                "{} does not contain an agent's key: remove the file, and the agent creates a new one",
                path.display()
            ),
        }
    }
}

impl std::error::Error for AgentKeyError {}

/// An agent's key pair. Clones share it.
#[derive(Clone)]
pub struct AgentKey {
    pair: Arc<Ed25519KeyPair>,
    public: [u8; PUBLIC_SIZE],
    /// Locked while the key is in use: two agents with one id would receive each other's sessions.
    _file: Option<Arc<File>>,
}

impl fmt::Debug for AgentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AgentKey({})", self.host())
    }
}

impl AgentKey {
    /// A key that is not stored: it is lost when the process ends.
    ///
    /// # Errors
    /// If the operating system gives no random bytes.
    pub fn generate() -> Result<Self, AgentKeyError> {
        Ok(Self::from_seed(&random().map_err(AgentKeyError::Random)?))
    }

    /// The key in this file, which is created if it does not exist.
    ///
    /// # Errors
    /// If the file cannot be used, with what to do about it.
    pub fn open(path: &Path) -> Result<Self, AgentKeyError> {
        let named = || path.to_owned();
        let mut file = match Self::create(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => File::open(path),
            made => made,
        }
        .map_err(|error| AgentKeyError::Open(named(), error))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(AgentKeyError::InUse(named()));
        }
        let metadata = file.metadata().map_err(|error| AgentKeyError::Read(named(), error))?;
        if metadata.permissions().mode() & 0o077 != 0 {
            return Err(AgentKeyError::Exposed(named()));
        }
        if metadata.len() > FILE_SIZE_MAX {
            return Err(AgentKeyError::OtherFile(named()));
        }
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(|error| AgentKeyError::Read(named(), error))?;
        let seed = parse_hex(text.trim_end()).ok_or_else(|| AgentKeyError::Damaged(named()))?;
        Ok(Self { _file: Some(Arc::new(file)), ..Self::from_seed(&seed) })
    }

    /// Creates the file with a new key in it, atomically.
    ///
    /// It is written under a temporary name and then linked: a reader never sees half a file, and
    /// unlike a rename a link fails if the name is taken, so that of two agents which start
    /// together both use the first one's key (and the second then fails on the lock).
    fn create(path: &Path) -> io::Result<File> {
        let exists = || io::Error::from(io::ErrorKind::AlreadyExists);
        if path.try_exists()? {
            return Err(exists());
        }
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}.new", std::process::id()));
        let mut new = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&name)?;
        let digits: String = random::<SEED_SIZE>()?.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(new, "{digits}")?;
        new.sync_all()?;
        // If another agent created the file first, its key stays.
        let linked = std::fs::hard_link(&name, path);
        std::fs::remove_file(&name)?;
        linked.and_then(|()| File::open(path))
    }

    fn from_seed(seed: &[u8; SEED_SIZE]) -> Self {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed).expect("32 bytes are a seed");
        let public = pair.public_key().as_ref().try_into().expect("an Ed25519 public key has 32 bytes");
        Self { pair: Arc::new(pair), public, _file: None }
    }

    /// The agent's id.
    #[must_use]
    pub fn host(&self) -> HostId {
        HostId::of_key(&self.public)
    }

    pub(crate) fn public(&self) -> [u8; PUBLIC_SIZE] {
        self.public
    }

    /// Proves, by a message that only one connection has, that this program has the private key.
    pub(crate) fn sign(&self, message: &[u8]) -> [u8; SIGNATURE_SIZE] {
        let signature = self.pair.sign(message);
        signature.as_ref().try_into().expect("an Ed25519 signature has 64 bytes")
    }
}

/// Whether the owner of a public key has signed a message.
pub(crate) fn verify(public: &[u8; PUBLIC_SIZE], message: &[u8], signature: &[u8]) -> bool {
    UnparsedPublicKey::new(&ED25519, public).verify(message, signature).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_key_is_the_same_again_and_one_agents_alone() {
        let name = format!("marram-agent-key-{}-{:?}", std::process::id(), std::thread::current().id());
        let path = std::env::temp_dir().join(name);
        let first = AgentKey::open(&path).expect("made");
        let mode = std::fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let error = AgentKey::open(&path).expect_err("it is in use").to_string();
        assert!(error.contains("another agent uses"), "{error}");
        let host = first.host();
        drop(first);
        let again = AgentKey::open(&path).expect("free again");
        assert_eq!(again.host(), host);
        assert_ne!(AgentKey::generate().expect("random").host(), host);
        drop(again);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("ours");
        let error = AgentKey::open(&path).expect_err("others can read it").to_string();
        assert!(error.contains("chmod 600"), "{error}");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("ours");
        std::fs::write(&path, "no key").expect("ours");
        let error = AgentKey::open(&path).expect_err("no key").to_string();
        assert!(error.contains("does not contain an agent's key"), "{error}");
        std::fs::remove_file(&path).expect("there");
    }
}
