//! Suggestions for a text that is valid TOML but no valid configuration, or almost TOML. Takes the known fields from the parser's
//! own error messages, so it knows no configuration.
//!
//! The known fields are learned by asking: a text with a field that no table can have is parsed,
//! and the error lists the fields that were expected. That is slow and runs only after an error. If
//! the parser's messages change, the hints disappear and nothing else happens.

use marram_shard::suggest;
use serde::de::DeserializeOwned;

/// A field that no table has: the parser's error about it lists the fields that there are.
const NONE: &str = "no-such-field";
/// Most tables that are listed if several have a field of this name.
const TABLES_MAX: usize = 3;

/// What to append to a parser's error about a text of this type; empty if there is no suggestion.
/// Three mistakes are recognised: a text where a list belongs, a field in the wrong table, an array
/// without its end. A field that is merely misspelt is suggested elsewhere (`with_hint`).
pub(super) fn hint<T: DeserializeOwned>(message: &str) -> String {
    if let Some(found) = between(message, "invalid type: string \"", "\", expected a sequence") {
        return format!("; write a list: [\"{found}\"]");
    }
    if let Some(field) = between(message, "unknown field `", "`, expected ") {
        let beside = quoted(message.split_once(", expected ").map_or("", |(_, list)| list));
        return if suggest::nearest(field, beside).is_some() { String::new() } else { home::<T>(field) };
    }
    // The parser notices an array without `]` only at the next line.
    if message.contains("array") { "; or a `]` is missing above".to_owned() } else { String::new() }
}

/// Which tables have a field of this name.
/// A TOML file has no indentation to show which table a line belongs to, so a field behind the
/// wrong header is the most frequent mistake.
fn home<T: DeserializeOwned>(field: &str) -> String {
    let top = fields::<T>("");
    if top.iter().any(|name| name == field) {
        return format!("; `{field}` belongs above the first table");
    }
    let headers = top.iter().flat_map(|name| [format!("[{name}]"), format!("[[{name}]]")]);
    let has = |header: &String| fields::<T>(header).iter().any(|name| name == field);
    let homes: Vec<String> =
        headers.filter(has).take(TABLES_MAX).map(|header| format!("`{header}`")).collect();
    if homes.is_empty() { String::new() } else { format!("; `{field}` belongs below {}", homes.join(" or ")) }
}

/// The fields of a table; empty if there is no such table.
fn fields<T: DeserializeOwned>(header: &str) -> Vec<String> {
    let Err(error) = toml::from_str::<T>(&format!("{header}\n{NONE} = 1\n")) else { return Vec::new() };
    let list = error.message().strip_prefix(&format!("unknown field `{NONE}`, expected "));
    quoted(list.unwrap_or_default()).map(str::to_owned).collect()
}

fn between<'a>(text: &'a str, before: &str, behind: &str) -> Option<&'a str> {
    Some(text.split_once(before)?.1.split_once(behind)?.0)
}

fn quoted(list: &str) -> impl Iterator<Item = &str> {
    list.split('`').skip(1).step_by(2)
}
