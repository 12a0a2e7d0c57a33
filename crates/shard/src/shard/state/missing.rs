//! Images that sessions name and this edge does not have: when to fetch one, and what to tell a session meanwhile.
//! Knows neither peers nor sessions.

use alloc::{collections::BTreeMap, string::String};
use marram_session::{holds, invariant::BrokenInvariant};
use marram_wire::id::ImageHash;

/// The first wait after no peer had an image, before peers are asked again; doubles with each failure.
pub const RETRY_MIN_NS: u64 = 500_000_000;
/// The longest wait: a peer may get the image at any time.
pub const RETRY_MAX_NS: u64 = 30_000_000_000;
/// A fetch without an answer for so long is lost.
const ANSWER_NS: u64 = 600_000_000_000;
/// Limit of the images in this table. Only ends that have proved their session's key can cause a fetch.
pub const MISSING_MAX: usize = 64;

/// One image that is not here.
#[derive(Debug)]
struct Entry {
    /// When peers may be asked (again).
    again_ns: u64,
    failures: u32,
    /// Why the last fetch failed; none while the first is in flight.
    why: Option<String>,
}

/// The answer to a session that names a missing image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// The first fetch from peers is in flight.
    Asked,
    /// The last fetch failed. Peers may be asked again now.
    Failed(String),
    /// Too many other images are being fetched.
    Full,
}

/// The images that are missing.
#[derive(Default, Debug)]
pub(crate) struct MissingImages {
    entries: BTreeMap<ImageHash, Entry>,
}

impl MissingImages {
    /// A session names `image`: whether to fetch it now, and the answer to the session.
    pub(super) fn miss(&mut self, now_ns: u64, image: ImageHash) -> (bool, Verdict) {
        if let Some(entry) = self.entries.get_mut(&image) {
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
        self.entries.insert(image, Entry { again_ns: now_ns + ANSWER_NS, failures: 0, why: None });
        (true, Verdict::Asked)
    }

    pub(super) fn failed(&mut self, now_ns: u64, image: ImageHash, why: String) {
        // The image came another way in the meantime, or was never asked for.
        let Some(entry) = self.entries.get_mut(&image) else { return };
        let rest_ns = RETRY_MAX_NS.min(RETRY_MIN_NS << entry.failures.min(16));
        entry.failures += 1;
        (entry.again_ns, entry.why) = (now_ns + rest_ns, Some(why));
    }

    /// Whether the first fetch of the image is in flight.
    pub(super) fn asks_first(&self, image: ImageHash) -> bool {
        self.entries.get(&image).is_some_and(|entry| entry.why.is_none())
    }

    /// Checks I39 of docs/protocol.md, as far as it concerns images that are missing.
    pub(super) fn invariants(&self, is_here: impl Fn(&ImageHash) -> bool) -> Result<(), BrokenInvariant> {
        holds!("I39", self.entries.len() <= MISSING_MAX);
        holds!("I39", !self.entries.keys().any(is_here));
        Ok(())
    }

    /// The image is here.
    pub(super) fn found(&mut self, image: ImageHash) {
        self.entries.remove(&image);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(number: usize) -> ImageHash {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        ImageHash(bytes)
    }

    #[test]
    fn a_missing_image_is_asked_for_once_and_then_after_ever_longer_rests() {
        let (mut missing, mut now_ns) = (MissingImages::default(), 7);
        // Once a fetch has failed, sessions get this answer, also while peers are asked again.
        let mut told = Verdict::Asked;
        for rest_ms in [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000] {
            assert_eq!(missing.miss(now_ns, image(1)), (true, told.clone()));
            assert_eq!(missing.miss(now_ns + 1_000_000_000, image(1)), (false, told));
            missing.failed(now_ns, image(1), "none".into());
            told = Verdict::Failed("none".into());
            let until_ns = now_ns + rest_ms * 1_000_000;
            assert_eq!(missing.miss(until_ns - 1, image(1)), (false, told.clone()), "{rest_ms}");
            now_ns = until_ns;
        }
        missing.miss(now_ns, image(1));
        assert!(missing.miss(now_ns + ANSWER_NS, image(1)).0, "the answer was lost");
    }

    #[test]
    fn only_so_many_are_asked_for_at_a_time() {
        let mut missing = MissingImages::default();
        (0..MISSING_MAX).for_each(|number| assert!(missing.miss(0, image(number)).0));
        assert_eq!(missing.miss(0, image(MISSING_MAX)), (false, Verdict::Full));
        missing.failed(0, image(3), "none".into());
        assert_eq!(missing.miss(RETRY_MIN_NS - 1, image(MISSING_MAX)), (false, Verdict::Full));
        assert!(missing.miss(RETRY_MIN_NS, image(MISSING_MAX)).0, "one has rested");
        missing.found(image(4));
        assert!(missing.miss(0, image(MISSING_MAX + 1)).0, "one is here");
    }
}
