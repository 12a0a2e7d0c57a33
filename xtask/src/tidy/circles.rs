//! No circles between the modules of a crate. Modules that need each other are read, tested and moved only together.
//!
//! Each module is checked with its children: every child counts as one place, with all that is below it. A child may use
//! what its parent's own file defines, and the files directly in one folder may use each other. Below the crate's root each
//! file is a place of its own.
//!
//! ```text
//! crate root            arrows between children of one folder:
//!   a/mod.rs                a -> b   because a/x.rs names something of b/y.rs
//!   a/x.rs                  b -> a   because b.rs names something of a/mod.rs
//!   b/y.rs                  a and b are a circle, with the names that tie them
//! ```
//! A circle costs: neither module can be understood or moved without the other. There are no
//! exceptions: what both need moves into a module below both.

mod modules;
mod source;

use std::collections::{BTreeMap, BTreeSet};

use modules::{Module, Modules};

/// The name of a folder's own file among its children.
const ITSELF: &str = "(itself)";

/// The folders of sources that are checked; a crate each.
fn folder_of(path: &str) -> Option<&str> {
    let is_ours =
        path.starts_with("crates/") || path.starts_with("sdk/host/") || path.starts_with("xtask/src/");
    let end = path.find("/src/")? + "/src".len();
    is_ours.then(|| &path[..end])
}

/// A circle. All modules of it reach each other, so one message names them together.
#[derive(PartialEq, Eq, Debug)]
struct Circle {
    folder: String,
    places: BTreeSet<String>,
    /// What ties it. For the message: without the names nothing can be done about it.
    arrows: Vec<String>,
}

impl Circle {
    fn message(&self) -> String {
        let places = self.places.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        format!(
            "{}: a circle of {places}: move what both need into a module below both\n    {}",
            self.folder,
            self.arrows.join("\n    ")
        )
    }
}

/// What is wrong in all source files, given with their texts.
pub(super) fn check(files: &[(String, String)]) -> Vec<String> {
    find(files).iter().map(Circle::message).collect()
}

/// All circles.
fn find(files: &[(String, String)]) -> Vec<Circle> {
    let mut crates: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    for (path, text) in files {
        if let Some(folder) = folder_of(path) {
            crates.entry(folder).or_default().push((&path[folder.len() + 1..], text));
        }
    }
    let mut circles = Vec::new();
    for (folder, files) in crates {
        // Beside a library, the program's file is a crate of its own.
        let is_library = files.iter().any(|(name, _)| *name == "lib.rs");
        let files = files.into_iter().filter(|(name, _)| !(is_library && *name == "main.rs"));
        circles.extend(circles_of(folder, &Modules::read(files)));
    }
    circles
}

/// The arrows between the places of one folder, each with what it stands for. Of two children, or
/// of a child and the folder's own file.
type Level = BTreeMap<(String, String), Vec<String>>;

/// The circles of one crate.
///
/// An arrow counts at the lowest folder that has both modules. There it is between two children, or
/// between a child and the folder's own file. A child may use its parent, so these are left out.
fn circles_of(folder: &str, modules: &Modules) -> Vec<Circle> {
    let mut levels: BTreeMap<Module, Level> = BTreeMap::new();
    for ((from, to), names) in modules.arrows() {
        let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
        let is_parent = to.len() == common && from.len() == common + 1;
        if is_parent {
            continue;
        }
        let place = |module: &Module| module.get(common).cloned().unwrap_or_else(|| ITSELF.to_owned());
        let names = names.into_iter().collect::<Vec<_>>().join(", ");
        let arrow = format!("{} -> {}: {names}", shown(&from), shown(&to));
        levels
            .entry(from[..common].to_vec())
            .or_default()
            .entry((place(&from), place(&to)))
            .or_default()
            .push(arrow);
    }
    let mut circles = Vec::new();
    for (module, level) in levels {
        let is_folder = |place: &String| {
            place != ITSELF
                && modules.has_children(&[module.as_slice(), std::slice::from_ref(place)].concat())
        };
        for places in components(&level) {
            if module.is_empty() || places.iter().any(is_folder) {
                let is_inside = |(from, to): &(String, String)| places.contains(from) && places.contains(to);
                let arrows =
                    level.iter().filter(|(ends, _)| is_inside(ends)).flat_map(|(_, arrows)| arrows.clone());
                let folder =
                    [folder].into_iter().chain(module.iter().map(String::as_str)).collect::<Vec<_>>();
                circles.push(Circle { folder: folder.join("/"), arrows: arrows.collect(), places });
            }
        }
    }
    circles
}

/// A module's path for people.
fn shown(module: &Module) -> String {
    if module.is_empty() { "the crate's root".to_owned() } else { module.join("::") }
}

