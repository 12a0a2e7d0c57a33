//! The apps in the state directory: each with its manifest and the name of its image, so that a restarted edge has them again.
//!
//! ```text
//! STATE/apps/NAME.toml     "# image " | the image's digest, in hexadecimal digits | line end
//!                          the manifest's text, as it was uploaded
//! ```
//!
//! One file, written atomically: a crash between two deployments of an app leaves one of them, and never the manifest of
//! one with the image of the other. The first line is a comment of TOML.
//!
//! Modules and files are not here but in the image cache, under their digests. Names cannot contain
//! a slash or begin with a dot (`Name` in `marram-config`), so they are safe as file names.

use super::state::AdminState;
use hyper::StatusCode;
use marram_http::Refusal;
use marram_node::edge::write_private;
use marram_wire::id::ImageHash;
use std::fs;
use std::path::PathBuf;

/// Before the image's digest, in a file's first line.
const IMAGE: &str = "# image ";

fn path(state: &AdminState, name: &str) -> PathBuf {
    state.apps.join(format!("{name}.toml"))
}

/// A file's text for this image and manifest.
fn joined(image: ImageHash, manifest: &str) -> String {
    format!("{IMAGE}{image}\n{manifest}")
}

/// The image and the manifest in a file's text.
fn split(text: &str) -> Option<(ImageHash, &str)> {
    let (digest, manifest) = text.strip_prefix(IMAGE)?.split_once('\n')?;
    Some((ImageHash(marram_wire::id::parse_hex(digest)?), manifest))
}

/// Stores an app for the next start.
pub(super) fn keep(state: &AdminState, name: &str, text: &str, image: ImageHash) -> Result<(), Refusal> {
    fs::create_dir_all(&state.apps)
        .and_then(|()| write_private(&path(state, name), joined(image, text).as_bytes()))
        .map_err(|error| {
            let what =
                format!("the app runs, but is not stored for a restart: {}: {error}", state.apps.display());
            let fix = "make the edge's state directory writable and deploy again";
            Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, what, fix)
        })
}

/// Removes an app. Its image stays, for the sessions that use it.
pub(super) fn forget(state: &AdminState, name: &str) -> Result<(), Refusal> {
    let path = path(state, name);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            let what = format!("the app will be deployed again after a restart: {}: {error}", path.display());
            Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, what, "remove that file"))
        }
        _ => Ok(()),
    }
}

/// The manifest that an app was deployed with.
pub(super) fn manifest(state: &AdminState, name: &str) -> Option<String> {
    Some(split(&fs::read_to_string(path(state, name)).ok()?)?.1.to_owned())
}

/// The image that an app was deployed as.
pub(super) fn image(state: &AdminState, name: &str) -> Option<ImageHash> {
    Some(split(&fs::read_to_string(path(state, name)).ok()?)?.0)
}

/// Apps that were deployed before the edge was restarted: manifest and image.
///
/// In the order of their names, so that each start is alike. A file that cannot be read, or was not written by this edge, is
/// left out.
pub(super) fn all(state: &AdminState) -> Vec<(String, ImageHash)> {
    let Ok(entries) = fs::read_dir(&state.apps) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    let kept = |path: PathBuf| {
        let text = fs::read_to_string(path).ok()?;
        let (image, manifest) = split(&text)?;
        Some((manifest.to_owned(), image))
    };
    paths.into_iter().filter_map(kept).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_image_and_the_manifest_as_it_was() {
        let (image, text) = (ImageHash([7; 32]), "name = \"a\"\n\n# the end");
        assert_eq!(split(&joined(image, text)), Some((image, text)));
        for other in ["", "name = \"a\"\n", "# image 07\nname = \"a\"\n", "# image "] {
            assert_eq!(split(other), None, "{other:?}");
        }
    }
}
