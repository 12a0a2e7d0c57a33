//! The ends of one session together, client first: what relates one to the other, and frames that all of them get.

use super::{
    OwnerEffect, OwnerPolicy,
    end_state::{EndState, Message},
    log::{Checkmark, Log},
    pauses::Pauses,
    port_list::PortList,
    share::OwnerShare,
    sides::Sides,
};
use crate::{
    cell::{CellInput, CellOutput},
    replay::{Consumed, newest, opens},
};
use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::ops::{Deref, DerefMut};
use marram_wire::{
    codec::Last,
    frame::{Channel, Chosen, Code, Ended, Failed, Failure, Finish, Frame, Increment, LogPart, Reject},
    header::Header,
    id::{Generation, HostId, Port, SessionId},
    limits::{OUTPUT_WINDOW, PART_SIZE},
    log::Peers,
    peer::Peer,
    seal::Seal,
};

/// Input with outputs that may go to an end waits while more bytes than this wait for that end's credit. A full buffer
/// delays input; it never drops.
const UNSENT_MAX: u64 = 256 << 10;
/// Input also waits while more bytes than this wait for an end's acknowledgement. An end that acknowledges in time
/// never has as much.
pub(super) const OUTBOX_MAX: u64 = UNSENT_MAX + 2 * OUTPUT_WINDOW;

/// The sides of a session, by port: one, or two if its app has a server. Only those of a shared cell become more and fewer.
#[derive(Debug)]
pub(super) struct Ends {
    sides: Sides,
    /// Of a shared cell: clients that are about to join, and what only such a cell needs.
    pub(super) ports: Option<Box<PortList>>,
    /// The port that is considered first for the next message, so that no end waits for another that always sends.
    turn: Port,
    /// How much the session may keep here.
    pub(super) share: OwnerShare,
}

impl Deref for Ends {
    type Target = Sides;

    fn deref(&self) -> &Sides {
        &self.sides
    }
}

impl DerefMut for Ends {
    fn deref_mut(&mut self) -> &mut Sides {
        &mut self.sides
    }
}

/// The bit of a side by its index. Sides from 63 on share one, and wait for each other.
fn bit(index: usize) -> u64 {
    1 << index.min(63)
}

/// Whether the end of a side must take more first.
fn is_full(side: &EndState, share: OwnerShare) -> bool {
    side.unsent_charge > UNSENT_MAX || side.outbox_charge > share.outbox()
}

/// What has passed between an owner and one end, for listings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndProgress {
    /// The end's port.
    pub port: Port,
    /// Whether the end has a channel.
    pub linked: bool,
    /// Messages from the end that the cell consumed.
    pub consumed: u64,
    /// Messages from the end that wait for the cell.
    pub waiting: u64,
    /// Charge of the consumed messages that no checkpoint covers, in bytes.
    pub uncovered: u64,
    /// Outputs that were produced for the end.
    pub produced: u64,
    /// Outputs that the end has not acknowledged, and those of them that were not sent.
    pub unacknowledged: [u64; 2],
    /// Bytes of outputs that may be sent to the end.
    pub credit: u64,
}

impl Ends {
    /// What has passed between the owner and each end.
    pub(super) fn progress(&self) -> impl Iterator<Item = EndProgress> {
        self.sides.iter().map(|side| EndProgress {
            port: side.port,
            linked: side.channel.is_some(),
            consumed: side.took,
            waiting: side.inputs.len() as u64,
            uncovered: side.uncovered,
            produced: side.produced,
            unacknowledged: [side.outbox.len() as u64, (side.outbox.len() - side.sent) as u64],
            credit: side.credit.left(),
        })
    }

    /// The agent of the end at each port, in ascending order of ports.
    pub(super) fn new(sides: impl Iterator<Item = (Port, HostId)>) -> Self {
        let sides = Sides::new(sides.map(|(port, host)| EndState::new(port, host)).collect());
        Self { sides, ports: None, turn: Port::CLIENT, share: OwnerShare::largest() }
    }

    /// Those of a shared cell that has no client.
    pub(super) fn of_shared_cell(cell: SessionId) -> Self {
        let list = PortList { cell, ..PortList::default() };
        let (sides, ports) = (Sides::of_clients(), Some(Box::new(list)));
        Self { sides, ports, turn: Port::CLIENT, share: OwnerShare::largest() }
    }

    /// Whether the checkpoint with this header has the ports of these ends. A shared cell has those that the header says.
    pub(super) fn are_in(&self, header: &Header) -> bool {
        match &self.ports {
            Some(_) => header.ports.is_empty(),
            None => header.clients.0.is_empty() && header.ports.len() == self.sides.len(),
        }
    }

