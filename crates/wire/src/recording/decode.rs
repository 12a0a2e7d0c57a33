//! Decodes a record file: nothing is trusted before its checksum is verified, no allocation is larger than the file can fill, and
//! a file that cannot be run is refused with the offset of the error.

use super::{
    APPS_MAX, About, CELL_MESSAGES_MAX, HEAD, Inputs, MAGIC, MESSAGES_MAX, RECORDING_SIZE_MAX,
    RecordedMessage, RecordedStop, Recording, RecordingError, SECTION_HEAD, VERSION, VERSION_OLDEST,
    checksum, kind,
};
use crate::{
    codec::{Error, Field},
    header::{Header, with_empty_lists},
    id::{ImageHash, Port},
    limits::{CHECKPOINTS_SIZE_MAX, DELTAS_MAX, LOG_SIZE_MAX},
    log::{Cursor, Event},
};
use alloc::{boxed::Box, vec, vec::Vec};
use bytes::Bytes;

/// One section of the file.
struct Section {
    kind: u8,
    /// The offset of its first byte.
    offset: u64,
    payload: Bytes,
}

impl Section {
    fn broken(&self, what: &'static str) -> RecordingError {
        RecordingError { offset: self.offset, what }
    }

    /// Decodes the whole payload as one value.
    fn read<T: Field>(&self) -> Result<T, RecordingError> {
        let mut rest = self.payload.clone();
        let value = T::take(&mut rest)
            .and_then(|value| if rest.is_empty() { Ok(value) } else { Err(Error::Trailing) });
        value.map_err(|error| RecordingError {
            offset: self.offset + (SECTION_HEAD + self.payload.len() - rest.len()) as u64,
            what: match error {
                Error::Truncated => "a section ends in the middle of a value",
                Error::TooLarge => "a value is larger than its limit",
                Error::Unknown => "a value is not known to this version",
                Error::Trailing => "a section has bytes left over",
            },
        })
    }
}

impl Recording {
    /// Decodes a file.
    ///
    /// # Errors
    /// If it is not a record file, has an unknown version, is truncated or changed, or is inconsistent; each with the offset.
    pub fn decode(file: &Bytes) -> Result<Self, RecordingError> {
        let (version, sections) = sections(file)?;
        let mut sections = sections.into_iter().peekable();
        let end = RecordingError { offset: file.len() as u64, what: "sections are missing" };
        let mut next = |wanted: u8| sections.next_if(|section| section.kind == wanted);

        let section = next(kind::ABOUT)
            .ok_or(RecordingError { offset: HEAD as u64, what: "the section `about` is missing" })?;
        let about = read_about(section, version)?;
        let header = next(kind::HEADER).map(|section| read_header(section, version, &about)).transpose()?;
        let mut checkpoints: Vec<Bytes> = Vec::new();
        while let Some(section) = next(kind::CHECKPOINT) {
            let size: u64 = checkpoints.iter().map(|checkpoint| checkpoint.len() as u64).sum();
            let fits = checkpoints.len() <= DELTAS_MAX
                && size + section.payload.len() as u64 <= CHECKPOINTS_SIZE_MAX;
            if header.is_none() || !fits {
                return Err(section.broken("there are too many checkpoints"));
            }
            checkpoints.push(section.payload);
        }
        let log = next(kind::LOG).ok_or(end.clone())?;
        if checkpoints.is_empty() && (header.is_some() || about.log_offset > 0 && !about.redacted) {
            return Err(log.broken("the checkpoint that the log continues is missing"));
        }
        let mut inputs: Vec<(Section, Inputs)> = Vec::new();
        while let Some(section) = next(kind::INPUTS) {
            let read: Inputs = section.read()?;
            if !is_next(&about, &inputs, &read) {
                return Err(section.broken("there are messages of an unknown port, or too many messages"));
            }
            inputs.push((section, read));
        }
        if inputs.is_empty() && !about.shared {
            return Err(end);
        }
        let stop = next(kind::STOP)
            .map(|section| section.read::<RecordedStop>().map(|stop| (section, stop)))
            .transpose()?;
        let mut apps = Vec::new();
        while let Some(section) = next(kind::APP) {
            let mut rest = section.payload.clone();
            let image = ImageHash::take(&mut rest).map_err(|_| section.broken("an app has no name"))?;
            if apps.len() == APPS_MAX {
                return Err(section.broken("there are more apps than a chain has stages"));
            }
            apps.push((image, rest));
        }
        if let Some(section) = sections.next() {
            return Err(section.broken("a section is not known to this version, or not in its place"));
        }
        check_ports(&about, &log, header.as_deref(), &inputs)?;
        check_said(&about, &inputs)?;
        let last_ns = header.as_ref().map_or(0, |header| header.last_ns);
        check_log(&about, last_ns, &log, &inputs, stop.as_ref())?;
        let inputs = inputs.into_iter().map(|(_, inputs)| inputs).collect();
        let stop = stop.map(|(_, stop)| stop);
        Ok(Self { about, header, checkpoints, log: log.payload, inputs, stop, apps })
    }
}

