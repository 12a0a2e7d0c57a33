//! An app's manifest, `marram.toml`: as written and as resolved. Refuses combinations that no edge can provide; the admin thread
//! checks what *this* edge can provide.
//!
//! A manifest is read twice: on the machine that deploys, beside its files, and by the edge, which
//! gets the text and the files' contents and opens none of them.
//!
//! Three parties decide what an app gets: the manifest asks, this module refuses what no edge could
//! give, and the edge that receives it refuses what *it* cannot give, such as a signature with a
//! key that it does not hold.

mod cache;
mod epoch;
pub(crate) use epoch::every_us;
pub use epoch::{ALONE_AFTER, ALONE_AFTER_MAX, EVERY, EVERY_MAX, EVERY_MIN};
mod files;
mod keys;
mod quotas;
mod servers;
mod stages;

pub use cache::{BYTES as CACHE_BYTES, BYTES_MAX as CACHE_BYTES_MAX};
pub use files::TreeFile;
pub use keys::{SLOTS, SLOTS_MAX};
pub use quotas::{SessionQuotas, StageQuotas};
pub use servers::SERVERS_MAX;
pub use stages::{Stage, read_parts};

use crate::source::{Problem, Source};
use crate::units::{Name, Time};
use marram_shard::api::{App, BackupForm, CheckpointHolder, EpochSettings, Protect, WitnessMode};
use marram_shard::cache::CachePolicy;
use marram_wire::id::ImageHash;
use serde::Deserialize;
use std::time::Duration;
use toml::Spanned;

/// The file's name in an app's directory.
pub const FILE_NAME: &str = "marram.toml";

/// What `marram config sample manifest` prints.
pub const SAMPLE: &str = include_str!("manifest.sample.toml");

/// The longest time that replaying should take, unless the manifest says otherwise.
/// Checkpoints are taken when the handlers since the last one exceed it (`docs/protocol.md`,
/// chapter 8).
const RECOVERY_TARGET: Duration = Duration::from_millis(5);
/// How long ends remember a session that cannot be resumed, unless the manifest says otherwise.
pub const LINGER: Duration = Duration::from_secs(60);
/// The longest such time: ends count it in milliseconds, 32 bits.
pub const LINGER_MAX: Duration = Duration::from_secs(49 * 86_400);
const _: () =
    assert!(LINGER_MAX.as_secs() < (1 << 32) / 1_000, "an app's terms have 32 bits for its milliseconds");

/// The most urgent priority.
/// 0 is the fair class, 1 to 9 run before it, 9 first.
const PRIORITY_MAX: u8 = 9;

/// A manifest, resolved: defaults are filled in, and some edge can provide everything that it asks for.
#[derive(Clone, PartialEq, Debug)]
pub struct Manifest {
    /// The name that clients ask for.
    pub name: String,
    /// The stages of its cells, the one next to the client first; most apps have one.
    pub stages: Vec<Stage>,
    /// Whether all sessions share one cell: those on an edge, or with `epoch` those of all edges.
    pub shared: bool,
    /// The tenant that its cells are charged to.
    pub tenant: String,
    /// 0 for the fair class; else its priority.
    pub priority: u8,
    /// How sessions are protected.
    pub protect: Protect,
    /// The server's name, where the app has one.
    pub server: Option<String>,
    /// What a session may use.
    pub quotas: SessionQuotas,
    /// Which end keeps checkpoints.
    pub keep: CheckpointHolder,
    /// The longest time that replaying should take.
    pub recovery_target: Duration,
    /// How long ends remember a session that cannot be resumed.
    pub linger: Duration,
    /// Whether the coordinator remembers how much of a session its client has.
    pub witness: WitnessMode,
    /// The origin that its cells read objects from, and how these are cached; none if they cannot read.
    pub cache: Option<CachePolicy>,
    /// When outputs leave that wait for a backup; none for every other protection.
    pub epoch: Option<EpochSettings>,
    /// How many slots its keys are spread over, if it has one shared cell for each key; else 0.
    pub slots: u32,
    /// The servers that its shared cell may connect to, in ascending order.
    pub servers: Vec<String>,
}

