//! Keepers: recorders and standby edges, which are fed with what the cell consumes, in addition to the ends.
//!
//! They make a recovery faster, not safer (docs/protocol-keepers.md, "Keepers: the feed"): nothing waits for them, no
//! end deletes anything because of them, and one that lags is dropped and begins again with a checkpoint. A keeper that
//! joins an active session gets a full checkpoint first. What is consumed after that checkpoint follows at once, while
//! its bytes are still in flight.

use super::{
    OwnerEffect,
    about::About,
    checkpointer::Awaited,
    copy_window::CopyWindow,
    end_state::{EndState, Message},
    ends::Ends,
    log::Log,
    page_feed::PageFeed,
    protection::Place,
    replica_stream::{CheckpointTransfer, Feed, KeeperId, ReplicaStream},
};
use crate::invariant::{BrokenInvariant, holds};
use crate::trace;
use crate::trace::TraceContext;
use alloc::{
    boxed::Box,
    collections::VecDeque,
    format,
    string::{String, ToString},
    vec::Vec,
};
use bytes::Bytes;
use marram_wire::{
    frame::{
        Acknowledged, Base, Channel, CheckpointMeta, CheckpointPart, Code, Ended, Fed, Frame, HandOver, Keep,
        KeepOn, Received, Renewed, Standby, Truncate,
    },
    header::Many,
    id::Port,
    limits::{COPY_WINDOW_MAX, FEED_WINDOW, PART_SIZE, REPLAY_LAG_MAX, REPLAYED_EVERY, charge},
    log::Event,
};

/// After this many outputs that the ends received, hot keepers are informed.
const REPORT_EVERY: u64 = 64;
/// Maximum of checkpoints in flight to one keeper.
const TRANSFERS_MAX: usize = 2;

/// A keeper's progress, for listings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplicaProgress {
    /// The keeper.
    pub keeper: KeeperId,
    /// Whether it has everything for a takeover, except what is in flight.
    pub ready: bool,
    /// Bytes that it has not acknowledged.
    pub behind: u64,
    /// Entries that it has not replayed, as far as it has reported; none for a keeper that does not replay.
    pub unreplayed: Option<u64>,
}

/// How far the checkpoint is that a keeper is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyProgress {
    /// Bytes that were sent.
    pub sent: u64,
    /// All of its bytes.
    pub size: u64,
    /// Whether the keeper could take more, and this is not allowed ([`super::Owner::allow_copy`]).
    pub waits: bool,
}

/// The keepers of one owner.
#[derive(Debug, Default)]
pub(super) struct Replicas {
    streams: Vec<ReplicaStream>,
    /// Outputs that the ends received since the last report to keepers.
    unreported_outputs: u64,
    /// The standby edge that was last reported to the ends.
    reported_standby: Option<(String, u8)>,
    /// What the handlers of an entry take, in nanoseconds: a mean in which later entries count more.
    entry_ns: u64,
}

/// The longest replay that may be left when a session is handed over, in nanoseconds, and as much again that it runs after that: the other
/// edge must be done before the move is given up (five seconds). An edge that is no faster than this one, or so far away that what it has
/// replayed is known late, would not come closer while the session is busy.
const HAND_OVER_REPLAY_NS: u64 = 2_000_000_000;
/// The same of a warm standby: all of it is replayed while the session's clients wait.
const WARM_REPLAY_NS: u64 = 500_000;

impl Replicas {
    /// A handler took this long: a replay takes as long again.
    pub(super) fn ran(&mut self, cost_ns: u64) {
        self.entry_ns = self.entry_ns - self.entry_ns / 16 + cost_ns / 16;
    }

    /// How many entries may be left to replay when a session is handed over: those that take no longer than [`HAND_OVER_REPLAY_NS`], but not
    /// fewer than a keeper that has replayed all may not have reported yet.
    fn left_max(&self) -> u64 {
        (HAND_OVER_REPLAY_NS / self.entry_ns.max(1)).clamp(2 * REPLAYED_EVERY, REPLAY_LAG_MAX)
    }

