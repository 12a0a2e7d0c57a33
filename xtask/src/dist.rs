//! What a release consists of: the stripped binary, and its debug information beside it.
//!
//! The debug information is for `gdb` and for traces of panics from users' machines; the two files
//! belong together by their build.

use std::process::Command;

use anyhow::{Context, Result};

use crate::{
    project, setup,
    shell::{run, say},
};

/// `cargo xtask dist`: builds `target/dist/files/marram` and `marram.debug` beside it, which debuggers find by the link in the binary.
pub(crate) fn build() -> Result<()> {
    setup::ensure(setup::BUILD)?;
    run(project::cargo("build").args(["--profile", "dist", "--locked", "--package", "marram"]))?;
    let built = project::target().join("dist/marram");
    let folder = project::target().join("dist/files");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let objcopy = |arguments: &[&str], output: &str| {
        let mut command = Command::new("objcopy");
        run(command.current_dir(&folder).args(arguments).arg(&built).arg(output))
    };
    objcopy(&["--only-keep-debug"], "marram.debug")?;
    objcopy(&["--strip-all", "--add-gnu-debuglink=marram.debug"], "marram")?;
    let size = std::fs::metadata(folder.join("marram"))?.len() >> 20;
    say(format!(
        "{}: {size} MiB, and its debug information in marram.debug",
        folder.join("marram").display()
    ));
    Ok(())
}
