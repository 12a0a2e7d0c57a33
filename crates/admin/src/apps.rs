//! Deploying apps: checks the manifest against this edge, makes an image of the module, sends the app to the control, and has
//! both stored for the next start.
//!
//! ```text
//! upload ─▶ parse ─▶ promises kept here? ─▶ image (compile, cache) ─▶ keys granted? ─▶ control ─▶ state directory
//!            422      422                    400, 422, 500, 507        422              422, 503   500
//! ```
//!
//! The control gets the app before it is stored: an app that no shard takes must not return at the
//! next start. If storing fails, the app runs until the next start, and the refusal says so.
//!
//! Three ways lead to a deployment, and differ in what is known of the image: an upload
//! ([`deploy`]) has it made here; a restart ([`deploy_kept`]) trusts the name in the state
//! directory; a peer ([`deploy_copied`]) may have other stages around it, which is checked first.
//! All of them check keys and promises again, since the configuration may have changed since.

use super::asking::ask;
use super::body::Upload;
use super::chains;
use super::kept;
use super::state::AdminState;
use hyper::StatusCode;
use marram_config::manifest::{self, Manifest};
use marram_config::source::Source;
use marram_config::units::Size;
use marram_http::Refusal;
use marram_sandbox::Images;
use marram_shard::api::Protect;
use marram_shard::control::{ControlAnswer, ControlRequest, MetricSample};
use marram_shard::coordinator::StoreEdge;
use marram_wire::id::ImageHash;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Deploys an uploaded app, and says what its sessions need of other edges.
pub(super) fn deploy(state: &AdminState, upload: &Upload) -> Result<(Value, BackupNeed), Refusal> {
    let manifest = read(state, &upload.manifest)?;
    let images = open(state)?;
    let image = chains::deploy(state, &images, &manifest, upload);
    // A compilation leaves tens of MiB of free memory, which this process does not need again.
    marram_node::memory::give_back();
    let image = image?;
    chains::keys_are_granted(state, &images, &manifest.name, image)?;
    let app = manifest.app(image);
    // Asked before the deployment, which would make it true. It is a hint for the operator and
    // nothing depends on it.
    let unchanged =
        matches!(ask(state, ControlRequest::Apps)?, ControlAnswer::Apps(apps) if apps.contains(&app));
    let mut deployed = announce(state, &manifest, &upload.manifest, image)?;
    deployed["unchanged"] = json!(unchanged);
    Ok((deployed, BackupNeed::of(&manifest)))
}

/// Deploys an image that is in the cache because it was deployed here before.
pub(super) fn deploy_kept(state: &AdminState, text: &str, image: ImageHash) -> Result<Value, Refusal> {
    let (manifest, images) = (read(state, text)?, open(state)?);
    chains::was_made_for(&images, &manifest.name, manifest.slots, image)?;
    chains::keys_are_granted(state, &images, &manifest.name, image)?;
    announce(state, &manifest, text, image)
}

/// Deploys an image that is in the cache because another edge sent it.
pub(super) fn deploy_copied(state: &AdminState, text: &str, image: ImageHash) -> Result<Value, Refusal> {
    let manifest = read(state, text)?;
    chains::agrees(state, &open(state)?, &manifest, image)?;
    deploy_kept(state, text, image)
}

fn read(state: &AdminState, text: &str) -> Result<Manifest, Refusal> {
    let unprocessable = |what: String| {
        Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, what, "change the manifest and deploy again")
    };
    let source = Source::new(manifest::FILE_NAME, text.to_owned());
    let manifest = Manifest::parse(&source).map_err(|problem| unprocessable(problem.to_string()))?;
    promises_kept(state, &manifest).map_err(unprocessable)?;
    Ok(manifest)
}

