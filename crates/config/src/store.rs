//! The configuration of `marram coordinator serve`: the coordinator's store on a machine without an edge.
//!
//! Two edges that could decide between themselves need a third machine that says which of them may go on. It needs little: the token
//! that the edges show, and a directory.

use super::environment;
use super::shared::{self, WrittenLog, socket};
use super::source::{Problem, Source};
use marram_node::coordinator::Serve;
use marram_node::logging;
use marram_transport::Identity;
use serde::Deserialize;
use toml::Spanned;

/// What `marram config sample coordinator` prints.
pub const SAMPLE: &str = include_str!("store.sample.toml");

/// The configuration of a store, resolved.
#[derive(Clone, Debug)]
pub struct StoreSettings {
    /// Where it listens, what it demands, and its file.
    pub serve: Serve,
    /// The certificate and key that it serves with; encrypted if there are any.
    pub identity: Option<Identity>,
    /// For its logs.
    pub log: logging::LogOptions,
}

/// The whole file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    serve: Option<Spanned<String>>,
    token_file: Option<Spanned<String>>,
    directory: Option<String>,
    certificate: Option<Spanned<String>>,
    key: Option<Spanned<String>>,
    #[serde(default)]
    log: WrittenLog,
}

impl StoreSettings {
    /// Reads and resolves a configuration.
    ///
    /// # Errors
    /// If a field is unknown, missing, of a wrong type, or contradicts other fields.
    pub fn parse(source: &Source) -> Result<Self, Problem> {
        let source = &source.overridden::<Written>(environment::COORDINATOR)?;
        source.parse::<Written>("coordinator")?.resolve(source)
    }
}

impl Written {
    fn resolve(self, source: &Source) -> Result<StoreSettings, Problem> {
        let Some(serve) = &self.serve else {
            return Err(
                source.missing("serve", "write the address to listen on, such as serve = \"10.0.0.3:7403\"")
            );
        };
        let Some(directory) = &self.directory else {
            return Err(
                source.missing("directory", "name one that lasts, such as directory = \"/var/lib/marram\"")
            );
        };
        let token = self.token_file.as_ref().map(|path| shared::token(source, path)).transpose()?;
        let listen = shared::store_listen(source, serve, socket(source, serve)?, token.is_some())?;
        Ok(StoreSettings {
            serve: Serve { listen, token, file: source.path(directory).join("coordinator") },
            identity: shared::identity(source, self.certificate.as_ref(), self.key.as_ref())?,
            log: self.log.resolve(source)?,
        })
    }
}
