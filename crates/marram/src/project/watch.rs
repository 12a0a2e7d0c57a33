//! Detects changes in a project's directory.
//!
//! Polling instead of inotify: it needs no descriptor a directory, sees changes on network file
//! systems, and a project is small. Size and time of a file stand for its contents.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Most files that are checked; of a larger project only a part is.
const FILES_MAX: usize = 10_000;
/// Most levels of directories.
const DEPTH_MAX: usize = 16;
/// Files and directories that builds write.
const WRITTEN: [&str; 4] = ["target", "Cargo.lock", "node_modules", "zig-cache"];

/// The sources of a project and their modification times.
/// Ordered by path, so that the change that is named is the same each time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Sources(BTreeMap<PathBuf, (SystemTime, u64)>);

impl Sources {
    /// Lists everything except hidden files, what builds write, and `built`, which the last build made.
    pub(super) fn look(directory: &Path, built: &[PathBuf]) -> Self {
        let mut files = BTreeMap::new();
        collect(directory, built, DEPTH_MAX, &mut files);
        Self(files)
    }

    /// A file that is new, changed or gone since `before`.
    pub(super) fn changed<'a>(&'a self, before: &'a Self) -> Option<&'a Path> {
        let here = self.0.iter().find(|(path, stamp)| before.0.get(*path) != Some(stamp));
        let gone = || before.0.keys().find(|path| !self.0.contains_key(*path));
        here.map(|(path, _)| path).or_else(gone).map(PathBuf::as_path)
    }
}

/// `depth` more levels. Symbolic links are not followed, so there are no cycles.
fn collect(
    directory: &Path,
    built: &[PathBuf],
    depth: usize,
    files: &mut BTreeMap<PathBuf, (SystemTime, u64)>,
) {
    // A directory that cannot be read now is read the next time.
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let name = name.to_string_lossy();
        let Ok(meta) = entry.metadata() else { continue };
        let written = WRITTEN.contains(&&*name) || name.ends_with(".log") || built.contains(&path);
        if name.starts_with('.') || written || files.len() >= FILES_MAX {
            continue;
        }
        if meta.is_dir() && depth > 0 {
            collect(&path, built, depth - 1, files);
        } else if meta.is_file()
            && let Ok(modified) = meta.modified()
        {
            files.insert(path, (modified, meta.len()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn sources_that_come_change_or_go_are_noticed_and_what_builds_write_is_not() {
        let base = std::env::temp_dir().join(format!("marram-watch-{}", std::process::id()));
        for directory in ["src", "target/release", ".git"] {
            fs::create_dir_all(base.join(directory)).unwrap();
        }
        let module = base.join("cell.wasm");
        let look = || Sources::look(&base, std::slice::from_ref(&module));
        fs::write(base.join("src/lib.rs"), "a").unwrap();
        let first = look();
        for quiet in ["target/release/x", ".git/index", "cell.wasm", "Cargo.lock"] {
            fs::write(base.join(quiet), "new").unwrap();
        }
        assert_eq!(look(), first);
        fs::write(base.join("src/lib.rs"), "ab").unwrap();
        let second = look();
        assert!(second.changed(&first).unwrap().ends_with("src/lib.rs"));
        assert_eq!(second.changed(&second), None);
        fs::remove_file(base.join("src/lib.rs")).unwrap();
        assert!(look().changed(&second).unwrap().ends_with("src/lib.rs"));
        fs::remove_dir_all(base).unwrap();
    }
}
