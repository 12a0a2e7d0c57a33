//! Parses rules, one per line. Does not know streams.
//!
//! ```text
//! deny   client  prefix "CONNECT "         in order; the first rule of a direction that matches decides
//! deny   client  contains "/../"           anywhere in the first 1,024 bytes
//! allow  client  prefix "GET \x2f"
//! default client deny                      if no rule matches; otherwise `allow`
//! limit  client  rate 10000/s burst 1000   messages; also `message BYTES` and `bytes BYTES`
//! # a comment, on its own line
//! ```

use marram_bucket::Rate;

/// Path of the rules in an image.
pub(crate) const PATH: &str = "/etc/rules";

/// The default rules.
pub(crate) const DEFAULT: &str = include_str!("../rules");

/// Bytes at the beginning of a direction that rules can match; a pattern is no longer.
pub(crate) const WINDOW_BYTES: usize = 1024;

/// What a rule does with a direction that it matches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    Allow,
    Deny,
}

/// What a rule looks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Pattern {
    /// The stream begins with this.
    Prefix(Vec<u8>),
    /// This is somewhere among the first bytes.
    Contains(Vec<u8>),
}

/// One rule, and its text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Rule {
    pub(crate) action: Action,
    /// Of 1 to [`WINDOW_BYTES`] bytes, like every pattern.
    pub(crate) pattern: Pattern,
    /// The line as it was written, which is the reason that is printed.
    pub(crate) text: String,
}

/// All rules and limits of one direction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Side {
    /// In order; the first that matches decides.
    pub(crate) rules: Vec<Rule>,
    /// If no rule matches.
    pub(crate) default: Action,
    /// Bytes of the longest allowed message.
    pub(crate) message_bytes_max: Option<u64>,
    /// Most bytes in total.
    pub(crate) bytes_max: Option<u64>,
    /// Rate of messages.
    pub(crate) rate: Option<Rate>,
}

impl Default for Side {
    fn default() -> Self {
        Self {
            rules: Vec::new(),
            default: Action::Allow,
            message_bytes_max: None,
            bytes_max: None,
            rate: None,
        }
    }
}

/// All rules: for the client's messages, then for the server's.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Rules {
    pub(crate) sides: [Side; 2],
}

/// Reads rules.
///
/// # Errors
/// The first invalid line, and what is wrong with it.
pub(crate) fn parse(text: &str) -> Result<Rules, String> {
    let mut rules = Rules::default();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if !line.is_empty() && !line.starts_with('#') {
            apply(&mut rules, line).map_err(|error| format!("{PATH}:{}: `{line}`: {error}", index + 1))?;
        }
    }
    Ok(rules)
}

/// Adds one line to the rules of its direction.
fn apply(rules: &mut Rules, line: &str) -> Result<(), String> {
    let (kind, rest) = word(line);
    let (direction, rest) = word(rest);
    let side = match direction {
        "client" => &mut rules.sides[0],
        "server" => &mut rules.sides[1],
        _ => return Err("the second word says whose bytes: client or server".to_owned()),
    };
    match kind {
        "allow" => side.rules.push(rule(Action::Allow, rest, line)?),
        "deny" => side.rules.push(rule(Action::Deny, rest, line)?),
        "default" if rest == "allow" => side.default = Action::Allow,
        "default" if rest == "deny" => side.default = Action::Deny,
        "default" => return Err("a default is allow or deny".to_owned()),
        "limit" => limit(side, rest)?,
        _ => return Err("a line begins with allow, deny, default or limit".to_owned()),
    }
    Ok(())
}

/// `line` is the whole line, for the reason of a refusal.
fn rule(action: Action, rest: &str, line: &str) -> Result<Rule, String> {
    let (how, rest) = word(rest);
    let bytes = unquote(rest)?;
    let pattern = match (how, action) {
        ("prefix", _) => Pattern::Prefix(bytes),
        ("contains", Action::Deny) => Pattern::Contains(bytes),
        ("contains", Action::Allow) => {
            return Err("allow goes with prefix only: what is not there yet may still come".to_owned());
        }
        _ => return Err("a pattern is prefix \"..\" or contains \"..\"".to_owned()),
    };
    Ok(Rule { action, pattern, text: line.to_owned() })
}

