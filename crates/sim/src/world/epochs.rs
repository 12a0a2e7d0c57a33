//! Sessions with a backup: which of them may be lost, and what happens to groups.

use super::World;
use crate::{position::ShardPosition, watch::Rare};
use marram_session::owner::EpochRelease;
use marram_shard::{
    api::MoveOver,
    control::{ControlRequest, PolicyChange, PolicyReport},
    ring::Ring,
};
use marram_wire::{
    frame::{Code, ForgetCopy, Frame},
    id::SessionId,
};

/// Tag of a change of an edge's policies.
const POLICIES_TAG: u64 = 1 << 40;

impl World {
    /// An operator changes the policies of an edge.
    pub(super) fn change_policies(&mut self, edge: usize, change: PolicyChange) {
        let request = ControlRequest::ChangePolicies { change, dry_run: false };
        self.ask_control(edge, 0, POLICIES_TAG, request);
    }

    /// The policies of an edge are others now.
    pub(super) fn policies_changed(&mut self, report: &PolicyReport) {
        let following = report.policies.iter().map(|(_, sessions)| sessions).sum::<u64>();
        let is_followed = !report.differences.is_empty() && following > 0;
        self.watch.count_if(Rare::PolicyChanged, is_followed);
    }

    /// A shard dies. A session that it owned is lost with it, unless a backup has all that has left; a backup that dies counts only
    /// where the owner dies as well.
    pub(super) fn backed_sessions_die(&mut self, position: ShardPosition) {
        let Some(machine) = self.edges[position.edge].shards[position.shard].machine() else { return };
        for owner in machine.owners().filter(|owner| owner.has_backup()) {
            let id = owner.session();
            if owner.group().is_none() {
                self.causes.backup_died.insert((id, position.edge));
                if machine.is_claiming(id) {
                    // The claim may be written, and its primary learn of that later.
                    self.causes.owner_replaced.insert(id);
                }
                continue;
            }
            let is_continued = machine.is_continued(id);
            let has_backup = is_continued || owner.keepers().any(|keeper| keeper.ready);
            let claimed = machine.backup_of(id).and_then(edge_of);
            let is_fed = matches!(owner.epoch_release(), EpochRelease::Confirmed | EpochRelease::Ahead);
            let backup = claimed.filter(|_| has_backup && is_fed);
            let is_backed = backup.is_some();
            self.watch.count_if(Rare::BackedOwnerDied, is_backed);
            self.watch.count_if(Rare::HeirDied, is_backed && machine.has_kept_backup(id));
            self.watch.count_if(Rare::PagesOwnerDied, is_backed && owner.sends_pages());
            if let Some(backup) = backup {
                self.causes.owner_died.insert((id, backup));
            } else {
                self.causes.unbacked_died.insert(id);
            }
        }
    }

    /// An edge drains: it is a backup no more, even where the owner has died.
    pub(super) fn backups_leave(&mut self, edge: usize) {
        let owners = self.edges[edge]
            .shards
            .iter()
            .filter_map(|shard| shard.machine())
            .flat_map(|shard| shard.owners());
        for owner in owners.filter(|owner| owner.has_backup()) {
            match owner.group() {
                None => self.causes.backup_died.insert((owner.session(), edge)),
                // It has no other edge to go to.
                Some(_) if owner.standing_by().is_some() => self.causes.unbacked_died.insert(owner.session()),
                Some(_) => continue,
            };
        }
    }

    /// An edge says that another one need not keep its copy of a session. Until the ends are sent the log that this edge has chosen, the
    /// copy is what goes on if this edge dies. A session that is over needs none.
    pub(super) fn judge_forgotten(&mut self, position: ShardPosition, frame: &Frame) {
        let Frame::ForgetCopy(ForgetCopy { session, generation }) = *frame else { return };
        let machine = self.shard(position).machine();
        let is_here = machine.is_some_and(|machine| machine.owners().any(|owner| owner.session() == session));
        if is_here && !self.watch.was_chosen(session, generation) {
            self.violations.push(format!("{position} has the copy of {session} forgotten before it goes on"));
        }
    }