/// Sends the app to the control, then stores it.
fn announce(state: &AdminState, manifest: &Manifest, text: &str, image: ImageHash) -> Result<Value, Refusal> {
    match ask(state, ControlRequest::Deploy(manifest.app(image)))? {
        ControlAnswer::Done => {}
        ControlAnswer::Refused(why) => {
            let fix = "change the manifest and deploy again";
            return Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, why, fix));
        }
        _ => return Err(Refusal::bug("the control gave an unexpected answer")),
    }
    kept::keep(state, &manifest.name, text, image)?;
    tracing::info!(event = "deployed", app = manifest.name, image = %image, "an app is deployed");
    Ok(json!({
        "edge": state.edge,
        "name": manifest.name,
        "image": image.to_string(),
        "server": manifest.server,
        "protect": manifest.protect.written(),
        "survives": survives(manifest),
        "notes": large(manifest, state.checkpoints_max).into_iter().collect::<Vec<_>>(),
    }))
}

/// The warning about an app with cells that may become too large for their checkpoints. Ends keep a full checkpoint until the next
/// one is complete, so one may take half of the limit.
fn large(manifest: &Manifest, checkpoints_max: u64) -> Option<String> {
    let memory: u64 = manifest.stages.iter().map(|stage| stage.quotas.memory).sum();
    // No end keeps checkpoints where outputs wait for a backup.
    let takes_some = manifest.protect != Protect::None && manifest.epoch.is_none();
    let is_large = takes_some && memory > checkpoints_max / 2;
    is_large.then(|| {
        format!(
            "its cells may use {}, and checkpoints of more than {} do not fit twice into limits.checkpoints of this edge \
             ({}): a session that grows so large goes on with merged deltas, which its edge logs, and it ends if these do not \
             fit either. Raise the limit here and at the agents, or lower quotas.memory",
            Size(memory),
            Size(checkpoints_max / 2),
            Size(checkpoints_max)
        )
    })
}

/// What `protect` promises depends on where the ends run (docs/protocol.md, "Failure model"): refuses a promise that a gate of
/// this edge breaks.
///
/// `routing.rs` checks the same from the other side, when a rule is added for an app that is
/// deployed.
fn promises_kept(state: &AdminState, manifest: &Manifest) -> Result<(), String> {
    if manifest.protect == Protect::None {
        return Ok(());
    }
    let reached = state.gates_reach_cell(manifest.shared, manifest.protect);
    if state.routing.leads_to(&manifest.name) && !reached {
        if manifest.shared {
            return Err(format!(
                "all edges have one cell of an app with `cell = \"shared\"` and `protect = \"{}\"`, and this edge has a gate for `{}` \
                 that reaches this edge alone: its clients would wait for ever for a cell that runs elsewhere. Name the edges that \
                 may have the cell in `[gates] edges` of the edge's configuration, this one among them, or remove the gate and have \
                 clients connect to `marram agent client`",
                manifest.protect.written(),
                manifest.name
            ));
        }
        return Err(format!(
            "`protect = \"{}\"` promises that sessions survive this edge, but it has a gate for `{}`, and the \
             client ends of sessions through that gate are in this edge: they would survive a shard process, not the \
             edge. Write protect = \"none\", or remove the gate and have clients connect to `marram agent client`",
            manifest.protect.written(),
            manifest.name
        ));
    }
    match &manifest.server {
        Some(server) if state.gate_servers.contains(server) => Err(format!(
            "`protect = \"{}\"` promises that sessions survive this edge, but it connects to the server \
             `{server}` itself, so their server ends are in this edge: they would survive a shard process, not the \
             edge. Write protect = \"none\", or remove `{server}` from the edge's `servers` and run `marram agent \
             server` beside it",
            manifest.protect.written()
        )),
        _ => Ok(()),
    }
}

