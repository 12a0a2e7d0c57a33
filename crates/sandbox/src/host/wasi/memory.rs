//! Reads and writes WASI's structures in the guest's memory. Every call traps on a pointer outside memory.

use crate::host::{guest_error, range};
use wasmtime::Result;

/// Copies bytes into the guest's memory.
pub(super) fn put(memory: &mut [u8], ptr: u32, bytes: &[u8], call: &str) -> Result<()> {
    let len = u32::try_from(bytes.len()).map_err(|_| guest_error(format!("{call}: too much for memory")))?;
    let range = range(memory, ptr, len, call)?;
    memory[range].copy_from_slice(bytes);
    Ok(())
}

/// Reads a 32-bit number from the guest's memory.
pub(super) fn u32_at(memory: &[u8], ptr: u32, call: &str) -> Result<u32> {
    let range = range(memory, ptr, 4, call)?;
    let bytes: [u8; 4] = memory[range].try_into().map_err(|_| guest_error("four bytes are four bytes"))?;
    Ok(u32::from_le_bytes(bytes))
}

/// The buffers of a scattered read or write, as ranges of memory, cut after a total of `bytes_max` bytes.
pub(super) fn buffers(
    memory: &[u8],
    ptr: u32,
    count: u32,
    bytes_max: usize,
    call: &str,
) -> Result<Vec<std::ops::Range<usize>>> {
    let mut ranges = Vec::new();
    let mut left = bytes_max;
    for n in 0..count {
        let at =
            ptr.checked_add(n * 8).ok_or_else(|| guest_error(format!("{call}: buffers outside memory")))?;
        let (start, len) = (u32_at(memory, at, call)?, u32_at(memory, at.saturating_add(4), call)?);
        let range = range(memory, start, len, call)?;
        let take = range.len().min(left);
        left -= take;
        if take > 0 {
            ranges.push(range.start..range.start + take);
        }
    }
    Ok(ranges)
}

/// A path, if it is UTF-8.
pub(super) fn path<'a>(memory: &'a [u8], ptr: u32, len: u32, call: &str) -> Result<Option<&'a str>> {
    Ok(std::str::from_utf8(&memory[range(memory, ptr, len, call)?]).ok())
}
