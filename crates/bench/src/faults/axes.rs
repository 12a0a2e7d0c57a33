//! The dimensions of a combination: fault, policy, moment and client.
//!
//! 8 faults x 4 policies x 5 moments x 2 clients = 320 combinations; with `epoch`, at 3 paces and for a shared cell, 8 faults x 4 policies x
//! 4 moments x 2 clients = 256, and 2 faults of the coordinator x 4 policies x 2 clients = 16. Each has a name for `--only` and for the report, as
//! `sigkill.mid-message.warm.gate`. This module knows names only; `strike` makes faults and `moment` finds moments.

/// A fault of an edge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    Kill,
    Hang,
    Reset,
    OneWay,
    TwoWay,
    Slow,
    FullDisk,
    Clock,
}

impl Fault {
    pub(super) const ALL: [Self; 8] = [
        Self::Kill,
        Self::Hang,
        Self::Reset,
        Self::OneWay,
        Self::TwoWay,
        Self::Slow,
        Self::FullDisk,
        Self::Clock,
    ];

    /// For `--only` and JSON: part of the interface of the benchmark.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kill => "sigkill",
            Self::Hang => "sigstop",
            Self::Reset => "reset",
            Self::OneWay => "one-way",
            Self::TwoWay => "two-way",
            Self::Slow => "slow",
            Self::FullDisk => "full-disk",
            Self::Clock => "clock",
        }
    }

    /// The fault in words, for the table of docs/faults.md.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Kill => "an edge is killed (SIGKILL), its directory lost",
            Self::Hang => "an edge is stopped (SIGSTOP) and resumed later (SIGCONT)",
            Self::Reset => "all connections of an edge are reset",
            Self::OneWay => "one-way partition: an edge receives and cannot send, or the reverse",
            Self::TwoWay => "two-way partition: an edge is unreachable, and reachable again later",
            Self::Slow => "slow link: 4 Mbit/s each way, a queue of 50 ms",
            Self::FullDisk => "the disks of an edge and its recorder are full",
            Self::Clock => "clock jump: on to an edge 30 days ahead or behind",
        }
    }
}

/// How the session is protected.
/// A recorder is no policy of its own: the app has `endpoints`, and the site has a recorder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Policy {
    Endpoints,
    Recorder,
    Warm,
    Hot,
    /// `epoch`, with so many epochs a second.
    Epoch100,
    Epoch1000,
    /// `epoch`, with one for each message.
    EpochMessage,
    /// `epoch`, with 1,000 a second, of a cell that two clients share.
    Shared,
}

impl Policy {
    pub(super) const ALL: [Self; 8] = [
        Self::Endpoints,
        Self::Recorder,
        Self::Warm,
        Self::Hot,
        Self::Epoch100,
        Self::Epoch1000,
        Self::EpochMessage,
        Self::Shared,
    ];

    /// Whether outputs wait for a backup: ends keep no log then, and the coordinator decides which edge goes on.
    pub(super) fn is_epoch(self) -> bool {
        matches!(self, Self::Epoch100 | Self::Epoch1000 | Self::EpochMessage | Self::Shared)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Endpoints => "endpoints",
            Self::Recorder => "recorder",
            Self::Warm => "warm",
            Self::Hot => "hot",
            Self::Epoch100 => "epoch-hz100",
            Self::Epoch1000 => "epoch-hz1000",
            Self::EpochMessage => "epoch-message",
            Self::Shared => "shared",
        }
    }

    /// The heading of the policy's column.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Endpoints => "`endpoints`",
            Self::Recorder => "`endpoints`, recorder",
            Self::Warm => "`standby`, warm",
            Self::Hot => "`standby`, hot",
            Self::Epoch100 => "`epoch`, 100 Hz",
            Self::Epoch1000 => "`epoch`, 1,000 Hz",
            Self::EpochMessage => "`epoch`, each message",
            Self::Shared => "shared cell, `epoch`, 1,000 Hz",
        }
    }

    /// Its lines in a manifest. A shared cell has no server of its own; this one answers its clients itself.
    pub(super) fn manifest(self) -> &'static str {
        match self {
            Self::Shared => "cell = \"shared\"\nprotect = \"epoch\"\n[epoch]\nevery = \"1ms\"",
            Self::Endpoints | Self::Recorder => "protect = \"endpoints\"",
            Self::Warm => "protect = \"standby\"\nstandby = \"warm\"",
            Self::Hot => "protect = \"standby\"\nstandby = \"hot\"",
            Self::Epoch100 => "protect = \"epoch\"\n[epoch]\nevery = \"10ms\"",
            Self::Epoch1000 => "protect = \"epoch\"\n[epoch]\nevery = \"1ms\"",
            Self::EpochMessage => "protect = \"epoch\"\n[epoch]\nevery = \"message\"",
        }
    }

    /// The kind of the standby, as the owner lists it, if the policy has one.
    pub(super) fn keeper(self) -> Option<&'static str> {
        match self {
            Self::Endpoints | Self::Recorder => None,
            Self::Warm => Some("warm"),
            Self::Hot => Some("hot"),
            Self::Epoch100 | Self::Epoch1000 | Self::EpochMessage | Self::Shared => Some("backup"),
        }
    }
}

