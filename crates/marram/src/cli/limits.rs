//! `marram limits`: every limit, as compiled in. `docs/limits.md` is this text, and a test compares the two.
//!
//! Values come from the constants themselves, in whichever crate they are, so the page cannot
//! differ from the code. Relations between them are asserted where they are defined, mostly in
//! `marram_wire::limits`. A new limit needs a row here.

mod backups;
mod keys;

use marram_admin;
use marram_agent::{self as agent, websocket};
use marram_config;
use marram_config::manifest::{CACHE_BYTES, CACHE_BYTES_MAX};
use marram_config::units::Size;
use marram_node::{coordinator, edge, logging, recorder};
use marram_sandbox::limits as sandbox;
use marram_session::{agent::routes, owner, recorder as session};
use marram_shard::api::CLIENTS_LISTED;
use marram_shard::{cache, control, coordinator as store, ring, shard};
use marram_wire::{limits as wire, recording::RECORDING_SIZE_MAX};
use std::fmt::Write;
use std::time::Duration;

/// One limit: what it is, its value, what happens when it is reached.
type Row = (&'static str, String, &'static str);

/// The whole page, as Markdown.
#[must_use]
pub fn page() -> String {
    let mut out = String::from(
        "# Limits\n\nEvery bound of this version, printed by `marram limits`. Those marked (m) are set in an app's \
         manifest, those marked (c) in a configuration; the value is the default.\n",
    );
    for (title, rows) in [
        ("On the wire", on_the_wire()),
        ("At an end", at_an_end()),
        ("On an edge", on_an_edge()),
        ("Of apps with a cell for each key", keys::rows()),
        ("Of a cache", of_a_cache()),
        ("On a recorder", on_a_recorder()),
        ("In a cell", in_a_cell()),
        ("At deployment", at_deployment()),
        ("Of the coordinator", of_the_coordinator().into_iter().chain(of_groups_left()).collect()),
        ("Waiting", waiting()),
        ("For operators", for_operators()),
    ] {
        out += &format!("\n## {title}\n\n| limit | value | beyond it |\n|---|---|---|\n");
        for (name, value, effect) in rows {
            writeln!(out, "| {name} | {value} | {effect} |").expect("writing to a string never fails");
        }
    }
    out
}

fn size(bytes: usize) -> String {
    Size(bytes as u64).to_string()
}

fn size64(bytes: u64) -> String {
    Size(bytes).to_string()
}

fn time(duration: Duration) -> String {
    format!("{duration:?}")
}

/// The number; "none" for 0.
fn or_none(count: u32) -> String {
    if count == 0 { "none".into() } else { count.to_string() }
}

/// Of single messages and of what may be on its way: `docs/protocol.md`, chapter 10.
fn on_the_wire() -> Vec<Row> {
    vec![
        ("message", size(wire::MESSAGE_SIZE_MAX), "the guest traps; streams are cut long before"),
        ("frame", size(wire::FRAME_SIZE_MAX), "the wire is closed"),
        ("piece of a byte stream", size(wire::STREAM_CUT), "it becomes several messages"),
        ("part of a checkpoint", size(wire::PART_SIZE), "it travels in several"),
        ("messages in flight to an edge, and one more", size64(wire::INPUT_WINDOW), "the end waits"),
        ("the same, if the edge's memory is full", size64(wire::INPUT_WINDOW_MIN), "the end waits"),
        ("messages in flight to an end, and one more", size64(wire::OUTPUT_WINDOW), "the cell waits"),
        ("the same, if its agent's memory is full", size64(wire::OUTPUT_WINDOW_MIN), "the cell waits"),
        ("checkpoint parts in flight to an end", size64(wire::CHECKPOINT_WINDOW), "the edge waits"),
        (
            "the same to a standby, a backup or a recorder, over a long link",
            size64(wire::COPY_WINDOW_MAX),
            "the edge waits",
        ),
        ("text in a frame", size(wire::TEXT_MAX), "it is cut"),
    ]
}

/// What an agent keeps for its sessions, and for clients that have none yet.
fn at_an_end() -> Vec<Row> {
    [kept_for_sessions(), at_listeners(), of_websockets(), of_embedded_ends()].concat()
}

