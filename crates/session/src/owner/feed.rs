//! Keepers: recorders and edges that stand by are fed with what the cell consumes, beside the ends.
//!
//! They make a recovery faster and nothing safer (DESIGN.md section 5.6): nothing waits for them, no end forgets anything because
//! of them, and one that lags is dropped and begins again with a checkpoint. A keeper that joins a session under way gets a full
//! checkpoint first; what is consumed behind it follows at once, while its bytes are still on their way.

use super::{Effect, Owner, Phase, side::Message};
use alloc::{
    collections::VecDeque,
    format,
    string::{String, ToString},
    vec::Vec,
};
use bytes::{Bytes, BytesMut};
use marram_wire::{
    frame::{
        Acknowledged, Base, Channel, CheckpointMeta, CheckpointPart, Code, Ended, Fed, Frame, Keep, Renewed,
        Standby, Truncate,
    },
    id::Port,
    limits::{CHECKPOINT_WINDOW, FEED_WINDOW, PART_SIZE, REPLAY_LAG_MAX, charge},
    log::Event,
};

/// Outputs that ends received are told to keepers that replay after so many.
const TELL_EVERY: u64 = 64;
/// Checkpoints on their way to one keeper at a time.
const PARCELS_MAX: usize = 2;

/// Names a keeper within one shard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct KeeperId(pub u64);

/// How far a keeper is, for listings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fill {
    /// Which.
    pub keeper: KeeperId,
    /// Whether it has all that it takes to go on without this owner, but for what is on its way.
    pub ready: bool,
    /// Bytes that it has not acknowledged.
    pub behind: u64,
    /// Entries that it has not replayed, if it replays as it goes: as far as it has said.
    pub unreplayed: Option<u64>,
}

/// A checkpoint on its way.
#[derive(Debug)]
struct Parcel {
    meta: CheckpointMeta,
    took: Vec<u64>,
    bytes: Bytes,
    /// None before it was announced.
    sent: Option<usize>,
}

/// One keeper.
#[derive(Debug)]
struct Feed {
    keeper: KeeperId,
    channel: Channel,
    hot: bool,
    /// Whether entries go there; else it waits for the next full checkpoint.
    begun: bool,
    /// The checkpoint that it begins with, until it is sealed.
    base: Option<u32>,
    /// Whether it has that.
    ready: bool,
    parcels: VecDeque<Parcel>,
    /// Bytes of them that it has not stored.
    flying: u64,
    /// Bytes of entries and messages that it has not acknowledged.
    behind: u64,
    /// Of one that replays: entries that it was fed and has not replayed, and the fewest that there were since it was ready. It
    /// begins with all that came while its checkpoint was on its way.
    unreplayed: u64,
    unreplayed_min: u64,
}

impl Feed {
    /// It has what it begins with.
    fn is_ready(&mut self) {
        if !self.ready {
            self.ready = true;
            self.unreplayed_min = self.unreplayed;
        }
    }

    /// It has replayed so many more. False if that is more than it was fed.
    fn replayed(&mut self, entries: u64) -> bool {
        let Some(left) = self.unreplayed.checked_sub(entries).filter(|_| self.hot) else { return false };
        self.unreplayed = left;
        self.unreplayed_min = self.unreplayed_min.min(left);
        true
    }

    /// By how many entries it has fallen behind since it was ready.
    fn fell_behind(&self) -> u64 {
        if self.ready { self.unreplayed - self.unreplayed_min } else { 0 }
    }
}

/// The keepers of one owner.
#[derive(Debug, Default)]
pub(super) struct Keeping {
    feeds: Vec<Feed>,
    /// Outputs that ends received since keepers were told.
    untold: u64,
    /// The edge that stands by, as ends were told.
    told: Option<(String, u8)>,
}

