//! A cell's files: one tree with the app's read-only files and scratch files in memory, and the open descriptors. All of it
//! is part of the cell's state.
//!
//! This module does not know guest pointers: it gets slices, and the WASI layer above copies to and from the guest.

mod arena;
mod codec;
mod descriptors;
mod errno;
mod tree;

pub(crate) use arena::Page;
pub(crate) use codec::{FilesChange, FilesError};
pub(crate) use descriptors::{Descriptor, ROOT_DESCRIPTOR};
pub(crate) use errno::Errno;
pub(crate) use tree::Inode;

use crate::app::ImageFile;
use crate::limits::{IO_BYTES_MAX, PAGE, SCRATCH_MAX};
use descriptors::{Descriptors, Open};
use std::collections::BTreeMap;
use std::sync::Arc;
use tree::{Node, Place, ROOT, Tree};

/// A cell's files. Clones share everything until one of them writes.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    /// The app's files, by index.
    image: Arc<[ImageFile]>,
    tree: Arc<Tree>,
    descriptors: Descriptors,
    scratch_max: u64,
    /// Whether names, lengths or nodes changed since the last checkpoint.
    tree_changed: bool,
    /// Whether descriptors changed since the last checkpoint.
    descriptors_changed: bool,
    /// Whether anything has ever differed from the image.
    touched: bool,
}

/// The options of `path_open`.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct OpenOptions {
    pub(crate) create: bool,
    pub(crate) directory: bool,
    pub(crate) exclusive: bool,
    pub(crate) truncate: bool,
    pub(crate) append: bool,
    pub(crate) read: bool,
    pub(crate) write: bool,
}

/// The attributes of a node, for `fd_filestat_get` and similar calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stat {
    pub(crate) inode: Inode,
    pub(crate) directory: bool,
    pub(crate) len: u64,
}

/// The origin of a seek.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Whence {
    Start,
    Current,
    End,
}

impl Files {
    /// The files of an app at the start of its initialisation.
    pub(crate) fn new(image: Arc<[ImageFile]>, scratch_max: u64) -> Self {
        Self {
            tree: Arc::new(Tree::new(&image)),
            image,
            descriptors: Descriptors::new(),
            scratch_max,
            tree_changed: false,
            descriptors_changed: false,
            touched: false,
        }
    }

    pub(crate) fn descriptor(&self, fd: u32) -> Result<Descriptor, Errno> {
        self.descriptors.get(fd)
    }

    fn open_at(&self, fd: u32) -> Result<Open, Errno> {
        match self.descriptors.get(fd)? {
            Descriptor::Open(open) => Ok(open),
            _ => Err(Errno::BadDescriptor),
        }
    }

    fn directory_at(&self, fd: u32) -> Result<Inode, Errno> {
        let open = self.open_at(fd)?;
        match self.tree.get(open.inode) {
            Some(Node::Directory(_)) => Ok(open.inode),
            _ => Err(Errno::NotDirectory),
        }
    }

    fn find(&self, fd: u32, path: &str) -> Result<Place, Errno> {
        self.tree.find(self.directory_at(fd)?, path)
    }

    fn change(&mut self) -> &mut Tree {
        self.tree_changed = true;
        self.touched = true;
        Arc::make_mut(&mut self.tree)
    }

    fn set(&mut self, fd: u32, descriptor: Descriptor) -> Result<(), Errno> {
        self.descriptors_changed = true;
        self.touched = true;
        self.descriptors.set(fd, descriptor)
    }

    pub(crate) fn stat(&self, inode: Inode) -> Result<Stat, Errno> {
        let (directory, len) = match self.tree.get(inode).ok_or(Errno::NoEntry)? {
            Node::Directory(_) => (true, 0),
            Node::Image(index) => (false, self.image[*index].contents.len() as u64),
            Node::Scratch(arena) => (false, arena.len()),
        };
        Ok(Stat { inode, directory, len })
    }

    pub(crate) fn stat_path(&self, fd: u32, path: &str) -> Result<Stat, Errno> {
        let inode = self.find(fd, path)?.inode.ok_or(Errno::NoEntry)?;
        let stat = self.stat(inode)?;
        if path.ends_with('/') && !stat.directory { Err(Errno::NotDirectory) } else { Ok(stat) }
    }

