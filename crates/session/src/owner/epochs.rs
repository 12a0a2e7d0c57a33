//! Under `epoch` an output waits until a backup has what produced it (docs/protocol-epochs.md).
//!
//! Which edge is the backup, and when an epoch ends, is decided for a group of sessions, by the shard. An owner remembers where it
//! stood when an epoch ended. Once that epoch is confirmed, what it has produced up to there may leave, and ends forget what it has
//! consumed. What a handler that runs has consumed belongs to a later epoch, whatever it has produced so far.

use super::{Now, Owner, OwnerEffect, OwnerPhase, boundary::Boundary, end_state::EndState, sides::Chore};
use alloc::{collections::VecDeque, vec::Vec};
use marram_wire::{
    frame::{GroupId, Keep, RunsAhead, Truncate},
    id::{Generation, Port},
};

/// An end forgets messages, and all forget log, in steps of so many bytes.
const FORGET_BYTES: u64 = 64 << 10;

/// Which outputs may leave of a session that has a backup.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum EpochRelease {
    /// None: no claim names the backup, or the connection to it broke.
    #[default]
    Held,
    /// Those that the backup has confirmed.
    Confirmed,
    /// All, before the backup has what produced them. If this edge dies, the backup goes on behind the ends.
    Ahead,
    /// All: by its claim, this edge runs alone.
    Alone,
}

/// An epoch that has ended, and is not confirmed.
#[derive(Debug)]
struct Ended {
    number: u64,
    generation: Generation,
    at: Boundary,
}

/// What an owner knows of its group's epochs.
#[derive(Debug, Default)]
pub(super) struct Epochs {
    group: Option<GroupId>,
    /// The group of the owner that feeds this one.
    pub(super) fed_by: Option<GroupId>,
    release: EpochRelease,
    /// The end of the last entry.
    last: Boundary,
    /// Up to where everything is at the backup, or need not be.
    kept: Boundary,
    /// Whether that, or the generation, is in no epoch that has ended.
    is_due: bool,
    /// Whether the shard was told so.
    is_told: bool,
    ended: VecDeque<Ended>,
    /// The newest generation that the backup confirmed, or under which this edge ran alone.
    confirmed: Generation,
    /// Whether the session was handed over to the backup, which has not given it back by being fed again.
    pub(super) given: bool,
    /// Whether what pages stand for waits for the pages of the group's other sessions, and up to where it does.
    pub(super) awaits_group: bool,
    pub(super) stored: Option<Boundary>,
    /// Empty: what ends are told to forget is gathered here.
    told: Vec<(Port, u64)>,
    /// Up to where all were told to forget.
    forgot_to: u64,
    /// Whether no entry begins, since all sessions of the group are to be copied at one moment.
    pub(super) is_halted: bool,
    /// Whether no entry begins, since the session is to be handed over together with others.
    pub(super) is_still: bool,
    /// Whether the session is about to change its group: what the backup confirms releases nothing (see [`super::changes`]).
    pub(super) is_changing: bool,
    /// Up to where outputs may have left that the backup has not confirmed, if none leave so any more.
    ran_ahead_to: Option<u64>,
    /// The group that this edge has claimed as its backup, with this session.
    promoted_in: Option<GroupId>,
}

impl Epochs {
    pub(super) fn group(&self) -> Option<GroupId> {
        self.group
    }

    /// What was in epochs that had ended is in none: the backup that was to confirm them is gone.
    pub(super) fn begin_again(&mut self) {
        self.ended.clear();
        self.stored = None;
        (self.is_due, self.is_told) = (true, false);
    }

    /// The last of these epochs that has this number or a lower one.
    fn take_confirmed(&mut self, number: u64) -> Option<Ended> {
        let mut last = None;
        while let Some(ended) = self.ended.pop_front_if(|ended| ended.number <= number) {
            last = Some(ended);
        }
        last
    }

    /// Whether outputs leave, or have left, that the backup has not confirmed.
    pub(super) fn runs_ahead(&self) -> bool {
        self.release == EpochRelease::Ahead || self.ran_ahead_to.is_some()
    }

    /// Whether outputs leave before the backup has them. While the session is handed over they do not: the backup may go on with what it
    /// was fed until then, without a claim. Nor do the first ones: a backup without anything of the session gives way to any edge that
    /// begins it again.
    fn is_ahead(&self) -> bool {
        self.release == EpochRelease::Ahead && !self.given && !self.is_changing && self.kept.log_offset > 0
    }

    /// This edge was the group's backup, and has claimed it.
    pub(super) fn claimed_here(&mut self) {
        self.promoted_in = self.group;
    }

    /// Whether this edge was the backup, has claimed the group, and has the session since: no other edge has more of what it was fed.
    pub(super) fn was_promoted(&self) -> bool {
        self.promoted_in.is_some() && self.promoted_in == self.group && !self.given
    }

