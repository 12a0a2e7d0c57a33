//! The owner's state for one end: what it sent, what it received, and what may be sent to it.

use super::{client_port::ClientPort, queues::Queued};
use crate::credit::MessageCredit;
use alloc::{boxed::Box, collections::VecDeque};
use bytes::Bytes;
use marram_wire::{
    frame::{Channel, CheckpointMeta, Promised},
    header::{Many, PortState, Unacknowledged},
    id::{HostId, Port},
    limits::{ALLOWANCE_MIN, CHECKPOINT_AFTER_BYTES, charge},
};

/// A message, or the mark that ends the stream.
pub(super) type Message = Unacknowledged;

/// One end of the session.
#[derive(Debug)]
pub(super) struct EndState {
    pub(super) port: Port,
    pub(super) host: HostId,
    /// The verified identity of the end's agent, if it was verified. Of the client's only: the cell is told of its
    /// client.
    pub(super) identity: Option<Box<str>>,
    /// Of a shared cell: the client at this port.
    pub(super) client: Option<Box<ClientPort>>,
    /// Of the current generation; none while the end is disconnected. That of a client is set once its port is linked.
    pub(super) channel: Option<Channel>,
    pub(super) promised: Option<Promised>,
    /// Bytes of the checkpoints that the end keeps, and of those that it may keep.
    pub(super) checkpoint_bytes: u64,
    pub(super) checkpoints_max: u64,
    /// Messages that the cell has not consumed; the first has sequence number `took`, unless a replay consumes them.
    pub(super) inputs: VecDeque<Message>,
    pub(super) inputs_charge: u64,
    /// Whether messages were here before the end was asked for its promise: from an owner or a recorder that fed this
    /// one. They may include messages that the end has deleted since.
    pub(super) fed: bool,
    /// Sequence number of the next message from the end.
    pub(super) next: u64,
    /// Messages consumed.
    pub(super) took: u64,
    pub(super) input_closed: bool,
    /// The sides to which handlers of its inputs have sent something: a bitmap by their index.
    pub(super) reaches: u64,
    /// Messages from this number on were sent on credit. Consuming them returns credit.
    pub(super) credited_from: u64,
    /// What the end was granted for its messages on this channel, less those that were consumed.
    pub(super) input_credit: MessageCredit,
    /// Outputs produced.
    pub(super) produced: u64,
    /// How many outputs were produced by entries that are logged (or, where nothing is logged, that are complete). No
    /// other may be sent.
    pub(super) logged: u64,
    pub(super) output_closed: bool,
    /// The last outputs, if not acknowledged.
    pub(super) outbox: VecDeque<Message>,
    pub(super) outbox_charge: u64,
    /// How many outputs of the outbox were sent on the channel.
    pub(super) sent: usize,
    pub(super) unsent_charge: u64,
    /// For the outputs that are sent to the end on this channel.
    pub(super) credit: MessageCredit,
    /// Offset up to which the end was sent the log.
    pub(super) known: u64,
    /// The running digest at that offset.
    pub(super) known_tag: [u8; 8],
    pub(super) finished: bool,
    /// Charge of the consumed messages that no checkpoint covers.
    pub(super) uncovered: u64,
    /// While a session moves whose app has no protection: the first message that the end keeps. None before it has answered.
    pub(super) kept_from: Option<u64>,
    /// How many `ProtectNow` it has not answered on this channel.
    pub(super) unanswered: u32,
    /// Up to where the last of these named the log, and up to where the end is known to have it.
    pub(super) asked_log: u64,
    pub(super) confirmed_log: u64,
    /// Of a shared cell: the chores for which it has changed since they were done, a bitmap; and for what it is in a queue.
    pub(super) noted: u16,
    pub(super) queued: Queued,
    /// How much of them, or of the log, the end may keep before a checkpoint is due, as it said on this channel.
    allowance: u64,
}

impl EndState {
    pub(super) fn new(port: Port, host: HostId) -> Self {
        Self {
            port,
            host,
            identity: None,
            client: None,
            channel: None,
            promised: None,
            checkpoint_bytes: 0,
            checkpoints_max: 0,
            inputs: VecDeque::new(),
            inputs_charge: 0,
            fed: false,
            next: 0,
            took: 0,
            input_closed: false,
            reaches: 0,
            credited_from: 0,
            input_credit: MessageCredit::default(),
            produced: 0,
            logged: 0,
            output_closed: false,
            outbox: VecDeque::new(),
            outbox_charge: 0,
            sent: 0,
            unsent_charge: 0,
            credit: MessageCredit::default(),
            known: 0,
            known_tag: [0; 8],
            finished: false,
            uncovered: 0,
            kept_from: None,
            unanswered: 0,
            asked_log: 0,
            confirmed_log: 0,
            noted: 0,
            queued: Queued::default(),
            allowance: CHECKPOINT_AFTER_BYTES,
        }
    }

