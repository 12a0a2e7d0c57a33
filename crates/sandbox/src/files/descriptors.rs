//! Open descriptors. A new one takes the lowest free number, so that numbers are the same in every replay.

use super::errno::Errno;
use super::tree::{Inode, ROOT};
use crate::limits::DESCRIPTORS_MAX;

/// What a descriptor refers to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Descriptor {
    /// Standard input: always at its end.
    Input,
    /// Standard output: printed at level information.
    Output,
    /// Standard error: printed at level error.
    Errors,
    /// A file or directory.
    Open(Open),
}

/// An open file or directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Open {
    pub(crate) inode: Inode,
    /// Position of the next read or write.
    pub(crate) position: u64,
    pub(crate) read: bool,
    pub(crate) write: bool,
    /// Whether each write goes to the end of the file.
    pub(crate) append: bool,
}

/// A cell's descriptors, by number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Descriptors {
    slots: Vec<Option<Descriptor>>,
}

/// The number under which the root directory is open from the start.
pub(crate) const ROOT_DESCRIPTOR: u32 = 3;

impl Descriptors {
    pub(super) fn new() -> Self {
        let root = Open { inode: ROOT, position: 0, read: true, write: false, append: false };
        let slots = [Descriptor::Input, Descriptor::Output, Descriptor::Errors, Descriptor::Open(root)]
            .map(Some)
            .to_vec();
        Self { slots }
    }

    pub(super) fn get(&self, fd: u32) -> Result<Descriptor, Errno> {
        self.slots.get(fd as usize).copied().flatten().ok_or(Errno::BadDescriptor)
    }

    pub(super) fn set(&mut self, fd: u32, descriptor: Descriptor) -> Result<(), Errno> {
        match self.slots.get_mut(fd as usize) {
            Some(Some(slot)) => {
                *slot = descriptor;
                Ok(())
            }
            _ => Err(Errno::BadDescriptor),
        }
    }

    /// Fills a number that was just closed.
    pub(super) fn put(&mut self, fd: u32, descriptor: Descriptor) {
        if self.slots.len() <= fd as usize {
            self.slots.resize(fd as usize + 1, None);
        }
        self.slots[fd as usize] = Some(descriptor);
    }

    /// Fails if no more descriptors can be opened.
    pub(super) fn room(&self) -> Result<(), Errno> {
        let open = self.slots.iter().flatten().count();
        if open < DESCRIPTORS_MAX { Ok(()) } else { Err(Errno::TooManyOpen) }
    }

    pub(super) fn add(&mut self, open: Open) -> Result<u32, Errno> {
        self.room()?;
        let fd = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        let fd = u32::try_from(fd).map_err(|_| Errno::TooManyOpen)?;
        self.put(fd, Descriptor::Open(open));
        Ok(fd)
    }

    pub(super) fn close(&mut self, fd: u32) -> Result<Descriptor, Errno> {
        let closed = self.slots.get_mut(fd as usize).and_then(Option::take).ok_or(Errno::BadDescriptor)?;
        // The list never ends in free numbers, so that equal descriptors are equal lists.
        while self.slots.last() == Some(&None) {
            self.slots.pop();
        }
        Ok(closed)
    }

    /// Whether any descriptor is open on this node.
    pub(super) fn holds(&self, inode: Inode) -> bool {
        self.iter().any(|(_, descriptor)| matches!(descriptor, Descriptor::Open(open) if open.inode == inode))
    }

    /// The open ones with their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, Descriptor)> {
        (0..).zip(&self.slots).filter_map(|(fd, slot)| slot.map(|slot| (fd, slot)))
    }

    /// Builds the table from numbers in order; `None` if they are out of order or too high.
    pub(super) fn from_list(list: &[(u32, Descriptor)]) -> Option<Self> {
        let ordered = list.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let small = list.last().is_none_or(|(fd, _)| (*fd as usize) < DESCRIPTORS_MAX);
        if !ordered || !small {
            return None;
        }
        let mut descriptors = Self { slots: Vec::new() };
        for (fd, descriptor) in list {
            descriptors.put(*fd, *descriptor);
        }
        Some(descriptors)
    }
}
