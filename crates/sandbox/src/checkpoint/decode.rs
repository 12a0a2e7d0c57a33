//! From bytes to what a stage is restored from. Whatever the bytes are, the answer is a value or an error.

use super::pages::{self, Pages};
use super::{CHECKSUM_BYTES, CheckpointId, HEADER_BYTES, Kind, MAGIC, RestoreError, VERSION, image_id};
use crate::bytes_io::Reader;
use crate::deploy::GlobalValue;
use crate::host::Ports;
use crate::limits::{
    CHECKPOINT_BYTES_MAX, GENERATOR_BYTES_MAX, GLOBALS_MAX, MEMORY_MAX, PAGE, PORTS_MAX, SCRATCH_MAX,
    WASM_PAGE,
};
use bytes::Bytes;
use marram_session::cell::Seed;
use marram_wire::id::{ImageHash, Port};

/// Checkpoints of one stage read, checked and decompressed: a full one and the deltas on it, or deltas alone.
#[derive(Debug)]
pub(crate) struct StageDecoded {
    pub(crate) image: ImageHash,
    /// The checkpoint that the first one builds on; none if that is a full one.
    pub(crate) on: Option<CheckpointId>,
    /// In order; each builds on the one before. There is one at least.
    pub(crate) chain: Vec<Parsed>,
}

/// One checkpoint.
pub(crate) struct Parsed {
    pub(crate) id: CheckpointId,
    pub(crate) memory_len: usize,
    pub(crate) memory: Pages,
    pub(crate) globals: Vec<GlobalValue>,
    pub(crate) ports: Ports,
    pub(crate) seed: Seed,
    pub(crate) position: u64,
    pub(crate) directory: Option<Vec<u8>>,
    pub(crate) descriptors: Option<Vec<u8>>,
    pub(crate) files: Vec<(u64, Pages)>,
}

impl std::fmt::Debug for Parsed {
    /// Sizes only: the contents are a session's secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parsed").field("bytes", &self.memory.size()).finish_non_exhaustive()
    }
}

impl StageDecoded {
    /// Reads checkpoints of a stage, in order.
    pub(super) fn read(checkpoints: &[Bytes], checksum: Checksum) -> Result<Self, RestoreError> {
        let mut decoded: Option<Self> = None;
        for (index, bytes) in checkpoints.iter().enumerate() {
            let (image, base, full, parsed) = parse(bytes, checksum)?;
            match &mut decoded {
                None if full && base != image_id(image) => return Err(RestoreError::Chain { index }),
                None => {
                    let on = (!full).then_some(base);
                    decoded = Some(Self { image, on, chain: vec![parsed] });
                }
                Some(decoded) => {
                    let last = decoded.last();
                    if full
                        || image != decoded.image
                        || base != last.id
                        || parsed.memory_len < last.memory_len
                    {
                        return Err(RestoreError::Chain { index });
                    }
                    decoded.chain.push(parsed);
                }
            }
        }
        decoded.ok_or(RestoreError::Empty)
    }

    pub(crate) fn first(&self) -> &Parsed {
        self.chain.first().expect("reading gives out no empty chain")
    }

    pub(crate) fn last(&self) -> &Parsed {
        self.chain.last().expect("reading gives out no empty chain")
    }
}

type Envelope = (ImageHash, CheckpointId, bool, Parsed);

/// Whether the checksum has to show that bytes are undamaged, or something better has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Checksum {
    Checked,
    Vouched,
}

fn parse(bytes: &Bytes, checksum: Checksum) -> Result<Envelope, RestoreError> {
    let cut = RestoreError::Corrupt("it is cut short");
    if bytes.len() > CHECKPOINT_BYTES_MAX {
        return Err(RestoreError::Corrupt("it is too large"));
    }
    let mut reader = Reader::new(bytes);
    let mut header = Reader::new(reader.take(HEADER_BYTES).ok_or(cut)?);
    if header.take(4) != Some(&MAGIC) {
        return Err(RestoreError::Corrupt("it does not begin as a checkpoint"));
    }
    match header.u32() {
        Some(VERSION) => {}
        version => return Err(RestoreError::Version(version.unwrap_or(0))),
    }
    let body = reader.rest();
    if header.u64() != Some(body.len() as u64) {
        return Err(RestoreError::Corrupt("its length is wrong"));
    }
    if checksum == Checksum::Checked && header.rest() != &blake3::hash(body).as_bytes()[..CHECKSUM_BYTES] {
        return Err(RestoreError::Corrupt("its checksum is wrong"));
    }
    parse_body(&bytes.slice_ref(body)).map_err(RestoreError::Corrupt)
}

