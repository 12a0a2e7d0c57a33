//! The messages that a shared cell consumed, in the order of its log. A port's number may have had two clients between what an owner is
//! fed and what it has replayed, so these messages do not wait at the sides.

use super::end_state::Message;
use alloc::collections::VecDeque;
use marram_wire::{
    id::Port,
    limits::{RETAINED_MAX, charge},
};

/// As much as each side of another session may have from a feed.
const TAPE_MAX: u64 = 2 * RETAINED_MAX;

/// A consumed message.
#[derive(Clone, Debug)]
struct Taped {
    /// The log offset of its entry.
    offset: u64,
    port: Port,
    message: Message,
}

/// What was fed and is not replayed, or is kept for a replay.
#[derive(Clone, Debug, Default)]
pub(super) struct Tape {
    messages: VecDeque<Taped>,
    charge: u64,
}

impl Tape {
    /// The message of the entry at this offset. False if there is no room for it.
    pub(super) fn push(&mut self, offset: u64, port: Port, message: Message) -> bool {
        let cost = charge(message.payload.len());
        if self.charge + cost > TAPE_MAX {
            return false;
        }
        self.charge += cost;
        self.messages.push_back(Taped { offset, port, message });
        true
    }

    /// The next message, if it is of this port.
    pub(super) fn take(&mut self, port: Port) -> Option<Message> {
        let taped = self.messages.pop_front_if(|taped| taped.port == port)?;
        self.charge -= charge(taped.message.payload.len());
        Some(taped.message)
    }

    /// The messages, in order.
    pub(super) fn messages(&self) -> impl Iterator<Item = (Port, Message)> {
        self.messages.iter().map(|taped| (taped.port, taped.message.clone()))
    }

    /// A checkpoint covers the log before this offset.
    pub(super) fn skip_to(&mut self, offset: u64) {
        while let Some(taped) = self.messages.pop_front_if(|taped| taped.offset < offset) {
            self.charge -= charge(taped.message.payload.len());
        }
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.charge
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn message(text: &'static str) -> Message {
        Message { close: false, payload: Bytes::from_static(text.as_bytes()) }
    }

    #[test]
    fn messages_come_in_the_order_of_the_log() {
        let mut tape = Tape::default();
        for (offset, port, text) in [(3, 0, "a"), (5, 4, "b"), (9, 0, "c")] {
            assert!(tape.push(offset, Port(port), message(text)));
        }
        assert_eq!(tape.take(Port(4)), None, "that is not the next one");
        assert_eq!(tape.take(Port(0)), Some(message("a")));
        tape.skip_to(9);
        assert_eq!(tape.take(Port(4)), None, "a checkpoint covers it");
        assert_eq!(tape.take(Port(0)), Some(message("c")));
        assert_eq!(tape.held_bytes(), 0);
    }

    #[test]
    fn there_is_room_for_so_much() {
        let mut tape = Tape::default();
        let part = || Message { close: false, payload: Bytes::from(alloc::vec![0; 1 << 20]) };
        let room = (0..).take_while(|at| tape.push(*at, Port(0), part())).count() as u64;
        assert_eq!(room, TAPE_MAX / charge(1 << 20));
        assert!(tape.take(Port(0)).is_some());
        assert!(tape.push(1_000, Port(0), part()));
    }
}
