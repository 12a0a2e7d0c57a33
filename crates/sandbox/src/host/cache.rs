//! `cache_read`: a guest reads from its edge's cache. If the edge must ask for the object, the handler's stack waits here
//! until the caller of the cell brings it; in replay the result comes from the log.
//!
//! This module knows no cache: it gives out a key and gets what was found.

use super::{Hosts, guest_error, range, split_cell};
use bytes::Bytes;
use marram_wire::limits::{CACHE_KEY_MAX, READS_MAX, READS_SIZE_MAX};
use marram_wire::log::{Found, Read};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use wasmtime::{Caller, Linker, Result};

/// Result of `cache_read` if there is no such object.
const NOTHING: i32 = -1;
/// Result if the object cannot be read now.
const AWAY: i32 = -2;
/// Result if the object cannot be read this way.
const REFUSED: i32 = -3;

/// Where a handler leaves the key that it waits for, and gets what was found. The lock is never contended: values in a store
/// must be `Send`, but one thread does all of this.
#[derive(Clone, Default)]
pub(crate) struct Window(Arc<Mutex<Asked>>);

#[derive(Default)]
enum Asked {
    #[default]
    Nothing,
    Key(Bytes),
    /// The caller has taken the key.
    Seen,
    Found(Found),
}

impl Window {
    fn with<R>(&self, act: impl FnOnce(&mut Asked) -> R) -> R {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The key that a handler has just asked for.
    pub(crate) fn wanted(&self) -> Option<Bytes> {
        self.with(|asked| match std::mem::take(asked) {
            Asked::Key(key) => {
                *asked = Asked::Seen;
                Some(key)
            }
            other => {
                *asked = other;
                None
            }
        })
    }

    /// Delivers what was found. It is dropped if no handler waits for it.
    pub(crate) fn put(&self, found: Found) {
        self.with(|asked| {
            if !matches!(asked, Asked::Nothing) {
                *asked = Asked::Found(found);
            }
        });
    }

    fn take(&self) -> Option<Found> {
        self.with(|asked| match std::mem::take(asked) {
            Asked::Found(found) => Some(found),
            other => {
                *asked = other;
                None
            }
        })
    }
}

/// What the present input has read so far.
#[derive(Default)]
pub(super) struct Reading {
    done: Vec<Read>,
    /// Bytes of the different objects among them.
    size: usize,
    /// In replay, the reads that are still to come.
    logged: Option<VecDeque<Read>>,
    window: Window,
}

impl Reading {
    /// Starts another input.
    pub(super) fn begin(&mut self, logged: Option<Vec<Read>>) {
        self.done.clear();
        self.size = 0;
        self.logged = logged.map(VecDeque::from);
    }

    pub(super) fn window(&self) -> &Window {
        &self.window
    }

    /// What was read since the input began.
    pub(super) fn take(&mut self) -> Vec<Read> {
        std::mem::take(&mut self.done)
    }

    /// In replay, the next read in the log.
    fn next_logged(&mut self, key: [u8; 8]) -> Result<Option<Found>> {
        let Some(logged) = &mut self.logged else { return Ok(None) };
        match logged.pop_front() {
            Some(read) if read.key == key => Ok(Some(read.found)),
            _ => Err(guest_error("cache_read: the replay reads another object than the logged one")),
        }
    }

    fn note(&mut self, read: Read) -> Result<()> {
        if !self.done.contains(&read) {
            self.size += read.found.size();
        }
        if self.size > READS_SIZE_MAX {
            return Err(guest_error(format!(
                "cache_read: more than {READS_SIZE_MAX} bytes of objects for one input"
            )));
        }
        self.done.push(read);
        Ok(())
    }
}

/// Adds the function. A handler that waits needs a stack of its own, which a module has when it runs, but not during deployment.
pub(super) fn link(linker: &mut Linker<Hosts>, waits: bool) -> Result<()> {
    if waits {
        linker.func_wrap_async(super::ABI_MODULE, "cache_read", |caller, (key, key_len, buf, cap)| {
            Box::new(cache_read(caller, [key, key_len], [buf, cap]))
        })?;
    } else {
        let refuse = |mut caller: Caller<'_, Hosts>, _: u32, _: u32, _: u32, _: u32| -> Result<i32> {
            caller.data_mut().running().only_when_running("cache_read")?;
            Err(guest_error("cache_read: the app has no cache"))
        };
        linker.func_wrap(super::ABI_MODULE, "cache_read", refuse)?;
    }
    Ok(())
}

