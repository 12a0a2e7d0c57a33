//! A cell's project on a developer's machine: created by `marram new`, run by `marram dev`.
//!
//! A project is plain files that need no `marram` to build: a manifest, a source file, and the SDK
//! as a copy. Templates are in the binary, so `marram new` works without a network.

pub mod dev;
mod watch;

use anyhow::{Context, bail};
use clap::ValueEnum;
use marram_config::units::Name;
use std::fs;
use std::path::Path;

/// The language of a cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Language {
    /// Rust, with `marram-sdk`.
    Rust,
    /// C, with `marram.h`.
    C,
}

/// What a cell is at first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Template {
    /// Answers each line of a client with its number: each client has a cell of its own.
    Lines,
    /// A chat room with its page, in Rust: all clients share a cell.
    Room,
}

/// A file of a project: its path and content. `{{name}}` is the app's name, `{{file}}` the name of files that belong to it.
/// Placeholders are replaced in paths too.
type ProjectFile = (&'static str, &'static str);

macro_rules! sdk {
    ($($name:literal),*) => {
        [$((concat!("marram-sdk/", $name), include_str!(concat!("../../../../sdk/rust/", $name)))),*]
    };
}

/// The SDK is copied into the project: it has no dependencies, and the project always has the right version.
const RUST_SDK: [ProjectFile; 7] = sdk![
    "Cargo.toml",
    "src/lib.rs",
    "src/context.rs",
    "src/double.rs",
    "src/export.rs",
    "src/hash.rs",
    "src/rim.rs"
];

const CARGO: ProjectFile = ("Cargo.toml", include_str!("templates/rust/Cargo.toml.txt"));

const RUST: [ProjectFile; 5] = [
    CARGO,
    ("src/lib.rs", include_str!("templates/rust/lib.rs.txt")),
    ("marram.toml", include_str!("templates/rust/marram.toml.txt")),
    ("README.md", include_str!("templates/rust/README.md.txt")),
    (".gitignore", "/target\n"),
];

const C: [ProjectFile; 5] = [
    ("{{file}}.c", include_str!("templates/c/cell.c.txt")),
    ("Makefile", include_str!("templates/c/Makefile.txt")),
    ("marram.toml", include_str!("templates/c/marram.toml.txt")),
    ("README.md", include_str!("templates/c/README.md.txt")),
    (".gitignore", "*.wasm\n"),
];

const C_SDK: [ProjectFile; 1] = [("marram.h", include_str!("../../../../sdk/c/marram.h"))];

macro_rules! room {
    ($($name:literal),*) => {
        [$((concat!("src/", $name), include_str!(concat!("../../../../cells/examples/room/src/", $name)))),*]
    };
}

/// The source of the example cell, as it is.
const ROOM_SOURCE: [ProjectFile; 6] =
    room!["lib.rs", "lines.rs", "member.rs", "page.rs", "room.html", "tests.rs"];

const ROOM: [ProjectFile; 4] = [
    CARGO,
    ("marram.toml", include_str!("templates/room/marram.toml.txt")),
    ("README.md", include_str!("templates/room/README.md.txt")),
    (".gitignore", "/target\n"),
];

/// Writes a project to a new directory.
///
/// # Errors
/// If the name or the template does not fit the language, or the directory is there already or cannot be written.
///
/// What was written before an error stays.
pub fn create(name: &Name, language: Language, template: Template, directory: &Path) -> anyhow::Result<()> {
    let Name(name) = name;
    let (own, copied): (&[ProjectFile], &[&[ProjectFile]]) = match (template, language) {
        (Template::Lines, Language::Rust) => (&RUST, &[&RUST_SDK]),
        (Template::Lines, Language::C) => (&C, &[&C_SDK]),
        (Template::Room, Language::Rust) => (&ROOM, &[&RUST_SDK, &ROOM_SOURCE]),
        (Template::Room, Language::C) => bail!("the template `room` is in Rust: leave out --lang"),
    };
    let starts_well = name.starts_with(|first: char| first.is_ascii_alphabetic());
    // Checked before anything is written, since cargo would refuse the project later.
    let is_crate = starts_well && !name.contains(|c: char| c == '.' || c.is_ascii_uppercase());
    if language == Language::Rust && !is_crate {
        bail!("`{name}` cannot name a crate: begin with a letter, and leave out dots and capitals");
    }
    if directory.exists() {
        bail!("{} exists already: choose another name, or --directory", directory.display());
    }
    let file = name.replace('-', "_");
    let fill = |text: &str| text.replace("{{name}}", name).replace("{{file}}", &file);
    let filled = own.iter().map(|(path, text)| (fill(path), fill(text)));
    let as_it_is = copied.concat().into_iter().map(|(path, text)| (path.to_owned(), text.to_owned()));
    for (path, text) in filled.chain(as_it_is) {
        let path = directory.join(path);
        let parent = path.parent().unwrap_or(directory);
        fs::create_dir_all(parent).with_context(|| format!("{} cannot be created", parent.display()))?;
        fs::write(&path, text).with_context(|| format!("{} cannot be written", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use marram_config::manifest::Manifest;
    use marram_config::source::Source;

    #[test]
    fn a_project_has_everything_and_its_own_name_in_it() {
        let base = std::env::temp_dir().join(format!("marram-new-{}", std::process::id()));
        for (language, template, code) in [
            (Language::Rust, Template::Lines, "src/lib.rs"),
            (Language::C, Template::Lines, "my_cell.c"),
            (Language::Rust, Template::Room, "src/room.html"),
        ] {
            let directory = base.join(code.replace('/', "-"));
            create(&Name("my-cell".into()), language, template, &directory).unwrap();
            assert!(directory.join(code).is_file());
            let manifest = Source::read(&directory.join("marram.toml")).unwrap();
            assert_eq!(Manifest::parse(&manifest).unwrap().name, "my-cell");
            for entry in fs::read_dir(&directory).unwrap().flatten().filter(|entry| entry.path().is_file()) {
                let text = fs::read_to_string(entry.path()).unwrap();
                assert!(!text.contains("{{"), "{}: {text}", entry.path().display());
            }
            let again = create(&Name("my-cell".into()), language, template, &directory).unwrap_err();
            assert!(again.to_string().contains("exists already"));
        }
        for bad in ["1st", "a.b", "A"] {
            let bad = Name(bad.into());
            assert!(create(&bad, Language::Rust, Template::Lines, &base.join("never")).is_err());
        }
        let in_c = create(&Name("a".into()), Language::C, Template::Room, &base.join("never")).unwrap_err();
        assert!(in_c.to_string().contains("in Rust"));
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn the_room_has_all_files_of_the_example() {
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cells/examples/room/src");
        let files =
            fs::read_dir(example).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut files: Vec<String> = files.map(|name| format!("src/{name}")).collect();
        files.sort_unstable();
        assert_eq!(files, ROOM_SOURCE.map(|(path, _)| path));
    }
}
