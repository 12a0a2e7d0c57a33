//! Where edges have said that a session's cell is, if that exists once in the domain (frame `Lead`).
//!
//! A lead proves nothing: it changes the order in which shards are asked, and only the promise decides. Edges whose leads go in a
//! circle delay a session: each fourth lead counts as a rejection, after which the others have their turn.

use alloc::{string::String, vec::Vec};
use marram_wire::frame::Lead;

/// So many leads are followed at once.
const LEADS_MAX: u8 = 3;

/// What a session was told since it last had a promise.
#[derive(Debug, Default)]
pub(super) struct Leads {
    /// The edges and shards of the last lead, the better one first, without those that refused the session since.
    to: Vec<(String, u8)>,
    /// Leads since the promise, or since there were too many.
    count: u8,
}

impl Leads {
    /// The shards to ask first, the better one first.
    pub(super) fn to(&self) -> impl Iterator<Item = (&str, u8)> {
        self.to.iter().map(|(edge, shard)| (&edge[..], *shard))
    }

    /// A shard leads to others, which replace those before. None are left if that shard names itself or none, or if there were too
    /// many leads.
    pub(super) fn follow(&mut self, lead: Lead, by: Option<(&str, u8)>) {
        self.count = self.count.saturating_add(1);
        self.to.clear();
        if self.count <= LEADS_MAX {
            let to = [(lead.edge, lead.shard), (lead.backup, lead.backup_shard)];
            let others = |(edge, shard): &(String, u8)| !edge.is_empty() && by != Some((&edge[..], *shard));
            self.to.extend(to.into_iter().filter(others));
        }
    }

    /// A shard refuses the session, or does not answer.
    pub(super) fn refused(&mut self, by: Option<(&str, u8)>) {
        self.to.retain(|(edge, shard)| by != Some((&edge[..], *shard)));
    }

    /// Whether the last lead was one too many. The count starts again then.
    pub(super) fn were_too_many(&mut self) -> bool {
        let too_many = self.count > LEADS_MAX;
        if too_many {
            self.count = 0;
        }
        too_many
    }
}
