//! Directories and files by name. Nodes are numbered from 1 (the root); numbers are never reused.

use super::arena::Arena;
use super::errno::Errno;
use crate::app::ImageFile;
use crate::limits::{NAME_BYTES_MAX, NODE_BYTES, PAGE, PATH_BYTES_MAX};
use std::collections::BTreeMap;

/// Number of a node.
pub(crate) type Inode = u64;

/// The root directory.
pub(crate) const ROOT: Inode = 1;

/// What a node is.
#[derive(Clone, Debug)]
pub(crate) enum Node {
    /// Names in byte order.
    Directory(BTreeMap<String, Inode>),
    /// A read-only file: its index among the app's files.
    Image(usize),
    /// A file in memory.
    Scratch(Arena),
}

/// A node and its place in the tree.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) node: Node,
    /// The directory that contains it; `None` after it was unlinked while still open.
    pub(crate) parent: Option<Inode>,
}

/// All nodes.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    pub(super) nodes: BTreeMap<Inode, Entry>,
    pub(super) next: Inode,
    /// Nodes up to this number come from the app: they cannot be removed and do not count against the quota.
    pub(super) image_last: Inode,
    /// Bytes that nodes and pages count against the scratch quota.
    pub(super) used: u64,
}

/// Where a path leads: the directory that has or would have its last name, and the node of that name, if it exists.
pub(crate) struct Place {
    pub(crate) parent: Inode,
    /// `None` for a path that ends in the directory itself (`.` or `a/..`).
    pub(crate) name: Option<String>,
    pub(crate) inode: Option<Inode>,
}

impl Tree {
    /// The tree of an app: its files, and the directories above them.
    pub(crate) fn new(files: &[ImageFile]) -> Self {
        let root = Entry { node: Node::Directory(BTreeMap::new()), parent: None };
        let mut tree =
            Self { nodes: BTreeMap::from([(ROOT, root)]), next: ROOT + 1, image_last: ROOT, used: 0 };
        for (index, file) in files.iter().enumerate() {
            let mut at = ROOT;
            let mut parts = file.path.split('/').peekable();
            while let Some(part) = parts.next() {
                at = match tree.child(at, part) {
                    Some(found) => found,
                    None if parts.peek().is_none() => tree.attach(at, part, Node::Image(index)),
                    None => tree.attach(at, part, Node::Directory(BTreeMap::new())),
                };
            }
        }
        tree.image_last = tree.next - 1;
        tree
    }

    pub(crate) fn get(&self, inode: Inode) -> Option<&Node> {
        self.nodes.get(&inode).map(|entry| &entry.node)
    }

    pub(crate) fn arena_mut(&mut self, inode: Inode) -> Option<&mut Arena> {
        match self.nodes.get_mut(&inode).map(|entry| &mut entry.node) {
            Some(Node::Scratch(arena)) => Some(arena),
            _ => None,
        }
    }

    pub(crate) fn is_image(&self, inode: Inode) -> bool {
        inode <= self.image_last
    }

    fn child(&self, directory: Inode, name: &str) -> Option<Inode> {
        match self.get(directory)? {
            Node::Directory(names) => names.get(name).copied(),
            _ => None,
        }
    }

    fn names_mut(&mut self, directory: Inode) -> &mut BTreeMap<String, Inode> {
        match self.nodes.get_mut(&directory).map(|entry| &mut entry.node) {
            Some(Node::Directory(names)) => names,
            _ => unreachable!("only places that `find` gave are changed, and their parents are directories"),
        }
    }

    fn attach(&mut self, parent: Inode, name: &str, node: Node) -> Inode {
        let inode = self.next;
        self.next += 1;
        self.nodes.insert(inode, Entry { node, parent: Some(parent) });
        self.names_mut(parent).insert(name.into(), inode);
        inode
    }

