//! The read-only files of a cell's file tree: where cells see them, where the contents come from, and reading those. An edge
//! receives the contents together with the app and reads none of its own files.
//!
//! The contents are part of the image's digest: replay on another edge must see the same bytes. A
//! manifest may come from a repository that the operator has not read, so it may name only files
//! below its own folder: a link or `..` must not make `marram deploy` upload a private file.
//! `absolute = true` is the way out, and is visible in the manifest.

use crate::source::{Problem, Source};
use marram_sandbox::ImageFile;
use marram_sandbox::limits::{IMAGE_FILES_BYTES_MAX, IMAGE_FILES_MAX};
use serde::Deserialize;
use std::fs::{self, File};
use std::io::Read;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use toml::Spanned;

/// One file of every cell's tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TreeFile {
    /// Where cells see it, from the root, without a leading slash.
    pub path: String,
    /// The file with its contents, on the machine that deploys.
    source: PathBuf,
    /// Whether the manifest explicitly allows `source` to be anywhere (`absolute = true`).
    anywhere: bool,
    /// Where the manifest names it, for error messages.
    span: Range<usize>,
}

/// An entry as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    path: Spanned<String>,
    source: Spanned<String>,
    #[serde(default)]
    absolute: bool,
}

/// Resolves a manifest's list of files.
///
/// Checks the tree as a whole: no path twice, and no file that would have to be a directory as
/// well.
pub(super) fn resolve(source: &Source, written: Vec<Written>) -> Result<Vec<TreeFile>, Problem> {
    let mut files: Vec<TreeFile> = Vec::new();
    for entry in written {
        let complain = |what: String| Err(source.problem(&entry.path.span(), what));
        if files.len() == IMAGE_FILES_MAX {
            return complain(format!("is one file too many: the maximum is {IMAGE_FILES_MAX}"));
        }
        let shown = entry.path.get_ref();
        let Some(path) = shown.strip_prefix('/').filter(|path| ImageFile::is_path(path)) else {
            return complain(
                "is not a path in a cell's file tree; write it from the root, as \"/etc/words\"".into(),
            );
        };
        for other in &files {
            let below = |a: &str, b: &str| a.strip_prefix(b).is_some_and(|rest| rest.starts_with('/'));
            if other.path == path {
                return complain(format!("\"{shown}\" is named twice; remove one of them"));
            }
            if below(path, &other.path) || below(&other.path, path) {
                return complain(format!(
                    "\"{shown}\" and \"/{}\" cannot both be files, since one would be in the other; rename one",
                    other.path
                ));
            }
        }
        let path = path.to_owned();
        files.push(entry.resolve(source, path)?);
    }
    Ok(files)
}

impl Written {
    /// Checks the rules that need no file system; [`read_all`] checks where symbolic links lead.
    fn resolve(self, source: &Source, path: String) -> Result<TreeFile, Problem> {
        let span = self.source.span();
        let from = Path::new(self.source.get_ref());
        let what = match (from.is_absolute(), self.absolute) {
            (true, false) => {
                "is an absolute path, which means another file on another machine; write it relative to the manifest, \
                 or add `absolute = true`"
            }
            (false, true) => "is relative; write it from the root, or remove `absolute = true`",
            (false, false) if from.components().any(|part| part == Component::ParentDir) => {
                "leads out of the manifest's folder; move the file into it, or write its absolute path and add \
                 `absolute = true`"
            }
            (false, false) if from.file_name().is_none() => "names no file",
            _ => {
                let source = source.path(self.source.get_ref());
                return Ok(TreeFile { path, source, anywhere: self.absolute, span });
            }
        };
        Err(source.problem(&span, what))
    }
}

/// Reads the contents of all files, in the manifest's order. `source` is the manifest that lists them.
///
/// # Errors
/// If a file cannot be read, a link leads it outside the manifest's folder, or the files together are too large.
pub(super) fn read_all(source: &Source, files: &[TreeFile]) -> Result<Vec<Vec<u8>>, Problem> {
    // The budget is common to all files of one stage; each may use what the earlier ones left.
    let mut left = IMAGE_FILES_BYTES_MAX;
    let mut all = Vec::new();
    for file in files {
        let contents = file.read(source, left).map_err(|what| source.problem(&file.span, what))?;
        left -= contents.len();
        all.push(contents);
    }
    Ok(all)
}

