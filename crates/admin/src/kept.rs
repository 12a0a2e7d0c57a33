//! The apps in the state directory: each with its manifest and the name of its image, so that a restarted edge has them again.
//!
//! ```text
//! STATE/apps/NAME.toml     the manifest's text, as it was uploaded
//! STATE/apps/NAME.image    the image's digest, in hexadecimal digits
//! ```
//!
//! Modules and files are not here but in the image cache, under their digests. Names cannot contain
//! a slash or begin with a dot (`Name` in `marram-config`), so they are safe as file names.

use super::state::AdminState;
use hyper::StatusCode;
use marram_http::Refusal;
use marram_wire::id::ImageHash;
use std::fs;
use std::path::PathBuf;

fn manifest_path(state: &AdminState, name: &str) -> PathBuf {
    state.apps.join(format!("{name}.toml"))
}

fn image_path(state: &AdminState, name: &str) -> PathBuf {
    state.apps.join(format!("{name}.image"))
}

/// Stores an app for the next start. The image's name is written last: without it the other files are ignored.
pub(super) fn keep(state: &AdminState, name: &str, text: &str, image: ImageHash) -> Result<(), Refusal> {
    fs::create_dir_all(&state.apps)
        .and_then(|()| fs::write(manifest_path(state, name), text))
        .and_then(|()| fs::write(image_path(state, name), image.to_string()))
        .map_err(|error| {
            let what =
                format!("the app runs, but is not stored for a restart: {}: {error}", state.apps.display());
            let fix = "make the edge's state directory writable and deploy again";
            Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, what, fix)
        })
}

/// Removes an app. Its image stays, for the sessions that use it.
///
/// In the reverse order of [`keep`]: a crash in between leaves a manifest without an image, which
/// is ignored.
pub(super) fn forget(state: &AdminState, name: &str) -> Result<(), Refusal> {
    for path in [image_path(state, name), manifest_path(state, name)] {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                let what =
                    format!("the app will be deployed again after a restart: {}: {error}", path.display());
                return Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, what, "remove that file"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The manifest that an app was deployed with.
pub(super) fn manifest(state: &AdminState, name: &str) -> Option<String> {
    fs::read_to_string(manifest_path(state, name)).ok()
}

/// The image that an app was deployed as.
pub(super) fn image(state: &AdminState, name: &str) -> Option<ImageHash> {
    Some(ImageHash(super::view::parse_hex(fs::read_to_string(image_path(state, name)).ok()?.trim())?))
}

/// Apps that were deployed before the edge was restarted: manifest and image.
///
/// In the order of their names, so that each start is alike. An entry that cannot be read is left
/// out silently: it is half written or half removed.
pub(super) fn all(state: &AdminState) -> Vec<(String, ImageHash)> {
    let Ok(entries) = fs::read_dir(&state.apps) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "image"));
    let kept = |path: PathBuf| {
        let hash = super::view::parse_hex(fs::read_to_string(&path).ok()?.trim())?;
        Some((fs::read_to_string(path.with_extension("toml")).ok()?, ImageHash(hash)))
    };
    paths.into_iter().filter_map(kept).collect()
}
