//! An agent that lies: which sessions are its own, and which lies it tells when. Its machine is an honest one; what it sends is
//! changed on its way to the wire.
//!
//! It lies about all that an end says: counts, offsets, generations, kinds and order of frames, what it keeps. It may hide a part
//! of its log from one owner and show it to the next, answer as it did before, and say what its own end never would. It cannot
//! open or forge what is sealed, and has the credential of its kind.
//!
//! ```text
//! Agent::step --out--> [ hear what it is asked | put lies in: answers, single frames ] --> wires
//! ```
//! The machine stays honest, so that the lies are near the truth: a random frame would be refused
//! for its first field. The lies of one process are known (`sessions`), and no session that is not
//! among them may be affected: docs/protocol.md, "Failure model".

mod frames;

use super::World;
use crate::{
    plan::{self, Plan},
    program::LiedTo,
    random::Random,
};
use marram_session::agent::{AgentInput, AgentOutput, WireId};
use marram_wire::{
    frame::{Channel, Code, Ended, Frame},
    id::{HostId, SessionId},
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The codes that a liar ends its sessions with.
pub(super) const LIED_CODES: [Code; 5] =
    [Code::Finished, Code::Reset, Code::Busy, Code::Superseded, Code::Waiting];
/// How many frames of a wire it may send again.
const SENT_MAX: usize = 16;
/// How many answers of a session it may give again, and how many frames such an answer has at most.
const ANSWERS_MAX: usize = 4;
const ANSWER_FRAMES_MAX: usize = 200;

/// The state of the lying agent.
#[derive(Debug)]
pub(super) struct Liar {
    pub(super) agent: usize,
    /// Of its first process, the lying one.
    pub(super) host: HostId,
    /// How often it lies in this seed.
    plan: plan::Liar,
    chance: Random,
    /// Sessions that have an end at it: no other may be affected.
    pub(super) sessions: BTreeSet<SessionId>,
    /// Channels and their sessions, from the promises that it was asked for.
    bound: BTreeMap<(WireId, Channel), SessionId>,
    /// What it sent last, by wire.
    sent: BTreeMap<WireId, VecDeque<Frame>>,
    /// What its ends really kept when they were asked, by session.
    answers: BTreeMap<SessionId, Vec<Vec<Frame>>>,
}

impl Liar {
    pub(super) fn new(plan: &Plan, liar: plan::Liar) -> Self {
        Self {
            agent: liar.agent(plan.clients),
            host: HostId::default(),
            plan: liar,
            chance: Random::new(plan.seed, 45),
            sessions: BTreeSet::new(),
            bound: BTreeMap::new(),
            sent: BTreeMap::new(),
            answers: BTreeMap::new(),
        }
    }

    /// Its machine is told something: learns which channel is of which session.
    pub(super) fn hear(&mut self, input: &AgentInput) {
        if let AgentInput::Frame { wire, frame: Frame::Promise(promise) } = input {
            self.sessions.insert(promise.session);
            self.bound.insert((*wire, promise.channel), promise.session);
        }
    }

    /// Puts lies into what its machine is about to do. Returns how many.
    pub(super) fn lie(&mut self, out: &mut Vec<AgentOutput>) -> u64 {
        let mut lies = 0;
        let mut honest = VecDeque::from(std::mem::take(out));
        while let Some(next) = honest.pop_front() {
            let AgentOutput::Send { wire, frame } = next else {
                out.push(next);
                continue;
            };
            let frames = match self.asked(wire, &frame) {
                Some(session) => {
                    let answer = rest_of_answer(wire, frame, &mut honest);
                    let (answer, lied) = self.answer(session, answer);
                    lies += u64::from(lied);
                    answer
                }
                None => vec![frame],
            };
            for frame in frames {
                let heartbeat = matches!(frame, Frame::Ping(_) | Frame::Pong(_) | Frame::Greet(_));
                if heartbeat || !self.chance.percent(self.plan.frames_percent) {
                    self.send(wire, frame, out);
                } else {
                    lies += 1;
                    for said in self.instead_of(wire, frame) {
                        self.send(wire, said, out);
                    }
                }
            }
        }
        lies
    }

    /// Sends a frame and keeps it, to be said again later.
    fn send(&mut self, wire: WireId, frame: Frame, out: &mut Vec<AgentOutput>) {
        let sent = self.sent.entry(wire).or_default();
        if sent.len() == SENT_MAX {
            sent.pop_front();
        }
        sent.push_back(frame.clone());
        out.push(AgentOutput::Send { wire, frame });
    }

    /// The session for which this frame begins an answer to an edge that asks for a promise.
    ///
    /// An answer is the frame that promises and all that shows what the end keeps. It is lied about
    /// as a whole, so that the lie can be consistent.
    fn asked(&self, wire: WireId, frame: &Frame) -> Option<SessionId> {
        let channel = match frame {
            Frame::Promised(promised) => promised.channel,
            // Its end has given the session up, since it did not understand what followed on a lie.
            Frame::Ended(ended) if ended.code == Code::Forgotten => ended.channel,
            _ => return None,
        };
        self.bound.get(&(wire, channel)).copied()
    }

    /// Lies about what an end keeps. Returns what to send instead, and whether it is a lie.
    ///
    /// True answers are kept as well: to say an old one again is the lie of an end that has rolled
    /// back.
    fn answer(&mut self, session: SessionId, mut answer: Vec<Frame>) -> (Vec<Frame>, bool) {
        let chance = &mut self.chance;
        let before = self.answers.entry(session).or_default();
        let known = before.len();
        if matches!(answer.first(), Some(Frame::Promised(_))) && answer.len() <= ANSWER_FRAMES_MAX {
            if known == ANSWERS_MAX {
                before.remove(chance.index(known));
            }
            before.push(answer.clone());
        }
        if !chance.percent(self.plan.answers_percent) {
            return (answer, false);
        }
        let Some(channel) = answer.first().and_then(frames::channel_of) else { return (answer, false) };
        let promised = matches!(answer.first(), Some(Frame::Promised(_)));
        match chance.below(10) {
            // Says what it said before: it goes back, or shows what it has hidden since.
            0..4 if known > 0 => {
                answer.clone_from(&before[chance.index(known.min(before.len()))]);
                answer.iter_mut().for_each(|frame| frames::set_channel(frame, channel));
            }
            0..6 if promised => frames::hide(chance, &mut answer),
            6 | 7 if promised => frames::change(chance, &mut answer[0]),
            8 => {
                let at = chance.index(answer.len());
                answer.remove(at);
            }
            _ => {
                let (a, b) = (chance.index(answer.len()), chance.index(answer.len()));
                answer.swap(a, b);
            }
        }
        (answer, true)
    }

    /// What it says instead of an honest frame. Nothing, the frame twice, an old or an invented one
    /// beside it, an end of the session, or the frame with a change.
    fn instead_of(&mut self, wire: WireId, mut frame: Frame) -> Vec<Frame> {
        let chance = &mut self.chance;
        let channel = frames::channel_of(&frame);
        let sent = self.sent.get(&wire);
        let again = sent.filter(|sent| !sent.is_empty()).map(|sent| sent[chance.index(sent.len())].clone());
        match chance.below(12) {
            0 => Vec::new(),
            1 => vec![frame.clone(), frame],
            // Again what it said before, on its old channel or on this one.
            2 | 3 => {
                let mut again = again.unwrap_or_else(|| frame.clone());
                if let Some(channel) = channel.filter(|_| chance.percent(50)) {
                    frames::set_channel(&mut again, channel);
                }
                vec![frame, again]
            }
            4 | 5 => {
                let channels: Vec<Channel> = self
                    .bound
                    .range((wire, 0)..=(wire, Channel::MAX))
                    .map(|((_, channel), _)| *channel)
                    .collect();
                let any = if channels.is_empty() { 1 } else { channels[chance.index(channels.len())] };
                let here = chance.percent(70);
                let invented = frames::invent(chance, channel.filter(|_| here).unwrap_or(any));
                if chance.percent(50) { vec![invented, frame] } else { vec![frame, invented] }
            }
            6 => {
                let code = chance.pick(&LIED_CODES);
                let ended = channel.map(|channel| Ended { channel, code, reason: "a lie".into() }.into());
                ended.into_iter().collect()
            }
            _ => {
                frames::change(chance, &mut frame);
                vec![frame]
            }
        }
    }
}

/// What follows in an answer: the frames on its wire, as long as nothing else comes between.
fn rest_of_answer(wire: WireId, first: Frame, honest: &mut VecDeque<AgentOutput>) -> Vec<Frame> {
    let channel = frames::channel_of(&first);
    let mut answer = vec![first];
    while let Some(AgentOutput::Send { wire: at, frame }) = honest.front() {
        if *at != wire || frames::channel_of(frame) != channel {
            break;
        }
        answer.push(frame.clone());
        honest.pop_front();
    }
    answer
}

impl World {
    /// Whether an agent's present process lies.
    pub(super) fn lies(&self, agent: usize) -> bool {
        self.agents[agent].life == 0 && self.liar.as_ref().is_some_and(|liar| liar.agent == agent)
    }

    /// A promise that is asked of one end names the agent of the other one: if that lies or dies, the session may end, even if
    /// it was never asked.
    pub(super) fn note_liar(&mut self, frame: &Frame) {
        let Frame::Promise(promise) = frame else { return };
        let Some(liar) = &mut self.liar else { return };
        if promise.peer == Some(liar.host) {
            liar.sessions.insert(promise.session);
        }
    }

    /// Whether an end of a session lied, or may have.
    pub(super) fn is_lied_about(&self, session: SessionId) -> bool {
        self.liar.as_ref().is_some_and(|liar| liar.sessions.contains(&session))
    }

    /// Tells the oracle which programs lies can have reached.
    pub(super) fn mark_lied_to(&mut self) {
        let Some(liar) = &self.liar else { return };
        for program in &mut self.programs {
            if program.agent == liar.agent && program.life == 0 {
                program.lied_to = LiedTo::ByOwnAgent;
            } else if program.session.is_some_and(|session| liar.sessions.contains(&session)) {
                program.lied_to = LiedTo::ByPeer;
            }
        }
    }
}
