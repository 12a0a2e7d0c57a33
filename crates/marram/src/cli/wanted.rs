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
    /// Sessions with the client's end in this place.
    #[arg(long, value_enum, value_name = "WHERE")]
    client: Option<Client>,
    /// Sessions with the server's end in this place; "none": without a server.
    #[arg(long, value_enum, value_name = "WHERE")]
    server: Option<Server>,
    /// Sessions that have been on edges for longer than this time, such as "10m".
    #[arg(long, value_name = "TIME")]
    older: Option<Time>,
    /// Sessions that have been on edges for less than this time.
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
        let Self { apps, protect, phase, keeper, client, server, older, younger } = self;
        let texts = phase.is_none() && keeper.is_none();
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
        let kept_by = |name: &Name| {
            let keepers = row["keepers"].as_array();
            keepers.is_some_and(|keepers| match name.0.as_str() {
                "none" => keepers.is_empty(),
                name => keepers.iter().any(|keeper| keeper["name"] == name),
            })
        };
        let age = |fits: &dyn Fn(u128) -> bool| age_ms(row, now_ms).is_some_and(|age| fits(age.into()));
        (self.apps.is_empty() || self.apps.iter().any(|app| text("app") == Some(&app.0)))
            && self.protect.is_none_or(protect)
            && self.phase.as_ref().is_none_or(|phase| text("phase") == Some(phase))
            && self.keeper.as_ref().is_none_or(kept_by)
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

/// How long a session has been on its edge, as far as that says.
pub(super) fn age_ms(row: &Value, now_ms: u64) -> Option<u64> {
    row["since_ms"].as_u64().map(|since_ms| now_ms.saturating_sub(since_ms))
}

/// The Unix time of this machine's clock, in milliseconds.
pub(super) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