/// What an app's sessions survive, for the operator who deploys it.
fn survives(manifest: &Manifest) -> &'static str {
    match (manifest.protect, &manifest.server) {
        (Protect::None, _) if manifest.shared => {
            "nothing: all its sessions on an edge share one cell, and end with the shard that runs it"
        }
        (_, _) if manifest.shared => {
            "the edge that runs the one cell of all its clients, or that edge's backup, one after the other; not both at once, and \
             not its edge while it runs without a backup. A client leaves when its agent dies, and the others go on"
        }
        (Protect::None, _) => "nothing: a session ends with the shard that runs it",
        (Protect::Endpoints, None) => {
            "any number of edges, one after the other or all at once, while the client's agent lives"
        }
        (Protect::Endpoints, Some(_)) => {
            "any number of edges, one after the other or all at once, while the client's and the server's agents live"
        }
        (Protect::Warm | Protect::Hot, None) => {
            "any number of edges, one after the other or all at once, while the client's agent lives; where another \
             edge stands by, it continues without a rebuild"
        }
        (Protect::Warm | Protect::Hot, Some(_)) => {
            "any number of edges, one after the other or all at once, while the client's and the server's agents \
             live; where another edge stands by, it continues without a rebuild"
        }
        (Protect::Epoch, None) => {
            "its edge or its backup, one after the other, while the client's agent lives; not both at once, and not its \
             edge while it runs without a backup"
        }
        (Protect::Epoch, Some(_)) => {
            "its edge or its backup, one after the other, while the client's and the server's agents live; not both at \
             once, and not its edge while it runs without a backup"
        }
    }
}

/// What sessions of an app need of other edges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BackupNeed {
    /// Nothing.
    None,
    /// One of them stands by, and ends keep what it needs.
    Standby,
    /// Outputs wait for a backup.
    Epoch,
    /// Outputs of a shared cell wait for its standby.
    SharedStandby,
}

impl BackupNeed {
    fn of(manifest: &Manifest) -> Self {
        match (manifest.protect, manifest.epoch.is_some()) {
            (Protect::Epoch, _) => Self::Epoch,
            (_, true) => Self::SharedStandby,
            (Protect::Warm | Protect::Hot, false) => Self::Standby,
            (Protect::None | Protect::Endpoints, false) => Self::None,
        }
    }

    /// Whether there is any.
    pub(super) fn is_some(self) -> bool {
        self != Self::None
    }

    /// Whether the coordinator decides which of two edges goes on.
    fn is_decided(self) -> bool {
        matches!(self, Self::Epoch | Self::SharedStandby)
    }
}

/// The note about an app whose sessions need another edge, if none is connected that could stand by; else `None`.
///
/// It is no error: the other edge may come later.
pub(super) fn no_other_edge(need: BackupNeed, figures: &[MetricSample]) -> Option<String> {
    let what = match need {
        BackupNeed::None => return None,
        BackupNeed::Standby => "sessions have no standby until one is",
        BackupNeed::Epoch => {
            "sessions hold their outputs until one is, or until `epoch.alone_after` has passed"
        }
        BackupNeed::SharedStandby => "outputs of the cell are held until one is, or for 3 s",
    };
    let is_any = figures.iter().any(|it| it.counter.name == "other_edges" && it.counter.value > 0);
    (!is_any).then(|| {
        format!(
            "no other edge that could stand by for sessions of this one is connected yet, and {what}: name this edge in \
             `standby.edges` of another one"
        )
    })
}

/// The note about an app whose sessions need decisions, if the only copy of the coordinator's store is in an edge: that edge's death
/// is one of the things to decide.
pub(super) fn only_store(need: BackupNeed, store: Option<&StoreEdge>) -> Option<String> {
    let at = match store.filter(|_| need.is_decided())? {
        StoreEdge::This => "this edge".into(),
        StoreEdge::Other(edge) => format!("edge `{edge}`"),
    };
    Some(format!(
        "the only copy of the coordinator's store is in {at}: if that fails, no edge can take over a session that it runs, and a \
         session that it backs up holds its outputs, until it is back with its disk. Run `marram coordinator serve` on a third \
         machine, and name that in `coordinator.urls` of every edge"
    ))
}

/// Finds the names of an image's stages, the one next to the client first. A list of sessions asks for each session, so each
/// image is read only once.
///
/// It lives for one request, so what it has read is never stale.
pub(super) struct StageNames {
    images: Option<Images>,
    /// No names (an empty list) stands for an image that is no chain; none, for one that cannot be
    /// read.
    known: BTreeMap<ImageHash, Option<Vec<String>>>,
}

