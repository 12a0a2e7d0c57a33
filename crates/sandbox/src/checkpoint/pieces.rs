//! Bytes that arrive in pieces, parsed without joining them first.

use bytes::{Buf, Bytes, BytesMut};
use std::collections::VecDeque;

/// Bytes that have arrived and were not taken.
#[derive(Default)]
pub(super) struct Pieces {
    pieces: VecDeque<Bytes>,
    len: usize,
}

impl Pieces {
    pub(super) fn push(&mut self, piece: Bytes) {
        self.len += piece.len();
        if !piece.is_empty() {
            self.pieces.push_back(piece);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first bytes, without taking them; `None` if there are fewer than `N`.
    pub(super) fn peek<const N: usize>(&self) -> Option<[u8; N]> {
        let mut first = self.pieces.iter().flat_map(|piece| piece.iter().copied());
        let mut bytes = [0; N];
        for byte in &mut bytes {
            *byte = first.next()?;
        }
        Some(bytes)
    }

    /// Exactly `len` contiguous bytes; `None` if there are fewer.
    pub(super) fn take(&mut self, len: usize) -> Option<Bytes> {
        if len > self.len {
            return None;
        }
        if len == 0 || self.pieces.front().is_some_and(|piece| piece.len() >= len) {
            return Some(self.some(len));
        }
        let mut whole = BytesMut::with_capacity(len);
        while whole.len() < len {
            whole.extend_from_slice(&self.some(len - whole.len()));
        }
        Some(whole.freeze())
    }

    /// Some contiguous bytes, at most `most`, without a copy; empty only if `most` is 0 or no bytes are there.
    pub(super) fn some(&mut self, most: usize) -> Bytes {
        let Some(front) = self.pieces.front_mut() else { return Bytes::new() };
        let len = front.len().min(most);
        let bytes = front.split_to(len);
        if !front.has_remaining() {
            self.pieces.pop_front();
        }
        self.len -= len;
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out_in_order_however_it_is_cut() {
        let all: Vec<u8> = (0..100).collect();
        for piece in [1, 3, 7, 100] {
            let mut come = Pieces::default();
            all.chunks(piece).for_each(|bytes| come.push(Bytes::copy_from_slice(bytes)));
            come.push(Bytes::new());
            assert_eq!((come.peek::<4>(), come.take(101)), (Some([0, 1, 2, 3]), None));
            let (mut out, mut size) = (Vec::new(), 0);
            while !come.is_empty() {
                size = (size + 5) % 12;
                if let Some(bytes) = come.take(size) {
                    assert_eq!(bytes.len(), size);
                    out.extend_from_slice(&bytes);
                } else {
                    let some = come.some(size);
                    assert!(!some.is_empty() && some.len() <= size);
                    out.extend_from_slice(&some);
                }
            }
            assert_eq!(out, all);
            assert_eq!((come.take(0), come.take(1), come.some(1)), (Some(Bytes::new()), None, Bytes::new()));
            assert_eq!(come.peek::<1>(), None);
        }
    }
}
