//! A stage's image: the frozen state of a module after initialisation, its compiled code, and the file format of both.
//! `chain` defines what a session names: one stage or several.
//!
//! Cells start by mapping, not by copying. The non-zero pages are in the code's file as data
//! segments; the engine puts them into a memfd once and maps it copy-on-write into each slot, so
//! the cost of a start does not grow with the image (`deploy` bounds the span so that this holds).
//! `memory` keeps the same pages a second time, because checkpoints need them for comparison.
//!
//! This module does not know directories or apps' contents; `images` stores these bytes and
//! `deploy` makes them.

use crate::app::{decode_keys, decode_servers, encode_keys, encode_servers};
use crate::bytes_io::{Reader, put_bytes, put_u32, put_u64};
use crate::files::Files;
use crate::globals::GlobalValue;
use crate::host::Print;
use crate::image_key::ImageKey;
use crate::keys::KeyId;
use crate::limits::{GLOBALS_MAX, IMAGE_SPAN_MAX, PAGE, WASM_PAGE};
use crate::quotas::{QUOTAS_BYTES, Quotas};
use marram_wire::id::ImageHash;
use std::fmt;
use std::sync::Arc;

/// Linear memory as initialisation left it, without the pages that are all zeros.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct InitialMemory {
    /// Bytes, a multiple of a WebAssembly page.
    /// Bytes of the whole linear memory, zero pages included.
    len: usize,
    /// Page-aligned offset and whole pages of bytes, in order, neither touching nor overlapping.
    runs: Vec<(u32, Vec<u8>)>,
}

impl InitialMemory {
    /// Keeps the non-zero pages of a memory.
    ///
    /// The comparison with a page of zeros is the cost: it reads all of memory, once a deployment.
    pub(crate) fn scan(memory: &[u8]) -> Self {
        let mut runs: Vec<(u32, Vec<u8>)> = Vec::new();
        for (index, page) in memory.chunks_exact(PAGE).enumerate() {
            if page == [0; PAGE] {
                continue;
            }
            let offset = u32::try_from(index * PAGE).expect("a 32-bit memory has 32-bit offsets");
            match runs.last_mut() {
                Some((start, bytes)) if *start as usize + bytes.len() == offset as usize => {
                    bytes.extend_from_slice(page);
                }
                _ => runs.push((offset, page.to_vec())),
            }
        }
        Self { len: memory.len(), runs }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Size in the unit of the module's memory section.
    ///
    pub(crate) fn wasm_pages(&self) -> u64 {
        (self.len / WASM_PAGE) as u64
    }

    pub(crate) fn runs(&self) -> impl Iterator<Item = (u32, &[u8])> {
        self.runs.iter().map(|(offset, bytes)| (*offset, bytes.as_slice()))
    }

    /// Bytes from the first to the last non-zero page.
    /// What the engine's limit for copy-on-write images counts: gaps of zeros between the runs are
    /// part of it.
    pub(crate) fn span(&self) -> usize {
        match (self.runs.first(), self.runs.last()) {
            (Some(first), Some(last)) => last.0 as usize + last.1.len() - first.0 as usize,
            _ => 0,
        }
    }

    /// Total bytes of the kept pages.
    /// The two differ from [`Self::span`] by the zero pages in between.
    pub(crate) fn bytes(&self) -> usize {
        self.runs.iter().map(|run| run.1.len()).sum()
    }

    /// The contents of a page, or `None` if it is zero.
    /// `index` is a page number of 4 KiB pages. Runs are sorted, so this is a binary search:
    /// checkpoints call it for each page.
    pub(crate) fn page(&self, index: u32) -> Option<&[u8]> {
        let offset = index as usize * PAGE;
        let after = self.runs.partition_point(|run| run.0 as usize <= offset);
        let (start, bytes) = self.runs.get(after.checked_sub(1)?)?;
        bytes.get(offset - *start as usize..)?.get(..PAGE)
    }

    /// `| length 8 | run count 4 | (offset 4 | length 4 | pages)* |`
    fn encode(&self, out: &mut Vec<u8>) {
        put_u64(out, self.len as u64);
        put_u32(out, u32::try_from(self.runs.len()).expect("fewer runs than pages"));
        for (offset, bytes) in &self.runs {
            put_u32(out, *offset);
            put_bytes(out, bytes);
        }
    }

    /// Accepts only what [`Self::scan`] can have made: whole aligned pages, ascending, within the
    /// memory, and not spread wider than the engine maps. It does not refuse runs that touch, or
    /// pages of zeros: they are legal and only wasteful.
    fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        let len = usize::try_from(reader.u64()?).ok()?;
        if !len.is_multiple_of(WASM_PAGE) || len as u64 > crate::limits::MEMORY_MAX {
            return None;
        }
        let count = reader.u32()?;
        let mut runs: Vec<(u32, Vec<u8>)> = Vec::new();
        let mut end = 0;
        for _ in 0..count {
            let offset = reader.u32()?;
            let bytes = reader.bytes()?;
            let aligned = (offset as usize).is_multiple_of(PAGE) && bytes.len().is_multiple_of(PAGE);
            if !aligned || bytes.is_empty() || (offset as usize) < end {
                return None;
            }
            end = offset as usize + bytes.len();
            if end > len {
                return None;
            }
            runs.push((offset, bytes.to_vec()));
        }
        let memory = Self { len, runs };
        (memory.span() <= IMAGE_SPAN_MAX).then_some(memory)
    }
}

