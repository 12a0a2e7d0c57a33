//! The token of an admin API without a configured one: made at start, and published to commands that the same user runs on this
//! machine. Knows no HTTP.
//!
//! A published token is a file with the address as its name, `127.0.0.1:7401`, in the first of [`directories`] that can be used.
//! The serving process keeps the file locked. An unlocked file is of a process that has ended, and its token is not sent to the
//! program that listens on the address now.
//!
//! ```text
//! $XDG_RUNTIME_DIR/marram/admin/        0700, this user's
//!     .lock                             held while files are made or swept
//!     .new                              written, locked, then renamed to its address
//!     127.0.0.1:7401                    0600: the token, locked exclusively by the server
//! ```
//!
//! What it protects against: a program that takes the port after the server ended (the file is
//! unlocked then); another user's directory or symbolic link (owner, mode and `O_NOFOLLOW`); a name
//! that resolves elsewhere (only numeric loopback addresses and `localhost` are looked up). A lock
//! ends with its process, also after `kill -9`; a process id in the file would be reused some day.

use marram_node::edge::write_private;
use rustix::fs::{Mode, OFlags};
use rustix::process::geteuid;
use std::env;
use std::fmt;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes of a token's file.
/// A larger one is not a token's; it is not read.
const FILE_BYTES_MAX: u64 = 4_096;
/// Random bytes of a new token.
const RANDOM_BYTES: usize = 32;

/// Why there is no token. The operator fixes the file; the last is an error of the operating system.
#[derive(Debug)]
pub enum TokenError {
    /// The file contains no token.
    Invalid(PathBuf),
    /// The file cannot be read.
    Unreadable(PathBuf, io::Error),
    /// The file cannot be written.
    Unwritable(PathBuf, io::Error),
    /// The operating system gave no random bytes.
    Random(io::Error),
}

impl fmt::Display for TokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(path) => {
                write!(f, "{} contains no admin token: remove it, and a new one is created", path.display())
            }
            Self::Unreadable(path, error) => write!(
                f,
                "the admin token {} cannot be read: {error}; make it readable for this user",
                path.display()
            ),
            Self::Unwritable(path, error) => {
                write!(f, "the admin token cannot be written to {}: {error}", path.display())
            }
            Self::Random(error) => write!(f, "the operating system provides no random bytes: {error}"),
        }
    }
}

impl std::error::Error for TokenError {}

/// The token in a file, which is made when missing.
///
/// # Errors
/// If it can neither be read nor written.
///
/// An edge keeps its token across restarts, so that scripts with the token keep working. Other
/// programs take a new one at each start ([`fresh`]).
pub(super) fn kept(path: &Path) -> Result<String, TokenError> {
    match fs::read_to_string(path) {
        Ok(text) => {
            let token = text.trim().to_owned();
            if token.len() < 2 * RANDOM_BYTES {
                return Err(TokenError::Invalid(path.to_owned()));
            }
            Ok(token)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let token = fresh()?;
            write_private(path, format!("{token}\n").as_bytes())
                .map_err(|error| TokenError::Unwritable(path.to_owned(), error))?;
            Ok(token)
        }
        Err(error) => Err(TokenError::Unreadable(path.to_owned(), error)),
    }
}

/// A new random token.
///
/// # Errors
/// If the system has no random bytes.
pub(super) fn fresh() -> Result<String, TokenError> {
    let mut random = [0; RANDOM_BYTES];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| TokenError::Random(error.into()))?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A token that commands can find while this value exists.
#[derive(Debug)]
pub(super) struct Published {
    path: PathBuf,
    /// Locked while it is open.
    _file: File,
}

impl Drop for Published {
    fn drop(&mut self) {
        // A file that stays is no longer locked, and is ignored.
        let _ = fs::remove_file(&self.path);
    }
}

/// Publishes the token of the API that listens on `address`.
///
/// # Errors
/// If no directory can be used; the text has the error of each.
pub(super) fn publish(address: SocketAddr, token: &str) -> io::Result<Published> {
    publish_in(directories(), address, token)
}

fn publish_in(
    directories: impl IntoIterator<Item = PathBuf>,
    address: SocketAddr,
    token: &str,
) -> io::Result<Published> {
    let mut why = Vec::new();
    for directory in directories {
        match publish_at(&directory, address, token) {
            Ok(published) => return Ok(published),
            Err(error) => why.push(format!("{}: {error}", directory.display())),
        }
    }
    Err(io::Error::other(format!("no directory can be used ({})", why.join("; "))))
}

/// Blocks while another process is making its file, which takes microseconds.
fn publish_at(directory: &Path, address: SocketAddr, token: &str) -> io::Result<Published> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let about = fs::symlink_metadata(directory)?;
    if !about.is_dir() || about.uid() != geteuid().as_raw() || about.mode() & 0o022 != 0 {
        return Err(io::Error::other("it is another user's, or others can write there"));
    }
    let open = |path: &Path| {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        options.custom_flags(i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or_default()).open(path)
    };
    // One process at a time creates and removes files here.
    let order = open(&directory.join(".lock"))?;
    order.lock()?;
    sweep(directory);
    let (path, aside) = (directory.join(name_of(address)), directory.join(".new"));
    let mut file = open(&aside)?;
    file.set_len(0)?;
    file.write_all(format!("{token}\n").as_bytes())?;
    // Locked before it is renamed, so that its name never leads to an unlocked file.
    file.try_lock().map_err(|_| io::Error::other("its new file is locked"))?;
    fs::rename(&aside, &path)?;
    Ok(Published { path, _file: file })
}

