//! Recordings as files. Those that an operator asked for are where the admin API fetches and removes them; those of stopped
//! handlers stay, within limits. Only the edge's user can read either.
//!
//! ```text
//! asked     STATE/recordings/SESSION-PID-TAG.marram    removed when fetched, and at the next start
//! stopped   [record].directory/SESSION-POSITION.marram the same stop again replaces its file
//! ```
//!
//! They hold what both peers sent, in the clear unless redacted, so files have mode 0600 and
//! directories 0700. Runs on the worker's thread of a shard; several shards may share the directory
//! of stops.

use marram_http::BODY_BYTES_MAX;
use marram_session::replay::Gathered;
use marram_shard::api::RecordRequest;
use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::SystemTime,
};

/// The extension of recording files.
const ENDING: &str = "marram";

/// Where recordings of stopped handlers are kept, and how many.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stops {
    /// The directory, made when missing. The edge may remove files in it that end in `.marram`.
    pub directory: PathBuf,
    /// Most files; the oldest are removed to make room.
    pub files_max: u32,
    /// Most bytes of all of them.
    pub bytes_max: u64,
    /// Whether messages are left out.
    pub redact: bool,
    /// The arguments with which `marram replay` fetches the app, which the files do not contain.
    pub from: String,
}

impl Stops {
    /// Files that are kept by default.
    pub const FILES: u32 = 64;
    /// Bytes that are kept by default.
    pub const BYTES: u64 = 256 << 20;
}

/// Where recordings go.
#[derive(Clone, Debug)]
pub(super) struct Recordings {
    /// The directory of those that an operator asked for; emptied when the edge starts.
    asked: PathBuf,
    stops: Option<Stops>,
}

impl Recordings {
    pub(super) fn new(asked: PathBuf, stops: Option<Stops>) -> Self {
        Self { asked, stops }
    }

    /// Makes and writes a recording; returns the file's name, or, if the file stays here, the arguments with which `marram
    /// replay` shows it.
    ///
    /// # Errors
    /// In words for the operator: the session is not affected.
    pub(super) fn keep(
        &self,
        request: RecordRequest,
        gathered: Gathered,
        edge: String,
        unix_ns: i64,
        state: Option<[u8; 32]>,
    ) -> Result<String, String> {
        let key = gathered.keys.redaction();
        let made = gathered.assemble(edge, unix_ns, state).map_err(|error| error.to_string())?;
        let redact =
            request.redact || request.tag.is_none() && self.stops.as_ref().is_some_and(|stops| stops.redact);
        let recording = if redact { made.redacted(&key) } else { made };
        let file = recording.encode();
        let (session, position) =
            (recording.about.session, recording.about.log_offset + recording.log.len() as u64);
        match (request.tag, &self.stops) {
            (Some(tag), _) => {
                if file.len() > BODY_BYTES_MAX {
                    let size = file.len();
                    return Err(format!(
                        "the recording has {size} bytes; the admin API sends at most {BODY_BYTES_MAX}"
                    ));
                }
                let name = format!("{session}-{}-{tag}.{ENDING}", std::process::id());
                write(&self.asked, &name, &file).map_err(|error| failed(&self.asked, &error))?;
                Ok(name)
            }
            (None, Some(stops)) => {
                let name = format!("{session}-{position}.{ENDING}");
                make_room(stops, &name, file.len() as u64)?;
                write(&stops.directory, &name, &file).map_err(|error| failed(&stops.directory, &error))?;
                let path = stops.directory.join(name);
                Ok(if redact {
                    format!("{} --list", path.display())
                } else {
                    format!("{} {}", path.display(), stops.from)
                })
            }
            // The control asks for recordings of stops only where they are configured.
            (None, None) => Err("it was not asked for".to_string()),
        }
    }
}

fn failed(directory: &Path, error: &io::Error) -> String {
    format!(
        "it cannot be written to {}: {error}; free space there, or name another directory",
        directory.display()
    )
}

/// Makes a directory that only this user can read, and removes recordings in it that were not fetched.
pub(super) fn prepare(asked: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(asked)?;
    for (path, ..) in files(asked)? {
        fs::remove_file(path)?;
    }
    Ok(())
}