impl Owner {
    /// Has a keeper keep the session from now on, over this channel of its wire. `hot` if it is to replay as it goes.
    pub fn keep_at(&mut self, keeper: KeeperId, channel: Channel, hot: bool, out: &mut Vec<Effect>) {
        self.keeping.feeds.push(Feed {
            keeper,
            channel,
            hot,
            begun: false,
            base: None,
            ready: false,
            parcels: VecDeque::new(),
            flying: 0,
            behind: 0,
            unreplayed: 0,
            unreplayed_min: 0,
        });
        if !self.opened && self.log.end() == 0 {
            let keep = self.keep_frame();
            self.begin_feeds(None, &keep, out);
            for feed in &mut self.keeping.feeds {
                if feed.begun && feed.base.is_none() {
                    feed.is_ready();
                }
            }
        } else if self.phase == Phase::Running {
            self.cover_if_due(out);
        }
    }

    /// A keeper is gone, or not wanted any more.
    pub fn keep_no_more(&mut self, keeper: KeeperId, out: &mut Vec<Effect>) {
        if let Some(at) = self.keeping.feeds.iter().position(|feed| feed.keeper == keeper) {
            let feed = self.keeping.feeds.swap_remove(at);
            let (channel, code) = (feed.channel, Code::Finished);
            let ended = Ended { channel, code, reason: "the session is not kept here any more".to_string() };
            out.push(Effect::Feed(keeper, ended.into()));
        }
    }

    /// Tells the ends which edge stands by, if they were told another one.
    pub fn tell_standby(&mut self, standby: Option<(&str, u8)>, out: &mut Vec<Effect>) {
        let told = self.keeping.told.as_ref().map(|(edge, shard)| (&edge[..], *shard));
        if told == standby || self.phase != Phase::Running {
            return;
        }
        self.keeping.told = standby.map(|(edge, shard)| (edge.to_string(), shard));
        self.tell_ends_standby(out);
    }

    /// Once more, after a new generation.
    pub(super) fn tell_ends_standby_again(&self, out: &mut Vec<Effect>) {
        if self.keeping.told.is_some() {
            self.tell_ends_standby(out);
        }
    }

    fn tell_ends_standby(&self, out: &mut Vec<Effect>) {
        let (edge, shard) = self.keeping.told.clone().unwrap_or_default();
        for side in &self.sides {
            if let Some(channel) = side.channel {
                let standby = Standby { channel, edge: edge.clone(), shard };
                out.push(Effect::Send(side.port, standby.into()));
            }
        }
    }

    /// The session's keepers.
    pub fn keepers(&self) -> impl Iterator<Item = Fill> {
        self.keeping.feeds.iter().map(|feed| Fill {
            keeper: feed.keeper,
            ready: feed.ready,
            behind: feed.behind + feed.flying,
            unreplayed: feed.hot.then_some(feed.unreplayed),
        })
    }

    /// A frame from a keeper.
    pub fn from_keeper(&mut self, keeper: KeeperId, frame: Frame, out: &mut Vec<Effect>) {
        let Some(at) = self.keeping.feeds.iter().position(|feed| feed.keeper == keeper) else { return };
        let feed = &mut self.keeping.feeds[at];
        match frame {
            Frame::Credit(credit) => feed.behind = feed.behind.saturating_sub(credit.bytes),
            Frame::Stored(stored) => {
                feed.flying = feed.flying.saturating_sub(stored.bytes);
                if stored.complete.is_some() {
                    feed.is_ready();
                }
                send_parts(feed, out);
            }
            Frame::Replayed(replayed) => {
                if !feed.replayed(replayed.entries) {
                    self.lose(at, Code::Protocol, "it replayed what it was not fed".into(), out);
                }
            }
            Frame::Reject(reject) => self.lose(at, reject.code, reject.reason, out),
            Frame::Superseded(_) => self.lose(at, Code::Superseded, "it keeps another owner's".into(), out),
            Frame::Ended(ended) => self.lose(at, ended.code, ended.reason, out),
            _ => self.lose(at, Code::Protocol, "it sent a frame out of turn".into(), out),
        }
    }

    /// A keeper is of no use. Nothing waits for it; it may be asked again later.
    fn lose(&mut self, at: usize, code: Code, reason: String, out: &mut Vec<Effect>) {
        let feed = self.keeping.feeds.swap_remove(at);
        let ended = Ended { channel: feed.channel, code, reason: reason.clone() };
        out.push(Effect::Feed(feed.keeper, ended.into()));
        out.push(Effect::KeeperLost(feed.keeper, code, reason));
    }