/// The file's version and its sections, each with a verified checksum.
fn sections(file: &Bytes) -> Result<(u32, Vec<Section>), RecordingError> {
    let broken = |offset: usize, what| RecordingError { offset: offset as u64, what };
    if file.len() < HEAD || file[..4] != MAGIC {
        return Err(broken(0, "it does not begin with the header of a record file"));
    }
    let mut rest = file.slice(4..);
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
    let version = u32::try_from(word(&rest.split_to(4))).unwrap_or(u32::MAX);
    if !(VERSION_OLDEST..=VERSION).contains(&version) {
        return Err(broken(4, "it is of a version that this build does not read"));
    }
    if word(&rest.split_to(8)) != rest.len() as u64 || file.len() as u64 > RECORDING_SIZE_MAX {
        return Err(broken(8, "its length differs from its header: it was truncated, or bytes were added"));
    }
    let mut sections = Vec::new();
    while !rest.is_empty() {
        let at = file.len() - rest.len();
        if rest.len() < SECTION_HEAD {
            return Err(broken(at, "it ends within a section"));
        }
        let head = rest.split_to(SECTION_HEAD);
        let length = usize::try_from(word(&head[1..9])).ok().filter(|length| *length <= rest.len());
        let Some(length) = length else { return Err(broken(at, "a section is longer than the file")) };
        let payload = rest.split_to(length);
        if checksum(head[0], &payload) != head[9..] {
            return Err(broken(at, "the checksum of a section is wrong"));
        }
        sections.push(Section { kind: head[0], offset: at as u64, payload });
    }
    Ok((version, sections))
}

/// What the file is of. Files of older versions are of no shared cell.
fn read_about(mut section: Section, version: u32) -> Result<About, RecordingError> {
    if version < 5 {
        section.payload = [&section.payload[..], &[0]].concat().into();
    }
    section.read()
}

/// Whether these messages may follow those before: of the client and the server, or of the ports of a shared cell in their order.
fn is_next(about: &About, before: &[(Section, Inputs)], next: &Inputs) -> bool {
    let count = |inputs: &Inputs| inputs.messages.0.len() as u64;
    if !about.shared {
        return [Port::CLIENT, Port::SERVER].get(before.len()) == Some(&next.port)
            && count(next) <= MESSAGES_MAX;
    }
    let follows = before.last().is_none_or(|(_, last)| last.port < next.port) && next.port != Port::SERVER;
    let all: u64 = before.iter().map(|(_, inputs)| count(inputs)).sum();
    follows && all + count(next) <= CELL_MESSAGES_MAX
}

/// The header, in the file's version.
fn read_header(mut section: Section, version: u32, about: &About) -> Result<Box<Header>, RecordingError> {
    section.payload = match version {
        ..2 => with_empty_lists(&section.payload, 5),
        2 => with_empty_lists(&section.payload, 3),
        3 => with_empty_lists(&section.payload, 2),
        4 | 5 => with_empty_lists(&section.payload, 1),
        _ => section.payload,
    };
    let read: Header = section.read()?;
    let same = read.session == about.session && read.image == about.image;
    if !same || read.log_offset != about.log_offset || about.redacted {
        return Err(section.broken("the checkpoint is of another session or position"));
    }
    if about.shared != read.ports.is_empty() || !about.shared && !read.clients.0.is_empty() {
        return Err(section.broken("the checkpoint is of a shared cell and the file is not, or the reverse"));
    }
    Ok(Box::new(read))
}