    /// An edge refuses what another one feeds it. A primary sends its backup no checkpoint that this one cannot apply, and no log of another
    /// history: without a backup the session would wait, or run alone.
    pub(super) fn judge_refused(&mut self, position: ShardPosition, frame: &Frame) {
        let Frame::Reject(reject) = frame else { return };
        if reject.code == Code::Tampered && self.plan.has_epochs() && self.liar.is_none() {
            self.violations.push(format!("{position} cannot use what a primary feeds it: {}", reject.reason));
        }
        let is_elsewhere = reject.reason.contains("not the one that the owner goes on from");
        if is_elsewhere && !self.is_disturbed {
            self.violations
                .push(format!("{position} has another copy of a hall than the edge to which that has moved"));
        }
    }

    /// A pass of moves onto an edge that has joined is over. Between the beginnings of two of them there is as much time as the policy says.
    fn judge_pass(&mut self, position: ShardPosition, text: &str) {
        let Some(said) = text.strip_prefix("rebalanced onto `") else { return };
        let numbers: Vec<u64> = said.split([' ', '`']).filter_map(|word| word.parse().ok()).collect();
        let (Some([moved, _, ms]), Some(elastic)) = (numbers.get(..3), self.plan.elastic()) else {
            return self.violations.push(format!("{position} notes a pass that cannot be: {text}"));
        };
        self.watch.count_if(Rare::Rebalanced, *moved > 0);
        let least_ms = moved.saturating_sub(1) * 1_000 / u64::from(elastic.per_s);
        if *ms < least_ms {
            self.violations.push(format!("{position} moves more in a second than its policy allows: {text}"));
        }
    }

    /// A session has moved, in a seed where only edges that join get sessions. All edges agree on the order in which a session's edges are on
    /// the ring, whichever of them they know: each move goes forward there, so that none goes back and forth.
    pub(super) fn judge_rebalanced(&mut self, from: usize, over: &MoveOver) {
        let only_joins = self.plan.elastic().is_some_and(|elastic| !elastic.has_others);
        if !only_joins || !over.why.is_empty() {
            return;
        }
        let ring = Ring::new((0..self.edges.len()).map(|edge| format!("edge-{edge}")));
        let place = |name: &str| ring.in_order(over.session, "").position(|edge| edge == name);
        if place(&over.to.edge) >= place(&format!("edge-{from}")) {
            let (session, to) = (over.session, &over.to);
            self.violations.push(format!("E{from} moves {session} to {to}, where it belongs less than here"));
        }
    }

    /// What a shard notes: of groups, and of checkpoints.
    pub(super) fn noted(&mut self, position: ShardPosition, session: Option<SessionId>, text: &str) {
        self.judge_pass(position, text);
        self.trace.say(self.queue.now_ns(), || format!("{position} notes {text}"));
        let by_itself = format!("`edge-{}` has claimed", position.edge);
        if text.contains("has claimed the session's group") && !text.contains(&by_itself) {
            // The claim decides, even if its edge has died since, and the replaced primary lives.
            self.causes.owner_replaced.extend(session);
        }
        for (rare, said) in [
            (Rare::CheckpointRefused, "no checkpoint of session"),
            (Rare::OutputsHeld, "sessions hold their outputs"),
            (Rare::BackupLost, "sessions have lost their backup"),
            (Rare::RanAlone, "sessions run without a backup"),
            (Rare::Promoted, "whose backup it was"),
            (Rare::PromotionWaited, "its sessions wait:"),
            (Rare::PrimaryReplaced, "has claimed the session's group"),
            (Rare::TakenBack, "goes on here, though it was handed over"),
            (Rare::HallResigned, "it tells the coordinator that it has none"),
            (Rare::HallReplaced, "a new cell begins here"),
        ] {
            self.watch.count_if(rare, text.contains(said));
        }
        let promoted = text.strip_suffix("whose backup it was").filter(|_| self.plan.has_hall());
        self.watch.count_if(Rare::HallPromoted, promoted.is_some());
        let is_one = |text: &str| text.starts_with("takes 1 sessions");
        self.watch.count_if(Rare::HallsPromotedTogether, promoted.is_some_and(|text| !is_one(text)));
    }
}

/// The number of an edge with this name.
fn edge_of(name: &str) -> Option<usize> {
    name.strip_prefix("edge-")?.parse().ok()
}
