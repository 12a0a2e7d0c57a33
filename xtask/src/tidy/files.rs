//! Rules about one source file: its length, its first line, and forbidden words.
//!
//! The rules are such that a reader can rely on them without looking: a file can be read at one
//! sitting, its first lines say what it is for, and unsafe code is in a few places that are
//! reviewed for it.

use anyhow::Result;

/// A longer file must be split.
const LINES_MAX: usize = 1_000;

/// The same without comments and blank lines.
const CODE_LINES_MAX: usize = 600;

/// Files that may be longer for now, with their limits. Empty, and it should stay so.
const LONG: &[(&str, usize)] = &[];

/// Macros that mark unfinished code.
const UNFINISHED: [&str; 3] = ["todo", "unimplemented", "dbg"];

/// The keyword, in two halves so that this file does not contain it itself.
const UNSAFE: &str = concat!("un", "safe");

/// Where unsafe code is allowed: the engine, the I/O layer, what other programs load, and the guest's side of the ABI.
const UNSAFE_ALLOWED: [&str; 8] = [
    "crates/sandbox/",
    "crates/transport/src/socket.rs",
    "crates/transport/src/memory.rs",
    "crates/node/src/memory.rs",
    "crates/bench/src/",
    "crates/preload/src/hooks.rs",
    "sdk/rust/src/rim.rs",
    "sdk/rust/src/export.rs",
];

/// The roots of the crates that make all decisions without I/O, and of what they share. Also
/// checked by building them for Wasm; this finds a removed attribute at once.
const PURE_ROOTS: [&str; 7] = [
    "crates/wire/src/lib.rs",
    "crates/session/src/lib.rs",
    "crates/shard/src/lib.rs",
    "sdk/rust/src/lib.rs",
    "cells/testing/chain/algo/src/lib.rs",
    "cells/services/limiter/bucket/src/lib.rs",
    "cells/examples/unscramble/codec/src/lib.rs",
];

/// Languages of blocks in documentation comments that `rustdoc` does not compile.
const PLAIN_BLOCKS: [&str; 2] = ["text", "toml"];

/// What is wrong with a file.
///
/// Works on lines: what is behind `//` is no code. A string with two slashes is cut too, which only
/// hides code behind it.
pub(super) fn check(path: &str, text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut say = |line: usize, what: String| wrong.push(format!("{path}:{line}: {what}"));
    let lines = text.lines().count();
    let lines_max = LONG.iter().find(|(long, _)| *long == path).map_or(LINES_MAX, |(_, lines)| *lines);
    if lines > lines_max {
        say(lines, format!("{lines} lines; split it, {lines_max} are the maximum"));
    }
    let code_lines = code_lines(text);
    if code_lines > CODE_LINES_MAX {
        say(lines, format!("{code_lines} lines of code; split it, {CODE_LINES_MAX} are the maximum"));
    }
    if !text.starts_with("//!") {
        say(1, "no `//!` header: write what this file is and what it does not know".to_owned());
    }
    if PURE_ROOTS.contains(&path) && !text.contains("\n#![no_std]") {
        say(1, "a pure crate is `#![no_std]`".to_owned());
    }
    let mut is_in_block = false;
    let unsafe_allowed = UNSAFE_ALLOWED.iter().any(|allowed| path.starts_with(allowed));
    for (index, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        for name in UNFINISHED.iter().filter(|name| code.contains(&format!("{name}!("))) {
            say(index + 1, format!("`{name}!` is for work in progress"));
        }
        if !unsafe_allowed && has_word(code, UNSAFE) {
            say(index + 1, format!("{UNSAFE} code belongs into {}", UNSAFE_ALLOWED.join(", ")));
        }
        if code.trim_start().starts_with("#[ignore") {
            say(index + 1, "a test must not be ignored".to_owned());
        }
        if let Some(language) = fence(line).filter(|_| path.starts_with("crates/")) {
            is_in_block = !is_in_block;
            if is_in_block && !PLAIN_BLOCKS.contains(&language) {
                say(
                    index + 1,
                    "examples in `crates` are not compiled (`doctest = false`): write ```text".to_owned(),
                );
            }
        }
    }
    wrong
}

