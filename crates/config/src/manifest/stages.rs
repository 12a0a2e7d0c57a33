//! The stages of an app's cell: one module, or several that are connected in sequence. They are read on the machine that
//! deploys the app; an edge that receives an app reads none of its own files.
//!
//! ```text
//! client ◀─▶ stage 0 ◀─▶ stage 1 ◀─▶ ... ◀─▶ server
//! ```
//!
//! `module` and `[[stage]]` exclude each other; fields of the one form that stand beside the other
//! are errors and are not ignored, since they would silently lose their effect.

use super::files::{self, TreeFile};
use super::quotas::{StageQuotas, WrittenStage};
use super::{Problem, Source};
use crate::source::unreadable;
use crate::units::Name;
use marram_sandbox::limits::{KEYS_MAX, STAGES_MAX};
use serde::Deserialize;
use std::fs;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::PathBuf;
use toml::Spanned;

/// One stage of an app's cell.
#[derive(Clone, PartialEq, Debug)]
pub struct Stage {
    /// Its name in error reasons and logs.
    pub name: String,
    /// Read-only files that it sees.
    pub files: Vec<TreeFile>,
    /// Paths, without a leading slash, of those files that are certificates with keys that the host signs with for this stage.
    pub keys: Vec<String>,
    /// What it may use.
    pub quotas: StageQuotas,
    /// The module's file, on the machine that deploys.
    pub module: PathBuf,
    /// Where the manifest names the module, for error messages.
    span: Range<usize>,
}

/// A stage as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    name: Spanned<Name>,
    module: Spanned<String>,
    #[serde(default)]
    quotas: WrittenStage,
    #[serde(default)]
    files: Vec<files::Written>,
    #[serde(default)]
    keys: Vec<Spanned<String>>,
}

/// What the manifest of an app with a single stage says about that stage.
/// It is resolved to a stage named like the app.
pub(super) struct Only {
    pub(super) name: String,
    pub(super) module: Option<Spanned<String>>,
    pub(super) files: Vec<files::Written>,
    pub(super) keys: Vec<Spanned<String>>,
}

/// Resolves a manifest's module or stages. `quotas` are the defaults of each stage.
pub(super) fn resolve(
    source: &Source,
    only: Only,
    stages: Vec<Written>,
    quotas: StageQuotas,
) -> Result<Vec<Stage>, Problem> {
    let Some(first) = stages.first() else {
        let fix = "write module = \"app.wasm\", or a `[[stage]]` for each module of a chain";
        let module = only.module.ok_or_else(|| source.missing("module", fix))?;
        let files = files::resolve(source, only.files)?;
        let keys = keys(source, &only.keys, &files)?;
        return Ok(vec![Stage::new(source, only.name, &module, (files, keys), quotas)]);
    };
    if let Some(module) = only.module {
        let what = "is for an app of one stage, and there are `[[stage]]`s; move it into one of them, or remove them";
        return Err(source.problem(&module.span(), what));
    }
    if !only.files.is_empty() {
        let what = "the app has stages, and each has files of its own; write `[[stage.files]]` below a stage";
        return Err(source.problem(&first.name.span(), what));
    }
    if let Some(key) = only.keys.first() {
        let what =
            "belongs to a stage, and the app has several; write `keys` below the `[[stage]]` that signs";
        return Err(source.problem(&key.span(), what));
    }
    if let Some(excess) = stages.get(STAGES_MAX) {
        let what = format!("is one stage too many: the maximum is {STAGES_MAX}");
        return Err(source.problem(&excess.name.span(), what));
    }
    stages.into_iter().map(|stage| stage.resolve(source, &quotas)).collect()
}

/// The certificates of the keys that a stage signs with; each must be one of its files.
fn keys(source: &Source, written: &[Spanned<String>], files: &[TreeFile]) -> Result<Vec<String>, Problem> {
    if let Some(excess) = written.get(KEYS_MAX) {
        let what = format!("is one key too many: the maximum is {KEYS_MAX}");
        return Err(source.problem(&excess.span(), what));
    }
    let one = |key: &Spanned<String>| match files
        .iter()
        .find(|file| key.get_ref().strip_prefix('/') == Some(&file.path))
    {
        Some(file) => Ok(file.path.clone()),
        None => {
            let what =
                "names none of the files that the cell sees; give the `path` of a certificate from `files`";
            Err(source.problem(&key.span(), what))
        }
    };
    written.iter().map(one).collect()
}

impl Written {
    fn resolve(self, source: &Source, quotas: &StageQuotas) -> Result<Stage, Problem> {
        let quotas = self.quotas.resolve(source, quotas)?;
        let files = files::resolve(source, self.files)?;
        let keys = keys(source, &self.keys, &files)?;
        Ok(Stage::new(source, self.name.into_inner().0, &self.module, (files, keys), quotas))
    }
}

