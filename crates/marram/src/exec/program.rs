//! Whether a program will load the library: it must have a dynamic loader, of this machine's kind, that honours the variable.
//!
//! ```text
//! #!interpreter ─▶ check that one instead (up to 4)
//! ELF ─┬─ other class or machine ─▶ refuse
//!      ├─ no PT_INTERP (static) ──▶ refuse: no loader, system calls of its own
//!      ├─ PT_NOTE of Go ──────────▶ refuse: connects by system calls, past the C library
//!      └─ else ───────────────────▶ fine
//! ```
//!
//! Only a check to warn in time: what it lets pass may still avoid the library, for example a
//! program that a script starts.

use anyhow::{Context, bail};
use object::{
    Endianness, ReadCache, elf,
    read::elf::{FileHeader, ProgramHeader},
};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Most scripts that run one another, as in the kernel.
const SCRIPTS_MAX: usize = 4;
/// The part of a script's first line that the kernel reads.
const LINE_BYTES_MAX: usize = 256;

/// Finds a program as a shell does.
pub(super) fn find(program: &OsStr) -> anyhow::Result<PathBuf> {
    let is_program =
        |path: &Path| path.metadata().is_ok_and(|meta| meta.is_file() && meta.mode() & 0o111 != 0);
    if program.as_bytes().contains(&b'/') {
        let path = PathBuf::from(program);
        return match path.metadata() {
            Err(error) => Err(error).with_context(|| format!("{} cannot be started", path.display())),
            Ok(_) if is_program(&path) => Ok(path),
            Ok(_) => {
                bail!("{} cannot be started: it is not executable; chmod +x makes it so", path.display())
            }
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|directory| directory.join(program));
    places.find(|path| is_program(path)).with_context(|| {
        format!("there is no program `{}` on PATH; give its path if it is elsewhere", program.display())
    })
}

/// Refuses a program into which the loader would not load the library.
///
/// # Errors
/// With what to do instead. A file that cannot be read passes: the kernel decides.
pub(super) fn check(path: &Path) -> anyhow::Result<()> {
    let mut path = path.to_owned();
    for _ in 0..SCRIPTS_MAX {
        privileges(&path)?;
        match kind(&path)? {
            Kind::Script(interpreter) => path = interpreter,
            Kind::Program => return Ok(()),
        }
    }
    bail!("{}: too many scripts that run each other; start the last one's program", path.display())
}

/// The loader ignores the variable for a program that gains another user's rights.
fn privileges(path: &Path) -> anyhow::Result<()> {
    let meta = path.metadata().with_context(|| format!("{} cannot be read", path.display()))?;
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let gains = |bit, id, own| meta.mode() & bit != 0 && id != own;
    if gains(0o4000, meta.uid(), user) || gains(0o2000, meta.gid(), group) {
        bail!(
            "{} is set-user-ID or set-group-ID, so it does not load Marram's library: run it as that user, or \
             redirect in the kernel (docs/exec.md)",
            path.display()
        );
    }
    Ok(())
}

enum Kind {
    /// A program that loads the library.
    Program,
    /// A script that this program runs.
    Script(PathBuf),
}

fn kind(path: &Path) -> anyhow::Result<Kind> {
    let name = path.display();
    let mut head = Vec::new();
    let file = File::open(path);
    // A file that is executable but not readable is left to the kernel.
    let Ok(file) = file else { return Ok(Kind::Program) };
    (&file)
        .take(LINE_BYTES_MAX as u64)
        .read_to_end(&mut head)
        .with_context(|| format!("{name} cannot be read"))?;
    if let Some(line) = head.strip_prefix(b"#!") {
        return script(line).map(Kind::Script).with_context(|| format!("{name} names no interpreter"));
    }
    if !head.starts_with(b"\x7fELF") {
        bail!("{name} is neither a program nor a script with #! on its first line; start its interpreter");
    }
    loadable(&file).with_context(|| format!("{name} cannot be redirected"))?;
    Ok(Kind::Program)
}

/// The program that runs a script with this first line; for `env`, the program that `env` runs.
fn script(line: &[u8]) -> Option<PathBuf> {
    let line = line.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
    let program = Path::new(OsStr::from_bytes(words.next()?));
    if program.file_name() == Some(OsStr::new("env"))
        && let Some(word) = words.find(|word| *word != b"-S" && !word.contains(&b'='))
        && !word.starts_with(b"-")
    {
        return find(OsStr::from_bytes(word)).ok();
    }
    // With other arguments, `env` itself loads the library, and so does the program that it starts, if that can.
    Some(program.to_owned())
}

/// This machine's kind of processor, as ELF names it.
const MACHINE: u16 = if cfg!(target_arch = "x86_64") { elf::EM_X86_64 } else { elf::EM_AARCH64 };
/// The type of Go's build note.
const GO_BUILD: u32 = 4;

fn loadable(file: &File) -> anyhow::Result<()> {
    let instead =
        "redirect in the kernel instead (docs/exec.md), or configure it to connect to the agent's address";
    let data = ReadCache::new(file);
    let header = elf::FileHeader64::<Endianness>::parse(&data).ok();
    let known = header.and_then(|header| Some((header, header.endian().ok()?)));
    let Some((header, endian)) = known.filter(|(header, endian)| header.e_machine(*endian) == MACHINE) else {
        bail!("it is for another kind of processor or for 32 bits; {instead}");
    };
    let mut loader = false;
    for segment in header.program_headers(endian, &data).context("it is truncated")? {
        loader |= segment.p_type(endian) == elf::PT_INTERP;
        let Some(mut notes) = segment.notes(endian, &data).context("it is truncated")? else { continue };
        // What does not have the form of a note is none of Go's.
        while let Ok(Some(note)) = notes.next() {
            if note.name() == b"Go" && note.n_type(endian) == GO_BUILD {
                bail!("it is written in Go, and calls the kernel directly; {instead}");
            }
        }
    }
    match loader {
        true => Ok(()),
        false => {
            bail!("it is statically linked, so it loads no library and calls the kernel directly; {instead}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn file(directory: &Path, name: &str, contents: &[u8], mode: u32) -> PathBuf {
        let path = directory.join(name);
        fs::write(&path, contents).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn programs_and_scripts_with_a_loader_pass_and_what_has_none_is_explained() {
        let directory = std::env::temp_dir().join(format!("marram-program-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        let make = |name: &str, contents: &[u8]| file(&directory, name, contents, 0o755);

        for (name, contents) in
            [("itself", &own[..]), ("sh", b"#! /bin/sh -e\n"), ("env", b"#!/usr/bin/env -S A=1 sh\n")]
        {
            assert!(check(&make(name, contents)).is_ok(), "{name}");
        }
        // The same program without its loader, and for another processor.
        let headers = usize::try_from(u64::from_le_bytes(own[32..40].try_into().unwrap())).unwrap();
        let mut bare = own.clone();
        for header in bare[headers..].chunks_exact_mut(56).take(usize::from(own[56])) {
            if header[..4] == [3, 0, 0, 0] {
                header[0] = 0;
            }
        }
        // The same with Go's note in the place of another.
        let mut go = own.clone();
        let note = own[headers..].chunks_exact(56).find(|header| header[..4] == [4, 0, 0, 0]).unwrap();
        let note = usize::try_from(u64::from_le_bytes(note[8..16].try_into().unwrap())).unwrap();
        go[note..note + 4].copy_from_slice(&[4, 0, 0, 0]);
        go[note + 8..note + 16].copy_from_slice(b"\x04\0\0\0Go\0\0");
        let mut other = own.clone();
        other[18] = 8;
        for (name, contents, words) in [
            ("static", &bare[..], "statically linked"),
            ("go", &go[..], "written in Go"),
            ("other", &other[..], "another kind of processor"),
            ("short", &own[..40], "another kind of processor"),
            ("cut", &own[..64], "truncated"),
            ("text", b"hello", "neither a program"),
            ("empty", b"", "neither a program"),
            ("nameless", b"#! \n", "names no interpreter"),
        ] {
            let contents = if name == "short" { &contents[..17] } else { contents };
            let said = format!("{:#}", check(&make(name, contents)).unwrap_err());
            assert!(said.contains(words) && said.contains(name), "{name}: {said}");
        }
        let itself = directory.join("loop");
        let text = format!("#!{}\n", itself.display());
        file(&directory, "loop", text.as_bytes(), 0o755);
        assert!(check(&itself).unwrap_err().to_string().contains("scripts that run each other"));
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn programs_are_found_as_a_shell_finds_them() {
        assert!(find(OsStr::new("sh")).unwrap().ends_with("sh"));
        assert!(find(OsStr::new("no-such-program-1")).unwrap_err().to_string().contains("PATH"));
        assert!(format!("{:#}", find(OsStr::new("./no/such")).unwrap_err()).contains("./no/such"));
        assert!(find(OsStr::new("/etc/passwd")).unwrap_err().to_string().contains("not executable"));
    }
}