    /// The same of a warm standby, which replays none of them before: its clients wait for that. One that was logged meanwhile is no reason
    /// for another checkpoint.
    fn left_warm_max(&self) -> u64 {
        (WARM_REPLAY_NS / self.entry_ns.max(1)).clamp(1, REPLAY_LAG_MAX)
    }

    /// Whether this keeper would have too much to replay if it took the session over.
    fn is_far_behind(&self, stream: &ReplicaStream) -> bool {
        let max = if stream.feed == Feed::Kept { self.left_warm_max() } else { self.left_max() };
        stream.unreplayed > max
    }

    /// Whether there is a keeper.
    fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// Adds a keeper, which waits for a full checkpoint to begin with.
    pub(super) fn add(&mut self, keeper: KeeperId, channel: Channel, feed: Feed, is_next: bool) {
        self.streams.push(ReplicaStream {
            keeper,
            channel,
            feed,
            is_next,
            streaming: false,
            begins_at: 0,
            handed_over: None,
            awaits_boundary: false,
            base: None,
            ready: false,
            transfers: VecDeque::new(),
            window: CopyWindow::default(),
            allowed: if feed == Feed::Moved || is_next { 0 } else { u64::MAX },
            behind: 0,
            unreplayed: 0,
            unreplayed_min: 0,
            copies: VecDeque::new(),
            places: VecDeque::new(),
            fed: 0,
            pages: (feed == Feed::WarmBackup).then(Box::default),
            stored: None,
        });
    }

    /// Keepers of a session that has not begun start with it and need no checkpoint.
    pub(super) fn start_with_session(&mut self, keep: &Keep, out: &mut Vec<OwnerEffect>) {
        self.start_waiting(None, keep, out);
        for stream in &mut self.streams {
            if stream.streaming && stream.base.is_none() {
                stream.mark_ready();
            }
        }
    }

    /// A keeper is disconnected, or not needed any more.
    pub(super) fn remove(&mut self, keeper: KeeperId, out: &mut Vec<OwnerEffect>) {
        if let Some(at) = self.streams.iter().position(|stream| stream.keeper == keeper) {
            let stream = self.streams.swap_remove(at);
            let (channel, code) = (stream.channel, Code::Finished);
            let ended = Ended { channel, code, reason: "the session is no longer kept here".to_string() };
            out.push(OwnerEffect::ToKeeper(keeper, ended.into()));
        }
    }

    /// Tells a keeper to take the session over. False if it has not all that it needs, or has too much of it to replay: while a
    /// large checkpoint is sent, much is logged. Also if it must have what a handler does that `runs`: then no other one begins.
    pub(super) fn hand_over(
        &mut self,
        (keeper, ends): (KeeperId, &Ends),
        session_ns: i64,
        runs: bool,
        out: &mut Vec<OwnerEffect>,
    ) -> bool {
        let is_another = |stream: &ReplicaStream| stream.keeper != keeper && stream.handed_over.is_some();
        if self.streams.iter().any(is_another) {
            return false;
        }
        // One that is warm replays what it holds first.
        let is_ready = |stream: &&ReplicaStream| {
            stream.keeper == keeper && stream.is_settled() && !self.is_far_behind(stream)
        };
        let Some(at) = self.streams.iter().position(|stream| is_ready(&stream)) else { return false };
        let stream = &mut self.streams[at];
        stream.awaits_boundary = runs;
        if runs {
            return false;
        }
        stream.handed_over.get_or_insert(0);
        if stream.feed == Feed::Kept {
            // It keeps none of the outputs that it produces again.
            let reported = Acknowledged { channel: stream.channel, received: received(ends) };
            out.push(OwnerEffect::ToKeeper(keeper, reported.into()));
        }
        let hand_over = HandOver { channel: stream.channel, session_ns };
        out.push(OwnerEffect::ToKeeper(keeper, hand_over.into()));
        true
    }