    /// Clears the state of the last attempt. What the cell consumed and produced stays, and so do inputs that were
    /// `fed`.
    pub(super) fn ask(&mut self, channel: Option<Channel>, fed: bool) {
        self.channel = channel;
        self.promised = None;
        self.fed = fed;
        if !fed {
            self.inputs.clear();
            self.inputs_charge = 0;
        }
        self.finished = false;
        (self.unanswered, self.asked_log, self.confirmed_log) = (0, 0, 0);
        self.input_credit = MessageCredit::default();
        self.allowance = CHECKPOINT_AFTER_BYTES;
    }

    /// The end says how much may be uncovered. One that lies can cost this edge no more than [`ALLOWANCE_MIN`] lets it.
    pub(super) fn allow(&mut self, bytes: u64) {
        self.allowance = bytes.clamp(ALLOWANCE_MIN, CHECKPOINT_AFTER_BYTES);
    }

    /// How much may be uncovered at the end. An end that is away keeps what it has, whatever a checkpoint covers.
    pub(super) fn allowance(&self) -> u64 {
        if self.channel.is_some() { self.allowance } else { CHECKPOINT_AFTER_BYTES }
    }

    /// The checkpoints that the end has promised and sends.
    pub(super) fn announced(&self) -> &[CheckpointMeta] {
        let promised = self.promised.as_ref().filter(|promised| !promised.live);
        promised.map_or(&[], |promised| &promised.checkpoints)
    }

    pub(super) fn push_input(&mut self, message: Message) {
        self.next += 1;
        self.inputs_charge += charge(message.payload.len());
        self.inputs.push_back(message);
    }

    /// Takes the next message, which the cell consumes.
    pub(super) fn take_input(&mut self) -> Option<Message> {
        let message = self.inputs.pop_front()?;
        let cost = charge(message.payload.len());
        self.inputs_charge -= cost;
        if self.took >= self.credited_from {
            self.input_credit.spend(cost);
        }
        self.consumed(&message);
        Some(message)
    }

    /// The cell consumes this message.
    pub(super) fn consumed(&mut self, message: &Message) {
        self.took += 1;
        self.uncovered += charge(message.payload.len());
        self.input_closed |= message.close;
    }

    /// Whether both directions are closed, and the end has acknowledged all outputs.
    pub(super) fn is_done(&self) -> bool {
        self.input_closed && self.output_closed && self.outbox.is_empty()
    }

    /// Sequence number after the last message that is here, consumed or not.
    pub(super) fn fed_end(&self) -> u64 {
        self.took + self.inputs.len() as u64
    }

    /// Drops messages that a checkpoint covers, those below `took`. False if they are not all here.
    pub(super) fn skip(&mut self, took: u64) -> bool {
        while self.took < took {
            let Some(message) = self.inputs.pop_front() else { return false };
            self.inputs_charge -= charge(message.payload.len());
            self.took += 1;
        }
        self.took == took
    }

    /// Forgets the messages here: a checkpoint covers them, and others that were never here, up to `took`.
    pub(super) fn skip_to(&mut self, took: u64) {
        self.inputs.clear();
        (self.inputs_charge, self.took) = (0, took);
    }

    /// After a restore: drops messages from the end that the checkpoint covers. False if they are not all here.
    pub(super) fn drop_covered(&mut self) -> bool {
        let start = self.promised.as_ref().map_or(0, |promised| promised.sent_start);
        let Some(covered) = self.took.checked_sub(start) else { return false };
        for _ in 0..covered {
            let Some(message) = self.inputs.pop_front() else { return false };
            self.inputs_charge -= charge(message.payload.len());
        }
        true
    }

    /// Adds an output. False if the output was closed before: it is dropped.
    pub(super) fn produce(&mut self, close: bool, payload: Bytes) -> bool {
        if self.output_closed {
            return false;
        }
        self.output_closed = close;
        self.produced += 1;
        let cost = charge(payload.len());
        self.outbox_charge += cost;
        self.unsent_charge += cost;
        self.outbox.push_back(Message { close, payload });
        true
    }

    /// The entry that produced the last outputs is logged: they may be sent.
    pub(super) fn mark_logged(&mut self) {
        self.logged = self.produced;
    }

