//! A session's keepers: the admin API's objects as text for people.
//!
//! The text is [`KeeperRow`]'s, which `marram inspect` also shows in what a session survives.

use marram_shard::api::{KeeperKind, KeeperProgress, KeeperRow};
use serde_json::Value;

/// A keeper in one phrase, as `edge-b (hot, 0 B behind)`.
///
/// One that cannot be read, of another version's edge, is shown as the JSON that it is.
pub(super) fn text(keeper: &Value) -> String {
    read(keeper).map_or_else(|| keeper.to_string(), |row| row.to_string())
}

/// `None` if a field is missing or has another type, or if the kind is unknown.
fn read(keeper: &Value) -> Option<KeeperRow> {
    let kind = keeper["kind"].as_str()?;
    let progress = match &keeper["ready"] {
        Value::Null => None,
        ready => Some(KeeperProgress {
            ready: ready.as_bool()?,
            behind: keeper["behind_bytes"].as_u64()?,
            unreplayed: keeper["unreplayed_entries"].as_u64(),
        }),
    };
    Some(KeeperRow {
        name: keeper["name"].as_str()?.to_owned(),
        kind: KeeperKind::ALL.into_iter().find(|it| it.name() == kind)?,
        progress,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    #[test]
    fn a_keeper_is_shown_in_one_phrase() {
        let keeper = |kind: &str, ready: Value, behind: Value, unreplayed: Value| {
            json!({
                "name": "b", "kind": kind, "ready": ready, "behind_bytes": behind, "unreplayed_entries": unreplayed,
            })
        };
        for (keeper, shown) in [
            (keeper("hot", json!(null), json!(null), json!(null)), "b (hot)"),
            (keeper("hot", json!(false), json!(9), json!(null)), "b (hot, not ready)"),
            (keeper("warm", json!(true), json!(0), json!(null)), "b (warm, 0 B behind)"),
            (keeper("hot", json!(true), json!(9), json!(130)), "b (hot, 9 B behind, 130 entries to replay)"),
            (keeper("backup", json!(true), json!(9), json!(null)), "b (backup, 9 B behind)"),
            (keeper("recorder", json!(true), json!(9), json!(null)), "b (recorder, 9 B behind)"),
            (json!({ "name": "b", "kind": "cold" }), r#"{"name":"b","kind":"cold"}"#),
        ] {
            assert_eq!(super::text(&keeper), shown);
        }
    }
}