impl StageNames {
    /// For the images of this edge.
    pub(super) fn new(state: &AdminState) -> Self {
        Self { images: Images::open(&state.images).ok(), known: BTreeMap::new() }
    }

    /// The stages of an image that this app runs; none if its list cannot be read. An app that is no chain is its only stage.
    pub(super) fn of(&mut self, app: &str, image: ImageHash) -> Option<Vec<String>> {
        let images = self.images.as_ref()?;
        let read =
            || {
                let chain = images.chain(image).ok()?;
                Some(chain.map_or_else(Vec::new, |chain| {
                    chain.stages().iter().map(|(name, _)| name.clone()).collect()
                }))
            };
        let names = self.known.entry(image).or_insert_with(read).clone()?;
        Some(if names.is_empty() { vec![app.to_owned()] } else { names })
    }
}

fn open(state: &AdminState) -> Result<Images, Refusal> {
    Images::open(&state.images).map_err(|error| chains::refused(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use marram_shard::api::Counter;

    fn need(written: &str) -> BackupNeed {
        let text = format!("name = \"x\"\nmodule = \"x.wasm\"\n{written}\n");
        let manifest = Manifest::parse(&Source::new(manifest::FILE_NAME, text));
        BackupNeed::of(&manifest.expect("a manifest"))
    }

    #[test]
    fn an_app_that_may_outgrow_its_checkpoints_is_deployed_with_a_note() {
        let note = |protect: &str, mebibytes: u64| {
            let text = format!(
                "name = \"x\"\nmodule = \"x.wasm\"\nprotect = \"{protect}\"\n[quotas]\nmemory = \"{mebibytes}MiB\"\n"
            );
            let manifest = Manifest::parse(&Source::new(manifest::FILE_NAME, text)).expect("a manifest");
            large(&manifest, 512 << 20)
        };
        assert_eq!((note("endpoints", 256), note("none", 1024)), (None, None));
        let said = note("endpoints", 257).expect("more than half");
        assert!(said.contains("257MiB") && said.contains("limits.checkpoints"), "{said}");
    }

    #[test]
    fn an_app_that_needs_another_edge_is_deployed_with_a_note_if_none_is_connected() {
        let with =
            |count| vec![MetricSample { shard: Some(0), counter: Counter::gauge("other_edges", count) }];
        for (written, what) in [
            ("protect = \"epoch\"", "epoch.alone_after"),
            ("protect = \"epoch\"\ncell = \"shared\"", "epoch.alone_after"),
            ("protect = \"standby\"", "have no standby"),
            ("protect = \"standby\"\nstandby = \"hot\"", "have no standby"),
            ("protect = \"standby\"\ncell = \"shared\"", "held until one is, or for 3 s"),
        ] {
            assert_eq!(no_other_edge(need(written), &with(1)), None);
            for figures in [&with(0)[..], &[]] {
                let said = no_other_edge(need(written), figures).expect("none is connected");
                assert!(said.contains("standby.edges") && said.contains(what), "{written}: {said}");
            }
        }
        for written in ["", "protect = \"none\"", "cell = \"shared\""] {
            assert_eq!(no_other_edge(need(written), &with(0)), None, "{written}");
        }
    }

    #[test]
    fn an_app_that_needs_decisions_is_deployed_with_a_note_if_the_only_store_is_in_an_edge() {
        for (store, says) in [(StoreEdge::This, "this edge"), (StoreEdge::Other("b".into()), "edge `b`")] {
            for written in ["protect = \"epoch\"", "protect = \"standby\"\ncell = \"shared\""] {
                let said =
                    only_store(need(written), Some(&store)).expect("it would have to decide its own death");
                assert!(said.contains(says) && said.contains("marram coordinator serve"), "{said}");
                assert_eq!(only_store(need(written), None), None);
            }
            assert_eq!(only_store(need("protect = \"standby\""), Some(&store)), None);
        }
    }
}
