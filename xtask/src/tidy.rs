//! The tidy test: conventions that no compiler checks. Each rule returns sentences about what is wrong; all are errors.
//! Lists of exceptions may only shrink: an exception that is no longer needed is also an error.
//!
//!  module | rule |
//! ---|---|
//!  `files` | length, header, no unfinished or ignored code, where unsafe code may be |
//!  `words` | words that readers stumbled over |
//!  `references` | files that comments and documents name exist |
//!  `graph` | which crate may use which; the size of the lockfile |
//!  `types` | a public type's name is in one crate |
//!  `circles` | no circles between the modules of a crate |
//!  `map` | ARCHITECTURE.md names what is there |
//!  `figures` (not in this folder) | the pages have the figures of docs/figures |
//!
//! All of it is reading: nothing is compiled, so it takes a second and runs before everything else.

mod circles;
mod files;
mod graph;
mod map;
mod references;
mod types;
mod words;

use std::path::Path;

use anyhow::{Result, bail};

use crate::{figures, metadata::Metadata, project, shell::say};

/// Checks everything and reports all errors at once.
///
/// # Errors
/// With a line for each error, as `file:line: what to do`.
pub(crate) fn check() -> Result<()> {
    const TEXTS: [&str; 7] = ["rs", "md", "toml", "txt", "py", "c", "h"];
    let mut wrong = Vec::new();
    let mut banned = Vec::new();
    let has_extension = |path: &Path, wanted: &[&str]| {
        path.extension().and_then(|extension| extension.to_str()).is_some_and(|it| wanted.contains(&it))
    };
    let mut sources = Vec::new();
    for path in project::files(|path| has_extension(path, &TEXTS))? {
        let (name, text) = (path.to_string_lossy(), project::read(&path)?);
        banned.extend(words::find(&name, &text));
        if has_extension(&path, &["rs"]) {
            wrong.extend(files::check(&name, &text));
        }
        if has_extension(&path, &["rs", "md"]) {
            wrong.extend(references::check(&name, &text, |path| project::root().join(path).exists()));
        }
        if has_extension(&path, &["rs"]) {
            sources.push((name.into_owned(), text));
        }
    }
    wrong.extend(words::judge(banned));
    wrong.extend(files::stale_exceptions(|path| project::read(path.as_ref())));
    wrong.extend(graph::check(&Metadata::load("Cargo.toml")?));
    wrong.extend(graph::check_lockfile(&project::read("Cargo.lock".as_ref())?));
    wrong.extend(types::check(&sources));
    wrong.extend(circles::check(&sources));
    wrong.extend(map::check()?);
    wrong.extend(figures::check());
    if wrong.is_empty() {
        say(format!("{} source files are tidy", sources.len()));
        return Ok(());
    }
    bail!("{} untidy:\n  {}", wrong.len(), wrong.join("\n  "));
}
