//! One text that a person wrote, and what is wrong with it: every complaint names the file, the line, the field and the
//! fix. Knows TOML's outline, not what the fields mean.

use super::environment::Patch;
use super::hints::hint;
use marram_edge::suggest;
use serde::de::DeserializeOwned;
use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Bytes of a configuration or manifest; more is certainly not one.
pub const TEXT_BYTES_MAX: u64 = 64 << 10;

/// What is wrong with a text that a person wrote.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// The file's name.
    pub file: String,
    /// The line, counting from 1, where one is to blame.
    pub line: Option<usize>,
    /// The field, with its table, where one is to blame.
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

/// A text and where it came from.
#[derive(Clone, Debug)]
pub struct Source {
    name: String,
    directory: PathBuf,
    /// As it is read.
    text: String,
    /// As it was written.
    written: Rc<str>,
    /// Where the two differ, in their order.
    patches: Vec<Patch>,
    environment: Vec<(String, String)>,
    /// Shared with clones.
    warnings: Rc<RefCell<Vec<Problem>>>,
}

impl Source {
    /// A text that came from no file: relative paths in it start at the working directory.
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

    /// With variables that may override what it says.
    #[must_use]
    pub fn with_environment(self, variables: impl IntoIterator<Item = (String, String)>) -> Self {
        Self { environment: variables.into_iter().collect(), ..self }
    }

    /// With the variables of this process.
    #[must_use]
    pub fn with_own_environment(self) -> Self {
        // What is no text names no field.
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        self.with_environment(std::env::vars_os().filter_map(text))
    }

    /// The variables that may override what it says, and all others.
    #[must_use]
    pub fn environment(&self) -> &[(String, String)] {
        &self.environment
    }

    /// With this in place of what is at `at`, because of a variable.
    pub(super) fn patched(&self, at: &Range<usize>, text: &str, variable: &str) -> Self {
        let mut source = self.clone();
        source.text.replace_range(at.clone(), text);
        // What lies behind moves; what a variable wrote before and another one replaces now is the other one's.
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

    /// A path as written in the text: relative ones start at the text's own directory.
    #[must_use]
    pub fn path(&self, written: &str) -> PathBuf {
        self.directory.join(written)
    }

    /// The folder that relative paths start at.
    #[must_use]
    pub fn directory(&self) -> &Path {
        if self.directory.as_os_str().is_empty() { Path::new(".") } else { &self.directory }
    }

    /// Parses the text. `kind` is what `marram config sample` calls one.
    ///
    /// # Errors
    /// If it is no TOML, has a field that is not known, or one of another type.
    pub fn parse<T: DeserializeOwned>(&self, kind: &str) -> Result<T, Problem> {
        toml::from_str(&self.text).map_err(|error| {
            let what = with_hint(error.message()) + &hint::<T>(error.message());
            match error.span() {
                // Of the whole text: no place is to blame.
                Some(span) if span.start == 0 && what.starts_with("missing field") => {
                    self.complaint(format!("{what}; `marram config sample {kind}` shows every field"))
                }
                Some(span) => self.problem(&span, what),
                None => self.complaint(what),
            }
        })
    }

    /// A complaint about what is written at `span`.
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

    /// Keeps a complaint about what is written at `span` and may be meant, for [`Self::warnings`].
    pub(super) fn warn(&self, span: &Range<usize>, what: impl Into<String>) {
        self.warnings.borrow_mut().push(self.problem(span, what));
    }

    /// What was found wrong and can be lived with, by whoever has resolved it.
    #[must_use]
    pub fn warnings(&self) -> Vec<Problem> {
        self.warnings.borrow().clone()
    }

    /// A complaint about the whole.
    #[must_use]
    pub fn complaint(&self, what: impl Into<String>) -> Problem {
        Problem { file: self.name.clone(), line: None, field: None, what: what.into() }
    }

    /// A complaint about a field that is not there.
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

/// Why a file cannot be read, and what to do about it.
pub fn unreadable(path: &Path, error: &std::io::Error) -> String {
    let fix = match error.kind() {
        std::io::ErrorKind::NotFound if path.is_relative() => {
            let here = std::env::current_dir().unwrap_or_default();
            format!("; look for a slip in the path, which starts at {}", here.display())
        }
        std::io::ErrorKind::NotFound => "; look for a slip in the path".into(),
        std::io::ErrorKind::IsADirectory => "; name a file in it".into(),
        std::io::ErrorKind::PermissionDenied => {
            format!("; let the user that this runs as read it (`ls -l {}`)", path.display())
        }
        std::io::ErrorKind::InvalidData => "; it is no text in UTF-8".into(),
        _ => String::new(),
    };
    format!("cannot be read: {error}{fix}")
}

/// What a parser says, for people: with what may be meant where a field is not known.
pub(super) fn with_hint(message: &str) -> String {
    let what = message.to_owned();
    let Some((head, list)) = message.split_once(", expected ") else { return what };
    let unknown = head.strip_prefix("unknown field `").or_else(|| head.strip_prefix("unknown variant `"));
    let Some(unknown) = unknown.and_then(|rest| rest.strip_suffix('`')) else { return what };
    let guess = suggest::did_you_mean(unknown, list.split('`').skip(1).step_by(2));
    what + &guess
}

/// Where a byte of a TOML text is, in the words of the person who wrote it.
struct SourcePosition {
    line: usize,
    field: Option<String>,
}

impl SourcePosition {
    fn find(text: &str, offset: usize) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        let table = text.lines().take(line).filter_map(table_name).last();
        // A value may begin lines after its key (an array): look back for the nearest key.
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
