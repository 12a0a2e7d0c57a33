//! Text for people: counts and tables.

pub mod table;

/// A count with its noun; a noun in `y` after a consonant gets the plural `ies`: `1 session`, `2 entries`.
/// An English plural in `s` only, or `ies`: `counted(2, "retry")` is `2 retries`.
#[must_use]
pub fn counted(count: u64, what: &str) -> String {
    match (count, what.strip_suffix('y')) {
        (1, _) => format!("1 {what}"),
        (_, Some(stem)) => format!("{count} {stem}ies"),
        (_, None) => format!("{count} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_are_counted_as_people_do() {
        let all = [(0, "entry"), (1, "entry"), (2, "entry"), (1, "session"), (2, "session")];
        let written = ["0 entries", "1 entry", "2 entries", "1 session", "2 sessions"];
        assert_eq!(all.map(|(count, what)| counted(count, what)), written);
    }
}
