//! What a cell may use. The app's manifest sets it, and it is part of the image's identity, since several quotas affect what
//! the guest computes.
//!
//! `memory_max`, `scratch_max` and `nan_canonicalization` change what a guest computes;
//! `handler_time_ns` changes only whether it is killed, which depends on the machine and is
//! therefore no part of a replay's result. The last two are limits of the session, which its edge
//! enforces; the guest does not observe them.
//!
//! A manifest's missing entries get the defaults below, so an app's digest does not depend on
//! whether they were written out.

use crate::limits::{MEMORY_MAX, SCRATCH_MAX, WASM_PAGE};

/// What a cell may use. Two apps that differ in any of these have different images.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quotas {
    /// Bytes of linear memory: a multiple of 64 KiB. `memory.grow` beyond it returns -1.
    pub memory_max: u64,
    /// Nanoseconds that one handler may compute before it is killed.
    /// Of the stage, for each input: in a chain every stage has its own.
    pub handler_time_ns: u64,
    /// Bytes of scratch files; 0 for none.
    pub scratch_max: u64,
    /// Whether NaNs get one bit pattern. Needed for cells that may move between CPU architectures; costs time in
    /// floating-point loops.
    pub nan_canonicalization: bool,
    /// Messages per second that a session may receive, if limited. The session's edge enforces it.
    pub messages_per_s: Option<u32>,
    /// Bytes of log per second that a session may cause, if limited. The session's edge enforces it.
    pub log_bytes_per_s: Option<u64>,
}

impl Default for Quotas {
    fn default() -> Self {
        Self {
            memory_max: 64 << 20,
            handler_time_ns: 1_000_000_000,
            scratch_max: 16 << 20,
            nan_canonicalization: true,
            messages_per_s: None,
            log_bytes_per_s: None,
        }
    }
}

/// Length of [`Quotas::encode`] in bytes.
pub(crate) const QUOTAS_BYTES: usize = 8 + 8 + 8 + 1 + (1 + 4) + (1 + 8);

impl Quotas {
    /// Why these quotas are invalid; `None` if they are valid.
    /// In words for the author of the manifest, by the manifest's names.
    pub(crate) fn problem(&self) -> Option<String> {
        if self.memory_max == 0
            || self.memory_max > MEMORY_MAX
            || !self.memory_max.is_multiple_of(WASM_PAGE as u64)
        {
            return Some(format!(
                "memory_max is {} bytes; give a multiple of 65536 between 65536 and {MEMORY_MAX}",
                self.memory_max
            ));
        }
        if self.handler_time_ns == 0 {
            return Some("handler_time is 0; give a handler at least a millisecond".into());
        }
        if self.scratch_max > SCRATCH_MAX {
            return Some(format!("scratch_max is {} bytes; the maximum is {SCRATCH_MAX}", self.scratch_max));
        }
        None
    }

    /// The one encoding that image hashes cover: fixed width, little-endian, absent limits as zeros after a 0 byte.
    ///
    /// ```text
    /// | memory_max 8 | handler_time_ns 8 | scratch_max 8 | nan 1 | 0 or 1 | messages_per_s 4 |
    /// 0              8                   16              24      25       26                 30
    /// | 0 or 1 | log_bytes_per_s 8 |
    /// 30       31                  39
    /// ```
    pub(crate) fn encode(&self) -> [u8; QUOTAS_BYTES] {
        let mut out = [0; QUOTAS_BYTES];
        out[0..8].copy_from_slice(&self.memory_max.to_le_bytes());
        out[8..16].copy_from_slice(&self.handler_time_ns.to_le_bytes());
        out[16..24].copy_from_slice(&self.scratch_max.to_le_bytes());
        out[24] = u8::from(self.nan_canonicalization);
        out[25] = u8::from(self.messages_per_s.is_some());
        out[26..30].copy_from_slice(&self.messages_per_s.unwrap_or(0).to_le_bytes());
        out[30] = u8::from(self.log_bytes_per_s.is_some());
        out[31..39].copy_from_slice(&self.log_bytes_per_s.unwrap_or(0).to_le_bytes());
        out
    }

    /// Reads what [`Quotas::encode`] wrote; returns `None` for anything else.
    pub(crate) fn decode(bytes: &[u8; QUOTAS_BYTES]) -> Option<Self> {
        let u64_at = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        let u32_at = |at: usize| bytes[at..at + 4].try_into().map(u32::from_le_bytes).ok();
        let quotas = Self {
            memory_max: u64_at(0)?,
            handler_time_ns: u64_at(8)?,
            scratch_max: u64_at(16)?,
            nan_canonicalization: bytes[24] == 1,
            messages_per_s: if bytes[25] == 1 { u32_at(26) } else { None },
            log_bytes_per_s: if bytes[30] == 1 { u64_at(31) } else { None },
        };
        // Only the canonical form is accepted, so that the same quotas never have two hashes.
        (quotas.encode() == *bytes && quotas.problem().is_none()).then_some(quotas)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoding_round_trips_and_is_canonical() {
        let quotas = Quotas { messages_per_s: Some(7), log_bytes_per_s: Some(9), ..Quotas::default() };
        let bytes = quotas.encode();
        assert_eq!(Quotas::decode(&bytes), Some(quotas));
        for at in [24, 25, 30] {
            let mut other = bytes;
            other[at] = 2;
            assert_eq!(Quotas::decode(&other), None, "byte {at}");
        }
    }

    #[test]
    fn senseless_quotas_name_the_field() {
        for (quotas, field) in [
            (Quotas { memory_max: 1, ..Quotas::default() }, "memory_max"),
            (Quotas { memory_max: 1 << 33, ..Quotas::default() }, "memory_max"),
            (Quotas { handler_time_ns: 0, ..Quotas::default() }, "handler_time"),
            (Quotas { scratch_max: u64::MAX, ..Quotas::default() }, "scratch_max"),
        ] {
            assert!(quotas.problem().is_some_and(|text| text.contains(field)), "{field}");
        }
    }
}
