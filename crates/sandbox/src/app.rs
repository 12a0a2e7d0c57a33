//! A deployed app: a module, its files and its quotas. Its digest names the image, and is the same on every machine.
//!
//! An app is what an operator deploys and what edges send each other; an image (`image`) is what
//! one machine makes of it. Only the app has a name that is valid everywhere, because compiled code
//! differs between machines and engine versions. A session names its app by this digest in its
//! terms, so a recovery on another edge runs the same program with the same files and the same
//! quotas.
//!
//! This module does not know the engine: whether the module can become an image is decided in
//! `deploy`.

use crate::bytes_io::{Reader, put_bytes, put_u32};
use crate::keys::KeyId;
use crate::limits::{
    DETERMINISM_VERSION, IMAGE_FILES_BYTES_MAX, IMAGE_FILES_MAX, KEYS_MAX, NAME_BYTES_MAX, PATH_BYTES_MAX,
    SERVERS_MAX,
};
use crate::quotas::{QUOTAS_BYTES, Quotas};
use marram_wire::{id::ImageHash, limits::TEXT_MAX};

/// A read-only file that every cell of an app sees.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImageFile {
    /// Path from the root, without a leading slash: `etc/table.bin`.
    pub path: String,
    /// Contents of the file.
    pub contents: Vec<u8>,
}

impl ImageFile {
    /// Whether this can be a file's path: names from the root, separated by single slashes.
    #[must_use]
    pub fn is_path(path: &str) -> bool {
        let name = |part: &str| !matches!(part, "" | "." | "..") && part.len() <= NAME_BYTES_MAX;
        path.len() <= PATH_BYTES_MAX && !path.contains('\0') && path.split('/').all(name)
    }
}

/// Begins every stored app.
const MAGIC: [u8; 4] = *b"MRAP";
/// Versions of the layout below: without keys, and with keys.
const VERSION: u32 = 1;
/// Written if the app names a key. An app without keys keeps the first layout, so that its digest,
/// and with it the image of every session that runs it, stays the same as before keys existed.
const VERSION_KEYS: u32 = 2;
/// Written if the app's clients have one cell for each key, for the same reason.
const VERSION_SLOTS: u32 = 3;
/// Written if its cells may connect to servers, for the same reason.
const VERSION_SERVERS: u32 = 4;

/// What an app is made of.
#[derive(Clone, Copy, Debug)]
pub struct AppParts<'a> {
    /// The module.
    pub module: &'a [u8],
    /// Its files, in any order.
    pub files: &'a [ImageFile],
    /// Keys that the host signs with for the cells, in the order of the numbers that the guest uses.
    pub keys: &'a [KeyId],
    /// What a cell may use.
    pub quotas: &'a Quotas,
    /// How many slots the keys of its clients are spread over; 0 if it has no such keys. No cell observes it: with another number a key
    /// is in another slot, so that is another version of the app, with cells of its own.
    pub slots: u32,
    /// The names of the servers to which its cells may connect, in ascending order.
    pub servers: &'a [String],
}

/// A deployed app. Encoded:
///
/// ```text
/// | magic 4 | version 4 | determinism version 4 | quotas 39 |
/// | key count 1 | (key 32)* |  in version 2 with one key or more, and in versions 3 and 4
/// | slots 4 |  in version 3 one or more, and in version 4
/// | server count 1 | (length 4 | name)* |  in version 4 alone, one or more, in ascending order
/// | file count 4 | (path length 4 | path | contents length 4 | contents)* | module: the rest |
/// ```
///
/// The image hash is a digest of exactly these bytes, so they need no checksum of their own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct App {
    /// The module as it was given, with all of its custom sections: the digest covers them.
    pub(crate) module: Vec<u8>,
    /// In ascending order of their paths, which [`check_files`] enforces. One set of files has one
    /// encoding, and so one digest.
    pub(crate) files: Vec<ImageFile>,
    pub(crate) quotas: Quotas,
    /// Keys that the host signs with for the cells, in the order of the numbers that the guest uses.
    pub(crate) keys: Vec<KeyId>,
    /// As in [`AppParts::slots`].
    pub(crate) slots: u32,
    /// As in [`AppParts::servers`].
    pub(crate) servers: Vec<String>,
}

