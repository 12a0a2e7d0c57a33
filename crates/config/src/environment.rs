//! Fields of a configuration that the environment overrides: `MARRAM_EDGE__LIMITS__SESSIONS=5` is `sessions = 5` in `[limits]`.
//! Each table's and field's name has two underscores before it; a number is the index in a list of tables. The values are written
//! into the text, so that only one text is parsed and checked; for each place, the text knows which variable it came from.
//!
//! ```text
//! MARRAM_EDGE__LIMITS__SESSIONS=5      sessions = 5 behind the header [limits]
//! MARRAM_EDGE__GATE__0__LISTEN=...     listen in the first [[gate]], which is added if there is none
//! MARRAM_EDGE__APPS=/a,/b              apps = ["/a", "/b"], since `apps` is a list
//! ```
//!
//! Text and not the parsed values, since then there is one parser, one set of checks and one kind
//! of error. A variable that names nothing is an error, as an unknown field is: in a container it
//! is easily misspelt, and there is nothing else that would tell.

use super::source::{Problem, Source};
use marram_shard::suggest;
use serde::de::DeserializeOwned;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The prefix of variables that override an edge's configuration.
pub const EDGE: &str = "MARRAM_EDGE__";
/// The prefix for an agent's configuration.
pub const AGENT: &str = "MARRAM_AGENT__";
/// The prefix for a recorder's configuration.
pub const RECORDER: &str = "MARRAM_RECORDER__";
/// The prefix for the configuration of a coordinator's store.
pub const COORDINATOR: &str = "MARRAM_COORDINATOR__";

/// A text to write, and its place.
/// Replaces the bytes `at`; an empty range inserts.
struct Edit {
    at: Range<usize>,
    text: String,
}

/// The variables for the program with this `prefix`.
///
/// # Errors
/// If a variable is for an unknown program, or its name has one underscore in place of two.
///
/// In a fixed order, so that a table which one variable adds is there for the next. Variables with
/// the prefix `MARRAM_` but without two underscores belong to other purposes (`MARRAM_LOG`) and are
/// left alone, unless they look like a mistake.
pub fn chosen(prefix: &str, variables: &[(String, String)]) -> Result<Vec<(String, String)>, Problem> {
    let mut chosen = Vec::new();
    for (name, value) in variables {
        let problem = |what: String| Problem { file: name.clone(), line: None, field: None, what };
        if name.starts_with(prefix) {
            chosen.push((name.clone(), value.clone()));
        } else if let Some(rest) = name.strip_prefix(&prefix[..prefix.len() - 1]) {
            let rest = if rest.contains("__") { rest.to_owned() } else { rest.replacen('_', "__", 1) };
            let what = "two underscores stand before each table's and field's name";
            return Err(problem(format!("{what}; did you mean {prefix}{rest}?")));
        } else if let Some((program, rest)) =
            name.strip_prefix("MARRAM_").and_then(|rest| rest.split_once("__"))
            && ![EDGE, AGENT, RECORDER, COORDINATOR].iter().any(|known| name.starts_with(known))
        {
            let guess = suggest::nearest(program, ["EDGE", "AGENT", "RECORDER", "COORDINATOR"]);
            let guess =
                guess.map_or_else(String::new, |known| format!("; did you mean MARRAM_{known}__{rest}?"));
            let what = format!(
                "there is no program {program}{guess}; there are {EDGE}..., {AGENT}..., {RECORDER}... and {COORDINATOR}..."
            );
            return Err(problem(what));
        }
    }
    // A fixed order, with `gate.0` before `gate.1`.
    chosen.sort();
    Ok(chosen)
}

impl Source {
    /// This text with the overrides of the environment, for a parser of `T`.
    ///
    /// # Errors
    /// If a variable names no field, or its value is not valid for the field.
    ///
    /// Each variable is applied to the text that the previous ones left, and tried at once with a
    /// parser of `T`: the first reading of the value that the parser accepts in that place counts.
    pub(super) fn overridden<T: DeserializeOwned>(&self, prefix: &str) -> Result<Self, Problem> {
        let mut source = self.clone();
        for (variable, value) in chosen(prefix, self.environment())? {
            source = source.with_override::<T>(prefix, &variable, &value)?;
        }
        Ok(source)
    }