fn parse_body(body: &Bytes) -> Result<Envelope, &'static str> {
    let mut reader = Reader::new(body);
    let cut = "its fields are cut short";
    let image = ImageHash(reader.array().ok_or(cut)?);
    let base: CheckpointId = reader.array().ok_or(cut)?;
    let id: CheckpointId = reader.array().ok_or(cut)?;
    let full = match reader.u8() {
        Some(0) => true,
        Some(1) => false,
        _ => return Err("it is neither full nor a delta"),
    };
    let mut fields = Fields::default();
    while !reader.is_empty() {
        let kind = reader.u8().and_then(Kind::from_number).ok_or("it has a section of unknown kind")?;
        let index = reader.u64().ok_or(cut)?;
        if reader.u32() != u32::try_from(PAGE).ok() {
            return Err("it has pages of another size");
        }
        let len = reader.u64().and_then(|len| usize::try_from(len).ok()).ok_or(cut)?;
        let payload = reader.take(len).ok_or("a section is cut short")?;
        fields.section(kind, index, &body.slice_ref(payload))?;
    }
    let parsed = fields.finish(id)?;
    Ok((image, base, full, parsed))
}

/// Sections as they are read: each at most once, but for file pages, which come once a file.
#[derive(Default)]
struct Fields {
    memory_len: Option<usize>,
    memory: Option<Pages>,
    globals: Option<Vec<GlobalValue>>,
    ports: Option<Ports>,
    generator: Option<(Seed, u64)>,
    directory: Option<Vec<u8>>,
    descriptors: Option<Vec<u8>>,
    files: Vec<(u64, Pages)>,
}

fn once<T>(field: &mut Option<T>, value: T) -> Result<(), &'static str> {
    match field.replace(value) {
        None => Ok(()),
        Some(_) => Err("a section is there twice"),
    }
}

impl Fields {
    fn section(&mut self, kind: Kind, index: u64, payload: &Bytes) -> Result<(), &'static str> {
        if kind != Kind::FilePages && index != 0 {
            return Err("a section has an index that means nothing");
        }
        match kind {
            Kind::MemorySize => once(&mut self.memory_len, memory_len(payload)?),
            Kind::MemoryPages => {
                let len = self.memory_len.ok_or("memory pages come before the memory's size")?;
                once(&mut self.memory, pages::read(payload, (len / PAGE) as u64)?)
            }
            Kind::Globals => once(&mut self.globals, globals(payload)?),
            Kind::Ports => once(&mut self.ports, ports(payload)?),
            Kind::Generator => once(&mut self.generator, generator(payload)?),
            Kind::Directory => once(&mut self.directory, payload.to_vec()),
            Kind::Descriptors => once(&mut self.descriptors, payload.to_vec()),
            Kind::FilePages => {
                if self.files.last().is_some_and(|(last, _)| *last >= index) {
                    return Err("files are out of order");
                }
                self.files.push((index, pages::read(payload, SCRATCH_MAX / PAGE as u64)?));
                Ok(())
            }
        }
    }

    fn finish(self, id: CheckpointId) -> Result<Parsed, &'static str> {
        let missing = "a section is missing";
        let (seed, position) = self.generator.ok_or(missing)?;
        Ok(Parsed {
            id,
            memory_len: self.memory_len.ok_or(missing)?,
            memory: self.memory.unwrap_or_default(),
            globals: self.globals.ok_or(missing)?,
            ports: self.ports.ok_or(missing)?,
            seed,
            position,
            directory: self.directory,
            descriptors: self.descriptors,
            files: self.files,
        })
    }
}

fn memory_len(payload: &[u8]) -> Result<usize, &'static str> {
    let wrong = "the memory's size is impossible";
    let len = u64::from_le_bytes(payload.try_into().map_err(|_| wrong)?);
    if len > MEMORY_MAX || !len.is_multiple_of(WASM_PAGE as u64) {
        return Err(wrong);
    }
    usize::try_from(len).map_err(|_| wrong)
}

fn globals(payload: &[u8]) -> Result<Vec<GlobalValue>, &'static str> {
    let wrong = "the globals are damaged";
    let mut reader = Reader::new(payload);
    let count = reader.u32().filter(|count| *count as usize <= GLOBALS_MAX).ok_or(wrong)?;
    let globals = (0..count).map(|_| GlobalValue::decode(&mut reader)).collect::<Option<_>>().ok_or(wrong)?;
    if reader.is_empty() { Ok(globals) } else { Err(wrong) }
}

fn ports(payload: &[u8]) -> Result<Ports, &'static str> {
    let wrong = "the ports are damaged";
    let mut reader = Reader::new(payload);
    let count = reader.u32().filter(|count| *count as usize <= PORTS_MAX).ok_or(wrong)?;
    let mut list = Vec::new();
    for _ in 0..count {
        let port = Port(reader.u32().ok_or(wrong)?);
        let open = reader.u8().filter(|open| *open < 2).ok_or(wrong)?;
        list.push((port, open == 1));
    }
    if !reader.is_empty() {
        return Err(wrong);
    }
    Ports::from_list(list).ok_or(wrong)
}

fn generator(payload: &[u8]) -> Result<(Seed, u64), &'static str> {
    let wrong = "the generator's state is damaged";
    let mut reader = Reader::new(payload);
    let seed = Seed(reader.array().ok_or(wrong)?);
    let position = reader.u64().filter(|position| *position <= GENERATOR_BYTES_MAX).ok_or(wrong)?;
    if reader.is_empty() { Ok((seed, position)) } else { Err(wrong) }
}