impl Manifest {
    /// Reads and resolves a manifest.
    ///
    /// # Errors
    /// If a field is unknown, missing, of a wrong type, or asks for what no edge can provide.
    pub fn parse(source: &Source) -> Result<Self, Problem> {
        source.parse::<Written>("manifest")?.resolve(source)
    }

    /// The app as the control machine takes it.
    ///
    /// Durations that do not fit are cut to the largest value, which is more than five hundred
    /// years; `linger` always fits.
    #[must_use]
    pub fn app(&self, image: ImageHash) -> App {
        App {
            name: self.name.clone(),
            image,
            protect: self.protect,
            server: self.server.clone(),
            keep: self.keep,
            recovery_target_ns: u64::try_from(self.recovery_target.as_nanos()).unwrap_or(u64::MAX),
            linger_ms: u32::try_from(self.linger.as_millis()).unwrap_or(u32::MAX),
            messages_per_s: self.quotas.messages_per_s,
            log_bytes_per_s: self.quotas.log_bytes_per_s,
            sessions_max: self.quotas.sessions,
            shared: self.shared,
            tenant: self.tenant.clone(),
            priority: self.priority,
            witness: self.witness,
            cache: self.cache.clone(),
            epoch: self.epoch.clone(),
            slots: self.slots,
        }
    }
}

/// The manifest as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: Name,
    /// Relative to the manifest. Absent if there are stages.
    module: Option<Spanned<String>>,
    /// Absent: one for each client.
    cell: Option<Sharing>,
    /// Absent: "endpoints", or "none" for a shared cell.
    protect: Option<Spanned<String>>,
    /// The kind of standby; only with `protect = "standby"`, where it is "warm" if absent.
    standby: Option<Spanned<String>>,
    server: Option<Spanned<Name>>,
    /// Those that a shared cell may connect to.
    servers: Option<Spanned<Vec<Spanned<Name>>>>,
    #[serde(default)]
    quotas: quotas::Written,
    #[serde(default)]
    keep: WrittenKeep,
    #[serde(default)]
    schedule: WrittenSchedule,
    cache: Option<cache::Written>,
    epoch: Option<Spanned<epoch::Written>>,
    /// Whether there is one shared cell for each key that clients come with.
    key: Option<Spanned<String>>,
    slots: Option<Spanned<u32>>,
    #[serde(default)]
    files: Vec<files::Written>,
    #[serde(default)]
    keys: Vec<Spanned<String>>,
    #[serde(default)]
    stage: Vec<stages::Written>,
}

/// `[keep]`: what the ends of a session keep, and how long.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct WrittenKeep {
    checkpoint: Option<Spanned<Keeper>>,
    recovery_target: Option<Spanned<Time>>,
    linger: Option<Spanned<Time>>,
    witness: Option<Spanned<String>>,
}

/// `[schedule]`: on which account the app's cells run. The edge's `[[tenant]]` decides what that is
/// worth.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct WrittenSchedule {
    tenant: Option<Name>,
    priority: Option<Spanned<u8>>,
}

/// `keep.checkpoint`.
#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum Keeper {
    Client,
    Server,
    Both,
}

/// `cell`: one for each client, or one for all clients of an edge, or with a backup of all edges.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Sharing {
    Client,
    Shared,
}

