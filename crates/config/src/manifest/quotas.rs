//! A manifest's limits: for each stage of a cell, and for a session as a whole.
//!
//! Per stage are those that the sandbox enforces in one module: memory, time, scratch files. Per
//! session are those that the shard counts: messages and log. A stage without a value has the
//! app's, and the app has the default.

use super::{Problem, Source};
use crate::units::{Size, Time};
use serde::Deserialize;
use std::time::Duration;
use toml::Spanned;

/// Linear memory is a multiple of this, in bytes.
/// The page of WebAssembly.
const PAGE: u64 = 64 << 10;

/// What one stage of a cell may use; most cells have only one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StageQuotas {
    /// Bytes of linear memory, a multiple of 64 KiB.
    pub memory: u64,
    /// How long one handler may compute; in a chain, everything that one input runs in this stage.
    /// A handler that exceeds it is killed, and the input is tried once more on another attempt
    /// (`docs/protocol.md`, chapter 13).
    pub handler_time: Duration,
    /// Bytes of scratch files.
    pub scratch: u64,
    /// Whether NaNs have the same bit pattern on every kind of CPU.
    /// False is faster for floats; a replay on another kind of CPU may then differ.
    pub nan_canonical: bool,
}

impl Default for StageQuotas {
    fn default() -> Self {
        Self {
            memory: 64 << 20,
            handler_time: Duration::from_secs(1),
            scratch: 16 << 20,
            nan_canonical: true,
        }
    }
}

/// What a session may use, however many stages its cell has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessionQuotas {
    /// Messages a second; 0 for no limit.
    pub messages_per_s: u32,
    /// Bytes of log a second; 0 for no limit.
    pub log_bytes_per_s: u32,
    /// Sessions of this app on one shard; 0 for no limit.
    pub sessions: u32,
}

/// The app's table as written: defaults for its stages, and the limits of a session.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    memory: Option<Spanned<Size>>,
    handler_time: Option<Spanned<Time>>,
    scratch: Option<Size>,
    nan: Option<Nan>,
    messages_per_s: Option<u32>,
    log_bytes_per_s: Option<Spanned<Size>>,
    sessions: Option<u32>,
}

/// A stage's table as written.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenStage {
    memory: Option<Spanned<Size>>,
    handler_time: Option<Spanned<Time>>,
    scratch: Option<Size>,
    nan: Option<Nan>,
}

/// `nan`: "canonical" or "native".
#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum Nan {
    Canonical,
    Native,
}

impl Written {
    /// The defaults for stages, and the limits of sessions.
    pub(super) fn resolve(self, source: &Source) -> Result<(StageQuotas, SessionQuotas), Problem> {
        let log_bytes_per_s = match self.log_bytes_per_s {
            None => 0,
            Some(size) => u32::try_from(size.get_ref().0)
                .map_err(|_| source.problem(&size.span(), "is at most \"4095MiB\" a second"))?,
        };
        let quotas = SessionQuotas {
            messages_per_s: self.messages_per_s.unwrap_or(0),
            log_bytes_per_s,
            sessions: self.sessions.unwrap_or(0),
        };
        let (memory, handler_time) = (self.memory, self.handler_time);
        let stage = WrittenStage { memory, handler_time, scratch: self.scratch, nan: self.nan };
        Ok((stage.resolve(source, &StageQuotas::default())?, quotas))
    }
}

impl WrittenStage {
    /// What this stage may use; `default` is the app's.
    pub(super) fn resolve(self, source: &Source, default: &StageQuotas) -> Result<StageQuotas, Problem> {
        let memory = self.memory.as_ref().map_or(default.memory, |size| size.get_ref().0);
        if let Some(written) = self.memory.filter(|_| memory == 0 || !memory.is_multiple_of(PAGE)) {
            let up = Size(memory.div_ceil(PAGE).max(1) * PAGE);
            return Err(
                source.problem(&written.span(), format!("memory is a multiple of 64KiB; write \"{up}\""))
            );
        }
        let handler_time = self.handler_time.as_ref().map_or(default.handler_time, |time| time.get_ref().0);
        if let Some(written) = self.handler_time.filter(|_| handler_time < Duration::from_millis(1)) {
            return Err(source.problem(&written.span(), "a handler needs at least \"1ms\""));
        }
        Ok(StageQuotas {
            memory,
            handler_time,
            scratch: self.scratch.map_or(default.scratch, |size| size.0),
            nan_canonical: self.nan.map_or(default.nan_canonical, |nan| matches!(nan, Nan::Canonical)),
        })
    }
}
