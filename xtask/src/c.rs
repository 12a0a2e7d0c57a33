//! Cells in C: `target/cells/c/NAME.wasm`, one for each folder of `sdk/c`. Whoever has no C compiler for Wasm does without.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{
    project,
    shell::{capture, run, say},
};

/// A compiler and what to tell it.
struct Compiler {
    program: PathBuf,
    arguments: Vec<String>,
}

impl Compiler {
    /// That of a WASI SDK, else clang with Debian's wasi-libc, else zig.
    fn find() -> Option<Self> {
        let clang = |program: PathBuf, sysroot: &str| Self {
            program,
            arguments: vec!["--target=wasm32-wasi".into(), format!("--sysroot={sysroot}")],
        };
        if let Some(sdk) = env::var_os("WASI_SDK_PATH").map(PathBuf::from) {
            let sysroot = sdk.join("share/wasi-sysroot");
            return Some(clang(sdk.join("bin/clang"), sysroot.to_str()?));
        }
        let works = |program: &str| capture(Command::new(program).arg("--version")).is_ok();
        if Path::new("/usr/include/wasm32-wasi").is_dir() && works("clang") && works("wasm-ld") {
            return Some(clang("clang".into(), "/usr"));
        }
        let zig = || Self {
            program: "zig".into(),
            arguments: ["cc", "-target", "wasm32-wasi"].map(String::from).to_vec(),
        };
        capture(Command::new("zig").arg("version")).is_ok().then(zig)
    }
}

/// Builds what is not newer than its source.
pub(crate) fn build() -> Result<()> {
    let Some(compiler) = Compiler::find() else {
        say("cells in C are not built: there is no clang with wasi-libc, no WASI SDK and no zig");
        return Ok(());
    };
    let modules = project::cell_modules().join("c");
    fs::create_dir_all(&modules).with_context(|| format!("cannot create {}", modules.display()))?;
    let header = Path::new("sdk/c/marram.h");
    for source in
        project::files(|path| path.starts_with("sdk/c") && path.extension().is_some_and(|it| it == "c"))?
    {
        let name =
            source.file_stem().and_then(|name| name.to_str()).context("a C file has no name in UTF-8")?;
        let to = modules.join(format!("{name}.wasm"));
        let changed = |path: &Path| fs::metadata(project::root().join(path)).and_then(|meta| meta.modified());
        let newest = changed(&source)?.max(changed(header)?);
        if fs::metadata(&to).and_then(|meta| meta.modified()).is_ok_and(|built| built > newest) {
            continue;
        }
        let mut command = Command::new(&compiler.program);
        command.args(&compiler.arguments).args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"]);
        command.args(["-mexec-model=reactor", "-Isdk/c", "-o"]).arg(&to).arg(&source);
        run(command.current_dir(project::root()))?;
    }
    Ok(())
}