impl TreeFile {
    /// Reads the file if it has at most `left` bytes.
    fn read(&self, source: &Source, left: usize) -> Result<Vec<u8>, String> {
        let shown = self.source.display();
        let unreadable = |error: std::io::Error| format!("names {shown}, which cannot be read: {error}");
        let real = fs::canonicalize(&self.source).map_err(unreadable)?;
        let folder = fs::canonicalize(source.directory()).map_err(unreadable)?;
        if !self.anywhere && !real.starts_with(&folder) {
            return Err(format!(
                "names {shown}, which is a link out of the manifest's folder, to {}; copy the file, or write that path \
                 and add `absolute = true`",
                real.display()
            ));
        }
        // Checked before it is opened: opening a pipe would block until its other end is opened.
        if !fs::metadata(&real).map_err(unreadable)?.is_file() {
            return Err(format!(
                "names {shown}, which is not a regular file; name each file in an entry of its own"
            ));
        }
        let mut contents = Vec::new();
        // One byte more than allowed, to tell a file that fits exactly from one that is larger. The
        // size in the metadata is not used, since the file may grow.
        let limit = u64::try_from(left).unwrap_or(u64::MAX).saturating_add(1);
        File::open(&real).and_then(|file| file.take(limit).read_to_end(&mut contents)).map_err(unreadable)?;
        if contents.len() > left {
            return Err(format!(
                "names {shown}, which makes an app's files larger than {IMAGE_FILES_BYTES_MAX} bytes together; \
                 remove some"
            ));
        }
        Ok(contents)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Manifest;
    use marram_cluster::TempDir;
    use std::os::unix::fs::symlink;

    const HEAD: &str = "name = \"a\"\nmodule = \"a.wasm\"\n";

    fn parse(text: &str) -> Result<Manifest, String> {
        let source = Source::new("marram.toml", format!("{HEAD}{text}"));
        Manifest::parse(&source).map_err(|problem| problem.to_string())
    }

    fn entry(path: &str, source: &str) -> String {
        format!("[[files]]\npath = {path:?}\nsource = {source:?}\n")
    }

    #[test]
    fn every_error_names_line_field_and_fix() {
        let two = |a: &str, b: &str| entry(a, "x") + &entry(b, "y");
        for (text, words) in [
            (entry("etc/words", "x"), &[":4", "`files.path`", "from the root"][..]),
            (entry("/", "x"), &[":4", "`files.path`", "\"/etc/words\""]),
            (entry("/a/../b", "x"), &[":4", "`files.path`", "\"/etc/words\""]),
            (two("/a", "/a"), &[":7", "`files.path`", "twice"]),
            (two("/a", "/a/b"), &[":7", "`files.path`", "\"/a\"", "rename one"]),
            (two("/a/b", "/a"), &[":7", "`files.path`", "\"/a/b\"", "rename one"]),
            (entry("/a", "../x"), &[":5", "`files.source`", "leads out", "absolute = true"]),
            (entry("/a", "b/../../x"), &[":5", "`files.source`", "leads out"]),
            (entry("/a", "/x"), &[":5", "`files.source`", "absolute = true"]),
            (entry("/a", ""), &[":5", "`files.source`", "names no file"]),
            (entry("/a", "x") + "absolute = true\n", &[":5", "`files.source`", "is relative"]),
            ("[[files]]\npath = \"/a\"\n".into(), &[":3", "`files`", "missing field `source`"]),
            (entry("/a", "x") + "mode = 7\n", &[":6", "mode", "`absolute`"]),
        ] {
            let error = parse(&text).unwrap_err();
            for word in words {
                assert!(error.contains(word), "{text}: {error:?} does not say {word:?}");
            }
        }
        assert_eq!(parse(&two("/a.b", "/a")).unwrap().stages[0].files.len(), 2, "neither is in the other");
    }

    #[test]
    fn files_are_read_from_the_manifests_folder_and_from_nowhere_else_unless_it_says_so() {
        let place = TempDir::new("tree-files").unwrap();
        let outside = place.write("outside", "far").unwrap();
        place.write("app/words.txt", "near").unwrap();
        symlink("../outside", place.path().join("app/link")).unwrap();
        symlink("words.txt", place.path().join("app/alias")).unwrap();
        let read = |text: &str| {
            let path = place.write("app/marram.toml", format!("{HEAD}{text}")).unwrap();
            let source = Source::read(&path).unwrap();
            let manifest = Manifest::parse(&source).unwrap();
            read_all(&source, &manifest.stages[0].files).map_err(|problem| problem.to_string())
        };
        assert_eq!(read(&(entry("/b", "words.txt") + &entry("/a", "alias"))).unwrap(), [b"near", b"near"]);
        let named = entry("/a", outside.to_str().unwrap()) + "absolute = true\n";
        assert_eq!(read(&named).unwrap(), [b"far"]);
        for (source, words) in [
            ("link", &["marram.toml:5", "`files.source`", "link out of", "absolute = true"][..]),
            ("nowhere", &["marram.toml:5", "`files.source`", "cannot be read"]),
        ] {
            let error = read(&entry("/a", source)).unwrap_err();
            for word in words {
                assert!(error.contains(word), "{source}: {error:?} does not say {word:?}");
            }
        }
        fs::create_dir(place.path().join("app/folder")).unwrap();
        assert!(read(&entry("/a", "folder")).unwrap_err().contains("not a regular file"));
        let large = File::create(place.path().join("app/large")).unwrap();
        large.set_len(IMAGE_FILES_BYTES_MAX as u64 - 3).unwrap();
        let both = entry("/a", "words.txt") + &entry("/b", "large");
        let error = read(&both).unwrap_err();
        assert!(error.contains("marram.toml:8") && error.contains("larger than"), "{error}");
    }
}
