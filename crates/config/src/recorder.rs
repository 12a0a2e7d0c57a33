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
    /// Proves that the recorder belongs to the domain. Only a key derived from it is kept in
    /// memory.
    secret_file: Spanned<String>,
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
    fn resolve(self, source: &Source) -> Result<RecorderSettings, Problem> {
        if self.edges.is_empty() {
            return Err(source.missing("edges", "name one at least, such as edges = [\"edge-a:7400\"]"));
        }
        // The secret itself is not kept: a recorder cannot decrypt what it keeps.
        let secret = DomainSecret::from_material(&shared::secret(source, &self.secret_file)?);
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
            key: KeeperKey::derive(&secret),
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