    pub(crate) fn open(&mut self, fd: u32, path: &str, options: OpenOptions) -> Result<u32, Errno> {
        let place = self.find(fd, path)?;
        self.descriptors.room()?;
        let inode = match place.inode {
            Some(_) if options.create && options.exclusive => return Err(Errno::Exists),
            Some(inode) => inode,
            None if options.create && !options.directory => {
                let max = self.scratch_max;
                self.change().create(&place, Node::Scratch(arena::Arena::default()), max)?
            }
            None => return Err(Errno::NoEntry),
        };
        match self.tree.get(inode) {
            Some(Node::Directory(_)) if options.write => return Err(Errno::IsDirectory),
            Some(Node::Directory(_)) => {}
            _ if options.directory => return Err(Errno::NotDirectory),
            Some(Node::Image(_)) if options.write || options.truncate => return Err(Errno::ReadOnly),
            _ if options.truncate => self.set_len(inode, 0)?,
            _ => {}
        }
        self.descriptors_changed = true;
        self.touched = true;
        let OpenOptions { read, write, append, .. } = options;
        self.descriptors.add(Open { inode, position: 0, read, write, append })
    }

    pub(crate) fn close(&mut self, fd: u32) -> Result<(), Errno> {
        self.descriptors_changed = true;
        self.touched = true;
        let closed = self.descriptors.close(fd)?;
        self.let_go(closed);
        Ok(())
    }

    pub(crate) fn renumber(&mut self, from: u32, to: u32) -> Result<(), Errno> {
        let moved = self.descriptors.get(from)?;
        self.descriptors.get(to)?;
        if from == to {
            return Ok(());
        }
        self.descriptors_changed = true;
        self.touched = true;
        let closed = self.descriptors.close(to)?;
        self.descriptors.close(from)?;
        self.descriptors.put(to, moved);
        self.let_go(closed);
        Ok(())
    }

    /// Removes a node without a name when its last descriptor is closed.
    fn let_go(&mut self, closed: Descriptor) {
        let Descriptor::Open(open) = closed else { return };
        let unnamed = self.tree.nodes.get(&open.inode).is_some_and(|entry| entry.parent.is_none());
        if unnamed && open.inode != ROOT && !self.descriptors.holds(open.inode) {
            self.change().collect(open.inode);
        }
    }

    /// Reads at the position `at`, or at the descriptor's position, which then moves.
    pub(crate) fn read(&mut self, fd: u32, at: Option<u64>, out: &mut [u8]) -> Result<usize, Errno> {
        let open = self.open_at(fd)?;
        if !open.read {
            return Err(Errno::BadDescriptor);
        }
        let from = at.unwrap_or(open.position);
        let count = match self.tree.get(open.inode) {
            Some(Node::Scratch(arena)) => arena.read(from, out),
            Some(Node::Image(index)) => {
                let contents = &self.image[*index].contents;
                let start = usize::try_from(from).unwrap_or(usize::MAX).min(contents.len());
                let count = out.len().min(contents.len() - start);
                out[..count].copy_from_slice(&contents[start..start + count]);
                count
            }
            _ => return Err(Errno::IsDirectory),
        };
        if at.is_none() && count > 0 {
            self.set(fd, Descriptor::Open(Open { position: from + count as u64, ..open }))?;
        }
        Ok(count)
    }

    /// Writes at the position `at`, or at the descriptor's position, which then moves. All or nothing.
    pub(crate) fn write(&mut self, fd: u32, at: Option<u64>, bytes: &[u8]) -> Result<usize, Errno> {
        debug_assert!(bytes.len() <= IO_BYTES_MAX, "the WASI layer cuts what is longer");
        let open = self.open_at(fd)?;
        if !open.write {
            return Err(Errno::BadDescriptor);
        }
        let Some(Node::Scratch(arena)) = self.tree.get(open.inode) else { return Err(Errno::BadDescriptor) };
        let from = match at {
            Some(at) => at,
            None if open.append => arena.len(),
            None => open.position,
        };
        let end =
            from.checked_add(bytes.len() as u64).filter(|end| *end <= SCRATCH_MAX).ok_or(Errno::TooBig)?;
        let added = (arena.pages_added(from, bytes.len()) * PAGE) as u64;
        let max = self.scratch_max;
        let tree = self.change();
        tree.charge(added, max)?;
        if let Some(arena) = tree.arena_mut(open.inode) {
            arena.write(from, bytes);
        }
        if at.is_none() {
            self.set(fd, Descriptor::Open(Open { position: end, ..open }))?;
        }
        Ok(bytes.len())
    }

    pub(crate) fn seek(&mut self, fd: u32, offset: i64, whence: Whence) -> Result<u64, Errno> {
        let open = match self.descriptors.get(fd)? {
            Descriptor::Open(open) => open,
            _ => return Err(Errno::NoSeek),
        };
        let stat = self.stat(open.inode)?;
        if stat.directory {
            return Err(Errno::Invalid);
        }
        let base = match whence {
            Whence::Start => 0,
            Whence::Current => open.position,
            Whence::End => stat.len,
        };
        let position = base.checked_add_signed(offset).ok_or(Errno::Invalid)?;
        if position != open.position {
            self.set(fd, Descriptor::Open(Open { position, ..open }))?;
        }
        Ok(position)
    }

