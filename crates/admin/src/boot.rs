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
use marram_config::source::{Problem, Source};
use marram_http::Refusal;
use marram_sandbox::{DeployError, Images};
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

/// Why an app cannot be read from its files; its author corrects the file that the message names.
#[derive(Debug)]
pub enum AppError {
    /// The directory contains no manifest.
    NoManifest(PathBuf),
    /// The manifest is wrong, or a file that it names cannot be read.
    Manifest(Problem),
}

impl From<Problem> for AppError {
    fn from(problem: Problem) -> Self {
        Self::Manifest(problem)
    }
}

impl fmt::Display for AppError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoManifest(directory) => write!(
                f,
                "there is no {} in {}: name an app's directory, such as cells/services/forward, or its manifest",
                manifest::FILE_NAME,
                directory.display()
            ),
            Self::Manifest(problem) => write!(f, "{problem}"),
        }
    }
}

impl std::error::Error for AppError {}

/// Why every edge would refuse an app. Its author fixes all but the second, for which this machine needs space.
#[derive(Debug)]
pub enum CheckError {
    /// It cannot be read.
    App(AppError),
    /// It cannot be compiled in this temporary directory.
    NoSpace(PathBuf, DeployError),
    /// Edges refuse the app of this manifest.
    Refused(PathBuf, Refusal),
}

impl From<AppError> for CheckError {
    fn from(error: AppError) -> Self {
        Self::App(error)
    }
}

impl fmt::Display for CheckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::App(error) => write!(f, "{error}"),
            Self::NoSpace(directory, error) => {
                write!(f, "there is no space to compile it in {}: {error}", directory.display())
            }
            Self::Refused(path, refusal) => write!(f, "{}: {refusal}", path.display()),
        }
    }
}

impl std::error::Error for CheckError {}

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
        let deployed = load(path).map_err(|error| error.to_string()).and_then(|upload| {
            let source = Source::new(manifest::FILE_NAME, upload.manifest.clone());
            let name = Manifest::parse(&source).map(|manifest| manifest.name).unwrap_or_default();
            if !names.insert(name.clone()) {
                return Err(format!("two of `apps` have the name `{name}`; give one of them another `name`"));
            }
            apps::deploy(state, &upload).map(|_| ()).map_err(|refusal| refusal.to_string())
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
pub fn check(path: &Path) -> Result<(), CheckError> {
    let upload = load(path)?;
    let source = Source::new(manifest::FILE_NAME, upload.manifest.clone());
    let manifest = Manifest::parse(&source).map_err(AppError::from)?;
    let directory = std::env::temp_dir().join(format!("marram-check-{}", std::process::id()));
    let made = Images::open(&directory)
        .map_err(|error| CheckError::NoSpace(directory.clone(), error))
        .and_then(|images| {
            let checked = chains::check(&images, &manifest, &upload).map(drop);
            checked.map_err(|refusal| CheckError::Refused(path.to_owned(), refusal))
        });
    // A directory that cannot be removed stays among the temporary files.
    let _ = std::fs::remove_dir_all(&directory);
    made
}

/// Reads an app from its manifest, or from the directory that holds it.
///
/// # Errors
/// If the manifest is wrong or a file that it names cannot be read.
pub fn load(path: &Path) -> Result<Upload, AppError> {
    let path: PathBuf = if path.is_dir() { manifest_in(path)? } else { path.into() };
    let source = Source::read(&path)?;
    let manifest = Manifest::parse(&source)?;
    let parts = manifest::read_parts(&source, &manifest.stages)?;
    let parts = parts.into_iter().map(Into::into).collect();
    Ok(Upload { manifest: source.text().to_owned(), parts })
}

/// The manifest of the app in a directory.
fn manifest_in(directory: &Path) -> Result<PathBuf, AppError> {
    let path = directory.join(manifest::FILE_NAME);
    if path.exists() {
        return Ok(path);
    }
    Err(AppError::NoManifest(directory.to_owned()))
}
