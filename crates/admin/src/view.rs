//! Apps and sessions as JSON.
//!
//! [`app`] is a format between edges, possibly of different versions: [`read_app`] must accept what
//! older builds wrote, or refuse it as a whole. Unknown values are refused and not replaced by a
//! default, since a weaker protection than the operator asked for would go unnoticed. Sessions are
//! shown to operators only; fields may be added.

use marram_shard::api::{
    App, Backing, BackupForm, CheckpointHolder, ClientRow, EndRow, EpochSettings, KeeperKind, KeeperRow,
    MoveOver, MovePlan, MoveRow, MoveStage, Protect, ServerRow, SessionRow, WitnessMode,
};
use marram_shard::cache::CachePolicy;
use marram_wire::id::{ImageHash, parse_hex};
use serde_json::{Value, json};

/// An app, for a peer.
pub(super) fn app(app: &App) -> Value {
    json!({
        "name": app.name,
        "image": app.image.to_string(),
        "cell": if app.shared { "shared" } else { "client" },
        "protect": protect(app.protect),
        "server": app.server,
        "keep": match app.keep {
            CheckpointHolder::Client => "client",
            CheckpointHolder::Server => "server",
            CheckpointHolder::Both => "both",
        },
        "recovery_target_ns": app.recovery_target_ns,
        "linger_ms": app.linger_ms,
        "messages_per_s": app.messages_per_s,
        "log_bytes_per_s": app.log_bytes_per_s,
        "sessions_max": app.sessions_max,
        "tenant": app.tenant,
        "priority": app.priority,
        "witness": match app.witness {
            WitnessMode::None => "none",
            WitnessMode::Lenient => "lenient",
            WitnessMode::Strict => "strict",
        },
        "cache": app.cache.as_ref().map(cache),
        "slots": app.slots,
        "epoch": app.epoch.as_ref().map(|pace| {
            json!({ "every_us": pace.every_us, "alone_after_ms": pace.alone_after_ms, "form": pace.form.name() })
        }),
    })
}

/// The cache settings of an app.
fn cache(policy: &CachePolicy) -> Value {
    json!({
        "origin": policy.origin,
        "ttl_ms": policy.ttl_ms,
        "ttl_max_ms": policy.ttl_max_ms,
        "negative_ttl_ms": policy.negative_ttl_ms,
        "stale_ms": policy.stale_ms,
        "timeout_ms": policy.timeout_ms,
        "bytes_max": policy.bytes_max,
    })
}

/// `None` if a field is missing or has another type.
fn read_cache(value: &Value) -> Option<CachePolicy> {
    let number = |field: &str| value[field].as_u64();
    Some(CachePolicy {
        origin: value["origin"].as_str()?.to_owned(),
        ttl_ms: number("ttl_ms")?,
        ttl_max_ms: number("ttl_max_ms")?,
        negative_ttl_ms: number("negative_ttl_ms")?,
        stale_ms: number("stale_ms")?,
        timeout_ms: number("timeout_ms")?,
        bytes_max: number("bytes_max")?,
    })
}

/// `None` if a field is missing or has another type.
fn read_epoch(value: &Value) -> Option<EpochSettings> {
    let number = |field: &str| value[field].as_u64().and_then(|number| u32::try_from(number).ok());
    let form = BackupForm::named(value["form"].as_str()?)?;
    Some(EpochSettings { every_us: number("every_us")?, alone_after_ms: number("alone_after_ms")?, form })
}

