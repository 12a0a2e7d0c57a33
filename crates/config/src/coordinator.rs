//! The `[coordinator]` table of an edge: the store that it serves, or where the store is.
//!
//! ```text
//! serve   urls    this edge
//! yes     no      has the embedded store and uses it itself
//! no      yes     uses the store of another edge, or an etcd cluster
//! yes     yes     serves a store for others, and uses the one at `urls`
//! no      no      is refused: the table would have no effect
//! ```
//!
//! Sessions never wait for the coordinator, except for a `strict` witness
//! (`docs/protocol-keepers.md`, chapters 18 and 19). So nothing here decides what a session
//! survives.

use super::shared::{self, socket};
use super::source::{Problem, Source};
use super::units::{Address, Time};
use marram_node::coordinator::{CoordinatorOptions, Serve, StoreAddress, StoreCredentials};
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::Path;
use toml::Spanned;

/// Most stores that one edge can name.
const URLS_MAX: usize = 16;

/// The table as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenCoordinator {
    /// Where to serve the embedded store.
    serve: Option<Spanned<String>>,
    /// Stores, which are tried one after the other; each `http://HOST:PORT` or `https://HOST:PORT`.
    #[serde(default)]
    urls: Vec<Spanned<String>>,
    /// Both what the embedded store demands and what this edge shows to another edge's store.
    token_file: Option<Spanned<String>>,
    /// With `password_file`, for etcd with users; excludes `token_file`.
    user: Option<Spanned<String>>,
    password_file: Option<Spanned<String>>,
    /// How long this edge stays registered after its last message to the store.
    lease: Option<Spanned<Time>>,
    /// Where other edges fetch images. Absent: `admin.listen`, unless that is every address
    /// (`0.0.0.0`), since that one means nothing on another machine.
    admin: Option<Spanned<String>>,
    /// Verifies a store at `https://`; the system's certificates if absent.
    ca: Option<Spanned<String>>,
    /// With `key`: served by the embedded store, and shown to an etcd that asks for one.
    certificate: Option<Spanned<String>>,
    key: Option<Spanned<String>>,
}

/// What the `[coordinator]` table needs from the rest of the edge's configuration.
pub(super) struct Around<'a> {
    /// The edge's state directory, in which the embedded store has its file.
    pub(super) state: &'a Path,
    /// Where agents and other edges connect.
    pub(super) addresses: &'a [String],
    /// Where operators connect: published unless `admin` says otherwise.
    pub(super) admin: SocketAddr,
    pub(super) admin_is_encrypted: bool,
}

impl WrittenCoordinator {
    /// Resolves the table; `at` is its place in the text.
    pub(super) fn resolve(
        self,
        source: &Source,
        at: &std::ops::Range<usize>,
        around: &Around<'_>,
    ) -> Result<CoordinatorOptions, Problem> {
        if self.serve.is_none() && self.urls.is_empty() {
            let what = "names no store; write `urls = [\"http://HOST:PORT\"]`, or `serve = \"127.0.0.1:7403\"` on one edge";
            return Err(source.problem(at, what));
        }
        let token = self.token_file.as_ref().map(|path| shared::token(source, path)).transpose()?;
        let listen = self.serve.as_ref().map(|text| socket(source, text)).transpose()?;
        if let (Some(text), Some(listen)) = (&self.serve, listen) {
            shared::store_listen(source, text, listen, token.is_some())?;
        }
        if let Some(many) = self.urls.get(URLS_MAX) {
            return Err(
                source.problem(&many.span(), format!("is one too many; at most {URLS_MAX} are tried"))
            );
        }
        let stores = self.urls.iter().map(|url| place(source, url)).collect::<Result<Vec<_>, Problem>>()?;
        let identity = shared::identity(source, self.certificate.as_ref(), self.key.as_ref())?;
        let ca = self.ca.as_ref().map(|path| shared::pem(source, path)).transpose()?;
        let credentials = self.credentials(source, token.clone())?;
        Ok(CoordinatorOptions {
            serve: listen.map(|listen| Serve { listen, token, file: around.state.join("coordinator") }),
            stores,
            ca,
            identity,
            credentials,
            lease_s: lease(source, self.lease.as_ref())?,
            addresses: around.addresses.to_vec(),
            remembered: around.state.join("coordinator-seen"),
            admin: match self.admin {
                Some(url) => Some(place(source, &url)?.to_string()),
                None => {
                    let scheme = if around.admin_is_encrypted { "https" } else { "http" };
                    reached_addresses(&[around.admin]).next().map(|address| format!("{scheme}://{address}"))
                }
            },
        })
    }

    fn credentials(&self, source: &Source, token: Option<String>) -> Result<StoreCredentials, Problem> {
        match (&self.user, &self.password_file, token) {
            (None, None, None) => Ok(StoreCredentials::None),
            (None, None, Some(token)) => Ok(StoreCredentials::Token(token)),
            (Some(user), Some(path), None) => {
                let password = shared::file(source, path)?;
                shared::warn_if_shown(source, path);
                let password = String::from_utf8(password).map_err(|_| {
                    source.problem(&path.span(), "names a file that is not text; write one line")
                })?;
                Ok(StoreCredentials::User {
                    name: user.get_ref().clone(),
                    password: password.trim_end().to_owned(),
                })
            }
            (Some(user), _, Some(_)) => {
                let what = "is for etcd and `token_file` for an edge that serves the store; keep one of them";
                Err(source.problem(&user.span(), what))
            }
            (Some(alone), None, None) => {
                Err(source.problem(&alone.span(), "has no password; name its file with `password_file`"))
            }
            (None, Some(alone), _) => {
                Err(source.problem(&alone.span(), "has no user; write `user = \"...\"`"))
            }
        }
    }
}

/// The addresses that other machines can use.
pub(super) fn reached_addresses(addresses: &[SocketAddr]) -> impl Iterator<Item = String> {
    addresses
        .iter()
        .filter(|address| !address.ip().is_unspecified() && address.port() > 0)
        .map(ToString::to_string)
}

fn place(source: &Source, url: &Spanned<String>) -> Result<StoreAddress, Problem> {
    let text = url.get_ref();
    let encrypted = text.strip_prefix("https://");
    let authority = encrypted.or(text.strip_prefix("http://")).map(|rest| rest.trim_end_matches('/'));
    let address = authority.and_then(|authority| authority.parse::<Address>().ok());
    let place = |address: Address| StoreAddress { authority: address.0, is_encrypted: encrypted.is_some() };
    address.map(place).ok_or_else(|| {
        source.problem(&url.span(), "is not an address; write \"http://HOST:PORT\" or \"https://HOST:PORT\"")
    })
}

fn lease(source: &Source, written: Option<&Spanned<Time>>) -> Result<u32, Problem> {
    let Some(written) = written else { return Ok(CoordinatorOptions::LEASE_S) };
    let seconds = u32::try_from(written.get_ref().0.as_secs()).unwrap_or(u32::MAX);
    if (CoordinatorOptions::LEASE_S_MIN..=CoordinatorOptions::LEASE_S_MAX).contains(&seconds) {
        return Ok(seconds);
    }
    let what = format!(
        "is not between {} and {} seconds: a shorter one expires at every short delay, a longer one keeps failed \
         edges listed",
        CoordinatorOptions::LEASE_S_MIN,
        CoordinatorOptions::LEASE_S_MAX
    );
    Err(source.problem(&written.span(), what))
}
