//! The key that authenticates the compiled code that this machine made, and the directory that holds both. Compiled code runs
//! unchecked. So code from any other source must never be loaded, however well formed: not from another machine, not from a
//! restored backup, and not a file that was put there while the directory was open to other users.
//!
//! ```text
//! images/                     mode 0700, owned by this user
//!   key                       32 random bytes, mode 0600, made on first use
//!   <hash>.app  <hash>.chain  named by their digest: they need no key
//!   <hash>.image              begins with a keyed digest of the rest
//! ```
//! The key never leaves the directory. It does not protect against this user or root, who can read
//! it; it keeps out code that was compiled elsewhere, with another compiler or on purpose.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a key.
pub(crate) const KEY_BYTES: usize = 32;
/// File name of the key. No image has such a name.
const NAME: &str = "key";

/// Authenticates image files.
#[derive(Clone)]
pub(crate) struct ImageKey([u8; KEY_BYTES]);

impl std::fmt::Debug for ImageKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ImageKey")
    }
}

impl ImageKey {
    /// The directory's key. It is created if there is none, or if other users could read the old one. The directory is
    /// [`private`].
    ///
    /// Called once for each [`crate::Images`]. All processes of an edge that share the directory
    /// get the same key, also if they start at the same time: the first hard link wins, and all
    /// read the file again.
    ///
    /// # Errors
    /// If the file cannot be read or made. A key that was readable by others is removed first, and
    /// with it the trust in all images there: they are compiled again.
    pub(crate) fn of(dir: &Path) -> io::Result<Self> {
        let path = dir.join(NAME);
        match read(&path)? {
            Found::Key(key) => return Ok(Self(key)),
            Found::Nothing => {}
            Found::Invalid => fs::remove_file(&path)?,
        }
        make(dir, &path)?;
        // Another process may have created it first.
        match read(&path)? {
            Found::Key(key) => Ok(Self(key)),
            Found::Nothing | Found::Invalid => Err(io::Error::other("its key was changed while it was made")),
        }
    }

    /// The authentication code of these bytes.
    /// The version is covered too, so that a file cannot be given another version's meaning.
    pub(crate) fn mac(&self, version: u32, body: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&version.to_le_bytes()).update(body);
        hasher.finalize()
    }
}

/// What the key file contains.
enum Found {
    Key([u8; KEY_BYTES]),
    Nothing,
    /// No valid key, or one that other users could read.
    Invalid,
}

/// The metadata are those of the name itself: a symbolic link could lead to a file that others can
/// read.
fn read(path: &Path) -> io::Result<Found> {
    let about = match fs::symlink_metadata(path) {
        Ok(about) => about,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) => return Err(error),
    };
    if !about.is_file() || about.mode() & 0o077 != 0 || about.len() != KEY_BYTES as u64 {
        return Ok(Found::Invalid);
    }
    let mut key = [0; KEY_BYTES];
    File::open(path)?.read_exact(&mut key)?;
    Ok(Found::Key(key))
}

/// Creates a key file that appears under its name only when it is complete. An existing file stays.
///
/// A rename would replace a key that another process has just made and used. A hard link fails
/// instead if the name exists.
fn make(dir: &Path, path: &Path) -> io::Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut key = [0; KEY_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut key)?;
    // As for images: `sweep` removes the temporary files of processes that died.
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let aside = dir.join(format!(".{NAME}.{}.{count}", std::process::id()));
    let written = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&aside)
        .and_then(|mut file| file.write_all(&key).and_then(|()| file.sync_all()))
        .and_then(|()| fs::hard_link(&aside, path));
    // The link exists now, or the temporary file is useless.
    let _ = fs::remove_file(&aside);
    match written {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        written => written,
    }
}

/// Creates a directory that only this user can access, or removes the access of others from an existing one.
/// Checked at each start, since an operator may have changed the mode since then.
pub(crate) fn private(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let about = fs::metadata(dir)?;
    if about.mode() & 0o077 != 0 {
        // Fails if another user owns the directory: that user could put any file there.
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_and_again_where_others_could_read_it() {
        let dir = std::env::temp_dir().join(format!("marram-image-key-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
        private(&dir).unwrap();
        assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
        let keys: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| ImageKey::of(&dir).unwrap().0)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(keys.iter().all(|key| *key == keys[0]), "all have the same one");
        let path = dir.join(NAME);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let next = ImageKey::of(&dir).unwrap().0;
        assert_ne!(next, keys[0]);
        fs::write(&path, b"short").unwrap();
        assert_ne!(ImageKey::of(&dir).unwrap().0, next);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1, "nothing is left beside it");
        fs::remove_dir_all(&dir).unwrap();
    }
}