impl Written {
    fn resolve(self, source: &Source) -> Result<Manifest, Problem> {
        let shared = self.cell == Some(Sharing::Shared);
        if let Some(server) = self.server.as_ref().filter(|_| shared) {
            let what = "is of sessions with a cell of their own; write `servers = [...]` for those that a shared cell with a backup connects to, or \
                 `cell = \"client\"`";
            return Err(source.problem(&server.span(), what));
        }
        let (stage_quotas, quotas) = self.quotas.resolve(source)?;
        let only = stages::Only {
            name: self.name.0.clone(),
            module: self.module,
            files: self.files,
            keys: self.keys,
        };
        let written = protect(source, self.protect.as_ref(), shared)?;
        let protection = stand_by(source, written, self.standby.as_ref())?;
        let epoch = epoch::resolve(source, self.epoch, (protection, shared))?;
        let slots =
            keys::resolve(source, (self.key.as_ref(), self.slots.as_ref()), shared && epoch.is_some())?;
        let has_cells = shared && epoch.is_some();
        let servers = servers::resolve(source, self.servers.as_ref(), (has_cells, self.stage.len()))?;
        if let Some(epoch) = &epoch {
            self.keep.suits_epochs(source, protection, epoch.form)?;
        }
        Ok(Manifest {
            stages: stages::resolve(source, only, self.stage, stage_quotas)?,
            quotas,
            shared,
            priority: self.schedule.priority(source)?,
            tenant: self.schedule.tenant.map_or_else(|| self.name.0.clone(), |tenant| tenant.0),
            protect: protection,
            keep: self.keep.keeper(source, self.server.is_some())?,
            witness: self.keep.witness(source, protection, self.server.is_some())?,
            linger: self.keep.linger(source, protection)?,
            recovery_target: self.keep.recovery_target.map_or(RECOVERY_TARGET, |time| time.into_inner().0),
            cache: self.cache.map(|cache| cache.resolve(source)).transpose()?,
            epoch,
            slots,
            servers,
            server: self.server.map(|name| name.into_inner().0),
            name: self.name.0,
        })
    }
}

/// The values that a later build may know have a message of their own: "planned" is another answer
/// than "wrong".
fn protect(source: &Source, written: Option<&Spanned<String>>, shared: bool) -> Result<Protect, Problem> {
    let Some(written) = written else {
        return Ok(if shared { Protect::None } else { Protect::Endpoints });
    };
    let what = match written.get_ref().as_str() {
        // Two ends cannot hold the log of a cell that has other clients (docs/protocol.md, "Chains and shared cells").
        "endpoints" if shared => "a shared cell cannot be kept by the ends of one session; write \"standby\" or \"epoch\" (one cell for all \
             edges, with a backup), \"none\" (one on each edge; its clients' connections and its state end with the edge), or give every \
             client a cell with `cell = \"client\"`"
            .to_string(),
        "endpoints" => return Ok(Protect::Endpoints),
        "epoch" => return Ok(Protect::Epoch),
        "standby" => return Ok(Protect::Warm),
        "none" => return Ok(Protect::None),
        planned @ ("transaction" | "deadline") => format!(
            "\"{planned}\" is planned, but not implemented in this build; write \"endpoints\" (the session survives \
             edges), \"standby\" (and another edge is ready to continue it), \"epoch\" (outputs wait for a backup) or \
             \"none\" (it survives nothing)"
        ),
        other => format!(
            "\"{other}\" is not a protection; write \"endpoints\", \"standby\", \"epoch\" or \"none\""
        ),
    };
    Err(source.problem(&written.span(), what))
}

/// `protect`, with the kind of standby that the manifest names.
fn stand_by(
    source: &Source,
    protect: Protect,
    written: Option<&Spanned<String>>,
) -> Result<Protect, Problem> {
    let Some(written) = written else { return Ok(protect) };
    match (written.get_ref().as_str(), protect) {
        ("warm", Protect::Warm) => Ok(Protect::Warm),
        ("hot", Protect::Warm) => Ok(Protect::Hot),
        ("warm" | "hot", _) => {
            Err(source
                .problem(&written.span(), "needs `protect = \"standby\"`: no edge stands by for others"))
        }
        (other, _) => {
            let what = format!(
                "\"{other}\" is not a kind of standby; write \"warm\" (checkpoint and log at hand) or \"hot\" \
                 (replayed while the session runs)"
            );
            Err(source.problem(&written.span(), what))
        }
    }
}

impl WrittenSchedule {
    fn priority(&self, source: &Source) -> Result<u8, Problem> {
        let Some(written) = &self.priority else { return Ok(0) };
        if *written.get_ref() > PRIORITY_MAX {
            let what =
                format!("a priority is at most {PRIORITY_MAX}, which runs first; 0 shares time with others");
            return Err(source.problem(&written.span(), what));
        }
        Ok(*written.get_ref())
    }
}