    /// Follows a path from a directory. There are no symbolic links.
    pub(crate) fn find(&self, from: Inode, path: &str) -> Result<Place, Errno> {
        if path.len() > PATH_BYTES_MAX {
            return Err(Errno::NameTooLong);
        }
        if path.is_empty() {
            return Err(Errno::NoEntry);
        }
        if path.starts_with('/') {
            return Err(Errno::OutsideTree);
        }
        let mut place = Place { parent: from, name: None, inode: Some(from) };
        for part in path.split('/') {
            let at = place.inode.ok_or(Errno::NoEntry)?;
            let Some(Node::Directory(names)) = self.get(at) else { return Err(Errno::NotDirectory) };
            place = match part {
                "" | "." => Place { parent: at, name: None, inode: Some(at) },
                ".." => {
                    let up = self.nodes.get(&at).and_then(|entry| entry.parent).ok_or(Errno::OutsideTree)?;
                    Place { parent: up, name: None, inode: Some(up) }
                }
                name if name.len() > NAME_BYTES_MAX => return Err(Errno::NameTooLong),
                name => Place { parent: at, name: Some(name.into()), inode: names.get(name).copied() },
            };
        }
        Ok(place)
    }

    /// Creates a node at a place that has none.
    pub(crate) fn create(&mut self, place: &Place, node: Node, scratch_max: u64) -> Result<Inode, Errno> {
        let name = place.name.as_deref().ok_or(Errno::Exists)?;
        if place.inode.is_some() {
            return Err(Errno::Exists);
        }
        self.named(place.parent)?;
        self.charge(NODE_BYTES, scratch_max)?;
        Ok(self.attach(place.parent, name, node))
    }

    /// Refuses a directory that was removed while a descriptor was open on it: nothing can be created there.
    fn named(&self, directory: Inode) -> Result<(), Errno> {
        let named = self.nodes.get(&directory).is_some_and(|entry| entry.parent.is_some());
        if named || directory == ROOT { Ok(()) } else { Err(Errno::NoEntry) }
    }

    /// Removes a name. The node itself is removed when no descriptor is open on it: [`Tree::collect`].
    pub(crate) fn unlink(&mut self, place: &Place) -> Result<Inode, Errno> {
        let inode = place.inode.ok_or(Errno::NoEntry)?;
        let name = place.name.as_deref().ok_or(Errno::Invalid)?;
        if self.is_image(inode) {
            return Err(Errno::ReadOnly);
        }
        self.names_mut(place.parent).remove(name);
        if let Some(entry) = self.nodes.get_mut(&inode) {
            entry.parent = None;
        }
        Ok(inode)
    }

    /// Removes a node that has no name.
    pub(crate) fn collect(&mut self, inode: Inode) {
        if inode == ROOT || self.nodes.get(&inode).is_none_or(|entry| entry.parent.is_some()) {
            return;
        }
        if let Some(entry) = self.nodes.remove(&inode) {
            self.used -= node_bytes(&entry.node);
        }
    }

    /// Moves a name to a place that has no node, or whose old node was removed.
    pub(crate) fn relink(&mut self, from: &Place, to: &Place) -> Result<(), Errno> {
        self.named(to.parent)?;
        let inode = self.unlink(from)?;
        let name = to.name.clone().ok_or(Errno::Invalid)?;
        self.names_mut(to.parent).insert(name, inode);
        if let Some(entry) = self.nodes.get_mut(&inode) {
            entry.parent = Some(to.parent);
        }
        Ok(())
    }

    /// Whether `inode` is `above` or a descendant of it.
    pub(crate) fn is_below(&self, inode: Inode, above: Inode) -> bool {
        let mut at = Some(inode);
        while let Some(here) = at {
            if here == above {
                return true;
            }
            at = self.nodes.get(&here).and_then(|entry| entry.parent);
        }
        false
    }

    /// Counts bytes against the quota; fails if they do not fit.
    pub(crate) fn charge(&mut self, bytes: u64, scratch_max: u64) -> Result<(), Errno> {
        if self.used + bytes > scratch_max {
            return Err(Errno::NoSpace);
        }
        self.used += bytes;
        Ok(())
    }

    /// Counts the bytes of all nodes and pages again.
    pub(super) fn count_bytes(&self) -> u64 {
        self.nodes
            .iter()
            .filter(|(inode, _)| !self.is_image(**inode))
            .map(|(_, entry)| node_bytes(&entry.node))
            .sum()
    }
}

fn node_bytes(node: &Node) -> u64 {
    match node {
        Node::Scratch(arena) => NODE_BYTES + (arena.page_count() * PAGE) as u64,
        Node::Directory(_) | Node::Image(_) => NODE_BYTES,
    }
}