    /// These ends were told to forget messages of this charge.
    fn forgot(&mut self, told: &[(Port, u64)]) {
        let marks = self.ended.iter_mut().map(|ended| &mut ended.at).chain([&mut self.last, &mut self.kept]);
        marks.chain(&mut self.stored).for_each(|at| at.forgot(told));
    }

    /// The end of the last entry.
    pub(super) fn last(&self) -> &Boundary {
        &self.last
    }

    /// Up to where everything is at the backup, or need not be.
    pub(super) fn kept(&self) -> &Boundary {
        &self.kept
    }
}

impl Owner {
    /// The session belongs to this replication group from now on, and releases outputs like this.
    pub fn join_group(
        &mut self,
        now: Now,
        group: GroupId,
        release: EpochRelease,
        out: &mut Vec<OwnerEffect>,
    ) {
        self.epochs.group = Some(group);
        (self.epochs.is_halted, self.epochs.is_changing) = (false, false);
        self.release_as(now, release, out);
        self.release_stored(now, out);
    }

    /// The session's group, if it has one.
    #[must_use]
    pub fn group(&self) -> Option<GroupId> {
        self.epochs.group()
    }

    /// Whether what is here may be replaced by what another owner would feed. An owner that begins the session again, or whose history
    /// is shorter, may not know that the ends have received more: they decide which of both goes on.
    #[must_use]
    pub fn yields_to(&self, keep: &Keep) -> bool {
        let is_same = keep.group.is_some() && keep.group == self.epochs.fed_by;
        !self.about.has_backup() || self.epochs.given || is_same || keep.log_offset >= self.log.end()
    }

    /// Whether the session was handed over to its backup, which was not fed since.
    #[must_use]
    pub fn was_handed_over(&self) -> bool {
        self.epochs.given
    }

    /// Whether this owner is about to begin the session: its ends were told of no log.
    #[must_use]
    pub fn is_beginning(&self) -> bool {
        let is_opening = matches!(self.phase(), OwnerPhase::Promising | OwnerPhase::Confirming);
        self.about.has_backup() && is_opening && self.log.end() == 0
    }

    /// Whether the session has not begun, as far as this owner knows: nothing is logged, so nothing of it has left, and it does not run. As
    /// [`Self::is_beginning`], also while no end is linked.
    #[must_use]
    pub fn has_not_begun(&self) -> bool {
        let is_idle =
            matches!(self.phase(), OwnerPhase::Promising | OwnerPhase::Confirming | OwnerPhase::Detached);
        self.about.has_backup() && is_idle && self.log.end() == 0
    }

    /// How many outputs for the end at this port need not be produced again, for inspection: the backup has what produced them, or this edge
    /// has run alone since.
    #[must_use]
    pub fn confirmed_outputs(&self, port: Port) -> u64 {
        self.epochs.kept.mark(port).produced
    }

    /// Which outputs may leave now.
    #[must_use]
    pub fn epoch_release(&self) -> EpochRelease {
        self.epochs.release
    }

    /// From now on outputs leave like this.
    pub fn release_as(&mut self, now: Now, release: EpochRelease, out: &mut Vec<OwnerEffect>) {
        let before = core::mem::replace(&mut self.epochs.release, release);
        if before == release || !self.about.has_backup() {
            return;
        }
        if before == EpochRelease::Ahead {
            self.epochs.ran_ahead_to = Some(self.epochs.last.log_offset);
        }
        match release {
            EpochRelease::Held => self.epochs.begin_again(),
            EpochRelease::Confirmed | EpochRelease::Ahead => {
                // Between these two, what has ended is still to be confirmed.
                if !matches!(before, EpochRelease::Confirmed | EpochRelease::Ahead) {
                    self.epochs.begin_again();
                    self.epoch_is_due(out);
                }
                self.run_ahead(out);
                if before == EpochRelease::Held && self.phase() == OwnerPhase::Running {
                    // What was confirmed before may have got credit meanwhile.
                    self.release(out);
                }
                self.catch_up_if_kept(out);
            }
            EpochRelease::Alone => {
                let (generation, at) = (self.about.generation(), self.epochs.last.clone());
                self.epochs.begin_again();
                self.kept(now, generation, &at, out);
            }
        }
    }

    /// An epoch of the group ends. False if the session has nothing in it, or its backup could not confirm that.
    pub fn end_epoch(&mut self, number: u64, out: &mut Vec<OwnerEffect>) -> bool {
        self.epochs.is_told = false;
        let can_confirm = self.replicas.backup() == Some(true);
        if !can_confirm || !self.epochs.is_due {
            return false;
        }
        self.epochs.is_due = false;
        // What the backup gets as pages it confirms when it has them.
        let at = if self.epoch_is_pages(out) { &self.epochs.kept } else { &self.epochs.last };
        let generation = self.about.generation();
        self.epochs.ended.push_back(Ended { number, generation, at: at.clone() });
        true
    }

