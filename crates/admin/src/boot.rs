//! The apps that an edge deploys at its start: those that it had, those in its configuration, those of its peers. A failure is
//! logged and affects only that app.
//!
//! It runs in a thread of its own while the API and the shards serve already: compilation may take
//! seconds, and sessions of other edges may arrive at once. An app that is not deployed yet is
//! unknown until its turn.
//!
//! The order decides which one stays: an app of the configuration replaces one from before the restart
//! that has the same name, and a peer's app comes only if there is none (`copy_app`).

use super::state::AdminState;
use super::{apps, body::Upload, chains, kept, peers};
use marram_config::manifest::{self, Manifest};
use marram_config::source::Source;
use marram_sandbox::Images;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Deploys all of these apps.
pub(super) fn deploy_all(state: &AdminState) {
    for (text, image) in kept::all(state) {
        if let Err(refusal) = apps::deploy_kept(state, &text, image) {
            tracing::error!(%image, "an app from before the restart is not deployed: {refusal}");
        }
    }
    // The second of two would silently replace the first.
    let mut names = BTreeSet::new();
    for path in &state.start {
        let deployed = load(path).and_then(|upload| {
            let source = Source::new(manifest::FILE_NAME, upload.manifest.clone());
            let name = Manifest::parse(&source).map(|manifest| manifest.name).unwrap_or_default();
            if !names.insert(name.clone()) {
                return Err(format!("two of `apps` have the name `{name}`; give one of them another `name`"));
            }
            apps::deploy(state, &upload).map_err(|refusal| refusal.to_string())
        });
        if let Err(why) = deployed {
            tracing::error!(path = %path.display(), "an app of the configuration is not deployed: {why}");
        }
    }
    for peer in &state.peers {
        if let Err(error) = peers::copy_from(state, peer) {
            tracing::warn!(peer, "apps could not be fetched: {error:#}");
        }
    }
}

/// Reads an app as [`load`] does, and makes its image as an edge would, in a temporary directory.
///
/// # Errors
/// If every edge would refuse it, whatever that edge grants or adds. The text says why.
///
/// The directory holds the compiled code, which needs some megabytes. It is removed in any case.
pub fn check(path: &Path) -> Result<(), String> {
    let upload = load(path)?;
    let source = Source::new(manifest::FILE_NAME, upload.manifest.clone());
    let manifest = Manifest::parse(&source).map_err(|problem| problem.to_string())?;
    let directory = std::env::temp_dir().join(format!("marram-check-{}", std::process::id()));
    let made = Images::open(&directory)
        .map_err(|error| format!("there is no space to compile it in {}: {error}", directory.display()))
        .and_then(|images| {
            let why = |refusal| format!("{}: {refusal}", path.display());
            chains::check(&images, &manifest, &upload).map(drop).map_err(why)
        });
    // A directory that cannot be removed stays among the temporary files.
    let _ = std::fs::remove_dir_all(&directory);
    made
}

/// Reads an app from its manifest, or from the directory that holds it.
///
/// # Errors
/// If the manifest is wrong or a file that it names cannot be read. The text says why.
pub fn load(path: &Path) -> Result<Upload, String> {
    let path: PathBuf = if path.is_dir() { manifest_in(path)? } else { path.into() };
    let source = Source::read(&path).map_err(|problem| problem.to_string())?;
    let manifest = Manifest::parse(&source).map_err(|problem| problem.to_string())?;
    let parts = manifest::read_parts(&source, &manifest.stages).map_err(|problem| problem.to_string())?;
    let parts = parts.into_iter().map(Into::into).collect();
    Ok(Upload { manifest: source.text().to_owned(), parts })
}

/// The manifest of the app in a directory.
fn manifest_in(directory: &Path) -> Result<PathBuf, String> {
    let path = directory.join(manifest::FILE_NAME);
    if path.exists() {
        return Ok(path);
    }
    let (name, shown) = (manifest::FILE_NAME, directory.display());
    Err(format!(
        "there is no {name} in {shown}: name an app's directory, such as cells/services/forward, or its manifest"
    ))
}
