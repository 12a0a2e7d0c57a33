//! Encodes a cell's files for checkpoints, images and state hashes. Decoding checks everything: the result is a tree that
//! file operations could have made.

use super::Files;
use super::arena::{Arena, Page};
use super::descriptors::{Descriptor, Descriptors, Open};
use super::tree::{Entry, Inode, Node, ROOT, Tree};
use crate::app::{ImageFile, check_files};
use crate::bytes_io::{Reader, put_bytes, put_u32, put_u64};
use crate::limits::{IMAGE_FILES_MAX, INODE_MAX, NAME_BYTES_MAX, PAGE, SCRATCH_MAX};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Why decoded files are invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FilesError(pub(crate) &'static str);

/// The pages of one file: page number and contents; `None` for zero.
pub(crate) type FilePages = (Inode, Vec<(u32, Option<Page>)>);

/// The changes of a cell's files that a checkpoint contains.
#[derive(Default, Debug)]
pub(crate) struct FilesChange {
    pub(crate) directory: Option<Vec<u8>>,
    pub(crate) descriptors: Option<Vec<u8>>,
    pub(crate) pages: Vec<FilePages>,
}

const DIRECTORY: u8 = 0;
const SCRATCH: u8 = 1;
const UNNAMED: Inode = 0;

impl Files {
    /// Everything that differs from the image.
    pub(crate) fn differences(&self) -> FilesChange {
        let mut change = FilesChange::default();
        if !self.touched {
            return change;
        }
        change.directory = Some(self.encode_directory());
        change.descriptors = Some(self.encode_descriptors());
        for (inode, entry) in &self.tree.nodes {
            let Node::Scratch(arena) = &entry.node else { continue };
            let pages: Vec<_> = arena.pages().map(|(index, page)| (index, Some(Arc::clone(page)))).collect();
            if !pages.is_empty() {
                change.pages.push((*inode, pages));
            }
        }
        change
    }

    /// Takes what changed since the last checkpoint, or, with `all`, everything that differs from the image.
    pub(crate) fn take_changes(&mut self, all: bool) -> FilesChange {
        let mut change = if all { self.differences() } else { FilesChange::default() };
        if self.tree_changed {
            let pages = self.take_pages();
            if !all {
                change.directory = Some(self.encode_directory());
                change.pages = pages;
            }
        }
        if self.descriptors_changed && !all {
            change.descriptors = Some(self.encode_descriptors());
        }
        self.tree_changed = false;
        self.descriptors_changed = false;
        change
    }

    /// The pages of files that were written since the last checkpoint.
    fn take_pages(&mut self) -> Vec<FilePages> {
        let mut files = Vec::new();
        for (inode, entry) in &mut Arc::make_mut(&mut self.tree).nodes {
            let Node::Scratch(arena) = &mut entry.node else { continue };
            let pages = arena.take_dirty();
            if !pages.is_empty() {
                files.push((*inode, pages));
            }
        }
        files
    }

    /// Scratch nodes in the order of their inode numbers:
    ///
    /// ```text
    /// | next number 8 | count 4 | (number 8 | kind 1 | parent 8 or 0 | name length 4 | name | length 8)* |
    /// ```
    fn encode_directory(&self) -> Vec<u8> {
        let names = self.names();
        let mut out = Vec::new();
        put_u64(&mut out, self.tree.next);
        let nodes = || self.tree.nodes.iter().filter(|(inode, _)| !self.tree.is_image(**inode));
        put_u32(&mut out, u32::try_from(nodes().count()).expect("the quota bounds nodes"));
        for (inode, entry) in nodes() {
            put_u64(&mut out, *inode);
            let (kind, len) = match &entry.node {
                Node::Scratch(arena) => (SCRATCH, arena.len()),
                Node::Directory(_) | Node::Image(_) => (DIRECTORY, 0),
            };
            out.push(kind);
            put_u64(&mut out, entry.parent.unwrap_or(UNNAMED));
            put_bytes(&mut out, names.get(inode).copied().unwrap_or_default().as_bytes());
            put_u64(&mut out, len);
        }
        out
    }

    fn names(&self) -> BTreeMap<Inode, &str> {
        let directories = self.tree.nodes.values().filter_map(|entry| match &entry.node {
            Node::Directory(names) => Some(names),
            _ => None,
        });
        directories.flatten().map(|(name, inode)| (*inode, name.as_str())).collect()
    }

    /// ```text
    /// | count 4 | (number 4 | kind 1 | inode 8 | position 8 | flags 1)* |
    /// ```
    fn encode_descriptors(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_u32(&mut out, u32::try_from(self.descriptors.iter().count()).expect("at most DESCRIPTORS_MAX"));
        for (fd, descriptor) in self.descriptors.iter() {
            put_u32(&mut out, fd);
            let none = Open { inode: 0, position: 0, read: false, write: false, append: false };
            let (kind, open) = match descriptor {
                Descriptor::Input => (0, none),
                Descriptor::Output => (1, none),
                Descriptor::Errors => (2, none),
                Descriptor::Open(open) => (3, open),
            };
            out.push(kind);
            put_u64(&mut out, open.inode);
            put_u64(&mut out, open.position);
            out.push(u8::from(open.read) | u8::from(open.write) << 1 | u8::from(open.append) << 2);
        }
        out
    }

    /// These files as every cell of an image gets them: marked as unchanged.
    pub(crate) fn freeze(&mut self) -> Self {
        for entry in Arc::make_mut(&mut self.tree).nodes.values_mut() {
            if let Node::Scratch(arena) = &mut entry.node {
                arena.clear_dirty();
            }
        }
        Self { tree_changed: false, descriptors_changed: false, touched: false, ..self.clone() }
    }

    /// An image's files:
    ///
    /// ```text
    /// | file count 4 | (path length 4 | path | contents length 4 | contents)* | scratch quota 8 |
    /// | directory length 4 | directory | descriptors length 4 | descriptors |
    /// | scratch file count 4 | (inode 8 | page count 4 | (index 4 | page 4096)*)* |
    /// ```
    pub(crate) fn encode_image(&self, out: &mut Vec<u8>) {
        put_u32(out, u32::try_from(self.image.len()).expect("checked against IMAGE_FILES_MAX"));
        for file in self.image.iter() {
            put_bytes(out, file.path.as_bytes());
            put_bytes(out, &file.contents);
        }
        put_u64(out, self.scratch_max);
        put_bytes(out, &self.encode_directory());
        put_bytes(out, &self.encode_descriptors());
        let arenas: Vec<_> = self
            .tree
            .nodes
            .iter()
            .filter_map(|(inode, entry)| match &entry.node {
                Node::Scratch(arena) => Some((inode, arena)),
                _ => None,
            })
            .collect();
        put_u32(out, u32::try_from(arenas.len()).expect("the quota bounds nodes"));
        for (inode, arena) in arenas {
            put_u64(out, *inode);
            put_u32(out, u32::try_from(arena.page_count()).expect("the quota bounds pages"));
            for (index, page) in arena.pages() {
                put_u32(out, index);
                out.extend_from_slice(&page[..]);
            }
        }
    }

    /// Reads what [`Files::encode_image`] wrote.
    pub(crate) fn decode_image(reader: &mut Reader<'_>) -> Option<Self> {
        let count = reader.u32().filter(|count| *count as usize <= IMAGE_FILES_MAX)?;
        let mut image = Vec::new();
        for _ in 0..count {
            let path = std::str::from_utf8(reader.bytes()?).ok()?.to_owned();
            image.push(ImageFile { path, contents: reader.bytes()?.to_vec() });
        }
        check_files(&image).ok()?;
        let mut files = Self::new(image.into(), reader.u64()?);
        files.restore_directory(reader.bytes()?).ok()?;
        files.restore_descriptors(reader.bytes()?).ok()?;
        for _ in 0..reader.u32()? {
            let inode = reader.u64()?;
            let mut pages = Vec::new();
            for _ in 0..reader.u32()? {
                pages.push((reader.u32()?, Some(Page::new(reader.array()?))));
            }
            files.restore_pages(inode, pages).ok()?;
        }
        files.finish_restore().ok()?;
        Some(files.freeze())
    }

    /// Removes all scratch files, before those of a full checkpoint are restored.
    pub(crate) fn clear(&mut self) {
        self.touched = true;
        let mut tree = Tree::new(&self.image);
        tree.used = 0;
        self.tree = Arc::new(tree);
    }

    /// Makes the tree the one of a checkpoint; files that already existed keep their contents.
    pub(crate) fn restore_directory(&mut self, bytes: &[u8]) -> Result<(), FilesError> {
        self.touched = true;
        let broken = FilesError("the directory section is truncated");
        let mut reader = Reader::new(bytes);
        let mut tree = Tree::new(&self.image);
        let next = reader.u64().ok_or(broken)?;
        if next <= tree.image_last || next > INODE_MAX {
            return Err(FilesError("the directory section has impossible numbers"));
        }
        tree.next = next;
        let count = reader.u32().ok_or(broken)?;
        let mut last = tree.image_last;
        let mut named = Vec::new();
        let old = Arc::make_mut(&mut self.tree);
        for _ in 0..count {
            let inode = reader.u64().ok_or(broken)?;
            let kind = reader.u8().ok_or(broken)?;
            let parent = reader.u64().ok_or(broken)?;
            let name = reader.bytes().and_then(|name| std::str::from_utf8(name).ok()).ok_or(broken)?;
            let len = reader.u64().ok_or(broken)?;
            if inode <= last || inode >= tree.next || len > SCRATCH_MAX {
                return Err(FilesError("the directory section has impossible numbers"));
            }
            last = inode;
            let node = match kind {
                DIRECTORY => Node::Directory(BTreeMap::new()),
                SCRATCH => Node::Scratch(old.take_arena(inode).with_len(len)),
                _ => return Err(FilesError("the directory section has an unknown kind of node")),
            };
            let parent = (parent != UNNAMED).then_some(parent);
            tree.nodes.insert(inode, Entry { node, parent });
            if let Some(parent) = parent {
                named.push((parent, name.to_owned(), inode));
            }
        }
        if !reader.is_empty() {
            return Err(FilesError("the directory section is too long"));
        }
        link(&mut tree, named)?;
        self.tree = Arc::new(tree);
        Ok(())
    }

    /// Sets pages of one file.
    pub(crate) fn restore_pages(
        &mut self,
        inode: Inode,
        pages: Vec<(u32, Option<Page>)>,
    ) -> Result<(), FilesError> {
        let tree = Arc::make_mut(&mut self.tree);
        let arena = tree.arena_mut(inode).ok_or(FilesError("pages of a file that does not exist"))?;
        let end = arena.len().div_ceil(PAGE as u64);
        for (index, page) in pages {
            if u64::from(index) >= end {
                return Err(FilesError("a page beyond the end of its file"));
            }
            arena.set_page(index, page);
        }
        Ok(())
    }

    /// Makes the open descriptors those of a checkpoint.
    pub(crate) fn restore_descriptors(&mut self, bytes: &[u8]) -> Result<(), FilesError> {
        self.touched = true;
        let broken = FilesError("the descriptor section is truncated");
        let mut reader = Reader::new(bytes);
        let count = reader.u32().ok_or(broken)?;
        let mut list = Vec::new();
        for _ in 0..count {
            let fd = reader.u32().ok_or(broken)?;
            let kind = reader.u8().ok_or(broken)?;
            let inode = reader.u64().ok_or(broken)?;
            let position = reader.u64().ok_or(broken)?;
            let flags = reader.u8().filter(|flags| *flags < 8).ok_or(broken)?;
            let open =
                Open { inode, position, read: flags & 1 != 0, write: flags & 2 != 0, append: flags & 4 != 0 };
            let descriptor = match kind {
                0 => Descriptor::Input,
                1 => Descriptor::Output,
                2 => Descriptor::Errors,
                3 => Descriptor::Open(open),
                _ => return Err(FilesError("the descriptor section has an unknown kind")),
            };
            list.push((fd, descriptor));
        }
        if !reader.is_empty() {
            return Err(FilesError("the descriptor section is too long"));
        }
        self.descriptors = Descriptors::from_list(&list)
            .ok_or(FilesError("the descriptor section has impossible numbers"))?;
        Ok(())
    }

    /// Call it after the other restoring calls: it checks what spans sections, and makes the result the base of the next
    /// checkpoint.
    pub(crate) fn finish_restore(&mut self) -> Result<(), FilesError> {
        let missing = self.descriptors.iter().any(|(_, descriptor)| match descriptor {
            Descriptor::Open(open) => self.tree.get(open.inode).is_none(),
            _ => false,
        });
        if missing {
            return Err(FilesError("a descriptor of a file that does not exist"));
        }
        let leaked = self.tree.nodes.iter().any(|(inode, entry)| {
            entry.parent.is_none() && *inode != ROOT && !self.descriptors.holds(*inode)
        });
        if leaked {
            return Err(FilesError("a file without name or descriptor"));
        }
        let used = self.tree.count_bytes();
        if used > self.scratch_max {
            return Err(FilesError("more scratch files than the quota allows"));
        }
        if self.tree.used != used || self.tree_changed {
            Arc::make_mut(&mut self.tree).used = used;
        }
        self.tree_changed = false;
        self.descriptors_changed = false;
        Ok(())
    }

    /// Feeds everything that decides whether two cells' files are equal into a hash.
    pub(crate) fn hash(&self, hasher: &mut blake3::Hasher) {
        hasher.update(&self.encode_directory());
        hasher.update(&self.encode_descriptors());
        for (inode, entry) in &self.tree.nodes {
            let Node::Scratch(arena) = &entry.node else { continue };
            hasher.update(&inode.to_le_bytes());
            // A page of zeros and a page that was never written are the same to a reader.
            for (index, page) in arena.pages().filter(|(_, page)| ***page != [0; PAGE]) {
                hasher.update(&index.to_le_bytes());
                hasher.update(&page[..]);
            }
        }
    }
}

/// Puts every node under its name in its directory, and refuses what is not a tree.
fn link(tree: &mut Tree, named: Vec<(Inode, String, Inode)>) -> Result<(), FilesError> {
    for (parent, name, inode) in named {
        let bad = name.is_empty()
            || name.len() > NAME_BYTES_MAX
            || name == "."
            || name == ".."
            || name.contains('/');
        let Some(Node::Directory(names)) = tree.nodes.get_mut(&parent).map(|entry| &mut entry.node) else {
            return Err(FilesError("a file in a directory that does not exist"));
        };
        if bad || names.insert(name, inode).is_some() {
            return Err(FilesError("a name that is invalid or occurs twice"));
        }
    }
    // From the root every name is reached once. Names in a cycle, or below a removed directory, are not reached.
    let mut reached = 0;
    let mut waiting = vec![ROOT];
    while let Some(inode) = waiting.pop() {
        reached += 1;
        if let Some(Node::Directory(names)) = tree.get(inode) {
            waiting.extend(names.values());
        }
    }
    let named = tree.nodes.values().filter(|entry| entry.parent.is_some()).count();
    if reached != named + 1 {
        return Err(FilesError("directories that are not reachable from the root"));
    }
    Ok(())
}

impl Tree {
    fn take_arena(&mut self, inode: Inode) -> Arena {
        self.arena_mut(inode).map(std::mem::take).unwrap_or_default()
    }
}