/// Messages, logs and checkpoints of sessions.
fn kept_for_sessions() -> Vec<Row> {
    vec![
        (
            "own messages kept for a session",
            size64(wire::RETAINED_MAX),
            "the end stops reading from its program",
        ),
        (
            "kept for all sessions of an agent, or of an edge's gates: messages, log, checkpoints (c)",
            size64(agent::MEMORY),
            "checkpoints come earlier, sessions read slower, new ones wait; none is ended",
        ),
        (
            "own messages that a session may always keep",
            size64(wire::RETAINED_MIN),
            "it waits for a checkpoint, however full the agent is",
        ),
        (
            "messages or log that no checkpoint covers",
            size64(wire::CHECKPOINT_AFTER_BYTES),
            "the edge takes a checkpoint; earlier if an end's memory fills",
        ),
        (
            "the same, if an end's memory is full",
            size64(wire::ALLOWANCE_MIN),
            "the edge takes a checkpoint, however little an end asks for",
        ),
        ("log kept for a session", size64(wire::LOG_SIZE_MAX), "the edge waits for a checkpoint"),
        (
            "checkpoints kept for a session (c: limits.checkpoints)",
            size64(wire::CHECKPOINTS_SIZE),
            "deltas are merged instead of a full one; if none fits, the session ends, with the reason, when its log is full",
        ),
        (
            "edges that an agent or shard learns beside its list",
            wire::EDGES_LEARNED_MAX.to_string(),
            "one that has not proved its name makes room; else further ones are not used",
        ),
        ("edges that are told of in one frame", wire::EDGES_TOLD_MAX.to_string(), "further ones are ignored"),
        (
            "addresses of one edge that are told",
            wire::EDGE_ADDRESSES_MAX.to_string(),
            "further ones are ignored",
        ),
        (
            "a learned edge that no edge names",
            format!("{} s", wire::EDGE_FORGET_NS / 1_000_000_000),
            "it is forgotten, unless a session uses it",
        ),
        ("deltas on one full checkpoint", wire::DELTAS_MAX.to_string(), "the next checkpoint is full"),
        ("a datagram to a program", size(wire::DATAGRAM_SIZE_MAX), "the session ends with the reason"),
        (
            "datagrams kept before a session has begun",
            size64(wire::DATAGRAMS_WAITING_MAX),
            "further ones are dropped and counted",
        ),
    ]
}

/// Clients that have no session yet, and the rules that choose an app for them.
fn at_listeners() -> Vec<Row> {
    vec![
        (
            "clients in datagrams at a listener (c)",
            agent::FLOWS_MAX.to_string(),
            "others are dropped and counted",
        ),
        ("rules of a routing table", routes::RULES_MAX.to_string(), "refused"),
        ("first bytes that a rule asks for", size(routes::FIRST_BYTES_MAX), "refused"),
        ("first bytes that are held for a rule", size(routes::HELD_MAX), "rules that need more do not fit"),
    ]
}

fn of_websockets() -> Vec<Row> {
    vec![
        ("a message of a WebSocket", size(wire::MESSAGE_SIZE_MAX), "the connection is closed with 1009"),
        ("a request for a WebSocket", size(websocket::HEAD_MAX), "it is answered with 431"),
        (
            "connections that have not asked for their WebSocket yet",
            websocket::ASKING_MAX.to_string(),
            "the oldest is closed",
        ),
        ("time for the close of a WebSocket", time(websocket::CLOSING), "the connection is dropped"),
        (
            "WebSockets at a time, of one agent or edge",
            websocket::CONNECTIONS_MAX.to_string(),
            "more wait to be accepted",
        ),
        (
            "messages of WebSockets that have begun and not ended, of one agent or edge",
            size(websocket::UNFINISHED_MAX),
            "the connection with the oldest is closed with 1013",
        ),
    ]
}

/// Of a program that has its end inside, without an agent beside it.
fn of_embedded_ends() -> Vec<Row> {
    vec![
        (
            "connections that a program with its end inside has requested and that are not open yet",
            agent::ASKED_MAX.to_string(),
            "`connect` fails",
        ),
        (
            "sessions that a program with its end inside has not accepted",
            agent::BACKLOG_MAX.to_string(),
            "the session ends: the server accepts no more",
        ),
    ]
}