    pub(crate) fn set_append(&mut self, fd: u32, append: bool) -> Result<(), Errno> {
        let open = self.open_at(fd)?;
        self.set(fd, Descriptor::Open(Open { append, ..open }))
    }

    pub(crate) fn truncate(&mut self, fd: u32, len: u64) -> Result<(), Errno> {
        let open = self.open_at(fd)?;
        if !open.write {
            return Err(Errno::BadDescriptor);
        }
        self.set_len(open.inode, len)
    }

    fn set_len(&mut self, inode: Inode, len: u64) -> Result<(), Errno> {
        if len > SCRATCH_MAX {
            return Err(Errno::TooBig);
        }
        let tree = self.change();
        let Some(arena) = tree.arena_mut(inode) else { return Err(Errno::Invalid) };
        let before = arena.page_count();
        arena.set_len(len);
        let freed = ((before - arena.page_count()) * PAGE) as u64;
        tree.used -= freed;
        Ok(())
    }

    pub(crate) fn create_directory(&mut self, fd: u32, path: &str) -> Result<(), Errno> {
        let place = self.find(fd, path.trim_end_matches('/'))?;
        if place.inode.is_some() {
            return Err(Errno::Exists);
        }
        let max = self.scratch_max;
        self.change().create(&place, Node::Directory(BTreeMap::new()), max).map(|_| ())
    }

    pub(crate) fn remove_directory(&mut self, fd: u32, path: &str) -> Result<(), Errno> {
        let place = self.find(fd, path.trim_end_matches('/'))?;
        match place.inode.and_then(|inode| self.tree.get(inode)).ok_or(Errno::NoEntry)? {
            Node::Directory(names) if !names.is_empty() => Err(Errno::NotEmpty),
            Node::Directory(_) => self.drop_name(&place),
            _ => Err(Errno::NotDirectory),
        }
    }

    pub(crate) fn unlink(&mut self, fd: u32, path: &str) -> Result<(), Errno> {
        let place = self.find(fd, path)?;
        match place.inode.and_then(|inode| self.tree.get(inode)).ok_or(Errno::NoEntry)? {
            Node::Directory(_) => Err(Errno::IsDirectory),
            _ => self.drop_name(&place),
        }
    }

    fn drop_name(&mut self, place: &Place) -> Result<(), Errno> {
        let inode = self.change().unlink(place)?;
        if !self.descriptors.holds(inode) {
            self.change().collect(inode);
        }
        Ok(())
    }

    pub(crate) fn rename(&mut self, from: (u32, &str), to: (u32, &str)) -> Result<(), Errno> {
        let source = self.find(from.0, from.1.trim_end_matches('/'))?;
        let target = self.find(to.0, to.1.trim_end_matches('/'))?;
        let inode = source.inode.ok_or(Errno::NoEntry)?;
        if source.name.is_none() || target.name.is_none() {
            return Err(Errno::Invalid);
        }
        if self.tree.is_image(inode) {
            return Err(Errno::ReadOnly);
        }
        let moves_directory = self.stat(inode)?.directory;
        if moves_directory && self.tree.is_below(target.parent, inode) {
            return Err(Errno::Invalid);
        }
        if let Some(old) = target.inode {
            if old == inode {
                return Ok(());
            }
            match (self.tree.get(old), moves_directory) {
                (Some(Node::Directory(names)), true) if names.is_empty() => {}
                (Some(Node::Directory(_)), true) => return Err(Errno::NotEmpty),
                (Some(Node::Directory(_)), false) => return Err(Errno::IsDirectory),
                (_, true) => return Err(Errno::NotDirectory),
                _ => {}
            }
            self.drop_name(&target)?;
        }
        self.change().relink(&source, &target)
    }

    /// At most `count` entries of a directory from `cookie` on, in order: `.`, `..`, then names.
    pub(crate) fn list(&self, fd: u32, cookie: u64, count: usize) -> Result<Vec<(String, Stat)>, Errno> {
        let directory = self.directory_at(fd)?;
        let entry = self.tree.nodes.get(&directory).ok_or(Errno::BadDescriptor)?;
        let Node::Directory(names) = &entry.node else { return Err(Errno::NotDirectory) };
        let dots = [(".", directory), ("..", entry.parent.unwrap_or(directory))];
        dots.into_iter()
            .chain(names.iter().map(|(name, inode)| (name.as_str(), *inode)))
            .skip(usize::try_from(cookie).unwrap_or(usize::MAX))
            .take(count)
            .map(|(name, inode)| Ok((name.to_owned(), self.stat(inode)?)))
            .collect()
    }
}
