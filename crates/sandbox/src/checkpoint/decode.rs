//! What a stage is restored from, and how the sections of its checkpoints are read. For any input bytes the result is a
//! value or an error.

use super::pages::{self, Pages};
use super::stage::Write;
use super::{CheckpointId, Kind, RestoreError, Since, image_id};
use crate::bytes_io::Reader;
use crate::dirty::PageSet;
use crate::globals::GlobalValue;
use crate::host::Ports;
use crate::limits::{GENERATOR_BYTES_MAX, GLOBALS_MAX, MEMORY_MAX, PAGE, PORTS_MAX, SCRATCH_MAX, WASM_PAGE};
use bytes::Bytes;
use marram_session::cell::Seed;
use marram_wire::{
    codec::Field,
    id::{ImageHash, Port},
    limits::CONNECTIONS_MAX,
    peer::Peer,
};

/// Checkpoints of one stage, read, checked and decompressed: a full one and its deltas, or deltas alone.
#[derive(Debug)]
pub(crate) struct StageDecoded {
    pub(crate) image: ImageHash,
    /// The checkpoint that the first one builds on; `None` if the first is a full one.
    pub(crate) on: Option<CheckpointId>,
    /// In order; each builds on the one before. There is at least one.
    pub(crate) chain: Vec<Parsed>,
}

/// One checkpoint.
pub(crate) struct Parsed {
    pub(crate) id: CheckpointId,
    /// Whether it contains all that the deltas before it contain, and all files.
    pub(crate) is_merged: bool,
    /// What the deltas of its cell build on, if it is none of that list.
    pub(crate) since: Option<Since>,
    pub(crate) memory_len: usize,
    /// The pages of memory that it contains.
    pub(crate) pages: PageSet,
    /// Memory contents that were not taken before.
    pub(crate) writes: Vec<Write>,
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
        f.debug_struct("Parsed").field("memory_len", &self.memory_len).finish_non_exhaustive()
    }
}

impl StageDecoded {
    /// Begins the list with this checkpoint.
    pub(super) fn new((image, base, full, parsed): Envelope) -> Result<Self, RestoreError> {
        if full && base != image_id(image) {
            return Err(RestoreError::Chain { index: 0 });
        }
        let on = (!full).then_some(base);
        Ok(Self { image, on, chain: vec![parsed] })
    }

    /// Adds the next checkpoint.
    pub(super) fn push(&mut self, (image, base, full, parsed): Envelope) -> Result<(), RestoreError> {
        let last = self.last();
        if full || image != self.image || base != last.id || parsed.memory_len < last.memory_len {
            return Err(RestoreError::Chain { index: self.chain.len() });
        }
        self.chain.push(parsed);
        Ok(())
    }

    pub(crate) fn first(&self) -> &Parsed {
        self.chain.first().expect("reading gives out no empty chain")
    }

    pub(crate) fn last(&self) -> &Parsed {
        self.chain.last().expect("reading gives out no empty chain")
    }
}

/// The image, the base checkpoint, whether the checkpoint is full, and its contents.
pub(super) type Envelope = (ImageHash, CheckpointId, bool, Parsed);

/// Sections as they are read: each at most once, except file pages, which occur once per file.
#[derive(Default)]
pub(super) struct Fields {
    pub(super) memory_len: Option<usize>,
    /// Whether memory pages have begun.
    has_memory_pages: bool,
    /// The memory pages that it contains.
    pub(super) pages: PageSet,
    /// The contents of memory pages that have arrived and were not taken.
    pub(super) writes: Vec<Write>,
    pub(super) since: Option<Since>,
    globals: Option<Vec<GlobalValue>>,
    ports: Option<Ports>,
    peers: Option<Vec<(Port, Peer)>>,
    past_ports: Option<u32>,
    connections: Option<(u32, Vec<Port>)>,
    generator: Option<(Seed, u64)>,
    directory: Option<Vec<u8>>,
    descriptors: Option<Vec<u8>>,
    files: Vec<(u64, Pages)>,
}

fn once<T>(field: &mut Option<T>, value: T) -> Result<(), &'static str> {
    match field.replace(value) {
        None => Ok(()),
        Some(_) => Err(TWICE),
    }
}

const TWICE: &str = "a section occurs twice";

fn check_index(kind: Kind, index: u64) -> Result<(), &'static str> {
    if kind != Kind::FilePages && index != 0 {
        return Err("a section has an invalid index");
    }
    Ok(())
}

