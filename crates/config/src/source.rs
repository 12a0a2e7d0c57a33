//! A configuration text and its errors: every error names the file, the line, the field and the fix. Knows the outline of TOML,
//! not what the fields mean.
//!
//! ```text
//! edge.toml:12: `limits.sessions`: invalid type: string "many", expected u32
//! MARRAM_EDGE__LIMITS__SESSIONS: invalid type: ...
//! ```
//!
//! A span counts bytes in the text *with* overrides, in which lines may have moved.
//! [`Source::problem`] maps it back to the text as written, or to the variable that wrote that
//! part.

use super::hints::hint;
use marram_shard::suggest;
use serde::de::DeserializeOwned;
use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Most bytes of a configuration or manifest. A larger file is not one.
pub const TEXT_BYTES_MAX: u64 = 64 << 10;

/// An error in a configuration text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// The file's name.
    pub file: String,
    /// The line, counting from 1, if the error is on one.
    pub line: Option<usize>,
    /// The field, with its table, if the error is in one.
    pub field: Option<String>,
    /// What is wrong and what to write instead.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if let Some(field) = &self.field {
            write!(f, ": `{field}`")?;
        }
        write!(f, ": {}", self.what)
    }
}

impl std::error::Error for Problem {}

/// A part of a text that a variable wrote.
#[derive(Clone, Debug)]
struct Patch {
    /// Its place in the changed text.
    at: Range<usize>,
    /// How many bytes of the old text it replaced.
    replaced: usize,
    /// The name of the variable.
    variable: String,
}

/// A text and where it came from.
///
/// Clones are cheap enough for one start and share their warnings, so that a warning found while a
/// clone with overrides is resolved can be asked of the original.
#[derive(Clone, Debug)]
pub struct Source {
    name: String,
    directory: PathBuf,
    /// The text with the overrides.
    text: String,
    /// The text as it is in the file.
    written: Rc<str>,
    /// The differences between both, in order.
    patches: Vec<Patch>,
    environment: Vec<(String, String)>,
    /// Clones share it.
    warnings: Rc<RefCell<Vec<Problem>>>,
}

impl Source {
    /// A text without a file: relative paths in it start at the working directory.
    #[must_use]
    pub fn new(name: &str, text: String) -> Self {
        Self {
            name: name.into(),
            directory: PathBuf::new(),
            written: text.as_str().into(),
            text,
            patches: Vec::new(),
            environment: Vec::new(),
            warnings: Rc::default(),
        }
    }

    /// Sets the variables that may override fields.
    #[must_use]
    pub fn with_environment(self, variables: impl IntoIterator<Item = (String, String)>) -> Self {
        Self { environment: variables.into_iter().collect(), ..self }
    }

    /// Takes the environment variables of this process.
    #[must_use]
    pub fn with_own_environment(self) -> Self {
        // A name or value that is not UTF-8 cannot name a field.
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        self.with_environment(std::env::vars_os().filter_map(text))
    }

    /// The variables that may override fields, together with all others.
    #[must_use]
    pub fn environment(&self) -> &[(String, String)] {
        &self.environment
    }

