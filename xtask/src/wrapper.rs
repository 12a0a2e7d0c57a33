//! This program as the compiler's wrapper: cargo calls it instead of the compiler, and it adds flags.
//!
//! ```text
//! add(command, folder, flags):  RUSTC_WRAPPER = this program, its variables --> cargo
//! cargo --> this program --from_environment--> call: rustc ARGUMENTS, FLAGS if the crate is in the folder
//! ```
//! Unlike cargo's own `rustflags`, these are for the crates of one folder only, and they are not in the names of
//! artefacts: dependencies that one checkout has compiled serve another one.

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result};

/// If set, this program acts as the compiler's wrapper: the folder of the crates that are compiled with more flags.
const FOLDER: &str = "MARRAM_WRAPPER_FOLDER";
/// The flags, one on each line.
const FLAGS: &str = "MARRAM_WRAPPER_FLAGS";

/// A call by cargo.
pub(crate) struct Wrapper {
    folder: PathBuf,
    flags: Vec<String>,
}

/// Makes a cargo command compile the crates below a folder with more flags; build scripts without them.
///
/// # Errors
/// If the path of this program is unknown.
pub(crate) fn add(command: &mut Command, folder: &Path, flags: &[impl AsRef<str>]) -> Result<()> {
    let this = std::env::current_exe().context("cannot find this program")?;
    let flags: Vec<&str> = flags.iter().map(AsRef::as_ref).collect();
    command.env("RUSTC_WRAPPER", this).env(FOLDER, folder).env(FLAGS, flags.join("\n"));
    Ok(())
}

impl Wrapper {
    /// `None` if this program was called by a person.
    pub(crate) fn from_environment() -> Option<Self> {
        let folder = std::env::var_os(FOLDER)?.into();
        let flags = std::env::var(FLAGS).unwrap_or_default();
        Some(Self { folder, flags: flags.lines().map(str::to_owned).collect() })
    }

    /// Calls the compiler. The arguments are the compiler and its own.
    pub(crate) fn call(&self, arguments: &[String]) -> ExitCode {
        let Some((rustc, rest)) = arguments.split_first() else { return ExitCode::FAILURE };
        let mut command = Command::new(rustc);
        command.args(rest);
        let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
        if self.is_meant(manifest.as_deref(), rest) {
            command.args(&self.flags);
        }
        match command.status() {
            Ok(status) if status.success() => ExitCode::SUCCESS,
            Ok(_) => ExitCode::FAILURE,
            Err(error) => {
                eprintln!("cannot start {rustc}: {error}");
                ExitCode::FAILURE
            }
        }
    }

    /// Without the name of a crate, cargo asks the compiler about itself.
    fn is_meant(&self, manifest: Option<&Path>, arguments: &[String]) -> bool {
        let name = arguments.iter().skip_while(|word| *word != "--crate-name").nth(1);
        let is_script = |name: &String| name == "build_script_build";
        name.is_some_and(|name| !is_script(name)) && manifest.is_some_and(|it| it.starts_with(&self.folder))
    }
}

#[cfg(test)]
mod tests {
    use super::Wrapper;
    use std::path::Path;

    #[test]
    fn flags_are_for_crates_of_the_folder_and_for_no_build_script() {
        let wrapper = Wrapper { folder: "/a/marram".into(), flags: Vec::new() };
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let is_meant = |folder: &str, text: &str| wrapper.is_meant(Some(Path::new(folder)), &words(text));
        assert!(is_meant("/a/marram/crates/wire", "--crate-name marram_wire src/lib.rs"));
        assert!(!is_meant("/a/marram/crates/wire", "--crate-name build_script_build build.rs"));
        assert!(!is_meant("/a/marram-other", "--crate-name other src/lib.rs"));
        assert!(!is_meant("/a/marram", "-vV") && !wrapper.is_meant(None, &words("--crate-name a")));
    }
}
