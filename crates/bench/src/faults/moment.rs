//! One combination: waits for its moment, applies the fault, measures what the client sees, and repairs.
//!
//! ```text
//! wait until protected -> moment -> strike -> ask until ENOUGH answers -> undo -> check state -> protected again
//!                                    '------------ gap ------------'          '-------- protected --------'
//! ```
//! A moment cannot be met exactly from outside: whether the operation was still in progress when
//! the fault took effect is measured afterwards and reported as `hit`.

use super::axes::{Combination, Moment};
use super::scene::{Scene, Session};
use super::strike::Blow;
use super::talk::Talk;
use anyhow::Context;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Answers after a fault that mean that the session continues.
const ENOUGH: usize = 10;
/// Bytes sent by an edge while its client sends little: a checkpoint, or the state of a session that moves, is being sent, and more than as
/// much is still to be sent.
const CHECKPOINT_BYTES: u64 = 512 << 10;
/// How long a checkpoint may take to begin.
const PATIENCE: Duration = Duration::from_secs(60);

/// What one fault did to one conversation.
pub(super) struct Struck {
    /// The longest wait for an answer.
    pub(super) gap: Duration,
    /// Whether the fault hit the moment: what was in progress was still in progress when the fault took effect.
    pub(super) hit: bool,
    /// Time from the repair until the session was as well protected as before.
    pub(super) protected: Duration,
}

/// What the thread that applies the fault returns.
struct Hit {
    /// Two for a moment in a recovery, in the order in which they were made.
    blows: Vec<Blow>,
    hit: bool,
}

/// Runs one combination, for the `trial`th time. The session continues afterwards, unless its client lost its connection.
///
/// # Errors
/// If the machines cannot be used any more: a process did not start, or the session did not become
/// protected in time.
pub(super) fn make(
    scene: &mut Scene,
    session: &Session,
    talk: &mut Talk,
    combination: Combination,
    trial: usize,
) -> anyhow::Result<Struck> {
    let owner = scene.wait_until_protected(session)?;
    // A fault that has variants uses each of them, at one moment or the other.
    let round = combination.moment as usize + combination.client as usize;
    let (hit, gap) = match combination.moment {
        Moment::Idle => {
            let hit = Hit { blows: vec![scene.strike(combination.fault, owner, round)?], hit: true };
            (hit, talk.ask())
        }
        Moment::Message | Moment::Backup | Moment::Coordinator => {
            let edge = match combination.moment {
                Moment::Backup => scene.next_owner(session, owner, round)?,
                _ => owner,
            };
            talk.begin_long();
            let struck = Instant::now();
            let blow = match combination.moment {
                Moment::Coordinator => scene.strike_store(combination.fault)?,
                _ => scene.strike(combination.fault, edge, round)?,
            };
            let hit = Hit { blows: vec![blow], hit: true };
            talk.finish_long();
            (hit, struck.elapsed())
        }
        Moment::Checkpoint => while_talking(talk, Talk::churn, || {
            let before = scene.machine(owner)?.sent_bytes()?;
            wait_until_sending(scene, owner, before)?;
            let blow = scene.strike(combination.fault, owner, round)?;
            // The edge has sent less than the state since: the checkpoint has not arrived.
            let left = scene.machine(owner)?.sent_bytes()?.saturating_sub(before);
            Ok(Hit { blows: vec![blow], hit: left < Talk::STATE_BYTES })
        })?,
        Moment::Recovery => {
            let next = scene.next_owner(session, owner, round)?;
            while_talking(talk, Talk::ask, || {
                let start = scene.cluster.logs.end();
                let first = scene.strike(super::axes::Fault::Kill, owner, round)?;
                scene.wait_for_orphan(session, start)?;
                let second = scene.strike(combination.fault, next, round)?;
                let hit = scene.is_orphan(session, start, Instant::now());
                Ok(Hit { blows: vec![first, second], hit })
            })?
        }
        Moment::Move => while_talking(talk, Talk::ask, || {
            let begun = scene.begin_move(session, owner, round)?;
            wait_until_sending(scene, begun.from, begun.sent)?;
            // Both are struck, one after the other, whatever the client is.
            let struck = [begun.from, begun.to][(trial + combination.client as usize) % 2];
            let blow = scene.strike(combination.fault, struck, round)?;
            // Until its client's agent has the other edge as the owner, the move is not over.
            let hit = scene.is_orphan(session, begun.logs, Instant::now());
            Ok(Hit { blows: vec![blow], hit })
        })?,
    };
    let gap = (0..ENOUGH).map(|_| talk.ask()).fold(gap, Duration::max);
    scene.undo(hit.blows)?;
    talk.check_state();
    let undone = Instant::now();
    if talk.is_whole() {
        scene.wait_until_protected(session)?;
    }
    Ok(Struck { gap, hit: hit.hit, protected: undone.elapsed() })
}

/// Asks repeatedly until the fault has taken effect and the current question is answered; returns the longest wait.
///
/// `strike` runs on a thread of its own, so that the client asks without a pause; a client that
/// lost its connection stops asking.
fn while_talking(
    talk: &mut Talk,
    mut ask: impl FnMut(&mut Talk) -> Duration,
    strike: impl FnOnce() -> anyhow::Result<Hit> + Send,
) -> anyhow::Result<(Hit, Duration)> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let striker = scope.spawn(|| {
            let hit = strike();
            done.store(true, Ordering::Release);
            hit
        });
        let mut gap = Duration::ZERO;
        while !done.load(Ordering::Acquire) && talk.is_whole() {
            gap = gap.max(ask(talk));
        }
        let hit = striker.join().ok().context("the thread that injects faults panicked")??;
        Ok((hit, gap))
    })
}

/// Waits until the edge is sending a checkpoint, or the state of a session that moves.
///
/// The edge's sent bytes are those of its link, in the namespace: data of the client is little
/// beside either.
fn wait_until_sending(scene: &Scene, owner: usize, before: u64) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while scene.machine(owner)?.sent_bytes()?.saturating_sub(before) < CHECKPOINT_BYTES {
        anyhow::ensure!(
            Instant::now() < deadline,
            "no checkpoint and no state was in flight within {PATIENCE:?}"
        );
        std::thread::yield_now();
    }
    Ok(())
}
