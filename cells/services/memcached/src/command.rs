//! Parses one line of the text protocol. Knows the words, their arguments and the error replies; does not know streams,
//! items or time.
//!
//! ```text
//!  set|add|replace|append|prepend KEY FLAGS EXPTIME LEN [noreply]   and LEN bytes, CR LF
//!  cas KEY FLAGS EXPTIME LEN VERSION [noreply]                      and LEN bytes, CR LF
//!  get|gets KEY...             gat|gats EXPTIME KEY...
//!  incr|decr KEY DELTA [noreply]      touch KEY EXPTIME [noreply]
//!  delete KEY [0] [noreply]           flush_all [EXPTIME] [noreply]
//!  stats [GROUP]   version   verbosity LEVEL [noreply]   quit
//! ```
//!
//! The number of words selects between `ERROR`, as for an unknown command, and the more specific
//! replies: libraries compare these texts, so they are memcached's to the letter.

use crate::store::{Delta, KEY_BYTES_MAX, Mode};

/// More words than any command has. Only a list of keys may be longer, and its words are not counted.
const WORDS_MAX: usize = 8;

/// A parsed request.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Request<'a> {
    /// `get`, `gets`, `gat`, `gats`: the keys are the rest of the line, `keys` bytes from its beginning.
    Get {
        with_cas: bool,
        touch: Option<i64>,
        keys: usize,
    },
    /// A value follows the line.
    Store(Incoming<'a>),
    Delete {
        key: &'a [u8],
    },
    Count {
        key: &'a [u8],
        delta: Delta,
    },
    Touch {
        key: &'a [u8],
        exptime: i64,
    },
    FlushAll {
        delay: i64,
    },
    Version,
    Verbosity,
    Stats {
        of: Option<&'a [u8]>,
    },
    Quit,
}

/// The line's properties of the value that follows it.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Incoming<'a> {
    /// For `cas`, with the version that the client has seen.
    pub(crate) mode: Mode,
    pub(crate) key: &'a [u8],
    pub(crate) flags: u32,
    /// As the client wrote it: relative, absolute or negative. [`crate::clock::Expiry`] knows the
    /// meaning.
    pub(crate) exptime: i64,
    /// Of the value, without the line end that follows it.
    pub(crate) len: usize,
}

/// A line, and whether its sender wants a reply.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Line<'a> {
    /// The request, or the error reply.
    pub(crate) request: Result<Request<'a>, &'static str>,
    /// Ignored for commands that have no such word, and where the number of words is wrong: then
    /// the client learns of it.
    pub(crate) noreply: bool,
}

const ERROR: &str = "ERROR";
const BAD_LINE: &str = "CLIENT_ERROR bad command line format";
const BAD_DELETE: &str = "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]";
const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument";
const BAD_DELTA: &str = "CLIENT_ERROR invalid numeric delta argument";

/// The longest value that a line may announce; a value that is too large for the store is still read and dropped.
const LEN_MAX: i64 = i32::MAX as i64 - 2;

/// Parses a line, without its end.
pub(crate) fn parse(line: &[u8]) -> Line<'_> {
    let mut words = [&line[..0]; WORDS_MAX];
    let mut count = 0;
    for word in words_of(line).take(WORDS_MAX) {
        words[count] = word;
        count += 1;
    }
    let arguments = count.saturating_sub(1);
    // `noreply` counts only as the last of the allowed words; elsewhere it is a normal word.
    let noreply = count > 1 && words[count - 1] == b"noreply";
    let [command, first, second, third, fourth, fifth, ..] = words;
    let silent = |request| Line { request, noreply };
    let loud = |request| Line { request, noreply: false };
    let store = |mode, extra: usize| match arguments.checked_sub(extra) {
        Some(4 | 5) => silent(incoming(mode, [first, second, third, fourth])),
        _ => loud(Err(ERROR)),
    };
    match command {
        b"get" | b"bget" if arguments >= 1 => loud(keys(line, 1, false)),
        b"gets" if arguments >= 1 => loud(keys(line, 1, true)),
        b"gat" if arguments >= 1 => loud(keys(line, 2, false)),
        b"gats" if arguments >= 1 => loud(keys(line, 2, true)),
        b"set" => store(Mode::Set, 0),
        b"add" => store(Mode::Add, 0),
        b"replace" => store(Mode::Replace, 0),
        b"append" => store(Mode::Append, 0),
        b"prepend" => store(Mode::Prepend, 0),
        b"cas" => match integer(fifth) {
            Ok(cas) => store(Mode::Cas(cas), 1),
            // Errors of the other words are reported first; the reply is the same.
            Err(()) if (5..=6).contains(&arguments) => silent(Err(BAD_LINE)),
            Err(()) => loud(Err(ERROR)),
        },
        b"incr" if (2..=3).contains(&arguments) => silent(counter(first, second, Delta::Up)),
        b"decr" if (2..=3).contains(&arguments) => silent(counter(first, second, Delta::Down)),
        b"delete" if (1..=3).contains(&arguments) => silent(delete(&words[1..count])),
        b"touch" if (2..=3).contains(&arguments) => silent(touch(first, second)),
        b"flush_all" if arguments <= 2 => silent(flush_all(arguments - usize::from(noreply), first)),
        b"verbosity" if (1..=2).contains(&arguments) => {
            silent(integer::<u32>(first).map(|_| Request::Verbosity).map_err(|()| BAD_LINE))
        }
        b"version" => loud(Ok(Request::Version)),
        b"stats" => loud(Ok(Request::Stats { of: (arguments > 0).then_some(first) })),
        b"quit" => loud(Ok(Request::Quit)),
        _ => loud(Err(ERROR)),
    }
}