    /// The end at this port, if the session has one.
    pub(super) fn at(&self, port: Port) -> Option<&EndState> {
        self.index(port).map(|index| &self.sides[index])
    }

    pub(super) fn has_server(&self) -> bool {
        self.index(Port::SERVER).is_some()
    }

    /// Whether an attempt to own the session waits for no end: those of a shared cell promise one by one, while it runs.
    pub(super) fn decide_nothing(&self) -> bool {
        self.ports.is_some()
    }

    pub(super) fn are_all_linked(&self) -> bool {
        self.decide_nothing() || self.sides.iter().all(|side| side.channel.is_some())
    }

    pub(super) fn have_all_promised(&self) -> bool {
        self.decide_nothing() || self.sides.iter().all(|side| side.promised.is_some())
    }

    pub(super) fn held_bytes(&self) -> u64 {
        let ports = self.ports.as_ref().map_or(0, |ports| ports.held_bytes());
        ports + self.sides.held_bytes()
    }

    /// Those that a session has from its start to its end: none of a shared cell's.
    pub(super) fn lasting(&self) -> impl Iterator<Item = &EndState> {
        self.sides.iter().filter(|side| side.client.is_none())
    }

    /// How many messages of each of these the cell has consumed.
    pub(super) fn took(&self) -> Vec<u64> {
        self.lasting().map(|side| side.took).collect()
    }

    /// The least that an end, or this edge, may keep before a checkpoint is due.
    pub(super) fn allowance(&self) -> u64 {
        self.sides.iter().map(EndState::allowance).fold(self.share.allowance(), u64::min)
    }

    /// The end with the longest log, the first of those with equal ones.
    pub(super) fn longest(&self) -> Option<usize> {
        if self.decide_nothing() {
            return None;
        }
        let ends =
            self.sides.iter().map(|side| side.promised.as_ref().map_or(0, |promised| promised.log_end));
        ends.enumerate().max_by_key(|(index, end)| (*end, core::cmp::Reverse(*index))).map(|(index, _)| index)
    }

    /// The end with the newest last checkpoint.
    pub(super) fn best_holder(&self) -> Option<usize> {
        newest(self.sides.iter().map(EndState::announced))
    }

    /// The position and digest of each end's log, from `base` on. An end that lies may have log of another history than
    /// the other end received, so the chosen log must lead through all of them. What a checkpoint covers cannot be
    /// compared. None if the ends do not `keep` log.
    pub(super) fn held_behind(&self, base: u64, keep: bool) -> Vec<Checkmark> {
        let held = self.sides.iter().filter_map(|side| side.promised.as_ref());
        let held = held.filter(|held| keep && held.log_end >= base.max(1));
        let mut places: Vec<_> = held.map(|held| (held.log_end, held.tag)).collect();
        places.sort_unstable();
        places
    }

    /// How many messages of each end were fed and wait behind those that the cell consumed.
    pub(super) fn fed_behind(&self) -> Option<Consumed> {
        let behind = |side: &EndState| {
            let behind = side.promised.as_ref()?.sent_start.checked_sub(side.took)?;
            Some((side.port, usize::try_from(behind).ok()?))
        };
        self.sides.iter().map(behind).collect()
    }

    /// Whether an end was informed before that the same input was stopped at the same offset.
    pub(super) fn know_failure(&self, failure: &Failure) -> bool {
        self.sides
            .iter()
            .filter_map(|side| side.promised.as_ref()?.failed.as_ref())
            .any(|before| before.log_offset == failure.log_offset && before.input == failure.input)
    }

    /// How the ends of a new session described their peers when they promised.
    pub(super) fn peers(&self) -> Peers {
        let promised = |port: Port| self.at(port).and_then(|side| side.promised.as_ref());
        let datagrams = |port: Port| promised(port).is_some_and(|promised| promised.datagrams);
        let origin = promised(Port::CLIENT).and_then(|promised| promised.origin.as_deref());
        let identity = self.at(Port::CLIENT).and_then(|side| side.identity.as_deref());
        Peers {
            server: self.has_server(),
            client_datagrams: datagrams(Port::CLIENT),
            server_datagrams: datagrams(Port::SERVER),
            client: Peer::new(origin, identity).map(Arc::new),
        }
    }

    /// The handlers that open the ports, in reverse order: they are taken from the end of the list, the client's first.
    pub(super) fn opens(&self, peers: &Peers) -> Vec<CellInput> {
        opens(self.sides.iter().map(|side| side.port), peers)
    }

