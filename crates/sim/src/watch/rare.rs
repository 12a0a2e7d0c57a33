//! The states that a simulation is for: rare in life, and wrong most often. Each must be reached often in every run.

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
    /// The server's end asked for a generation.
    ServerLed,
    /// Both ends asked for one at once.
    BothLed,
    /// A program ended its output while its session had no owner.
    CloseDuringRecovery,
    /// An end forgot a session after its linger time.
    LingerExpired,
    /// One side spoke on after the other had ended its output.
    SpokeAfterHalfClose,
    /// A timer fired in replay.
    TimerReplayed,
    /// A timer of another stage than the first one fired in replay.
    StageTimerReplayed,
    /// A task had its turn in replay.
    TaskReplayed,
    /// A checkpoint was taken while a task waited for its turn.
    TaskPendingAtCheckpoint,
    /// A checkpoint was taken while a task waited for another's lock.
    LockAwaitedAtCheckpoint,
    /// Random bytes were drawn in replay.
    RandomReplayed,
    /// What was read from a cache was read again in replay, from the log.
    ReadReplayed,
    /// An agent stopped reading from a program.
    BackPressure,
    /// An edge had as many outputs on their way as an end takes.
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
    /// A recording came to nothing, since its session was on its way elsewhere.
    RecordingGivenUp,
    /// A handler that was stopped was recorded.
    StopRecorded,
    /// An edge that stood by asked the ends for their promise.
    StandbyAsked,
    /// As above, before any end had asked an edge.
    StandbyLed,
    /// An end's log went further than what the standby had been fed.
    StandbyBehind,
    /// What the standby had been fed went further than an end's log.
    StandbyAhead,
    /// An end had promised another owner since: what the standby had was of no use.
    StandbyOvertaken,
    /// A standby's cell went on.
    StandbyTookOver,
    /// A recorder gave what it kept of a session.
    Recalled,
    /// A recorder gave something else than it was fed.
    RecorderLied,
    /// A recovery was vouched for by the witness.
    WitnessVouched,
    /// A recovery asked the witness in vain.
    WitnessAway,
    /// A session went back to the shard where it belongs.
    WentHome,
    /// The first fault of a seed struck a session that ran.
    RunningSessionStruck,
    /// A frame of an older generation came to an end.
    StaleAtEnd,
    /// A frame of an older generation came to an owner.
    StaleAtOwner,
    /// The coordinator went away.
    CoordinatorAway,
    /// A request to it was lost.
    RequestLost,
    /// One came after it was given up.
    RequestLate,
    /// One came twice.
    RequestTwice,
    /// A write was done, and its answer lost.
    AnswerLost,
    /// An edge won a claim.
    ClaimWon,
    /// An edge lost one.
    ClaimLost,
}

impl Rare {
    /// All of them, in order.
    pub const ALL: [Self; 56] = [
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
        Self::WindowFull,
        Self::EdgeDrained,
        Self::HandlerStopped,
        Self::DatagramReplayed,
        Self::DatagramThroughStagesReplayed,
        Self::RecordingReplayed,
        Self::RecordingFromCheckpoint,
        Self::RecordingGivenUp,
        Self::StopRecorded,
        Self::StandbyAsked,
        Self::StandbyLed,
        Self::StandbyBehind,
        Self::StandbyAhead,
        Self::StandbyOvertaken,
        Self::StandbyTookOver,
        Self::Recalled,
        Self::RecorderLied,
        Self::WitnessVouched,
        Self::WitnessAway,
        Self::WentHome,
        Self::RunningSessionStruck,
        Self::StaleAtEnd,
        Self::StaleAtOwner,
        Self::CoordinatorAway,
        Self::RequestLost,
        Self::RequestLate,
        Self::RequestTwice,
        Self::AnswerLost,
        Self::ClaimWon,
        Self::ClaimLost,
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
    /// Reached so many times more.
    pub fn add(&mut self, rare: Rare, times: u64) {
        self.0[rare as usize] += times;
    }

    /// Takes in another seed's.
    pub fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, count)| *sum += count);
    }

    /// How often one was reached.
    #[must_use]
    pub fn of(&self, rare: Rare) -> u64 {
        self.0[rare as usize]
    }

    /// Each with its count.
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