impl Stage {
    fn new(
        source: &Source,
        name: String,
        module: &Spanned<String>,
        (files, keys): (Vec<TreeFile>, Vec<String>),
        quotas: StageQuotas,
    ) -> Self {
        Self { name, files, keys, quotas, module: source.path(module.get_ref()), span: module.span() }
    }
}

/// Reads an app's parts in the order in which they are sent: for each stage its module, then its files in the manifest's order.
/// `source` is the manifest that lists them.
///
/// # Errors
/// If a module or a file cannot be read, a file is in a place that is not allowed, or the parts are too large.
///
/// ```text
/// parts := module 0 | file 0.0 | file 0.1 | ... | module 1 | file 1.0 | ...
/// ```
///
/// The receiver knows the number of files from the resolved manifest, so the parts need no names.
pub fn read_parts(source: &Source, stages: &[Stage]) -> Result<Vec<Vec<u8>>, Problem> {
    let mut parts = Vec::new();
    for stage in stages {
        let module = fs::read(&stage.module).map_err(|error| {
            let what =
                format!("names {0}, which {1}", stage.module.display(), unreadable(&stage.module, &error));
            let built = if error.kind() == ErrorKind::NotFound { ", or build it first" } else { "" };
            source.problem(&stage.span, what + built)
        })?;
        parts.push(module);
        parts.extend(files::read_all(source, &stage.files)?);
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Manifest;
    use std::time::Duration;

    fn parse(text: &str) -> Result<Manifest, String> {
        let source = Source::new("marram.toml", format!("name = \"shop\"\n{text}"));
        Manifest::parse(&source).map_err(|problem| problem.to_string())
    }

    const TWO: &str = "[[stage]]\nname = \"firewall\"\nmodule = \"firewall.wasm\"\nquotas = { memory = \"1MiB\" }\n\
                       [[stage]]\nname = \"shop\"\nmodule = \"shop.wasm\"\n[stage.quotas]\nhandler_time = \"7ms\"\n\
                       [[stage.files]]\npath = \"/a\"\nsource = \"a\"\n";

    #[test]
    fn stages_come_in_order_and_take_what_they_do_not_say_from_the_app() {
        let manifest =
            parse(&format!("[quotas]\nscratch = \"2MiB\"\nhandler_time = \"5ms\"\n{TWO}")).unwrap();
        let look = |stage: &Stage| {
            let quotas = stage.quotas;
            let module = stage.module.display().to_string();
            (stage.name.clone(), module, quotas.memory >> 20, quotas.handler_time, quotas.scratch >> 20)
        };
        let stages: Vec<_> = manifest.stages.iter().map(look).collect();
        let stage = |name: &str, memory, ms, scratch| {
            (name.to_owned(), format!("{name}.wasm"), memory, Duration::from_millis(ms), scratch)
        };
        assert_eq!(stages, [stage("firewall", 1, 5, 2), stage("shop", 64, 7, 2)]);
        assert_eq!(manifest.stages[1].files.len(), 1);
        assert_eq!(parse("module = \"m.wasm\"\n").unwrap().stages[0].name, "shop");
    }

    #[test]
    fn every_error_names_line_field_and_fix() {
        let many = "[[stage]]\nname = \"a\"\nmodule = \"a\"\n".repeat(STAGES_MAX + 1);
        for (text, words) in [
            ("", &["marram.toml", "`module`", "is missing", "[[stage]]"][..]),
            (&format!("module = \"m\"\n{TWO}"), &[":2", "`module`", "an app of one stage", "remove them"]),
            (
                &format!("{TWO}[[files]]\npath = \"/a\"\nsource = \"a\"\n"),
                &[":3", "`stage.name`", "[[stage.files]]"],
            ),
            (&many, &[":51", "`stage.name`", "the maximum is 16"]),
            (&format!("keys = [\"/a\"]\n{TWO}"), &[":2", "`keys", "[[stage]]"]),
            ("module = \"m\"\nkeys = [\"/a\"]\n", &[":3", "`keys", "`path`", "`files`"]),
            (
                &TWO.replace("[stage.quotas]", "keys = [\"/b\"]\n[stage.quotas]"),
                &[":9", "`stage.keys`", "`path`"],
            ),
            ("[[stage]]\nmodule = \"a\"\n", &[":2", "`stage`", "missing field `name`"]),
            ("[[stage]]\nname = \"a b\"\nmodule = \"a\"\n", &[":3", "`stage.name`", "a name"]),
            (&TWO.replace("1MiB", "1B"), &[":5", "memory", "64KiB"]),
            (&TWO.replace("7ms", "7us"), &[":10", "`stage.quotas.handler_time`", "1ms"]),
            (&TWO.replace("handler_time", "sessions"), &[":10", "sessions", "`handler_time`"]),
        ] {
            let error = parse(text).unwrap_err();
            for word in words {
                assert!(error.contains(word), "{text}: {error:?} does not say {word:?}");
            }
        }
    }
}
