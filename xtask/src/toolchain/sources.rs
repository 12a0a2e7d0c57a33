//! Finds Debian's archive among the machine's own package sources, so that no mirror is hard-coded. Reads both
//! formats, one source per line and deb822; writes deb822.
//!
//! ```text
//! .list      deb [signed-by=/usr/share/keyrings/x.gpg] http://deb.debian.org/debian trixie main contrib
//! .sources   Types: deb
//!            URIs: http://deb.debian.org/debian
//!            Suites: trixie trixie-updates
//!            Components: main
//!            Signed-By: /usr/share/keyrings/x.gpg
//! ```

/// One archive, as the machine's administrator has configured it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Archive {
    /// Its URIs.
    pub(crate) uris: String,
    /// The key that must sign its index; if absent, the machine's general keys. May be a path or a key of many lines.
    pub(crate) signed_by: Option<String>,
}

impl Archive {
    /// The source of another suite of the same archive. Written in deb822, which can hold a key of
    /// many lines.
    pub(crate) fn stanza(&self, suite: &str) -> String {
        let mut stanza = format!("Types: deb\nURIs: {}\nSuites: {suite}\nComponents: main\n", self.uris);
        if let Some(signed_by) = &self.signed_by {
            stanza.push_str(&format!("Signed-By: {signed_by}\n"));
        }
        stanza
    }
}

/// The archive with `main` of the release `codename`, from the text of a `.list` file.
pub(crate) fn in_list(text: &str, codename: &str) -> Option<Archive> {
    text.lines().find_map(|line| archive_of_line(line, codename))
}

/// `None` for a comment, another type, another suite, or a line without `main`.
fn archive_of_line(line: &str, codename: &str) -> Option<Archive> {
    let rest = line.split('#').next()?.trim().strip_prefix("deb ")?.trim_start();
    let (options, rest) = match rest.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => ("", rest),
    };
    let mut words = rest.split_whitespace();
    let (uris, suite) = (words.next()?.to_owned(), words.next()?);
    let signed_by = options.split_whitespace().find_map(|option| option.strip_prefix("signed-by="));
    (suite == codename && words.any(|component| component == "main"))
        .then(|| Archive { uris, signed_by: signed_by.map(str::to_owned) })
}

/// The same from the text of a deb822 `.sources` file.
pub(crate) fn in_deb822(text: &str, codename: &str) -> Option<Archive> {
    let text: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    text.split(|line| line.trim().is_empty()).find_map(|stanza| archive_of_stanza(stanza, codename))
}

/// `None` for a stanza that is disabled or has something else.
fn archive_of_stanza(lines: &[&str], codename: &str) -> Option<Archive> {
    let names = |field: &str, word: &str| {
        value(lines, field).is_some_and(|value| value.split_whitespace().any(|found| found == word))
    };
    let enabled = value(lines, "Enabled").is_none_or(|value| value != "no");
    (enabled && names("Types", "deb") && names("Suites", codename) && names("Components", "main"))
        .then_some(())?;
    Some(Archive { uris: value(lines, "URIs")?, signed_by: value(lines, "Signed-By") })
}

/// A field's value, with its continuation lines.
fn value(lines: &[&str], field: &str) -> Option<String> {
    let is_field = |line: &&str| {
        line.split_once(':')
            .is_some_and(|(name, _)| !line.starts_with(' ') && name.eq_ignore_ascii_case(field))
    };
    let at = lines.iter().position(is_field)?;
    let (_, first) = lines[at].split_once(':')?;
    let more = lines[at + 1..].iter().take_while(|line| line.starts_with([' ', '\t']));
    Some(std::iter::once(first.trim()).chain(more.copied()).collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(uris: &str, signed_by: Option<&str>) -> Option<Archive> {
        Some(Archive { uris: uris.to_owned(), signed_by: signed_by.map(str::to_owned) })
    }

    #[test]
    fn one_line_sources() {
        let cases = [
            ("deb http://m/debian bookworm main contrib", archive("http://m/debian", None)),
            (
                "deb [arch=amd64 signed-by=/k.gpg] http://m bookworm main # ours",
                archive("http://m", Some("/k.gpg")),
            ),
            ("# deb http://m bookworm main", None),
            ("deb-src http://m bookworm main", None),
            ("deb http://other cloud-bookworm main", None),
            ("deb http://m bookworm contrib", None),
            ("deb http://m bookworm-updates main\ndeb  http://n bookworm main", archive("http://n", None)),
            ("deb [broken", None),
        ];
        for (text, expected) in cases {
            assert_eq!(in_list(text, "bookworm"), expected, "{text}");
        }
    }

    #[test]
    fn deb822_sources() {
        let body =
            "Types: deb\n# a comment\nURIs: http://m\nSuites: bookworm bookworm-updates\nComponents: main\n";
        let cases = [
            (body.to_owned(), archive("http://m", None)),
            (format!("{body}Signed-By: /k.gpg\n"), archive("http://m", Some("/k.gpg"))),
            (format!("{body}Signed-By:\n -----BEGIN\n .\n"), archive("http://m", Some("\n -----BEGIN\n ."))),
            (format!("{body}Enabled: no\n"), None),
            (body.replace("bookworm ", "trixie "), None),
            (body.replace("main", "contrib"), None),
            (body.replace("Types: deb", "Types: deb-src"), None),
            (format!("Types: deb\nSuites: x\n\n{body}"), archive("http://m", None)),
        ];
        for (text, expected) in cases {
            assert_eq!(in_deb822(&text, "bookworm"), expected, "{text}");
        }
    }

    #[test]
    fn a_stanza_reads_back() {
        let original = archive("http://m", Some("\n -----BEGIN\n ."));
        let stanza = original.as_ref().map(|archive| archive.stanza("forky")).unwrap();
        assert_eq!(in_deb822(&stanza, "forky"), original);
    }
}