/// What one stage of a cell starts from; most cells have only one stage. All cells share it. It is valid on this machine only:
/// another machine makes its own from the app.
#[derive(Debug)]
pub(crate) struct StageImage {
    /// The app's digest, under which the file is stored. The file's own bytes depend on the machine
    /// and have no name.
    pub(crate) hash: ImageHash,
    /// Those of the manifest, except that a debugger's image has no limit of time.
    pub(crate) quotas: Quotas,
    /// Keys that the host signs with for the cells, in the order of the numbers that the cells use.
    pub(crate) keys: Vec<KeyId>,
    /// The names of the servers to which cells may connect.
    pub(crate) servers: Vec<String>,
    /// The engine version and settings that `code` works with.
    pub(crate) compatibility: u64,
    pub(crate) memory: InitialMemory,
    /// Mutable globals after initialisation, in the order of their indices in the module; `deploy`
    /// gave the n-th an export name.
    pub(crate) globals: Vec<GlobalValue>,
    pub(crate) files: Files,
    /// What initialisation printed; not kept in the file.
    pub(crate) prints: Vec<Print>,
    /// Compiled code, in the engine's own format.
    /// Shared, since loading maps it into the engine and the image is also kept for comparison.
    pub(crate) code: Arc<[u8]>,
    /// Why it was compiled again when it was loaded. `None` if the file was good, or the app is
    /// new.
    pub(crate) rebuilt: Option<ImageFault>,
}

impl StageImage {
    /// Information for the operator.
    pub(crate) fn info(&self) -> ImageInfo {
        ImageInfo {
            hash: self.hash,
            memory_bytes: self.memory.len(),
            initialised_bytes: self.memory.bytes(),
            code_bytes: self.code.len(),
            globals: self.globals.len(),
            keys: self.keys.clone(),
            prints: self.prints.clone(),
            rebuilt: self.rebuilt.clone(),
        }
    }
}

/// Information for the operator about an image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImageInfo {
    /// The image's hash.
    pub hash: ImageHash,
    /// Bytes of linear memory that a cell starts with.
    pub memory_bytes: usize,
    /// Bytes of the initial pages that are not all zeros.
    pub initialised_bytes: usize,
    /// Bytes of compiled code.
    pub code_bytes: usize,
    /// Mutable globals.
    pub globals: usize,
    /// Keys that the host signs with for the cells.
    pub keys: Vec<KeyId>,
    /// What initialisation printed, if it ran during this call.
    pub prints: Vec<Print>,
    /// Why the existing compiled code could not be used, if there was any.
    pub rebuilt: Option<ImageFault>,
}

/// Why an image file cannot be used. The image is then made again from the app.
///
/// None of these is an error of the app, so none reaches a client. The operator sees it once, as a
/// warning with the reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ImageFault {
    /// There is no such file.
    Missing,
    /// It could not be read.
    Unreadable(String),
    /// The file is truncated or damaged.
    Corrupt(&'static str),
    /// The file was not written with this machine's key, or was changed later.
    NotAuthentic,
    /// The file was written by another version of this program, or on another kind of machine.
    Foreign,
}

impl fmt::Display for ImageFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("there is no compiled image"),
            Self::Unreadable(why) => write!(f, "the compiled image cannot be read: {why}"),
            Self::Corrupt(why) => write!(f, "the compiled image is damaged ({why}); check the disk"),
            Self::NotAuthentic => f.write_str(
                "the compiled image fails authentication: it was changed, or copied from another machine; check \
                 which users can write there, and check the disk",
            ),
            Self::Foreign => f.write_str(
                "the compiled image was made by another version of the engine or for another processor",
            ),
        }
    }
}

/// Begins every image file.
/// Different from an app's, a chain's and a checkpoint's, so a file in the wrong place is refused
/// by its first bytes.
const MAGIC: [u8; 4] = *b"MRIM";
/// Version of the layout below, and of what deployment puts into code.
const VERSION: u32 = 5;

