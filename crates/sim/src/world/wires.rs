//! Wires: ordered, delayed, cut, silenced. Every frame is encoded and decoded on its way.

use super::{Event, Seat, World};
use crate::{
    plan::{MS, S, SERVER, US},
    watch::{Rare, Side},
};
use bytes::Bytes;
use marram_edge::api;
use marram_session::{agent, recorder};
use marram_wire::{
    frame::{Frame, Reader},
    id::HostId,
    rights::{Rights, Verified},
};
use std::collections::VecDeque;

/// How long connecting to a host that does not answer takes.
const CONNECT_TIMEOUT_NS: u64 = S;

/// A direction of a wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// From whoever dialled to the shard.
    Up = 0,
    /// From the shard to whoever dialled.
    Down = 1,
}

impl Way {
    pub(crate) fn back(self) -> Self {
        match self {
            Self::Up => Self::Down,
            Self::Down => Self::Up,
        }
    }
}

/// What becomes of a dial.
enum Word {
    Up(usize, agent::Target),
    Failed(agent::Target, &'static str),
}

/// What travels.
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
    last_data_ns: u64,
    last_bulk_ns: u64,
    /// What came while nothing got through.
    held: VecDeque<Item>,
    reader: Reader,
}

/// Who dials.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Caller {
    /// An agent.
    Agent(usize),
    /// A shard that stands by for the other's sessions.
    Shard(Seat),
    /// The site's recorder.
    Recorder,
}

/// A connection of a caller's process to a shard's.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) caller: Caller,
    /// The caller's row in tables of who reaches whom: agents come first, then edges.
    pub(crate) row: usize,
    pub(crate) seat: Seat,
    up_ns: u64,
    /// By the receiver of each direction: whether its process has the connection.
    open: [bool; 2],
    lanes: [Lane; 2],
}

impl Wire {
    /// Whether the receiver of a direction has the connection.
    pub(crate) fn is_open(&self, to: Way) -> bool {
        self.open[to as usize]
    }

    /// The receiver of a direction has lost the connection, or given it up.
    pub(crate) fn close(&mut self, to: Way) {
        self.open[to as usize] = false;
    }
}

impl World {
    fn delay_ns(&mut self, way: Way, agent: usize, edge: usize) -> u64 {
        // However far, an answer comes long before an edge is suspected.
        let base = (self.plan.delay_ns[agent][edge] * self.plan.skew[way as usize][agent][edge]).min(40 * MS);
        let jitter = if self.chance.percent(3) { 8 * base } else { base };
        base / 2 + self.chance.below(jitter)
    }

    fn row(&self, caller: Caller) -> usize {
        match caller {
            Caller::Agent(agent) => agent,
            Caller::Shard(seat) => self.agents.len() + seat.edge,
            Caller::Recorder => self.agents.len() + self.edges.len(),
        }
    }

    fn life(&self, caller: Caller) -> u32 {
        match caller {
            Caller::Agent(agent) => self.agents[agent].life,
            Caller::Shard(seat) => self.shard(seat).life,
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

    /// What its key makes of a caller's process.
    fn host_of(&self, caller: Caller) -> HostId {
        match caller {
            Caller::Agent(agent) => self.agents[agent].host,
            Caller::Shard(Seat { edge, shard }) => {
                let [low, high, ..] = self.life(caller).to_le_bytes();
                let [edge, shard] = [edge, shard].map(|index| index.to_le_bytes()[0]);
                HostId([0xed, 0xed, 0xed, 0xed, 0, 0, 0, 0, 0, 0, 0, 0, edge, shard, low, high])
            }
            Caller::Recorder => self.recorder.as_ref().map_or_else(HostId::default, |node| node.host),
        }
    }

    fn is_there(&self, caller: Caller) -> bool {
        match caller {
            Caller::Agent(agent) => self.agents[agent].is_up(),
            Caller::Shard(seat) => self.shard(seat).is_up(),
            Caller::Recorder => self.recorder.as_ref().is_some_and(|node| node.is_up()),
        }
    }

    /// Tells a caller something, some time later.
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
            (Caller::Shard(seat), Word::Failed(target, reason)) => {
                let input = api::ShardInput::DialFailed { target, reason: reason.into() };
                Event::Shard(seat, life, Box::new(input))
            }
            (Caller::Shard(seat), Word::Up(wire, target)) => {
                let wire = api::ShardWireId(wire as u64);
                Event::Shard(seat, life, Box::new(api::ShardInput::Dialled { wire, target }))
            }
        };
        self.queue.after(after_ns, event);
    }