async fn cache_read(
    mut caller: Caller<'_, Hosts>,
    [key, key_len]: [u32; 2],
    [buf, cap]: [u32; 2],
) -> Result<i32> {
    let (memory, hosts) = split_cell(&mut caller)?;
    hosts.running().only_when_running("cache_read")?;
    let key = &memory[range(memory, key, key_len, "cache_read")?];
    range(memory, buf, cap, "cache_read")?;
    if !is_key(key) {
        return Ok(REFUSED);
    }
    if hosts.reading.done.len() >= READS_MAX {
        return Err(guest_error(format!("cache_read: more than {READS_MAX} reads for one input")));
    }
    let digest = digest(key);
    let found = match hosts.reading.next_logged(digest)? {
        Some(found) => found,
        None => {
            let key = Bytes::copy_from_slice(key);
            let window = hosts.reading.window().clone();
            window.with(|asked| *asked = Asked::Key(key));
            // The time spent waiting is not charged.
            hosts.charge();
            poll_fn(|_| window.take().map_or(Poll::Pending, Poll::Ready)).await
        }
    };
    let (memory, hosts) = split_cell(&mut caller)?;
    hosts.reading.note(Read { key: digest, found: found.clone() })?;
    Ok(match found {
        Found::Nothing => NOTHING,
        Found::Away => AWAY,
        Found::Refused => REFUSED,
        Found::Object(bytes) => {
            let room = range(memory, buf, cap, "cache_read")?;
            // A truncated object is never written: the guest gets the size that it needs.
            if let Some(place) = memory[room].get_mut(..bytes.len()) {
                place.copy_from_slice(&bytes);
            }
            i32::try_from(bytes.len()).unwrap_or(i32::MAX)
        }
    })
}

/// The digest of a key that the log contains.
fn digest(key: &[u8]) -> [u8; 8] {
    let mut digest = [0; 8];
    digest.copy_from_slice(&blake3::hash(key).as_bytes()[..8]);
    digest
}

/// Whether the key can be appended to an origin's path, and cannot lead out of it.
fn is_key(key: &[u8]) -> bool {
    let legal = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@%/".contains(byte);
    // A dot has three spellings.
    let dots = |segment: &[u8]| {
        let plain = segment.to_ascii_lowercase();
        let plain = String::from_utf8_lossy(&plain).replace("%2e", ".");
        plain == "." || plain == ".."
    };
    let hidden = |pair: &[u8]| pair.eq_ignore_ascii_case(b"%2f") || pair.eq_ignore_ascii_case(b"%5c");
    !key.is_empty()
        && key.len() <= CACHE_KEY_MAX
        && key[0] != b'/'
        && key.iter().all(legal)
        && !key.windows(3).any(hidden)
        && !key.split(|byte| *byte == b'/').any(dots)
}

/// Whether a module imports `cache_read`. False if the bytes are not a module.
#[must_use]
pub fn reads_cache(module: &[u8]) -> bool {
    let payloads = wasmparser::Parser::new(0).parse_all(module);
    let imports = payloads.map_while(std::result::Result::ok).filter_map(|payload| match payload {
        wasmparser::Payload::ImportSection(section) => Some(section),
        _ => None,
    });
    imports
        .flat_map(wasmparser::ImportSectionReader::into_imports)
        .map_while(std::result::Result::ok)
        .any(|import| (import.module, import.name) == (super::ABI_MODULE, "cache_read"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_a_path_below_the_origin_and_leads_nowhere_else() {
        let long = "k".repeat(CACHE_KEY_MAX);
        for key in ["a", "a/b.json", "a//b", "v1.2/x-y_z~", "caf%C3%A9", ".well-known/x", "a..b/...", &long] {
            assert!(is_key(key.as_bytes()), "{key}");
        }
        let longer = "k".repeat(CACHE_KEY_MAX + 1);
        for key in [
            "",
            "/a",
            "..",
            "a/../b",
            "a/..",
            "./a",
            "a/%2e%2E/b",
            "a/.%2e",
            "a%2fb",
            "a%5C..",
            "a b",
            "a?b",
            "a#b",
            "a\r\nb",
            "a\0",
            "é",
            "http://x/ y",
            &longer,
        ] {
            assert!(!is_key(key.as_bytes()), "{key:?}");
        }
    }

    #[test]
    fn a_window_shows_a_key_once_and_takes_an_answer_only_then() {
        let window = Window::default();
        window.put(Found::Nothing);
        assert_eq!((window.wanted(), window.take()), (None, None));
        window.with(|asked| *asked = Asked::Key(Bytes::from_static(b"k")));
        assert_eq!((window.take(), window.wanted()), (None, Some(Bytes::from_static(b"k"))));
        assert_eq!((window.wanted(), window.take()), (None, None));
        window.put(Found::Away);
        assert_eq!((window.take(), window.take()), (Some(Found::Away), None));
    }
}
