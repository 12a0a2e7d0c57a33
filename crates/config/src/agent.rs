//! An agent's configuration: as written, in a file or as flags, and as the agent takes it.
//!
//! Both kinds of agent read one file: a client's agent needs a listener, a server's agent a server.
//! What the other kind needs may be there as well, so one file can serve both programs of a
//! machine.

use super::environment;
use super::routes::{self, WrittenListener, WrittenRoute, WrittenServer};
use super::shared::{self, WrittenAdmin, WrittenLog, WrittenSecurity, WrittenTimeouts, own_name, socket};
use super::source::{Problem, Source};
use super::units::{Address, ListenAddress, Name, ServerAddress, Size, Time};
use marram_agent::{Listener, Routing};
use marram_http::Access;
use marram_node::logging;
use marram_preload::rules as preload;
use marram_session::agent::routes::RouteProtocol;
use marram_transport::Security;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use toml::Spanned;

/// What `marram config sample agent` prints.
pub const SAMPLE: &str = include_str!("agent.sample.toml");

/// Redirects connections to one destination.
///
/// The preloaded library (`marram-preload`) applies it inside the program that `marram exec`
/// starts: its `connect` to `destination` goes to `via`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Redirect {
    /// What the program connects to: a host, by name or address, and a port.
    pub destination: String,
    /// Whether it applies to streams or to datagrams.
    pub protocol: preload::Protocol,
    /// Where an agent listens.
    pub via: SocketAddr,
}

/// What `marram config sample agent-server` prints: the same with servers and without a listener.
/// Derived from [`SAMPLE`] so that the two cannot differ: the line of servers loses its `#`, and
/// the lines of the `[[listen]]` tables get one.
#[must_use]
pub fn sample_for_servers() -> String {
    let mut in_listener = false;
    let mut line = |line: &str| {
        if line.starts_with('[') {
            in_listener = line == "[[listen]]";
        }
        match line.strip_prefix('#') {
            Some(servers) if servers.starts_with("servers =") => format!("{servers}\n"),
            None if in_listener && !line.is_empty() => format!("#{line}\n"),
            _ => format!("{line}\n"),
        }
    };
    SAMPLE.lines().map(&mut line).collect()
}

/// Which side of sessions an agent is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AgentRole {
    /// Clients connect to it.
    Client,
    /// It connects to servers.
    Server,
}

/// An agent's configuration as the command line gives it.
///
/// Only the essentials have flags; everything else needs a file. Flags and a file exclude each
/// other.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// Addresses of edges, preferred first.
    pub edges: Vec<Address>,
    /// Where local clients connect, and to which app.
    pub listen: Vec<(ListenAddress, Name)>,
    /// Servers by the names that manifests use.
    pub servers: Vec<(Name, ServerAddress)>,
    /// The shared token's file.
    /// Relative to the working directory, since there is no file that it could be relative to.
    pub token_file: Option<PathBuf>,
    /// Never encrypt.
    pub insecure_plain: bool,
}

/// An agent's configuration, resolved: what each part of the program takes.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// For the agent.
    pub agent: marram_agent::AgentOptions,
    /// For its admin API, if it has one.
    pub admin: Option<AgentAdminSettings>,
    /// For its logs.
    pub log: logging::LogOptions,
}

/// What an agent's admin API needs to know.
///
/// Without an address to listen on there is no admin API, and then nothing of this exists.
#[derive(Clone, Debug)]
pub struct AgentAdminSettings {
    /// What the agent is called.
    pub name: String,
    /// Where operators connect.
    pub listen: SocketAddr,
    /// Access to the API; has a token if `listen` is not on loopback.
    pub access: Access,
}

