//! Wires: ordered, delayed, cut, silenced. Every frame is encoded and decoded on its way.

use super::{Event, Seat, World};
use crate::{
    plan::{MS, S, US},
    watch::Side,
};
use bytes::Bytes;
use marram_edge::api;
use marram_session::agent;
use marram_wire::frame::{Frame, Reader};
use std::collections::VecDeque;

/// How long connecting to a host that does not answer takes.
const CONNECT_TIMEOUT_NS: u64 = S;

/// A direction of a wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// From the agent to the shard.
    Up = 0,
    /// From the shard to the agent.
    Down = 1,
}

impl Way {
    fn back(self) -> Self {
        match self {
            Self::Up => Self::Down,
            Self::Down => Self::Up,
        }
    }
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

/// A connection of an agent's process to a shard's.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) agent: usize,
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

    /// An agent dials: its first packet reaches the edge, or nothing does.
    pub(crate) fn dial(&mut self, agent: usize, target: agent::Target) {
        let life = self.agents[agent].life;
        let delay_ns = self.delay_ns(Way::Up, agent, usize::from(target.edge)) + 10 * US;
        self.queue.after(delay_ns, Event::Dialled { agent, life, target });
    }

    pub(crate) fn dialled(&mut self, agent: usize, life: u32, target: agent::Target) {
        let edge = usize::from(target.edge);
        let node = &self.edges[edge];
        let shard = usize::from(target.shard) % node.shards.len();
        let seat = Seat { edge, shard };
        let silent = self.silent(Way::Up, agent, edge) || self.silent(Way::Down, agent, edge);
        let refused = node.is_up() && !node.shards[shard].is_up();
        let answer_ns = self.delay_ns(Way::Down, agent, edge);
        let fail = |reason: &str| agent::In::DialFailed { target, reason: reason.into() };
        if silent || !self.edges[edge].is_up() || self.is_frozen(seat) {
            self.queue.after(CONNECT_TIMEOUT_NS, Event::Agent(agent, life, fail("timed out")));
        } else if refused {
            self.queue.after(answer_ns, Event::Agent(agent, life, fail("refused")));
        } else {
            let half = self.chance.percent(2);
            let wire = self.connect(agent, life, seat, answer_ns, half);
            if half {
                // The edge has a connection that its agent never heard of.
                self.queue.after(CONNECT_TIMEOUT_NS, Event::Agent(agent, life, fail("timed out")));
            } else {
                let wire = agent::WireId(wire as u64);
                self.queue.after(answer_ns, Event::Agent(agent, life, agent::In::WireUp { wire, target }));
            }
        }
    }

    /// Makes a wire; the agent's process has it after `answer_ns` unless it is only `half` made.
    fn connect(&mut self, agent: usize, life: u32, seat: Seat, answer_ns: u64, half: bool) -> usize {
        let alive = self.agents[agent].life == life && self.agents[agent].is_up();
        let up_ns = self.queue.now_ns() + answer_ns;
        let lane = || Lane { last_data_ns: up_ns, last_bulk_ns: up_ns, ..Lane::default() };
        self.wires.push(Wire { agent, seat, up_ns, open: [true, alive && !half], lanes: [lane(), lane()] });
        let wire = self.wires.len() - 1;
        self.give_shard(seat, api::In::WireUp { wire: api::WireId(wire as u64) });
        if half && self.chance.percent(50) {
            let at_ns = up_ns + self.chance.magnitude(US, 500 * MS);
            self.queue.at(at_ns, Event::Arrive(wire, Way::Up, Item::End));
        }
        wire
    }

    /// Puts a frame on its way; the sender must have the wire.
    pub(crate) fn send(&mut self, wire: usize, way: Way, frame: &Frame) {
        let of = &self.wires[wire];
        let (agent, edge) = (of.agent, of.seat.edge);
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
        let silent = self.silent(way, of.agent, of.seat.edge);
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
        if self.silent(way, of.agent, of.seat.edge) {
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
            if of.agent == agent && of.seat.edge == edge && !of.lanes[way as usize].held.is_empty() {
                let delay_ns = self.delay_ns(way, agent, edge);
                self.queue.after(delay_ns, Event::Flush(wire, way));
            }
        }
    }

    fn silent(&self, way: Way, agent: usize, edge: usize) -> bool {
        self.silences[way as usize][agent][edge] > 0
    }

    pub(crate) fn deliver(&mut self, wire: usize, way: Way, item: Item) {
        let (agent, seat) = (self.wires[wire].agent, self.wires[wire].seat);
        if !self.wires[wire].is_open(way) {
            self.answer_stray(wire, way, &item);
            return;
        }
        match item {
            Item::End => {
                self.wires[wire].close(way);
                match way {
                    Way::Up => self.give_shard(seat, api::In::WireDown { wire: api::WireId(wire as u64) }),
                    Way::Down => {
                        let (wire, reason) = (agent::WireId(wire as u64), "connection reset".into());
                        self.give_agent(agent, agent::In::WireDown { wire, reason });
                    }
                }
            }
            Item::Frame(bytes) => self.deliver_frame(wire, way, &bytes),
        }
    }

    fn deliver_frame(&mut self, wire: usize, way: Way, bytes: &Bytes) {
        let (agent, seat) = (self.wires[wire].agent, self.wires[wire].seat);
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
                let from = if way == Way::Up {
                    format!("A{agent} -> {seat}")
                } else {
                    format!("{seat} -> A{agent}")
                };
                format!("{from} w{wire} {}", super::brief(&frame))
            });
        }
        let side = if way == Way::Up { Side::Edge } else { Side::Agent };
        self.watch.arrived(wire, side, &frame, &mut self.violations);
        match way {
            Way::Up => self.give_shard(seat, api::In::Frame { wire: api::WireId(wire as u64), frame }),
            Way::Down => self.give_agent(agent, agent::In::Frame { wire: agent::WireId(wire as u64), frame }),
        }
    }

    /// A host that is up answers what belongs to no connection of its own: the sender learns that it is gone.
    fn answer_stray(&mut self, wire: usize, way: Way, item: &Item) {
        let of = &self.wires[wire];
        let up = match way {
            Way::Up => self.edges[of.seat.edge].is_up(),
            Way::Down => self.agents[of.agent].is_up(),
        };
        if up && matches!(item, Item::Frame(_)) && of.is_open(way.back()) {
            let delay_ns = self.delay_ns(way.back(), of.agent, of.seat.edge);
            self.break_wire(wire, way.back(), delay_ns);
        }
    }
}
