//! Sessions whose outputs do not wait for the backup: what each end has received of which history.
//!
//! ```text
//! frames:      0 1 2 3 4 | an owner that is behind has 0 1 | 2' 3' 4' 5'
//! history:     0 1 2 3 4 |          0 1                     | 0 1 2' 3' 4' 5'     the outputs of the present owner
//! given:       0 1 2 3 4 |          0 1 2 3 4               | 0 1 2 3 4 5'        what the program gets: each number once
//! ```
//! The oracle judges each history as if its session had always waited. What the program got must be `given`.

use super::World;
use crate::{program::RanAhead, watch::Rare};
use bytes::Bytes;
use marram_chain_algo::Peer;
use marram_session::end::EndOutputs;
use marram_wire::{
    frame::Frame,
    id::{Generation, Port, SessionId},
};
use std::collections::BTreeMap;

/// The end of a session at a process of an agent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct EndPlace {
    agent: usize,
    life: u32,
    session: SessionId,
    server: bool,
}

/// What an end has received. A close is none.
#[derive(Debug, Default)]
struct Tape {
    history: Vec<Option<Bytes>>,
    given: Vec<Option<Bytes>>,
    /// How many of the history no owner that it has promised since contradicts.
    agreed: u64,
    /// How often an owner was accepted that was behind.
    cuts: u64,
}

/// All that is known of these sessions.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    tapes: BTreeMap<EndPlace, Tape>,
    /// By the owner's generation, outputs that a backup has confirmed, or that left while their edge ran alone: no later owner may lack them.
    confirmed: BTreeMap<(SessionId, bool), BTreeMap<Generation, u64>>,
}

impl World {
    /// The end for which an edge's frame is, and what it has received before that.
    pub(super) fn before_frame(
        &self,
        wire: usize,
        agent: usize,
        frame: &Frame,
    ) -> Option<(EndPlace, EndOutputs)> {
        let channel = match frame {
            Frame::Output(output) => output.channel,
            Frame::Chosen(chosen) => chosen.channel,
            Frame::Promise(promise) => promise.channel,
            _ => return None,
        };
        let (session, server) = self.watch.end_on(wire, channel).filter(|_| self.plan.runs_ahead())?;
        let node = &self.agents[agent];
        let place = EndPlace { agent, life: node.life, session, server };
        Some((place, node.machine()?.end(session, server)?.outputs()))
    }

    /// The end has taken the frame, or refused it.
    pub(super) fn after_frame(&mut self, place: EndPlace, before: EndOutputs, output: Option<(bool, Bytes)>) {
        let end = self.agents[place.agent].machine().and_then(|it| it.end(place.session, place.server));
        let Some(after) = end.map(marram_session::end::End::outputs) else { return };
        let tape = self.ahead.tapes.entry(place).or_default();
        tape.agreed = after.agreed;
        match output {
            Some((close, payload)) if after.received > before.received => {
                let output = (!close).then_some(payload);
                if tape.history.len() == tape.given.len() {
                    tape.given.push(output.clone());
                }
                tape.history.push(output);
            }
            None if after.received < before.received => {
                // The owner that it follows now may have run alone meanwhile.
                let confirmed = self.ahead.confirmed.get(&(place.session, place.server));
                let before = confirmed.into_iter().flat_map(|counts| counts.range(..=before.chosen));
                if let Some(count) = before.map(|(_, count)| *count).max().filter(|it| *it > after.received) {
                    self.violations.push(format!(
                        "an end of {} follows an owner with {} outputs, and {count} were confirmed",
                        place.session, after.received
                    ));
                }
                tape.cuts += 1;
                tape.history.truncate(usize::try_from(after.received).expect("a history is short"));
                self.watch.counts.add(Rare::EndWasAhead, 1);
            }
            _ => {}
        }
        if tape.history.len() as u64 != after.received {
            self.violations.push(format!("{place:?} has received {after:?} of {}", tape.history.len()));
        }
    }

    /// After a step of a shard: what the backups of its sessions have confirmed.
    pub(super) fn note_confirmed(&mut self, position: crate::position::ShardPosition) {
        if !self.plan.runs_ahead() {
            return;
        }
        let Some(machine) = self.edges[position.edge].shards[position.shard].machine() else { return };
        let owners = machine.owners().filter(|owner| owner.group().is_some() && !owner.is_shared_cell());
        for owner in owners {
            for (server, port) in [(false, Port::CLIENT), (true, Port::SERVER)] {
                let confirmed = self.ahead.confirmed.entry((owner.session(), server)).or_default();
                let confirmed = confirmed.entry(owner.generation()).or_default();
                *confirmed = owner.confirmed_outputs(port).max(*confirmed);
            }
        }
    }

    /// Before the oracle judges: what programs received of which histories.
    pub(super) fn mark_ran_ahead(&mut self) {
        let written = |outputs: &[Option<Bytes>]| outputs.iter().flatten().flatten().copied().collect();
        for (place, tape) in &mut self.ahead.tapes {
            // One that has not heard that an owner has chosen its log follows the one before, until its session ends.
            let agreed = usize::try_from(tape.agreed).expect("a history is short");
            if tape.cuts == 0 && agreed >= tape.history.len() {
                continue;
            }
            tape.history.truncate(agreed);
            let peer = if place.server { Peer::Server } else { Peer::Client };
            let is_it = |it: &&mut crate::program::Program| {
                (it.agent, it.life, it.session, it.peer)
                    == (place.agent, place.life, Some(place.session), peer)
            };
            // A program is told nothing behind its first close.
            let end = tape.given.iter().position(Option::is_none).unwrap_or(tape.given.len());
            if let Some(program) = self.programs.iter_mut().find(is_it) {
                let (history, given) = (written(&tape.history), written(&tape.given[..end]));
                let is_closed = tape.history.last().is_some_and(Option::is_none);
                program.ran_ahead = Some(RanAhead { history, is_closed, given });
            }
        }
    }
}
