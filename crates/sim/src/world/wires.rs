//! Wires: ordered, delayed, cut, silenced. Every frame is encoded and decoded on its way.
//!
//! ```text
//! send --delay--> Arrive --silent?--> held, until it heals (flush)
//!                    '--> Deliver --open?--> Reader --> machine
//!                                '--> closed: a live host resets the sender (answer_stray)
//! ```
//! A wire is a TCP connection: each direction is ordered and loses nothing as long as the
//! connection lives, and each side learns of its end at its own time. A cut delivers a prefix of
//! what was in flight. Checkpoint parts (bulk) travel behind other frames and may be overtaken by
//! them, as the real transport sends them.
//!
//! A silence is not a loss: TCP would send again, so what is held arrives when it ends, and
//! possibly after the wire was given up.

use super::{Event, ShardPosition, World, learning::address_of, stale::Receiver};
use crate::{
    plan::{MS, S, SERVER, US},
    watch::{Keeper, PeerSide, Rare},
};
use bytes::Bytes;
use marram_session::{agent, recorder};
use marram_shard::api;
use marram_wire::{
    frame::{Code, Frame, Reader},
    id::HostId,
    id::SessionId,
    rights::{Rights, Verified},
};
use std::collections::VecDeque;

/// How long it takes to fail to connect to a host that does not answer.
const CONNECT_TIMEOUT_NS: u64 = S;

/// A direction of a wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// From the dialling process to the shard.
    Up = 0,
    /// From the shard to the dialling process.
    Down = 1,
}

impl Direction {
    pub(crate) fn back(self) -> Self {
        match self {
            Self::Up => Self::Down,
            Self::Down => Self::Up,
        }
    }
}

/// The result of a dial.
enum Word {
    Up(usize, agent::Target),
    Failed(agent::Target, &'static str),
}

/// What is sent on a wire.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    /// An encoded frame.
    Frame(Bytes),
    /// The end of the connection, as its kernel tells a process.
    End,
}

/// One direction.
#[derive(Debug, Default)]
struct Lane {
    /// When the last frame that is not bulk arrives: the next one is not earlier.
    last_data_ns: u64,
    last_bulk_ns: u64,
    /// Items that arrived while nothing passed.
    held: VecDeque<Item>,
    /// Complete frames only, but through the real reader, which also sees them one after the other.
    reader: Reader,
}

/// A process that dials.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Caller {
    /// An agent.
    Agent(usize),
    /// A shard that is a standby for the other shard's sessions.
    Shard(ShardPosition),
    /// The site's recorder.
    Recorder,
}

/// A connection of a caller's process to a shard's.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) caller: Caller,
    /// The caller's row in the tables of which process can reach which: agents come first, then edges.
    pub(crate) row: usize,
    pub(crate) position: ShardPosition,
    /// When the caller's process has the connection; an end cannot arrive before.
    up_ns: u64,
    /// Whether the receiver of each direction has the connection.
    open: [bool; 2],
    lanes: [Lane; 2],
}

impl Wire {
    /// Whether the receiver of a direction has the connection.
    pub(crate) fn is_open(&self, to: Direction) -> bool {
        self.open[to as usize]
    }

    /// The receiver of a direction has lost or closed the connection.
    pub(crate) fn close(&mut self, to: Direction) {
        self.open[to as usize] = false;
    }
}

impl World {
    /// A delay for one frame: half to one and a half times the usual one, and now and then up to
    /// eight times.
    fn delay_ns(&mut self, direction: Direction, agent: usize, edge: usize) -> u64 {
        // At any distance, an answer arrives long before an edge is suspected.
        let base =
            (self.plan.delay_ns[agent][edge] * self.plan.skew[direction as usize][agent][edge]).min(40 * MS);
        let jitter = if self.chance.percent(3) { 8 * base } else { base };
        base / 2 + self.chance.below(jitter)
    }

    /// The caller's row in the tables of delays and silences: agents, edges, the recorder.
    fn row(&self, caller: Caller) -> usize {
        match caller {
            Caller::Agent(agent) => agent,
            Caller::Shard(position) => self.agents.len() + position.edge,
            Caller::Recorder => self.agents.len() + self.edges.len(),
        }
    }

    /// The life of a caller's process; results for an earlier one are dropped.
    fn life(&self, caller: Caller) -> u32 {
        match caller {
            Caller::Agent(agent) => self.agents[agent].life,
            Caller::Shard(position) => self.shard(position).life,
            Caller::Recorder => self.recorder.as_ref().map_or(0, |node| node.life),
        }
    }