/// Reads what [`app`] writes.
///
/// `None` if anything is missing or unknown: the caller reports another version's format.
pub(super) fn read_app(value: &Value) -> Option<App> {
    let text = |field: &str| value[field].as_str();
    let number = |field: &str| value[field].as_u64();
    let narrow = |field: &str| number(field).and_then(|number| u32::try_from(number).ok());
    Some(App {
        name: text("name")?.to_owned(),
        image: ImageHash(parse_hex(text("image")?)?),
        shared: match text("cell")? {
            "shared" => true,
            "client" => false,
            _ => return None,
        },
        protect: match text("protect")? {
            "none" => Protect::None,
            "endpoints" => Protect::Endpoints,
            "standby (warm)" => Protect::Warm,
            "standby (hot)" => Protect::Hot,
            "epoch" => Protect::Epoch,
            _ => return None,
        },
        server: match &value["server"] {
            Value::Null => None,
            server => Some(server.as_str()?.to_owned()),
        },
        keep: match text("keep")? {
            "client" => CheckpointHolder::Client,
            "server" => CheckpointHolder::Server,
            "both" => CheckpointHolder::Both,
            _ => return None,
        },
        recovery_target_ns: number("recovery_target_ns")?,
        linger_ms: narrow("linger_ms")?,
        messages_per_s: narrow("messages_per_s")?,
        log_bytes_per_s: narrow("log_bytes_per_s")?,
        sessions_max: narrow("sessions_max")?,
        tenant: text("tenant")?.to_owned(),
        priority: number("priority").and_then(|number| u8::try_from(number).ok())?,
        witness: match text("witness")? {
            "none" => WitnessMode::None,
            "lenient" => WitnessMode::Lenient,
            "strict" => WitnessMode::Strict,
            _ => return None,
        },
        cache: match &value["cache"] {
            Value::Null => None,
            cache => Some(read_cache(cache)?),
        },
        epoch: match &value["epoch"] {
            Value::Null => None,
            pace => Some(read_epoch(pace)?),
        },
        slots: match &value["slots"] {
            // Of an edge that knows no keys.
            Value::Null => 0,
            _ => narrow("slots")?,
        },
    })
}

/// One end of a session.
fn end(end: &EndRow) -> Value {
    json!({
        "end": if end.client { "client" } else { "server" },
        "connected": end.linked,
        "consumed": end.consumed,
        "waiting": end.waiting,
        "uncovered_bytes": end.uncovered,
        "produced": end.produced,
        "unacknowledged": end.unacknowledged,
        "unsent": end.unsent,
        "credit_bytes": end.credit,
    })
}

/// One client of a shared cell.
fn client(client: &ClientRow) -> Value {
    let mut value = end(&client.end);
    value["session"] = json!(client.session.to_string());
    value["agent"] = json!(client.agent.to_string());
    value["in_gate"] = json!(client.in_gate);
    value["port"] = json!(client.port);
    value
}

/// One server of a shared cell.
fn server_of_cell(server: &ServerRow) -> Value {
    let mut value = end(&server.end);
    value["server"] = json!(server.server);
    value["port"] = json!(server.port);
    value["state"] = json!(server.state.name());
    value["agent"] = json!(server.agent.map(|agent| agent.to_string()));
    value["in_gate"] = json!(server.in_gate);
    value["waiting_bytes"] = json!(server.waiting_bytes);
    value
}

/// How a session would leave if the edge stopped. None if the edge only stands by for it.
pub(super) fn leaving(row: &SessionRow) -> Option<Value> {
    let drain = row.drain.as_ref()?;
    Some(json!({
        "session": row.session.to_string(),
        "app": row.app,
        "to": drain.to,
        "why": (!drain.why.is_empty()).then_some(&drain.why),
        "unprotected": drain.unprotected,
    }))
}

/// What a session's move to this edge would be.
pub(super) fn planned(plan: &MovePlan, to: &str) -> Value {
    json!({
        "session": plan.session.to_string(),
        "app": plan.app,
        "to": to,
        "state": if plan.why.is_empty() { "would move" } else { "refused" },
        "bytes": plan.bytes,
        "why": (!plan.why.is_empty()).then_some(&plan.why),
    })
}

/// A session that is being moved, in the list of moves.
pub(super) fn moving(row: &SessionRow) -> Option<Value> {
    let moving = row.moving.as_ref()?;
    let copied = row.keepers.iter().find(|keeper| keeper.kind == KeeperKind::Moving);
    Some(json!({
        "session": row.session.to_string(),
        "to": moving.to.to_string(),
        "backup": moving.backup,
        "state": moving.stage.name(),
        "copied_bytes": moving.copied.as_ref().map(|copied| copied.sent),
        "state_bytes": moving.copied.as_ref().map(|copied| copied.size),
        "why": waits_for(moving),
        "behind": copied.and_then(|keeper| keeper.progress.as_ref()).map(|progress| progress.behind),
    }))
}