/// The moment at which the fault happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Moment {
    /// Nothing is in progress.
    Idle,
    /// Half of a long message has been sent.
    Message,
    /// Part of a checkpoint has been sent by the edge.
    Checkpoint,
    /// Another edge was killed, and an agent or a gate has just reported that the session has no owner.
    Recovery,
    /// The session is being copied to another edge, to which an operator moves it. The fault strikes the edge that it leaves, or the other
    /// one.
    Move,
    /// As `Message`, but the fault strikes the session's backup.
    Backup,
    /// As `Message`, but the fault strikes the coordinator.
    Coordinator,
}

impl Moment {
    pub(super) const ALL: [Self; 7] = [
        Self::Idle,
        Self::Message,
        Self::Checkpoint,
        Self::Recovery,
        Self::Move,
        Self::Backup,
        Self::Coordinator,
    ];

    /// Whether there is this moment under a policy. With `epoch` ends keep no checkpoints, and a session that loses its owner and its
    /// backup at once is lost.
    fn is_of(self, policy: Policy) -> bool {
        match self {
            Self::Idle | Self::Message | Self::Move => true,
            Self::Checkpoint | Self::Recovery => !policy.is_epoch(),
            Self::Backup | Self::Coordinator => policy.is_epoch(),
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Message => "mid-message",
            Self::Checkpoint => "mid-checkpoint",
            Self::Recovery => "mid-recovery",
            Self::Move => "mid-move",
            Self::Backup => "backup",
            Self::Coordinator => "coordinator",
        }
    }
}

/// Where the client's end is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Client {
    /// In an agent beside the client.
    Agent,
    /// In the gate of an edge that does not run its cell.
    Gate,
}

impl Client {
    pub(super) const ALL: [Self; 2] = [Self::Agent, Self::Gate];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Gate => "gate",
        }
    }
}

/// One of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Combination {
    pub(super) fault: Fault,
    pub(super) policy: Policy,
    pub(super) moment: Moment,
    pub(super) client: Client,
}

impl Combination {
    /// All combinations; those with the same policy and client are adjacent.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let faults = |policy, client| {
            Fault::ALL.into_iter().flat_map(move |fault| {
                let moments = Moment::ALL.into_iter().filter(move |moment| {
                    // The coordinator is a process, and no machine.
                    let possible =
                        *moment != Moment::Coordinator || matches!(fault, Fault::Kill | Fault::Hang);
                    possible && moment.is_of(policy)
                });
                moments.map(move |moment| Self { fault, policy, moment, client })
            })
        };
        Policy::ALL
            .into_iter()
            .flat_map(move |policy| Client::ALL.into_iter().flat_map(move |client| faults(policy, client)))
    }

    /// The name that `--only` filters by.
    pub(super) fn name(self) -> String {
        let Self { fault, policy, moment, client } = self;
        format!("{}.{}.{}.{}", fault.name(), moment.name(), policy.name(), client.name())
    }

    /// Whether a quick run includes it. A quick run makes one combination in ten: every fault with every policy once, all
    /// moments and both clients.
    pub(super) fn is_sample(self) -> bool {
        let Self { fault, policy, moment, client } = self;
        let moments: Vec<Moment> = Self::all()
            .filter(|it| it.fault == fault && it.policy == policy && it.client == client)
            .map(|it| it.moment)
            .collect();
        let (fault, policy) = (fault as usize, policy as usize);
        moments[(fault + policy) % moments.len()] == moment && client as usize == (fault + policy / 2) % 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_run_meets_every_fault_under_every_policy_and_every_moment() {
        let sample: Vec<_> = Combination::all().filter(|it| it.is_sample()).collect();
        assert_eq!((sample.len(), Combination::all().count()), (64, 320 + 256 + 16));
        for fault in Fault::ALL {
            for policy in Policy::ALL {
                assert_eq!(sample.iter().filter(|it| it.fault == fault && it.policy == policy).count(), 1);
            }
            for client in Client::ALL {
                let count = sample.iter().filter(|it| it.fault == fault && it.client == client).count();
                assert_eq!(count, 4, "{}", fault.name());
            }
        }
        for moment in Moment::ALL {
            let least = if moment == Moment::Coordinator { 1 } else { 5 };
            let count = sample.iter().filter(|it| it.moment == moment).count();
            assert!(count >= least, "{}: {count}", moment.name());
        }
    }
}
