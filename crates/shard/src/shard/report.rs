//! Reports to control: listings, counters, log lines.

use super::{Session, Shard};
use crate::api::{
    Backing, BackupForm, CLIENTS_LISTED, CellRow, ClientRow, Configure, Counted, Counter, DrainRow,
    EDGE_CONNECTED, EndRow, FromShard, Label, Note, NoteLevel, Now, Protect, REBALANCE_LEFT,
    REBALANCE_SESSIONS, ReplicationRow, Rows, ServerRow, ServerRowState, SessionRow, ShardOutput,
};
use alloc::{
    collections::{BTreeMap, VecDeque},
    string::{String, ToString},
    vec::Vec,
};
use marram_session::owner::{CellServerState, EndProgress, EpochRelease, Owner, OwnerTotals};
use marram_wire::{
    frame::{Code, Frame},
    id::{Port, SessionId},
};

/// Rows in one message.
const ROWS: usize = 64;

/// A median is of so many of the latest confirmations.
const CONFIRMATIONS: usize = 256;

/// Counters of this shard, and of its past sessions.
#[derive(Debug, Default)]
pub(super) struct Counters {
    gone: OwnerTotals,
    finished: u64,
    failed: u64,
    moved: u64,
    pub(super) moves: u64,
    pub(super) moves_failed: u64,
    pub(super) backups_moved: u64,
    pub(super) moves_replaced: u64,
    pub(super) move_bytes: u64,
    pub(super) moves_limited_us: u64,
    pub(super) runs: u64,
    pub(super) attempts: u64,
    recoveries: u64,
    recovery_us: u64,
    pub(super) rejected: u64,
    pub(super) recoveries_queued: u64,
    pub(super) superseded: u64,
    pub(super) stale_frames: u64,
    pub(super) wires_refused: u64,
    pub(super) recordings: u64,
    pub(super) recordings_failed: u64,
    sabotage_seen: u64,
    takeovers: u64,
    pub(super) keepers_lost: u64,
    pub(super) keeper_bytes: u64,
    pub(super) standbys_slow: u64,
    pub(super) recalls: u64,
    pub(super) recalled: u64,
    pub(super) recalls_late: u64,
    pub(super) witness_asked: u64,
    pub(super) witness_reports: u64,
    pub(super) witness_missing: u64,
    pub(super) epochs: u64,
    pub(super) confirmations: Confirmations,
    pub(super) epoch_log_bytes: u64,
    pub(super) promotions: u64,
    pub(super) policy_crossings: u64,
    pub(super) rebalanced: u64,
    pub(super) rebalance_passes: u64,
    pub(super) cells_lost: u64,
    pub(super) clients_expelled: u64,
}

/// How long epochs of this shard's groups have waited for their confirmations.
#[derive(Debug, Default)]
pub(super) struct Confirmations {
    count: u64,
    us: u64,
    /// Of the latest ones, in microseconds, the oldest first.
    latest_us: VecDeque<u32>,
}

impl Confirmations {
    pub(super) fn add(&mut self, waited_ns: u64) {
        let us = waited_ns / 1_000;
        (self.count, self.us) = (self.count + 1, self.us + us);
        if self.latest_us.len() >= CONFIRMATIONS {
            self.latest_us.pop_front();
        }
        self.latest_us.push_back(u32::try_from(us).unwrap_or(u32::MAX));
    }

    /// The median of the latest ones; 0 if there were none.
    fn median_us(&self) -> u32 {
        let mut sorted: Vec<u32> = self.latest_us.iter().copied().collect();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied().unwrap_or(0)
    }
}

impl Counters {
    pub(super) fn add(&mut self, totals: &OwnerTotals) {
        self.gone = sum(self.gone, *totals);
    }

    /// A session was recovered, `took_ns` after its owner asked for promises; `stood` if a standby took it over.
    pub(super) fn recovered(&mut self, took_ns: u64, stood: bool) {
        self.recoveries += 1;
        self.takeovers += u64::from(stood);
        self.recovery_us += took_ns / 1_000;
    }

