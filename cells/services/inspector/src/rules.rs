//! Parses rules, one a line. Does not know flows.
//!
//! ```text
//! first  client                   who may send first: client, server or any (the default)
//! idle   3600                     seconds of silence after which a flow is closed; without it none is
//! forbid client "/etc/passwd"     a string that the client, the server, or any side may not send
//! # a comment, on its own line
//! ```

use aho_corasick::dfa::DFA;
use std::time::Duration;

/// Path of the rules in an image.
pub(crate) const PATH: &str = "/etc/inspector";

/// The default rules.
pub(crate) const DEFAULT: &str = include_str!("../rules");

/// Bytes of the longest string, and most strings of a side: a table of states must fit the cell's memory.
pub(crate) const STRING_BYTES_MAX: usize = 64;
pub(crate) const STRINGS_MAX: usize = 64;

/// Who may send first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum First {
    #[default]
    Any,
    Client,
    Server,
}

/// What one side may not send.
#[derive(Clone, Debug)]
pub(crate) struct Forbidden {
    pub(crate) strings: Vec<Vec<u8>>,
    /// Finds all of them in one pass.
    pub(crate) automaton: DFA,
}

/// All rules.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) first: First,
    /// How long a flow may be silent.
    pub(crate) idle: Option<Duration>,
    /// Of the client, then of the server.
    pub(crate) forbidden: [Forbidden; 2],
}

/// Reads rules.
///
/// # Errors
/// The first invalid line, and what is wrong with it.
pub(crate) fn parse(text: &str) -> Result<Rules, String> {
    let (mut first, mut idle) = (First::Any, None);
    let mut strings: [Vec<Vec<u8>>; 2] = Default::default();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let at = |error: String| format!("{PATH}:{}: `{line}`: {error}", index + 1);
        let (kind, rest) = word(line);
        match (kind, rest) {
            ("first", "any") => first = First::Any,
            ("first", "client") => first = First::Client,
            ("first", "server") => first = First::Server,
            ("first", _) => return Err(at("the second word is client, server or any".into())),
            ("idle", seconds) => idle = Some(duration(seconds).map_err(at)?),
            ("forbid", rest) => forbid(&mut strings, rest).map_err(at)?,
            _ => return Err(at("a line begins with first, idle or forbid".into())),
        }
    }
    let [client, server] = strings.map(compiled);
    Ok(Rules { first, idle, forbidden: [client?, server?] })
}

fn compiled(strings: Vec<Vec<u8>>) -> Result<Forbidden, String> {
    let automaton = DFA::new(&strings).map_err(|error| format!("{PATH}: {error}"))?;
    Ok(Forbidden { strings, automaton })
}

fn duration(seconds: &str) -> Result<Duration, String> {
    let seconds: u32 = seconds.parse().map_err(|_| format!("`{seconds}` is no number of seconds"))?;
    if seconds == 0 {
        Err("a flow needs a second at least".into())
    } else {
        Ok(Duration::from_secs(seconds.into()))
    }
}

/// Adds a string to the sides that the line names.
fn forbid(strings: &mut [Vec<Vec<u8>>; 2], rest: &str) -> Result<(), String> {
    let (who, quoted) = word(rest);
    let sides = match who {
        "client" => 0..1,
        "server" => 1..2,
        "any" => 0..2,
        _ => return Err("the second word says whose bytes: client, server or any".into()),
    };
    let string = unquoted(quoted)?;
    if string.is_empty() || string.len() > STRING_BYTES_MAX {
        return Err(format!("a string has 1 to {STRING_BYTES_MAX} bytes"));
    }
    for side in &mut strings[sides] {
        if side.len() >= STRINGS_MAX {
            return Err(format!("a side has at most {STRINGS_MAX} strings"));
        }
        side.push(string.clone());
    }
    Ok(())
}

/// The first word, and what follows it.
fn word(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    let end = text.find(char::is_whitespace).unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

/// Bytes between quotes; `\xNN`, `\\` and `\"` stand for bytes.
fn unquoted(text: &str) -> Result<Vec<u8>, String> {
    let inner = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    let mut rest = inner.ok_or("a string is in double quotes")?.bytes();
    let mut bytes = Vec::new();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
        bytes.push(match rest.next() {
            Some(escaped @ (b'\\' | b'"')) => escaped,
            Some(b'x') => {
                let (high, low) = (digit(rest.next()), digit(rest.next()));
                let value = high.zip(low).map(|(high, low)| high * 16 + low);
                value.and_then(|value| u8::try_from(value).ok()).ok_or("\\x is followed by two hex digits")?
            }
            _ => return Err("after \\ comes \\, \" or xNN".into()),
        });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_rules_are_valid() {
        let rules = parse(DEFAULT).unwrap();
        assert_eq!((rules.first, rules.idle), (First::Client, Some(Duration::from_secs(3_600))));
        assert_eq!(rules.forbidden.map(|side| side.strings.len()), [5, 1]);
    }

    #[test]
    fn a_wrong_line_is_named_with_what_is_wrong() {
        for (text, words) in [
            ("first neither", ":1: `first neither`: the second word is client, server or any"),
            ("\nidle soon", ":2: `idle soon`: `soon` is no number of seconds"),
            ("idle 0", "a flow needs a second"),
            ("forbid client", "in double quotes"),
            ("forbid everyone \"x\"", "whose bytes"),
            ("forbid any \"\"", "1 to 64 bytes"),
            ("forbid any \"\\x1\"", "two hex digits"),
            ("forbid any \"\\n\"", "after \\ comes"),
            ("allow all", "begins with first, idle or forbid"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        let many = "forbid server \"x\"\n".repeat(STRINGS_MAX + 1);
        assert!(parse(&many).unwrap_err().contains("at most 64 strings"));
    }
}