    /// Whether a standby that is to take the session over needs another checkpoint for that: it would have too much to replay.
    pub(super) fn needs_checkpoint(&self, keeper: KeeperId) -> bool {
        let is_it = |stream: &ReplicaStream| stream.keeper == keeper && stream.feed == Feed::Kept;
        self.streams.iter().any(|it| is_it(it) && it.is_settled() && self.is_far_behind(it))
    }

    /// A checkpoint of the ends' list was copied at the end of the last entry.
    pub(super) fn copied(&mut self, number: u32) {
        self.streams.iter_mut().for_each(|stream| stream.copied(number));
    }

    /// A keeper is fed no more, and not told.
    pub(super) fn set_aside(&mut self, keeper: KeeperId) {
        self.streams.retain(|stream| stream.keeper != keeper);
    }

    /// How far the checkpoint is that a keeper is sent now. None if it is sent none.
    pub(super) fn copy_progress(&self, keeper: KeeperId) -> Option<CopyProgress> {
        let stream = self.streams.iter().find(|stream| stream.keeper == keeper)?;
        let transfer = stream.transfers.front()?;
        let (sent, size) = (transfer.sent.unwrap_or(0) as u64, transfer.bytes.len() as u64);
        let waits = stream.allowed == 0 && sent < size && !stream.window.is_full();
        Some(CopyProgress { sent, size, waits })
    }