/// An image file:
///
/// ```text
/// | magic 4 | version 4 | body length 8 | BLAKE3 of version and body 32, keyed by the directory's key | body |
/// body: | compatibility 8 | image hash 32 | quotas 39 | key count 1 | (key 32)* |
///       | server count 1 | (length 4 | name)* |
///       | memory length 8 | run count 4 | (offset 4 | length 4 | pages)* |
///       | global count 4 | (type 1 | bits 16)* | files, as in `files/codec.rs` | code: the rest |
/// ```
impl StageImage {
    pub(crate) fn encode(&self, key: &ImageKey) -> Vec<u8> {
        let mut body = Vec::with_capacity(self.memory.bytes() + self.code.len() + 256);
        put_u64(&mut body, self.compatibility);
        body.extend_from_slice(&self.hash.0);
        body.extend_from_slice(&self.quotas.encode());
        encode_keys(&self.keys, &mut body);
        encode_servers(&self.servers, &mut body);
        self.memory.encode(&mut body);
        put_u32(&mut body, u32::try_from(self.globals.len()).expect("checked against GLOBALS_MAX"));
        for global in &self.globals {
            global.encode(&mut body);
        }
        self.files.encode_image(&mut body);
        body.extend_from_slice(&self.code);

        let mut out = Vec::with_capacity(body.len() + 48);
        out.extend_from_slice(&MAGIC);
        put_u32(&mut out, VERSION);
        put_u64(&mut out, body.len() as u64);
        out.extend_from_slice(key.mac(VERSION, &body).as_bytes());
        out.extend_from_slice(&body);
        out
    }

    /// Reads an image file. On success, a holder of the key wrote it for exactly this engine, so the code comes from this
    /// program's compiler.
    ///
    /// `hash` is the name under which the file was found: an authentic file of another app must not
    /// be run in its place. Nothing of the body is parsed before its authentication code has been
    /// checked, for the code in it runs unchecked.
    pub(crate) fn decode(
        bytes: &[u8],
        hash: ImageHash,
        compatibility: u64,
        key: &ImageKey,
    ) -> Result<Self, ImageFault> {
        let mut reader = Reader::new(bytes);
        if reader.take(4) != Some(&MAGIC) {
            return Err(ImageFault::Corrupt("it does not begin with the header of an image"));
        }
        if reader.u32() != Some(VERSION) {
            return Err(ImageFault::Foreign);
        }
        let len = reader.u64().ok_or(ImageFault::Corrupt("it is truncated"))?;
        let mac: [u8; 32] = reader.array().ok_or(ImageFault::Corrupt("it is truncated"))?;
        let body = reader.rest();
        if body.len() as u64 != len {
            return Err(ImageFault::Corrupt("its length is wrong"));
        }
        // Compares in constant time.
        if key.mac(VERSION, body) != mac {
            return Err(ImageFault::NotAuthentic);
        }
        let mut reader = Reader::new(body);
        if reader.u64() != Some(compatibility) {
            return Err(ImageFault::Foreign);
        }
        if reader.array() != Some(hash.0) {
            return Err(ImageFault::Corrupt("it is another app's"));
        }
        Self::decode_body(&mut reader, hash, compatibility).ok_or(ImageFault::Corrupt("its fields are wrong"))
    }

    /// Only for a body that is authentic. Its fields are checked all the same: `None` is then a bug
    /// of the program that wrote it.
    fn decode_body(reader: &mut Reader<'_>, hash: ImageHash, compatibility: u64) -> Option<Self> {
        let quotas: &[u8; QUOTAS_BYTES] = reader.take(QUOTAS_BYTES)?.try_into().ok()?;
        let quotas = Quotas::decode(quotas)?;
        let (keys, servers) = (decode_keys(reader)?, decode_servers(reader)?);
        let memory = InitialMemory::decode(reader)?;
        let count = reader.u32().filter(|count| *count as usize <= GLOBALS_MAX)?;
        let globals = (0..count).map(|_| GlobalValue::decode(reader)).collect::<Option<_>>()?;
        let files = Files::decode_image(reader)?;
        let code = reader.rest().into();
        Some(Self {
            hash,
            quotas,
            keys,
            servers,
            compatibility,
            memory,
            globals,
            files,
            prints: Vec::new(),
            code,
            rebuilt: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn initial_memory_keeps_what_is_not_zero() {
        let mut bytes = vec![0; WASM_PAGE];
        bytes[PAGE] = 1;
        bytes[2 * PAGE + 5] = 2;
        bytes[9 * PAGE] = 3;
        let memory = InitialMemory::scan(&bytes);
        assert_eq!(
            memory.runs().map(|(at, run)| (at, run.len())).collect::<Vec<_>>(),
            [(4096, 8192), (36864, 4096)]
        );
        for index in 0..16 {
            let page = &bytes[index * PAGE..][..PAGE];
            let kept = memory.page(index.try_into().unwrap());
            assert_eq!(kept.unwrap_or(&[0; PAGE]), page, "{index}");
        }
        let mut encoded = Vec::new();
        memory.encode(&mut encoded);
        assert_eq!(InitialMemory::decode(&mut Reader::new(&encoded)), Some(memory));
        for end in 0..encoded.len() {
            assert_eq!(InitialMemory::decode(&mut Reader::new(&encoded[..end])), None);
        }
    }
}