impl AgentSettings {
    /// Resolves flags; everything without a flag has its default.
    ///
    /// # Errors
    /// If the token cannot be read, or something that this role needs is missing.
    pub fn from_flags(source: &Source, flags: Flags, side: AgentRole) -> Result<Self, Problem> {
        // An override would be ignored without a file, which the operator could only notice by its
        // missing effect.
        if let Some((variable, _)) = environment::chosen(environment::AGENT, source.environment())?.first() {
            let what = format!(
                "{variable} overrides a field of a file; name one with --config, or remove it from the environment"
            );
            return Err(source.complaint(what));
        }
        let token = flags
            .token_file
            .map(|path| shared::token(source, &Spanned::new(0..0, path.display().to_string())));
        let agent = marram_agent::AgentOptions {
            routing: Routing::new(flags.listen.into_iter().map(listener).collect(), Vec::new())
                .map_err(|refused| source.complaint(refused.what))?,
            edges: flags.edges.into_iter().map(|edge| edge.0).collect(),
            learn: true,
            spread: true,
            servers: flags.servers.into_iter().map(|(name, peer)| routes::server(name, peer)).collect(),
            security: Security {
                token: token.transpose()?,
                insecure_plain: flags.insecure_plain,
                ..Security::default()
            },
            timeouts: marram_agent::Timeouts::default(),
            limits: marram_agent::AgentLimits::default(),
        };
        let missing = match side {
            AgentRole::Client if agent.routing.listeners().next().is_none() => {
                Some("a client's agent needs --listen ADDRESS=APP")
            }
            AgentRole::Server if agent.servers.is_empty() => {
                Some("a server's agent needs --server NAME=HOST:PORT")
            }
            AgentRole::Client | AgentRole::Server => None,
        };
        match missing {
            Some(what) => Err(source.complaint(what)),
            None => Ok(Self { agent, admin: None, log: logging::LogOptions::default() }),
        }
    }

    /// Reads and resolves a configuration.
    ///
    /// # Errors
    /// If a field is unknown, missing, of a wrong type, or contradicts other fields or the role.
    ///
    /// Reads the files that the text names (token, certificates, key). The agent's own key is
    /// opened later, by the agent, since it is created if it is missing.
    pub fn parse(source: &Source, side: AgentRole) -> Result<Self, Problem> {
        let source = &source.overridden::<Written>(environment::AGENT)?;
        let kind = match side {
            AgentRole::Client => "agent-client",
            AgentRole::Server => "agent-server",
        };
        source.parse::<Written>(kind)?.resolve(source, side)
    }
}

/// The redirects of `marram exec`, from destinations to listeners. Reads none of the files that the configuration names.
///
/// # Errors
/// As for [`AgentSettings::parse`], for errors in listeners.
///
/// `marram exec` may run as a user that cannot read the agent's token; it needs the addresses
/// alone. Listeners for browsers have no redirects.
pub fn redirects(source: &Source) -> Result<Vec<Redirect>, Problem> {
    let source = &source.overridden::<Written>(environment::AGENT)?;
    let mut redirects = Vec::new();
    for written in source.parse::<Written>("agent-client")?.listen {
        let (destinations, address) = (written.redirect.clone(), written.address.span());
        let listener = written.resolve(source)?;
        let protocol = match listener.protocol {
            RouteProtocol::Tcp => preload::Protocol::Tcp,
            RouteProtocol::Udp => preload::Protocol::Udp,
            RouteProtocol::WebSocket if destinations.is_empty() => continue,
            RouteProtocol::WebSocket => {
                let what = "is for browsers, which need no redirection; `redirect` is for the protocols \"tcp\" and \
                    \"udp\"";
                return Err(source.problem(&address, what));
            }
        };
        let redirect =
            |destination: Address| Redirect { destination: destination.0, protocol, via: listener.address };
        redirects.extend(destinations.into_iter().map(redirect));
    }
    Ok(redirects)
}

/// The whole file, for either kind of agent. `Source::overridden` needs the type too: it tells by
/// it which variables name fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    /// In `marram logs`; the host's name and the kind of agent if absent.
    name: Option<Name>,
    /// Preferred first. Names are resolved when the agent starts.
    edges: Vec<Address>,
    /// Whether it also uses edges that its edges tell it of; true if absent.
    learn: Option<bool>,
    /// Whether new sessions go to the least loaded of equally near edges; true if absent.
    spread: Option<bool>,
    /// Without it, the agent's key and id are new at each start, so edges do not recognise it.
    identity_file: Option<String>,
    #[serde(default)]
    servers: BTreeMap<Name, WrittenServer>,
    #[serde(default)]
    listen: Vec<WrittenListen>,
    #[serde(default)]
    route: Vec<Spanned<WrittenRoute>>,
    #[serde(default)]
    security: WrittenSecurity,
    #[serde(default)]
    admin: WrittenAdmin,
    #[serde(default)]
    limits: WrittenLimits,
    #[serde(default)]
    timeouts: WrittenTimeouts,
    #[serde(default)]
    log: WrittenLog,
}