    /// `variable` is the full name; for messages too, since the operator looks for it and not for a
    /// file.
    fn with_override<T: DeserializeOwned>(
        &self,
        prefix: &str,
        variable: &str,
        value: &str,
    ) -> Result<Self, Problem> {
        let problem = |what: String| Problem { file: variable.to_owned(), line: None, field: None, what };
        let path: Vec<String> = variable[prefix.len()..].split("__").map(str::to_ascii_lowercase).collect();
        if path.iter().any(|name| {
            name.is_empty() || name.contains(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '-')
        }) {
            return Err(problem(format!(
                "is not the name of a field; write it as in {EDGE}LIMITS__SESSIONS"
            )));
        }
        // Errors in the file itself are reported for the file.
        let Ok(root) = DeTable::parse(self.text()) else { return Ok(self.clone()) };
        let mut why = String::new();
        for written in readings(value) {
            let edit = edit(self.text(), root.get_ref(), &path, &written).map_err(problem)?;
            let source = self.patched(&edit.at, &edit.text, variable);
            match source.wrong_in_patch::<T>(edit.at.start..edit.at.start + edit.text.len()) {
                None => return Ok(source),
                // A list only where the field is one: most fields are texts.
                Some(_) if written.starts_with('[') && !why.ends_with("expected a sequence") => {}
                Some(what) => why = what,
            }
        }
        Err(problem(named(variable, why)))
    }

    /// The error of a parser of `T` in the part that was just written.
    ///
    /// Errors elsewhere do not count: they are the file's own, or another variable corrects them.
    fn wrong_in_patch<T: DeserializeOwned>(&self, patch: Range<usize>) -> Option<String> {
        let error = toml::from_str::<T>(self.text()).err()?;
        let within = error.span().is_some_and(|span| patch.start <= span.start && span.end <= patch.end);
        // Other variables may set the remaining fields of a new table.
        (within && !error.message().starts_with("missing field"))
            .then(|| super::source::with_hint(error.message()))
    }
}

/// Turns a message's suggested field into the suggested variable.
///
/// "unknown field `sesions`; did you mean `sessions`" would not be a name that can be set.
fn named(variable: &str, what: String) -> String {
    let quoted = |before: &str| what.split_once(before).and_then(|(_, rest)| rest.split('`').next());
    match (quoted("unknown field `"), quoted("did you mean `")) {
        (Some(wrong), Some(right)) => {
            let (wrong, right) = (wrong.to_ascii_uppercase(), right.to_ascii_uppercase());
            let names: Vec<&str> = variable.split("__").collect();
            let right: Vec<&str> = names
                .iter()
                .map(|name| if name.eq_ignore_ascii_case(&wrong) { right.as_str() } else { name })
                .collect();
            what.split("; did you mean").next().unwrap_or_default().to_owned()
                + "; did you mean "
                + &right.join("__")
                + "?"
        }
        _ => what,
    }
}

/// The possible meanings of a value, the likeliest first: a TOML value, a text, a list of texts.
///
/// `5` is a number and `"5"` a text in TOML; an environment has only texts, so the field decides. A
/// value with a line break or `#` is never taken as TOML: it could end the line and add fields.
fn readings(value: &str) -> Vec<String> {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let value = value.trim();
    let one_line = !value.contains(['\n', '\r', '#']);
    let as_it_is = (one_line && DeValue::parse(value).is_ok()).then(|| value.to_owned());
    let list: Vec<String> = value.split(',').map(|text| quoted(text.trim())).collect();
    as_it_is.into_iter().chain([quoted(value), format!("[{}]", list.join(", "))]).collect()
}

/// Where a field is added to a table.
/// A new line must be inside its table, and TOML has three ways to write a table: as a header,
/// inline with braces, and by dotted names.
enum Home {
    /// Before everything else, prefixed with these tables' names.
    Top(Vec<String>),
    /// After the table's header.
    Behind(usize),
    /// Inside braces; and whether they already contain something.
    Within(usize, bool),
}

fn edit(text: &str, root: &DeTable<'_>, path: &[String], value: &str) -> Result<Edit, String> {
    within(text, root, Home::Top(Vec::new()), path, value)
}

