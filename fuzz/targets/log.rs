//! Log entries, as a client can return them: what decodes must encode to entries that decode to the same, and time
//! never runs backwards between starts.
#![no_main]

use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use marram_wire::log::{Cursor, Entry};

fn entries(mut bytes: Bytes) -> Vec<Entry> {
    let mut cursor = Cursor::default();
    let mut entries = Vec::new();
    while !bytes.is_empty() {
        let Ok(entry) = cursor.take(&mut bytes) else { break };
        entries.push(entry);
    }
    entries
}

fuzz_target!(|data: &[u8]| {
    let read = entries(Bytes::copy_from_slice(data));
    let (mut cursor, mut written) = (Cursor::default(), BytesMut::new());
    read.iter().for_each(|entry| cursor.put(entry, &mut written));
    assert_eq!(entries(written.freeze()), read);
});
