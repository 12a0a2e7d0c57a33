//! Cells in C: `target/cells/c/NAME.wasm`, one for each folder of `sdk/c`. Skipped without a C compiler for Wasm.
//!
//! Guests in C need no runtime of ours beyond one header, so any compiler that targets WASI can
//! build them. Three are tried, and the tests run with what two of them make, since compilers
//! differ in what they import and in how they call constructors.

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

/// zig from PyPI, for this machine: a fixed version, so that the tested version is the installed one.
const ZIG_PACKAGE: &str = "ziglang==0.17.1";

/// A compiler and its arguments. Its path or name, and what makes it build for WASI.
struct Compiler {
    program: PathBuf,
    arguments: Vec<String>,
}

impl Compiler {
    /// The compiler of a WASI SDK, else clang with Debian's wasi-libc, else zig.
    ///
    /// `WASI_SDK_PATH` wins without a check: it was set on purpose, and an error should name it.
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
        Self::zig()
    }

    /// zig from the path, else the one that [`ensure_zig`] has installed.
    fn zig() -> Option<Self> {
        let installed = zig_folder().join("ziglang/zig");
        let works = |program: &PathBuf| capture(Command::new(program).arg("version")).is_ok();
        let program = ["zig".into(), installed].into_iter().find(works)?;
        Some(Self { program, arguments: ["cc", "-target", "wasm32-wasi"].map(String::from).to_vec() })
    }
}

/// Builds what is out of date, with the available compiler.
pub(crate) fn build() -> Result<()> {
    let Some(compiler) = Compiler::find() else {
        say("cells in C are not built: there is no clang with wasi-libc, no WASI SDK and no zig");
        return Ok(());
    };
    build_with(&compiler, "c")
}

/// The same with zig, to `target/cells/zig`, for the tests that compare compilers; does nothing without zig.
pub(crate) fn build_with_zig() -> Result<()> {
    match Compiler::zig() {
        Some(zig) => build_with(&zig, "zig"),
        None => Ok(()),
    }
}

/// Installs zig from PyPI below `target/`, unless it is there.
///
/// A package of PyPI, because Debian has none; it brings its own libc and linker.
pub(crate) fn ensure_zig() -> Result<()> {
    if Compiler::zig().is_some() {
        return Ok(());
    }
    let folder = zig_folder();
    say(format!("installing zig: pip3 install --target {} {ZIG_PACKAGE}", folder.display()));
    let mut pip = Command::new("pip3");
    pip.args(["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target"]);
    run(pip.arg(&folder).arg(ZIG_PACKAGE))
}

/// Folder in which zig is installed if it is not on the path.
fn zig_folder() -> PathBuf {
    project::target().join("tools/zig")
}

/// A module is out of date if it is older than its source or the header. All warnings are errors.
fn build_with(compiler: &Compiler, folder: &str) -> Result<()> {
    let modules = project::cell_modules().join(folder);
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
