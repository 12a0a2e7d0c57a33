//! Checkpoints and other edges: full checkpoints for keepers alone, and the list of the ends after a takeover (docs/protocol.md,
//! "Checkpoints").
//!
//! One apart is taken also while another checkpoint is on its way to the ends: only copies and seals exclude each other. So an end
//! that is slow does not delay a move.

use super::{
    OwnerPolicy,
    about::About,
    checkpointer::{Awaited, Checkpointer, Taken, name_of},
    ends::Ends,
    follow::Restored,
    log::Log,
    room::holders,
};
use alloc::vec::Vec;
use marram_wire::frame::CheckpointMeta;

impl Checkpointer {
    /// Whether keepers can begin with a full checkpoint for them alone: the ends' list begins with a full one since which the executor
    /// knows all changes, so that a keeper can go on with that list.
    fn can_take_apart(&self) -> bool {
        self.copied.is_some() && self.copied_full.is_some() && self.copied_full == self.held_full
    }

    /// Whether one apart is the next one to be copied.
    pub(super) fn is_apart_due(&self, about: &About, awaited: Awaited) -> bool {
        let is_sealed = self.taken.is_none() || self.sending.is_some();
        let able = !about.keeps_checkpoints() || self.can_take_apart();
        let is_wanted = matches!(awaited, Awaited::Apart | Awaited::Pages | Awaited::Own);
        is_wanted && able && self.apart.is_none() && is_sealed
    }

    /// Whether a keeper waits for a full checkpoint that the ends get as well.
    pub(super) fn awaits_full(&self, awaited: Awaited) -> bool {
        awaited == Awaited::Full || awaited == Awaited::Apart && !self.can_take_apart()
    }

    /// The copy was sealed, if it is for keepers alone: describes it, and what was taken. It is over with that.
    pub(super) fn sealed_apart(&mut self, about: &About, size: u64) -> Option<(CheckpointMeta, Taken)> {
        let taken = self.apart.take()?;
        let Taken { number, kind, log_offset, .. } = taken;
        Some((CheckpointMeta { generation: about.generation(), number, kind, log_offset, size }, taken))
    }

    /// The cell was fed by another owner, and restored from this, if from any checkpoint. The next one is due soon, and builds on the full
    /// one since which the cell knows all changes, if every holder's list begins with it.
    pub(super) fn took_over(&mut self, restored: Option<Restored>, policy: &OwnerPolicy, ends: &Ends) {
        let (full, copied) = (restored.map(|it| it.full), restored.map(|it| it.last));
        let lists = || {
            let promised =
                holders(policy, ends).into_iter().filter_map(|index| ends[index].promised.as_ref());
            promised.map(|promised| &promised.checkpoints)
        };
        let begins = |list: &Vec<CheckpointMeta>| list.first().map(name_of) == full;
        let list = lists().next().filter(|list| full.is_some() && begins(list));
        let replayed_ns = self.uncovered.ns();
        self.restored(list.map_or(&[], Vec::as_slice), policy, ends);
        // Perhaps no end holds a checkpoint of it.
        self.uncovered.spent(replayed_ns);
        self.copied = copied;
        self.held = self.held.filter(|held| Some(*held) == copied);
        self.builds_on_fed = self.can_merge() || self.has_delta_base();
        self.full_requested = !self.builds_on_fed;
        self.is_fed = true;
    }

    /// Whether the next checkpoint for the ends builds on what another owner made.
    pub(super) fn builds_on_fed(&self) -> bool {
        self.builds_on_fed
    }

    /// Whether the session came from another owner and no checkpoint of this one is held: then how much the ends keep that none
    /// covers is not known.
    pub(super) fn is_fed(&self) -> bool {
        self.is_fed
    }

    /// One for keepers alone is lost before it is sealed.
    pub(super) fn drop_apart(&mut self) -> bool {
        let is_lost = self.apart.take().is_some();
        if is_lost {
            self.apart_base = None;
        }
        is_lost
    }

    /// Whether a replay of what the cell did since the last copy takes longer than the app's target.
    pub(super) fn is_replay_long(&self, about: &About) -> bool {
        self.uncovered.is_much(about.session, about.policy.recovery_target_ns)
    }

    /// A backup has stored pages of this size.
    pub(super) fn pages_held(&mut self, size: u64) {
        self.uncovered.held(size);
    }

    /// Whether no end holds a checkpoint that leads to where this owner's log begins. Then its cell was a standby, and
    /// the standby was sent a checkpoint that the ends did not have yet.
    pub(super) fn is_ahead_of_ends(&self, log: &Log) -> bool {
        log.floor() > self.covered.as_ref().map_or(0, |covered| covered.log_offset)
    }
}
