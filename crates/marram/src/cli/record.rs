//! `marram record`: fetches a session's recording from the edge that owns it, and adds the app.
//!
//! The edge's file has no app, as it would be sent again with each recording; here it is added, so
//! that the file can be run on any machine. For a redacted one that would be of no use: it cannot
//! be run.

use super::Failure;
use super::operate::Edges;
use anyhow::{Context, anyhow};
use bytes::Bytes;
use clap::Args;
use hyper::Method;
use marram_admin::client::ApiClient;
use marram_node::edge::write_private;
use marram_sandbox::Chain;
use marram_wire::id::ImageHash;
use marram_wire::recording::Recording;
use serde_json::json;
use std::path::PathBuf;

/// `marram record`
#[derive(Args)]
pub(super) struct Record {
    /// The session's identifier, as `marram ps` shows it, or its first digits.
    session: String,
    /// The file to write; SESSION.marram if left out. It contains what both peers sent, and only you can read it.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Leave out the contents of messages: the file shows what happened when and how long messages were, and cannot be run.
    #[arg(long)]
    redact: bool,
    /// Leave out the app: the file can then be run only on a machine that has it.
    #[arg(long)]
    without_app: bool,
    #[command(flatten)]
    edges: Edges,
}

pub(super) fn record(arguments: &Record) -> Result<(), Failure> {
    let session = arguments.edges.whole(&arguments.session)?;
    let output = arguments.output.clone().unwrap_or_else(|| format!("{session}.marram").into());
    // Checked before the edge is asked: a recording is work for the session's ends.
    if output.exists() {
        let what = anyhow!("{} exists already: name another file with --output", output.display());
        return Err(Failure::Usage(what));
    }
    if let Some(directory) = output.parent().filter(|path| !path.as_os_str().is_empty() && !path.is_dir()) {
        let what = anyhow!("there is no directory {}: name another file with --output", directory.display());
        return Err(Failure::Usage(what));
    }
    let kind = if arguments.redact { "/redacted" } else { "" };
    let path = format!("/v1/sessions/{session}/record{kind}");
    let (client, file) = arguments.edges.call_first(&Method::POST, &path)?;
    let mut recording =
        Recording::decode(&file).context("the edge did not send a record file of this version")?;
    if !arguments.without_app && !arguments.redact {
        recording.apps = apps(&client, recording.about.image)?;
    }
    let bytes = recording.encode();
    write_private(&output, &bytes).with_context(|| format!("{} cannot be written", output.display()))?;
    let about = &recording.about;
    let answer = json!({
        "file": output.display().to_string(),
        "bytes": bytes.len(),
        "session": about.session.to_string(),
        "app": about.app,
        "image": about.image.to_string(),
        "redacted": about.redacted,
        "apps": recording.apps.len(),
        "checkpoints": recording.checkpoints.len(),
        "log_bytes": recording.log.len(),
    });
    arguments.edges.show(&[answer], || {
        let apps = if recording.apps.is_empty() { "without its app" } else { "with its app" };
        let what = if about.redacted { "redacted: without the contents of messages" } else { apps };
        format!("{}: {} bytes, {what}\n", output.display(), bytes.len())
    });
    Ok(())
}

/// Fetches the parts of an image from an edge: the app, or the chain and each of its stages once.
///
/// Stages that occur twice in a chain are fetched and stored once. The replay verifies all of them
/// by their digests.
pub(super) fn apps(client: &ApiClient, image: ImageHash) -> Result<Vec<(ImageHash, Bytes)>, Failure> {
    let get = |image: ImageHash| {
        let app = client.call(Method::GET, &format!("/v1/images/{image}"), Bytes::new());
        app.with_context(|| {
            format!("the edge cannot send image {image}; record without it with --without-app")
        })
    };
    let first = get(image)?;
    let mut apps = vec![(image, first.clone())];
    if Chain::is_chain(&first) {
        let chain = Chain::decode(&first).map_err(|why| anyhow!("the edge sent an invalid chain: {why}"))?;
        for (_, stage) in chain.stages() {
            if !apps.iter().any(|(hash, _)| hash == stage) {
                apps.push((*stage, get(*stage)?));
            }
        }
    }
    Ok(apps)
}
