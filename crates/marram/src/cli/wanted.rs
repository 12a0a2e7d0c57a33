//! Which sessions a command is for: filters.
//!
//! Edges send all their sessions; the filters are applied here, so they work for edges and recorders of any version.

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Args, ValueEnum};
use marram_config::units::{Name, Time};
use marram_shard::suggest;
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

/// Filters; a session must match all of them.
#[derive(Args, Default)]
pub(super) struct Wanted {
    /// Sessions of this app; repeat it for several.
    #[arg(long = "app", value_name = "NAME")]
    apps: Vec<Name>,
    /// Sessions with this protection.
    #[arg(long, value_enum)]
    protect: Option<Protect>,
    /// Sessions in this phase, as `marram ps` shows it.
    #[arg(long, value_parser = phases())]
    phase: Option<String>,
    /// Sessions kept by this edge or recorder; "none": kept by none.
    #[arg(long, value_name = "NAME")]
    keeper: Option<Name>,
    /// Sessions that run, and for which this edge is the standby or the backup; "none": for which no edge is.
    #[arg(long, value_name = "NAME")]
    standby: Option<Name>,
    /// Sessions with the client's end in this place.
    #[arg(long, value_enum, value_name = "WHERE")]
    client: Option<Client>,
    /// Sessions with the server's end in this place; "none": without a server.
    #[arg(long, value_enum, value_name = "WHERE")]
    server: Option<Server>,
    /// Sessions that their present shard has had for longer than this time, as their owner or their standby, such as "10m"; a move or
    /// a takeover to another shard begins at zero.
    #[arg(long, value_name = "TIME")]
    older: Option<Time>,
    /// Sessions that their present shard has had for less than this time, as their owner or their standby.
    #[arg(long, value_name = "TIME")]
    younger: Option<Time>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Protect {
    None,
    Endpoints,
    /// Warm or hot.
    Standby,
    Warm,
    Hot,
    Epoch,
}

#[derive(Clone, Copy, ValueEnum)]
enum Client {
    /// Beside the client.
    Agent,
    /// In the edge's gate.
    Gate,
}

#[derive(Clone, Copy, ValueEnum)]
enum Server {
    /// Beside the server.
    Agent,
    /// In the edge's gate.
    Gate,
    /// There is none.
    None,
}

/// The phases of sessions on edges, and of those that recorders keep.
const PHASES: [(&str, &str); 12] = [
    ("running", "its cell handles messages of its ends"),
    ("standing by", "another edge owns it; here is its standby"),
    ("opening", "waits for its ends' promises and what they keep: it begins, or recovers"),
    ("restoring", "its cell is started, or restored from a checkpoint"),
    ("replaying", "its cell replays the log"),
    ("waiting for its backup", "its backup must confirm that it recovered before its ends are informed"),
    ("recording", "its handler was stopped, and what its ends keep is recorded before they are informed"),
    ("finishing", "both sides are done; its ends are informed"),
    ("detached", "its cell is kept, and no end is connected to it here"),
    ("receiving", "a recorder is receiving it"),
    ("recorded", "a recorder has it"),
    ("orphaned", "a recorder has it, and no edge feeds it"),
];

fn phases() -> PossibleValuesParser {
    PossibleValuesParser::new(PHASES.map(|(name, means)| PossibleValue::new(name).help(means)))
}

impl Wanted {
    /// Whether no filter is given.
    pub(super) fn is_empty(&self) -> bool {
        let Self { apps, protect, phase, keeper, standby, client, server, older, younger } = self;
        let texts = phase.is_none() && keeper.is_none() && standby.is_none();
        let places = client.is_none() && server.is_none();
        apps.is_empty() && protect.is_none() && texts && places && older.is_none() && younger.is_none()
    }

    /// A line for each app that is asked for and has no session in these lists: its name is likely misspelt. The lists are those
    /// before the filters.
    pub(super) fn without_sessions(&self, answers: &[Value]) -> Vec<String> {
        let rows = answers.iter().flat_map(|answer| answer["sessions"].as_array()).flatten();
        let all: BTreeSet<&str> = rows.filter_map(|row| row["app"].as_str()).collect();
        let unknown = self.apps.iter().filter(|Name(app)| !all.contains(app.as_str()));
        let line = |Name(app): &Name| {
            let guess = suggest::did_you_mean(app, all.iter().copied());
            format!("no session is of an app `{app}`{guess}")
        };
        unknown.map(line).collect()
    }

