//! Compiled images that the edges of many runs on this machine share, so that each module is compiled once and not by each edge.
//!
//! ```text
//! shared directory: key, <hash>.image --lend--> <edge>/state/images/ --edge compiles what is missing--> collect
//! ```
//! Files are hard links, or copies if the two directories are on different file systems. Edges replace images and never change
//! them, so no edge affects another one. The images of all edges are
//! authenticated by one key; an edge refuses those of another one as it would without.

use anyhow::Context;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The key's file in a directory of images, as `marram-sandbox` names it.
const KEY: &str = "key";
/// Extension of compiled images.
const IMAGE: &str = "image";

/// A directory of images, and their key.
#[derive(Clone, Debug)]
pub struct SharedImages {
    directory: PathBuf,
}

impl SharedImages {
    /// Creates an empty directory below `parent` for one build of a program, and removes those of earlier builds. To be called
    /// once in each process: other processes may use the same directory.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn open(parent: &Path, program: &Path) -> anyhow::Result<Self> {
        let built = fs::metadata(program).and_then(|program| program.modified());
        let built = built.with_context(|| format!("cannot find {}", program.display()))?;
        let age = built.duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_micros();
        let name = format!("images-{age}");
        for other in fs::read_dir(parent).context("cannot list the directory for images")?.flatten() {
            if other.file_name().to_str().is_some_and(|it| it.starts_with("images-") && it != name) {
                // Another process may have removed it.
                let _ = fs::remove_dir_all(other.path());
            }
        }
        let directory = parent.join(name);
        private(&directory)?;
        let mut key = [0; 32];
        rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty())
            .context("the operating system provides no random bytes")?;
        // Complete before it has its name: another process may do the same.
        let aside = directory.join(format!(".{KEY}.{}.0", std::process::id()));
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&aside)?;
        file.write_all(&key)?;
        link(&aside, &directory.join(KEY))?;
        fs::remove_file(&aside)?;
        Ok(Self { directory })
    }

    /// Gives the images to an edge that has not started yet.
    pub(super) fn lend(&self, images: &Path) -> anyhow::Result<()> {
        private(images)?;
        link(&self.directory.join(KEY), &images.join(KEY))?;
        copy(&self.directory, images)
    }

    /// Takes the images that an edge has compiled.
    pub(super) fn collect(&self, images: &Path) -> anyhow::Result<()> {
        copy(images, &self.directory)
    }
}

/// Links all images of a directory into another one.
fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let entries = fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))?;
    let names = entries.flatten().map(|entry| PathBuf::from(entry.file_name()));
    let mut images = names.filter(|name| name.extension().is_some_and(|it| it == IMAGE));
    images.try_for_each(|name| link(&from.join(&name), &to.join(&name)))
}

/// Creates a directory that only this user can read, with those above it.
fn private(directory: &Path) -> anyhow::Result<()> {
    let created = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    created.with_context(|| format!("cannot create {}", directory.display()))
}

/// Does nothing if the new name exists, or if the file was removed meanwhile.
fn link(from: &Path, to: &Path) -> anyhow::Result<()> {
    let linked = match fs::hard_link(from, to) {
        Err(error) if error.kind() == ErrorKind::CrossesDevices => copy_file(from, to),
        linked => linked,
    };
    match linked {
        Err(error) if !matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::NotFound) => {
            Err(error).with_context(|| format!("cannot link {} as {}", from.display(), to.display()))
        }
        _ => Ok(()),
    }
}

/// For directories on different file systems, such as a temporary one in memory. The copy is complete before it has its name, and
/// only this user can read it.
fn copy_file(from: &Path, to: &Path) -> std::io::Result<()> {
    let name = from.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let aside = to.with_file_name(format!(".{name}.{}.copy", std::process::id()));
    // Keeps the mode.
    fs::copy(from, &aside)?;
    let linked = fs::hard_link(&aside, to);
    fs::remove_file(&aside)?;
    linked
}

#[cfg(test)]
mod tests {
    use super::{super::TempDir, SharedImages, copy_file};
    use std::fs;

    #[test]
    fn images_go_from_one_edge_to_the_next_under_one_key_and_other_builds_start_afresh() {
        let place = TempDir::new("shared-images").unwrap();
        let (program, other) = (place.write("program", "1").unwrap(), place.path().join("other"));
        let (first, second) = (place.path().join("A/images"), place.path().join("B/images"));
        let shared = SharedImages::open(place.path(), &program).unwrap();
        shared.lend(&first).unwrap();
        for (name, text) in [("a.image", "code"), ("a.app", "module"), (".b.image.1.0", "half")] {
            fs::write(first.join(name), text).unwrap();
        }
        shared.collect(&first).unwrap();
        // As another process.
        SharedImages::open(place.path(), &program).unwrap().lend(&second).unwrap();
        assert_eq!(fs::read(first.join("key")).unwrap(), fs::read(second.join("key")).unwrap());
        let mut names: Vec<_> = fs::read_dir(&second)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["a.image", "key"]);

        fs::write(&other, "2").unwrap();
        let later = std::time::SystemTime::now() + std::time::Duration::from_secs(9);
        fs::File::options().write(true).open(&other).unwrap().set_modified(later).unwrap();
        let third = place.path().join("C/images");
        SharedImages::open(place.path(), &other).unwrap().lend(&third).unwrap();
        assert!(!third.join("a.image").exists() && third.join("key").exists());
        // Between file systems it is copied.
        copy_file(&first.join("a.image"), &third.join("b.image")).unwrap();
        assert_eq!(fs::read_to_string(third.join("b.image")).unwrap(), "code");
        assert!(copy_file(&first.join("a.image"), &third.join("b.image")).is_err(), "the name exists");
        assert_eq!(fs::read_dir(&third).unwrap().count(), 2, "nothing else is left");
        // A process of the earlier build that is still there finds no place, which costs it nothing.
        shared.collect(&first).unwrap();
        assert!(!shared.directory.exists());
    }
}