/// `[limits]`: what the sessions of the agent may keep. Absent fields take [`marram_agent::AgentLimits::default`].
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct WrittenLimits {
    memory: Option<Spanned<Size>>,
    checkpoints: Option<Spanned<Size>>,
}

impl WrittenLimits {
    fn resolve(self, source: &Source) -> Result<marram_agent::AgentLimits, Problem> {
        Ok(marram_agent::AgentLimits {
            memory_max: memory(source, self.memory.as_ref())?,
            checkpoints_max: shared::checkpoints_max(source, self.checkpoints.as_ref())?,
        })
    }
}

/// What an agent, or the agent of an edge's gates, may keep.
pub(super) fn memory(source: &Source, written: Option<&Spanned<Size>>) -> Result<u64, Problem> {
    let Some(memory) = written else { return Ok(marram_agent::MEMORY) };
    if memory.get_ref().0 < marram_agent::MEMORY_MIN {
        let what = format!(
            "is less than sessions with large messages need; write \"{}\" or more",
            Size(marram_agent::MEMORY_MIN)
        );
        return Err(source.problem(&memory.span(), what));
    }
    Ok(memory.get_ref().0)
}

/// A `[[listen]]` table. The fields that a `[[gate]]` of an edge has too are resolved in
/// `routes.rs`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenListen {
    address: Spanned<String>,
    app: Name,
    name: Option<Name>,
    protocol: Option<Spanned<String>>,
    idle: Option<Spanned<Time>>,
    flows: Option<Spanned<usize>>,
    #[serde(default)]
    origins: Vec<Spanned<String>>,
    proxy_protocol: Option<Spanned<bool>>,
    key: Option<Spanned<String>>,
    /// Used by `marram exec` alone (`redirects`); the agent does not see it.
    #[serde(default)]
    redirect: Vec<Address>,
}

impl WrittenListen {
    fn resolve(self, source: &Source) -> Result<Listener, Problem> {
        let Self { address, app, name, protocol, idle, flows, origins, proxy_protocol, key, redirect: _ } =
            self;
        let address = socket(source, &address)?;
        let listener = WrittenListener { name, protocol, idle, flows, origins, proxy_protocol, key };
        listener.resolve(source, address, app)
    }
}

/// A listener from the command line.
fn listener((socket, app): (ListenAddress, Name)) -> Listener {
    Listener::new(socket.address, socket.protocol, app.0)
}

impl Written {
    fn resolve(self, source: &Source, side: AgentRole) -> Result<AgentSettings, Problem> {
        if self.edges.is_empty() {
            return Err(source.missing("edges", "name one at least, such as edges = [\"edge-a:7400\"]"));
        }
        match side {
            AgentRole::Client if self.listen.is_empty() => {
                let fix = "a client's agent needs one: [[listen]] with address = \"127.0.0.1:8080\" and app = \"...\"";
                return Err(source.missing("listen", fix));
            }
            AgentRole::Server if self.servers.is_empty() => {
                let fix = "a server's agent needs one, such as servers = { origin = \"127.0.0.1:80\" }";
                return Err(source.missing("servers", fix));
            }
            AgentRole::Client | AgentRole::Server => {}
        }
        let listeners =
            self.listen.into_iter().map(|listen| listen.resolve(source)).collect::<Result<_, _>>()?;
        let agent = marram_agent::AgentOptions {
            routing: routes::routing(source, listeners, &self.route)?,
            edges: self.edges.into_iter().map(|edge| edge.0).collect(),
            learn: self.learn.unwrap_or(true),
            spread: self.spread.unwrap_or(true),
            servers: routes::servers(self.servers),
            security: Security {
                identity_file: self.identity_file.map(|path| source.path(&path)),
                ..self.security.resolve(source)?
            },
            timeouts: self.timeouts.resolve(source)?,
            limits: self.limits.resolve(source)?,
        };
        let (listen, access) = self.admin.resolve(source, "read what this agent logs")?;
        let kind = match side {
            AgentRole::Client => "client-agent",
            AgentRole::Server => "server-agent",
        };
        let name = self.name.unwrap_or_else(|| own_name(kind)).0;
        let admin = listen.map(|listen| AgentAdminSettings { name, listen, access });
        // Without an admin API nothing could ask for the lines, so none are kept in memory.
        let log = match admin {
            Some(_) => self.log.resolve(source)?,
            None => self.log.resolve_unasked(source)?,
        };
        Ok(AgentSettings { agent, admin, log })
    }
}
