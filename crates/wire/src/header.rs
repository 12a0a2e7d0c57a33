//! The header of a checkpoint: the state of the session, before the executor's sections with the state of the cell.
//!
//! ```text
//! checkpoint := version (1) | header size (LEB128) | header | sections
//! ```
//! All of it is sealed ([`crate::seal`]); ends see only [`crate::frame::CheckpointMeta`].

pub use crate::codec::Many;

use crate::{
    codec::{Error, Field},
    frame::CheckpointMeta,
    id::{Generation, ImageHash, Port, SessionId},
    log::Client,
    record,
};
use alloc::{string::String, vec::Vec};
use bytes::{Bytes, BytesMut};
use core::fmt;

/// 2: timers name their stage. 3: tasks and locks. 4: paused ports. 5: clients of a shared cell. 6: names of the servers to
/// which it has connected.
const VERSION: u8 = 6;
/// That of a header with clients and without such servers: edges of the release before know it.
const VERSION_WITHOUT_SERVERS: u8 = 5;
/// That of a header without clients: edges of the release before that know it.
const VERSION_WITHOUT_CLIENTS: u8 = 4;
/// The oldest version that is decoded: an edge takes over sessions from edges that run the release before its own.
const VERSION_OLDEST: u8 = 2;

record! {
    /// An output that its end had not acknowledged.
    Unacknowledged {
        /// The end of the outputs; such an output has no payload.
        close: bool,
        /// The message.
        payload: Bytes,
    }
}

record! {
    /// One port of the session at the checkpoint.
    PortState {
        /// The port.
        port: Port,
        /// Messages consumed.
        took: u64,
        /// Whether the last one was the close.
        input_closed: bool,
        /// Outputs produced.
        produced: u64,
        /// Whether the last one was the close.
        output_closed: bool,
        /// The last outputs, those that the end has not acknowledged **\[M\]**.
        outbox: Many<Unacknowledged>,
    }
}

record! {
    /// A timer of the cell.
    Timer {
        /// The stage of the chain that set it.
        stage: u8,
        /// The token that the guest gave it.
        token: u64,
        /// Session time at which it fires, in nanoseconds.
        due_ns: i64,
        /// Orders timers with the same due time.
        order: u64,
    }
}

record! {
    /// A task in the cell's queue.
    Task {
        /// The stage of the chain that queued it.
        stage: u8,
        /// The token that the guest gave it.
        token: u64,
    }
}

record! {
    /// A lock that a task holds.
    Lock {
        /// The stage of the chain that it belongs to.
        stage: u8,
        /// The number that the guest gave it.
        id: u64,
        /// The task that holds it.
        holder: u64,
        /// The tasks that wait for it, in order.
        waiting: Many<u64>,
    }
}

record! {
    /// A port that the cell has paused: its end is granted no credit.
    Paused {
        /// The stage of the chain that paused it.
        stage: u8,
        /// The port, as that stage knows it.
        port: Port,
    }
}

record! {
    /// The port of a client of a shared cell, or of a server to which it has connected, or connects.
    ClientState {
        /// The port.
        state: PortState,
        /// The client. Of a server that is not reached yet, it has no host and no generation.
        client: Client,
        /// Whether a handler of its input was stopped: it is to leave.
        expelled: bool,
    }
}

record! {
    /// A server to which a shared cell has connected, or connects.
    ConnectedServer {
        /// Its port, which is among the clients.
        port: Port,
        /// Its name.
        name: String,
    }
}

record! {
    /// The session at the checkpoint's position.
    Header {
        /// The session of the checkpoint.
        session: SessionId,
        /// The image that it runs.
        image: ImageHash,
        /// The generation of the owner that took the checkpoint.
        generation: Generation,
        /// Unique within the generation.
        number: u32,
        /// The generation of the checkpoint that it builds on; none if it is full.
        base_generation: Generation,
        /// The number of the checkpoint that it builds on.
        base_number: u32,
        /// The checkpoint covers all log before this offset.
        log_offset: u64,
        /// The running digest of the log up to there.
        head: [u8; 32],
        /// The last logged time, in nanoseconds of session time.
        last_ns: i64,
        /// How many timers were ever set.
        timers_set: u64,
        /// Timers that have not fired.
        timers: Many<Timer>,
        /// The client's port, and the server's if there is one.
        ports: Vec<PortState>,
        /// Tasks in the queue, in order.
        tasks: Many<Task>,
        /// Locks that are held.
        locks: Many<Lock>,
        /// Ports that are paused, each once.
        paused: Many<Paused>,
        /// Clients of a shared cell, which has no `ports`, and servers to which it has connected.
        clients: Many<ClientState>,
        /// The names of those servers, in ascending order of their ports.
        servers: Many<ConnectedServer>,
    }
}