    /// What an edge's shell would have verified: no caller has a role that it does not need.
    fn verified(&self, caller: Caller) -> Verified {
        let none = Rights::default();
        let rights = match caller {
            Caller::Agent(agent) if agent < self.plan.clients => Rights { client: true, ..none },
            Caller::Agent(_) => Rights { servers: vec![SERVER.into()], ..none },
            Caller::Shard(_) => Rights { edge: true, ..none },
            Caller::Recorder => Rights { recorder: true, ..none },
        };
        Verified { rights, ..Verified::trusted(self.host_of(caller)) }
    }

    /// The host id that results from a caller's key.
    fn host_of(&self, caller: Caller) -> HostId {
        match caller {
            Caller::Agent(agent) => self.agents[agent].host,
            Caller::Shard(ShardPosition { edge, shard }) => {
                let [low, high, ..] = self.life(caller).to_le_bytes();
                let [edge, shard] = [edge, shard].map(|index| index.to_le_bytes()[0]);
                HostId([0xed, 0xed, 0xed, 0xed, 0, 0, 0, 0, 0, 0, 0, 0, edge, shard, low, high])
            }
            Caller::Recorder => self.recorder.as_ref().map_or_else(HostId::default, |node| node.host),
        }
    }

    /// Whether the caller's process is up.
    fn is_there(&self, caller: Caller) -> bool {
        match caller {
            Caller::Agent(agent) => self.agents[agent].is_up(),
            Caller::Shard(position) => self.shard(position).is_up(),
            Caller::Recorder => self.recorder.as_ref().is_some_and(|node| node.is_up()),
        }
    }

    /// Delivers a result to a caller after some time.
    fn tell(&mut self, caller: Caller, life: u32, after_ns: u64, word: Word) {
        let event = match (caller, word) {
            (Caller::Agent(agent), Word::Failed(target, reason)) => {
                Event::Agent(agent, life, agent::AgentInput::DialFailed { target, reason: reason.into() })
            }
            (Caller::Agent(agent), Word::Up(wire, target)) => {
                let wire = agent::WireId(wire as u64);
                Event::Agent(agent, life, agent::AgentInput::WireUp { wire, target })
            }
            (Caller::Recorder, Word::Failed(target, reason)) => {
                Event::Recorder(life, recorder::RecorderInput::DialFailed { target, reason: reason.into() })
            }
            (Caller::Recorder, Word::Up(wire, target)) => {
                let wire = agent::WireId(wire as u64);
                Event::Recorder(life, recorder::RecorderInput::WireUp { wire, target })
            }
            (Caller::Shard(position), Word::Failed(target, reason)) => {
                let input = api::ShardInput::DialFailed { target, reason: reason.into() };
                Event::Shard(position, life, Box::new(input))
            }
            (Caller::Shard(position), Word::Up(wire, target)) => {
                let wire = api::ShardWireId(wire as u64);
                Event::Shard(position, life, Box::new(api::ShardInput::Dialled { wire, target }))
            }
        };
        self.queue.after(after_ns, event);
    }

    /// A caller dials: the first packet reaches the edge, or is lost.
    pub(crate) fn dial(&mut self, caller: Caller, target: agent::Target) {
        let life = self.life(caller);
        let row = self.row(caller);
        let Some(edge) = self.dialled_edge(caller, target) else {
            return self.tell(caller, life, CONNECT_TIMEOUT_NS, Word::Failed(target, "timed out"));
        };
        let delay_ns = self.delay_ns(Direction::Up, row, edge) + 10 * US;
        self.queue.after(delay_ns, Event::Dialled { caller, life, target });
    }