impl App {
    /// An app with its files in the order of their paths, so that the order in which they were given has no effect.
    pub(crate) fn new(parts: &AppParts<'_>) -> Result<Self, String> {
        let AppParts { module, files, keys, quotas, slots, servers } = *parts;
        let mut files = files.to_vec();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        check_files(&files)?;
        check_servers(servers)?;
        let (keys, servers) = (keys.to_vec(), servers.to_vec());
        Ok(Self { module: module.to_vec(), files, quotas: *quotas, keys, slots, servers })
    }

    fn version(&self) -> u32 {
        if !self.servers.is_empty() {
            return VERSION_SERVERS;
        }
        match (self.slots, self.keys.is_empty()) {
            (0, true) => VERSION,
            (0, false) => VERSION_KEYS,
            _ => VERSION_SLOTS,
        }
    }

    /// Writes the layout above. The same app always gives the same bytes.
    ///
    /// # Panics
    /// If there are more files or keys than the limits allow. [`App::new`] checks the files, and
    /// `deploy::check` the keys, but only after the digest was made: the caller has compared the
    /// number of keys with `KEYS_MAX` before, or they do not fit a byte.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.module.len() + 64);
        out.extend_from_slice(&MAGIC);
        let version = self.version();
        put_u32(&mut out, version);
        put_u32(&mut out, DETERMINISM_VERSION);
        out.extend_from_slice(&self.quotas.encode());
        if version != VERSION {
            encode_keys(&self.keys, &mut out);
        }
        if version >= VERSION_SLOTS {
            put_u32(&mut out, self.slots);
        }
        if version == VERSION_SERVERS {
            encode_servers(&self.servers, &mut out);
        }
        put_u32(&mut out, u32::try_from(self.files.len()).expect("checked against IMAGE_FILES_MAX"));
        for file in &self.files {
            put_bytes(&mut out, file.path.as_bytes());
            put_bytes(&mut out, &file.contents);
        }
        out.extend_from_slice(&self.module);
        out
    }

    /// Reads what [`Self::encode`] wrote. The bytes come from the disk or from another edge. Each
    /// length is checked against what is left before anything is allocated for it, so no input can
    /// make this allocate more than it has bytes.
    ///
    /// # Errors
    /// In words for an operator, without the app's hash: the caller adds it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let mut reader = Reader::new(bytes);
        if reader.take(4) != Some(&MAGIC) {
            return Err("it does not begin with the header of an app".into());
        }
        let version = match reader.u32() {
            Some(version @ VERSION..=VERSION_SERVERS) => version,
            _ => return Err("it has another format version".into()),
        };
        if reader.u32() != Some(DETERMINISM_VERSION) {
            return Err("it was deployed under another determinism version; deploy the module again".into());
        }
        let quotas: Option<&[u8; QUOTAS_BYTES]> = reader.take(QUOTAS_BYTES).and_then(|q| q.try_into().ok());
        let quotas = quotas.and_then(Quotas::decode).ok_or("its quotas are invalid")?;
        let keys = match version {
            VERSION => Vec::new(),
            _ => decode_keys(&mut reader)
                .filter(|keys| version >= VERSION_SLOTS || !keys.is_empty())
                .ok_or("its keys are invalid")?,
        };
        let slots = match version {
            VERSION_SLOTS => reader.u32().filter(|slots| *slots > 0).ok_or("its slots are invalid")?,
            VERSION_SERVERS => reader.u32().ok_or("its slots are invalid")?,
            _ => 0,
        };
        let servers = match version {
            VERSION_SERVERS => decode_servers(&mut reader)
                .filter(|servers| !servers.is_empty())
                .ok_or("its servers are invalid")?,
            _ => Vec::new(),
        };
        let count =
            reader.u32().filter(|count| *count as usize <= IMAGE_FILES_MAX).ok_or("too many files")?;
        let mut files = Vec::new();
        for _ in 0..count {
            let path = reader
                .bytes()
                .and_then(|path| std::str::from_utf8(path).ok())
                .ok_or("a path is truncated")?;
            let contents = reader.bytes().ok_or("a file is truncated")?;
            files.push(ImageFile { path: path.into(), contents: contents.into() });
        }
        check_files(&files)?;
        Ok(Self { module: reader.rest().into(), files, quotas, keys, slots, servers })
    }

    /// The hash of the image that is made from this app.
    pub(crate) fn hash(&self) -> ImageHash {
        hash_of(&self.encode())
    }
}