    /// Sends a keeper parts of checkpoints now, the last of them when this many bytes are reached, or as many as it can take and
    /// later more if there is no limit (`u64::MAX`). Returns how many bytes were sent.
    pub(super) fn allow_copy(
        &mut self,
        now_ns: u64,
        keeper: KeeperId,
        bytes: u64,
        out: &mut Vec<OwnerEffect>,
    ) -> u64 {
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.keeper == keeper) else { return 0 };
        let before = stream.window.in_flight();
        stream.allowed = bytes;
        send_parts(stream, now_ns, out);
        if bytes < u64::MAX {
            stream.allowed = 0;
        }
        stream.window.in_flight() - before
    }

    /// The backup, if there is one: whether it has all that it begins with, so that it can confirm epochs.
    pub(super) fn backup(&self) -> Option<bool> {
        let backup = self.streams.iter().find(|stream| stream.is_backup())?;
        Some(backup.streaming && backup.ready)
    }

    /// Whether this keeper has all that it begins with as a backup, and is not far behind.
    pub(super) fn is_able(&self, keeper: KeeperId) -> bool {
        let is_it = |stream: &&ReplicaStream| stream.keeper == keeper && stream.feed.is_backup();
        let stream = self.streams.iter().find(is_it);
        stream.is_some_and(|it| it.streaming && it.ready && it.behind <= FEED_WINDOW / 4)
    }

    /// The channel of a keeper that is sent entries.
    pub(super) fn streaming_on(&self, keeper: KeeperId) -> Option<Channel> {
        let stream = self.streams.iter().find(|stream| stream.keeper == keeper && stream.streaming);
        stream.map(|stream| stream.channel)
    }

    /// This keeper is the backup from now on. The one before is removed by the caller.
    pub(super) fn change_backup(&mut self, keeper: KeeperId) {
        for stream in &mut self.streams {
            if stream.keeper == keeper {
                (stream.is_next, stream.allowed) = (false, u64::MAX);
            }
        }
    }

    /// What the backup is fed that holds it. One that is to be the next backup gets the log.
    fn pages(&self) -> impl Iterator<Item = &PageFeed> {
        self.streams.iter().filter(|stream| !stream.is_next).filter_map(|stream| stream.pages.as_deref())
    }

    /// What is fed to a warm backup, beside the checkpoint with which it begins.
    pub(super) fn page_feed_mut(&mut self) -> Option<&mut PageFeed> {
        let ready = |stream: &&mut ReplicaStream| stream.streaming && stream.ready && !stream.is_next;
        self.streams.iter_mut().filter(ready).find_map(|stream| stream.pages.as_deref_mut())
    }

    /// The warm backup.
    pub(super) fn backup_keeper(&self) -> Option<KeeperId> {
        let is_it = |stream: &&ReplicaStream| stream.pages.is_some() && !stream.is_next;
        self.streams.iter().find(is_it).map(|stream| stream.keeper)
    }

    /// As [`Self::page_feed_mut`], of this keeper, ready or not.
    pub(super) fn page_feed_of(&mut self, keeper: KeeperId) -> Option<&mut PageFeed> {
        self.streams.iter_mut().find(|stream| stream.keeper == keeper)?.pages.as_deref_mut()
    }

    /// Whether a warm backup gets pages now, and not the log.
    pub(super) fn sends_pages(&self) -> bool {
        self.pages().any(PageFeed::waits)
    }

    /// The last checkpoint that a warm backup has stored, once.
    pub(super) fn take_stored(&mut self) -> Option<u32> {
        let mut backups = self.streams.iter_mut().filter(|stream| stream.pages.is_some() && !stream.is_next);
        backups.find_map(|stream| stream.stored.take())
    }

    /// Sends a warm backup the entries that waited. False if there are none.
    pub(super) fn send_waiting(&mut self, out: &mut Vec<OwnerEffect>) -> bool {
        let is_it = |stream: &&mut ReplicaStream| stream.pages.is_some() && !stream.is_next;
        let Some(stream) = self.streams.iter_mut().find(is_it) else {
            return false;
        };
        let waiting = stream.pages.as_mut().map(|pages| pages.leave_pages()).unwrap_or_default();
        let is_some = !waiting.is_empty();
        for (cost, fed) in waiting {
            stream.behind += cost;
            stream.fed += cost;
            out.push(OwnerEffect::ToKeeper(stream.keeper, fed.into()));
        }
        is_some
    }

    /// Bytes of entries that wait.
    pub(super) fn held_bytes(&self) -> u64 {
        self.pages().map(PageFeed::held_bytes).sum()
    }

    /// These ends were told to forget messages of this charge.
    pub(super) fn forgot(&mut self, told: &[(Port, u64)]) {
        self.streams
            .iter_mut()
            .filter_map(|stream| stream.pages.as_mut())
            .for_each(|pages| pages.forgot(told));
    }

    /// A copy that was not sealed is lost.
    pub(super) fn pages_lost(&mut self) {
        self.streams
            .iter_mut()
            .filter_map(|stream| stream.pages.as_mut())
            .for_each(|pages| pages.lose_copy());
    }

    /// Whether the cell waits for a keeper that lags: the backup, or one that is about to take the session over.
    pub(super) fn waits_for_one(&self) -> bool {
        self.streams.iter().any(|stream| stream.is_full(|| self.left_max()))
    }

    /// Whether a keeper was told to take the session over.
    pub(super) fn has_handed_over(&self) -> bool {
        self.streams.iter().any(|stream| stream.handed_over.is_some())
    }

    /// Whether this keeper is the backup.
    pub(super) fn is_backup(&self, keeper: KeeperId) -> bool {
        self.streams.iter().any(|stream| stream.keeper == keeper && stream.is_backup())
    }

    /// Whether a keeper takes the session over, or does so when a handler has ended: one other than the backup, or any if `stops`.
    pub(super) fn is_leaving(&self, stops: bool) -> bool {
        let takes = |stream: &ReplicaStream| stream.handed_over.is_some() || stream.awaits_boundary;
        self.streams.iter().any(|stream| (stops || !stream.feed.is_backup()) && takes(stream))
    }

    /// No keeper is to take the session over that was not told so.
    pub(super) fn take_no_boundary(&mut self) {
        self.streams.iter_mut().for_each(|stream| stream.awaits_boundary = false);
    }

    /// The log offset from which on a keeper is fed; none if it is not fed yet.
    pub(super) fn begins_at(&self, keeper: KeeperId) -> Option<u64> {
        let stream = self.streams.iter().find(|stream| stream.keeper == keeper && stream.streaming);
        stream.map(|stream| stream.begins_at)
    }

    /// Progress of the session's keepers.
    pub(super) fn progress(&self) -> impl Iterator<Item = ReplicaProgress> {
        self.streams.iter().map(|stream| ReplicaProgress {
            keeper: stream.keeper,
            ready: stream.ready,
            behind: stream.behind + stream.window.in_flight(),
            unreplayed: stream.feed.is_replayed().then_some(stream.unreplayed),
        })
    }

    /// Another edge stands by than was last reported to the ends. False if that is the same.
    pub(super) fn change_standby(&mut self, standby: Option<(&str, u8)>) -> bool {
        let reported = self.reported_standby.as_ref().map(|(edge, shard)| (&edge[..], *shard));
        let changed = reported != standby;
        if changed {
            self.reported_standby = standby.map(|(edge, shard)| (edge.to_string(), shard));
        }
        changed
    }

    /// Informs the ends again, after a new generation: an end that was away knows an older one.
    pub(super) fn tell_standby_again(&self, ends: &Ends, out: &mut Vec<OwnerEffect>) {
        if self.reported_standby.is_some() {
            self.tell_standby(ends, out);
        }
    }

    /// Informs the ends which edge is the standby.
    pub(super) fn tell_standby(&self, ends: &Ends, out: &mut Vec<OwnerEffect>) {
        let (edge, shard) = self.reported_standby.clone().unwrap_or_default();
        ends.send(|channel| Standby { channel, edge: edge.clone(), shard }.into(), out);
    }

    /// The place up to which the edge to which the session moves has everything, if that is a later one than before.
    pub(super) fn take_confirmed(&mut self) -> Option<Place> {
        self.streams.iter_mut().find(|stream| stream.feed == Feed::Moved)?.take_confirmed()
    }

    /// A frame from a keeper. It can lose only its own stream with it.
    pub(super) fn receive(
        &mut self,
        context: TraceContext,
        now_ns: u64,
        keeper: KeeperId,
        frame: Frame,
        out: &mut Vec<OwnerEffect>,
    ) {
        let Some(at) = self.streams.iter().position(|stream| stream.keeper == keeper) else {
            let (name, keeper) = (frame.name(), keeper.0);
            return trace!(context, "ignores {name} of keeper {keeper}, which is dropped");
        };
        let stream = &mut self.streams[at];
        let lost = match frame {
            Frame::Credit(credit) => match stream.behind.checked_sub(credit.bytes) {
                Some(behind) => {
                    stream.behind = behind;
                    return;
                }
                None => (Code::Protocol, "it acknowledged more than it was fed".into()),
            },
            Frame::Stored(stored) if stream.stored(now_ns, &stored) => {
                return send_parts(stream, now_ns, out);
            }
            Frame::Stored(_) => (Code::Protocol, "it acknowledged parts that it was not sent".into()),
            Frame::Replayed(replayed) if stream.replayed(replayed.entries) => return,
            Frame::Replayed(_) => (Code::Protocol, "it replayed entries that it was not fed".into()),
            Frame::Reject(reject) => (reject.code, reject.reason),
            Frame::Superseded(_) => (Code::Superseded, "another owner feeds it".into()),
            Frame::Ended(ended) => (ended.code, ended.reason),
            _ => (Code::Protocol, "it sent a frame that is not allowed".into()),
        };
        self.lose(context, at, lost.0, lost.1, out);
    }

    /// Removes a keeper that is of no use. Nothing waits for it; it may be asked again later.
    fn lose(
        &mut self,
        context: TraceContext,
        at: usize,
        code: Code,
        reason: String,
        out: &mut Vec<OwnerEffect>,
    ) {
        let stream = self.streams.swap_remove(at);
        trace!(context, "drops keeper {}: {code:?}: {reason}", stream.keeper.0);
        let ended = Ended { channel: stream.channel, code, reason: reason.clone() };
        out.push(OwnerEffect::ToKeeper(stream.keeper, ended.into()));
        out.push(OwnerEffect::KeeperLost(stream.keeper, code, reason));
    }

    fn lose_all(
        &mut self,
        context: TraceContext,
        which: impl Fn(&ReplicaStream) -> bool,
        reason: &str,
        out: &mut Vec<OwnerEffect>,
    ) {
        for at in (0..self.streams.len()).rev() {
            if which(&self.streams[at]) {
                self.lose(context, at, Code::Superseded, reason.to_string(), out);
            }
        }
    }

    /// The session ends on this edge: keepers may delete it, or be fed by its next owner.
    pub(super) fn end(&mut self, code: Code, reason: &str, out: &mut Vec<OwnerEffect>) {
        for stream in core::mem::take(&mut self.streams) {
            let ended = Ended { channel: stream.channel, code, reason: reason.to_string() };
            out.push(OwnerEffect::ToKeeper(stream.keeper, ended.into()));
        }
    }

    /// A generation is being opened. What keepers have stays useful only if it is `continued`: the cell survives it, or
    /// the session has not begun.
    pub(super) fn renew(&mut self, about: &About, continued: bool, out: &mut Vec<OwnerEffect>) {
        let reason = "the session is opened again";
        // What goes on here is not what another edge than the backup was handed.
        let is_left = |stream: &ReplicaStream| {
            about.has_backup() && !stream.feed.is_backup() && stream.handed_over.is_some()
        };
        let ends = |stream: &ReplicaStream| stream.base.is_some() || !continued || is_left(stream);
        self.lose_all(about.context(), ends, reason, out);
        for stream in &mut self.streams {
            stream.pages.iter_mut().for_each(|pages| pages.renew());
            let renewed = Renewed { channel: stream.channel, generation: about.generation() };
            out.extend(stream.streaming.then(|| OwnerEffect::ToKeeper(stream.keeper, renewed.into())));
        }
    }

    /// The session has begun already: keepers that were fed from its beginning on lack what came before.
    pub(super) fn drop_begun(&mut self, context: TraceContext, out: &mut Vec<OwnerEffect>) {
        self.lose_all(context, |stream| stream.streaming, "the session has begun before", out);
    }

    /// The cell did not survive a new generation.
    pub(super) fn drop_all(&mut self, context: TraceContext, out: &mut Vec<OwnerEffect>) {
        self.lose_all(context, |_| true, "the session's cell is rebuilt", out);
    }

    /// The checkpoint with which keepers that wait for one will begin.
    pub(super) fn awaited(&self) -> Awaited {
        let mut waiting = self.streams.iter().filter(|stream| !stream.streaming).peekable();
        let pages_are_due = |stream: &ReplicaStream| {
            stream.ready && !stream.is_next && stream.pages.as_ref().is_some_and(|pages| pages.is_due())
        };
        if waiting.peek().is_none() {
            let is_due = self.streams.iter().any(pages_are_due);
            if is_due { Awaited::Pages } else { Awaited::Nothing }
        } else if waiting.all(|stream| stream.feed.begins_apart()) {
            Awaited::Apart
        } else {
            Awaited::Full
        }
    }

    /// Keepers that waited begin at the position of `keep`, with the checkpoint of this number, which is being taken
    /// there.
    pub(super) fn start_waiting(&mut self, base: Option<u32>, keep: &Keep, out: &mut Vec<OwnerEffect>) {
        for stream in self.streams.iter_mut().filter(|stream| !stream.streaming) {
            (stream.streaming, stream.base, stream.begins_at) = (true, base, keep.log_offset);
            let (channel, feed) = (stream.channel, stream.feed);
            let (hot, moves) = (feed.is_replayed(), feed == Feed::Moved);
            let group = keep.group.filter(|_| stream.is_backup());
            if let Some(pages) = &mut stream.pages {
                pages.begin();
            }
            let keep = Keep { channel, hot, moves, group, ..keep.clone() };
            out.push(OwnerEffect::ToKeeper(stream.keeper, keep.into()));
        }
    }

    /// A backup goes on with the copy that it has, at the position of `keep`.
    pub(super) fn keep_on(&mut self, keeper: KeeperId, keep: &Keep, out: &mut Vec<OwnerEffect>) {
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.keeper == keeper) else { return };
        (stream.streaming, stream.begins_at) = (true, keep.log_offset);
        stream.mark_ready();
        if let Some(pages) = &mut stream.pages {
            pages.begin_behind_others();
        }
        let keep = Keep { channel: stream.channel, hot: stream.feed.is_replayed(), ..keep.clone() };
        out.push(OwnerEffect::ToKeeper(keeper, KeepOn { keep }.into()));
    }

    /// Sends the entry that was just logged, at `offset`, and what it consumed.
    pub(super) fn feed_entry(
        &mut self,
        about: &About,
        (log, ends): (&Log, &Ends),
        offset: u64,
        event: &Event,
        message: Option<Message>,
        out: &mut Vec<OwnerEffect>,
    ) {
        if self.is_empty() {
            return;
        }
        let (entry, tag) = (log.sealed(offset, about.seal()), log.tag());
        let from = event.sender();
        let (close, payload) = message.map(|message| (message.close, message.payload)).unwrap_or_default();
        let cost = charge(payload.len()) + entry.len() as u64;
        for at in (0..self.streams.len()).rev() {
            let stream = &mut self.streams[at];
            if !stream.streaming {
                continue;
            }
            let (channel, entry, payload) = (stream.channel, entry.clone(), payload.clone());
            let size = entry.len() as u64;
            let fed = Fed { channel, entry, tag, from, close, payload };
            let fed = match &mut stream.pages {
                Some(pages) => pages.entry(size, cost, fed),
                None => Some(fed),
            };
            let Some(fed) = fed else { continue };
            stream.behind += cost;
            stream.fed += cost;
            if stream.behind > FEED_WINDOW {
                self.lose(about.context(), at, Code::Busy, "it lags behind".to_string(), out);
                continue;
            }
            if about.is_protected_for_now() {
                let place = || Place { log_offset: log.end(), tag, took: ends.took() };
                stream.note_place(place);
            }
            stream.count_entry();
            if stream.fell_behind() > REPLAY_LAG_MAX && !stream.is_needed() {
                let reason = format!("it replays too slowly: {} entries behind", stream.unreplayed);
                out.push(OwnerEffect::StandbySlow(stream.keeper));
                self.lose(about.context(), at, Code::Busy, reason, out);
                continue;
            }
            out.push(OwnerEffect::ToKeeper(stream.keeper, fed.into()));
        }
    }

    /// Sends a sealed checkpoint: to a hot keeper only the one that it begins with, since it replays what follows.
    pub(super) fn feed_checkpoint(
        &mut self,
        (context, now_ns): (TraceContext, u64),
        meta: &CheckpointMeta,
        bytes: &Bytes,
        took: &[u64],
        out: &mut Vec<OwnerEffect>,
    ) {
        for at in (0..self.streams.len()).rev() {
            let stream = &mut self.streams[at];
            // One that was told to take the session over replays what it has.
            let follows = !stream.feed.is_replayed() && !stream.is_next && stream.handed_over.is_none();
            let wanted = stream.streaming && (follows || stream.base == Some(meta.number));
            if !wanted {
                continue;
            }
            if stream.transfers.len() >= TRANSFERS_MAX {
                self.lose(context, at, Code::Busy, "it is slow to store checkpoints".to_string(), out);
                continue;
            }
            stream.base = stream.base.filter(|number| *number != meta.number);
            let (meta, took, bytes) = (meta.clone(), took.to_vec(), bytes.clone());
            stream.transfers.push_back(CheckpointTransfer { meta, took, bytes, sent: None });
            send_parts(stream, now_ns, out);
        }
    }

    /// The checkpoint failed: keepers that would have begun with it have nothing to begin with.
    /// A backup keeps what it has, which may be all that there is beside this cell, and is given all pages next time; if these cannot be
    /// copied either, it is of no use. The code says that it was not superseded, so a claim must say that it is no backup any more.
    pub(super) fn feed_no_checkpoint(&mut self, context: TraceContext, out: &mut Vec<OwnerEffect>) {
        for at in (0..self.streams.len()).rev() {
            let stream = &mut self.streams[at];
            let unsealed = stream.pages.as_mut().filter(|pages| pages.has_unsealed());
            let may_try = unsealed.is_none_or(|pages| pages.copy_failed());
            if stream.base.is_some() || !may_try {
                self.lose(context, at, Code::Busy, "no checkpoint could be taken".to_string(), out);
            }
        }
    }

    /// Ends hold a checkpoint and delete what it covers.
    pub(super) fn feed_covered(
        &mut self,
        log_offset: u64,
        tag: [u8; 8],
        ends: &Ends,
        out: &mut Vec<OwnerEffect>,
    ) {
        for stream in self.streams.iter().filter(|stream| stream.streaming) {
            let truncate = Truncate { channel: stream.channel, log_offset, tag, sent: 0 };
            out.push(OwnerEffect::ToKeeper(stream.keeper, truncate.into()));
        }
        self.feed_received(REPORT_EVERY, ends, out);
    }

    /// Ends have received this many more outputs.
    pub(super) fn feed_received(&mut self, count: u64, ends: &Ends, out: &mut Vec<OwnerEffect>) {
        if self.is_empty() {
            return;
        }
        self.unreported_outputs += count;
        if self.unreported_outputs < REPORT_EVERY {
            return;
        }
        self.unreported_outputs = 0;
        let received = received(ends);
        let replays = |stream: &&ReplicaStream| stream.feed.is_replayed() || stream.handed_over.is_some();
        for stream in self.streams.iter().filter(|stream| stream.streaming).filter(replays) {
            let reported = Acknowledged { channel: stream.channel, received: received.clone() };
            out.push(OwnerEffect::ToKeeper(stream.keeper, reported.into()));
        }
    }

    /// I35 of docs/protocol.md.
    pub(super) fn invariants(&self) -> Result<(), BrokenInvariant> {
        for stream in &self.streams {
            holds!("I35", stream.behind <= FEED_WINDOW);
            holds!("I35", stream.window.in_flight() <= COPY_WINDOW_MAX + PART_SIZE as u64);
            holds!("I35", !stream.ready || stream.unreplayed_min <= stream.unreplayed);
            holds!("I35", stream.transfers.len() <= TRANSFERS_MAX);
            holds!("I35", stream.base.is_none() || stream.streaming);
        }
        Ok(())
    }
}