/// The messages continue where the checkpoint ends.
fn check_ports(
    about: &About,
    log: &Section,
    header: Option<&Header>,
    inputs: &[(Section, Inputs)],
) -> Result<(), RecordingError> {
    const DISCONTINUED: &str = "the messages do not continue at the checkpoint";
    let Some(header) = header else { return Ok(()) };
    if about.shared {
        let other = inputs.iter().find(|(_, inputs)| inputs.first != header.client_took(inputs.port));
        return other.map_or(Ok(()), |(section, _)| Err(section.broken(DISCONTINUED)));
    }
    if header.ports.len() != inputs.len() {
        return Err(log.broken("the checkpoint has other ports than the messages are for"));
    }
    for (port, (section, inputs)) in header.ports.iter().zip(inputs) {
        if (port.port, port.took) != (inputs.port, inputs.first) {
            return Err(section.broken(DISCONTINUED));
        }
    }
    Ok(())
}

/// A file is redacted if and only if it says so.
fn check_said(about: &About, inputs: &[(Section, Inputs)]) -> Result<(), RecordingError> {
    for (section, inputs) in inputs {
        let fits = |said: &RecordedMessage| match said {
            RecordedMessage::Payload(_) => !about.redacted,
            RecordedMessage::Redacted { .. } => about.redacted,
            RecordedMessage::Close => true,
        };
        if !inputs.messages.0.iter().all(fits) {
            return Err(section.broken("the messages are redacted and the file is not, or the reverse"));
        }
    }
    Ok(())
}

/// The log can be decoded, begins and ends where it should, and the messages that it consumes are in the file.
fn check_log(
    about: &About,
    last_ns: i64,
    log: &Section,
    inputs: &[(Section, Inputs)],
    stop: Option<&(Section, RecordedStop)>,
) -> Result<(), RecordingError> {
    let size = log.payload.len();
    if size as u64 > LOG_SIZE_MAX {
        return Err(log.broken("the log is longer than the maximum"));
    }
    let (mut cursor, mut rest) = (Cursor { last_ns }, log.payload.clone());
    let mut consumed = vec![0; inputs.len()];
    let mut first = about.log_offset == 0;
    while !rest.is_empty() {
        let offset = log.offset + (SECTION_HEAD + size - rest.len()) as u64;
        let entry = cursor
            .take(&mut rest)
            .map_err(|_| RecordingError { offset, what: "a log entry cannot be decoded" })?;
        if matches!(entry.event, Event::Start { .. }) != core::mem::take(&mut first) {
            return Err(RecordingError {
                offset,
                what: "a start entry is missing, or not at the beginning of the log",
            });
        }
        consume(about, &mut consumed, entry.event, inputs).map_err(|what| RecordingError { offset, what })?;
    }
    let Some((section, stop)) = stop else { return Ok(()) };
    let mut rest = stop.entry.clone();
    let entry = cursor.take(&mut rest).ok().filter(|entry| rest.is_empty() && entry.now_ns.is_some());
    let entry = entry.ok_or(section.broken("the stopped handler's entry cannot be decoded"))?;
    if matches!(entry.event, Event::Start { .. }) != first {
        return Err(section.broken("a start entry is missing, or not at the beginning of the log"));
    }
    consume(about, &mut consumed, entry.event, inputs).map_err(|what| section.broken(what))
}

fn consume(
    about: &About,
    consumed: &mut [usize],
    event: Event,
    inputs: &[(Section, Inputs)],
) -> Result<(), &'static str> {
    let port = match event {
        Event::Message(port) => port,
        Event::Port(_) if !about.shared => {
            return Err("a client joins or leaves, and the cell is not shared");
        }
        Event::Port(_) | Event::Timer | Event::Task | Event::Start { .. } => return Ok(()),
    };
    let index = inputs.iter().position(|(_, inputs)| inputs.port == port);
    let index = index.ok_or("the log consumes a message of a port that does not exist")?;
    let messages = &inputs[index].1.messages.0;
    let said = messages.get(consumed[index]).ok_or("the log consumes a message that does not exist")?;
    consumed[index] += 1;
    // The next client of a port has messages after the close of the one before.
    let last = matches!(said, RecordedMessage::Close) && !about.shared;
    if last && consumed[index] < messages.len() { Err("a peer has messages after its close") } else { Ok(()) }
}