    /// The sides with ends that must take more before any input may run that could produce outputs for them: a bitmap
    /// by their index.
    ///
    /// The cell does not stop completely: a server that answers before it continues to read takes nothing more until
    /// its answer is read.
    ///
    /// A client of a shared cell that takes nothing delays itself alone.
    pub(super) fn full(&self) -> u64 {
        if self.ports.is_some() {
            return 0;
        }
        let full = |side: &EndState| is_full(side, self.share);
        let bits = self.sides.iter().enumerate().map(|(index, side)| if full(side) { bit(index) } else { 0 });
        bits.fold(0, |all, bit| all | bit)
    }

    /// Records to which sides the messages of this port are answered.
    pub(super) fn learn(&mut self, port: Port, outputs: &[CellOutput]) {
        if self.ports.is_some() {
            // A client that takes nothing delays itself alone.
            return;
        }
        let outputs = outputs.iter().filter_map(|made| match made {
            CellOutput::Message { port, .. } | CellOutput::Close { port } => self.index(*port),
            CellOutput::Pause { .. } | CellOutput::Resume { .. } | CellOutput::Connect { .. } => None,
        });
        let reaches = outputs.fold(0, |all, index| all | bit(index));
        if let Some(index) = self.index(port) {
            self.sides[index].reaches |= reaches;
        }
    }

    /// Ports in turn. Skips ports with messages that were answered to a `full` side, and messages beyond the credit of
    /// a paused port.
    pub(super) fn next_message(&mut self, full: u64, pauses: &Pauses) -> Option<(Port, Message)> {
        let (clients, turn) = (self.paused_clients(), self.turn);
        let may = |side: &EndState, share: OwnerShare| {
            let client = side.client.as_ref();
            let rests = client.is_some_and(|client| client.rests() || is_full(side, share));
            let is_stopped = || side.is_beyond_credit() && pauses.stops(side.port, clients);
            !side.inputs.is_empty() && !rests && side.reaches & full == 0 && !is_stopped()
        };
        let share = self.share;
        let found = if self.ports.is_some() {
            self.sides.queues();
            let waiting = &self.sides.settled().messages;
            let ports = waiting.range(turn..).chain(waiting.range(..turn));
            let mut indices = ports.filter_map(|port| self.sides.index(*port));
            indices.find(|index| may(&self.sides[*index], share))
        } else {
            let after = self.sides.iter().position(|side| side.port >= turn).unwrap_or(0);
            let count = self.sides.len();
            (after..count).chain(0..after).find(|index| may(&self.sides[*index], share))
        };
        let side = &mut self.sides[found?];
        self.turn = Port(side.port.0.saturating_add(1));
        Some((side.port, side.take_input()?))
    }

    /// Sealed log that the end at `index` was not sent yet.
    pub(super) fn increment(&mut self, index: usize, log: &Log, seal: &Seal) -> Option<Increment> {
        let (known, end) = (self.sides[index].known, log.end());
        if known >= end {
            return None;
        }
        let (entries, tag) = (log.sealed(known, seal), log.tag());
        (self.sides[index].known, self.sides[index].known_tag) = (end, tag);
        Some(Increment { entries, tag })
    }

    /// Sends a frame to each linked end.
    pub(super) fn send(&self, frame: impl Fn(Channel) -> Frame, out: &mut Vec<OwnerEffect>) {
        for side in self.sides.iter() {
            out.extend(side.channel.map(|channel| OwnerEffect::Send(side.port, frame(channel))));
        }
    }

    /// Sends each linked end its last frame of this generation.
    fn send_last(&mut self, frame: impl Fn(Channel) -> Frame, out: &mut Vec<OwnerEffect>) {
        let entering = self.ports.iter_mut().flat_map(|list| &mut list.entering);
        for side in self.sides.iter_mut().chain(entering) {
            let linked = side.channel.take();
            let channel = side.client.as_ref().map_or(linked, |client| client.channel(linked));
            out.extend(channel.map(|channel| OwnerEffect::Send(side.port, frame(channel))));
        }
        self.all_away();
    }

    /// This owner is not, or no longer, the one of the session; the ends may ask again.
    pub(super) fn reject(&mut self, code: Code, reason: &str, out: &mut Vec<OwnerEffect>) {
        self.send_last(|channel| Reject { channel, code, reason: reason.into() }.into(), out);
    }

