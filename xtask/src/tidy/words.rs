//! Words that do not belong into what people read here: code, comments, documents, messages. Each made readers stop.
//!
//! The list is for words that hide who acts or what is meant, where the field has a term. Comparing
//! is by whole words and without case.

/// Each in two halves, so that this file does not contain it. The list may only grow.
const BANNED: [&str; 11] = [
    concat!("who", "ever"),
    concat!("some", "body"),
    concat!("no", "body"),
    concat!("stran", "ger"),
    concat!("stran", "gers"),
    concat!("a", "new"),
    concat!("swal", "lowed"),
    concat!("hum", "bler"),
    concat!("un", "told"),
    concat!("un", "fed"),
    concat!("ad", "rift"),
];

/// How often they may stand in the tree: some are names that others gave, such as that of a user of Linux. May only shrink.
const LEFT: usize = 19;

/// Where a text has such a word.
pub(super) fn find(path: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.to_lowercase();
        for word in line.split(|c: char| !c.is_alphabetic()).filter(|word| BANNED.contains(word)) {
            found.push(format!("{path}:{}: `{word}`", index + 1));
        }
    }
    found
}

/// What is wrong, given all places.
///
/// The places are listed only if there are more than may be left.
pub(super) fn judge(found: Vec<String>) -> Vec<String> {
    let count = found.len();
    if count < LEFT {
        return vec![format!(
            "{count} words of the list are left: lower `LEFT` in xtask/src/tidy/words.rs from {LEFT}"
        )];
    }
    if count == LEFT {
        return Vec::new();
    }
    let say = |place: String| {
        format!("{place}: use the field's term ({LEFT} may be left in the tree, there are {count})")
    };
    found.into_iter().map(say).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_alone_and_in_any_case() {
        let word = BANNED[0];
        let title = format!("{}{}", word[..1].to_uppercase(), &word[1..]);
        let text = format!("one {word}, two\n// {title}'s turn\n{word}s are not {word}_name is\n");
        let found = find("a.rs", &text);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[1].starts_with("a.rs:2: "), "{found:?}");
    }

    #[test]
    fn fewer_than_may_be_left_is_wrong_as_well() {
        let places = |count: usize| vec!["a.rs:1: `x`".to_owned(); count];
        assert_eq!(judge(places(LEFT)).len(), 0);
        assert_eq!(judge(places(LEFT + 2)).len(), LEFT + 2);
        if let Some(fewer) = LEFT.checked_sub(1) {
            assert_eq!(judge(places(fewer)).len(), 1);
        }
    }
}