    /// The first packet reaches the edge.
    ///
    /// A host that is down, frozen or silent does not answer, and the caller waits for its timeout;
    /// a live one refuses at once. In 2 of 100 cases the connection is half open: the edge has it
    /// and the caller does not.
    pub(crate) fn dialled(&mut self, caller: Caller, life: u32, target: agent::Target) {
        let Some(edge) = self.dialled_edge(caller, target) else {
            return self.tell(caller, life, CONNECT_TIMEOUT_NS, Word::Failed(target, "timed out"));
        };
        let row = self.row(caller);
        let node = &self.edges[edge];
        let shard = usize::from(target.shard) % node.shards.len();
        let position = ShardPosition { edge, shard };
        // It knows its own shards, and need not be asked for more.
        let itself = matches!(caller, Caller::Shard(own) if own.edge == edge) && target.edge != api::OWN_EDGE;
        let silent = self.silent(Direction::Up, row, edge) || self.silent(Direction::Down, row, edge);
        let refused = itself || (node.is_up() && !node.shards[shard].is_up());
        let answer_ns = self.delay_ns(Direction::Down, row, edge);
        if silent || !self.edges[edge].is_up() || self.is_frozen(position) {
            self.tell(caller, life, CONNECT_TIMEOUT_NS, Word::Failed(target, "timed out"));
        } else if refused {
            self.tell(caller, life, answer_ns, Word::Failed(target, "refused"));
        } else {
            let half = self.chance.percent(2);
            let wire = self.connect(caller, life, position, answer_ns, half);
            if half {
                // The edge has a connection that the caller does not know of.
                self.tell(caller, life, CONNECT_TIMEOUT_NS, Word::Failed(target, "timed out"));
            } else {
                self.tell(caller, life, answer_ns, Word::Up(wire, target));
            }
        }
    }

    /// Makes a wire; the caller's process has it after `answer_ns` unless it is only `half` open.
    fn connect(
        &mut self,
        caller: Caller,
        life: u32,
        position: ShardPosition,
        answer_ns: u64,
        half: bool,
    ) -> usize {
        let alive = self.life(caller) == life && self.is_there(caller);
        let up_ns = self.queue.now_ns() + answer_ns;
        let lane = || Lane { last_data_ns: up_ns, last_bulk_ns: up_ns, ..Lane::default() };
        let (row, open, lanes) = (self.row(caller), [true, alive && !half], [lane(), lane()]);
        self.wires.push(Wire { caller, row, position, up_ns, open, lanes });
        let wire = self.wires.len() - 1;
        let verified = Box::new(self.verified(caller));
        self.give_shard(
            position,
            api::ShardInput::WireUp { wire: api::ShardWireId(wire as u64), verified, address: None },
        );
        if half && self.chance.percent(50) {
            let at_ns = up_ns + self.chance.magnitude(US, 500 * MS);
            self.queue.at(at_ns, Event::Arrive(wire, Direction::Up, Item::End));
        }
        wire
    }

    /// Sends a frame; the sender must have the wire.
    pub(crate) fn send(&mut self, wire: usize, direction: Direction, frame: &Frame) {
        let of = &self.wires[wire];
        let (agent, edge) = (of.row, of.position.edge);
        if !of.is_open(direction.back()) {
            return;
        }
        let bytes = frame.to_bytes();
        let delay_ns = self.delay_ns(direction, agent, edge);
        let base_ns = self.plan.delay_ns[agent][edge];
        let mut at_ns = self.queue.now_ns() + delay_ns;
        let lane = &mut self.wires[wire].lanes[direction as usize];
        if frame.is_bulk() {
            // Queued after other frames of its wire, and may be overtaken by them.
            at_ns += self.bulk_chance.below(4 * base_ns);
            at_ns = at_ns.max(lane.last_bulk_ns).max(lane.last_data_ns);
            lane.last_bulk_ns = at_ns;
        } else {
            at_ns = at_ns.max(lane.last_data_ns);
            lane.last_data_ns = at_ns;
        }
        self.queue.at(at_ns, Event::Arrive(wire, direction, Item::Frame(bytes)));
    }

    /// A process closes its side, after what it has sent.
    pub(crate) fn close_wire(&mut self, wire: usize, direction: Direction) {
        let of = &mut self.wires[wire];
        if !of.is_open(direction.back()) {
            return;
        }
        of.close(direction.back());
        let lane = &of.lanes[direction as usize];
        let at_ns = lane.last_data_ns.max(lane.last_bulk_ns) + 1;
        self.queue.at(at_ns.max(self.queue.now_ns()), Event::Arrive(wire, direction, Item::End));
    }

    /// The receiver of a direction learns within `within_ns` that the connection is gone. What has not arrived by then is
    /// lost: a prefix of what was in flight is delivered.
    pub(crate) fn break_wire(&mut self, wire: usize, to: Direction, within_ns: u64) {
        let at_ns = (self.queue.now_ns() + self.chance.below(within_ns.max(1))).max(self.wires[wire].up_ns);
        self.queue.at(at_ns, Event::Arrive(wire, to, Item::End));
    }

    /// A frame or an end arrives at the receiver's host; nothing overtakes what is held.
    pub(crate) fn arrive(&mut self, wire: usize, direction: Direction, item: Item) {
        let of = &self.wires[wire];
        let silent = self.silent(direction, of.row, of.position.edge);
        let lane = &mut self.wires[wire].lanes[direction as usize];
        if silent || !lane.held.is_empty() {
            lane.held.push_back(item);
        } else {
            self.dispatch(Event::Deliver(wire, direction, item));
        }
    }