/// A line's words. Only spaces separate them.
pub(crate) fn words_of(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| *byte == b' ').filter(|word| !word.is_empty())
}

/// The rest of a `get` after its first words; the second of these, if there is one, is the expiry time of the items.
fn keys(line: &[u8], before: usize, with_cas: bool) -> Result<Request<'_>, &'static str> {
    let mut rest = line;
    let mut word = &line[..0];
    for _ in 0..before {
        rest = without_spaces(rest);
        let end = rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len());
        (word, rest) = rest.split_at(end);
    }
    let touch = (before == 2).then(|| integer::<i64>(word)).transpose().map_err(|()| BAD_EXPTIME)?;
    // All keys are checked before any is looked up, so that there are no partial answers.
    if words_of(rest).any(|key| key.len() > KEY_BYTES_MAX) {
        return Err(BAD_LINE);
    }
    Ok(Request::Get { with_cas, touch, keys: line.len() - rest.len() })
}

/// Without the spaces at its beginning; other white space is part of a word.
fn without_spaces(text: &[u8]) -> &[u8] {
    let start = text.iter().position(|byte| *byte != b' ').unwrap_or(text.len());
    &text[start..]
}

/// After a refusal here the length of the value is unknown, so the bytes behind the line are read
/// as the next command.
fn incoming<'a>(mode: Mode, words: [&'a [u8]; 4]) -> Result<Request<'a>, &'static str> {
    let [key, flags, exptime, len] = words;
    let key = short(key)?;
    let bad = |()| BAD_LINE;
    let (flags, exptime, len) =
        (integer(flags).map_err(bad)?, integer(exptime).map_err(bad)?, integer::<i64>(len).map_err(bad)?);
    let len = usize::try_from(len).ok().filter(|_| len < LEN_MAX).ok_or(BAD_LINE)?;
    Ok(Request::Store(Incoming { mode, key, flags, exptime, len }))
}

fn counter<'a>(
    key: &'a [u8],
    delta: &[u8],
    direction: fn(u64) -> Delta,
) -> Result<Request<'a>, &'static str> {
    let key = short(key)?;
    Ok(Request::Count { key, delta: direction(integer(delta).map_err(|()| BAD_DELTA)?) })
}

/// Very old clients send 0 after the key.
fn delete<'a>(words: &[&'a [u8]]) -> Result<Request<'a>, &'static str> {
    match words {
        [key] | [key, b"0" | b"noreply"] | [key, b"0", b"noreply"] => {
            Ok(Request::Delete { key: short(key)? })
        }
        _ => Err(BAD_DELETE),
    }
}

fn touch<'a>(key: &'a [u8], exptime: &[u8]) -> Result<Request<'a>, &'static str> {
    let key = short(key)?;
    Ok(Request::Touch { key, exptime: integer(exptime).map_err(|()| BAD_EXPTIME)? })
}

fn flush_all(arguments: usize, delay: &[u8]) -> Result<Request<'static>, &'static str> {
    let delay = if arguments == 0 { Ok(0) } else { integer(delay) };
    delay.map(|delay| Request::FlushAll { delay }).map_err(|()| BAD_EXPTIME)
}

/// The key, unless it is longer than the store's limit.
fn short(key: &[u8]) -> Result<&[u8], &'static str> {
    if key.len() <= KEY_BYTES_MAX { Ok(key) } else { Err(BAD_LINE) }
}

