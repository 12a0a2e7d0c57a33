//! Versions of apps that sessions name and this edge does not have: when to fetch one, and what to tell a session meanwhile.
//! Knows neither peers nor sessions.

use crate::api::AppVersion;
use alloc::{collections::BTreeMap, string::String};
use marram_session::{holds, invariant::BrokenInvariant};

/// The first wait after no peer had a version, before peers are asked again; doubles with each failure.
pub const RETRY_MIN_NS: u64 = 500_000_000;
/// The longest wait: a peer may get the version at any time.
pub const RETRY_MAX_NS: u64 = 30_000_000_000;
/// A fetch without an answer for so long is lost.
const ANSWER_NS: u64 = 600_000_000_000;
/// Limit of the versions in this table. Only ends that have proved their session's key can cause a fetch.
pub const MISSING_MAX: usize = 64;

/// One version that is not here.
#[derive(Debug)]
struct Entry {
    /// When peers may be asked (again).
    again_ns: u64,
    failures: u32,
    /// Why the last fetch failed; none while the first is in flight.
    why: Option<String>,
}

/// The answer to a session that names a missing version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// The first fetch from peers is in flight.
    Asked,
    /// The last fetch failed. Peers may be asked again now.
    Failed(String),
    /// Too many other versions are being fetched.
    Full,
}

/// The versions that are missing.
#[derive(Default, Debug)]
pub(crate) struct MissingVersions {
    entries: BTreeMap<AppVersion, Entry>,
}

impl MissingVersions {
    /// A session names `version`: whether to fetch it now, and the answer to the session.
    pub(super) fn miss(&mut self, now_ns: u64, version: &AppVersion) -> (bool, Verdict) {
        if let Some(entry) = self.entries.get_mut(version) {
            let ask = now_ns >= entry.again_ns;
            if ask {
                entry.again_ns = now_ns + ANSWER_NS;
            }
            return (ask, entry.why.clone().map_or(Verdict::Asked, Verdict::Failed));
        }
        if self.entries.len() >= MISSING_MAX {
            self.entries.retain(|_, entry| now_ns < entry.again_ns);
        }
        if self.entries.len() >= MISSING_MAX {
            return (false, Verdict::Full);
        }
        self.entries.insert(version.clone(), Entry { again_ns: now_ns + ANSWER_NS, failures: 0, why: None });
        (true, Verdict::Asked)
    }

    pub(super) fn failed(&mut self, now_ns: u64, version: &AppVersion, why: String) {
        // The version came another way in the meantime, or was never asked for.
        let Some(entry) = self.entries.get_mut(version) else { return };
        let rest_ns = RETRY_MAX_NS.min(RETRY_MIN_NS << entry.failures.min(16));
        entry.failures += 1;
        (entry.again_ns, entry.why) = (now_ns + rest_ns, Some(why));
    }

    /// Whether the first fetch of the version is in flight.
    pub(super) fn asks_first(&self, version: &AppVersion) -> bool {
        self.entries.get(version).is_some_and(|entry| entry.why.is_none())
    }

    /// Checks I39 of docs/protocol.md, as far as it concerns versions that are missing.
    pub(super) fn invariants(&self, is_here: impl Fn(&AppVersion) -> bool) -> Result<(), BrokenInvariant> {
        holds!("I39", self.entries.len() <= MISSING_MAX);
        holds!("I39", !self.entries.keys().any(is_here));
        Ok(())
    }

    /// The version is here.
    pub(super) fn found(&mut self, version: &AppVersion) {
        self.entries.remove(version);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marram_wire::id::ImageHash;

    fn version(number: usize) -> AppVersion {
        AppVersion { app: alloc::format!("app-{number}"), image: ImageHash([1; 32]) }
    }

    #[test]
    fn a_missing_version_is_asked_for_once_and_then_after_ever_longer_rests() {
        let (mut missing, mut now_ns) = (MissingVersions::default(), 7);
        // Once a fetch has failed, sessions get this answer, also while peers are asked again.
        let mut told = Verdict::Asked;
        for rest_ms in [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000] {
            assert_eq!(missing.miss(now_ns, &version(1)), (true, told.clone()));
            assert_eq!(missing.miss(now_ns + 1_000_000_000, &version(1)), (false, told));
            missing.failed(now_ns, &version(1), "none".into());
            told = Verdict::Failed("none".into());
            let until_ns = now_ns + rest_ms * 1_000_000;
            assert_eq!(missing.miss(until_ns - 1, &version(1)), (false, told.clone()), "{rest_ms}");
            now_ns = until_ns;
        }
        missing.miss(now_ns, &version(1));
        assert!(missing.miss(now_ns + ANSWER_NS, &version(1)).0, "the answer was lost");
    }

    #[test]
    fn only_so_many_are_asked_for_at_a_time() {
        let mut missing = MissingVersions::default();
        (0..MISSING_MAX).for_each(|number| assert!(missing.miss(0, &version(number)).0));
        assert_eq!(missing.miss(0, &version(MISSING_MAX)), (false, Verdict::Full));
        missing.failed(0, &version(3), "none".into());
        assert_eq!(missing.miss(RETRY_MIN_NS - 1, &version(MISSING_MAX)), (false, Verdict::Full));
        assert!(missing.miss(RETRY_MIN_NS, &version(MISSING_MAX)).0, "one has rested");
        missing.found(&version(4));
        assert!(missing.miss(0, &version(MISSING_MAX + 1)).0, "one is here");
    }
}
