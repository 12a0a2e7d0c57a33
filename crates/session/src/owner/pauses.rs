//! The ports that the cell has paused: their ends are granted no credit, so that their senders wait (back-pressure).
//!
//! A pause only withholds credit. Messages within the credit that an end still has arrive and are handled. Which ports
//! are paused follows from the log alone, so a replay pauses the same ports, and a checkpoint's header lists them.

use super::{Owner, OwnerEffect, end_state::EndState, ends::Ends, sides::Chore};
use crate::credit::MessageCredit;
use alloc::{collections::BTreeSet, vec::Vec};
use marram_wire::{
    frame::Credit,
    header::{Many, Paused},
    id::Port,
};

/// Which pauses stop a client, beside those of its own port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PausedClients {
    /// No other: the session has a server, whose side is another one.
    Own,
    /// Those between stages, of a shared cell: all that its chain does follows from its clients.
    Inner,
    /// Any: without a server all that a chain does follows from its only client.
    All,
}

/// By stage, the ports that it has paused.
#[derive(Debug, Default)]
pub(super) struct Pauses(BTreeSet<(u8, Port)>);

impl Pauses {
    /// Whether the port was not paused before. `is_port` says whether the session has it.
    pub(super) fn pause(&mut self, stage: u8, port: Port, is_port: bool) -> bool {
        // Further stages have the ports of a chain. Others are not listed: this keeps the session's header small.
        let is_kept = match stage {
            0 => is_port || port == Port::SERVER,
            _ => port == Port::CLIENT || port == Port::SERVER,
        };
        is_kept && self.0.insert((stage, port))
    }

    /// Whether the port was paused before.
    pub(super) fn resume(&mut self, stage: u8, port: Port) -> bool {
        self.0.remove(&(stage, port))
    }

    /// The port is gone, and with it what the first stage has paused there: another client may get its number.
    pub(super) fn forget(&mut self, port: Port) {
        self.0.remove(&(0, port));
    }

    /// Whether the end at this port is granted no credit. A stage that pauses a port pauses its whole chain on that
    /// side; this rule is the only one.
    pub(super) fn stops(&self, port: Port, clients: PausedClients) -> bool {
        self.0.iter().any(|(stage, paused)| {
            *paused == port
                || match clients {
                    PausedClients::Own => false,
                    PausedClients::Inner => *stage > 0 || *paused == Port::SERVER,
                    PausedClients::All => true,
                }
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Ends all pauses and returns how many there were.
    pub(super) fn take(&mut self) -> usize {
        core::mem::take(&mut self.0).len()
    }

    pub(super) fn to_header(&self) -> Many<Paused> {
        Many(self.0.iter().map(|(stage, port)| Paused { stage: *stage, port: *port }).collect())
    }

    pub(super) fn restore(paused: &Many<Paused>) -> Self {
        Self(paused.0.iter().map(|paused| (paused.stage, paused.port)).collect())
    }
}

impl Owner {
    /// The ports that the cell has paused: their ends are granted no credit.
    pub fn paused(&self) -> impl Iterator<Item = Port> {
        let stops = |side: &&EndState| self.state.pauses().stops(side.port, self.ends.paused_clients());
        self.ends.iter().filter(stops).map(|side| side.port)
    }
}

impl Ends {
    /// Which pauses stop its clients, beside those of their own ports.
    pub(super) fn paused_clients(&self) -> PausedClients {
        match &self.ports {
            Some(_) => PausedClients::Inner,
            None if self.has_server() => PausedClients::Own,
            None => PausedClients::All,
        }
    }

    /// Returns credit for what was consumed. The end of a paused port gets it when the port is resumed.
    pub(super) fn give_credit(&mut self, pauses: &Pauses, out: &mut Vec<OwnerEffect>) {
        let (clients, window) = (self.paused_clients(), self.share.window());
        for index in self.visit(Chore::Grant) {
            let side = &self[index];
            if let Some(channel) = side.channel
                && let Some(bytes) = side.input_credit.due(window)
                && !pauses.stops(side.port, clients)
            {
                let side = &mut self[index];
                if side.input_credit.grant(bytes) {
                    out.push(OwnerEffect::Send(side.port, Credit { channel, received: 0, bytes }.into()));
                }
            }
        }
    }
}

impl EndState {
    /// The initial credit of the end in a generation. A paused port is granted none until it is resumed.
    pub(super) fn begin_credit(&mut self, window: u64, is_paused: bool) -> u64 {
        let credit = if is_paused { 0 } else { window };
        self.input_credit = MessageCredit::of(credit);
        credit
    }

    /// Whether the next message was sent with the promise, beyond any credit. It waits while the port is paused: an end
    /// may send much more with its promise than a cell that withholds credit is prepared for.
    pub(super) fn is_beyond_credit(&self) -> bool {
        self.took < self.credited_from
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_flows_again_when_every_stage_has_resumed_it() {
        let mut pauses = Pauses::default();
        pauses.pause(0, Port::SERVER, true);
        pauses.pause(2, Port::SERVER, true);
        pauses.pause(2, Port::SERVER, true);
        pauses.pause(1, Port(7), true);
        pauses.pause(0, Port(7), false);
        let mut pauses = Pauses::restore(&pauses.to_header());
        assert_eq!(pauses.to_header().0.len(), 2);
        assert!(!pauses.stops(Port::CLIENT, PausedClients::Own));
        assert!(pauses.stops(Port::CLIENT, PausedClients::All), "there is nothing else that could stop");
        pauses.resume(2, Port::SERVER);
        assert!(pauses.stops(Port::SERVER, PausedClients::Own));
        pauses.resume(0, Port::CLIENT);
        assert!(pauses.stops(Port::SERVER, PausedClients::Own));
        pauses.resume(0, Port::SERVER);
        assert!(!pauses.stops(Port::SERVER, PausedClients::Own) && pauses.is_empty());
    }

    #[test]
    fn a_client_of_many_is_stopped_by_its_own_pause_and_by_those_between_stages() {
        for (stage, paused, stops) in [(0, 0, true), (0, 2, false), (0, 1, true), (1, 0, true), (1, 1, true)]
        {
            let mut pauses = Pauses::default();
            pauses.pause(stage, Port(paused), true);
            assert_eq!(
                pauses.stops(Port::CLIENT, PausedClients::Inner),
                stops,
                "stage {stage}, port {paused}"
            );
        }
    }
}