    /// The backup has this epoch, and every earlier one.
    pub fn epoch_confirmed(&mut self, now: Now, number: u64, out: &mut Vec<OwnerEffect>) {
        if self.epochs.is_changing {
            return;
        }
        // Until a claim names the edge that has confirmed this, another one may go on without it.
        if self.holds_outputs() {
            return;
        }
        if let Some(ended) = self.epochs.take_confirmed(number) {
            self.kept(now, ended.generation, &ended.at, out);
        }
    }

    /// Everything up to here is at the backup, or need not be.
    pub(super) fn kept(
        &mut self,
        now: Now,
        generation: Generation,
        at: &Boundary,
        out: &mut Vec<OwnerEffect>,
    ) {
        self.epochs.confirmed = self.epochs.confirmed.max(generation);
        // Pages may have come since this epoch ended. Then it says nothing new, and a port may have another client since.
        if at.log_offset >= self.epochs.kept.log_offset {
            for port in at.differ(&self.epochs.kept) {
                if let Some(index) = self.ends.index(port) {
                    let side = &mut self.ends[index];
                    side.logged = side.logged.max(at.mark(port).produced);
                }
            }
            self.epochs.kept.clone_from(at);
        }
        self.catch_up_if_kept(out);
        self.free_outputs();
        let kept_to = at.log_offset;
        match self.phase() {
            OwnerPhase::Confirming => self.tell_chosen(now, out),
            OwnerPhase::Running => {
                self.link_ports(now, kept_to, out);
                self.release(out);
                self.look_at_clients(now, out);
            }
            _ => {}
        }
        if self.phase() == OwnerPhase::Running {
            self.forget_if_much(out);
            self.checkpoint_if_due(out);
            self.pump(now, out);
        } else if self.phase() == OwnerPhase::Detached && self.may_copy() {
            self.checkpoint_if_due(out);
        }
    }

    /// Whether a log is chosen, and the ends must not be told before the backup knows the generation.
    pub(super) fn awaits_backup(&self) -> bool {
        let is_known = self.epochs.confirmed == self.about.generation();
        match self.epochs.release {
            _ if !self.about.has_backup() => false,
            EpochRelease::Held => true,
            // The backup goes on from the last generation that it knows. No end must follow a later one before.
            EpochRelease::Confirmed | EpochRelease::Ahead => !is_known,
            EpochRelease::Alone => false,
        }
    }

    /// From now on outputs may leave before they are confirmed. The ends are told so before the first one **\[M\]**.
    fn run_ahead(&mut self, out: &mut Vec<OwnerEffect>) {
        if self.epochs.release != EpochRelease::Ahead {
            return;
        }
        let had_run = self.epochs.ran_ahead_to.take().is_some();
        self.free_outputs();
        if self.phase() == OwnerPhase::Running {
            if !had_run {
                self.ends.send(|channel| RunsAhead { channel, is_so: true }.into(), out);
            }
            self.release(out);
        }
    }

    /// Whether outputs leave before the backup has them: the session has one.
    fn leaves_ahead(&self) -> bool {
        self.epochs.is_ahead() && self.replicas.backup() == Some(true)
    }

    /// What entries that have ended have produced may leave, if outputs do not wait.
    fn free_outputs(&mut self) {
        if self.leaves_ahead() {
            for side in self.ends.iter_mut() {
                side.logged = side.logged.max(self.epochs.last.mark(side.port).produced);
            }
        }
    }

    /// Outputs do not leave before they are confirmed any more. Once all are that have left so, the ends are told.
    fn catch_up_if_kept(&mut self, out: &mut Vec<OwnerEffect>) {
        let kept_to = self.epochs.kept.log_offset;
        let is_over = self.epochs.ran_ahead_to.take_if(|to| *to <= kept_to).is_some();
        if is_over && self.phase() == OwnerPhase::Running {
            self.ends.send(|channel| RunsAhead { channel, is_so: false }.into(), out);
        }
    }

    /// Whether no output may leave.
    pub(super) fn holds_outputs(&self) -> bool {
        self.about.has_backup() && self.epochs.release == EpochRelease::Held
    }