    /// Somebody dials: the first packet reaches the edge, or nothing does.
    pub(crate) fn dial(&mut self, caller: Caller, target: agent::Target) {
        let life = self.life(caller);
        let row = self.row(caller);
        let delay_ns = self.delay_ns(Way::Up, row, usize::from(target.edge)) + 10 * US;
        self.queue.after(delay_ns, Event::Dialled { caller, life, target });
    }

    pub(crate) fn dialled(&mut self, caller: Caller, life: u32, target: agent::Target) {
        let edge = usize::from(target.edge);
        let row = self.row(caller);
        let node = &self.edges[edge];
        let shard = usize::from(target.shard) % node.shards.len();
        let seat = Seat { edge, shard };
        let itself = matches!(caller, Caller::Shard(own) if own.edge == edge);
        let silent = self.silent(Way::Up, row, edge) || self.silent(Way::Down, row, edge);
        let refused = itself || (node.is_up() && !node.shards[shard].is_up());
        let answer_ns = self.delay_ns(Way::Down, row, edge);
        if silent || !self.edges[edge].is_up() || self.is_frozen(seat) {
            self.tell(caller, life, CONNECT_TIMEOUT_NS, Word::Failed(target, "timed out"));
        } else if refused {
            self.tell(caller, life, answer_ns, Word::Failed(target, "refused"));
        } else {
            let half = self.chance.percent(2);
            let wire = self.connect(caller, life, seat, answer_ns, half);
            if half {
                // The edge has a connection that whoever dialled never heard of.
                self.tell(caller, life, CONNECT_TIMEOUT_NS, Word::Failed(target, "timed out"));
            } else {
                self.tell(caller, life, answer_ns, Word::Up(wire, target));
            }
        }
    }

    /// Makes a wire; the caller's process has it after `answer_ns` unless it is only `half` made.
    fn connect(&mut self, caller: Caller, life: u32, seat: Seat, answer_ns: u64, half: bool) -> usize {
        let alive = self.life(caller) == life && self.is_there(caller);
        let up_ns = self.queue.now_ns() + answer_ns;
        let lane = || Lane { last_data_ns: up_ns, last_bulk_ns: up_ns, ..Lane::default() };
        let (row, open, lanes) = (self.row(caller), [true, alive && !half], [lane(), lane()]);
        self.wires.push(Wire { caller, row, seat, up_ns, open, lanes });
        let wire = self.wires.len() - 1;
        let verified = Box::new(self.verified(caller));
        self.give_shard(
            seat,
            api::ShardInput::WireUp { wire: api::ShardWireId(wire as u64), verified, address: None },
        );
        if half && self.chance.percent(50) {
            let at_ns = up_ns + self.chance.magnitude(US, 500 * MS);
            self.queue.at(at_ns, Event::Arrive(wire, Way::Up, Item::End));
        }
        wire
    }