/// Per shard unless the row says otherwise: shards share nothing.
fn on_an_edge() -> Vec<Row> {
    let limits = edge::EdgeLimits::default();
    let mut rows = vec![
        ("sessions on a shard (c)", or_none(limits.sessions_max), "new ones go to another edge"),
        (
            "sessions of an app on a shard (m)",
            or_none(0),
            "new ones go to another edge, or are refused with the \
            reason",
        ),
        ("sessions of a tenant on a shard (c)", or_none(0), "as above; those that move here are accepted"),
        (
            "recordings that operators have made at a time on a shard",
            shard::RECORDINGS_MAX.to_string(),
            "more are refused",
        ),
        (
            "recordings of stopped handlers (c: record.files, record.bytes)",
            format!("{}, {}", edge::Stops::FILES, size64(edge::Stops::BYTES)),
            "the oldest are removed",
        ),
        ("record file", size64(RECORDING_SIZE_MAX), "it is refused"),
        ("recoveries at a time on a shard (c)", or_none(limits.recoveries_max), "the others wait their turn"),
        (
            "replay of a shard's sessions (c)",
            format!(
                "{} ms, and of each session {} us and {} ns a byte of its last checkpoint",
                limits.replay.as_millis(),
                owner::REPLAY_SHARE_MIN_NS / 1_000,
                owner::REPLAY_SHARE_NS_PER_BYTE
            ),
            "checkpoints are taken",
        ),
        (
            "kept for all sessions of an edge's shards: messages, log, checkpoints on their way (c)",
            size64(limits.memory),
            "checkpoints come earlier, cells rest, ends get less credit, new sessions go to another edge; none is ended",
        ),
        ("cells on a shard (c)", limits.cells_max.to_string(), "new sessions go to another edge"),
        ("unproved connections (c)", limits.half_open_max.to_string(), "further ones are closed"),
        (
            "versions of apps asked of peers at a time",
            control::FETCHES_MAX.to_string(),
            "the end asks again later",
        ),
        ("missing versions that a shard remembers", shard::MISSING_MAX.to_string(), "as above"),
        (
            "credentials of an edge",
            marram_transport::CREDENTIALS_MAX.to_string(),
            "its configuration is refused",
        ),
        (
            "refused sessions that a shard remembers",
            shard::REMEMBERED_MAX.to_string(),
            "others are not counted, and may be reported again",
        ),
        ("messages not covered by a checkpoint", size64(wire::CHECKPOINT_AFTER_BYTES), "one is taken"),
        ("log not covered by a checkpoint", size64(wire::COVER_LOG), "one is taken"),
        (
            "outputs of a shared cell that wait for one client",
            size64(wire::UNSENT_SHARED_MAX),
            "its connection is reset, and the log says why: the others do not wait",
        ),
    ];
    rows.extend(backups::of_backups());
    rows.extend(of_moves());
    rows
}

fn of_moves() -> [Row; 5] {
    [
        (
            "moves to other edges at a time on a shard",
            shard::MOVES_MAX.to_string(),
            "others wait for their turn",
        ),
        (
            "bytes in a second that moves copy from an edge (c)",
            Size(marram_node::edge::EdgeLimits::default().move_bytes_per_s).to_string(),
            "copies wait, in turn; none while the edge stops",
        ),
        (
            "plans of moves on a shard that wait for other edges",
            shard::PLANS_MAX.to_string(),
            "the oldest is answered with what is known",
        ),
        (
            "sessions of one plan about which another edge is asked at a time",
            shard::ASKED_MAX.to_string(),
            "the others follow; what is not answered within 3 s counts as refused",
        ),
        (
            "past moves that an edge remembers",
            marram_shard::control::MOVES_REMEMBERED.to_string(),
            "the oldest are forgotten",
        ),
    ]
}

fn of_a_cache() -> Vec<Row> {
    vec![
        (
            "an app's objects on an edge, over all shards (m: cache.max_bytes)",
            size64(CACHE_BYTES),
            "the least recently read one is removed",
        ),
        ("the same, at most", size64(CACHE_BYTES_MAX), "the manifest is refused"),
        ("an object", size(wire::CACHED_SIZE_MAX), "the cell's read fails"),
        ("a key", size(wire::CACHE_KEY_MAX), "as above"),
        ("reads for one input", wire::READS_MAX.to_string(), "the guest traps"),
        ("different objects for one input", size(wire::READS_SIZE_MAX), "the guest traps"),
        ("objects in the log that no checkpoint covers", size64(wire::COVER_READS), "one is taken"),
        (
            "fetches of an app at a time on a shard",
            cache::FETCHES_MAX.to_string(),
            "the cell gets the old object, or its read fails for now",
        ),
        (
            "names of origins that are looked up at a time on a shard",
            edge::LOOKUPS_MAX.to_string(),
            "as above; an app has one",
        ),
    ]
}

