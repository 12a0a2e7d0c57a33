//! Licences and sources of dependencies. Uses `cargo deny` if it is installed; otherwise does the checks that need no
//! database, with `cargo metadata`, and states what was not checked.
//!
//! `cargo deny` takes minutes to compile and needs a database from the network, so the project does
//! not depend on it. The part that protects users, licences and sources, is checked without it in a
//! second; the rest is named as not checked, never passed over in silence.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};

use crate::{
    metadata::{Metadata, Package},
    project,
    shell::{installed, run, say},
};

/// Repository of the advisories; no package registry has them.
const DATABASE: &str = "github.com/RustSec/advisory-db";

/// Checks every workspace, each with its own lockfile.
pub(crate) fn check() -> Result<()> {
    let manifests = project::manifests();
    if installed("cargo-deny") {
        return manifests.into_iter().try_for_each(check_all);
    }
    let allowed =
        allowed(&project::read("deny.toml".as_ref())?).context("deny.toml has no `allow = [..]`")?;
    let mut wrong = BTreeSet::new();
    let mut count = 0;
    for manifest in manifests {
        let packages = Metadata::load(manifest)?.packages;
        count += packages.len();
        wrong.extend(packages.iter().filter_map(|package| complaint(package, &allowed)));
    }
    if !wrong.is_empty() {
        let list: Vec<_> = wrong.iter().map(String::as_str).collect();
        bail!("{} packages must not be used:\n  {}", wrong.len(), list.join("\n  "));
    }
    say(format!("{count} packages have licences and sources that deny.toml allows"));
    say(unchecked());
    Ok(())
}

/// Checks that need no network come first, so that their result does not depend on it. `cargo deny`
/// for one workspace, in two calls.
fn check_all(manifest: &str) -> Result<()> {
    let deny = |what: &[&str]| {
        run(project::cargo("deny").args(["--locked", "--manifest-path", manifest, "check"]).args(what))
    };
    deny(&["bans", "licenses", "sources"])?;
    deny(&["advisories"]).with_context(|| {
        format!(
            "advisories of {manifest}: update the dependencies that are named above; if none is, {DATABASE} could \
             not be fetched: run this on a machine that can fetch it, or clone it there and copy it to `db-path` of \
             deny.toml's [advisories]"
        )
    })
}

/// What a run without `cargo deny` does not check, and how to check it.
fn unchecked() -> String {
    format!(
        "NOT CHECKED: advisories (known vulnerabilities), yanked and duplicate versions. They require `cargo install \
         --locked cargo-deny` and a machine that can fetch {DATABASE}; there, `cargo xtask deny` checks them too."
    )
}

/// The licences in the list `allow = [ ... ]`.
///
/// Not a parser of TOML: comments are removed, and the list is found by its words. `None` if
/// deny.toml has another shape.
fn allowed(text: &str) -> Option<Vec<String>> {
    let text: String = text.lines().map(|line| line.split('#').next().unwrap_or_default()).collect();
    let (_, licenses) = text.split_once("[licenses]")?;
    let (_, list) = licenses.split_once("allow = [")?;
    let (list, _) = list.split_once(']')?;
    Some(list.split('"').skip(1).step_by(2).map(str::to_owned).collect())
}

/// What is wrong with a package; `None` if nothing is. Packages of this repository have no source
/// and need a licence all the same.
fn complaint(package: &Package, allowed: &[String]) -> Option<String> {
    let name = format!("{} {}", package.name, package.version);
    if package.source.as_ref().is_some_and(|source| !source.starts_with("registry+")) {
        return Some(format!("{name} does not come from the registry"));
    }
    match &package.license {
        None => Some(format!("{name} states no licence")),
        Some(license) if !Expression::new(license).permitted(allowed) => Some(format!("{name} is {license}")),
        Some(_) => None,
    }
}

/// An SPDX expression, read from left to right: `AND` binds tighter than `OR`.
/// ```text
/// either = both { ("OR" | "/") both }
/// both   = one { "AND" one }
/// one    = "(" either ")" | LICENCE [ "WITH" EXCEPTION ]
/// ```
struct Expression<'a> {
    words: Vec<&'a str>,
    at: usize,
}

impl<'a> Expression<'a> {
    /// Splits into words, parentheses and slashes.
    fn new(text: &'a str) -> Self {
        // Before SPDX, a slash meant `OR`.
        let mut words = Vec::new();
        for word in text.split_inclusive(['(', ')', '/', ' ']) {
            let cut = word.trim_end_matches(['(', ')', '/', ' ']);
            words.extend([cut, word[cut.len()..].trim()].into_iter().filter(|word| !word.is_empty()));
        }
        Self { words, at: 0 }
    }

