//! The faults of a seed so far, and which ends of sessions they explain. A session that ends for another reason
//! is a violation: every session must survive most faults.
//!
//! Without this, an oracle of results could not tell a session that was lost from one that had to
//! end. It must stay strict: every code that is accepted after a fault hides the bugs that end
//! sessions with that code. So faults set the narrowest cause that they can.

use super::{World, liars::LIED_CODES};
use crate::{executor::Trapped, oracle::is_valid_prefix, plan::Service, program::Program, watch::Rare};
use marram_wire::{frame::Code, id::SessionId, limits::CHECKPOINTS_SIZE};
use std::collections::BTreeSet;

/// With this begins why a session ends whose end keeps all that it can, if no checkpoint makes room.
const KEEPS_TOO_MUCH: &str = "an end can keep no further message";

/// Events that may end a session.
#[derive(Debug, Default)]
pub(crate) struct Causes {
    /// Sessions that had an end at an agent whose process crashed.
    pub(crate) agent_died: BTreeSet<SessionId>,
    /// Sessions whose server did not accept its agent's connection.
    pub(crate) server_refused: BTreeSet<SessionId>,
    /// Sessions of programs that reset their connection.
    pub(crate) program_broke: BTreeSet<SessionId>,
    /// Sessions that operators were asked to end.
    pub(crate) killed: BTreeSet<SessionId>,
    /// Sessions of the unprotected app.
    pub(crate) bare: BTreeSet<SessionId>,
    /// Sessions whose outputs wait for a backup, and whose owner died without one.
    pub(crate) unbacked_died: BTreeSet<SessionId>,
    /// As above, and whose owner died: with the edge that was its backup.
    pub(crate) owner_died: BTreeSet<(SessionId, usize)>,
    /// As above, of which a backup has claimed the group.
    pub(crate) owner_replaced: BTreeSet<SessionId>,
    /// As above, and what an edge was fed of them died there.
    pub(crate) backup_died: BTreeSet<(SessionId, usize)>,
}

impl Causes {
    /// Whether no edge can go on with a session whose outputs wait for a backup. A move alone costs no session.
    fn have_lost(&self, session: SessionId) -> bool {
        let died = |(of, _): &&(SessionId, usize)| *of == session;
        let mut backups = self.backup_died.iter().filter(died);
        let both = backups.any(|at| self.owner_replaced.contains(&session) || self.owner_died.contains(at));
        both || self.unbacked_died.contains(&session)
    }

    /// Whether this is so of any.
    pub(crate) fn have_lost_any(&self) -> bool {
        let mut died = self.owner_died.iter().chain(&self.backup_died);
        !self.unbacked_died.is_empty() || died.any(|(session, _)| self.have_lost(*session))
    }
}