/// Writes the number of keys in a byte, then the keys.
pub(crate) fn encode_keys(keys: &[KeyId], out: &mut Vec<u8>) {
    out.push(u8::try_from(keys.len()).expect("checked against KEYS_MAX"));
    keys.iter().for_each(|key| out.extend_from_slice(&key.0));
}

/// Reads what [`encode_keys`] wrote.
/// `None` also if there are more than `KEYS_MAX`, which no deployment accepts.
pub(crate) fn decode_keys(reader: &mut Reader<'_>) -> Option<Vec<KeyId>> {
    let count = reader.u8().filter(|count| usize::from(*count) <= KEYS_MAX)?;
    (0..count).map(|_| reader.array().map(KeyId)).collect()
}

/// Writes the number of servers in a byte, then their names.
pub(crate) fn encode_servers(servers: &[String], out: &mut Vec<u8>) {
    out.push(u8::try_from(servers.len()).expect("checked against SERVERS_MAX"));
    servers.iter().for_each(|server| put_bytes(out, server.as_bytes()));
}

/// Reads what [`encode_servers`] wrote.
pub(crate) fn decode_servers(reader: &mut Reader<'_>) -> Option<Vec<String>> {
    let count = reader.u8()?;
    let name = |_| String::from_utf8(reader.bytes()?.to_vec()).ok();
    let servers: Vec<String> = (0..count).map(name).collect::<Option<_>>()?;
    check_servers(&servers).is_ok().then_some(servers)
}

/// Checks that these can be the servers to which an app's cells may connect.
fn check_servers(servers: &[String]) -> Result<(), String> {
    if servers.len() > SERVERS_MAX {
        return Err(format!("it may connect to {} servers; the maximum is {SERVERS_MAX}", servers.len()));
    }
    if !servers.is_sorted_by(|one, next| one < next) {
        return Err("its servers are named twice, or out of order".into());
    }
    if servers.iter().any(|server| server.is_empty() || server.len() > TEXT_MAX) {
        return Err(format!("the name of a server has 1 to {TEXT_MAX} bytes"));
    }
    Ok(())
}

/// The image hash of an encoded app.
/// The context string separates this use of BLAKE3 from all others, so an app, a chain and a key
/// never share a digest. It is part of the format: a change would rename every image.
pub(crate) fn hash_of(encoded: &[u8]) -> ImageHash {
    ImageHash(blake3::derive_key("marram image hash 1", encoded))
}