    /// An entry is complete: its outputs may leave at once, or with the epoch in which it is.
    pub(super) fn entry_ended(&mut self, out: &mut Vec<OwnerEffect>) {
        if !self.about.has_backup() {
            return self.ends.iter_mut().for_each(EndState::mark_logged);
        }
        self.epochs.last.set(&self.log, &mut self.ends);
        self.ask_pages_if_much();
        if self.epochs.release == EpochRelease::Alone {
            for port in self.epochs.last.differ(&self.epochs.kept) {
                if let Some(index) = self.ends.index(port) {
                    self.ends[index].mark_logged();
                }
            }
            self.epochs.is_due = true;
            self.epochs.kept.clone_from(&self.epochs.last);
            if self.phase() == OwnerPhase::Running {
                self.forget_if_much(out);
            }
            return;
        }
        if self.leaves_ahead() {
            self.ends.iter_mut().for_each(EndState::mark_logged);
        }
        self.epoch_is_due(out);
    }

    /// The cell has replayed all that this owner was fed, or has chosen.
    pub(super) fn stands_at_end(&mut self) {
        self.epochs.last.set(&self.log, &mut self.ends);
        if self.epochs.release == EpochRelease::Alone {
            self.epochs.kept.clone_from(&self.epochs.last);
        }
    }

    /// Something happened that no epoch has yet.
    pub(super) fn epoch_is_due(&mut self, out: &mut Vec<OwnerEffect>) {
        self.epochs.is_due = true;
        self.tell_due(out);
    }

    fn tell_due(&mut self, out: &mut Vec<OwnerEffect>) {
        let is_confirmed = matches!(self.epochs.release, EpochRelease::Confirmed | EpochRelease::Ahead);
        let is_due = self.epochs.is_due && is_confirmed;
        if is_due && !self.epochs.is_told && self.replicas.backup() == Some(true) {
            self.epochs.is_told = true;
            out.push(OwnerEffect::EpochDue);
        }
    }

    /// A keeper came, went, or has something new.
    pub(super) fn backup_changed(&mut self, out: &mut Vec<OwnerEffect>) {
        if !self.about.has_backup() {
            return;
        }
        if self.replicas.backup().is_none() && !self.epochs.ended.is_empty() {
            self.epochs.begin_again();
        }
        self.epochs.given &= self.replicas.backup() != Some(true) || self.replicas.has_handed_over();
        self.tell_due(out);
    }

    /// Ends forget what was consumed, and all forget the log, up to where everything is kept, if that is much.
    pub(super) fn forget_if_much(&mut self, out: &mut Vec<OwnerEffect>) {
        let at = &self.epochs.kept;
        // What a shared cell keeps for itself is not forgotten, and the ends need not be told again.
        let forgot_to = if self.keep.is_some() { self.epochs.forgot_to } else { 0 };
        let is_much = at.log_offset.saturating_sub(self.log.floor().max(forgot_to)) >= FORGET_BYTES
            || self.ends.visit(Chore::Measure).any(|index| {
                let side = &self.ends[index];
                at.mark(side.port).uncovered >= side.forget_at()
            });
        if is_much {
            self.forget_kept(out);
        }
    }

    /// As above, whether or not it is much: an end that was away was not told.
    pub(super) fn forget_kept(&mut self, out: &mut Vec<OwnerEffect>) {
        let mut told = core::mem::take(&mut self.epochs.told);
        let at = &self.epochs.kept;
        let (kept_to, kept_tag) = (at.log_offset, at.tag);
        let is_shared = self.ends.ports.is_some();
        for index in self.ends.visit(Chore::Forget) {
            let mark = at.mark(self.ends[index].port);
            if is_shared && mark.uncovered == 0 {
                // It was told, or is told when it is back.
                continue;
            }
            let side = &mut self.ends[index];
            side.uncovered = side.uncovered.saturating_sub(mark.uncovered);
            told.push((side.port, mark.uncovered));
            let (log_offset, tag, sent) = (0, [0; 8], mark.took);
            // An end that is away is told when it is back.
            out.extend(side.channel.map(|channel| {
                OwnerEffect::Send(side.port, Truncate { channel, log_offset, tag, sent }.into())
            }));
        }
        self.epochs.forgot(&told);
        self.replicas.forgot(&told);
        told.clear();
        self.epochs.told = told;
        self.epochs.forgot_to = kept_to;
        self.truncate_kept();
        self.replicas.feed_covered(kept_to, kept_tag, &self.ends, out);
    }

    /// The log that is kept elsewhere is dropped, unless a copy or a rebuild of the cell begins before.
    pub(super) fn truncate_kept(&mut self) {
        if self.checkpointer.apart.is_none() {
            let own = self.keep.as_ref().and_then(|keep| keep.log_floor());
            self.log.truncate(self.epochs.kept.log_offset.min(own.unwrap_or(u64::MAX)));
        }
    }
}

impl EndState {
    /// The end is told to forget once it keeps messages of this charge that are kept elsewhere.
    pub(super) fn forget_at(&self) -> u64 {
        FORGET_BYTES.min(self.allowance() / 2)
    }
}