impl WrittenKeep {
    /// Where outputs wait for a backup, it has all that a recovery needs.
    fn suits_epochs(&self, source: &Source, protect: Protect, form: BackupForm) -> Result<(), Problem> {
        let (span, what) = if let Some(written) = &self.checkpoint {
            (written.span(), "the backup holds the cell, and ends keep no checkpoints")
        } else if let Some(written) = &self.witness {
            (
                written.span(),
                "the backup keeps how far the session came, and no session continues from what a client keeps",
            )
        } else if let Some(written) = self.recovery_target.as_ref().filter(|_| form == BackupForm::Log) {
            (written.span(), "the backup replays the log while the session runs")
        } else {
            return Ok(());
        };
        let protect = protect.written();
        Err(source
            .problem(&span, format!("has no effect here with `protect = \"{protect}\"`: {what}; remove it")))
    }

    /// Ends count it in whole milliseconds. Without protection a session is over with its edge, and nothing is to be remembered.
    fn linger(&self, source: &Source, protect: Protect) -> Result<Duration, Problem> {
        let Some(written) = &self.linger else { return Ok(LINGER) };
        let linger = written.get_ref().0;
        let what = if linger.as_millis() == 0 && protect != Protect::None {
            "ends would forget a session at once when its edge fails; write for example \"60s\""
        } else if linger > LINGER_MAX {
            "is at most \"49d\"; write a shorter time"
        } else {
            return Ok(linger);
        };
        Err(source.problem(&written.span(), what))
    }

    /// A witness only helps where one end could lie about the past: with a server, that server's
    /// end holds the same log.
    fn witness(&self, source: &Source, protect: Protect, has_server: bool) -> Result<WitnessMode, Problem> {
        let Some(written) = &self.witness else { return Ok(WitnessMode::None) };
        let what = match written.get_ref().as_str() {
            "none" => return Ok(WitnessMode::None),
            "strict" | "lenient" if protect == Protect::None => {
                "nothing is kept that a client could go back to; remove it, or write `protect = \"endpoints\"`".to_string()
            }
            "strict" | "lenient" if has_server => {
                "the server's end already keeps how far the session came; remove it".to_string()
            }
            "strict" => return Ok(WitnessMode::Strict),
            "lenient" => return Ok(WitnessMode::Lenient),
            other => format!(
                "\"{other}\" is not a kind of witness; write \"strict\" (while the coordinator is unreachable, \
                 recoveries wait), \"lenient\" (they continue without its answer) or \"none\""
            ),
        };
        Err(source.problem(&written.span(), what))
    }

