//! What an edge fetches from other edges: the apps that they have deployed, and single images that sessions need.
//!
//! ```text
//! session needs image H of X ─▶ fetch ─▶ edges registered with them at the coordinator (8), then `admin.peers`
//!                                         GET /v1/images/H/app?name=X   the settings
//!                                         GET /v1/images/H              module, files, quotas; for a chain the list of stages
//! ```
//!
//! An edge of before the parameter `name` answers with the settings of any app of that image; those of another app are not used.
//!
//! The URLs come from the coordinator's store, which may be wrong or hostile: a request shows no secret, and an answer counts only
//! if an edge of the domain sealed it for this request (`marram_wire::edge_key`). Edges of a domain trust each other completely
//! (`SECURITY.md`), so settings need no further proof. An image's digest is still checked, because a session's ends name the
//! image and must not get another one. Compiled code is never fetched: each edge compiles for its own CPU.
//!
//! All of it blocks, up to the client's timeout for each request; call it in a thread that may.

use super::client::{ApiClient, ClientError, UrlError};
use super::state::AdminState;
use super::{apps, chains, kept, view};
use bytes::Bytes;
use marram_config::units::Name;
use marram_http::Refusal;
use marram_http::tls::HttpsError;
use marram_node::coordinator::Coordinator;
use marram_sandbox::{Chain, ChainError, DeployError, Images, LoadError};
use marram_shard::api::{App, AppVersion};
use marram_wire::edge_key::EdgeKey;
use marram_wire::id::{ImageHash, parse_hex};
use serde_json::Value;
use std::fmt;
use std::str::FromStr;
use std::sync::PoisonError;
use std::time::Instant;

/// Most edges that are asked for an image that they are registered with. If none of these sends it, more would not help.
const HOLDERS_MAX: usize = 8;

/// Why no peer has sent an image. The session that needs it waits; the operator finds each peer's error in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FetchError {
    /// Peers that were asked.
    peers: usize,
    /// Those of them that do not have it.
    unknown: usize,
    /// Whether the coordinator was away, which knows further edges to ask.
    is_coordinator_away: bool,
}

impl fmt::Display for FetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peers = self.peers;
        match peers - self.unknown {
            0 => write!(f, "none of its {peers} peers has it either")?,
            failed => write!(f, "{failed} of its {peers} peers could not send it (its log says why)")?,
        }
        if self.is_coordinator_away {
            f.write_str("; the coordinator, which knows which edges have it, is unreachable")?;
        }
        Ok(())
    }
}

impl std::error::Error for FetchError {}

/// Why one peer has not sent what it was asked for.
pub(super) enum PeerError {
    /// It is named by no URL.
    Url(UrlError),
    /// The certificates that it is verified with cannot be used.
    Trust(HttpsError),
    /// It did not answer, or refused.
    Client(ClientError),
    /// It does not accept this edge's proof: it belongs to another domain.
    OtherDomain(ClientError),
    /// Its answer lacks this field.
    Lacks(&'static str),
    /// Its answer is not what was asked for.
    Answer(&'static str),
    /// It sent no chain where the image is one.
    Chain(ChainError),
    /// The image directory of this edge cannot be used.
    Images(DeployError),
    /// The image cannot be loaded here.
    Load(LoadError),
    /// This edge refuses the app.
    Refused(Refusal),
}

impl From<ClientError> for PeerError {
    fn from(error: ClientError) -> Self {
        Self::Client(error)
    }
}

impl From<DeployError> for PeerError {
    fn from(error: DeployError) -> Self {
        Self::Images(error)
    }
}

impl From<LoadError> for PeerError {
    fn from(error: LoadError) -> Self {
        Self::Load(error)
    }
}

impl From<Refusal> for PeerError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl fmt::Display for PeerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(error) => write!(f, "{error}"),
            Self::Trust(error) => write!(f, "{error}"),
            Self::Client(error) => write!(f, "{error}"),
            Self::OtherDomain(error) => write!(
                f,
                "it sends apps only to edges of its own domain: is `secret_file` the same on both?: {error}"
            ),
            Self::Lacks(field) => write!(f, "the peer's answer lacks its {field}"),
            Self::Answer(what) => f.write_str(what),
            Self::Chain(error) => write!(f, "{error}"),
            Self::Images(error) => write!(f, "{error}"),
            Self::Load(error) => write!(f, "{error}"),
            Self::Refused(refusal) => write!(f, "{refusal}"),
        }
    }
}

/// Fetches every app that a peer has and this edge does not.
pub(super) fn copy_from(state: &AdminState, peer: &str) -> Result<(), PeerError> {
    let client = client(state, peer)?;
    let list = client.json("/v1/apps").map_err(of_this_domain)?;
    let mut apps: Vec<&Value> = list["apps"].as_array().into_iter().flatten().collect();
    // The stages that this edge adds to every app are fetched before the apps that need them.
    apps.sort_by_key(|app| !app["name"].as_str().is_some_and(|name| state.is_forced(name)));
    for app in apps {
        if let Err(error) = copy_app(state, &client, app) {
            tracing::warn!(peer, app = %app["name"], "an app could not be fetched: {error}");
        }
    }
    Ok(())
}