/// Why a header is not that of the expected checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeaderMismatch {
    /// It names another session.
    OtherSession,
    /// It names another image.
    OtherImage,
    /// It has another generation or number.
    OtherCheckpoint,
    /// It covers other log than was announced, or is a delta instead of a full one, or the reverse.
    OtherExtent,
    /// It builds on another checkpoint than the one before it.
    OtherBase,
}

impl fmt::Display for HeaderMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OtherSession => "the checkpoint is another session's",
            Self::OtherImage => "the checkpoint is of another image",
            Self::OtherCheckpoint => "the checkpoint is not the announced one",
            Self::OtherExtent => "the checkpoint does not cover what was announced",
            Self::OtherBase => "the checkpoint does not build on the one before it",
        })
    }
}

impl core::error::Error for HeaderMismatch {}

impl Header {
    /// The oldest version that has all of it: so many edges as possible know it.
    fn version(&self) -> u8 {
        match (self.clients.0.is_empty(), self.servers.0.is_empty()) {
            (_, false) => VERSION,
            (false, true) => VERSION_WITHOUT_SERVERS,
            (true, true) => VERSION_WITHOUT_CLIENTS,
        }
    }

    /// How many messages of this client of a shared cell were consumed; 0 if it had not joined.
    #[must_use]
    pub fn client_took(&self, port: Port) -> u64 {
        let state = self.clients.0.iter().map(|client| &client.state).find(|state| state.port == port);
        state.map_or(0, |state| state.took)
    }

    /// Whether the header names this session and image, is the announced checkpoint, and builds on the one before it in the
    /// chain, if there is one. The one before a merged delta is the full checkpoint. A full one may name the full one of the ends
    /// only if it `may_be_apart`, since a standby is restored from it.
    ///
    /// # Errors
    /// The first mismatch.
    pub fn check(
        &self,
        meta: &CheckpointMeta,
        session: SessionId,
        image: ImageHash,
        (before, may_be_apart): (Option<&Self>, bool),
    ) -> Result<(), HeaderMismatch> {
        let base = before.map_or((Generation::NONE, 0), |before| (before.generation, before.number));
        if self.session != session {
            return Err(HeaderMismatch::OtherSession);
        }
        if self.image != image {
            return Err(HeaderMismatch::OtherImage);
        }
        if (self.generation, self.number) != (meta.generation, meta.number) {
            return Err(HeaderMismatch::OtherCheckpoint);
        }
        if self.log_offset != meta.log_offset || meta.is_full() != (base.0 == Generation::NONE) {
            return Err(HeaderMismatch::OtherExtent);
        }
        let is_apart = may_be_apart && meta.is_full();
        if !is_apart && (self.base_generation, self.base_number) != base {
            return Err(HeaderMismatch::OtherBase);
        }
        Ok(())
    }
}

/// Joins the two parts of a checkpoint.
#[must_use]
pub fn join(header: &Header, sections: &[u8]) -> Vec<u8> {
    let mut encoded = BytesMut::new();
    header.put(&mut encoded);
    let mut out = BytesMut::with_capacity(encoded.len() + sections.len() + 16);
    let version = header.version();
    // The empty lists.
    encoded.truncate(encoded.len() - usize::from(VERSION - version));
    version.put(&mut out);
    encoded.freeze().put(&mut out);
    out.extend_from_slice(sections);
    out.into()
}

/// Splits a checkpoint into its two parts.
///
/// # Errors
/// If its version is not supported, or its header cannot be decoded.
pub fn split(checkpoint: Bytes) -> Result<(Header, Bytes), Error> {
    front(checkpoint)?.ok_or(Error::Truncated)
}

/// As [`split`], for the first bytes of a checkpoint: the header, and the received part of the sections. `None` if more bytes are
/// needed.
///
/// # Errors
/// As [`split`].
pub fn front(checkpoint: Bytes) -> Result<Option<(Header, Bytes)>, Error> {
    let mut rest = checkpoint;
    if rest.is_empty() {
        return Ok(None);
    }
    let version = u8::take(&mut rest)?;
    if !(VERSION_OLDEST..=VERSION).contains(&version) {
        return Err(Error::Unknown);
    }
    let mut encoded = match Bytes::take(&mut rest) {
        Ok(encoded) if version < 3 => with_empty_lists(&encoded, 5),
        Ok(encoded) if version < 4 => with_empty_lists(&encoded, 3),
        Ok(encoded) if version < VERSION => with_empty_lists(&encoded, usize::from(VERSION - version)),
        Ok(encoded) => encoded,
        Err(Error::Truncated) => return Ok(None),
        Err(error) => return Err(error),
    };
    let header = Header::take(&mut encoded)?;
    // It has no second form.
    if version.max(VERSION_WITHOUT_CLIENTS) != header.version() {
        return Err(Error::Unknown);
    }
    if encoded.is_empty() { Ok(Some((header, rest))) } else { Err(Error::Trailing) }
}

