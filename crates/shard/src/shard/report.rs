//! Reports to control: listings, counters, log lines.

use super::Shard;
use crate::api::{
    Counted, Counter, FromShard, Label, Note, NoteLevel, Now, Protect, Rows, SessionRow, ShardOutput,
};
use alloc::{collections::BTreeMap, string::String, vec::Vec};
use marram_session::owner::OwnerTotals;
use marram_wire::{
    frame::Code,
    id::{Port, SessionId},
};

/// Rows in one message.
const ROWS: usize = 64;

/// Counters of this shard, and of its past sessions.
#[derive(Debug, Default)]
pub(super) struct Counters {
    gone: OwnerTotals,
    finished: u64,
    failed: u64,
    moved: u64,
    pub(super) runs: u64,
    pub(super) attempts: u64,
    pub(super) recoveries: u64,
    pub(super) recovery_us: u64,
    pub(super) rejected: u64,
    pub(super) recoveries_queued: u64,
    pub(super) superseded: u64,
    pub(super) stale_frames: u64,
    pub(super) wires_refused: u64,
    pub(super) recordings: u64,
    pub(super) recordings_failed: u64,
    pub(super) sabotage_seen: u64,
    pub(super) takeovers: u64,
    pub(super) keepers_lost: u64,
    pub(super) standbys_slow: u64,
    pub(super) recalls: u64,
    pub(super) recalled: u64,
    pub(super) recalls_late: u64,
    pub(super) witness_asked: u64,
    pub(super) witness_reports: u64,
    pub(super) witness_missing: u64,
}

impl Counters {
    pub(super) fn add(&mut self, totals: &OwnerTotals) {
        self.gone = sum(self.gone, *totals);
    }

    pub(super) fn count_end(&mut self, code: Code) {
        match code {
            Code::Finished => self.finished += 1,
            code if code.is_retryable() => self.moved += 1,
            _ => self.failed += 1,
        }
    }
}

fn sum(a: OwnerTotals, b: OwnerTotals) -> OwnerTotals {
    OwnerTotals {
        consumed: a.consumed + b.consumed,
        replayed: a.replayed + b.replayed,
        produced: a.produced + b.produced,
        checkpoints: a.checkpoints + b.checkpoints,
        checkpoint_bytes: a.checkpoint_bytes + b.checkpoint_bytes,
        generations: a.generations + b.generations,
        pauses_ended: a.pauses_ended + b.pauses_ended,
    }
}

impl Shard {
    pub(super) fn note(
        &self,
        level: NoteLevel,
        session: Option<SessionId>,
        text: String,
        out: &mut Vec<ShardOutput>,
    ) {
        out.push(ShardOutput::Control(FromShard::Note(Note { level, session, guest: false, text })));
    }

    /// Answers a listing.
    pub(super) fn list(&self, now: Now, tag: u64, out: &mut Vec<ShardOutput>) {
        let rows: Vec<SessionRow> =
            self.sessions.iter().map(|(id, session)| self.row(*id, session)).collect();
        for rows in rows.chunks(ROWS) {
            out.push(ShardOutput::Control(FromShard::Rows(Rows { tag, rows: rows.to_vec() })));
        }
        out.push(ShardOutput::Control(FromShard::Counted(Counted {
            tag,
            counters: self.counted(now),
            last: true,
        })));
    }

    fn row(&self, id: SessionId, session: &super::Session) -> SessionRow {
        let owner = &session.owner;
        let totals = owner.totals();
        let (log_bytes, uncovered_bytes) = owner.log_bytes();
        let tasks = owner.tasks();
        let gate = |port| owner.host(port).is_some() && owner.host(port) == self.config.gate;
        SessionRow {
            session: id,
            app: owner.policy().app.clone(),
            image: owner.image(),
            generation: owner.generation(),
            phase: owner.phase(),
            client: owner.host(Port::CLIENT).unwrap_or_default(),
            server: owner.host(Port::SERVER),
            protect: self.protect_of(session),
            keepers: self.keepers_of(session),
            client_in_gate: gate(Port::CLIENT),
            server_in_gate: gate(Port::SERVER),
            consumed: totals.consumed,
            produced: totals.produced,
            log_bytes,
            uncovered_bytes,
            tasks: tasks.runnable,
            tasks_locked_out: tasks.locked_out,
            locks: tasks.locks,
            paused: owner
                .paused()
                .map(|port| if port == Port::CLIENT { "client" } else { "server" }.into())
                .collect(),
            checkpoints: totals.checkpoints,
            recoveries: owner.generation().count.saturating_sub(1),
            since_ms: session.since_ms,
        }
    }

