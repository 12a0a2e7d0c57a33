//! An agent's configuration: as typed, from a file or from flags, and as the agent takes it.

use super::edge::socket;
use super::shared::{self, WrittenLog, WrittenPatience, WrittenSecurity};
use super::source::{Problem, Source};
use super::units::{Address, Name};
use crate::net::Security;
use crate::{agent, logging};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use toml::Spanned;

/// What `marram config sample agent` prints.
pub const SAMPLE: &str = include_str!("agent.sample.toml");

/// Which side of sessions an agent is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Clients connect to it.
    Client,
    /// It connects to servers.
    Server,
}

/// An agent's configuration as the command line gives it.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// Edges, preferred first.
    pub edges: Vec<Address>,
    /// Where local clients connect, and to which app.
    pub listen: Vec<(SocketAddr, Name)>,
    /// Servers by the names that manifests use.
    pub servers: Vec<(Name, Address)>,
    /// The shared token's file.
    pub token_file: Option<PathBuf>,
    /// Never encrypt.
    pub insecure_plain: bool,
}

/// An agent's configuration, resolved.
#[derive(Clone, Debug)]
pub struct Config {
    /// For the agent.
    pub agent: agent::Options,
    /// For its logs.
    pub log: logging::Options,
}

impl Config {
    /// Resolves flags; everything that has no flag has its default.
    ///
    /// # Errors
    /// If the token cannot be read, or something is missing for the side.
    pub fn from_flags(flags: Flags, side: Side) -> Result<Self, Problem> {
        let source = Source::new("the command line", String::new());
        let token = flags
            .token_file
            .map(|path| shared::token(&source, &Spanned::new(0..0, path.display().to_string())));
        let agent = agent::Options {
            listen: flags.listen.into_iter().map(|(address, app)| (address, app.0)).collect(),
            edges: flags.edges.into_iter().map(|edge| edge.0).collect(),
            servers: flags.servers.into_iter().map(|(name, address)| (name.0, address.0)).collect(),
            security: Security {
                token: token.transpose()?,
                insecure_plain: flags.insecure_plain,
                ..Security::default()
            },
            patience: agent::Patience::default(),
            host: None,
        };
        let missing = match side {
            Side::Client if agent.listen.is_empty() => Some("a client's agent needs --listen ADDRESS=APP"),
            Side::Server if agent.servers.is_empty() => {
                Some("a server's agent needs --server NAME=HOST:PORT")
            }
            Side::Client | Side::Server => None,
        };
        match missing {
            Some(what) => Err(source.complaint(what)),
            None => Ok(Self { agent, log: logging::Options::default() }),
        }
    }

    /// Reads and resolves a configuration.
    ///
    /// # Errors
    /// If a field is unknown, missing, of a wrong type, or does not fit the others or the side.
    pub fn parse(source: &Source, side: Side) -> Result<Self, Problem> {
        source.parse::<Written>()?.resolve(source, side)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    edges: Vec<Address>,
    #[serde(default)]
    servers: BTreeMap<Name, Address>,
    #[serde(default)]
    listen: Vec<WrittenListen>,
    #[serde(default)]
    security: WrittenSecurity,
    #[serde(default)]
    patience: WrittenPatience,
    #[serde(default)]
    log: WrittenLog,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenListen {
    address: Spanned<String>,
    app: Name,
}

impl Written {
    fn resolve(self, source: &Source, side: Side) -> Result<Config, Problem> {
        if self.edges.is_empty() {
            return Err(source.missing("edges", "name one at least, such as edges = [\"edge-a:7400\"]"));
        }
        match side {
            Side::Client if self.listen.is_empty() => {
                let fix = "a client's agent needs one: [[listen]] with address = \"127.0.0.1:8080\" and app = \"...\"";
                return Err(source.missing("listen", fix));
            }
            Side::Server if self.servers.is_empty() => {
                let fix = "a server's agent needs one, such as servers = { web = \"127.0.0.1:80\" }";
                return Err(source.missing("servers", fix));
            }
            Side::Client | Side::Server => {}
        }
        let listen = |written: WrittenListen| Ok((socket(source, &written.address)?, written.app.0));
        let agent = agent::Options {
            listen: self.listen.into_iter().map(listen).collect::<Result<_, _>>()?,
            edges: self.edges.into_iter().map(|edge| edge.0).collect(),
            servers: self.servers.into_iter().map(|(name, address)| (name.0, address.0)).collect(),
            security: self.security.resolve(source)?,
            patience: self.patience.resolve(source)?,
            host: None,
        };
        Ok(Config { agent, log: self.log.resolve() })
    }
}
