//! The states that the simulation is for: rare in production, and often wrong. Each must be reached often in every run.
//!
//! A checker that is never asked the hard question says nothing. So each run of many seeds must
//! reach each state at least 50 times (`main`), and a change of the plan that makes one
//! unreachable fails CI.

/// A rare state.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(usize)]
pub enum Rare {
    /// A generation was opened while an older one waited for promises.
    RecoveryDuringPromise,
    /// As above, while its cell was restored.
    RecoveryDuringRestore,
    /// As above, while its cell replayed.
    RecoveryDuringReplay,
    /// As above, after all promises and before both ends had the chosen log.
    RecoveryDuringChoice,
    /// The third generation of a session, or a later one.
    ThirdGeneration,
    /// An end refused a frame of an older generation.
    ZombieRefused,
    /// An end refused to promise a generation.
    GenerationRefused,
    /// A log was chosen whose beginning a checkpoint had replaced.
    TruncatedLogUsed,
    /// A cell was restored from a checkpoint.
    CheckpointRestored,
    /// A cell was restored from a checkpoint and deltas on it.
    DeltaRestored,
    /// The longer log was the client's.
    ClientLogChosen,
    /// The longer log was the server's.
    ServerLogChosen,
    /// An owner whose cell lived kept it.
    LiveOwnerKept,
    /// As above, and an end had a part of a checkpoint.
    CheckpointPartial,
    /// The server's end asked for a generation.
    ServerLed,
    /// Both ends asked for one at once.
    BothLed,
    /// A program ended its output while its session had no owner.
    CloseDuringRecovery,
    /// An end forgot a session after its linger time.
    LingerExpired,
    /// One side continued to send after the other had ended its output.
    SpokeAfterHalfClose,
    /// A timer fired in replay.
    TimerReplayed,
    /// A timer of another stage than the first one fired in replay.
    StageTimerReplayed,
    /// A task ran in replay.
    TaskReplayed,
    /// A checkpoint was taken while the run queue had a task.
    TaskPendingAtCheckpoint,
    /// A checkpoint was taken while a task waited for a lock that another task held.
    LockAwaitedAtCheckpoint,
    /// Random bytes were drawn in replay.
    RandomReplayed,
    /// A cache read was repeated in replay, from the log.
    ReadReplayed,
    /// An agent stopped reading from a program.
    BackPressure,
    /// An agent's memory became full: sessions were slowed, or new ones waited.
    MemoryFull,
    /// A session waited for room in its agent's memory.
    SessionSlowed,
    /// A shard refused a new session, since its memory was full.
    ShardMemoryFull,
    /// A cell rested because of its share of the shard's memory.
    CellSlowed,
    /// A checkpoint was sent whose end may keep less than usual.
    CheckpointEarly,
    /// An edge had as many outputs in flight as an end accepts.
    WindowFull,
    /// An edge was drained to its last session.
    EdgeDrained,
    /// A handler was stopped.
    HandlerStopped,
    /// A datagram was consumed in replay.
    DatagramReplayed,
    /// As above, through the stages of a chain.
    DatagramThroughStagesReplayed,
    /// A session was recorded, and its recording run.
    RecordingReplayed,
    /// As above, from a checkpoint and through log behind it.
    RecordingFromCheckpoint,
    /// A recording was abandoned, since its session was moving elsewhere.
    RecordingGivenUp,
    /// A handler that was stopped was recorded.
    StopRecorded,
    /// A shared cell was recorded while it had clients, and replayed to the same state.
    CellRecorded,
    /// A checkpoint was taken because of the shard's replay budget.
    CopiedForBudget,
    /// A cell was copied that had run since its copy was prepared.
    CopyPrepared,
    /// Deltas were merged: no full checkpoint would have fitted beside those that an end kept, or another owner had made them.
    DeltasMerged,
    /// A full checkpoint was taken for keepers alone.
    CopiedApart,
    /// No checkpoint was taken, since it would not have fitted beside those that an end kept.
    CheckpointRefused,
    /// An edge that was a standby asked the ends for their promise.
    StandbyAsked,
    /// As above, before any end had asked an edge.
    StandbyLed,
    /// An end's log was longer than the standby's.
    StandbyBehind,
    /// The standby's log was longer than an end's.
    StandbyAhead,
    /// An end had promised another owner since: the standby's state was useless.
    StandbyOvertaken,
    /// A standby asked as the owner of a generation that its feeder had opened, and in which no log was chosen.
    StandbyRenewedInVain,
    /// A hot standby was so many entries behind that its owner dropped it.
    StandbyLagged,
    /// A standby's cell became the live one.
    StandbyTookOver,
    /// A move was begun.
    MoveBegun,
    /// A move was refused.
    MoveRefused,
    /// A move was cancelled.
    MoveCancelled,
    /// A move was replaced by one to another edge.
    MoveReplaced,
    /// An operator was told that a session would move.
    MovePlanned,
    /// An operator was told why a session would not move.
    PlanRefused,
    /// The copy of a session that moved waited for bandwidth.
    MoveLimited,
    /// A move that was begun failed.
    MoveFailed,
    /// A session was handed over.
    HandedOver,
    /// As `HandedOver`, to its warm standby with what that had.
    HandedToWarm,
    /// A session had left its edge after it was handed over.
    Moved,
    /// As `Moved`, to another shard of the same edge.
    MovedWithin,
    /// A move to another shard of the same edge failed.
    NotMovedWithin,
    /// As `Moved`, for a session with a strict witness.
    StrictMoved,
    /// A move failed because a strict witness was away.
    MoveUnwitnessed,
    /// As `Moved`, for a session of the unprotected app.
    BareMoved,
    /// The move of a session of the unprotected app failed.
    BareNotMoved,
    /// An end of a session of the unprotected app was told to forget what the next edge has.
    BareForgotten,
    /// An end of a session of the unprotected app gave up: its edge was gone, and no other edge had all of it.
    BareAbandoned,
    /// The ends of a session of the unprotected app were told to keep it no more.
    Unprotected,
    /// A recorder returned its stored log of a session.
    Recalled,
    /// A recorder returned something other than what it was sent.
    RecorderLied,
    /// An agent said something false.
    AgentLied,
    /// An owner ended a session because an end of it broke the protocol, or showed what does not verify.
    LieRefused,
    /// A witness confirmed a recovery.
    WitnessVouched,
    /// A recovery asked the witness and got no reply.
    WitnessAway,
    /// A session moved back to its home shard.
    WentHome,
    /// The first fault of a seed hit a running session.
    RunningSessionStruck,
    /// A frame of an older generation reached an end.
    StaleAtEnd,
    /// A frame of an older generation reached an owner.
    StaleAtOwner,
    /// An owner's frame reached a recorder on a channel that was over for it.
    StaleAtRecorder,
    /// As above, an edge that stands by, or did.
    StaleAtStandby,
    /// A keeper's frame reached its owner's shard on a channel that was over for that.
    StaleFromKeeper,
    /// As above, a recorder's answer to a recall.
    StaleRecall,
    /// The coordinator became unavailable.
    CoordinatorAway,
    /// A request to it was lost.
    RequestLost,
    /// A request arrived after its timeout.
    RequestLate,
    /// A request arrived twice.
    RequestTwice,
    /// A write was applied, and its reply was lost.
    AnswerLost,
    /// An edge won a claim.
    ClaimWon,
    /// An edge lost a claim.
    ClaimLost,
    /// The coordinator's store came back without its file, or with an older copy.
    StoreLoss,
    /// An edge asked for no decision, because it remembers what the store has lost.
    LossRemembered,
    /// As above, because another edge told it so.
    LossTold,
    /// An operator accepted the loss.
    LossAccepted,
    /// The record of a group was removed.
    GroupRemoved,
    /// That of a group of which the primary had died alone, by its edge when it started again.
    LeftoverRemoved,
    /// Outputs were held, since no claim was decided.
    OutputsHeld,
    /// A group lost its backup.
    BackupLost,
    /// The sessions of a group went on without a backup.
    RanAlone,
    /// A backup claimed a group, and took its sessions over.
    Promoted,
    /// A backup had to wait for the coordinator before it could.
    PromotionWaited,
    /// A primary learned that its backup had claimed the group.
    PrimaryReplaced,
    /// A backup asked a primary that lived to hand a session over.
    HandOverAsked,
    /// An edge was told that the copy is not needed of a session which it had handed over to its backup.
    CopyForgotten,
    /// A session was handed over to another edge than its backup.
    HandedPastBackup,
    /// A session that was handed over to its backup went on at its former owner.
    TakenBack,
    /// An end refused an edge which was behind what the end had received or forgotten.
    AskerBehind,
    /// An edge, or a shard, died that was the owner of a session with a backup which had all that had left.
    BackedOwnerDied,
    /// As above, and the backup got pages instead of the log.
    PagesOwnerDied,
    /// An agent connected to an edge that it had learned of.
    EdgeLearned,
    /// Such an edge became the owner of a session.
    LearnedEdgeOwned,
    /// An agent found another edge than it had been told of.
    EdgeNotAsTold,
    /// A client of a hall was led to another edge.
    HallLed,
    /// As above, twice before an edge asked it for its promise.
    HallLedTwice,
    /// A client of a hall was told that an edge goes on, not for the first time.
    PortResumed,
    /// An edge asked a client of a hall while another edge had asked it and not told it more.
    PortAskedByBoth,
    /// A client of a hall had promised, and was asked again as one that nothing knows.
    JoinLost,
    /// The backup of a hall was promoted.
    HallPromoted,
    /// A hall was handed over to its backup.
    HallHandedOver,
    /// A hall moved past its backup, which was told to go on with the copy that it had.
    HallKeptOn,
    /// An edge died to which a hall had moved past its backup, and left it to that one.
    HeirDied,
    /// A hall was handed over, its backup did not claim it, and it went on where it was.
    HallStayed,
    /// An edge that took a hall's slot found that another one had it.
    SlotRaceLost,
    /// An edge that took a hall's slot got no answer.
    SlotAnswerLost,
    /// An edge that was started again resigned from the claim that named it as a hall's backup.
    HallResigned,
    /// A hall was lost, and another one began in its place.
    HallReplaced,
    /// A backup went on with several shared cells of one slot at once.
    HallsPromotedTogether,
    /// A shared cell of a key was over, and another one of that key began.
    HallsInTurn,
    /// A hall's edge has rebuilt the cell, which a client's input had stopped, and runs it again.
    TrapRebuilt,
    /// A hall gave the number of a client that had left to the next one.
    NumberReused,
    /// The policies of an edge changed while sessions of it followed one.
    PolicyChanged,
    /// A running session matched another policy, since something else was measured of it.
    PolicyCrossed,
    /// A running session had another backup.
    BackupMoved,
    /// A slot had another backup while its cells ran.
    SlotBackupMoved,
    /// A session, or a slot, was to have one, and kept the one that it had, or lost it meanwhile.
    BackupNotMoved,
    /// Sessions moved to an edge that had joined.
    Rebalanced,
    /// An end whose owner ran ahead of its backup followed that backup, which was behind it.
    EndWasAhead,
    /// A server to which a hall has connected was told that an edge goes on.
    ServerConnected,
    /// As above, not for the first time.
    ServerResumed,
    /// An edge asked for a hall's server that another edge had asked for and not told more.
    ServerAskedByBoth,
    /// An operator cancelled the drain of an edge while a session moved away from it, or waited for that.
    DrainCancelled,
}