/// Follows `path` from `table`, which is at `home`, to the field. Returns the edit that sets it, or
/// why there can be no such field.
fn within(text: &str, table: &DeTable<'_>, home: Home, path: &[String], value: &str) -> Result<Edit, String> {
    let [name, rest @ ..] = path else { return Err("names a table and no field".into()) };
    let found = table.iter().find(|(key, _)| key.get_ref() == name.as_str()).map(|(_, value)| value);
    match (found, rest) {
        (Some(old), []) => match old.get_ref() {
            DeValue::Table(_) if !text[old.span()].starts_with('{') => {
                Err(format!("`{name}` is a table; name a field of it"))
            }
            DeValue::Array(_) if text[old.span()].starts_with("[[") => Err(format!(
                "`{name}` is a list of tables; name a place in it and a field, as in {name}__0__..."
            )),
            _ => Ok(Edit { at: old.span(), text: value.to_owned() }),
        },
        (None, []) => Ok(match home {
            Home::Top(tables) => {
                let name = [tables, vec![name.clone()]].concat().join(".");
                Edit { at: 0..0, text: format!("{name} = {value}\n") }
            }
            Home::Behind(at) => Edit { at: at..at, text: format!("\n{name} = {value}") },
            Home::Within(at, empty) => {
                let comma = if empty { "" } else { ", " };
                Edit { at: at..at, text: format!("{name} = {value}{comma}") }
            }
        }),
        (Some(old), _) => match old.get_ref() {
            DeValue::Table(inner) => {
                let home = home_of(text, old, inner, home, name);
                within(text, inner, home, rest, value)
            }
            DeValue::Array(items) => in_list(text, name, items, rest, value),
            _ => Err(format!("`{name}` is not a table")),
        },
        // No such table yet: with a 0 behind its name it is a list of tables, else a table.
        (None, [place, _, ..]) if place == "0" => in_list(text, name, &[], rest, value),
        (None, _) => Ok(appended(text, &format!("[{name}]\n{} = {value}\n", rest.join(".")))),
    }
}

/// Where a field is added to the table `old`, which is called `name` and is itself in a table at
/// `home`. Its first byte tells how it is written.
fn home_of(text: &str, old: &Spanned<DeValue<'_>>, inner: &DeTable<'_>, home: Home, name: &str) -> Home {
    let span = old.span();
    match text.as_bytes().get(span.start) {
        Some(b'[') => Home::Behind(span.end),
        Some(b'{') => Home::Within(span.start + 1, inner.is_empty()),
        _ => match home {
            Home::Top(tables) => Home::Top([tables, vec![name.to_owned()]].concat()),
            other => other,
        },
    }
}

