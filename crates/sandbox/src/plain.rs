//! Words that a guest chose, made fit to be shown: what a terminal or a log would obey is written out instead.
//!
//! Refuses to know where the words go: an operator's terminal, a log file, the other end of a session.

/// The text on one line, with every character that would do something else than appear written as an escape.
pub(crate) fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        if acts(char) {
            out.extend(char.escape_default());
        } else {
            out.push(char);
        }
    }
    out
}

/// As [`plain`], cut after at most so many bytes.
pub(crate) fn plain_cut(text: &str, bytes_max: usize) -> String {
    // No escape is shorter than its character: what is cut here would be cut below.
    let mut out = plain(&text[..text.floor_char_boundary(bytes_max)]);
    out.truncate(out.floor_char_boundary(bytes_max));
    out
}

/// Whether a character ends a line, moves the cursor, rings, colours, or turns the direction of what follows.
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