/// The last limit of a kind counts.
fn limit(side: &mut Side, rest: &str) -> Result<(), String> {
    let (what, amount) = word(rest);
    let number = || amount.parse().map(Some).map_err(|_| format!("`{amount}` is no number of bytes"));
    match what {
        "message" => side.message_bytes_max = number()?,
        "bytes" => side.bytes_max = number()?,
        "rate" => side.rate = Some(Rate::parse(amount).ok_or("a rate is like 100/s burst 20")?),
        _ => return Err("a limit is message BYTES, bytes BYTES, or rate 100/s burst 20".to_owned()),
    }
    Ok(())
}

/// The first word, and what follows it.
fn word(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    let end = text.find(char::is_whitespace).unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

/// Bytes between quotes, with `\r \n \t \0 \\ \"` and `\xNN`.
fn unquote(text: &str) -> Result<Vec<u8>, String> {
    let inner =
        text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).ok_or("a pattern is in quotes")?;
    let mut bytes = Vec::new();
    let mut rest = inner.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => escaped(&mut rest)
                .ok_or("\\ is followed by r, n, t, 0, \\, \" or x and two hexadecimal digits")?,
            b'"' => return Err("a quote within a pattern is written \\\"".to_owned()),
            other => other,
        });
    }
    if bytes.is_empty() || bytes.len() > WINDOW_BYTES {
        return Err(format!("a pattern has 1 to {WINDOW_BYTES} bytes"));
    }
    Ok(bytes)
}

/// The byte that an escape stands for, after its `\`. `None` if it is no escape, or ends early.
fn escaped(rest: &mut impl Iterator<Item = u8>) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(match rest.next()? {
        b'r' => b'\r',
        b'n' => b'\n',
        b't' => b'\t',
        b'0' => 0,
        b'x' => 16 * digit(rest.next()?)? + digit(rest.next()?)?,
        byte @ (b'\\' | b'"') => byte,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_line_is_read() {
        let text = "# comment\n\n allow client  prefix \"GET \"\ndeny client contains \"\\x00\\r\\\"\\\\\"\ndefault client deny\n\
                    limit server message 10\nlimit server bytes 20\nlimit server rate 5/s burst 2\n";
        let rule = |action, pattern, text: &str| Rule { action, pattern, text: text.to_owned() };
        let client = Side {
            rules: vec![
                rule(Action::Allow, Pattern::Prefix(b"GET ".to_vec()), "allow client  prefix \"GET \""),
                rule(
                    Action::Deny,
                    Pattern::Contains(b"\0\r\"\\".to_vec()),
                    "deny client contains \"\\x00\\r\\\"\\\\\"",
                ),
            ],
            default: Action::Deny,
            ..Side::default()
        };
        let server = Side {
            message_bytes_max: Some(10),
            bytes_max: Some(20),
            rate: Some(Rate { per_second: 5, burst: 2 }),
            ..Side::default()
        };
        assert_eq!(parse(text), Ok(Rules { sides: [client, server] }));
        assert!(parse(DEFAULT).is_ok());
    }

    #[test]
    fn a_wrong_line_is_named_with_what_is_wrong() {
        let cases = [
            ("permit client prefix \"a\"", "begins with"),
            ("allow both prefix \"a\"", "whose bytes"),
            ("allow client prefix a", "in quotes"),
            ("allow client prefix \"\"", "1 to 1024"),
            ("allow client prefix \"a\"b\"", "written"),
            ("allow client prefix \"\\q\"", "followed by"),
            ("allow client prefix \"\\x4\"", "followed by"),
            ("allow client contains \"a\"", "prefix only"),
            ("deny client suffix \"a\"", "a pattern is"),
            ("default client maybe", "allow or deny"),
            ("limit client bytes many", "no number"),
            ("limit client rate 5", "100/s"),
            ("limit client time 5", "a limit is"),
        ];
        for (line, expected) in cases {
            let error = parse(&format!("# first\n{line}\n")).expect_err(line);
            assert!(error.contains(expected) && error.contains(":2: "), "{line}: {error}");
        }
    }
}