    /// Puts a frame on its way; the sender must have the wire.
    pub(crate) fn send(&mut self, wire: usize, way: Way, frame: &Frame) {
        let of = &self.wires[wire];
        let (agent, edge) = (of.row, of.seat.edge);
        if !of.is_open(way.back()) {
            return;
        }
        let bytes = frame.to_bytes();
        let delay_ns = self.delay_ns(way, agent, edge);
        let base_ns = self.plan.delay_ns[agent][edge];
        let mut at_ns = self.queue.now_ns() + delay_ns;
        let lane = &mut self.wires[wire].lanes[way as usize];
        if frame.is_bulk() {
            // Waits behind others of its wire, and may be overtaken by them.
            at_ns += self.bulk_chance.below(4 * base_ns);
            at_ns = at_ns.max(lane.last_bulk_ns).max(lane.last_data_ns);
            lane.last_bulk_ns = at_ns;
        } else {
            at_ns = at_ns.max(lane.last_data_ns);
            lane.last_data_ns = at_ns;
        }
        self.queue.at(at_ns, Event::Arrive(wire, way, Item::Frame(bytes)));
    }

    /// A process closes its side, after what it sent.
    pub(crate) fn close_wire(&mut self, wire: usize, way: Way) {
        let of = &mut self.wires[wire];
        if !of.is_open(way.back()) {
            return;
        }
        of.close(way.back());
        let lane = &of.lanes[way as usize];
        let at_ns = lane.last_data_ns.max(lane.last_bulk_ns) + 1;
        self.queue.at(at_ns.max(self.queue.now_ns()), Event::Arrive(wire, way, Item::End));
    }

    /// The receiver of a direction learns, some time within `within_ns`, that the connection is gone. What has not arrived by
    /// then never does: a prefix of what was in flight is delivered.
    pub(crate) fn break_wire(&mut self, wire: usize, to: Way, within_ns: u64) {
        let at_ns = (self.queue.now_ns() + self.chance.below(within_ns.max(1))).max(self.wires[wire].up_ns);
        self.queue.at(at_ns, Event::Arrive(wire, to, Item::End));
    }

    pub(crate) fn arrive(&mut self, wire: usize, way: Way, item: Item) {
        let of = &self.wires[wire];
        let silent = self.silent(way, of.row, of.seat.edge);
        let lane = &mut self.wires[wire].lanes[way as usize];
        if silent || !lane.held.is_empty() {
            lane.held.push_back(item);
        } else {
            self.dispatch(Event::Deliver(wire, way, item));
        }
    }

    /// What was held gets through, in order.
    pub(crate) fn flush(&mut self, wire: usize, way: Way) {
        let of = &self.wires[wire];
        if self.silent(way, of.row, of.seat.edge) {
            return;
        }
        for item in std::mem::take(&mut self.wires[wire].lanes[way as usize].held) {
            self.dispatch(Event::Deliver(wire, way, item));
        }
    }

    /// Silence between an agent and an edge is over.
    pub(crate) fn heal(&mut self, agent: usize, edge: usize, way: Way) {
        self.silences[way as usize][agent][edge] -= 1;
        if self.silent(way, agent, edge) {
            return;
        }
        for wire in 0..self.wires.len() {
            let of = &self.wires[wire];
            if of.row == agent && of.seat.edge == edge && !of.lanes[way as usize].held.is_empty() {
                let delay_ns = self.delay_ns(way, agent, edge);
                self.queue.after(delay_ns, Event::Flush(wire, way));
            }
        }
    }

    fn silent(&self, way: Way, agent: usize, edge: usize) -> bool {
        self.silences[way as usize][agent][edge] > 0
    }