    /// Replaces the text at `at` by the value of a variable.
    ///
    /// Patches are in the order in which they were made, and each has its place in the newest text.
    pub(super) fn patched(&self, at: &Range<usize>, text: &str, variable: &str) -> Self {
        let mut source = self.clone();
        source.text.replace_range(at.clone(), text);
        // Text after `at` moves. Text that an earlier variable wrote and this one replaces now belongs to this one.
        let moved = |place: usize| if place >= at.end { place - at.len() + text.len() } else { place };
        for patch in &mut source.patches {
            patch.at = moved(patch.at.start)..moved(patch.at.end);
        }
        let end = at.start + text.len();
        source.patches.push(Patch { at: at.start..end, replaced: at.len(), variable: variable.to_owned() });
        source
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, is too large, or is not UTF-8.
    ///
    /// The size is checked before the text is read, so that a wrong path to a large file costs
    /// nothing.
    pub fn read(path: &Path) -> Result<Self, Problem> {
        let name = path.display().to_string();
        let problem = |what: String| Problem { file: name.clone(), line: None, field: None, what };
        let size = std::fs::metadata(path).map_err(|e| problem(unreadable(path, &e)))?.len();
        if size > TEXT_BYTES_MAX {
            return Err(problem(format!("is {size} bytes long; at most {TEXT_BYTES_MAX} are read")));
        }
        let text = std::fs::read_to_string(path).map_err(|e| problem(unreadable(path, &e)))?;
        let directory = path.parent().unwrap_or(Path::new("")).to_path_buf();
        Ok(Self { directory, ..Self::new(&name, text) })
    }

    /// The text itself.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// A path in the text: relative ones start at the directory of the text's file.
    ///
    /// An absolute path stays as it is.
    #[must_use]
    pub fn path(&self, written: &str) -> PathBuf {
        self.directory.join(written)
    }

    /// The folder that relative paths start at.
    #[must_use]
    pub fn directory(&self) -> &Path {
        if self.directory.as_os_str().is_empty() { Path::new(".") } else { &self.directory }
    }

    /// Parses the text. `kind` is the name of this kind for `marram config sample`.
    ///
    /// # Errors
    /// If it is not TOML, has an unknown field, or a field of a wrong type.
    pub fn parse<T: DeserializeOwned>(&self, kind: &str) -> Result<T, Problem> {
        toml::from_str(&self.text).map_err(|error| {
            let what = with_hint(error.message()) + &hint::<T>(error.message());
            match error.span() {
                // The error is about the whole text and has no line.
                Some(span) if span.start == 0 && what.starts_with("missing field") => {
                    self.complaint(format!("{what}; `marram config sample {kind}` shows every field"))
                }
                Some(span) => self.problem(&span, what),
                None => self.complaint(what),
            }
        })
    }

    /// An error about the text at `span`.
    ///
    /// In the part that a variable wrote, the variable is named as the file. Else the offset is
    /// mapped to the written text: patches before it are taken out and what they replaced is put
    /// back.
    #[must_use]
    pub fn problem(&self, span: &Range<usize>, what: impl Into<String>) -> Problem {
        if let Some(patch) = self.patches.iter().rev().find(|patch| patch.at.contains(&span.start)) {
            return Problem { file: patch.variable.clone(), line: None, field: None, what: what.into() };
        }
        let before = self.patches.iter().filter(|patch| patch.at.end <= span.start);
        let (more, less) =
            before.fold((0, 0), |(more, less), patch| (more + patch.at.len(), less + patch.replaced));
        let place = SourcePosition::find(&self.written, (span.start + less).saturating_sub(more));
        Problem { file: self.name.clone(), line: Some(place.line), field: place.field, what: what.into() }
    }

    /// Records a warning about the text at `span`, for [`Self::warnings`].
    pub(super) fn warn(&self, span: &Range<usize>, what: impl Into<String>) {
        self.warnings.borrow_mut().push(self.problem(span, what));
    }

    /// The warnings that resolving the text has found.
    #[must_use]
    pub fn warnings(&self) -> Vec<Problem> {
        self.warnings.borrow().clone()
    }

    /// An error about the whole text.
    #[must_use]
    pub fn complaint(&self, what: impl Into<String>) -> Problem {
        Problem { file: self.name.clone(), line: None, field: None, what: what.into() }
    }

    /// An error about a missing field.
    #[must_use]
    pub fn missing(&self, field: &str, fix: &str) -> Problem {
        Problem {
            file: self.name.clone(),
            line: None,
            field: Some(field.into()),
            what: format!("is missing; {fix}"),
        }
    }
}

/// Why a file cannot be read, and how to fix it.
pub fn unreadable(path: &Path, error: &std::io::Error) -> String {
    let fix = match error.kind() {
        std::io::ErrorKind::NotFound if path.is_relative() => {
            let here = std::env::current_dir().unwrap_or_default();
            format!("; check the path, which starts at {}", here.display())
        }
        std::io::ErrorKind::NotFound => "; check the path".into(),
        std::io::ErrorKind::IsADirectory => "; name a file in it".into(),
        std::io::ErrorKind::PermissionDenied => {
            format!("; make it readable for the user that this runs as (`ls -l {}`)", path.display())
        }
        std::io::ErrorKind::InvalidData => "; it is not text in UTF-8".into(),
        _ => String::new(),
    };
    format!("cannot be read: {error}{fix}")
}

/// A parser's message, with a suggestion for an unknown field.
pub(super) fn with_hint(message: &str) -> String {
    let what = message.to_owned();
    let Some((head, list)) = message.split_once(", expected ") else { return what };
    let unknown = head.strip_prefix("unknown field `").or_else(|| head.strip_prefix("unknown variant `"));
    let Some(unknown) = unknown.and_then(|rest| rest.strip_suffix('`')) else { return what };
    let guess = suggest::did_you_mean(unknown, list.split('`').skip(1).step_by(2));
    what + &guess
}

/// The line and field of a byte in a TOML text.
///
/// Found by looking at lines, since the parser's errors have only a span, and a text that is not
/// TOML has no tree. It may name the wrong field for text in unusual form; the line does not depend
/// on that.
struct SourcePosition {
    line: usize,
    field: Option<String>,
}

impl SourcePosition {
    fn find(text: &str, offset: usize) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        let table = text.lines().take(line).filter_map(table_name).last();
        // A value may start lines after its key (an array): search backwards for the nearest key.
        let key = text.lines().take(line).collect::<Vec<_>>().into_iter().rev();
        let key = key.take_while(|line| table_name(line).is_none()).find_map(key_name);
        let field = match (table, key) {
            (Some(table), Some(key)) => Some(format!("{table}.{key}")),
            (table, key) => key.or(table).map(str::to_owned),
        };
        Self { line, field }
    }
}

/// `a.b` in `[a.b]` or `[[a.b]]`.
fn table_name(line: &str) -> Option<&str> {
    let line = line.trim();
    let inner = line.strip_prefix('[')?;
    let name = inner.trim_start_matches('[').split(']').next()?.trim();
    // `["x", "y"]` on a line of its own is part of an array, not a table.
    (!name.is_empty() && !name.contains(['"', ','])).then_some(name)
}

/// `a` in `a = 1`.
fn key_name(line: &str) -> Option<&str> {
    let (key, _) = line.split_once('=')?;
    let key = key.trim();
    (!key.is_empty() && !key.starts_with('#') && !key.contains(['[', '{', ' '])).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_named_as_the_writer_sees_them() {
        let text = "a = 1\n\n[wires]\nlisten = [\n  \"x\",\n  \"y\",\n]\n[[gate]]\napp = 2\n[empty]\n";
        for (at, line, field) in [
            ("a = 1", 1, Some("a")),
            ("\"y\"", 6, Some("wires.listen")),
            ("2\n", 9, Some("gate.app")),
            ("[empty]", 10, Some("empty")),
        ] {
            let place = SourcePosition::find(text, text.find(at).unwrap());
            assert_eq!((place.line, place.field.as_deref()), (line, field), "{at}");
        }
    }
}