    /// Delivers the held items in order.
    pub(crate) fn flush(&mut self, wire: usize, direction: Direction) {
        let of = &self.wires[wire];
        if self.silent(direction, of.row, of.position.edge) {
            return;
        }
        for item in std::mem::take(&mut self.wires[wire].lanes[direction as usize].held) {
            self.dispatch(Event::Deliver(wire, direction, item));
        }
    }

    /// Ends the silence between an agent and an edge.
    pub(crate) fn heal(&mut self, agent: usize, edge: usize, direction: Direction) {
        self.silences[direction as usize][agent][edge] -= 1;
        if self.silent(direction, agent, edge) {
            return;
        }
        for wire in 0..self.wires.len() {
            let of = &self.wires[wire];
            if of.row == agent && of.position.edge == edge && !of.lanes[direction as usize].held.is_empty() {
                let delay_ns = self.delay_ns(direction, agent, edge);
                self.queue.after(delay_ns, Event::Flush(wire, direction));
            }
        }
    }

    /// A caller loses its wires to an edge at once, with what was held for it. The edge does not learn of it.
    pub(crate) fn lose_wires(&mut self, row: usize, edge: usize) {
        for wire in 0..self.wires.len() {
            let of = &mut self.wires[wire];
            if of.row == row && of.position.edge == edge && of.is_open(Direction::Down) {
                of.lanes[Direction::Down as usize].held.clear();
                self.dispatch(Event::Deliver(wire, Direction::Down, Item::End));
            }
        }
    }

    /// Whether nothing passes from this row to this edge, or back.
    fn silent(&self, direction: Direction, agent: usize, edge: usize) -> bool {
        self.silences[direction as usize][agent][edge] > 0
    }

    /// Gives an item to the process. `direction` is that of the item.
    pub(crate) fn deliver(&mut self, wire: usize, direction: Direction, item: Item) {
        let (caller, position) = (self.wires[wire].caller, self.wires[wire].position);
        if !self.wires[wire].is_open(direction) {
            self.answer_stray(wire, direction, &item);
            return;
        }
        match item {
            Item::End => {
                self.wires[wire].close(direction);
                let name = api::ShardWireId(wire as u64);
                match (direction, caller) {
                    (Direction::Up, _) => self.give_shard(position, api::ShardInput::WireDown { wire: name }),
                    (Direction::Down, Caller::Shard(position)) => {
                        self.give_shard(position, api::ShardInput::WireDown { wire: name });
                    }
                    (Direction::Down, Caller::Recorder) => {
                        let (wire, reason) = (agent::WireId(wire as u64), "connection reset".into());
                        self.give_recorder(recorder::RecorderInput::WireDown { wire, reason });
                    }
                    (Direction::Down, Caller::Agent(agent)) => {
                        let (wire, reason) = (agent::WireId(wire as u64), "connection reset".into());
                        self.give_agent(agent, agent::AgentInput::WireDown { wire, reason });
                    }
                }
            }
            Item::Frame(bytes) => self.deliver_frame(wire, direction, &bytes),
        }
    }

    ///
    /// Observes it first, since what it proves is then known to the watch before the machine acts
    /// on it.
    fn deliver_frame(&mut self, wire: usize, direction: Direction, bytes: &Bytes) {
        let (caller, position) = (self.wires[wire].caller, self.wires[wire].position);
        let reader = &mut self.wires[wire].lanes[direction as usize].reader;
        reader.buffer.extend_from_slice(bytes);
        let frame = match reader.next_frame() {
            Ok(Some(frame)) => frame,
            other => {
                self.violations.push(format!("a frame did not survive the wire: {other:?}"));
                return;
            }
        };
        let now_ns = self.queue.now_ns();
        let words = [1, wire as u64, direction as u64];
        self.trace.count(now_ns, &words, bytes);
        if !matches!(frame, Frame::Ping(_) | Frame::Pong(_)) {
            self.trace.say(now_ns, || {
                let caller = match caller {
                    Caller::Agent(agent) => format!("A{agent}"),
                    Caller::Shard(position) => position.to_string(),
                    Caller::Recorder => "recorder".to_string(),
                };
                let from = if direction == Direction::Up {
                    format!("{caller} -> {position}")
                } else {
                    format!("{position} -> {caller}")
                };
                format!("{from} w{wire} {}", super::brief(&frame))
            });
        }
        let to = match (direction, caller) {
            (Direction::Up, _) => Receiver::Shard(position),
            (Direction::Down, Caller::Agent(agent)) => Receiver::Agent(agent),
            (Direction::Down, Caller::Shard(standby)) => Receiver::Shard(standby),
            (Direction::Down, Caller::Recorder) => Receiver::Recorder,
        };
        match caller {
            Caller::Agent(agent) => self.deliver_of_agent(wire, agent, to, frame),
            Caller::Shard(standby) => {
                self.deliver_of_keeper(wire, Keeper::Standby(standby), direction, to, frame)
            }
            Caller::Recorder => self.deliver_of_keeper(wire, Keeper::Recorder, direction, to, frame),
        }
    }

