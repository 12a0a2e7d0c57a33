//! The output queue of a wire: frames in order, bulk frames behind all others, large payloads by reference.
//!
//! ```text
//!  parts                          tail            bulk
//! [ bytes | payload | bytes ] ─▶ [ bytes ... ] ─▶ [ frame | frame | ... ]
//!   frozen, by reference          still grows      encoded a piece at a time, when the rest is empty
//! ```
//!
//! A checkpoint of many megabytes so delays an output by one part at most, or by small frames of 64 KiB
//! together. TLS changes nothing about it: the queue is in front of the encryption (`Sealing` in `crypt.rs`).

use bytes::{Buf, Bytes, BytesMut};
use marram_wire::frame::Frame;
use std::{
    collections::VecDeque,
    io::{self, IoSlice, Write},
};

/// Payloads of at least this size are written by reference; a copy of a smaller one is cheaper than one more slice.
const BY_REFERENCE: usize = 16 << 10;
/// When the tail reaches this size, a new one is started: a buffer that grows, or that is partly written, is copied as a whole,
/// and megabytes may wait for a slow peer. Bulk frames are encoded until there is so much: each write is a system call and
/// a segment, and an edge's death makes an agent send the small checkpoints of all its sessions.
const PIECE: usize = 64 << 10;
/// Slices in one write.
const SLICES: usize = 32;
/// Bytes of bulk frames that are written before other wires have their turn: to a peer that reads as fast as this side
/// writes, all checkpoints of a session would go at once. Less in tests, so that a socket surely takes more.
const BULK_TURN: usize = if cfg!(test) { 16 << 10 } else { 2 << 20 };

/// The bytes that wait for a socket, and the bulk frames that wait behind them.
#[derive(Default, Debug)]
pub(crate) struct Outgoing {
    /// Written before `tail`.
    parts: VecDeque<Bytes>,
    /// Sum of the lengths of `parts`.
    parts_size: usize,
    /// The last encoded bytes; small frames collect here, so that one write sends them all.
    tail: BytesMut,
    /// Not encoded yet.
    bulk: VecDeque<Frame>,
    /// The approximate encoded size of `bulk`.
    bulk_size: usize,
    /// Whether the last [`Self::write_to`] ended because its turn was over.
    is_turn_over: bool,
}

/// The approximate encoded size of a bulk frame, in bytes.
fn bulk_size(frame: &Frame) -> usize {
    match frame {
        Frame::CheckpointPart(part) => part.bytes.len() + 16,
        Frame::KeptInput(input) => input.payload.len() + 16,
        _ => 64,
    }
}

impl Outgoing {
    /// Queues one frame.
    pub(crate) fn push(&mut self, frame: Frame) {
        if frame.is_bulk() {
            self.bulk_size += bulk_size(&frame);
            self.bulk.push_back(frame);
        } else {
            self.encode(&frame);
        }
    }

    /// Queues bytes that are not a frame.
    pub(crate) fn push_bytes(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
    }

    /// Encodes behind all that waits. A large payload ends the tail: its header stays in front of
    /// it as a part of its own.
    fn encode(&mut self, frame: &Frame) {
        let payload = frame.encode(&mut self.tail);
        if payload.len() < BY_REFERENCE {
            self.tail.extend_from_slice(&payload);
            if self.tail.len() >= PIECE {
                let room = BytesMut::with_capacity(PIECE + BY_REFERENCE);
                let piece = std::mem::replace(&mut self.tail, room).freeze();
                self.parts_size += piece.len();
                self.parts.push_back(piece);
            }
            return;
        }
        let head = self.tail.split().freeze();
        self.parts_size += head.len() + payload.len();
        self.parts.push_back(head);
        self.parts.push_back(payload);
    }

    /// Bytes that wait.
    /// The limit `table::PAUSE` is compared with it. That of bulk frames is estimated, by the same
    /// function when they are added and removed, so that the sum returns to 0.
    pub(crate) fn size(&self) -> usize {
        self.own_size() + self.bulk_size
    }

    /// Bytes that wait and are kept for this queue alone. Bulk frames are not counted: their sender keeps what they carry,
    /// as an end keeps its checkpoints, or sends no more than a window of them.
    pub(crate) fn own_size(&self) -> usize {
        self.parts_size + self.tail.len()
    }

    /// Whether the last [`Self::write_to`] ended because its turn was over: the socket may take more, and will not say so.
    pub(crate) fn is_turn_over(&self) -> bool {
        self.is_turn_over
    }