fn on_a_recorder() -> Vec<Row> {
    vec![
        (
            "what it keeps of all sessions (c)",
            size64(recorder::MEMORY),
            "new sessions are refused; the one that was silent for longest is dropped",
        ),
        ("sessions (c)", recorder::SESSIONS.to_string(), "new ones are refused: their ends alone keep them"),
        ("a session without a feed (c)", time(recorder::LINGER), "it is forgotten"),
        (
            "a session that its owner gave up",
            time(Duration::from_nanos(session::GRACE_NS)),
            "it is forgotten",
        ),
        ("messages of one end of a session", size64(2 * wire::RETAINED_MAX), "the session is refused"),
        (
            "inputs of a session in flight, not acknowledged",
            size64(wire::FEED_WINDOW),
            "the edge starts again",
        ),
        (
            "entries that a hot standby has fallen behind in its replay",
            wire::REPLAY_LAG_MAX.to_string(),
            "it is dropped, and asked again later",
        ),
        (
            "what waits for the disk",
            size64(recorder::QUEUE_MAX),
            "the session continues in memory until its next full checkpoint",
        ),
        ("file of a session", size64(recorder::file::SIZE_MAX), "as above; when reading, it is refused"),
    ]
}

/// What the sandbox enforces: beyond most of them the guest traps, and the session follows
/// `docs/protocol.md`, chapter 13.
fn in_a_cell() -> Vec<Row> {
    let quotas = marram_sandbox::Quotas::default();
    vec![
        ("memory (m)", size64(quotas.memory_max), "`memory.grow` answers -1"),
        (
            "time in one handler (m)",
            time(Duration::from_nanos(quotas.handler_time_ns)),
            "the session is killed",
        ),
        ("scratch files (m)", size64(quotas.scratch_max), "ENOSPC"),
        ("preemption", format!("every {} ms", sandbox::SLICE_MS), "other cells run"),
        ("native stack", size(sandbox::WASM_STACK_BYTES), "the guest traps"),
        ("messages sent by one handler", sandbox::OUTPUTS_PER_HANDLER_MAX.to_string(), "the guest traps"),
        ("bytes sent by one handler", size(sandbox::OUTPUT_BYTES_PER_HANDLER_MAX), "the guest traps"),
        (
            "timer changes of one handler",
            sandbox::TIMER_CHANGES_PER_HANDLER_MAX.to_string(),
            "the guest traps",
        ),
        (
            "changes of tasks and locks of one handler",
            sandbox::TASK_CHANGES_PER_HANDLER_MAX.to_string(),
            "the guest traps",
        ),
        (
            "signatures made for one handler",
            sandbox::SIGNATURES_PER_HANDLER_MAX.to_string(),
            "the guest traps",
        ),
        ("timers", wire::TIMERS_MAX.to_string(), "the session ends with the reason"),
        (
            "tasks that wait for their turn or for a lock",
            wire::TASKS_MAX.to_string(),
            "the session ends with the reason",
        ),
        ("locks that tasks hold", wire::LOCKS_MAX.to_string(), "the session ends with the reason"),
        (
            "handlers that one input runs in a chain",
            sandbox::HANDLERS_PER_INPUT_MAX.to_string(),
            "the session ends",
        ),
        (
            "bytes that wait between stages of a chain",
            size64(sandbox::BETWEEN_STAGES_BYTES_MAX),
            "the session ends",
        ),
        ("random bytes in one call", size(sandbox::RANDOM_BYTES_MAX), "the guest traps"),
        ("printed text", size(sandbox::PRINT_BYTES_MAX), "it is cut"),
        ("printed texts of one handler", sandbox::PRINTS_PER_HANDLER_MAX.to_string(), "the rest is dropped"),
        ("open file descriptors", sandbox::DESCRIPTORS_MAX.to_string(), "EMFILE"),
    ]
}