impl Fields {
    /// Begins memory pages, which are read as they arrive.
    pub(super) fn memory_pages(&mut self, index: u64) -> Result<(), &'static str> {
        check_index(Kind::MemoryPages, index)?;
        self.memory_len.ok_or("memory pages come before the memory's size")?;
        if std::mem::replace(&mut self.has_memory_pages, true) { Err(TWICE) } else { Ok(()) }
    }

    /// Any other section.
    pub(super) fn section(&mut self, kind: Kind, index: u64, payload: &Bytes) -> Result<(), &'static str> {
        check_index(kind, index)?;
        match kind {
            Kind::MemorySize => once(&mut self.memory_len, memory_len(payload)?),
            // Memory pages are read as they arrive, so no input can cause this.
            Kind::MemoryPages => unreachable!("memory pages are not read whole"),
            Kind::Since => {
                let memory_len =
                    self.memory_len.ok_or("a list of changed pages comes before the memory's size")?;
                once(&mut self.since, since(payload, memory_len / PAGE)?)
            }
            Kind::Globals => once(&mut self.globals, globals(payload)?),
            Kind::Ports => once(&mut self.ports, ports(payload)?),
            Kind::Peers => once(&mut self.peers, peers(payload)?),
            Kind::PastPorts => once(&mut self.past_ports, past_ports(payload)?),
            Kind::Connections => once(&mut self.connections, connections(payload)?),
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

    pub(super) fn finish(self, id: CheckpointId, is_merged: bool) -> Result<Parsed, &'static str> {
        let missing = "a section is missing";
        let (seed, position) = self.generator.ok_or(missing)?;
        let ports = self.ports.ok_or(missing)?.with_past(self.past_ports.unwrap_or(0));
        let ports = ports.with_peers(self.peers.unwrap_or_default());
        let ports = ports.ok_or("peers are out of order, or have no port")?;
        let ports = ports.with_connections(self.connections.unwrap_or_default());
        Ok(Parsed {
            id,
            is_merged,
            since: self.since,
            memory_len: self.memory_len.ok_or(missing)?,
            pages: self.pages,
            writes: self.writes,
            globals: self.globals.ok_or(missing)?,
            ports: ports.ok_or("ports of servers are not those that the cell has connected to")?,
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

/// The name of the full checkpoint, and runs of pages in order, of a memory with so many.
fn since(payload: &[u8], pages_max: usize) -> Result<Since, &'static str> {
    let wrong = "the list of changed pages is damaged";
    let mut reader = Reader::new(payload);
    let full = reader.array().ok_or(wrong)?;
    let (mut pages, mut last) = (PageSet::default(), 0);
    while !reader.is_empty() {
        let (start, end) = (reader.u32().ok_or(wrong)?, reader.u32().ok_or(wrong)?);
        if start < last || end <= start || end as usize > pages_max {
            return Err(wrong);
        }
        pages.add(start..end);
        last = end;
    }
    Ok(Since { full, pages })
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

/// The section is missing if no port was ever gone.
fn past_ports(payload: &[u8]) -> Result<u32, &'static str> {
    let past = payload.try_into().map(u32::from_le_bytes).unwrap_or(0);
    if past > 0 { Ok(past) } else { Err("the number of ports that are gone is damaged") }
}

/// How often the cell has connected to a server, and the ports of those that are not reached; the section is missing if it never has.
fn connections(payload: &[u8]) -> Result<(u32, Vec<Port>), &'static str> {
    let wrong = "the connections to servers are damaged";
    let mut reader = Reader::new(payload);
    let connects = reader.u32().filter(|connects| *connects > 0).ok_or(wrong)?;
    let mut connecting = Vec::new();
    while !reader.is_empty() {
        connecting.push(Port(reader.u32().filter(|_| connecting.len() < CONNECTIONS_MAX).ok_or(wrong)?));
    }
    Ok((connects, connecting))
}

/// What is known of clients; the section is missing if nothing is known.
fn peers(payload: &Bytes) -> Result<Vec<(Port, Peer)>, &'static str> {
    let wrong = "the peers are damaged";
    let count = payload.first_chunk().map(|count| u32::from_le_bytes(*count) as usize);
    let count = count.filter(|count| (1..=PORTS_MAX).contains(count)).ok_or(wrong)?;
    let mut rest = payload.slice(4..);
    let mut peers = Vec::new();
    for _ in 0..count {
        let port = <[u8; 4]>::take(&mut rest).map_err(|_| wrong)?;
        peers.push((Port(u32::from_le_bytes(port)), Peer::take(&mut rest).map_err(|_| wrong)?));
    }
    if rest.is_empty() { Ok(peers) } else { Err(wrong) }
}

fn generator(payload: &[u8]) -> Result<(Seed, u64), &'static str> {
    let wrong = "the generator's state is damaged";
    let mut reader = Reader::new(payload);
    let seed = Seed(reader.array().ok_or(wrong)?);
    let position = reader.u64().filter(|position| *position <= GENERATOR_BYTES_MAX).ok_or(wrong)?;
    if reader.is_empty() { Ok((seed, position)) } else { Err(wrong) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn past_ports_are_a_number_above_zero() {
        assert_eq!(past_ports(&[3, 0, 0, 0]), Ok(3));
        assert_eq!(past_ports(&[255; 4]), Ok(u32::MAX));
        for wrong in [&[][..], &[0; 4], &[1, 0, 0], &[1, 0, 0, 0, 0]] {
            assert!(past_ports(wrong).is_err(), "{wrong:?}");
        }
        let section = |fields: &mut Fields, index| {
            fields.section(Kind::PastPorts, index, &Bytes::from_static(&[1, 0, 0, 0]))
        };
        let mut fields = Fields::default();
        assert!(section(&mut fields, 1).is_err());
        assert_eq!(section(&mut fields, 0), Ok(()));
        assert_eq!(section(&mut fields, 0), Err(TWICE));
    }
}