    fn lose_all(&mut self, which: impl Fn(&Feed) -> bool, reason: &str, out: &mut Vec<Effect>) {
        for at in (0..self.keeping.feeds.len()).rev() {
            if which(&self.keeping.feeds[at]) {
                self.lose(at, Code::Superseded, reason.to_string(), out);
            }
        }
    }

    /// The session is over here: keepers may forget it, or follow whoever owns it next.
    pub(super) fn end_feeds(&mut self, code: Code, reason: &str, out: &mut Vec<Effect>) {
        for feed in core::mem::take(&mut self.keeping.feeds) {
            let ended = Ended { channel: feed.channel, code, reason: reason.to_string() };
            out.push(Effect::Feed(feed.keeper, ended.into()));
        }
    }

    /// A generation is being asked for. What keepers have is of use only if the cell lives through it.
    pub(super) fn renew_feeds(&mut self, out: &mut Vec<Effect>) {
        let live = self.live.is_some() && self.follow.is_none();
        let fresh = self.log.end() == 0 && !self.opened;
        let reason = "the session is opened anew";
        self.lose_all(|feed| feed.base.is_some() || !(live || fresh), reason, out);
        for feed in &mut self.keeping.feeds {
            let renewed = Renewed { channel: feed.channel, generation: self.generation };
            out.extend(feed.begun.then(|| Effect::Feed(feed.keeper, renewed.into())));
        }
    }

    /// The cell did not live through a new generation.
    pub(super) fn lose_feeds(&mut self, out: &mut Vec<Effect>) {
        self.lose_all(|_| true, "the session's cell is rebuilt", out);
    }

    fn keep_frame(&self) -> Keep {
        Keep {
            channel: 0,
            session: self.session,
            generation: self.generation,
            app: self.policy.app.clone(),
            image: self.image,
            hosts: self.sides.iter().map(|side| side.host).collect(),
            hot: false,
            log_offset: self.log.end(),
            head: self.digest.0,
            last_ns: self.log.cursor.last_ns,
            took: self.sides.iter().map(|side| side.took).collect(),
        }
    }

    /// Whether a keeper waits for a checkpoint to begin with.
    pub(super) fn awaits_base(&self) -> bool {
        self.keeping.feeds.iter().any(|feed| !feed.begun)
    }

    /// Keepers that waited begin where the cell stands now, with this checkpoint, which is being taken.
    pub(super) fn feeds_begin(&mut self, number: u32, out: &mut Vec<Effect>) {
        if self.awaits_base() {
            let keep = self.keep_frame();
            self.begin_feeds(Some(number), &keep, out);
        }
    }

    fn begin_feeds(&mut self, base: Option<u32>, keep: &Keep, out: &mut Vec<Effect>) {
        for feed in self.keeping.feeds.iter_mut().filter(|feed| !feed.begun) {
            (feed.begun, feed.base) = (true, base);
            let keep = Keep { channel: feed.channel, hot: feed.hot, ..keep.clone() };
            out.push(Effect::Feed(feed.keeper, keep.into()));
        }
    }

    /// The entry that was just logged, at `offset`, and what it consumed.
    pub(super) fn feed_entry(
        &mut self,
        offset: u64,
        event: Event,
        message: Option<Message>,
        out: &mut Vec<Effect>,
    ) {
        if self.keeping.feeds.is_empty() {
            return;
        }
        let mut entry = BytesMut::from(self.log.since(offset));
        self.seal.log(offset, &mut entry);
        let entry = entry.freeze();
        let tag = self.digest.tag();
        let from = match event {
            Event::Message(port) => u8::from(port != Port::CLIENT),
            _ => 2,
        };
        let (close, payload) = message.map(|message| (message.close, message.payload)).unwrap_or_default();
        let cost = charge(payload.len()) + entry.len() as u64;
        for at in (0..self.keeping.feeds.len()).rev() {
            let feed = &mut self.keeping.feeds[at];
            if !feed.begun {
                continue;
            }
            feed.behind += cost;
            if feed.behind > FEED_WINDOW {
                self.lose(at, Code::Busy, "it lags behind".to_string(), out);
                continue;
            }
            feed.unreplayed += u64::from(feed.hot);
            if feed.fell_behind() > REPLAY_LAG_MAX {
                let reason = format!("it replays too slowly: {} entries behind", feed.unreplayed);
                out.push(Effect::StandbySlow(feed.keeper));
                self.lose(at, Code::Busy, reason, out);
                continue;
            }
            let (channel, entry, payload) = (feed.channel, entry.clone(), payload.clone());
            let fed = Fed { channel, entry, tag, from, close, payload };
            out.push(Effect::Feed(feed.keeper, fed.into()));
        }
    }