    pub(crate) fn deliver(&mut self, wire: usize, way: Way, item: Item) {
        let (caller, seat) = (self.wires[wire].caller, self.wires[wire].seat);
        if !self.wires[wire].is_open(way) {
            self.answer_stray(wire, way, &item);
            return;
        }
        match item {
            Item::End => {
                self.wires[wire].close(way);
                let name = api::ShardWireId(wire as u64);
                match (way, caller) {
                    (Way::Up, _) => self.give_shard(seat, api::ShardInput::WireDown { wire: name }),
                    (Way::Down, Caller::Shard(seat)) => {
                        self.give_shard(seat, api::ShardInput::WireDown { wire: name });
                    }
                    (Way::Down, Caller::Recorder) => {
                        let (wire, reason) = (agent::WireId(wire as u64), "connection reset".into());
                        self.give_recorder(recorder::RecorderInput::WireDown { wire, reason });
                    }
                    (Way::Down, Caller::Agent(agent)) => {
                        let (wire, reason) = (agent::WireId(wire as u64), "connection reset".into());
                        self.give_agent(agent, agent::AgentInput::WireDown { wire, reason });
                    }
                }
            }
            Item::Frame(bytes) => self.deliver_frame(wire, way, &bytes),
        }
    }

    fn deliver_frame(&mut self, wire: usize, way: Way, bytes: &Bytes) {
        let (caller, seat) = (self.wires[wire].caller, self.wires[wire].seat);
        let reader = &mut self.wires[wire].lanes[way as usize].reader;
        reader.buffer.extend_from_slice(bytes);
        let frame = match reader.next_frame() {
            Ok(Some(frame)) => frame,
            other => {
                self.violations.push(format!("a frame did not survive the wire: {other:?}"));
                return;
            }
        };
        let now_ns = self.queue.now_ns();
        let words = [1, wire as u64, way as u64];
        self.trace.count(now_ns, &words, bytes);
        if !matches!(frame, Frame::Ping(_) | Frame::Pong(_)) {
            self.trace.say(now_ns, || {
                let caller = match caller {
                    Caller::Agent(agent) => format!("A{agent}"),
                    Caller::Shard(seat) => seat.to_string(),
                    Caller::Recorder => "recorder".to_string(),
                };
                let from = if way == Way::Up {
                    format!("{caller} -> {seat}")
                } else {
                    format!("{seat} -> {caller}")
                };
                format!("{from} w{wire} {}", super::brief(&frame))
            });
        }
        let name = api::ShardWireId(wire as u64);
        let agent = match caller {
            Caller::Agent(agent) => agent,
            Caller::Recorder if way == Way::Up => {
                self.watch.count_if(Rare::Recalled, matches!(frame, Frame::Recalled(_)));
                return self.give_shard(seat, api::ShardInput::Frame { wire: name, frame });
            }
            Caller::Recorder => {
                let wire = agent::WireId(wire as u64);
                return self.give_recorder(recorder::RecorderInput::Frame { wire, frame });
            }
            Caller::Shard(standby) => {
                let to = if way == Way::Up { seat } else { standby };
                return self.give_shard(to, api::ShardInput::Frame { wire: name, frame });
            }
        };
        let side = if way == Way::Up { Side::Edge } else { Side::Agent };
        self.watch.arrived(wire, side, &frame, &mut self.violations);
        if let Some(stale) = self.watch.stale((wire, agent), side, seat, &frame) {
            return match way {
                Way::Up => self.give_stale_shard(seat, stale, name, frame),
                Way::Down => self.give_stale_agent(agent, stale, agent::WireId(wire as u64), frame),
            };
        }
        match way {
            Way::Up => self.give_shard(seat, api::ShardInput::Frame { wire: name, frame }),
            Way::Down => {
                self.give_agent(agent, agent::AgentInput::Frame { wire: agent::WireId(wire as u64), frame })
            }
        }
    }

    /// A host that is up answers what belongs to no connection of its own: the sender learns that it is gone.
    fn answer_stray(&mut self, wire: usize, way: Way, item: &Item) {
        let of = &self.wires[wire];
        let up = match way {
            Way::Up => self.edges[of.seat.edge].is_up(),
            Way::Down => self.is_there(of.caller),
        };
        if up && matches!(item, Item::Frame(_)) && of.is_open(way.back()) {
            let delay_ns = self.delay_ns(way.back(), of.row, of.seat.edge);
            self.break_wire(wire, way.back(), delay_ns);
        }
    }
}