/// The sets of places that reach each other.
fn components(level: &Level) -> Vec<BTreeSet<String>> {
    let starts: BTreeSet<&String> = level.keys().map(|(from, _)| from).collect();
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        starts.into_iter().map(|start| (start, reachable(level, start))).collect();
    let mut found = BTreeSet::new();
    for (start, others) in &reached {
        let reaches_back = |other: &&&String| reached.get(*other).is_some_and(|back| back.contains(start));
        let component: BTreeSet<String> =
            others.iter().filter(reaches_back).map(|it| (*it).clone()).collect();
        if component.len() > 1 {
            found.insert(component);
        }
    }
    found.into_iter().collect()
}

/// By a walk along the arrows; the start is in it only if it is reached again.
fn reachable<'a>(level: &'a Level, start: &String) -> BTreeSet<&'a String> {
    let mut found = BTreeSet::new();
    let mut next = vec![start];
    while let Some(place) = next.pop() {
        for (_, to) in level.keys().filter(|(from, _)| from == place) {
            if found.insert(to) {
                next.push(to);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> =
            files.iter().map(|(name, text)| (format!("crates/x/src/{name}"), (*text).to_owned())).collect();
        let shown = |circle: Circle| format!("{} {:?}", circle.folder, circle.places);
        find(&files).into_iter().map(shown).collect()
    }

    /// A name, files, and the circles in them.
    type Case = (&'static str, &'static [(&'static str, &'static str)], &'static [&'static str]);

    const A_AND_B: &[&str] = &["crates/x/src {\"a\", \"b\"}"];

    const CASES: [Case; 12] = [
        ("none", &[("a.rs", "use crate::b::B;"), ("b.rs", "")], &[]),
        (
            "files of the root",
            &[("a.rs", "use crate::b::B;"), ("b.rs", "use super::a;\nfn c() { a::b() }")],
            A_AND_B,
        ),
        ("paths", &[("a.rs", "fn c() { crate::b::d() }"), ("b.rs", "fn d() { super::a::c() }")], A_AND_B),
        (
            "folders, though no file needs itself",
            &[("a/mod.rs", "mod c;\nuse crate::b::B;"), ("a/c.rs", ""), ("b.rs", "use crate::a::c::C;")],
            A_AND_B,
        ),
        (
            "a name that is handed on",
            &[
                ("a/mod.rs", "pub use c::C;"),
                ("a/c.rs", "use crate::b::B;"),
                ("b.rs", "use crate::d::D;"),
                ("d.rs", "pub use crate::a::C as D;"),
            ],
            A_AND_B,
        ),
        ("handing on is no use", &[("a.rs", "pub use crate::b::B;"), ("b.rs", "use crate::a::A;")], &[]),
        (
            "a folder's files",
            &[
                ("a/mod.rs", "use b::B;"),
                ("a/b.rs", "use super::A;\nuse super::c::C;"),
                ("a/c.rs", "use super::b::B;"),
            ],
            &[],
        ),
        ("a parent", &[("lib.rs", "fn f() { a::g() }"), ("a.rs", "use crate::f;")], &[]),
        (
            "a grandparent",
            &[("lib.rs", "fn f() { a::g() }"), ("a/mod.rs", ""), ("a/b.rs", "use crate::f;")],
            &["crates/x/src {\"(itself)\", \"a\"}"],
        ),
        (
            "a folder in a folder",
            &[
                ("a/mod.rs", ""),
                ("a/b.rs", "use super::c::d::D;"),
                ("a/c.rs", "use super::b::B;"),
                ("a/c/d.rs", ""),
            ],
            &["crates/x/src/a {\"b\", \"c\"}"],
        ),
        (
            "tests",
            &[
                ("a.rs", "use crate::b::B;"),
                ("b.rs", "#[cfg(test)]\nmod c;"),
                ("b/c.rs", "use crate::a::A;"),
                ("b/tests.rs", "use crate::a::A;"),
            ],
            &[],
        ),
        (
            "macros",
            &[
                ("a.rs", "macro_rules! m { () => {} }\nuse crate::b::B;"),
                ("b.rs", "fn f() { crate::m!() }"),
                ("lib.rs", ""),
            ],
            A_AND_B,
        ),
    ];

    #[test]
    fn circles_that_cross_a_folder_are_found() {
        for (name, files, expected) in CASES {
            assert_eq!(circles(files), expected, "{name}");
        }
    }

    #[test]
    fn a_message_names_the_modules_and_what_ties_them() {
        let file = |name: &str, text: &str| (format!("crates/x/src/{name}"), text.to_owned());
        let wrong = check(&[file("a.rs", "use crate::b::B;"), file("b.rs", "use crate::a::A;")]);
        let advice = "move what both need into a module below both";
        assert_eq!(
            wrong,
            [format!("crates/x/src: a circle of a, b: {advice}\n    a -> b: B\n    b -> a: A")]
        );
    }
}