    fn protect_of(&self, session: &super::Session) -> Protect {
        let policy = session.owner.policy();
        let app = self.apps.get(&policy.app).or_else(|| self.images.get(&session.owner.image()));
        match app {
            _ if !policy.keep => Protect::None,
            Some(app) => app.protect,
            None => Protect::Endpoints,
        }
    }

    fn counted(&self, now: Now) -> Vec<Counter> {
        let live = self.sessions.values().map(|session| session.owner.totals());
        let totals = live.fold(self.counters.gone, sum);
        let (count, gauge) = (Counter::count, Counter::gauge);
        let mut counters = alloc::vec![
            gauge("sessions", self.sessions.len()),
            gauge("sessions_recovering", self.sessions.values().filter(|s| s.owner.recovering()).count()),
            gauge("sessions_standing_by", self.sessions.values().filter(|s| s.feeder.is_some()).count()),
            gauge(
                "sessions_paused",
                self.sessions.values().filter(|s| s.owner.paused().next().is_some()).count()
            ),
            gauge("recoveries_waiting", self.waiting.len()),
            gauge("sessions_waiting", self.refused.waiting(now.mono_ns)),
            gauge("shared_cells", self.shared.len()),
            gauge("wires", self.wires.len()),
            gauge("held_bytes", usize::try_from(self.held_bytes()).unwrap_or(usize::MAX)),
            count("inputs_consumed_total", totals.consumed),
            count("inputs_replayed_total", totals.replayed),
            count("outputs_produced_total", totals.produced),
            count("checkpoints_stored_total", totals.checkpoints),
            count("checkpoint_bytes_total", totals.checkpoint_bytes),
            count("generations_opened_total", totals.generations),
            count("pauses_ended_total", totals.pauses_ended),
            count("handlers_run_total", self.counters.runs),
            count("attempts_total", self.counters.attempts),
            count("recoveries_total", self.counters.recoveries),
            count("recovery_us_total", self.counters.recovery_us),
            count("hellos_rejected_total", self.counters.rejected),
            count("recoveries_queued_total", self.counters.recoveries_queued),
            count("superseded_total", self.counters.superseded),
            count("stale_frames_total", self.counters.stale_frames),
            count("wires_refused_total", self.counters.wires_refused),
            count("takeovers_total", self.counters.takeovers),
            count("keepers_lost_total", self.counters.keepers_lost),
            count("standbys_slow_total", self.counters.standbys_slow),
            count("recalls_total", self.counters.recalls),
            count("recalled_total", self.counters.recalled),
            count("recalls_late_total", self.counters.recalls_late),
            count("witness_asked_total", self.counters.witness_asked),
            count("witness_reports_total", self.counters.witness_reports),
            count("witness_missing_total", self.counters.witness_missing),
            count("recordings_total", self.counters.recordings),
            count("recordings_failed_total", self.counters.recordings_failed),
            count("sessions_finished_total", self.counters.finished),
            count("sessions_failed_total", self.counters.failed),
            count("sessions_moved_total", self.counters.moved),
        ];
        self.tenants.count(&mut counters);
        let mut servers: BTreeMap<&String, usize> = BTreeMap::new();
        for server in self.wires.values().flat_map(|wire| &wire.servers) {
            *servers.entry(server).or_default() += 1;
        }
        let of = |(server, wires): (&String, usize)| gauge("server_wires", wires).of(Label::server(server));
        counters.extend(servers.into_iter().map(of));
        counters
    }
}