/// Checked once, when an app or a configuration arrives.
fn at_deployment() -> Vec<Row> {
    vec![
        ("stages of a chain", sandbox::STAGES_MAX.to_string(), "refused"),
        ("module", size(sandbox::MODULE_BYTES_MAX), "refused"),
        ("keys of an app or stage (m)", sandbox::KEYS_MAX.to_string(), "refused"),
        ("files of an app (m)", sandbox::IMAGE_FILES_MAX.to_string(), "refused"),
        ("bytes of an app's files together", size(sandbox::IMAGE_FILES_BYTES_MAX), "refused"),
        ("memory that a manifest may grant", size64(sandbox::MEMORY_MAX), "refused"),
        ("initialisation", time(Duration::from_millis(sandbox::INITIALISE_MS_MAX)), "refused"),
        ("span of initialised memory", size(sandbox::IMAGE_SPAN_MAX), "refused"),
        ("mutable globals", sandbox::GLOBALS_MAX.to_string(), "refused"),
        ("manifest or configuration", size64(marram_config::source::TEXT_BYTES_MAX), "refused"),
    ]
}

/// Of what a former life of an edge has left at the coordinator.
fn of_groups_left() -> [Row; 2] {
    [
        (
            "before an edge removes the records of groups that its former life had alone",
            time(Duration::from_nanos(store::LEFTOVERS_AFTER_NS)),
            "",
        ),
        (
            "such records that it removes",
            store::LEFTOVERS_MAX.to_string(),
            "the others stay until it starts again",
        ),
    ]
}

/// Of the embedded store and of each edge's client; etcd has limits of its own.
fn of_the_coordinator() -> Vec<Row> {
    let seconds = |seconds: u32| time(Duration::from_secs(seconds.into()));
    let ns = |ns: u64| time(Duration::from_nanos(ns));
    vec![
        (
            "an edge's lease (c)",
            seconds(coordinator::CoordinatorOptions::LEASE_S),
            "the edge is no longer listed",
        ),
        (
            "an answer of the store",
            time(coordinator::PATIENCE),
            "the coordinator counts as unreachable; retried",
        ),
        ("before it is asked again", ns(store::BACKOFF_MIN_NS), "doubles with each failure"),
        ("before it is asked again, at most", ns(store::BACKOFF_MAX_NS), ""),
        ("between checks of what this edge has", time(coordinator::NEWS_INTERVAL), ""),
        ("between checks of its load", time(coordinator::LOAD_INTERVAL), ""),
        ("images that an edge lists", store::contents::HELD_MAX.to_string(), "others are not listed"),
        ("edges on the ring of standbys", ring::EDGES_MAX.to_string(), "the last ones by name are left out"),
        (
            "sessions that an edge lists with their standby",
            (usize::from(store::contents::PARTS) * store::contents::PART_SESSIONS_MAX).to_string(),
            "further ones are not listed, and counted",
        ),
        ("between writes of that list's parts", ns(store::LISTING_NS), "the rest waits"),
        ("requests in progress at a time", store::ASKS_MAX.to_string(), "the others wait"),
        (
            "witness reports that wait to be written",
            store::REPORTS_MAX.to_string(),
            "further ones are dropped and counted",
        ),
        ("key in the store", size(store::KEY_BYTES_MAX), "refused"),
        ("value in the store", size(store::VALUE_BYTES_MAX), "refused"),
        ("keys in an embedded store", store::KEYS_MAX.to_string(), "refused; etcd has room for more"),
        ("bytes in an embedded store", size(store::STORE_BYTES_MAX), "as above"),
        ("leases in an embedded store", store::LEASES_MAX.to_string(), "as above"),
        (
            "edges of which an edge remembers how far they saw the store come",
            store::TOLD_MAX.to_string(),
            "others are ignored",
        ),
        (
            "between writes of what an edge remembers of the store",
            ns(store::REMEMBER_NS),
            "except for its own decisions",
        ),
        (
            "losses that a store's record names",
            store::contents::ACCEPTED_MAX.to_string(),
            "the oldest are dropped",
        ),
        ("lease in an embedded store", seconds(store::LEASE_S_MAX), "refused"),
        ("changes that an embedded store remembers", store::HISTORY_MAX.to_string(), "a watcher lists again"),
        ("watches of an embedded store", coordinator::WATCHES_MAX.to_string(), "as above"),
        ("connections to an embedded store", coordinator::CONNECTIONS_MAX.to_string(), "further ones wait"),
        ("request to an embedded store", size(coordinator::REQUEST_BYTES_MAX), "refused"),
        ("a request's way to an embedded store", time(coordinator::REQUEST_PATIENCE), "refused"),
        (
            "a peer that reads nothing of an embedded store's answer or watch",
            time(coordinator::ANSWER_PATIENCE),
            "the connection is closed",
        ),
    ]
}

