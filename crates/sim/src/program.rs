//! The unmodified programs on both sides: they follow their scripts, read what arrives, and do not know what is in between.
//!
//! A program is a TCP client or server that knows nothing of sessions. Its socket is simulated too:
//! how fast it takes what is written to it, how reads cut what it wrote. The agent's cut of the
//! byte stream into messages is what gets logged, so the size of each read is drawn at random.
//!
//! ```text
//! script --write--> written [........|taken......] --take--> AgentInput::Received
//! agent  --Write--> received [...................]  --Took--> AgentInput::Written, after the socket's delay
//! ```
//! Everything written and received is kept, for the oracle.

use crate::{
    plan::{HALL_TRAP_SIZE, Plan, Script, Service, hall_trap},
    random::Random,
};
use bytes::Bytes;
use marram_chain_algo::Peer;
use marram_session::agent::ConnectionId;
use marram_wire::{id::SessionId, limits::STREAM_CUT};
use std::collections::VecDeque;

/// Bytes of the length at the beginning of each datagram. Lets the cell check that a datagram
/// arrived whole: see `executor::judge_datagrams`.
pub(crate) const LENGTH: usize = 4;
/// Most further bytes in a program's datagram.
const REST_MAX: usize = 60_000;

/// The next action of a program or its socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Act {
    /// The client's connection reaches its agent.
    Accept,
    /// The server accepts its agent's connection, or does not.
    Answer(bool),
    /// Writes its next chunk, or ends its output.
    Write,
    /// The agent reads what was written.
    Pump,
    /// The socket accepted this many bytes of what the agent wrote.
    Took(u64),
}

/// What a lie can have changed of what a program received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LiedTo {
    /// Nothing.
    No,
    /// The other end of its session lied: the session may end early, and what it received is still of one history.
    ByPeer,
    /// Its own agent lied.
    ByOwnAgent,
}

/// What an end has received that followed an owner which was behind it.
#[derive(Debug)]
pub(crate) struct RanAhead {
    /// All outputs of the history that it followed last.
    pub(crate) history: Vec<u8>,
    /// Whether that history ends with a close. Else the end may have been closed by a former one, and end the session with that.
    pub(crate) is_closed: bool,
    /// Of each number that output which came first.
    pub(crate) given: Vec<u8>,
}

/// One local program with its connection.
#[derive(Debug)]
pub(crate) struct Program {
    /// Its side.
    pub(crate) peer: Peer,
    /// Index of its agent.
    pub(crate) agent: usize,
    /// Which process of the agent, counted: connections end with the process. Actions for a
    /// connection of an earlier process are dropped.
    pub(crate) life: u32,
    /// The agent's id of the connection.
    pub(crate) connection: ConnectionId,
    /// The app that it asks for; `None` for a server, except of a hall.
    pub(crate) service: Option<Service>,
    /// Which of the app's cells it asks for, as [`Visit::key`](crate::plan::Visit::key).
    pub(crate) key: Option<u8>,
    /// Its session, once its agent has one for it.
    pub(crate) session: Option<SessionId>,
    /// Whether an end of its session lied.
    pub(crate) lied_to: LiedTo,
    script: Script,
    /// Separate from the world's generator, so that the contents do not depend on when they are
    /// written.
    random: Random,
    /// Whether it uses datagrams: then each chunk is one, and begins with its length.
    pub(crate) datagrams: bool,
    /// Sizes of the datagrams that the agent has not read.
    cuts: VecDeque<usize>,
    /// The number of its visit; none of a server.
    pub(crate) visit: Option<u32>,
    /// Its chunks upon which its cell traps.
    traps: Vec<usize>,
    /// Index into the script; beyond the end, the output has ended or is about to.
    next_chunk: usize,
    /// All bytes that it has written.
    pub(crate) written: Vec<u8>,
    /// How many of them the agent has read.
    pub(crate) taken: usize,
    /// Set when the script is over; the agent learns it with its next read.
    ended: bool,
    /// Whether the agent knows that the output has ended.
    pub(crate) end_taken: bool,
    /// Whether the agent reads.
    pub(crate) reading: bool,
    /// Whether an [`Act::Pump`] is scheduled.
    pub(crate) pumping: bool,
    /// All bytes that were written to it.
    pub(crate) received: Vec<u8>,
    /// If its end has followed an owner that was behind it.
    pub(crate) ran_ahead: Option<RanAhead>,
    /// When the first of them came, and the last.
    pub(crate) received_ns: Option<(u64, u64)>,
    /// Whether it has received the end of the stream.
    pub(crate) end_received: bool,
    /// Set when the connection has ended; then whether it was reset.
    pub(crate) closed: Option<bool>,
    /// Whether a fault explains the reset, according to `world::causes`.
    pub(crate) excused: bool,
    /// Whether the program itself reset it.
    pub(crate) broke: bool,
    /// When the socket will have accepted everything, in nanoseconds.
    pub(crate) took_ns: u64,
}

/// The result of an agent's read.
#[derive(Debug)]
pub(crate) enum Taken {
    /// Bytes, and whether there are more.
    Bytes(Bytes),
    /// The output has ended.
    End,
    /// Nothing yet.
    Nothing,
}