    /// Writes until nothing waits (true), or `to` would block or its turn is over (false). Bulk frames are encoded only when
    /// nothing else waits, so urgent frames wait for at most a piece of them, or for one that is larger.
    pub(crate) fn write_to(&mut self, to: &mut impl Write) -> io::Result<bool> {
        let mut turn = BULK_TURN;
        self.is_turn_over = false;
        loop {
            if self.parts.is_empty() && self.tail.is_empty() {
                if turn == 0 && !self.bulk.is_empty() {
                    self.is_turn_over = true;
                    return Ok(false);
                }
                if self.bulk.is_empty() {
                    return Ok(true);
                }
                turn = turn.saturating_sub(self.encode_bulk(turn));
            }
            match self.write_once(to) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Encodes a piece of the bulk frames: one at least, and further ones within a piece and the turn. Returns their size.
    fn encode_bulk(&mut self, turn: usize) -> usize {
        let mut encoded = 0;
        while let Some(frame) = self.bulk.front() {
            let size = bulk_size(frame);
            if encoded > 0 && encoded + size > PIECE.min(turn) {
                break;
            }
            encoded += size;
            self.bulk_size -= size;
            if let Some(frame) = self.bulk.pop_front() {
                self.encode(&frame);
            }
        }
        encoded
    }

    fn write_once(&mut self, to: &mut impl Write) -> io::Result<usize> {
        let mut written = if self.parts.is_empty() {
            to.write(&self.tail)?
        } else {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let waiting = self.parts.iter().map(|part| &part[..]).chain([&self.tail[..]]);
            let count =
                slices.iter_mut().zip(waiting).map(|(slice, part)| *slice = IoSlice::new(part)).count();
            to.write_vectored(&slices[..count])?
        };
        let total = written;
        while let Some(part) = self.parts.front_mut() {
            let taken = part.len().min(written);
            part.advance(taken);
            self.parts_size -= taken;
            written -= taken;
            if !part.is_empty() {
                return Ok(total);
            }
            self.parts.pop_front();
        }
        // `clear` keeps the front of the allocation; `advance` makes it unusable until the next allocation.
        if written == self.tail.len() {
            self.tail.clear()
        } else {
            self.tail.advance(written)
        }
        Ok(total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marram_wire::frame::{CheckpointPart, Input, Ping, Reader};

    /// Accepts a few bytes at a time, then would block.
    struct Narrow {
        taken: Vec<u8>,
        room: usize,
    }

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.room).min(1_000);
            if count == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.room -= count;
            self.taken.extend_from_slice(&bytes[..count]);
            Ok(count)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn frames() -> Vec<Frame> {
        let input = |size: usize| Input {
            channel: 2,
            ack: 0,
            close: false,
            payload: (0..size).map(|at| at.to_le_bytes()[0]).collect(),
        };
        let sizes = [0, 1, 64, 127, BY_REFERENCE - 1, BY_REFERENCE, 70_000];
        // And small ones that together exceed one piece.
        let small = std::iter::repeat_n(BY_REFERENCE - 1, PIECE / BY_REFERENCE + 2);
        sizes.into_iter().chain(small).map(|size| input(size).into()).collect()
    }

    #[test]
    fn frames_are_written_in_order_for_any_sizes_of_writes() {
        for room in [1, 7, 999, 1_000_000] {
            let (mut queue, mut socket) = (Outgoing::default(), Narrow { taken: Vec::new(), room: 0 });
            frames().into_iter().for_each(|frame| queue.push(frame));
            let size = queue.size();
            while !queue.write_to(&mut socket).expect("never fails") {
                assert_eq!(queue.size() + socket.taken.len(), size);
                socket.room = room;
            }
            assert_eq!(queue.size(), 0);
            let mut reader = Reader { buffer: BytesMut::from(&socket.taken[..]) };
            let got: Vec<_> = std::iter::from_fn(|| reader.next_frame().expect("well-formed")).collect();
            assert_eq!(got, frames());
        }
    }

    #[test]
    fn bulk_that_the_peer_takes_at_once_is_written_in_turns() {
        let size = BULK_TURN / 7;
        let part = Frame::from(CheckpointPart { channel: 1, bytes: vec![7; size].into() });
        let (mut queue, mut socket) = (Outgoing::default(), Narrow { taken: Vec::new(), room: usize::MAX });
        (0..21).for_each(|_| queue.push(part.clone()));
        let mut turns = 1;
        while !queue.write_to(&mut socket).expect("never fails") {
            assert!(queue.is_turn_over(), "the socket takes everything");
            turns += 1;
        }
        assert!(!queue.is_turn_over() && queue.size() == 0);
        assert_eq!(turns, 3);
    }

    #[test]
    fn small_bulk_frames_are_written_together() {
        /// Takes everything, and counts the writes.
        struct Wide(usize);
        impl Write for Wide {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0 += 1;
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (mut queue, mut socket) = (Outgoing::default(), Wide(0));
        let part = Frame::from(CheckpointPart { channel: 1, bytes: vec![7; 1_000].into() });
        (0..10).for_each(|_| queue.push(part.clone()));
        assert!(queue.write_to(&mut socket).expect("never fails"));
        assert_eq!(socket.0, 1);
    }

    #[test]
    fn bulk_waits_for_everything_else_but_a_frame_begun_is_finished() {
        let part = |byte| Frame::from(CheckpointPart { channel: 1, bytes: vec![byte; PIECE].into() });
        let (mut queue, mut socket) = (Outgoing::default(), Narrow { taken: Vec::new(), room: 100 });
        queue.push(part(1));
        queue.push(part(2));
        assert!(!queue.write_to(&mut socket).expect("never fails"));
        let ping = Frame::from(Ping { stamp: 5 });
        queue.push(ping.clone());
        socket.room = usize::MAX;
        assert!(queue.write_to(&mut socket).expect("never fails"));
        let mut reader = Reader { buffer: BytesMut::from(&socket.taken[..]) };
        let got: Vec<_> = std::iter::from_fn(|| reader.next_frame().expect("well-formed")).collect();
        assert_eq!(got, [part(1), ping, part(2)]);
    }
}