/// Times after which something happens without an event.
fn waiting() -> Vec<Row> {
    let (timeouts, limits) = (agent::Timeouts::default(), edge::EdgeLimits::default());
    vec![
        ("between heartbeats (c)", time(timeouts.heartbeat_interval), "one is sent"),
        (
            "silence of an edge, at most (c)",
            time(timeouts.heartbeat_timeout),
            "it is suspected; its sessions recover elsewhere",
        ),
        (
            "no edge that accepts a session (c)",
            time(timeouts.edge_wait),
            "the connection is reset with a clear log line",
        ),
        ("before an edge is dialled again (c)", time(timeouts.backoff_min), "doubles with each failure"),
        ("before an edge is dialled again, at most (c)", time(timeouts.backoff_max), ""),
        (
            "a shard that failed is well again (c)",
            time(timeouts.failback_delay),
            "sessions that belong there go back to it, one a heartbeat; doubles with each failure",
        ),
        ("making a wire (c)", time(timeouts.dial), "another edge is tried"),
        ("connecting to a server (c)", time(timeouts.connect), "the session ends with the reason"),
        (
            "a client's or server's host is unreachable (c)",
            time(timeouts.peer_unreachable),
            "its connections are broken",
        ),
        (
            "a session that cannot be resumed (m)",
            time(marram_config::manifest::LINGER),
            "the end forgets it and reports so",
        ),
        ("the same, at most", time(marram_config::manifest::LINGER_MAX), "refused"),
        (
            "the same before its app's linger time is known (c)",
            time(timeouts.linger),
            "the end forgets it and reports so",
        ),
        (
            "before peers are asked for an image again",
            time(Duration::from_nanos(shard::RETRY_MIN_NS)),
            "doubles with each failure",
        ),
        (
            "before peers are asked for an image again, at most",
            time(Duration::from_nanos(shard::RETRY_MAX_NS)),
            "",
        ),
        ("a silent client that uses datagrams (c)", time(agent::IDLE), "its session ends in order"),
        ("first bytes that a rule asks for (c)", time(timeouts.first_bytes), "such rules do not fit"),
        ("an agent's proof (c)", time(limits.handshake), "the connection is closed"),
        (
            "the ends of a session that is recorded",
            time(Duration::from_nanos(owner::RECORD_NS)),
            "there is no recording",
        ),
        (
            "the ends of a session that is recorded since it was stopped",
            time(Duration::from_nanos(owner::RECORD_STOPPED_NS)),
            "they are informed, and there is no recording",
        ),
        ("draining (c)", time(limits.drain), "the process stops; what is left recovers elsewhere"),
    ]
}

fn for_operators() -> Vec<Row> {
    vec![
        (
            "an edge's answer to a command",
            time(super::operate::PATIENCE),
            "the others' are printed; status 4",
        ),
        (
            "an edge that gives no answer while `marram move` waits",
            time(super::moves::AWAY),
            "its moves end as `unknown`; status 4",
        ),
        (
            "the same where it compiles or records, if it is reachable at all",
            time(super::operate::LONG),
            "as above",
        ),
        (
            "clients of a shared cell that a listing names",
            CLIENTS_LISTED.to_string(),
            "it has their number; the cell's other clients are not listed",
        ),
        ("connections to the admin API", marram_admin::CONNECTIONS_MAX.to_string(), "further ones wait"),
        ("operators that follow a log", marram_admin::FOLLOWERS_MAX.to_string(), "further ones are refused"),
        (
            "log lines that are kept (c)",
            size(logging::RING_BYTES),
            "the oldest are dropped; the answer says how many",
        ),
        ("log line that is kept", size(logging::LINE_BYTES_MAX), "it is counted as lost"),
        ("body of a request", size(marram_admin::body::SIZE_MAX), "refused"),
        ("an operator's request head", time(marram_admin::HEAD_PATIENCE), "the connection is closed"),
        ("an operator's request body", time(marram_admin::BODY_PATIENCE), "refused"),
        (
            "an operator that reads nothing of an answer",
            time(marram_admin::WRITE_PATIENCE),
            "the connection is closed",
        ),
    ]
}