/// Reads and removes a recording that an operator asked for.
///
/// # Errors
/// If it is not there.
///
/// `name` comes from the shard that wrote it, not from the operator.
pub fn take(asked: &Path, name: &str) -> io::Result<Vec<u8>> {
    let path = asked.join(name);
    let bytes = fs::read(&path)?;
    fs::remove_file(path)?;
    Ok(bytes)
}

/// Writes a file atomically: it is complete under its name or not there.
fn write(directory: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    write_private(&directory.join(name), bytes)
}

/// Writes a file that no other user can read, atomically: it is complete under its name or not there.
///
/// # Errors
/// If it cannot be written; no part of it remains then.
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(format!(".{}.new", std::process::id()));
    let aside = PathBuf::from(aside);
    let create = || -> io::Result<File> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&aside)?;
        file.write_all(bytes)?;
        Ok(file)
    };
    let written = create().and_then(|file| file.sync_all()).and_then(|()| fs::rename(&aside, path));
    if written.is_err() {
        // The write has failed already: that a temporary file also remains does not matter.
        let _ = fs::remove_file(&aside);
    }
    written
}

/// Removes the oldest recordings until another of this size fits.
/// By modification time. Files of other names are neither counted nor removed, and neither is the
/// file that is about to be replaced.
fn make_room(stops: &Stops, name: &str, size: u64) -> Result<(), String> {
    if size > stops.bytes_max || stops.files_max == 0 {
        return Err(format!("it has {size} bytes; record.bytes or record.files allow less"));
    }
    let mut kept = match files(&stops.directory) {
        Ok(kept) => kept,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(&stops.directory, &error)),
    };
    kept.retain(|(path, ..)| path.file_name().is_some_and(|other| other != name));
    kept.sort_by_key(|(_, at, _)| *at);
    let mut bytes = size + kept.iter().map(|(.., size)| size).sum::<u64>();
    let mut count = kept.len() as u64 + 1;
    for (path, _, size) in kept {
        if bytes <= stops.bytes_max && count <= u64::from(stops.files_max) {
            break;
        }
        fs::remove_file(path).map_err(|error| failed(&stops.directory, &error))?;
        bytes -= size;
        count -= 1;
    }
    Ok(())
}

/// The recordings in a directory, each with its time and size.
fn files(directory: &Path) -> io::Result<Vec<(PathBuf, SystemTime, u64)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == ENDING) {
            // Another shard may have removed it to make room.
            let Ok(meta) = fs::metadata(&path) else { continue };
            files.push((path, meta.modified()?, meta.len()));
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_oldest_are_removed_and_other_users_cannot_read() {
        let directory = std::env::temp_dir().join(format!("marram-recordings-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        let from = "--from edge".to_owned();
        let stops =
            Stops { directory: directory.join("stops"), files_max: 3, bytes_max: 100, redact: false, from };
        let keep = |name: &str, size: usize| {
            make_room(&stops, name, size as u64)?;
            write(&stops.directory, name, &vec![7; size]).map_err(|error| error.to_string())?;
            // Gives each file its own time, independent of the resolution of the file system's clock.
            let at = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(name.as_bytes()[0].into());
            let file = File::open(stops.directory.join(name)).map_err(|error| error.to_string())?;
            file.set_modified(at).map_err(|error| error.to_string())
        };
        let names = || {
            let mut names: Vec<_> = files(&stops.directory)
                .expect("there")
                .into_iter()
                .map(|(path, ..)| path.file_name().expect("named").to_str().expect("plain").to_owned())
                .collect();
            names.sort();
            names
        };
        for name in ["a.marram", "b.marram", "c.marram", "d.marram"] {
            keep(name, 10).expect("it fits");
        }
        assert_eq!(names(), ["b.marram", "c.marram", "d.marram"]);
        keep("e.marram", 85).expect("it fits");
        assert_eq!(names(), ["d.marram", "e.marram"]);
        // A file that is written again replaces itself.
        keep("e.marram", 90).expect("it fits");
        assert_eq!(names(), ["d.marram", "e.marram"]);
        assert!(keep("f.marram", 101).is_err());
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode(&stops.directory.join("e.marram")), 0o600);
        assert_eq!(mode(&stops.directory), 0o700);
        // Files that are no recordings are not removed.
        fs::write(stops.directory.join("note.txt"), "x").expect("written");
        prepare(&stops.directory).expect("ours");
        assert_eq!(fs::read_dir(&stops.directory).expect("there").count(), 1);
        fs::remove_dir_all(&directory).expect("ours");
    }
}