impl Rare {
    /// All rare states, in order. A state that is missing here has no place in `Counts`, and
    /// counting it would panic.
    pub const ALL: [Self; 147] = [
        Self::RecoveryDuringPromise,
        Self::RecoveryDuringRestore,
        Self::RecoveryDuringReplay,
        Self::RecoveryDuringChoice,
        Self::ThirdGeneration,
        Self::ZombieRefused,
        Self::GenerationRefused,
        Self::TruncatedLogUsed,
        Self::CheckpointRestored,
        Self::DeltaRestored,
        Self::ClientLogChosen,
        Self::ServerLogChosen,
        Self::LiveOwnerKept,
        Self::CheckpointPartial,
        Self::ServerLed,
        Self::BothLed,
        Self::CloseDuringRecovery,
        Self::LingerExpired,
        Self::SpokeAfterHalfClose,
        Self::TimerReplayed,
        Self::StageTimerReplayed,
        Self::TaskReplayed,
        Self::TaskPendingAtCheckpoint,
        Self::LockAwaitedAtCheckpoint,
        Self::RandomReplayed,
        Self::ReadReplayed,
        Self::BackPressure,
        Self::MemoryFull,
        Self::SessionSlowed,
        Self::ShardMemoryFull,
        Self::CellSlowed,
        Self::CheckpointEarly,
        Self::WindowFull,
        Self::EdgeDrained,
        Self::HandlerStopped,
        Self::DatagramReplayed,
        Self::DatagramThroughStagesReplayed,
        Self::RecordingReplayed,
        Self::RecordingFromCheckpoint,
        Self::RecordingGivenUp,
        Self::StopRecorded,
        Self::CellRecorded,
        Self::CopiedForBudget,
        Self::CopyPrepared,
        Self::DeltasMerged,
        Self::CopiedApart,
        Self::CheckpointRefused,
        Self::StandbyAsked,
        Self::StandbyLed,
        Self::StandbyBehind,
        Self::StandbyAhead,
        Self::StandbyOvertaken,
        Self::StandbyRenewedInVain,
        Self::StandbyLagged,
        Self::StandbyTookOver,
        Self::MoveBegun,
        Self::MoveRefused,
        Self::MoveCancelled,
        Self::MoveReplaced,
        Self::MovePlanned,
        Self::PlanRefused,
        Self::MoveLimited,
        Self::MoveFailed,
        Self::HandedOver,
        Self::HandedToWarm,
        Self::Moved,
        Self::MovedWithin,
        Self::NotMovedWithin,
        Self::StrictMoved,
        Self::MoveUnwitnessed,
        Self::BareMoved,
        Self::BareNotMoved,
        Self::BareForgotten,
        Self::BareAbandoned,
        Self::Unprotected,
        Self::Recalled,
        Self::RecorderLied,
        Self::AgentLied,
        Self::LieRefused,
        Self::WitnessVouched,
        Self::WitnessAway,
        Self::WentHome,
        Self::RunningSessionStruck,
        Self::StaleAtEnd,
        Self::StaleAtOwner,
        Self::StaleAtRecorder,
        Self::StaleAtStandby,
        Self::StaleFromKeeper,
        Self::StaleRecall,
        Self::CoordinatorAway,
        Self::RequestLost,
        Self::RequestLate,
        Self::RequestTwice,
        Self::AnswerLost,
        Self::ClaimWon,
        Self::ClaimLost,
        Self::StoreLoss,
        Self::LossRemembered,
        Self::LossTold,
        Self::LossAccepted,
        Self::GroupRemoved,
        Self::LeftoverRemoved,
        Self::OutputsHeld,
        Self::BackupLost,
        Self::RanAlone,
        Self::Promoted,
        Self::PromotionWaited,
        Self::PrimaryReplaced,
        Self::HandOverAsked,
        Self::CopyForgotten,
        Self::HandedPastBackup,
        Self::TakenBack,
        Self::AskerBehind,
        Self::BackedOwnerDied,
        Self::PagesOwnerDied,
        Self::EdgeLearned,
        Self::LearnedEdgeOwned,
        Self::EdgeNotAsTold,
        Self::HallLed,
        Self::HallLedTwice,
        Self::PortResumed,
        Self::PortAskedByBoth,
        Self::JoinLost,
        Self::HallPromoted,
        Self::HallHandedOver,
        Self::HallKeptOn,
        Self::HeirDied,
        Self::HallStayed,
        Self::SlotRaceLost,
        Self::SlotAnswerLost,
        Self::HallResigned,
        Self::HallReplaced,
        Self::HallsPromotedTogether,
        Self::HallsInTurn,
        Self::TrapRebuilt,
        Self::NumberReused,
        Self::PolicyChanged,
        Self::PolicyCrossed,
        Self::BackupMoved,
        Self::SlotBackupMoved,
        Self::BackupNotMoved,
        Self::Rebalanced,
        Self::EndWasAhead,
        Self::ServerConnected,
        Self::ServerResumed,
        Self::ServerAskedByBoth,
        Self::DrainCancelled,
    ];
}

/// How often each rare state was reached.
#[derive(Clone, Debug)]
pub struct Counts([u64; Rare::ALL.len()]);

impl Default for Counts {
    fn default() -> Self {
        Self([0; Rare::ALL.len()])
    }
}

impl Counts {
    /// Adds to a state's count.
    pub fn add(&mut self, rare: Rare, times: u64) {
        self.0[rare as usize] += times;
    }

    /// Adds the counts of another seed.
    pub fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, count)| *sum += count);
    }

    /// The count of one state.
    #[must_use]
    pub fn of(&self, rare: Rare) -> u64 {
        self.0[rare as usize]
    }

    /// Each state with its count.
    pub fn each(&self) -> impl Iterator<Item = (Rare, u64)> {
        Rare::ALL.into_iter().zip(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_has_its_place() {
        for (place, rare) in Rare::ALL.into_iter().enumerate() {
            assert_eq!(rare as usize, place);
        }
    }
}
