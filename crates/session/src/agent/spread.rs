//! Which of several equally near edges a new session asks: the one with the least load, by what the edges tell.
//!
//! Sessions that share a cell must meet at one edge, and an agent learns only from a session's promise whether its app has such
//! cells. So the sessions of an app ask the first edge of the list until one of them was promised.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
};

/// Apps that are remembered. Sessions of further ones are not spread.
const APPS_MAX: usize = 1_024;
/// For how long an edge that refused an app is asked after the others: it may get the app, or a connection to its server.
const REFUSED_NS: u64 = 5_000_000_000;

/// What an agent knows of the apps of its clients.
#[derive(Debug)]
pub(super) struct Spread {
    enabled: bool,
    /// Apps whose sessions have cells of their own, and the edges that refused them, until when.
    apps: BTreeMap<String, BTreeMap<u16, u64>>,
}

impl Spread {
    pub(super) fn new(enabled: bool) -> Self {
        Self { enabled, apps: BTreeMap::new() }
    }

    /// An owner has told whether the sessions of this app share cells.
    pub(super) fn learned(&mut self, app: &str, shared: bool) {
        if shared || !self.enabled {
            self.apps.remove(app);
        } else if self.apps.len() < APPS_MAX && !self.apps.contains_key(app) {
            self.apps.insert(app.into(), BTreeMap::new());
        }
    }

    /// An edge has refused a session of this app, or has not answered.
    pub(super) fn refused(&mut self, now_ns: u64, app: &str, edge: u16) {
        if let Some(refusals) = self.apps.get_mut(app) {
            refusals.insert(edge, now_ns.saturating_add(REFUSED_NS));
        }
    }

    /// The edges that new sessions of this app ask after the others; none if they all ask the first one.
    pub(super) fn avoided(&self, now_ns: u64, app: &str) -> Option<BTreeSet<u16>> {
        let refusals = self.apps.get(app)?;
        let refuses = refusals.iter().filter(|(_, until_ns)| now_ns < **until_ns);
        Some(refuses.map(|(edge, _)| *edge).collect())
    }
}
