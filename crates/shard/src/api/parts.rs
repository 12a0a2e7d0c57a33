//! A long list, split into as many messages as necessary.

use alloc::vec::Vec;

/// Items in one message.
const PART: usize = 512;
const _: () = assert!(PART <= marram_wire::limits::LIST_MAX, "a message can be read");

/// The items of each message, and whether it is the last one. There is at least one message.
pub(super) fn parts<T>(items: Vec<T>) -> impl Iterator<Item = (Vec<T>, bool)> {
    let count = items.len().div_ceil(PART).max(1);
    let mut rest = items.into_iter();
    (1..=count).map(move |n| (rest.by_ref().take(PART).collect(), n == count))
}