    /// A checkpoint is sealed.
    pub(super) fn feed_checkpoint(
        &mut self,
        meta: &CheckpointMeta,
        bytes: &Bytes,
        took: &[u64],
        out: &mut Vec<Effect>,
    ) {
        for at in (0..self.keeping.feeds.len()).rev() {
            let feed = &mut self.keeping.feeds[at];
            let wanted = feed.begun && (!feed.hot || feed.base == Some(meta.number));
            if !wanted {
                continue;
            }
            if feed.parcels.len() >= PARCELS_MAX {
                self.lose(at, Code::Busy, "it is slow to store checkpoints".to_string(), out);
                continue;
            }
            feed.base = feed.base.filter(|number| *number != meta.number);
            let (meta, took, bytes) = (meta.clone(), took.to_vec(), bytes.clone());
            feed.parcels.push_back(Parcel { meta, took, bytes, sent: None });
            send_parts(feed, out);
        }
    }

    /// No checkpoint came of it.
    pub(super) fn feed_no_checkpoint(&mut self, out: &mut Vec<Effect>) {
        self.lose_all(|feed| feed.base.is_some(), "no checkpoint could be taken", out);
    }

    /// Ends hold a checkpoint, and forget what it covers.
    pub(super) fn feed_covered(&mut self, log_offset: u64, tag: [u8; 8], out: &mut Vec<Effect>) {
        for feed in self.keeping.feeds.iter().filter(|feed| feed.begun) {
            let truncate = Truncate { channel: feed.channel, log_offset, tag, sent: 0 };
            out.push(Effect::Feed(feed.keeper, truncate.into()));
        }
        self.feed_received(TELL_EVERY, out);
    }

    /// Ends have received so many more outputs.
    pub(super) fn feed_received(&mut self, count: u64, out: &mut Vec<Effect>) {
        if self.keeping.feeds.is_empty() {
            return;
        }
        self.keeping.untold += count;
        if self.keeping.untold < TELL_EVERY {
            return;
        }
        self.keeping.untold = 0;
        let received: Vec<u64> = self.sides.iter().map(super::Side::acknowledged).collect();
        for feed in self.keeping.feeds.iter().filter(|feed| feed.begun && feed.hot) {
            let told = Acknowledged { channel: feed.channel, received: received.clone() };
            out.push(Effect::Feed(feed.keeper, told.into()));
        }
    }
}

/// Sends parts of checkpoints within the window, one checkpoint after the other.
fn send_parts(feed: &mut Feed, out: &mut Vec<Effect>) {
    let (keeper, channel) = (feed.keeper, feed.channel);
    while let Some(parcel) = feed.parcels.front_mut() {
        let Some(sent) = &mut parcel.sent else {
            let base = Base { channel, meta: parcel.meta.clone(), took: parcel.took.clone() };
            out.push(Effect::Feed(keeper, base.into()));
            parcel.sent = Some(0);
            continue;
        };
        if *sent == parcel.bytes.len() {
            // The next one follows when this one is stored, so that each part belongs to the one announced last.
            if feed.flying > 0 {
                return;
            }
            feed.parcels.pop_front();
            continue;
        }
        if feed.flying >= CHECKPOINT_WINDOW {
            return;
        }
        let end = parcel.bytes.len().min(*sent + PART_SIZE);
        let bytes = parcel.bytes.slice(*sent..end);
        *sent = end;
        feed.flying += bytes.len() as u64;
        out.push(Effect::Feed(keeper, CheckpointPart { channel, bytes }.into()));
    }
}