    /// Whether a demo wants this frame altered: the output with this number, from 1, of those that are not empty.
    pub(super) fn is_sabotaged(&mut self, frame: &Frame, number: u64) -> bool {
        let counts = matches!(frame, Frame::Output(output) if !output.payload.is_empty());
        self.sabotage_seen += u64::from(counts);
        counts && self.sabotage_seen == number
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
        payload_bytes: a.payload_bytes + b.payload_bytes,
        checkpoints: a.checkpoints + b.checkpoints,
        budget_checkpoints: a.budget_checkpoints + b.budget_checkpoints,
        checkpoint_bytes: a.checkpoint_bytes + b.checkpoint_bytes,
        epoch_page_bytes: a.epoch_page_bytes + b.epoch_page_bytes,
        generations: a.generations + b.generations,
        pauses_ended: a.pauses_ended + b.pauses_ended,
    }
}

/// A line for the edge's log.
pub(super) fn note(level: NoteLevel, session: Option<SessionId>, text: String, out: &mut Vec<ShardOutput>) {
    out.push(ShardOutput::Control(FromShard::Note(Note { level, session, guest: false, text })));
}

impl Shard {
    /// Answers a listing.
    pub(super) fn list(&self, now: Now, tag: u64, out: &mut Vec<ShardOutput>) {
        let row = |(id, session): (SessionId, &Session)| {
            let protect = self.apps.protect(&session.owner);
            let mut row = row(id, session, (protect, self.drain_row(id, protect)), &self.config);
            if let Some(cell) = row.cell.as_mut().filter(|cell| cell.key.is_some()) {
                cell.slot = Some(self.slot_number(session));
            }
            SessionRow { backing: self.backing(id), replication: self.replication(id, session), ..row }
        };
        let rows: Vec<SessionRow> = self.sessions.iter().map(row).collect();
        // A message between processes has a largest size.
        for rows in rows.chunks(ROWS) {
            out.push(ShardOutput::Control(FromShard::Rows(Rows { tag, rows: rows.to_vec() })));
        }
        let counters = self.counted(now);
        out.push(ShardOutput::Control(FromShard::Counted(Counted { tag, counters, last: true })));
    }

    /// Whether a session has a backup, if it is in a group.
    fn backing(&self, id: SessionId) -> Option<Backing> {
        let group = self.groups.get(self.groups.of_session(id)?)?;
        Some(match group.told() {
            EpochRelease::Held => Backing::Held,
            EpochRelease::Confirmed | EpochRelease::Ahead if group.is_backed() => Backing::Backed,
            EpochRelease::Confirmed | EpochRelease::Ahead | EpochRelease::Alone => Backing::Alone,
        })
    }

    /// What the backup of a session gets, and when, if it is in a group.
    fn replication(&self, id: SessionId, session: &Session) -> Option<ReplicationRow> {
        let group = self.groups.get(self.groups.of_session(id)?)?;
        let kind = group.kind();
        let asked = self.apps.of_owner(&session.owner)?.epoch.as_ref()?.form;
        let now = if session.owner.sends_pages() { BackupForm::Pages } else { BackupForm::Log };
        let now = session.placing.backup().map(|_| now);
        let every_us = u32::try_from(kind.pace.every_ns / 1_000).unwrap_or(u32::MAX);
        let policy = kind.policy.as_ref().map(|policy| policy.name.clone());
        let former = self.keeps_former_policy(session, group);
        let rate = session.traffic.as_ref().map(|meter| meter.rate());
        Some(ReplicationRow { asked, now, every_us, waits: group.waits(), policy, rate, former })
    }

