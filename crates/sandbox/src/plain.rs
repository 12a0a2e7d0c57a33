//! Makes text that a guest chose safe to show: characters that a terminal or a log would interpret become escapes.
//!
//! This module does not know where the text is shown: an operator's terminal, a log file, the other end of a session.
//!
//! Three kinds of text come from guests: what they print, names of their functions in a trap's
//! reason, and names in a module that is refused at deployment. Any of them may be written to
//! attack the terminal of the operator who reads it.

/// The text on one line; every character that would do more than appear is replaced by an escape.
pub(crate) fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        // A backslash in the original is not escaped: the text is for reading and is never parsed.
        if acts(char) {
            out.extend(char.escape_default());
        } else {
            out.push(char);
        }
    }
    out
}

/// As [`plain`], truncated to at most `bytes_max` bytes.
pub(crate) fn plain_cut(text: &str, bytes_max: usize) -> String {
    // An escape is at least as long as its character, so the bytes cut here would be cut below anyway.
    let mut out = plain(&text[..text.floor_char_boundary(bytes_max)]);
    out.truncate(out.floor_char_boundary(bytes_max));
    out
}

/// Whether a character ends a line, moves the cursor, rings the bell, sets a colour, or changes the text direction.
/// The second group are the marks and overrides of bidirectional text, and the separators that some
/// viewers show as a line's end.
fn acts(char: char) -> bool {
    (char.is_control() && char != '\t')
        || matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_acts_is_written_out_and_the_rest_stays() {
        for (text, expected) in [
            ("größer\t🌊 \\n", "größer\t🌊 \\n"),
            ("a\r\nb\0", "a\\r\\nb\\u{0}"),
            ("\x1b[2J\u{9b}31m\x07\x7f", "\\u{1b}[2J\\u{9b}31m\\u{7}\\u{7f}"),
            ("x\u{202e}y\u{2066}\u{2028}", "x\\u{202e}y\\u{2066}\\u{2028}"),
        ] {
            assert_eq!(plain(text), expected);
        }
    }

    #[test]
    fn a_cut_falls_between_characters() {
        assert_eq!(plain_cut("äöü", 3), "ä");
        assert_eq!(plain_cut("\n\n\n", 3), "\\n\\");
        assert_eq!(plain_cut("abc", 3), "abc");
    }
}