    /// The session is over for all ends.
    pub(super) fn end(&mut self, code: Code, reason: &str, out: &mut Vec<OwnerEffect>) {
        // A server that has not got everything must not take this for the end of what the cell says.
        let is_cut_off = |side: &EndState| side.connection().is_some() && !side.is_done();
        let cut_off = self.connections().iter().filter(|side| code == Code::Finished && is_cut_off(side));
        for port in cut_off.map(|side| side.port).collect::<Vec<_>>() {
            self.end_one(port, Code::Lost, "the cell has ended", out);
        }
        self.send_last(|channel| Ended { channel, code, reason: reason.into() }.into(), out);
    }

    /// A handler was stopped: the ends remember where, and move to another edge.
    pub(super) fn fail(&mut self, failure: &Failure, out: &mut Vec<OwnerEffect>) {
        self.send_last(|channel| Failed { channel, failure: failure.clone() }.into(), out);
    }

    /// Every end has received everything: asks all of them to get ready to delete the session.
    pub(super) fn finish(&self, out: &mut Vec<OwnerEffect>) {
        self.send(|channel| Finish { channel }.into(), out);
    }

    /// Whether both directions of every port are closed, and every end has received everything. Only the ends of a
    /// session that is kept must be linked for this: the others cannot come back.
    pub(super) fn are_done(&self, policy: &OwnerPolicy) -> bool {
        let done = |side: &EndState| side.input_closed && side.output_closed && side.outbox.is_empty();
        // A shared cell waits for its next client.
        let is_shared = self.ports.is_some();
        !is_shared && self.sides.iter().all(done) && (!policy.keeps.anything() || self.are_all_linked())
    }

    /// Continues with a cell that never stopped: every end's last promise before this one was to this owner, so no
    /// other owner can have chosen. False if an end says otherwise, or does not go on where the cell stands.
    pub(super) fn resume_live(&mut self, log_end: u64) -> bool {
        let all_live =
            self.sides.iter().all(|side| side.promised.as_ref().is_some_and(|promised| promised.live));
        all_live
            && self.sides.iter_mut().all(|side| {
                let promised = side.promised.as_ref();
                let terms = promised
                    .filter(|it| it.log_end <= log_end && it.sent_start == side.took)
                    .map(|it| (it.received, it.window));
                terms.is_some_and(|(received, window)| side.resume(received, window))
            })
    }

    /// Sends every end what it lacks of the chosen log **\[M\]** and its initial credit: from then on it accepts
    /// outputs.
    pub(super) fn send_chosen(
        &mut self,
        (generation, seal): (Generation, &Seal),
        (session_ns, runs_ahead): (i64, bool),
        (log, keeps_log): (&Log, bool),
        pauses: &Pauses,
        out: &mut Vec<OwnerEffect>,
    ) {
        let (end, tag, window) = (log.end(), log.tag(), self.share.window());
        let clients = self.paused_clients();
        for side in self.sides.iter_mut() {
            let Some(channel) = side.channel else { continue };
            let credit = side.begin_credit(window, pauses.stops(side.port, clients));
            let has = side.promised.as_ref().map_or(0, |promised| promised.log_end);
            let mut offset = has.max(log.floor());
            // An end that keeps messages alone gets no log.
            let missing = if keeps_log {
                log.since(offset)
            } else {
                offset = has;
                &[]
            };
            // 0 also if nothing is missing.
            let last = missing.chunks(PART_SIZE).count().saturating_sub(1);
            let mut tail = bytes::Bytes::new();
            for (index, part) in missing.chunks(PART_SIZE).enumerate() {
                let mut sealed = part.to_vec();
                seal.log(offset, &mut sealed);
                if index == last {
                    tail = sealed.into();
                    break;
                }
                let part = LogPart { channel, generation, offset, bytes: sealed.into() };
                offset += PART_SIZE as u64;
                out.push(OwnerEffect::Send(side.port, part.into()));
            }
            let runs_ahead = Last(runs_ahead.then_some(true));
            let chosen =
                Chosen { channel, log_offset: offset, log: tail, tag, credit, session_ns, runs_ahead };
            out.push(OwnerEffect::Send(side.port, chosen.into()));
            (side.known, side.known_tag) = (end, tag);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn a_port_that_a_session_does_not_have_has_no_side() {
        for ports in [vec![], vec![0], vec![0, 1], vec![0, 2, 3, 7], vec![3, 9]] {
            let ends = Ends::new(ports.iter().map(|port| (Port(*port), HostId([0; 16]))));
            for port in 0..10 {
                let expected = ports.iter().position(|at| *at == port);
                assert_eq!(ends.index(Port(port)), expected, "{port} of {ports:?}");
                assert_eq!(ends.at(Port(port)).map(|side| side.port.0), expected.map(|_| port));
            }
            assert_eq!(ends.has_server(), ports.contains(&1), "{ports:?}");
        }
    }
}