/// Converts the header of an older version to the current one: adds this many empty lists at its end. The lists of tasks and
/// locks came with version 3, that of paused ports with version 4, that of clients with version 5, that of servers with version 6.
pub(crate) fn with_empty_lists(encoded: &[u8], count: usize) -> Bytes {
    [encoded, &[0; 5][..count.min(5)]].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::HostId;
    use alloc::vec;

    fn client(port: u32, expelled: bool) -> ClientState {
        let port = Port(port);
        let outbox = Many(vec![Unacknowledged { close: false, payload: Bytes::from_static(b"out") }]);
        let state =
            PortState { port, took: 3, input_closed: false, produced: 4, output_closed: false, outbox };
        let generation = Generation { count: 1, opener: 9 };
        let client = Client { session: SessionId([5; 16]), host: HostId([4; 16]), generation };
        ClientState { state, client, expelled }
    }

    fn header() -> Header {
        Header {
            session: SessionId([7; 16]),
            image: ImageHash([8; 32]),
            generation: Generation { count: 2, opener: 1 },
            number: 4,
            base_generation: Generation::NONE,
            base_number: 0,
            log_offset: 70,
            head: [6; 32],
            last_ns: 2_000,
            timers_set: 1,
            timers: Many(vec![Timer { stage: 0, token: 5, due_ns: 2_100, order: 0 }]),
            ports: Vec::new(),
            tasks: Many(vec![Task { stage: 1, token: 9 }, Task { stage: 0, token: u64::MAX }]),
            locks: Many(vec![Lock { stage: 1, id: 3, holder: 9, waiting: Many(vec![8, 7]) }]),
            paused: Many(vec![
                Paused { stage: 0, port: Port::CLIENT },
                Paused { stage: 2, port: Port::SERVER },
            ]),
            clients: Many(vec![client(0, false), client(300, true), client(Port::FIRST_CONNECTED.0, false)]),
            servers: Many(vec![ConnectedServer { port: Port::FIRST_CONNECTED, name: "store".into() }]),
        }
    }

    #[test]
    fn tasks_locks_pauses_clients_and_servers_survive() {
        let joined = join(&header(), b"cell");
        let joined = Bytes::from(joined);
        assert_eq!(split(joined.clone()), Ok((header(), Bytes::from_static(b"cell"))));
        for end in 0..=joined.len() {
            let needs_more = end < joined.len() - b"cell".len();
            let rest = |end| joined.slice(joined.len() - b"cell".len()..end);
            let expected = (!needs_more).then(|| (header(), rest(end)));
            assert_eq!(front(joined.slice(..end)), Ok(expected), "{end}");
        }
    }

    #[test]
    fn a_header_is_written_so_that_as_many_releases_as_possible_know_it() {
        let no_servers = Header { servers: Many::default(), ..header() };
        let no_clients = Header { clients: Many::default(), ..no_servers.clone() };
        for (header, version) in [(header(), 6), (no_servers, 5), (no_clients, 4)] {
            assert_eq!(join(&header, b"cell")[0], version);
            // It has no second form.
            for lists in 0..=2 {
                let mut encoded = BytesMut::new();
                header.put(&mut encoded);
                encoded.truncate(encoded.len() - lists);
                let mut other = BytesMut::new();
                let other_version = VERSION - u8::try_from(lists).expect("few");
                other_version.put(&mut other);
                encoded.freeze().put(&mut other);
                let read = split(other.freeze());
                assert_eq!(read.is_ok(), other_version == version, "{version} as {other_version}");
            }
        }
    }

    #[test]
    fn a_header_that_is_cut_anywhere_is_refused() {
        let mut encoded = BytesMut::new();
        header().put(&mut encoded);
        for end in 0..encoded.len() {
            let mut cut = BytesMut::new();
            VERSION.put(&mut cut);
            Bytes::copy_from_slice(&encoded[..end]).put(&mut cut);
            assert!(split(cut.freeze()).is_err(), "{end}");
        }
    }

    #[test]
    fn what_an_older_checkpoint_does_not_know_is_empty() {
        let before_servers = Header { servers: Many::default(), ..header() };
        let before_clients = Header { clients: Many::default(), ..before_servers.clone() };
        let before_pauses = Header { paused: Many::default(), ..before_clients.clone() };
        let before_tasks = Header { tasks: Many::default(), locks: Many::default(), ..before_pauses.clone() };
        for (version, lists, expected) in
            [(5_u8, 1, before_servers), (4, 2, before_clients), (3, 3, before_pauses), (2, 5, before_tasks)]
        {
            let mut encoded = BytesMut::new();
            expected.put(&mut encoded);
            encoded.truncate(encoded.len() - lists);
            let mut old = BytesMut::new();
            version.put(&mut old);
            encoded.freeze().put(&mut old);
            old.extend_from_slice(b"cell");
            assert_eq!(split(old.clone().freeze()), Ok((expected, Bytes::from_static(b"cell"))));
            for other in (0..=7).filter(|other| *other != version) {
                old[0] = other;
                assert!(split(old.clone().freeze()).is_err(), "{version} as {other}");
            }
        }
    }
}