impl World {
    /// Whether a session may end like this. `service` is known for a client's program; for other ends it is known once an edge
    /// has owned the session.
    ///
    /// A short linger time explains most ends for want of an owner: in such seeds ends forget
    /// sessions while edges are still away. So it does once a fault has been injected.
    pub(crate) fn explains(&self, code: Code, session: Option<SessionId>, service: Option<Service>) -> bool {
        let causes = &self.causes;
        let bare = service == Some(Service::Bare) || session.is_some_and(|id| causes.bare.contains(&id));
        let in_hall = service.map_or(self.plan.has_hall(), |service| service == Service::Hall);
        // The clients of a hall are in one cell, whose id they do not know.
        let killed = session.is_some_and(|session| causes.killed.contains(&session))
            || (in_hall && !causes.killed.is_empty());
        // An end that never learned of its session cannot say which one it was.
        let is_in =
            |struck: &BTreeSet<SessionId>| session.map_or(!struck.is_empty(), |id| struck.contains(&id));
        let trapped = session.is_some_and(|session| self.has_trapped(session));
        let (refused, broke) = (is_in(&causes.server_refused), is_in(&causes.program_broke));
        // A primary may have run alone by a claim that the store has lost.
        let forgotten =
            self.plan.has_epochs() && self.coordinator.as_ref().is_some_and(|store| store.has_lost());
        let hall_lost = in_hall && causes.have_lost_any();
        let unbacked = session.is_some_and(|id| causes.have_lost(id)) || forgotten || hall_lost;
        let lost = bare && self.is_disturbed || unbacked;
        // A failure that happens once is retried, unless there is no state to retry with.
        let always = self.plan.poison.is_some_and(|poison| poison.always);
        let stopped = self.past.poisoned && (always || bare || self.plan.has_epochs());
        // Without a checkpoint the log of a long session becomes full, or an end can keep no more.
        let exhausted = self.plan.checkpoints_max < CHECKPOINTS_SIZE;
        let over = killed || stopped || trapped || exhausted || is_in(&causes.agent_died) || refused || broke;
        let short = self.plan.short_linger && self.faults_injected > 0;
        match code {
            Code::Finished => true,
            // The other end learned one of these codes, but neither the owner nor this end did.
            Code::Lost | Code::Forgotten => lost || over || short,
            // Ends that keep it for a move wait for the other edge, which may be gone too.
            // An end that did not hear why its session ended finds no edge that has it, and no end that tells.
            // A hall of which no copy is left begins again when its edges are back.
            Code::NoEdge | Code::Waiting => {
                lost && (!in_hall || forgotten) || short || self.plan.has_epochs() && over
            }
            Code::Killed => killed,
            Code::Guest => stopped || exhausted || trapped,
            Code::ServerDown => refused,
            Code::Reset => broke,
            // The edge to which clients of a hall are led may be away, and one that was away for too long has left.
            Code::Elsewhere if in_hall => lost || short,
            // A session that waits for ever keeps others out of an agent.
            Code::Busy if self.plan.may_starve() => true,
            Code::NoServerAgent | Code::Busy | Code::Superseded | Code::UnknownApp | Code::UnknownImage => {
                short
            }
            // No fault makes an end, an edge or a recorder accept a forgery; no app but the hall is shared; each process has the right role;
            // the last one is for edges alone.
            Code::Tampered
            | Code::Protocol
            | Code::WrongKey
            | Code::Elsewhere
            | Code::Forbidden
            | Code::HandedOn => false,
        }
    }

    /// Whether an input of this session's client has stopped a handler of its hall: that client alone loses its session.
    fn has_trapped(&self, session: SessionId) -> bool {
        let is_its = |program: &Program, trapped: &Trapped| match trapped {
            Trapped::Message(visit) => program.visit == Some(*visit),
            Trapped::Close(said) => is_valid_prefix(said, program),
        };
        let mut programs = self.programs.iter().filter(|program| program.session == Some(session));
        programs.any(|program| self.past.trapped.iter().any(|trapped| is_its(program, trapped)))
    }

    /// Checks whether the end of a session, at an end or a program, is explained.
    ///
    /// Also counts how often a lie was refused. Returns whether the end is explained, for the
    /// program's own judgement.
    pub(crate) fn judge_end(
        &mut self,
        what: &str,
        (code, reason): (Code, &str),
        session: Option<SessionId>,
        service: Option<Service>,
    ) -> bool {
        let lied = session.is_some_and(|session| self.is_lied_about(session));
        self.watch.count_if(Rare::LieRefused, lied && matches!(code, Code::Protocol | Code::Tampered));
        let explained = self.explains(code, session, service) || (lied && is_said_after_lies(code));
        // A full memory slows a session down: it ends only where an end keeps as much as it could keep alone.
        let ends_for_memory =
            code == Code::Guest && reason.starts_with(KEEPS_TOO_MUCH) && !self.plan.fills_ends();
        let explained = explained && !ends_for_memory;
        if !explained {
            let text =
                format!("{what} of session {session:?} ended and no fault explains it: {code:?}, {reason}");
            self.violations.push(text);
        }
        explained
    }
}

