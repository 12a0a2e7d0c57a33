//! Field values that are lists, such as those of `Accept-Encoding` and `Vary`.

/// Compares field names without case.
pub(super) fn is(name: &str, wanted: &str) -> bool {
    name.eq_ignore_ascii_case(wanted)
}

/// The elements of a list.
pub(super) fn elements(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|element| !element.is_empty())
}

/// Whether a list has this token.
pub(super) fn has_token(list: &[u8], token: &str) -> bool {
    elements(list).any(|element| element.eq_ignore_ascii_case(token.as_bytes()))
}

/// An element's name and its weight in thousandths; an invalid weight counts as 1, as in most servers.
pub(super) fn weighted(element: &[u8]) -> (&[u8], u16) {
    let mut parts = element.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let name = parts.next().unwrap_or_default();
    let weight = parts.find_map(|part| part.strip_prefix(b"q=").or_else(|| part.strip_prefix(b"Q=")));
    (name, weight.and_then(thousandths).unwrap_or(1000))
}

/// `0.25` as 250.
fn thousandths(text: &[u8]) -> Option<u16> {
    let (whole, rest) = text.split_first()?;
    let digits = match rest {
        [] => rest,
        [b'.', digits @ ..] if digits.len() <= 3 => digits,
        _ => return None,
    };
    let padded = digits.iter().chain(b"000").take(3);
    let part = padded
        .map(|digit| char::from(*digit).to_digit(10))
        .try_fold(0, |sum, digit| Some(sum * 10 + digit?))?;
    match whole {
        b'0' => u16::try_from(part).ok(),
        b'1' if part == 0 => Some(1000),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_read() {
        let cases: [(&str, &str, u16); 9] = [
            ("gzip", "gzip", 1000),
            ("gzip;q=0", "gzip", 0),
            ("gzip ; q=0.5", "gzip", 500),
            ("br;Q=0.001", "br", 1),
            ("*;q=1.000", "*", 1000),
            ("x;q=0.", "x", 0),
            ("x;q=2", "x", 1000),
            ("x;q=zero", "x", 1000),
            ("x;a=b;q=0.25", "x", 250),
        ];
        for (element, name, weight) in cases {
            assert_eq!(weighted(element.as_bytes()), (name.as_bytes(), weight), "{element}");
        }
        assert_eq!(elements(b" a,, b ,").collect::<Vec<_>>(), [b"a", b"b"]);
    }
}