    fn counted(&self, now: Now) -> Vec<Counter> {
        // Totals go on when a session ends: what it had is in `gone` then.
        let live = self.sessions.iter().map(|(_, session)| session.owner.totals());
        let totals = live.fold(self.counters.gone, sum);
        let sessions = |is_counted: fn(&Session) -> bool| {
            self.sessions.iter().filter(|(_, session)| is_counted(session)).count()
        };
        let uncovered_ns: u64 =
            self.sessions.iter().map(|(_, session)| session.owner.uncovered_replay_ns()).sum();
        let (count, gauge) = (Counter::count, Counter::gauge);
        let mut counters = alloc::vec![
            gauge("sessions", self.sessions.len()),
            gauge("sessions_recovering", sessions(|session| session.owner.recovering())),
            gauge("sessions_standing_by", sessions(|session| session.feeder.is_some())),
            gauge("sessions_paused", sessions(|session| session.owner.paused().next().is_some())),
            gauge("recoveries_waiting", self.waiting.len()),
            gauge("sessions_waiting", self.refused.waiting(now.mono_ns)),
            gauge("shared_cells", self.shared.len()),
            gauge("wires", self.wires.len()),
            gauge("held_bytes", usize::try_from(self.held_bytes()).unwrap_or(usize::MAX)),
            gauge("memory_max_bytes", usize::try_from(self.sessions.memory().max).unwrap_or(usize::MAX)),
            gauge("sessions_slowed", sessions(|session| session.owner.is_slowed())),
            gauge("uncovered_replay_us", usize::try_from(uncovered_ns / 1_000).unwrap_or(usize::MAX)),
            count("inputs_consumed_total", totals.consumed),
            count("inputs_replayed_total", totals.replayed),
            count("outputs_produced_total", totals.produced),
            count("payload_bytes_total", totals.payload_bytes),
            count("checkpoints_stored_total", totals.checkpoints),
            count("checkpoint_bytes_total", totals.checkpoint_bytes),
            count("budget_checkpoints_total", totals.budget_checkpoints),
            count("epoch_page_bytes_total", totals.epoch_page_bytes),
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
            // Of the process, which has one shard.
            count("bugs_total", marram_session::bug::count() as u64),
            count("wires_refused_total", self.counters.wires_refused),
            count("takeovers_total", self.counters.takeovers),
            count("keepers_lost_total", self.counters.keepers_lost),
            count("keeper_bytes_total", self.counters.keeper_bytes),
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
        counters.extend(self.counted_moves());
        counters.extend(self.counted_epochs());
        counters.extend(self.counted_rebalance());
        self.tenants.count(&mut counters);
        let mut servers: BTreeMap<&String, usize> = BTreeMap::new();
        for server in self.wires.iter().flat_map(|(_, wire)| &wire.servers) {
            *servers.entry(server).or_default() += 1;
        }
        let of = |(server, wires): (&String, usize)| gauge("server_wires", wires).of(Label::server(server));
        counters.extend(servers.into_iter().map(of));
        let others = self.keepers.edges_for(SessionId::default(), &self.config.edge);
        counters.extend(others.map(|edge| gauge(EDGE_CONNECTED, 1).of(Label::edge(edge))));
        counters
    }

    fn counted_epochs(&self) -> impl Iterator<Item = Counter> {
        let (count, gauge) = (Counter::count, Counter::gauge);
        let backed = |backing: Backing| {
            self.sessions.iter().filter(|(id, _)| self.backing(*id) == Some(backing)).count()
        };
        let others = self.keepers.edges_for(SessionId::default(), &self.config.edge);
        let counters = [
            gauge("other_edges", others.count()),
            gauge("sessions_held", backed(Backing::Held)),
            gauge("sessions_without_backup", backed(Backing::Alone)),
            count("epochs_total", self.counters.epochs),
            count("epochs_confirmed_total", self.counters.confirmations.count),
            count("epoch_confirm_us_total", self.counters.confirmations.us),
            gauge("epoch_confirm_p50_us_max", self.counters.confirmations.median_us() as usize),
            count("epoch_log_bytes_total", self.counters.epoch_log_bytes),
            count("promotions_total", self.counters.promotions),
            count("policy_crossings_total", self.counters.policy_crossings),
            count("cells_lost_total", self.counters.cells_lost),
            count("clients_expelled_total", self.counters.clients_expelled),
        ];
        counters.into_iter()
    }

    fn counted_rebalance(&self) -> impl Iterator<Item = Counter> {
        let under_way = self.rebalance.progress().into_iter().flat_map(|(edge, planned, left)| {
            let figures = [(REBALANCE_SESSIONS, planned), (REBALANCE_LEFT, left)];
            figures.map(|(name, value)| Counter::gauge(name, value).of(Label::edge(edge)))
        });
        let counters = [
            Counter::count("rebalance_passes_total", self.counters.rebalance_passes),
            Counter::count("sessions_rebalanced_total", self.counters.rebalanced),
        ];
        counters.into_iter().chain(under_way)
    }

    fn counted_moves(&self) -> impl Iterator<Item = Counter> {
        let (count, gauge) = (Counter::count, Counter::gauge);
        let counters = [
            gauge("moves_under_way", self.moves.counts().0),
            gauge("moves_waiting", self.moves.counts().1),
            gauge("moves_limited", self.moves.copies.count()),
            count("moves_limited_us_total", self.counters.moves_limited_us),
            count("move_bytes_total", self.counters.move_bytes),
            count("moves_total", self.counters.moves),
            count("moves_failed_total", self.counters.moves_failed),
            count("backups_moved_total", self.counters.backups_moved),
            count("moves_replaced_total", self.counters.moves_replaced),
        ];
        counters.into_iter()
    }
}

fn end_row(end: EndProgress) -> EndRow {
    let [unacknowledged, unsent] = end.unacknowledged;
    let EndProgress { port, linked, consumed, waiting, uncovered, produced, credit, .. } = end;
    let client = port == Port::CLIENT;
    EndRow { client, linked, consumed, waiting, uncovered, produced, unacknowledged, unsent, credit }
}

/// What a listing shows of a cell that clients share.
fn cell_row(owner: &Owner, config: &Configure) -> CellRow {
    let row = |end: EndProgress| {
        let (session, agent) = owner.client_of(end.port).filter(|_| !end.port.is_from_connect())?;
        let (in_gate, port) = (config.gate == Some(agent), end.port.0);
        Some(ClientRow { session, agent, in_gate, port, end: EndRow { client: true, ..end_row(end) } })
    };
    let listed = owner.ends().filter_map(row).take(CLIENTS_LISTED).collect();
    let key = owner.key().map(ToString::to_string);
    let servers = owner.ends().filter_map(|end| server_row(owner, end, config)).collect();
    CellRow { key, slot: None, clients: owner.client_count() as u64, listed, servers }
}

fn server_row(owner: &Owner, end: EndProgress, config: &Configure) -> Option<ServerRow> {
    let server = owner.server_at(end.port)?;
    Some(ServerRow {
        server: server.name.to_string(),
        port: end.port.0,
        state: match server.state {
            CellServerState::Connecting => ServerRowState::Connecting,
            CellServerState::Connected => ServerRowState::Connected,
            CellServerState::Away => ServerRowState::Away,
            CellServerState::Leaving => ServerRowState::Leaving,
        },
        agent: server.agent,
        in_gate: server.agent.is_some() && server.agent == config.gate,
        waiting_bytes: server.waiting_bytes,
        end: end_row(end),
    })
}

/// What a listing shows of a session.
fn row(
    id: SessionId,
    session: &Session,
    (protect, drain): (Protect, Option<DrainRow>),
    config: &Configure,
) -> SessionRow {
    let owner = &session.owner;
    let totals = owner.totals();
    let (log_bytes, uncovered_bytes) = owner.log_bytes();
    let tasks = owner.tasks();
    let cell = owner.is_shared_cell().then(|| cell_row(owner, config));
    let in_gate = |port| owner.host(port).is_some() && owner.host(port) == config.gate;
    SessionRow {
        shard: config.shard,
        session: id,
        app: owner.policy().app.clone(),
        image: owner.image(),
        generation: owner.generation(),
        phase: owner.phase(),
        client: owner.host(Port::CLIENT).unwrap_or_default(),
        server: owner.host(Port::SERVER),
        protect,
        keepers: session.placing.rows(owner),
        backing: None,
        replication: None,
        moving: session
            .moving
            .as_ref()
            .map(|moving| moving.row(moving.keeper().and_then(|keeper| owner.copy_progress(keeper)))),
        ends: owner.ends().filter(|_| cell.is_none()).map(end_row).collect(),
        cell,
        busy: owner.is_busy(),
        drain,
        client_in_gate: in_gate(Port::CLIENT),
        server_in_gate: in_gate(Port::SERVER),
        consumed: totals.consumed,
        produced: totals.produced,
        payload_bytes: totals.payload_bytes,
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