/// What a move waits for, other than the other edge and the ends.
fn waits_for(moving: &MoveRow) -> Option<&'static str> {
    match moving.stage {
        MoveStage::Waiting => Some("other moves come first"),
        MoveStage::Copying if moving.limited => {
            Some("its copy waits for bandwidth (`limits.move_bandwidth`)")
        }
        MoveStage::Copying | MoveStage::HandedOver => None,
    }
}

/// A move, for people.
fn move_text(moving: &MoveRow) -> String {
    let copied = moving.copied.as_ref().map(|copied| format!(", {} of {} B", copied.sent, copied.size));
    let why = waits_for(moving).map(|why| format!(": {why}"));
    let (copied, why) = (copied.unwrap_or_default(), why.unwrap_or_default());
    let what = if moving.backup { "backup " } else { "" };
    format!("{what}to {} ({}{copied}{why})", moving.to, moving.stage.name())
}

/// A move that is over, in the same list.
pub(super) fn moved(over: &MoveOver) -> Value {
    json!({
        "session": over.session.to_string(),
        "to": over.to.to_string(),
        "backup": over.backup,
        "state": if over.why.is_empty() { "moved" } else { "failed" },
        "ms": over.ms,
        "why": (!over.why.is_empty()).then_some(&over.why),
    })
}

/// One session.
///
/// Sizes are in bytes. `since_ms` is the Unix time at which the session was opened here, in
/// milliseconds.
pub(super) fn row(row: &SessionRow) -> Value {
    json!({
        "session": row.session.to_string(),
        "app": row.app,
        "image": row.image.to_string(),
        "generation": row.generation.to_string(),
        "shard": row.shard,
        "phase": row.phase.name(),
        "client": row.cell.is_none().then(|| row.client.to_string()),
        "server": row.server.map(|host| host.to_string()),
        "protect": protect(row.protect),
        "keepers": row.keepers.iter().map(keeper).collect::<Vec<_>>(),
        "backup": row.backing.map(Backing::name),
        "form": row.replication.as_ref().map(|replication| replication.asked.name()),
        "form_now": row.replication.as_ref().and_then(|replication| replication.now).map(BackupForm::name),
        "every_us": row.replication.as_ref().map(|replication| replication.every_us),
        "waits": row.replication.as_ref().map(|replication| replication.waits),
        "policy_former": row.replication.as_ref().map(|replication| replication.former),
        "policy": row.replication.as_ref().and_then(|replication| replication.policy.as_deref()),
        "payload_bytes_per_s": row.replication.as_ref().and_then(|replication| replication.rate),
        "moving": row.moving.as_ref().map(move_text),
        "ends": row.ends.iter().map(end).collect::<Vec<_>>(),
        "cell": if row.cell.is_some() { "shared" } else { "client" },
        "key": row.cell.as_ref().and_then(|cell| cell.key.as_deref()),
        "slot": row.cell.as_ref().and_then(|cell| cell.slot),
        "clients": row.cell.as_ref().map(|cell| cell.clients),
        "clients_listed": row.cell.as_ref().map(|cell| cell.listed.iter().map(client).collect::<Vec<_>>()),
        "servers": row.cell.as_ref().map(|cell| cell.servers.iter().map(server_of_cell).collect::<Vec<_>>()),
        "busy": row.busy,
        "client_in_gate": row.client_in_gate,
        "server_in_gate": row.server_in_gate,
        "consumed": row.consumed,
        "produced": row.produced,
        "payload_bytes": row.payload_bytes,
        "log_bytes": row.log_bytes,
        "uncovered_bytes": row.uncovered_bytes,
        "tasks": row.tasks,
        "tasks_locked_out": row.tasks_locked_out,
        "locks": row.locks,
        "paused": row.paused,
        "checkpoints": row.checkpoints,
        "recoveries": row.recoveries,
        "since_ms": row.since_ms,
    })
}

/// A replica of a session other than its ends.
///
/// `ready`, `behind_bytes` and `unreplayed_entries` are null before it was sent anything, and the last one also while few
/// entries are left.
fn keeper(row: &KeeperRow) -> Value {
    let progress = row.progress.as_ref();
    json!({
        "name": row.name,
        "kind": row.kind.name(),
        "ready": progress.map(|progress| progress.ready),
        "behind_bytes": progress.map(|progress| progress.behind),
        "unreplayed_entries": progress.and_then(|progress| progress.unreplayed),
    })
}

