//! Encodes a snapshot.

use super::pages::Writer;
use super::{
    CHECKSUM_BYTES, HEADER_BYTES, Kind, Layout, MAGIC, SHORT_LENGTH_BYTES, Since, StageSnapshot, image_id,
};
use crate::bytes_io::{put_u32, put_u64};
use crate::limits::PAGE;
use bytes::BytesMut;
use marram_wire::codec::Field;

impl StageSnapshot {
    /// Appends the stage's part of a checkpoint.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let pages = self.memory_pages();
        out.extend_from_slice(&MAGIC);
        let layout = if pages.has_differences() { Layout::Short } else { Layout::Plain };
        put_u32(out, layout as u32);
        // Length and checksum are filled in when the body is complete.
        out.resize(start + HEADER_BYTES, 0);
        out.extend_from_slice(&self.image.hash.0);
        out.extend_from_slice(&self.base.unwrap_or_else(|| image_id(self.image.hash)));
        out.extend_from_slice(&self.id);
        out.push(u8::from(self.base.is_some()) + u8::from(self.is_merged));
        self.sections(&pages, layout, out);

        let (header, body) = out[start..].split_at_mut(HEADER_BYTES);
        header[8..16].copy_from_slice(&(body.len() as u64).to_le_bytes());
        header[16..].copy_from_slice(&blake3::hash(body).as_bytes()[..CHECKSUM_BYTES]);
    }

    fn sections(&self, pages: &Writer<'_>, layout: Layout, out: &mut Vec<u8>) {
        section(layout, out, Kind::MemorySize, 0, |out| put_u64(out, self.memory_len as u64));
        if !pages.is_empty() {
            section(layout, out, Kind::MemoryPages, 0, |out| pages.write(layout, out));
        }
        if let Some(Since { full, pages }) = &self.since {
            section(layout, out, Kind::Since, 0, |out| {
                out.extend_from_slice(full);
                for run in pages.runs() {
                    put_u32(out, run.start);
                    put_u32(out, run.end);
                }
            });
        }
        section(layout, out, Kind::Globals, 0, |out| {
            put_u32(out, u32::try_from(self.globals.len()).expect("at most GLOBALS_MAX"));
            for global in &self.globals {
                global.encode(out);
            }
        });
        section(layout, out, Kind::Ports, 0, |out| {
            put_u32(out, u32::try_from(self.ports.list().len()).expect("at most PORTS_MAX"));
            for (port, open) in self.ports.list() {
                put_u32(out, port.0);
                out.push(u8::from(*open));
            }
        });
        let peers = self.ports.peers();
        if peers.len() > 0 {
            section(layout, out, Kind::Peers, 0, |out| {
                put_u32(out, u32::try_from(peers.len()).expect("at most PORTS_MAX"));
                for (port, peer) in peers {
                    put_u32(out, port.0);
                    let mut encoded = BytesMut::new();
                    peer.put(&mut encoded);
                    out.extend_from_slice(&encoded);
                }
            });
        }
        if self.ports.past() > 0 {
            section(layout, out, Kind::PastPorts, 0, |out| put_u32(out, self.ports.past()));
        }
        let (connects, connecting) = self.ports.connections();
        if connects > 0 {
            section(layout, out, Kind::Connections, 0, |out| {
                put_u32(out, connects);
                connecting.iter().for_each(|port| put_u32(out, port.0));
            });
        }
        section(layout, out, Kind::Generator, 0, |out| {
            out.extend_from_slice(&self.seed.0);
            put_u64(out, self.position);
        });
        if let Some(directory) = &self.files.directory {
            section(layout, out, Kind::Directory, 0, |out| out.extend_from_slice(directory));
        }
        for (inode, pages) in &self.files.pages {
            let mut writer = Writer::default();
            for (index, page) in pages {
                writer.page(*index, page.as_ref().map(|page| &page[..]));
            }
            section(layout, out, Kind::FilePages, *inode, |out| writer.write(Layout::Plain, out));
        }
        if let Some(descriptors) = &self.files.descriptors {
            section(layout, out, Kind::Descriptors, 0, |out| out.extend_from_slice(descriptors));
        }
    }

    /// The copied pages that the reader does not have: a full checkpoint leaves out pages that equal the image's.
    fn memory_pages(&self) -> Writer<'_> {
        if let Some((versions, base)) = self.versions.as_ref().zip(self.base) {
            return versions.changes(&self.memory, (base, self.id), self.memory_len);
        }
        let mut writer = Writer::default();
        let full = self.base.is_none();
        for (index, contents) in self.memory.pages() {
            let same = || self.image.memory.page(index).unwrap_or(&[0; PAGE]) == contents;
            if !(full && same()) {
                writer.page(index, Some(contents));
            }
        }
        writer
    }
}

/// ```text
/// plain   | kind 1 | index 8 | page size 4 | length 8          | payload |
/// short   | kind 1 | (index 8)             | length 5          | payload |      only file pages have an index
/// ```
fn section(layout: Layout, out: &mut Vec<u8>, kind: Kind, index: u64, write: impl FnOnce(&mut Vec<u8>)) {
    let is_short = layout == Layout::Short;
    out.push(kind as u8);
    if !is_short || kind == Kind::FilePages {
        put_u64(out, index);
    }
    if !is_short {
        put_u32(out, u32::try_from(PAGE).expect("a page has 4096 bytes"));
    }
    let length_bytes = if is_short { SHORT_LENGTH_BYTES } else { 8 };
    let at = out.len() + length_bytes;
    out.resize(at, 0);
    write(out);
    let len = ((out.len() - at) as u64).to_le_bytes();
    out[at - length_bytes..at].copy_from_slice(&len[..length_bytes]);
}