/// The codes that the other end of a lying end's session may learn, besides those that faults explain: what an owner says of a
/// lie, what the liar itself says, and what is said when its end is gone. No lie makes an operator, a cell or a missing edge the
/// cause.
fn is_said_after_lies(code: Code) -> bool {
    let owner = matches!(code, Code::Protocol | Code::Tampered | Code::WrongKey);
    owner || LIED_CODES.contains(&code) || matches!(code, Code::Forgotten | Code::Lost)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use marram_chain_algo::Stream;
    use marram_session::agent::ConnectionId;

    const SESSION: Option<SessionId> = Some(SessionId([1; 16]));
    const ALL: [Code; 9] = [
        Code::Lost,
        Code::Forgotten,
        Code::Killed,
        Code::Guest,
        Code::ServerDown,
        Code::Reset,
        Code::NoEdge,
        Code::Tampered,
        Code::Protocol,
    ];

    /// The codes that are explained after this change to an ordinary seed.
    fn explained(change: impl FnOnce(&mut World)) -> Vec<Code> {
        let ordinary = |plan: &Plan| {
            !plan.short_linger && plan.poison.is_none() && plan.checkpoints_max == CHECKPOINTS_SIZE
        };
        let plan = (0..).map(Plan::of).find(ordinary).unwrap();
        let mut world = World::new(plan, false);
        change(&mut world);
        ALL.into_iter().filter(|code| world.explains(*code, SESSION, Some(Service::Paired))).collect()
    }

    #[test]
    fn an_input_that_stops_a_hall_explains_the_end_of_its_client_alone() {
        let stopped = |visit: u32| {
            explained(|world| {
                let mut program = Program::client(&world.plan, 0, 0, ConnectionId(1));
                program.session = SESSION;
                world.programs.push(program);
                world.past.trapped.push(Trapped::Message(visit));
            })
        };
        assert_eq!(stopped(0), [Code::Lost, Code::Forgotten, Code::Guest]);
        assert_eq!(stopped(1), [], "another client's");
        let left = |said: &[u8]| {
            explained(|world| {
                let mut program = Program::client(&world.plan, 0, 0, ConnectionId(1));
                (program.session, program.written) = (SESSION, b"all that it says".to_vec());
                world.programs.push(program);
                let mut stream = Stream::EMPTY;
                stream.consume(said);
                world.past.trapped.push(Trapped::Close(stream));
            })
        };
        assert_eq!(left(b"all that"), [Code::Lost, Code::Forgotten, Code::Guest]);
        assert_eq!(left(b"something"), [], "another client's");
    }

    #[test]
    fn each_end_of_a_session_has_its_own_causes_and_none_explains_a_forgery() {
        assert_eq!(explained(|_| {}), []);
        assert_eq!(explained(|world| world.plan.short_linger = true), [], "nothing was away yet");
        assert_eq!(explained(|world| world.causes.agent_died.extend(SESSION)), [Code::Lost, Code::Forgotten]);
        assert_eq!(
            explained(|world| world.causes.program_broke.extend(SESSION)),
            [Code::Lost, Code::Forgotten, Code::Reset]
        );
        assert_eq!(
            explained(|world| world.causes.server_refused.extend(SESSION)),
            [Code::Lost, Code::Forgotten, Code::ServerDown]
        );
        assert_eq!(
            explained(|world| world.causes.killed.extend(SESSION)),
            [Code::Lost, Code::Forgotten, Code::Killed]
        );
        assert_eq!(
            explained(|world| {
                let other = SessionId([2; 16]);
                world.causes.killed.insert(other);
                world.causes.agent_died.insert(other);
                world.causes.server_refused.insert(other);
                world.causes.program_broke.insert(other);
            }),
            [],
            "another session's"
        );
        assert_eq!(explained(|world| world.causes.bare.extend(SESSION)), []);
        let disturbed = explained(|world| {
            world.causes.bare.extend(SESSION);
            world.is_disturbed = true;
        });
        assert_eq!(disturbed, [Code::Lost, Code::Forgotten, Code::NoEdge]);
        assert_eq!(
            explained(|world| (world.plan.short_linger, world.faults_injected) = (true, 1)),
            [Code::Lost, Code::Forgotten, Code::NoEdge]
        );
        let poison = |always| {
            explained(|world| {
                world.plan.poison = Some(crate::plan::Poison { event: 1, always });
                world.past.poisoned = true;
            })
        };
        assert_eq!(poison(true), [Code::Lost, Code::Forgotten, Code::Guest]);
        assert_eq!(poison(false), [], "what strikes once is outlived");
    }
}