/// Also read back by [`read_app`]: these texts are part of the format.
fn protect(protect: Protect) -> &'static str {
    match protect {
        Protect::None => "none",
        Protect::Endpoints => "endpoints",
        Protect::Warm => "standby (warm)",
        Protect::Hot => "standby (hot)",
        Protect::Epoch => "epoch",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marram_shard::api::{Copied, Destination, KeeperProgress};

    #[test]
    fn a_move_is_shown_with_what_it_waits_for() {
        let row = |stage, copied, limited| MoveRow {
            to: Destination::edge("b"),
            backup: false,
            stage,
            copied,
            limited,
        };
        let copied = Some(Copied { sent: 12, size: 70 });
        for (moving, shown) in [
            (row(MoveStage::Waiting, None, false), "to b (waiting: other moves come first)"),
            (row(MoveStage::Copying, None, false), "to b (copying)"),
            (row(MoveStage::Copying, copied.clone(), false), "to b (copying, 12 of 70 B)"),
            (
                row(MoveStage::Copying, copied, true),
                "to b (copying, 12 of 70 B: its copy waits for bandwidth (`limits.move_bandwidth`))",
            ),
            (row(MoveStage::HandedOver, None, false), "to b (handed over)"),
        ] {
            assert_eq!(move_text(&moving), shown);
        }
    }

    #[test]
    fn a_keeper_is_shown_with_what_it_has() {
        let row = |progress| KeeperRow { name: "edge-b".into(), kind: KeeperKind::Hot, progress };
        let progress = KeeperProgress { ready: true, behind: 7, unreplayed: Some(130) };
        for (shown, ready, behind, unreplayed) in [
            (row(None), json!(null), json!(null), json!(null)),
            (
                row(Some(KeeperProgress { ready: false, ..progress.clone() })),
                json!(false),
                json!(7),
                json!(130),
            ),
            (
                row(Some(KeeperProgress { unreplayed: None, ..progress.clone() })),
                json!(true),
                json!(7),
                json!(null),
            ),
            (row(Some(progress)), json!(true), json!(7), json!(130)),
        ] {
            let expected = json!({
                "name": "edge-b", "kind": "hot", "ready": ready, "behind_bytes": behind,
                "unreplayed_entries": unreplayed,
            });
            assert_eq!(keeper(&shown), expected);
        }
    }

    #[test]
    fn an_app_is_read_as_it_is_shown_and_not_if_a_word_is_missing_or_unknown() {
        for (protect, keep, server) in [
            (Protect::Endpoints, CheckpointHolder::Both, Some("web".to_owned())),
            (Protect::None, CheckpointHolder::Client, None),
            (Protect::Epoch, CheckpointHolder::Client, None),
            (Protect::Endpoints, CheckpointHolder::Server, Some("web".to_owned())),
        ] {
            let shown = App {
                name: "forward".into(),
                image: ImageHash([0xa7; 32]),
                shared: protect == Protect::None,
                protect,
                server,
                keep,
                recovery_target_ns: 5_000_000,
                linger_ms: 60_000,
                messages_per_s: 7,
                log_bytes_per_s: u32::MAX,
                sessions_max: 9,
                tenant: "acme".into(),
                priority: 3,
                witness: match keep {
                    CheckpointHolder::Client => WitnessMode::Strict,
                    CheckpointHolder::Server => WitnessMode::Lenient,
                    CheckpointHolder::Both => WitnessMode::None,
                },
                cache: (keep == CheckpointHolder::Both).then(|| CachePolicy {
                    origin: "http://o/".into(),
                    ttl_ms: 1,
                    ttl_max_ms: 2,
                    negative_ttl_ms: 3,
                    stale_ms: 4,
                    timeout_ms: 5,
                    bytes_max: u64::MAX,
                }),
                epoch: (protect == Protect::Epoch).then_some(EpochSettings {
                    every_us: 0,
                    alone_after_ms: 1,
                    form: BackupForm::Pages,
                }),
                slots: if protect == Protect::Epoch { 64 } else { 0 },
            };
            let value = app(&shown);
            assert_eq!(read_app(&value), Some(shown));
            for field in value.as_object().unwrap().keys() {
                let mut other = value.clone();
                other[field] = json!(["another version's"]);
                assert_eq!(read_app(&other), None, "{field}");
            }
        }
    }
}