impl Program {
    /// The client of a visit.
    #[must_use]
    pub(crate) fn client(plan: &Plan, visit: usize, life: u32, connection: ConnectionId) -> Self {
        let Some(of) = plan.visits.get(visit) else { unreachable!("visits are counted by the plan") };
        let random = Random::new(plan.seed ^ ((visit as u64) << 32), 3);
        let program = Self::new(Peer::Client, of.agent, life, connection, of.script.clone(), random);
        let (service, key) = (Some(of.service), of.key);
        let traps =
            plan.traps.chunks.iter().filter(|(of, _)| *of == visit).map(|(_, chunk)| *chunk).collect();
        let visit = u32::try_from(visit).ok();
        Self { service, key, visit, traps, datagrams: plan.datagrams[Peer::Client as usize], ..program }
    }

    /// The `nth` server that some agent connects to.
    #[must_use]
    pub(crate) fn server(plan: &Plan, nth: u64, agent: usize, life: u32, connection: ConnectionId) -> Self {
        let random = Random::new(plan.seed ^ (nth << 32), 4);
        let program = Self::new(Peer::Server, agent, life, connection, plan.server_script(nth), random);
        // What a hall tells a server, it tells its clients too.
        let service = plan.has_hall().then_some(Service::Hall);
        Self { service, datagrams: plan.datagrams[Peer::Server as usize], ..program }
    }

    fn new(
        peer: Peer,
        agent: usize,
        life: u32,
        connection: ConnectionId,
        script: Script,
        random: Random,
    ) -> Self {
        Self {
            peer,
            agent,
            life,
            connection,
            service: None,
            key: None,
            session: None,
            lied_to: LiedTo::No,
            script,
            random,
            datagrams: false,
            cuts: VecDeque::new(),
            visit: None,
            traps: Vec::new(),
            next_chunk: 0,
            written: Vec::new(),
            taken: 0,
            ended: false,
            end_taken: false,
            reading: true,
            pumping: false,
            received: Vec::new(),
            ran_ahead: None,
            received_ns: None,
            end_received: false,
            closed: None,
            excused: false,
            broke: false,
            took_ns: 0,
        }
    }

    /// Delay from its connection to its first write, in nanoseconds.
    ///
    /// A program may write before it is accepted or connected: the bytes wait in its socket.
    #[must_use]
    pub(crate) fn first_write_ns(&self) -> u64 {
        self.script.chunks.first().map_or(self.script.close_after_ns, |chunk| chunk.after_ns)
    }

    /// Writes the next chunk or ends the output; returns the delay until the next write, in nanoseconds.
    pub(crate) fn write(&mut self) -> Option<u64> {
        let Some(chunk) = self.script.chunks.get(self.next_chunk) else {
            self.ended = !self.script.resets;
            self.broke = self.script.resets;
            return None;
        };
        let start = self.written.len();
        let size = if self.datagrams { LENGTH + chunk.size.min(REST_MAX) } else { chunk.size };
        self.written.resize(start + size, 0);
        self.random.fill(&mut self.written[start..]);
        if self.datagrams {
            let length = u32::try_from(size).expect("a datagram is short").to_le_bytes();
            self.written[start..start + LENGTH].copy_from_slice(&length);
            self.cuts.push_back(size);
        }
        if let Some(visit) = self.visit.filter(|_| self.traps.contains(&self.next_chunk)) {
            self.written[start..start + HALL_TRAP_SIZE].copy_from_slice(&hall_trap(visit));
        }
        self.next_chunk += 1;
        Some(self.script.chunks.get(self.next_chunk).map_or(self.script.close_after_ns, |next| next.after_ns))
    }

    /// The agent reads no more of a datagram conversation: datagrams that it has not read belong to another one.
    pub(crate) fn answered(&mut self) {
        self.written.truncate(self.taken);
        self.cuts.clear();
        (self.script.chunks, self.script.resets) = (Vec::new(), false);
        (self.ended, self.end_taken) = (true, true);
    }

    /// Whether [`Self::take`] has something.
    #[must_use]
    pub(crate) fn is_readable(&self) -> bool {
        let has_more = self.taken < self.written.len() || self.ended;
        has_more && self.reading && !self.end_taken && self.closed.is_none()
    }

    /// The agent reads: any number of bytes, split at any place; or one datagram.
    ///
    /// Four of five reads take all that is there, up to what one frame carries.
    pub(crate) fn take(&mut self, chance: &mut Random) -> Taken {
        let ready = &self.written[self.taken..];
        if !self.reading || self.end_taken || self.closed.is_some() {
            return Taken::Nothing;
        }
        if ready.is_empty() {
            self.end_taken = self.ended;
            return if self.ended { Taken::End } else { Taken::Nothing };
        }
        let most = ready.len().min(STREAM_CUT);
        let cut = if chance.percent(80) { most } else { 1 + chance.index(most) };
        let size = self.cuts.pop_front().unwrap_or(cut);
        let bytes = Bytes::copy_from_slice(&ready[..size]);
        self.taken += size;
        Taken::Bytes(bytes)
    }

    /// When the program begins to read, relative to its first output.
    pub(crate) fn stall_ns(&self) -> u64 {
        self.script.stall_ns
    }

    /// How long the socket takes to accept the present data, in nanoseconds.
    pub(crate) fn slowness_ns(&mut self, chance: &mut Random) -> u64 {
        chance.below(self.script.slowness_ns.max(1))
    }
}