/// Lines that are neither blank nor comments.
fn code_lines(text: &str) -> usize {
    let is_code = |line: &&str| !line.is_empty() && !line.starts_with("//");
    text.lines().map(str::trim_start).filter(is_code).count()
}

/// Exceptions that are no longer needed, or larger than necessary.
pub(super) fn stale_exceptions(read: impl Fn(&str) -> Result<String>) -> Vec<String> {
    let stale = |(path, allowed): &(&str, usize)| {
        let lines = read(path).map_or(0, |text| text.lines().count());
        (lines < *allowed || lines <= LINES_MAX)
            .then(|| format!("{path} has {lines} lines: shrink its exception of {allowed}, or drop it"))
    };
    LONG.iter().filter_map(stale).collect()
}

/// The language behind the fence of a block in a documentation comment, if the line is one.
fn fence(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let text = line.strip_prefix("//!").or_else(|| line.strip_prefix("///"))?;
    Some(text.trim().strip_prefix("```")?.trim())
}

/// Whether a line contains a word as a whole word.
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    line.match_indices(word).any(|(at, _)| {
        let bytes = line.as_bytes();
        !is_part(at.checked_sub(1).and_then(|before| bytes.get(before)))
            && !is_part(bytes.get(at + word.len()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_finds_its_fault() {
        let header = "//! A file.\n";
        let cases = [
            ("crates/sim/src/a.rs", format!("{header}fn a() {{}}\n"), 0),
            ("crates/sim/src/a.rs", "fn a() {}\n".to_owned(), 1),
            ("crates/sim/src/a.rs", format!("{header}//! ```text\n//! a\n//! ```\n"), 0),
            ("crates/sim/src/a.rs", format!("{header}/// ```\n/// a()\n/// ```\n"), 1),
            ("sdk/host/src/a.rs", format!("{header}/// ```\n/// a()\n/// ```\n"), 0),
            ("crates/sim/src/a.rs", format!("{header}{}", "\n".repeat(LINES_MAX)), 1),
            ("crates/sim/src/a.rs", format!("{header}{}", "\n".repeat(LINES_MAX - 1)), 0),
            ("crates/sim/src/a.rs", format!("{header}{}", "a();\n".repeat(CODE_LINES_MAX + 1)), 1),
            ("crates/sim/src/a.rs", format!("{header}{}", "a();\n\n".repeat(CODE_LINES_MAX / 2)), 0),
            (
                "crates/sim/src/a.rs",
                format!("{header}{}{}", "a();\n".repeat(CODE_LINES_MAX), "    // a\n\n".repeat(9)),
                0,
            ),
            ("crates/sim/src/a.rs", format!("{header}fn a() {{ {}!() }}\n", UNFINISHED[0]), 1),
            ("crates/sim/src/a.rs", format!("{header}// {}!() is gone\n", UNFINISHED[0]), 0),
            ("crates/sim/src/a.rs", format!("{header}{UNSAFE} {{ a() }}\n"), 1),
            ("crates/sandbox/src/a.rs", format!("{header}{UNSAFE} {{ a() }}\n"), 0),
            ("crates/sim/src/a.rs", format!("{header}#![forbid({UNSAFE}_code)]\n"), 0),
            ("crates/sim/src/a.rs", format!("{header}    #[ignore]\n"), 1),
            ("crates/wire/src/lib.rs", header.to_owned(), 1),
            ("crates/wire/src/lib.rs", format!("{header}#![no_std]\n"), 0),
        ];
        for (path, text, expected) in cases {
            let wrong = check(path, &text);
            assert_eq!(wrong.len(), expected, "{path}: {wrong:?}");
        }
    }
}