    /// How many outputs of the outbox may have been sent, independent of what an end claims.
    fn releasable(&self) -> usize {
        let unlogged = usize::try_from(self.produced - self.logged).unwrap_or(usize::MAX);
        // Ends may have received outputs of an entry that a standby is still replaying.
        self.outbox.len().saturating_sub(unlogged)
    }

    /// Charge of the outputs that must not leave yet.
    pub(super) fn unlogged_charge(&self) -> u64 {
        // Of a standby, more may have left elsewhere than it has produced.
        let unlogged = usize::try_from(self.produced.saturating_sub(self.logged)).unwrap_or(usize::MAX);
        self.outbox.iter().rev().take(unlogged).map(|message| charge(message.payload.len())).sum()
    }

    /// Sequence number of the first output in the outbox.
    pub(super) fn acknowledged(&self) -> u64 {
        self.produced - self.outbox.len() as u64
    }

    /// Drops outputs that the end has received. False if it claims more than it was sent.
    pub(super) fn acknowledge(&mut self, count: u64) -> bool {
        let Ok(count) = usize::try_from(count) else { return false };
        if count > self.sent {
            return false;
        }
        for message in self.outbox.drain(..count) {
            self.outbox_charge -= charge(message.payload.len());
        }
        self.sent -= count;
        true
    }

    /// Of a standby: the end has received the first output of the outbox from another edge. False if there is none.
    pub(super) fn was_received_elsewhere(&mut self) -> bool {
        let Some(message) = self.outbox.pop_front() else { return false };
        let cost = charge(message.payload.len());
        self.outbox_charge -= cost;
        match self.sent.checked_sub(1) {
            Some(sent) => self.sent = sent,
            None => self.unsent_charge -= cost,
        }
        true
    }

    /// Continues from what the end has received. False if it received an output that was never produced, or if an
    /// output that it still needs was dropped.
    pub(super) fn resume(&mut self, received: u64, window: u64) -> bool {
        let Some(behind) = received.checked_sub(self.acknowledged()) else { return false };
        self.sent = self.releasable();
        if !self.acknowledge(behind) {
            return false;
        }
        self.sent = 0;
        self.unsent_charge = self.outbox_charge;
        self.credit = MessageCredit::of(window);
        true
    }

    /// The next output that credit allows, if the entry that produced it is logged. The last one may exceed the credit.
    fn output(&self) -> Option<&Message> {
        let may_send = self.sent < self.releasable() && self.credit.is_left();
        self.outbox.get(self.sent).filter(|_| may_send)
    }

    /// Whether an output may be sent.
    pub(super) fn has_output(&self) -> bool {
        self.output().is_some()
    }

    /// The same, which is sent now.
    pub(super) fn next_output(&mut self) -> Option<Message> {
        let message = self.output()?.clone();
        let cost = charge(message.payload.len());
        self.credit.spend(cost);
        self.unsent_charge -= cost;
        self.sent += 1;
        Some(message)
    }

    /// How many outputs the end will have acknowledged once all outputs in flight have arrived.
    pub(super) fn settled(&self) -> u64 {
        self.acknowledged() + self.sent as u64
    }

    /// Those of the first `produced` outputs that the end has not acknowledged: none if it has acknowledged later ones.
    pub(super) fn unacknowledged(&self, produced: u64) -> Many<Message> {
        let count = produced.saturating_sub(self.acknowledged());
        Many(self.outbox.iter().take(usize::try_from(count).unwrap_or(usize::MAX)).cloned().collect())
    }

    /// The present state without outputs: which outputs are needed is known when the checkpoint is sealed.
    pub(super) fn to_header(&self) -> PortState {
        PortState {
            port: self.port,
            took: self.took,
            input_closed: self.input_closed,
            produced: self.produced,
            output_closed: self.output_closed,
            outbox: Many::default(),
        }
    }

    /// Restores the state of a checkpoint.
    pub(super) fn restore(&mut self, state: PortState) {
        self.took = state.took;
        self.input_closed = state.input_closed;
        (self.produced, self.logged) = (state.produced, state.produced);
        self.output_closed = state.output_closed;
        self.outbox = state.outbox.0.into();
        self.outbox_charge = self.outbox.iter().map(|message| charge(message.payload.len())).sum();
        (self.sent, self.unsent_charge) = (0, self.outbox_charge);
        self.uncovered = 0;
    }

    /// Resets the state to the start of the session.
    pub(super) fn reset(&mut self) {
        self.restore(PortState {
            port: self.port,
            took: 0,
            input_closed: false,
            produced: 0,
            output_closed: false,
            outbox: Many::default(),
        });
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.inputs_charge + self.outbox_charge
    }
}