    /// Without a server the client's end is the only one. With "both", a checkpoint is held only
    /// when both ends have it (`docs/protocol.md`, chapter 8).
    fn keeper(&self, source: &Source, has_server: bool) -> Result<CheckpointHolder, Problem> {
        let Some(written) = &self.checkpoint else { return Ok(CheckpointHolder::Client) };
        let keep = match written.get_ref() {
            Keeper::Client => return Ok(CheckpointHolder::Client),
            Keeper::Server => CheckpointHolder::Server,
            Keeper::Both => CheckpointHolder::Both,
        };
        if has_server {
            return Ok(keep);
        }
        let what = "there is no server to keep it; name one with `server = \"...\"`, or write \"client\"";
        Err(source.problem(&written.span(), what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Manifest, String> {
        Manifest::parse(&Source::new("marram.toml", text.into())).map_err(|problem| problem.to_string())
    }

    #[test]
    fn a_short_manifest_has_defaults() {
        let manifest = parse("name = \"forward\"\nmodule = \"forward.wasm\"\n").unwrap();
        assert_eq!(manifest.protect, Protect::Endpoints);
        assert_eq!((manifest.keep, manifest.server.as_deref()), (CheckpointHolder::Client, None));
        assert_eq!(manifest.recovery_target, RECOVERY_TARGET);
    }

    #[test]
    fn the_sample_shows_the_defaults() {
        let mut written = parse(SAMPLE).unwrap();
        let setting =
            |line: &str| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).map(str::to_owned);
        let all: String =
            SAMPLE.lines().map(|line| setting(line).unwrap_or_else(|| line.to_owned()) + "\n").collect();
        let mut all = parse(&all).unwrap();
        let (shown, default) = (all.stages.remove(0), written.stages.remove(0));
        assert_eq!((shown.name, shown.quotas, shown.files.len()), (default.name, default.quotas, 1));
        let quotas = SessionQuotas { messages_per_s: 0, log_bytes_per_s: 0, ..all.quotas };
        assert_eq!(Manifest { server: None, quotas, cache: None, ..all }, written);
    }

    #[test]
    fn every_error_names_line_field_and_fix() {
        let head = "name = \"a\"\nmodule = \"a.wasm\"\n";
        for (text, words) in [
            ("protect = 1", &["marram.toml:3", "`protect`", "expected a string"][..]),
            ("protect = \"deadline\"", &[":3", "`protect`", "planned", "\"endpoints\"", "\"epoch\""]),
            ("protect = \"raid\"", &[":3", "`protect`", "not a protection", "\"none\""]),
            ("protct = \"none\"", &[":3", "protct", "expected one of", "`protect`"]),
            ("[quotas]\nmemory = 16", &[":4", "`quotas.memory`", "\"16MiB\""]),
            ("[quotas]\nmemory = \"100B\"", &[":4", "`quotas.memory`", "\"64KiB\""]),
            ("[quotas]\nhandler_time = \"9us\"", &[":4", "`quotas.handler_time`", "1ms"]),
            ("[quotas]\nnan = \"maybe\"", &[":4", "`quotas.nan`", "`canonical`"]),
            ("[keep]\ncheckpoint = \"server\"", &[":4", "`keep.checkpoint`", "server = ", "\"client\""]),
            ("[keep]\ncheckpoint = \"both\"", &[":4", "`keep.checkpoint`", "server = ", "\"client\""]),
            ("[keep]\ncheckpoint = \"cloud\"", &[":4", "`keep.checkpoint`", "`client`", "`both`"]),
            ("[keep]\nlinger = \"0s\"", &[":4", "`keep.linger`", "at once", "\"60s\""]),
            ("[keep]\nlinger = \"999us\"", &[":4", "`keep.linger`", "at once", "\"60s\""]),
            ("[keep]\nlinger = \"50d\"", &[":4", "`keep.linger`", "at most \"49d\""]),
            ("protect = \"none\"\n[keep]\nlinger = \"50d\"", &[":5", "`keep.linger`", "at most \"49d\""]),
            ("[keep]\nwitness = \"god\"", &[":4", "`keep.witness`", "\"strict\"", "\"lenient\""]),
            ("server = \"web\"\n[keep]\nwitness = \"strict\"", &[":5", "`keep.witness`", "server's end"]),
            ("protect = \"none\"\n[keep]\nwitness = \"strict\"", &[":5", "`keep.witness`", "endpoints"]),
            ("[schedule]\npriority = 10", &[":4", "`schedule.priority`", "at most 9"]),
            ("[schedule]\ntenant = \"a b\"", &[":4", "`schedule.tenant`", "a name"]),
            ("server = \"a b\"", &[":3", "`server`", "a name"]),
        ] {
            let error = parse(&format!("{head}{text}\n")).unwrap_err();
            for word in words {
                assert!(error.contains(word), "{text}: {error:?} does not say {word:?}");
            }
        }
        let error = parse("module = \"a.wasm\"\n").unwrap_err();
        assert!(error.contains("name"), "{error}");
    }

    #[test]
    fn ends_remember_a_session_for_as_long_as_the_manifest_says() {
        let linger_ms = |text: &str| {
            let text = format!("name = \"a\"\nmodule = \"a.wasm\"\n{text}\n");
            parse(&text).unwrap().app(ImageHash([0; 32])).linger_ms
        };
        assert_eq!(linger_ms(""), 60_000);
        assert_eq!(linger_ms("[keep]\nlinger = \"1ms\""), 1);
        assert_eq!(linger_ms("[keep]\nlinger = \"49d\""), 49 * 86_400_000);
        assert_eq!(linger_ms("protect = \"none\"\n[keep]\nlinger = \"0s\""), 0);
    }

    #[test]
    fn a_server_may_keep_checkpoints() {
        let text = "name = \"a\"\nmodule = \"a.wasm\"\nserver = \"web\"\n[keep]\ncheckpoint = \"both\"\n";
        assert_eq!(parse(text).unwrap().keep, CheckpointHolder::Both);
    }
}