/// A number; white space other than spaces may surround it.
fn integer<T: std::str::FromStr>(word: &[u8]) -> Result<T, ()> {
    let text = std::str::from_utf8(word.trim_ascii()).map_err(drop)?;
    text.parse().map_err(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What one line means, as `Debug` prints it, or the error, with `(noreply)` if there is no reply.
    fn read(line: &str) -> String {
        let line = parse(line.as_bytes());
        let text = match line.request {
            Ok(Request::Store(Incoming { mode, key, flags, exptime, len })) => {
                format!("{mode:?} {} {flags} {exptime} {len}", String::from_utf8_lossy(key))
            }
            Ok(Request::Get { with_cas, touch, keys }) => format!("get {with_cas} {touch:?} {keys}"),
            Ok(Request::Delete { key }) => format!("delete {}", String::from_utf8_lossy(key)),
            Ok(Request::Count { key, delta }) => format!("{} {delta:?}", String::from_utf8_lossy(key)),
            Ok(Request::Touch { key, exptime }) => {
                format!("touch {} {exptime}", String::from_utf8_lossy(key))
            }
            Ok(Request::Stats { of }) => format!("stats {:?}", of.map(String::from_utf8_lossy)),
            Ok(other) => format!("{other:?}"),
            Err(error) => error.to_owned(),
        };
        if line.noreply { format!("{text} (noreply)") } else { text }
    }

    #[test]
    fn each_command_has_its_words() {
        let cases = [
            ("get a", "get false None 3"),
            ("  get   a b", "get false None 5"),
            ("gets a", "get true None 4"),
            ("gat 10 a", "get false Some(10) 6"),
            ("gats -1 a", "get true Some(-1) 7"),
            ("gat 10", "get false Some(10) 6"),
            ("set k 1 2 3", "Set k 1 2 3"),
            ("set  k  1  2  3 ", "Set k 1 2 3"),
            ("set k 1 -2 3 noreply", "Set k 1 -2 3 (noreply)"),
            ("set k 1 2 3 else", "Set k 1 2 3"),
            ("set k 4294967295 2 +3\r", "Set k 4294967295 2 3"),
            ("add k 1 2 3", "Add k 1 2 3"),
            ("replace k 1 2 3", "Replace k 1 2 3"),
            ("append k 1 2 3", "Append k 1 2 3"),
            ("prepend k 1 2 3", "Prepend k 1 2 3"),
            ("cas k 1 2 3 18446744073709551615", "Cas(18446744073709551615) k 1 2 3"),
            ("cas k 1 2 3 4 noreply", "Cas(4) k 1 2 3 (noreply)"),
            ("delete k", "delete k"),
            ("delete k 0", "delete k"),
            ("delete k 0 noreply", "delete k (noreply)"),
            ("incr k 1", "k Up(1)"),
            ("decr k 1 noreply", "k Down(1) (noreply)"),
            ("touch k 1", "touch k 1"),
            ("flush_all", "FlushAll { delay: 0 }"),
            ("flush_all noreply", "FlushAll { delay: 0 } (noreply)"),
            ("flush_all 7 noreply", "FlushAll { delay: 7 } (noreply)"),
            ("flush_all 7 x", "FlushAll { delay: 7 }"),
            ("version and more", "Version"),
            ("verbosity 1", "Verbosity"),
            ("stats", "stats None"),
            ("stats items", "stats Some(\"items\")"),
            ("quit", "Quit"),
        ];
        for (line, expected) in cases {
            assert_eq!(read(line), expected, "{line}");
        }
    }

    #[test]
    fn wrong_lines_get_the_error_that_clients_know() {
        let cases = [
            ("", ERROR),
            (" ", ERROR),
            ("GET a", ERROR),
            ("get", ERROR),
            ("gat", ERROR),
            ("set k 0 0", ERROR),
            ("set k 0 0 1 noreply x", ERROR),
            ("cas k 0 0 1", ERROR),
            ("cas k 0 0 1 2 3 4", ERROR),
            ("delete", ERROR),
            ("delete a b c d", ERROR),
            ("incr k", ERROR),
            ("touch k", ERROR),
            ("flush_all 1 2 3", ERROR),
            ("verbosity", ERROR),
            ("set k x 0 1", BAD_LINE),
            ("set k -1 0 1", BAD_LINE),
            ("set k 4294967296 0 1", BAD_LINE),
            ("set k 0 x 1", BAD_LINE),
            ("set k 0 0 -1", BAD_LINE),
            ("set k 0 0 0x1", BAD_LINE),
            ("set k 0 0 2147483646", BAD_LINE),
            ("cas k 0 0 1 x", BAD_LINE),
            ("cas k 0 0 1 -1", BAD_LINE),
            ("verbosity x", BAD_LINE),
            ("delete k 1", BAD_DELETE),
            ("delete k 0 x", BAD_DELETE),
            ("gat x k", BAD_EXPTIME),
            ("touch k x", BAD_EXPTIME),
            ("flush_all x", BAD_EXPTIME),
            ("incr k x", BAD_DELTA),
            ("incr k -1", BAD_DELTA),
            ("incr k 18446744073709551616", BAD_DELTA),
        ];
        for (line, expected) in cases {
            assert_eq!(read(line), expected, "{line}");
        }
        let key = "k".repeat(KEY_BYTES_MAX + 1);
        for line in ["get a {}", "set {} 0 0 1", "delete {}", "incr {} 1", "touch {} 1", "gat 1 {}"] {
            assert_eq!(read(&line.replace("{}", &key)), BAD_LINE, "{line}");
            let fits = line.replace("{}", &key[1..]);
            assert_ne!(read(&fits), BAD_LINE, "{line}");
        }
        assert_eq!(read("set k x 0 1 noreply"), format!("{BAD_LINE} (noreply)"));
    }
}