/// Checks that these can be an app's files. Fails if paths are out of order, or if a file is also a directory.
pub(crate) fn check_files(files: &[ImageFile]) -> Result<(), String> {
    if files.len() > IMAGE_FILES_MAX {
        return Err(format!("{} files; the maximum is {IMAGE_FILES_MAX}", files.len()));
    }
    if files.iter().map(|file| file.contents.len()).sum::<usize>() > IMAGE_FILES_BYTES_MAX {
        return Err(format!("they have more than {IMAGE_FILES_BYTES_MAX} bytes together"));
    }
    for file in files {
        if !ImageFile::is_path(&file.path) {
            return Err(format!(
                "`{}` is not a path from the root; write it as `dir/name`",
                file.path.escape_debug()
            ));
        }
    }
    // Strictly ascending, so this finds duplicates too.
    for pair in files.windows(2) {
        if pair[0].path >= pair[1].path {
            return Err(format!("`{}` is given twice, or out of order", pair[1].path.escape_debug()));
        }
    }
    // A path cannot be both a file and the directory of another file.
    for file in files {
        let below = format!("{}/", file.path);
        if files.iter().any(|other| other.path.starts_with(&below)) {
            return Err(format!("`{}` is both a file and a directory", file.path.escape_debug()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str) -> ImageFile {
        ImageFile { path: path.into(), contents: path.as_bytes().to_vec() }
    }

    fn made(files: &[ImageFile], keys: &[KeyId], slots: u32) -> Result<App, String> {
        App::new(&AppParts {
            module: b"module",
            files,
            keys,
            quotas: &Quotas::default(),
            slots,
            servers: &[],
        })
    }

    #[test]
    fn encoding_round_trips_in_any_order_of_files() {
        let app = made(&[file("b/c"), file("a")], &[], 0).unwrap();
        assert_eq!(App::decode(&app.encode()), Ok(app.clone()));
        assert_eq!(made(&[file("a"), file("b/c")], &[], 0).unwrap().hash(), app.hash());
        assert_ne!(made(&[file("a")], &[], 0).unwrap().hash(), app.hash());
    }

    #[test]
    fn keys_are_part_of_the_name() {
        let app = |keys: &[u8]| {
            let keys: Vec<_> = keys.iter().map(|key| KeyId([*key; 32])).collect();
            made(&[file("a")], &keys, 0).unwrap()
        };
        assert_eq!(App::decode(&app(&[1, 2]).encode()), Ok(app(&[1, 2])));
        for other in [&[][..], &[1], &[2, 1], &[1, 3]] {
            assert_ne!(app(other).hash(), app(&[1, 2]).hash());
        }
        let mut none = app(&[1]).encode();
        none[51] = 0;
        assert_eq!(App::decode(&none), Err("its keys are invalid".into()));
    }

    #[test]
    fn slots_are_part_of_the_name() {
        let app = |keys: &[u8], slots| {
            let keys: Vec<_> = keys.iter().map(|key| KeyId([*key; 32])).collect();
            made(&[file("a")], &keys, slots).unwrap()
        };
        let mut hashes = Vec::new();
        for (keys, slots) in [(&[][..], 0), (&[], 1), (&[], 64), (&[], 65), (&[1], 0), (&[1], 64)] {
            let app = app(keys, slots);
            assert_eq!(App::decode(&app.encode()), Ok(app.clone()));
            hashes.push(app.hash());
        }
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), 6);
        let mut none = app(&[], 1).encode();
        none[52] = 0;
        assert_eq!(App::decode(&none), Err("its slots are invalid".into()));
    }

    #[test]
    fn every_prefix_is_refused_or_names_another_image() {
        for slots in [0, 64] {
            let app = made(&[file("a")], &[], slots).unwrap();
            let bytes = app.encode();
            for end in 0..bytes.len() {
                assert_ne!(hash_of(&bytes[..end]), app.hash(), "{end}");
                assert_ne!(App::decode(&bytes[..end]), Ok(app.clone()), "{end}");
            }
        }
    }

    #[test]
    fn bad_paths_are_refused() {
        for path in ["", "/a", "a//b", "../a", "a/.", "a/"] {
            assert!(made(&[file(path)], &[], 0).is_err(), "{path:?}");
        }
        assert!(made(&[file("a"), file("a/b")], &[], 0).is_err());
        assert!(made(&[file("a"), file("a")], &[], 0).is_err());
    }

    #[test]
    fn servers_are_part_of_the_name_and_in_order() {
        let app = |servers: &[&str], slots| {
            let servers: Vec<String> = servers.iter().map(ToString::to_string).collect();
            let quotas = Quotas::default();
            App::new(&AppParts {
                module: b"module",
                files: &[],
                keys: &[],
                quotas: &quotas,
                slots,
                servers: &servers,
            })
        };
        let mut hashes = Vec::new();
        for (servers, slots) in [(&[][..], 0), (&["a"], 0), (&["a"], 7), (&["a", "b"], 0), (&["b"], 0)] {
            let app = app(servers, slots).unwrap();
            assert_eq!(App::decode(&app.encode()), Ok(app.clone()));
            hashes.push(app.hash());
        }
        assert!((1..hashes.len()).all(|at| !hashes[..at].contains(&hashes[at])));
        let long = "x".repeat(TEXT_MAX + 1);
        for wrong in [&["b", "a"][..], &["a", "a"], &[""], &[&long]] {
            assert!(app(wrong, 0).is_err(), "{wrong:?}");
        }
    }
}