/// `rest` is a place in the list `name`, and the fields below it. The place behind the last item
/// adds one; a gap is an error, because TOML has no way to leave one.
fn in_list(
    text: &str,
    name: &str,
    items: &[Spanned<DeValue<'_>>],
    rest: &[String],
    value: &str,
) -> Result<Edit, String> {
    let count = items.len();
    let [place, fields @ ..] = rest else { return Err(format!("`{name}` is a list")) };
    let Some(place) = place.parse::<usize>().ok().filter(|place| *place <= count) else {
        return Err(format!(
            "`{name}` is a list with {count} in it; after its name comes a place, 0 to {count}"
        ));
    };
    match (items.get(place).map(|item| (item, item.get_ref())), fields) {
        (Some((item, DeValue::Table(inner))), [_, ..]) => {
            let home = home_of(text, item, inner, Home::Top(Vec::new()), name);
            within(text, inner, home, fields, value)
        }
        (Some((item, _)), []) => Ok(Edit { at: item.span(), text: value.to_owned() }),
        (None, [_, ..]) => Ok(appended(text, &format!("[[{name}]]\n{} = {value}\n", fields.join(".")))),
        _ => Err(format!("`{name}` has no such fields; write all of it at once, as in [\"a\", \"b\"]")),
    }
}

/// At the end every line belongs to the table whose header comes with it, so no other table is
/// affected.
fn appended(text: &str, lines: &str) -> Edit {
    Edit { at: text.len()..text.len(), text: format!("\n{lines}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edge;

    const TEXT: &str = "state = \"s\" # here\nlisten = [\"127.0.0.1:1\"]\nsecret_file = \"secret\"\nservers = { a = \"b:1\" }\n\
                        [limits] # few\ncells = 7\n[[gate]]\nlisten = \"127.0.0.1:2\"\napp = \"one\"\n";

    fn source(text: &str, variables: &[(&str, &str)]) -> Source {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Source::new("edge.toml", text.into()).with_environment(variables.iter().map(own))
    }

    /// The resulting text; it is parsed as an edge's, without the files that it names.
    fn patched(variables: &[(&str, &str)]) -> String {
        let read = source(TEXT, variables).overridden::<toml::Table>(EDGE);
        read.map_or_else(|problem| problem.to_string(), |source| source.text().to_owned())
    }

    #[test]
    fn a_variable_replaces_or_adds_a_field_wherever_its_table_is() {
        for (name, value, expected) in [
            ("STATE", "elsewhere", "state = \"elsewhere\" # here\n"),
            ("NAME", "a", "name = \"a\"\nstate"),
            ("SHARDS", "3", "shards = 3\nstate"),
            ("LIMITS__CELLS", "8", "[limits] # few\ncells = 8\n"),
            ("LIMITS__SESSIONS", "9", "[limits]\nsessions = 9 # few\ncells = 7\n"),
            ("SERVERS__WEB", "c:2", "servers = {web = \"c:2\",  a = \"b:1\" }"),
            ("GATE__0__APP", "two", "app = \"two\"\n"),
            ("GATE__0__NAME", "x", "[[gate]]\nname = \"x\"\nlisten"),
            ("GATE__1__APP", "two", "\n[[gate]]\napp = \"two\"\n"),
            ("TENANT__0__NAME", "t", "\n[[tenant]]\nname = \"t\"\n"),
            ("LOG__LEVEL", "debug", "\n[log]\nlevel = \"debug\"\n"),
            ("LISTEN", "[\"127.0.0.1:9\"]", "listen = [\"127.0.0.1:9\"]\n"),
        ] {
            let text = patched(&[(&format!("{EDGE}{name}"), value)]);
            assert!(text.contains(expected), "{name}: {text}");
            assert!(text.parse::<toml::Table>().is_ok(), "{text}");
        }
        let both = patched(&[("MARRAM_EDGE__GATE__1__APP", "x"), ("MARRAM_EDGE__GATE__1__LISTEN", "[::]:1")]);
        assert!(both.contains("[[gate]]\nlisten = \"[::]:1\"\napp = \"x\"\n"), "{both}");
    }

    #[test]
    fn what_is_wrong_is_said_of_the_variable_and_the_rest_of_the_file() {
        let message = |text: &str, name: &str, value: &str| {
            edge::EdgeSettings::parse(&source(text, &[(name, value)])).map(drop).unwrap_err().to_string()
        };
        for (name, value, words) in [
            (
                "MARRAM_EDGE__LIMITS__SESIONS",
                "5",
                &["unknown field", "did you mean MARRAM_EDGE__LIMITS__SESSIONS?"][..],
            ),
            ("MARRAM_EDGE__LIMTS__SESSIONS", "5", &["did you mean MARRAM_EDGE__LIMITS__SESSIONS?"]),
            ("MARRAM_EDGE__LIMITS__SESSIONS", "many", &["\"many\"", "u32"]),
            ("MARRAM_EDGE__LIMITS__DRAIN", "5", &["\"5\"", "\"30s\""]),
            ("MARRAM_EDGE__LOG__LEVEL", "inof", &["did you mean `info`?"]),
            ("MARRAM_EDGE__LIMITS", "5", &["is a table"]),
            ("MARRAM_EDGE__GATE__7__APP", "a", &["0 to 1"]),
            ("MARRAM_EDGE__GATE", "a", &["GATE", "list"]),
            ("MARRAM_EDGE_LIMITS__SESSIONS", "5", &["two underscores", "MARRAM_EDGE__LIMITS__SESSIONS?"]),
            ("MARRAM_EGDE__LIMITS__SESSIONS", "5", &["did you mean MARRAM_EDGE__LIMITS__SESSIONS?"]),
            ("MARRAM_EDGE____X", "5", &["not the name of a field"]),
        ] {
            let said = message(TEXT, name, value);
            assert!(said.starts_with(name), "{said}");
            words.iter().for_each(|word| {
                assert!(said.to_lowercase().contains(&word.to_lowercase()), "{name}: {said}")
            });
        }
        // Line numbers are those of the file, also after variables added lines.
        let said = message(&TEXT.replace("cells", "clels"), "MARRAM_EDGE__NAME", "a");
        assert!(
            said.starts_with("edge.toml:6: `limits.clels`") && said.contains("did you mean `cells`?"),
            "{said}"
        );
        // A value of the field's type that another rule forbids.
        let said = message(TEXT, "MARRAM_EDGE__SHARDS", "0");
        assert!(said.starts_with("MARRAM_EDGE__SHARDS: ") && said.contains("remove it"), "{said}");
        // Variables of other programs are ignored.
        let said = message(TEXT, "MARRAM_AGENT__NONSENSE", "0");
        assert!(said.starts_with("edge.toml:3: `secret_file`"), "{said}");
    }

    #[test]
    fn a_list_of_texts_may_be_written_without_quotes() {
        let text = "edges = [\"a:1\"]\n";
        let source = source(text, &[("MARRAM_AGENT__EDGES", "b:2, c:3")]);
        let read = crate::agent::AgentSettings::parse(&source, crate::agent::AgentRole::Client);
        assert!(read.map(drop).unwrap_err().to_string().contains("listen"), "the edges are in order");
    }
}