fn copy_app(state: &AdminState, client: &PeerClient<'_>, app: &Value) -> Result<(), PeerError> {
    let text = |field: &'static str| app[field].as_str().ok_or(PeerError::Lacks(field));
    let (name, manifest, hash) = (text("name")?, text("manifest")?, text("image")?);
    // What is deployed here stays, also if the peer has a newer version: operators deploy to each
    // edge.
    if kept::manifest(state, name).is_some() {
        return Ok(());
    }
    let image = ImageHash(parse_hex(hash).ok_or(PeerError::Answer("the peer's image name is not a digest"))?);
    bring(client, &Images::open(&state.images)?, image)?;
    apps::deploy_copied(state, manifest, image)?;
    Ok(())
}

/// Fetches an image from a peer into the cache, with its stages if it is a chain. Images that are in the cache from earlier are
/// not fetched again.
/// Stages first, the chain last: a chain whose stages are missing must not be in the cache.
fn bring(client: &PeerClient<'_>, images: &Images, image: ImageHash) -> Result<(), PeerError> {
    let get = |image: ImageHash| client.read(&format!("/v1/images/{image}"));
    if images.app(image).is_ok() {
        return Ok(());
    }
    let bytes = get(image)?;
    if Chain::is_chain(&bytes) {
        let chain = Chain::decode(&bytes).map_err(PeerError::Chain)?;
        if chain.hash() != image {
            return Err(PeerError::Answer("the peer sent another chain"));
        }
        for (_, stage) in chain.stages() {
            if images.app(*stage).is_err() {
                images.insert(*stage, &get(*stage)?)?;
            }
        }
    }
    images.insert(image, &bytes)?;
    Ok(())
}

/// Fetches the settings of a version of an app from the first peer that has it, and its image into the image cache.
///
/// # Errors
/// In a few words for the session that needs it; the log has each peer's error.
///
/// Sessions of any app can cause this, each attempt again, so the errors of peers are logged
/// through a limiter. A peer that does not have the image is not a failure of that peer and is
/// counted apart.
pub fn fetch(state: &AdminState, version: &AppVersion) -> Result<App, FetchError> {
    let mut unknown = 0;
    let peers = asked_for(state, version);
    for peer in &peers {
        match fetch_from(state, peer, version) {
            Ok(app) => return Ok(app),
            Err(error) => {
                let is_unknown = matches!(&error, PeerError::Client(error) if error.is_not_found());
                unknown += usize::from(is_unknown);
                // Any client of an edge can cause requests for images that do not exist.
                let mut log_limiter = state.log_limiter.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(suppressed) = log_limiter.pass(Instant::now()) {
                    tracing::warn!(peer, %version, suppressed, "an app could not be fetched: {error}");
                }
            }
        }
    }
    let away = state.coordinator.as_ref().and_then(Coordinator::away);
    Err(FetchError { peers: peers.len(), unknown, is_coordinator_away: away.is_some() })
}

/// Admin URLs: first of edges that are registered with the version, then those in the configuration.
fn asked_for(state: &AdminState, version: &AppVersion) -> Vec<String> {
    let holders = state.coordinator.as_ref().map(|coordinator| coordinator.holders(version));
    let mut urls: Vec<String> = holders.into_iter().flatten().take(HOLDERS_MAX).map(|(_, url)| url).collect();
    let named: Vec<String> = state.peers.iter().filter(|peer| !urls.contains(peer)).cloned().collect();
    urls.extend(named);
    urls
}

fn fetch_from(state: &AdminState, peer: &str, version: &AppVersion) -> Result<App, PeerError> {
    let image = version.image;
    // A client gives the name, as its session's key allows it to: any text.
    let name = Name::from_str(&version.app).map_err(|_| PeerError::Answer("no app can have this name"))?;
    let client = client(state, peer)?;
    let path = format!("/v1/images/{image}/app?name={}", name.0);
    let app = client.json(&path).map_err(of_this_domain)?;
    let app = view::read_app(&app)
        .ok_or(PeerError::Answer("the peer describes the app in another version's format"))?;
    if app.version() != *version {
        return Err(PeerError::Answer(
            "the peer describes another app of this image: has it an older version of Marram?",
        ));
    }
    let images = Images::open(&state.images)?;
    bring(&client, &images, image)?;
    chains::was_made_for(&images, &app.name, app.slots, image)?;
    chains::keys_are_granted(state, &images, &app.name, image)?;
    Ok(app)
}

/// An edge of another domain refuses this edge's proof as a wrong token; the error then says so.
/// The proof's key is derived from the domain's secret, so a wrong proof means another secret.
fn of_this_domain(error: ClientError) -> PeerError {
    match error {
        ClientError::Refused { status: 401, .. } => PeerError::OtherDomain(error),
        error => error.into(),
    }
}

/// A client for what a peer sends to the edges of its domain. The server there may be no edge.
struct PeerClient<'a> {
    client: ApiClient,
    key: &'a EdgeKey,
}

impl PeerClient<'_> {
    fn read(&self, path: &str) -> Result<Bytes, ClientError> {
        self.client.read(self.key, path)
    }

    fn json(&self, path: &str) -> Result<Value, ClientError> {
        serde_json::from_slice(&self.read(path)?)
            .map_err(|error| ClientError::NotUnderstood(error.to_string()))
    }
}

fn client<'a>(state: &'a AdminState, peer: &str) -> Result<PeerClient<'a>, PeerError> {
    let client = ApiClient::new(peer, None).map_err(PeerError::Url)?;
    let client = match &state.ca {
        Some(ca) => client.believing(ca).map_err(PeerError::Trust)?,
        None => client,
    };
    Ok(PeerClient { client, key: &state.edge_key })
}