    /// Whether the list allows one of its alternatives. An expression that does not parse is not permitted.
    fn permitted(mut self, allowed: &[String]) -> bool {
        self.either(allowed) == Some(true) && self.at == self.words.len()
    }

    /// Every alternative is read, also behind one that is allowed, so that a mistake in the
    /// expression is found.
    fn either(&mut self, allowed: &[String]) -> Option<bool> {
        let mut verdict = self.both(allowed)?;
        while self.take("OR") || self.take("/") {
            verdict |= self.both(allowed)?;
        }
        Some(verdict)
    }

    /// All of them must be allowed.
    fn both(&mut self, allowed: &[String]) -> Option<bool> {
        let mut verdict = self.one(allowed)?;
        while self.take("AND") {
            verdict &= self.one(allowed)?;
        }
        Some(verdict)
    }

    /// A licence with an exception is another licence: the list must have both words.
    fn one(&mut self, allowed: &[String]) -> Option<bool> {
        if self.take("(") {
            let verdict = self.either(allowed)?;
            return self.take(")").then_some(verdict);
        }
        let mut license = (*self.words.get(self.at)?).to_owned();
        self.at += 1;
        if self.take("WITH") {
            license = format!("{license} WITH {}", self.words.get(self.at)?);
            self.at += 1;
        }
        Some(allowed.contains(&license))
    }

    /// Takes the next word if it is this one.
    fn take(&mut self, word: &str) -> bool {
        let found = self.words.get(self.at) == Some(&word);
        self.at += usize::from(found);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_decided_by_the_list() {
        let allowed =
            ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "Unicode-3.0"].map(str::to_owned);
        let cases = [
            ("MIT", true),
            ("GPL-3.0", false),
            ("MIT OR GPL-3.0", true),
            ("MIT/Apache-2.0", true),
            ("GPL-2.0/GPL-3.0", false),
            ("MIT AND GPL-3.0", false),
            ("(MIT OR GPL-3.0) AND Unicode-3.0", true),
            ("(MIT OR Apache-2.0) AND BSD-3-Clause", false),
            ("GPL-3.0 OR MIT AND Unicode-3.0", true),
            ("Apache-2.0 WITH LLVM-exception OR BSD-3-Clause", true),
            ("GPL-2.0 WITH Classpath-exception", false),
            ("MIT MIT", false),
            ("(MIT", false),
            ("", false),
        ];
        for (license, expected) in cases {
            assert_eq!(Expression::new(license).permitted(&allowed), expected, "{license}");
        }
    }

    #[test]
    fn the_list_is_found_in_the_file() {
        let text = "[graph]\nall = true\n[licenses]\nallow = [\n  \"MIT\", # free\n  # \"GPL\"\n  \"ISC\",\n]\n[bans]\n";
        assert_eq!(allowed(text).unwrap(), ["MIT", "ISC"]);
        assert_eq!(allowed("[bans]\n"), None);
    }

    #[test]
    fn a_package_without_a_permitted_licence_is_named() {
        let allowed = allowed(&project::read("deny.toml".as_ref()).unwrap()).unwrap();
        for (license, refused) in [
            (None, true),
            (Some("GPL-3.0-only"), true),
            (Some("AGPL-3.0-or-later"), true),
            (Some("MIT AND LGPL-2.1-only"), true),
            (Some("MIT OR LGPL-2.1-only"), false),
            (Some("Apache-2.0"), false),
        ] {
            let name = "some-package".to_owned();
            let package = Package { name, license: license.map(str::to_owned), ..Package::default() };
            let complaint = complaint(&package, &allowed);
            assert_eq!(complaint.is_some(), refused, "{license:?}");
            assert!(complaint.is_none_or(|text| text.contains("some-package")), "{license:?}");
        }
    }

    #[test]
    fn what_is_not_checked_is_said_with_what_to_do() {
        for words in ["NOT CHECKED", "advisories", "cargo install", DATABASE, "cargo xtask deny"] {
            assert!(unchecked().contains(words), "{words}");
        }
    }

    #[test]
    fn other_sources_are_refused() {
        let package = |source: Option<&str>| Package {
            license: Some("MIT".to_owned()),
            source: source.map(str::to_owned),
            ..Package::default()
        };
        let allowed = ["MIT".to_owned()];
        for (source, refused) in [(None, false), (Some("registry+x"), false), (Some("git+x"), true)] {
            assert_eq!(complaint(&package(source), &allowed).is_some(), refused, "{source:?}");
        }
    }
}