/// Removes the tokens of processes that have ended.
/// Files in another form are left alone: the directory may be shared.
fn sweep(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let is_token = entry.file_name().to_str().is_some_and(|name| name.parse::<SocketAddr>().is_ok());
        if is_token && File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok()) {
            // A file that cannot be removed is ignored later, since it is not locked.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// The token of the API at an authority, `HOST:PORT`, and its address, if it is published to this user. It must be sent to that
/// address only.
#[must_use]
pub(super) fn find(authority: &str) -> Option<(SocketAddr, String)> {
    find_in(&directories().collect::<Vec<_>>(), authority)
}

fn find_in(directories: &[PathBuf], authority: &str) -> Option<(SocketAddr, String)> {
    let published = |address: SocketAddr| {
        let path = |directory: &PathBuf| directory.join(name_of(address));
        directories.iter().find_map(|directory| read(&path(directory))).map(|token| (address, token))
    };
    addresses(authority).into_iter().find_map(published)
}

/// The addresses on this machine that an authority may mean. Names are not looked up: only tokens of loopback addresses are
/// published.
fn addresses(authority: &str) -> Vec<SocketAddr> {
    if let Ok(address) = authority.parse::<SocketAddr>() {
        return if address.ip().is_loopback() { vec![address] } else { Vec::new() };
    }
    let port = authority.strip_prefix("localhost:").and_then(|port| port.parse::<u16>().ok());
    let both = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    port.into_iter().flat_map(|port| both.map(|ip| SocketAddr::new(ip, port))).collect()
}

/// A published token, if the serving process is alive and the file belongs to this user. The superuser may read every user's.
fn read(path: &Path) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    let (about, own) = (file.metadata().ok()?, geteuid());
    let is_private = about.is_file() && about.mode() & 0o077 == 0 && about.len() <= FILE_BYTES_MAX;
    if !is_private || !(own.is_root() || about.uid() == own.as_raw()) {
        return None;
    }
    // The lock that cannot be had is the proof that the server lives.
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => {}
        Ok(()) | Err(TryLockError::Error(_)) => return None,
    }
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned())
}

fn name_of(address: SocketAddr) -> String {
    address.to_string()
}

/// Directories for tokens, preferred first: systemd's for a unit (`RuntimeDirectory=marram`), the user's runtime directory, the
/// user's permanent one, and the units' directory, where a command looks for a unit's token.
fn directories() -> impl Iterator<Item = PathBuf> {
    let of = |variable: &str, below: &str| {
        let base = PathBuf::from(env::var_os(variable)?);
        base.is_absolute().then(|| base.join(below))
    };
    let own = PathBuf::from(format!("/run/user/{}", geteuid().as_raw()));
    [
        of("RUNTIME_DIRECTORY", "admin"),
        of("XDG_RUNTIME_DIR", "marram/admin"),
        own.is_dir().then(|| own.join("marram/admin")),
        of("XDG_STATE_HOME", "marram/admin"),
        of("HOME", ".local/state/marram/admin"),
        Some(PathBuf::from("/run/marram/admin")),
    ]
    .into_iter()
    .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    struct Directory(PathBuf);

    impl Directory {
        fn new(purpose: &str) -> Self {
            let name = format!("marram-token-{purpose}-{}", std::process::id());
            Self(env::temp_dir().join(name))
        }

        fn all(&self) -> Vec<PathBuf> {
            vec![PathBuf::from("/dev/null/none"), self.0.clone()]
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_token_is_found_by_its_address_while_its_process_serves() {
        let directory = Directory::new("found");
        let [one, two]: [SocketAddr; 2] = ["127.0.0.1:7401", "[::1]:7501"].map(|text| text.parse().unwrap());
        let first = publish_in(directory.all(), one, "one").unwrap();
        let second = publish_in(directory.all(), two, "two").unwrap();
        let find = |authority: &str| find_in(&directory.all(), authority);
        assert_eq!(find("127.0.0.1:7401"), Some((one, "one".into())));
        assert_eq!(find("localhost:7501"), Some((two, "two".into())));
        for other in ["127.0.0.1:7501", "10.0.0.1:7401", "edge-a:7401", "localhost"] {
            assert_eq!(find(other), None, "{other}");
        }
        assert_eq!((mode(&directory.0), mode(&first.path)), (0o700, 0o600));
        let path = second.path.clone();
        drop(second);
        assert!(find("localhost:7501").is_none() && !path.exists());
        // As a killed process leaves it.
        fs::write(&path, "two\n").unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        assert_eq!(find("localhost:7501"), None);
        let again = publish_in(directory.all(), "127.0.0.1:7402".parse().unwrap(), "three").unwrap();
        assert!(!path.exists() && first.path.exists(), "only what no one locks is removed");
        drop(again);
    }

    #[test]
    fn a_directory_where_others_can_write_is_not_used() {
        let directory = Directory::new("shared");
        fs::create_dir(&directory.0).unwrap();
        fs::set_permissions(&directory.0, PermissionsExt::from_mode(0o777)).unwrap();
        let error = publish_in(directory.all(), "127.0.0.1:1".parse().unwrap(), "token").unwrap_err();
        assert!(error.to_string().contains("others can write there"), "{error}");
    }

    #[test]
    fn an_edges_token_is_made_once_and_is_private() {
        let directory = Directory::new("kept");
        fs::create_dir(&directory.0).unwrap();
        let path = directory.0.join("admin-token");
        let token = kept(&path).unwrap();
        assert_eq!((kept(&path).unwrap(), mode(&path)), (token.clone(), 0o600));
        assert_ne!(token, fresh().unwrap());
        fs::write(&path, "short").unwrap();
        assert!(kept(&path).unwrap_err().to_string().contains("remove it"));
    }
}
