//! Rows of text on a terminal: what changed since the last time, as ANSI sequences.

use std::fmt::Write;

/// What a terminal shows.
#[derive(Default, Debug)]
pub struct Screen {
    rows: Vec<String>,
}

impl Screen {
    /// The bytes that change the screen to these rows; none if it already shows them.
    pub fn draw(&mut self, rows: Vec<String>) -> String {
        // Cleared, and the cursor hidden.
        let mut bytes = String::from(if self.rows.is_empty() { "\x1b[2J\x1b[?25l" } else { "" });
        let count = rows.len().max(self.rows.len());
        for at in 0..count {
            let new = rows.get(at).map_or("", String::as_str);
            if self.rows.get(at).map(String::as_str) != Some(new) {
                write!(bytes, "\x1b[{};1H{new}\x1b[K", at + 1).expect("a string takes everything");
            }
        }
        self.rows = rows;
        bytes
    }

    /// The bytes that restore the terminal.
    #[must_use]
    pub fn leave(&self) -> String {
        format!("\x1b[{};1H\x1b[?25h\r\n", self.rows.len() + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rows_that_changed_are_drawn() {
        let mut screen = Screen::default();
        let rows = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(screen.draw(rows("a b")), "\x1b[2J\x1b[?25l\x1b[1;1Ha\x1b[K\x1b[2;1Hb\x1b[K");
        assert_eq!(screen.draw(rows("a c")), "\x1b[2;1Hc\x1b[K");
        assert_eq!(screen.draw(rows("a c")), "");
        assert_eq!(screen.draw(rows("a")), "\x1b[2;1H\x1b[K");
        assert_eq!(screen.leave(), "\x1b[2;1H\x1b[?25h\r\n");
    }
}
