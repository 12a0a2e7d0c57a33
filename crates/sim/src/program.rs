//! The unmodified programs at both sides: they write by their scripts, read what comes, and know nothing between them.

use crate::{
    plan::{Plan, Script, Service},
    random::Random,
};
use bytes::Bytes;
use marram_chain_algo::Peer;
use marram_session::agent::ConnectionId;
use marram_wire::limits::STREAM_CUT;
use std::collections::VecDeque;

/// Bytes at the beginning of each datagram: its length.
pub(crate) const LENGTH: usize = 4;
/// What else a datagram of a program holds, at most.
const REST_MAX: usize = 60_000;

/// What a program or its socket does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Act {
    /// The client's connection reaches its agent.
    Accept,
    /// The server answers its agent's connection, or does not.
    Answer(bool),
    /// Writes its next chunk, or ends its output.
    Write,
    /// The agent reads what was written.
    Pump,
    /// The socket took so many bytes of what the agent wrote.
    Took(u64),
}

/// One local program with its connection.
#[derive(Debug)]
pub(crate) struct Program {
    /// Which side it is.
    pub(crate) peer: Peer,
    /// Its agent.
    pub(crate) agent: usize,
    /// Which life of the agent: connections die with it.
    pub(crate) life: u32,
    /// The connection's name there.
    pub(crate) connection: ConnectionId,
    /// The app that it asks for; a server does not know.
    pub(crate) service: Option<Service>,
    script: Script,
    random: Random,
    /// Whether it speaks in datagrams: then each chunk is one, and says in its first bytes how long it is.
    pub(crate) datagrams: bool,
    /// Sizes of those that the agent has not read.
    cuts: VecDeque<usize>,
    next_chunk: usize,
    /// Everything that it has written.
    pub(crate) written: Vec<u8>,
    /// How much of it the agent has read.
    pub(crate) taken: usize,
    ended: bool,
    /// Whether the agent knows that no more will come.
    pub(crate) end_taken: bool,
    /// Whether the agent reads.
    pub(crate) reading: bool,
    /// Whether a [`Act::Pump`] is under way.
    pub(crate) pumping: bool,
    /// Everything that was written to it.
    pub(crate) received: Vec<u8>,
    /// Whether it was told that nothing more will come.
    pub(crate) end_received: bool,
    /// Whether the connection is over, and then whether it was reset.
    pub(crate) closed: Option<bool>,
    /// Whether a fault explains that it was reset, as `world::causes` judges.
    pub(crate) excused: bool,
    /// Whether the program itself reset it.
    pub(crate) broke: bool,
    /// When the socket will have taken everything, in nanoseconds.
    pub(crate) took_ns: u64,
}

/// What the agent finds when it reads.
#[derive(Debug)]
pub(crate) enum Taken {
    /// Bytes, and whether there are more.
    Bytes(Bytes),
    /// No more will come.
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
        Self { service: Some(of.service), datagrams: plan.datagrams[Peer::Client as usize], ..program }
    }

    /// The `nth` server that some agent connects to.
    #[must_use]
    pub(crate) fn server(plan: &Plan, nth: u64, agent: usize, life: u32, connection: ConnectionId) -> Self {
        let random = Random::new(plan.seed ^ (nth << 32), 4);
        let program = Self::new(Peer::Server, agent, life, connection, plan.server_script(nth), random);
        Self { datagrams: plan.datagrams[Peer::Server as usize], ..program }
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
            script,
            random,
            datagrams: false,
            cuts: VecDeque::new(),
            next_chunk: 0,
            written: Vec::new(),
            taken: 0,
            ended: false,
            end_taken: false,
            reading: true,
            pumping: false,
            received: Vec::new(),
            end_received: false,
            closed: None,
            excused: false,
            broke: false,
            took_ns: 0,
        }
    }

    /// How long after its connection the first write comes, in nanoseconds.
    #[must_use]
    pub(crate) fn first_write_ns(&self) -> u64 {
        self.script.chunks.first().map_or(self.script.close_after_ns, |chunk| chunk.after_ns)
    }

    /// Writes the next chunk or ends the output; returns after how many nanoseconds it wants to go on.
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
        self.next_chunk += 1;
        Some(self.script.chunks.get(self.next_chunk).map_or(self.script.close_after_ns, |next| next.after_ns))
    }

    /// The agent will take no more of a conversation in datagrams: what it has not read belongs to another.
    pub(crate) fn answered(&mut self) {
        self.written.truncate(self.taken);
        self.cuts.clear();
        (self.script.chunks, self.script.resets) = (Vec::new(), false);
        (self.ended, self.end_taken) = (true, true);
    }

    /// The agent reads: as much as it likes, cut anywhere; or one datagram.
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

    /// When the program begins to read, counted from its first output.
    pub(crate) fn stall_ns(&self) -> u64 {
        self.script.stall_ns
    }

    /// How long the socket takes to accept what it is given now, in nanoseconds.
    pub(crate) fn slowness_ns(&mut self, chance: &mut Random) -> u64 {
        chance.below(self.script.slowness_ns.max(1))
    }
}