/// What the ends have received.
fn received(ends: &Ends) -> Many<Received> {
    let received = |side: &EndState| Received { port: side.port, count: side.acknowledged() };
    Many(ends.iter().map(received).collect())
}

/// Sends parts of checkpoints within the window, one checkpoint after the other.
fn send_parts(stream: &mut ReplicaStream, now_ns: u64, out: &mut Vec<OwnerEffect>) {
    let (keeper, channel) = (stream.keeper, stream.channel);
    while let Some(transfer) = stream.transfers.front_mut() {
        let Some(sent) = &mut transfer.sent else {
            let base = Base { channel, meta: transfer.meta.clone(), took: transfer.took.clone() };
            out.push(OwnerEffect::ToKeeper(keeper, base.into()));
            transfer.sent = Some(0);
            continue;
        };
        if *sent == transfer.bytes.len() {
            // The next one follows when this one is stored, so that each part belongs to the checkpoint that was
            // announced last.
            if stream.window.in_flight() > 0 {
                return;
            }
            stream.transfers.pop_front();
            continue;
        }
        if stream.window.is_full() || stream.allowed == 0 {
            return;
        }
        let end = transfer.bytes.len().min(*sent + PART_SIZE);
        let bytes = transfer.bytes.slice(*sent..end);
        *sent = end;
        stream.window.send(now_ns, bytes.len() as u64);
        if stream.allowed < u64::MAX {
            stream.allowed = stream.allowed.saturating_sub(bytes.len() as u64);
        }
        out.push(OwnerEffect::ToKeeper(keeper, CheckpointPart { channel, bytes }.into()));
    }
}
