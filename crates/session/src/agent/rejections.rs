//! What a session does when an edge does not open a generation for it: it rejects the session, or leads it elsewhere.

use super::{
    Agent, AgentOutput, AgentReport, EndId, Target, WireId, sessions::RETRY_MAX_NS, wire_table::Wire,
};
use crate::trace;
use alloc::{string::ToString, vec::Vec};
use marram_wire::frame::{Code, Lead, Reject};

impl Agent {
    /// An edge says that the session's cell is elsewhere. It refuses, as with [`Code::Elsewhere`], but what it names is asked next,
    /// although that may have refused a moment ago.
    pub(super) fn led(
        &mut self,
        now_ns: u64,
        id: EndId,
        wire: WireId,
        lead: Lead,
        out: &mut Vec<AgentOutput>,
    ) {
        let reason =
            alloc::format!("the cell of the session is at shard {} of edge {}", lead.shard, lead.edge);
        let reject = Reject { channel: lead.channel, code: Code::Elsewhere, reason };
        if !self.is_settled(id) {
            let Some(session) = self.sessions.known_mut(id) else { return };
            session.leads.follow(lead, self.wires.known(wire).and_then(Wire::place));
            let named = |(_, wire): &(WireId, &Wire)| session.leads.to().any(|to| wire.place() == Some(to));
            let targets: Vec<Target> = self.wires.iter().filter(named).map(|(_, wire)| wire.target).collect();
            session.rejected.retain(|(target, _)| !targets.contains(target));
        }
        self.rejected(now_ns, id, wire, &reject, out);
    }

    /// An edge refuses to open a generation.
    pub(super) fn rejected(
        &mut self,
        now_ns: u64,
        id: EndId,
        wire: WireId,
        reject: &Reject,
        out: &mut Vec<AgentOutput>,
    ) {
        let (usable, settled) = (self.candidates(now_ns, id).len(), self.is_settled(id));
        let misses = self.wires.misses_an_edge(now_ns, self.config.edge_wait_ns);
        let Some(from) = self.wires.known(wire) else { return };
        let Some(session) = self.sessions.known_mut(id) else { return };
        let target = from.target;
        session.leads.refused(from.place());
        trace!(session.end.context(), "{target:?} rejects it: {:?}: {}", reject.code, reject.reason);
        session.asking.take().into_iter().for_each(|asking| self.wires.unbind(asking));
        if settled {
            // The home shard refuses, perhaps only for now: the session stays where it is.
            return match (session.home, reject.code.is_retryable() && reject.code != Code::Elsewhere) {
                (Some(home), true) => self.affinity.refused(now_ns, home),
                _ => self.forget_home(id),
            };
        }
        let too_many = session.leads.were_too_many();
        if session.attached.is_some() {
            // It has an owner, so nothing is lost. But that owner is about to stop, so another one must be asked in
            // time.
            session.retry_ns = (session.retry_ns * 2).min(RETRY_MAX_NS);
            let at_ns = now_ns + session.retry_ns;
            return self.sessions.lead_at(id, at_ns);
        }
        session.rejected.push((target, reject.code));
        if matches!(reject.code, Code::UnknownApp | Code::UnknownImage) {
            session.unable.insert(target);
        }
        self.spread.refused(now_ns, session.end.app(), target.edge);
        session.refusal = Some((reject.code, reject.reason.clone()));
        let everywhere = session.rejected.len() >= usable;
        let unknown = session.rejected.iter().all(|(_, code)| *code == Code::UnknownApp);
        // An edge that was connected recently may have the app, and one that is just back may get it.
        let nowhere = everywhere && unknown && !misses;
        if !reject.code.is_retryable() || (nowhere && !session.end.begun()) {
            return self.end_session(now_ns, id, reject.code, reject.reason.clone(), out);
        }
        let waits = everywhere || too_many;
        if waits {
            session.retry_ns = (session.retry_ns * 2).min(RETRY_MAX_NS);
        }
        // A missing image concerns this edge, even if another one has the image. Other refusals are temporary, or
        // another edge accepts.
        let worth_telling = match reject.code {
            Code::UnknownImage => true,
            Code::UnknownApp | Code::NoServerAgent => everywhere,
            _ => waits && session.retry_ns == RETRY_MAX_NS,
        };
        if worth_telling && session.reported_reasons.get(&target.edge) != Some(&reject.reason) {
            session.reported_reasons.insert(target.edge, reject.reason.clone());
            self.tell_waiting(now_ns, id, target, reject, out);
        }
        let Some(session) = self.sessions.known(id) else { return };
        let wait_ns = if waits { session.retry_ns } else { 0 };
        let jitter_ns = self.random.below(wait_ns / 2 + 1);
        self.sessions.lead_at(id, now_ns + wait_ns + jitter_ns);
    }

    fn tell_waiting(
        &self,
        now_ns: u64,
        id: EndId,
        target: Target,
        reject: &Reject,
        out: &mut Vec<AgentOutput>,
    ) {
        let Some(session) = self.sessions.known(id) else { return };
        let left_ns = session.deadline_ns(&self.config).map_or(0, |until_ns| until_ns.saturating_sub(now_ns));
        let (session, app) = (id.session, session.end.app().to_string());
        let Reject { code, reason, .. } = reject.clone();
        out.push(AgentOutput::Report(AgentReport::Waiting { session, app, target, code, reason, left_ns }));
    }
}