    /// Whether a row matches. A field that the row does not have, as in a recorder's rows, matches no filter.
    pub(super) fn fits(&self, row: &Value, now_ms: u64) -> bool {
        let text = |field: &str| row[field].as_str();
        let is = |field: &str, value: bool| row[field].as_bool() == Some(value);
        let protect = |protect| match protect {
            Protect::None => text("protect") == Some("none"),
            Protect::Endpoints => text("protect") == Some("endpoints"),
            Protect::Standby => text("protect").is_some_and(|protect| protect.starts_with("standby")),
            Protect::Warm => text("protect") == Some("standby (warm)"),
            Protect::Hot => text("protect") == Some("standby (hot)"),
            Protect::Epoch => text("protect") == Some("epoch"),
        };
        let kept_by = |name: &Name| is_kept_by(row, name, |_| true);
        // What stands by for a session is not listed where it stands by.
        let stands_by = |name: &Name| {
            text("phase") != Some("standing by")
                && is_kept_by(row, name, |kind| ["warm", "hot", "backup"].contains(&kind))
        };
        let age = |fits: &dyn Fn(u128) -> bool| age_ms(row, now_ms).is_some_and(|age| fits(age.into()));
        (self.apps.is_empty() || self.apps.iter().any(|app| text("app") == Some(&app.0)))
            && self.protect.is_none_or(protect)
            && self.phase.as_ref().is_none_or(|phase| text("phase") == Some(phase))
            && self.keeper.as_ref().is_none_or(kept_by)
            && self.standby.as_ref().is_none_or(stands_by)
            && self.client.is_none_or(|client| is("client_in_gate", matches!(client, Client::Gate)))
            && self.server.is_none_or(|server| match server {
                Server::None => row.get("server").is_some_and(Value::is_null),
                Server::Gate => is("server_in_gate", true),
                Server::Agent => is("server_in_gate", false) && row["server"].is_string(),
            })
            && self.older.is_none_or(|time| age(&|age| age > time.0.as_millis()))
            && self.younger.is_none_or(|time| age(&|age| age < time.0.as_millis()))
    }
}

/// Whether a keeper of one of these kinds has this name, or with the name "none", whether there is none of them.
fn is_kept_by(row: &Value, name: &Name, is_kind: impl Fn(&str) -> bool) -> bool {
    let Some(keepers) = row["keepers"].as_array() else { return false };
    let mut keepers = keepers.iter().filter(|keeper| keeper["kind"].as_str().is_none_or(&is_kind));
    match name.0.as_str() {
        "none" => keepers.next().is_none(),
        name => keepers.any(|keeper| keeper["name"] == name),
    }
}

/// How long a session has been on its edge, as far as that says.
pub(super) fn age_ms(row: &Value, now_ms: u64) -> Option<u64> {
    row["since_ms"].as_u64().map(|since_ms| now_ms.saturating_sub(since_ms))
}

/// The Unix time of this machine's clock, in milliseconds.
pub(super) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_recorder_is_no_standby() {
        let row = |phase: &str, kinds: &[&str]| {
            let keeper = |kind: &&str| json!({ "name": format!("a-{kind}"), "kind": kind });
            json!({ "phase": phase, "keepers": kinds.iter().map(keeper).collect::<Vec<_>>() })
        };
        let standby = |name: &str| Wanted { standby: Some(Name(name.into())), ..Wanted::default() };
        let keeper = |name: &str| Wanted { keeper: Some(Name(name.into())), ..Wanted::default() };
        assert!(!standby("none").is_empty() && Wanted::default().is_empty());
        for (phase, kinds, has_none, is_kept) in [
            ("running", &[][..], true, false),
            ("running", &["recorder"], true, true),
            ("running", &["moving"], true, true),
            ("running", &["recorder", "hot"], false, true),
            ("running", &["warm"], false, true),
            ("running", &["backup"], false, true),
            // Its owner's row says what stands by.
            ("standing by", &[], false, false),
        ] {
            let row = row(phase, kinds);
            assert_eq!(standby("none").fits(&row, 0), has_none, "{row}");
            assert_eq!(keeper("none").fits(&row, 0), !is_kept, "{row}");
        }
        assert!(standby("a-hot").fits(&row("running", &["hot"]), 0));
        assert!(!standby("a-recorder").fits(&row("running", &["recorder"]), 0));
        // A recorder's rows have no keepers.
        assert!(!standby("none").fits(&json!({ "phase": "recorded" }), 0));
    }
}
