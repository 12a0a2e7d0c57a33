//! The file in which an edge remembers how far it saw its coordinator's store come: identity and count.
//!
//! A store that was lost or put back is recognised by it (`marram_shard::coordinator::memory`), so the file is written before
//! anything that depends on a decision happens. It has two slots, each of one line, which are overwritten in turn: that needs no
//! room on the disk, so an edge with a full one goes on deciding, and a write that is cut off leaves the other slot.

use super::error::StoreError;
use data_encoding::HEXLOWER;
use marram_wire::frame::StoreMark;
use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

/// Bytes of a slot: a line, filled up with spaces. All are in the disk's smallest unit of writing.
const SLOT: usize = 128;

/// What this edge remembers, and where.
#[derive(Debug)]
pub(super) struct RememberedFile {
    file: PathBuf,
    mark: Option<StoreMark>,
    /// How often the file was written. The slot of a write follows from its number. None if the file does not have both slots.
    written: Option<u64>,
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
        let (mark, written) = match fs::read_to_string(&file) {
            Ok(text) => parsed(&text).ok_or_else(|| StoreError::Remembered(file.clone()))?,
            // An edge of which the disk is full later has its file by then. If it is full now, the first write says so.
            Err(error) if error.kind() == ErrorKind::NotFound => (None, create(&file, None).ok()),
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                return Err(StoreError::Remembered(file));
            }
            Err(error) => return Err(StoreError::Unreadable(file, error)),
        };
        Ok(Self { file, mark, written, unsaved: None, reported: false })
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
        match self.write(&mark) {
            Ok(written) => {
                self.written = Some(written);
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

/// What the file says, and how often it was written: the slot with the higher number counts. Edges before this one wrote one line,
/// `IDENTITY COUNT`.
fn parsed(text: &str) -> Option<(Option<StoreMark>, Option<u64>)> {
    if text.len() != 2 * SLOT {
        return Some((Some(mark_of(text.strip_suffix('\n')?)?), None));
    }
    let slots = [text.get(..SLOT)?, text.get(SLOT..)?];
    let newest = slots.into_iter().filter_map(of_slot).max_by_key(|(written, _)| *written);
    newest.map(|(written, mark)| (mark, Some(written)))
}

/// A line is `NUMBER IDENTITY COUNT CHECK`, or `NUMBER - CHECK` if nothing is remembered yet. None if it was cut off.
fn of_slot(slot: &str) -> Option<(u64, Option<StoreMark>)> {
    let (line, check) = slot.trim_end().rsplit_once(' ')?;
    let (number, mark) = line.split_once(' ').filter(|_| check == check_of(line))?;
    let mark = if mark == "-" { None } else { Some(mark_of(mark)?) };
    Some((number.parse().ok()?, mark))
}

fn mark_of(text: &str) -> Option<StoreMark> {
    let (identity, decisions) = text.split_once(' ')?;
    let identity = HEXLOWER.decode(identity.as_bytes()).ok()?.try_into().ok()?;
    Some(StoreMark { identity, decisions: decisions.parse().ok()? })
}

/// Shows whether a line was written to its end.
fn check_of(line: &str) -> String {
    HEXLOWER.encode(&blake3::hash(line.as_bytes()).as_bytes()[..8])
}

fn slot(written: u64, mark: Option<&StoreMark>) -> [u8; SLOT] {
    let mark = mark.map(|mark| format!("{} {}", HEXLOWER.encode(&mark.identity), mark.decisions));
    let line = format!("{written} {}", mark.as_deref().unwrap_or("-"));
    let line = format!("{line} {}\n", check_of(&line));
    let mut bytes = [b' '; SLOT];
    bytes[..line.len()].copy_from_slice(line.as_bytes());
    bytes
}

impl RememberedFile {
    /// Puts this on disk. Returns how often the file was written then.
    fn write(&self, mark: &StoreMark) -> io::Result<u64> {
        let Some(before) = self.written else { return create(&self.file, Some(mark)) };
        let file = match OpenOptions::new().write(true).open(&self.file) {
            // It was removed.
            Err(error) if error.kind() == ErrorKind::NotFound => return create(&self.file, Some(mark)),
            opened => opened?,
        };
        let written = before + 1;
        let place = if written.is_multiple_of(2) { 0 } else { SLOT as u64 };
        file.write_all_at(&slot(written, Some(mark)), place)?;
        file.sync_data()?;
        Ok(written)
    }
}

/// Writes the whole file, in the place of what was there.
fn create(file: &Path, mark: Option<&StoreMark>) -> io::Result<u64> {
    let directory = file.parent().unwrap_or(Path::new("."));
    let beside = file.with_extension("new");
    let mut new = File::create(&beside)?;
    new.write_all(&[slot(0, mark), slot(1, mark)].concat())?;
    new.sync_data()?;
    fs::rename(&beside, file)?;
    File::open(directory)?.sync_all()?;
    Ok(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: &str = "a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7";

    fn mark(decisions: u64) -> StoreMark {
        StoreMark { identity: [0xa7; 16], decisions }
    }

    /// A directory of the test's own, and the file in it.
    fn place(name: &str) -> (PathBuf, PathBuf) {
        let directory = std::env::temp_dir().join(format!("marram-remembered-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("coordinator-seen");
        (directory, path)
    }

    fn on_disk(path: &Path) -> Option<StoreMark> {
        RememberedFile::open(path.to_path_buf()).unwrap().mark().cloned()
    }

    #[test]
    fn what_was_remembered_is_there_after_a_restart() {
        let (directory, path) = place("restart");
        assert_eq!(on_disk(&path), None);
        let mut file = RememberedFile::open(path.clone()).unwrap();
        // No other file can be made any more.
        fs::create_dir(path.with_extension("new")).unwrap();
        for count in 7..12 {
            file.remember(mark(count));
            assert_eq!(on_disk(&path), Some(mark(count)));
        }
        // An operator accepts another store, which is not as far.
        file.remember(mark(2));
        assert_eq!(on_disk(&path), Some(mark(2)));
        fs::remove_file(&path).unwrap();
        file.remember(mark(8));
        assert!(!file.save());
        assert_eq!(file.mark(), Some(&mark(2)), "only what is on disk counts");
        fs::remove_dir(path.with_extension("new")).unwrap();
        assert!(file.save());
        assert_eq!(on_disk(&path), Some(mark(8)));
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_write_that_was_cut_off_leaves_what_was_there() {
        let (directory, path) = place("cut");
        let mut file = RememberedFile::open(path.clone()).unwrap();
        for count in [7, 8] {
            file.remember(mark(count));
        }
        let whole = fs::read(&path).unwrap();
        let before = [mark(7), mark(8)].map(|mark| {
            let line = slot(if mark.decisions == 7 { 2 } else { 3 }, Some(&mark));
            whole.chunks(SLOT).position(|chunk| *chunk == line[..]).expect("a slot has it")
        });
        for cut in 0..SLOT - 1 {
            // The last write reached the disk up to here; behind it there is what was there before.
            let mut torn = whole.clone();
            let at = before[1] * SLOT;
            torn[at + cut..at + SLOT].copy_from_slice(&slot(1, None)[cut..]);
            fs::write(&path, &torn).unwrap();
            let found = on_disk(&path);
            assert!(found == Some(mark(7)) || found == Some(mark(8)), "{cut}: {found:?}");
        }
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_file_of_an_earlier_version_is_read_and_an_odd_one_refused() {
        let (directory, path) = place("odd");
        fs::write(&path, format!("{IDENTITY} 8\n")).unwrap();
        let mut file = RememberedFile::open(path.clone()).unwrap();
        assert_eq!(file.mark(), Some(&mark(8)));
        file.remember(mark(9));
        assert_eq!(on_disk(&path), Some(mark(9)));
        let spoilt = " ".repeat(2 * SLOT);
        for odd in ["", "a7 8\n", &format!("{IDENTITY} 8"), "\u{fffd}", &spoilt] {
            fs::write(&path, odd).unwrap();
            let why = RememberedFile::open(path.clone()).unwrap_err().to_string();
            assert!(why.contains("remove it"), "{why}");
        }
        fs::remove_dir_all(directory).unwrap();
    }
}