    /// A frame between an agent and a shard.
    fn deliver_of_agent(&mut self, wire: usize, agent: usize, to: Receiver, frame: Frame) {
        let position = self.wires[wire].position;
        let side = if to == Receiver::Agent(agent) { PeerSide::Agent } else { PeerSide::Edge };
        self.watch.arrived(wire, side, &frame, &mut self.violations);
        // What a liar promised on the wire is not what its machine promised.
        let comparable = side == PeerSide::Edge || !self.lies(agent);
        let stale = comparable.then(|| self.watch.stale((wire, agent), side, position, &frame)).flatten();
        let ends = (side == PeerSide::Agent).then(|| self.before_frame(wire, agent, &frame)).flatten();
        let output = match &frame {
            Frame::Output(output) if ends.is_some() => Some((output.close, output.payload.clone())),
            _ => None,
        };
        self.give_frame(to, stale, wire, frame);
        if let Some((place, before)) = ends {
            self.after_frame(place, before, output);
        }
    }

    /// Whether another edge than this keeper's is the backup of a session of this shard.
    fn is_backed_elsewhere(&self, at: ShardPosition, keeper: Keeper, session: SessionId) -> bool {
        let Keeper::Standby(keeper) = keeper else { return false };
        let machine = self.shard(at).machine().and_then(|machine| machine.backup_of(session));
        machine.is_some_and(|backup| *backup != *address_of(keeper.edge))
    }

    /// A frame between an owner's shard and a keeper.
    fn deliver_of_keeper(
        &mut self,
        wire: usize,
        keeper: Keeper,
        direction: Direction,
        to: Receiver,
        frame: Frame,
    ) {
        let taken = frame.clone();
        if direction == Direction::Up {
            self.watch.count_if(Rare::Recalled, matches!(frame, Frame::Recalled(_)));
            self.watch.count_if(Rare::HandOverAsked, matches!(frame, Frame::AskHandOver(_)));
            self.watch.count_if(Rare::CopyForgotten, matches!(frame, Frame::ForgetCopy(_)));
            if let Frame::Reject(reject) = &frame
                && reject.code == Code::Protocol
                && self.liar.is_none()
            {
                self.violations.push(format!("an owner feeds what a keeper cannot keep: {}", reject.reason));
            }
            let stale = self.watch.stale_for_owner(wire, &frame);
            self.give_frame(to, stale, wire, frame);
            self.watch.reached_owner(wire, &taken);
        } else {
            if let Frame::HandOver(hand_over) = &frame
                && let Some(session) = self.watch.fed_on(wire, hand_over.channel)
            {
                let is_past = self.is_backed_elsewhere(self.wires[wire].position, keeper, session);
                self.watch.count_if(Rare::HandedPastBackup, is_past);
            }
            self.watch.count_if(Rare::HallKeptOn, matches!(frame, Frame::KeepOn(_)));
            let wires = &self.wires;
            let is_open = |wire: usize| wires[wire].is_open(Direction::Down);
            let stale = self.watch.stale_for_keeper(keeper, wire, &frame, is_open);
            self.give_frame(to, stale, wire, frame);
            self.watch.reached_keeper(keeper, wire, &taken);
        }
    }

    /// A live host answers packets of unknown connections: the sender learns that the connection is gone.
    fn answer_stray(&mut self, wire: usize, direction: Direction, item: &Item) {
        let of = &self.wires[wire];
        let up = match direction {
            Direction::Up => self.edges[of.position.edge].is_up(),
            Direction::Down => self.is_there(of.caller),
        };
        if up && matches!(item, Item::Frame(_)) && of.is_open(direction.back()) {
            let delay_ns = self.delay_ns(direction.back(), of.row, of.position.edge);
            self.break_wire(wire, direction.back(), delay_ns);
        }
    }
}
