//! What the frames of a hall's clients show: where they are led, and which edges ask them.

use crate::{
    position::ShardPosition,
    watch::rare::{Counts, Rare},
};
use marram_wire::{frame::Promise, id::SessionId};
use std::collections::BTreeMap;

/// A client, or a server, as edges have treated it.
#[derive(Debug, Default)]
struct ClientTrack {
    /// Whether the last answer to it led it elsewhere.
    is_led: bool,
    /// The edge that asked it last, until that has told it that it goes on.
    asked_by: Option<ShardPosition>,
    /// The edges that have told it so, how often in all.
    goes_on: u64,
    /// Whether it is a server.
    is_server: bool,
}

/// The clients of halls.
#[derive(Debug, Default)]
pub(crate) struct Halls(BTreeMap<SessionId, ClientTrack>);

impl Halls {
    /// An edge leads a client elsewhere.
    pub(crate) fn led(&mut self, client: SessionId, counts: &mut Counts) {
        let track = self.0.entry(client).or_default();
        counts.add(Rare::HallLed, 1);
        counts.add(Rare::HallLedTwice, u64::from(track.is_led));
        track.is_led = true;
    }

    /// An edge asks a client's end for its promise.
    pub(crate) fn asked(&mut self, position: ShardPosition, promise: &Promise, counts: &mut Counts) {
        if !promise.shared {
            return;
        }
        let track = self.0.entry(promise.session).or_default();
        track.is_led = false;
        let before = track.asked_by.replace(position);
        let by_both = u64::from(before.is_some_and(|before| before != position));
        track.is_server = !promise.server.is_empty();
        if track.is_server {
            return counts.add(Rare::ServerAskedByBoth, by_both);
        }
        counts.add(Rare::PortAskedByBoth, by_both);
        let begins_again = promise.live.is_none() && before.is_some();
        counts.add(Rare::JoinLost, u64::from(begins_again));
    }

    /// An edge tells a client that it goes on.
    pub(crate) fn chosen(&mut self, client: SessionId, counts: &mut Counts) {
        let Some(track) = self.0.get_mut(&client) else { return };
        track.asked_by = None;
        track.goes_on += 1;
        if track.is_server {
            counts.add(Rare::ServerConnected, 1);
            return counts.add(Rare::ServerResumed, u64::from(track.goes_on > 1));
        }
        counts.add(Rare::PortResumed, u64::from(track.goes_on > 1));
    }
}
