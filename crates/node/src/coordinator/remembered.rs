//! The file in which an edge remembers how far it saw its coordinator's store come: one line, identity and count.
//!
//! A store that was lost or put back is recognised by it (`marram_shard::coordinator::memory`), so the file is written before
//! anything that depends on a decision happens.

use super::error::StoreError;
use data_encoding::HEXLOWER;
use marram_wire::frame::StoreMark;
use std::{
    fs::{self, File},
    io::{self, ErrorKind, Write},
    path::{Path, PathBuf},
};

/// What this edge remembers, and where.
#[derive(Debug)]
pub(super) struct RememberedFile {
    file: PathBuf,
    mark: Option<StoreMark>,
    /// What must be on disk and is not.
    unsaved: Option<StoreMark>,
    /// Whether the log already says that the file cannot be written.
    reported: bool,
}

impl RememberedFile {
    /// Reads the file, if there is one.
    ///
    /// # Errors
    /// If it cannot be read, or holds something else.
    pub(super) fn open(file: PathBuf) -> Result<Self, StoreError> {
        let mark = match fs::read_to_string(&file) {
            Ok(text) => Some(parsed(&text).ok_or_else(|| StoreError::Remembered(file.clone()))?),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                return Err(StoreError::Remembered(file));
            }
            Err(error) => return Err(StoreError::Unreadable(file, error)),
        };
        Ok(Self { file, mark, unsaved: None, reported: false })
    }

    /// What is on disk.
    pub(super) fn mark(&self) -> Option<&StoreMark> {
        self.mark.as_ref()
    }

    /// Writes this, now or with the next call that succeeds.
    pub(super) fn remember(&mut self, mark: StoreMark) {
        self.unsaved = Some(mark);
        self.save();
    }

    /// Whether everything is on disk. Tries again if something is not.
    pub(super) fn save(&mut self) -> bool {
        let Some(mark) = self.unsaved.take() else { return true };
        match write(&self.file, &mark) {
            Ok(()) => {
                if std::mem::take(&mut self.reported) {
                    tracing::info!(
                        "what this edge remembers of the coordinator's store can be written again"
                    );
                }
                self.mark = Some(mark);
                true
            }
            Err(error) => {
                self.unsaved = Some(mark);
                if !std::mem::replace(&mut self.reported, true) {
                    let file = self.file.display();
                    tracing::error!(%file, %error, "cannot write what this edge remembers of the coordinator's store: it wins no decision until it can");
                }
                false
            }
        }
    }
}

/// `IDENTITY COUNT`, as [`write`] writes it.
fn parsed(text: &str) -> Option<StoreMark> {
    let (identity, decisions) = text.strip_suffix('\n')?.split_once(' ')?;
    let identity = HEXLOWER.decode(identity.as_bytes()).ok()?.try_into().ok()?;
    Some(StoreMark { identity, decisions: decisions.parse().ok()? })
}

/// Replaces the file at once.
fn write(file: &Path, mark: &StoreMark) -> io::Result<()> {
    let directory = file.parent().unwrap_or(Path::new("."));
    let beside = file.with_extension("new");
    let mut new = File::create(&beside)?;
    writeln!(new, "{} {}", HEXLOWER.encode(&mark.identity), mark.decisions)?;
    new.sync_data()?;
    fs::rename(&beside, file)?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_remembered_is_there_after_a_restart() {
        let directory = std::env::temp_dir().join(format!("marram-remembered-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("coordinator-seen");
        let mark = |decisions| StoreMark { identity: [0xa7; 16], decisions };
        let mut file = RememberedFile::open(path.clone()).unwrap();
        assert_eq!(file.mark(), None);
        file.remember(mark(7));
        assert_eq!(RememberedFile::open(path.clone()).unwrap().mark(), Some(&mark(7)));
        // A directory is in the place of the new file.
        fs::create_dir(path.with_extension("new")).unwrap();
        file.remember(mark(8));
        assert!(!file.save());
        assert_eq!(file.mark(), Some(&mark(7)), "only what is on disk counts");
        fs::remove_dir(path.with_extension("new")).unwrap();
        assert!(file.save());
        assert_eq!(RememberedFile::open(path.clone()).unwrap().mark(), Some(&mark(8)));
        for odd in ["", "a7 8\n", "a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7 8", "\u{fffd}"] {
            fs::write(&path, odd).unwrap();
            let why = RememberedFile::open(path.clone()).unwrap_err().to_string();
            assert!(why.contains("remove it"), "{why}");
        }
        fs::remove_dir_all(directory).unwrap();
    }
}
