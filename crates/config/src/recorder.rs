//! A recorder's configuration: as written, and as the recorder takes it.
//!
//! A recorder dials edges like an agent and serves operators like an edge, so it has tables of
//! both. Which edges use it is its own configuration; an edge names none.

use super::environment;
use super::shared::{self, WrittenAdmin, WrittenLog, WrittenSecurity, WrittenTimeouts, own_name};
use super::source::{Problem, Source};
use super::units::{Address, Name, Size, Time};
use marram_http::Access;
use marram_node::{logging, recorder};
use marram_transport::Security;
use marram_wire::seal::{DomainSecret, KeeperKey};
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::Path;
use toml::Spanned;

/// What `marram config sample recorder` prints.
pub const SAMPLE: &str = include_str!("recorder.sample.toml");

/// One large session and its messages must fit, in bytes.
const MEMORY_MIN: u64 = 64 << 20;

/// A recorder's configuration, resolved.
#[derive(Clone, Debug)]
pub struct RecorderSettings {
    /// For the recorder.
    pub recorder: recorder::RecorderOptions,
    /// Where operators connect.
    pub listen: SocketAddr,
    /// Access to the API; has a token if `listen` is not on loopback.
    pub access: Access,
    /// For its logs.
    pub log: logging::LogOptions,
}

impl RecorderSettings {
    /// Reads and resolves a configuration.
    ///
    /// # Errors
    /// If a field is unknown, missing, of a wrong type, or contradicts other fields.
    pub fn parse(source: &Source) -> Result<Self, Problem> {
        let source = &source.overridden::<Written>(environment::RECORDER)?;
        source.parse::<Written>("recorder")?.resolve(source)
    }
}

/// The whole file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: Option<Name>,
    edges: Vec<Address>,
    identity_file: Option<String>,
    /// Proves that the recorder belongs to the domain: a key that is derived from the domain's secret.
    keeper_key_file: Option<Spanned<String>>,
    /// In its place, on a machine that may have it: the secret. Only the key is kept in memory.
    secret_file: Option<Spanned<String>>,
    /// Absent: what it keeps is lost at a restart, which costs only time.
    directory: Option<String>,
    #[serde(default)]
    limits: WrittenLimits,
    #[serde(default)]
    security: WrittenSecurity,
    #[serde(default)]
    admin: WrittenAdmin,
    #[serde(default)]
    timeouts: WrittenWaits,
    #[serde(default)]
    log: WrittenLog,
}

/// `[limits]`: when it is full, new sessions are refused; when sessions grow, the one that was
/// silent for longest is forgotten.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct WrittenLimits {
    memory: Option<Spanned<Size>>,
    sessions: Option<u32>,
}

/// The fields of an agent's `[timeouts]` that a recorder uses.
///
/// The others concern clients and servers, which it does not have, so they are unknown fields here.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct WrittenWaits {
    heartbeat: Option<Spanned<Time>>,
    suspect_after: Option<Spanned<Time>>,
    backoff_min: Option<Spanned<Time>>,
    backoff_max: Option<Spanned<Time>>,
    dial: Option<Spanned<Time>>,
    linger: Option<Spanned<Time>>,
    drain: Option<Spanned<Time>>,
}

impl Written {
    fn key(&self, source: &Source) -> Result<KeeperKey, Problem> {
        match (&self.keeper_key_file, &self.secret_file) {
            (Some(file), None) => keeper_key_in(source, file)?.ok_or_else(|| {
                let what = "names a file that holds no key for recorders; make it on an edge: \
                            `marram config keeper-key SECRET_FILE`";
                source.problem(&file.span(), what)
            }),
            (None, Some(file)) => keeper_key_of(source, file),
            (Some(_), Some(file)) => {
                let what = "is more than a recorder needs beside `keeper_key_file`; remove it";
                Err(source.problem(&file.span(), what))
            }
            (None, None) => Err(source.missing(
                "keeper_key_file",
                "make it on an edge with `marram config keeper-key SECRET_FILE`, and copy it here",
            )),
        }
    }

    fn resolve(self, source: &Source) -> Result<RecorderSettings, Problem> {
        if self.edges.is_empty() {
            return Err(source.missing("edges", "name one at least, such as edges = [\"edge-a:7400\"]"));
        }
        let key = self.key(source)?;
        let (memory, sessions) = self.limits.resolve(source)?;
        let lingers = self.timeouts.linger.is_some();
        let timeouts = WrittenTimeouts {
            heartbeat: self.timeouts.heartbeat,
            suspect_after: self.timeouts.suspect_after,
            backoff_min: self.timeouts.backoff_min,
            backoff_max: self.timeouts.backoff_max,
            dial: self.timeouts.dial,
            linger: self.timeouts.linger,
            drain: self.timeouts.drain,
            ..WrittenTimeouts::default()
        };
        let timeouts = timeouts.resolve(source)?;
        let recorder = recorder::RecorderOptions {
            name: self.name.unwrap_or_else(|| own_name("recorder")).0,
            edges: self.edges.into_iter().map(|edge| edge.0).collect(),
            key,
            security: Security {
                identity_file: self.identity_file.map(|path| source.path(&path)),
                ..self.security.resolve(source)?
            },
            // The default of agents (10 minutes) is for ends; a recorder has a default of its own.
            linger: if lingers { timeouts.linger } else { recorder::LINGER },
            timeouts,
            memory,
            sessions,
            directory: self.directory.map(|directory| source.path(&directory)),
        };
        let (listen, access) = self.admin.resolve(source, "list sessions")?;
        let listen = listen.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 7402)));
        Ok(RecorderSettings { recorder, listen, access, log: self.log.resolve(source)? })
    }
}

/// The key for recorders, of the domain whose secret is in this file.
///
/// # Errors
/// If the file cannot be read, or is too short for a secret.
pub fn keeper_key(secret_file: &Path) -> Result<KeeperKey, Problem> {
    #[derive(Deserialize)]
    struct Named {
        secret_file: Spanned<String>,
    }
    let path = secret_file.to_string_lossy().into_owned();
    let named = Source::new("keeper-key", format!("secret_file = {path:?}"));
    keeper_key_of(&named, &named.parse::<Named>("recorder")?.secret_file)
}

/// `None` if the file holds no key.
fn keeper_key_in(source: &Source, file: &Spanned<String>) -> Result<Option<KeeperKey>, Problem> {
    let bytes = shared::file(source, file)?;
    shared::warn_if_shown(source, file);
    Ok(std::str::from_utf8(&bytes).ok().and_then(|text| KeeperKey::from_text(text.trim())))
}

/// The secret itself is not kept: a recorder cannot decrypt what it keeps.
fn keeper_key_of(source: &Source, secret_file: &Spanned<String>) -> Result<KeeperKey, Problem> {
    Ok(KeeperKey::derive(&DomainSecret::from_material(&shared::secret(source, secret_file)?)))
}

impl WrittenLimits {
    fn resolve(&self, source: &Source) -> Result<(u64, usize), Problem> {
        if let Some(memory) = self.memory.as_ref().filter(|memory| memory.get_ref().0 < MEMORY_MIN) {
            let what = "is less than one large session may need; write \"64MiB\" or more";
            return Err(source.problem(&memory.span(), what));
        }
        let memory = self.memory.as_ref().map_or(recorder::MEMORY, |memory| memory.get_ref().0);
        Ok((memory, self.sessions.map_or(recorder::SESSIONS, |count| count as usize)))
    }
}
