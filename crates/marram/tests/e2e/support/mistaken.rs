//! The files for newcomers' mistakes: configurations, manifests, modules and programs, each with one mistake.

use super::{cells, modules, write_program};
use marram_cluster::TempDir;

/// A directory with all of them; `used` is an address that is in use.
pub(crate) fn place(used: &str) -> TempDir {
    let place = TempDir::new("mistakes").unwrap();
    let secret = "0123456789abcdef0123456789abcdef\n";
    place.write_private("secret", secret).unwrap();
    place.write_private("short", "abc\n").unwrap();
    let edge = |name: &str, from: &str, to: &str| {
        let text = format!(
            "state = \"state-{name}\"\nlisten = [\"127.0.0.1:0\"]\nsecret_file = \"secret\"\n[admin]\n\
             listen = \"127.0.0.1:0\"\n[limits]\nsessions = 1\n"
        );
        assert!(text.contains(from), "{from}");
        place.write(&format!("{name}.toml"), text.replace(from, to)).unwrap();
    };
    for (name, from, to) in [
        ("edge", "", ""),
        ("slip", "sessions", "sesions"),
        ("unit", "sessions = 1", "drain = \"5\""),
        ("empty", "secret_file = \"secret\"\n", ""),
        ("short", "\"secret\"", "\"short\""),
        ("nosecret", "\"secret\"", "\"gone\""),
        ("pem", "[limits]", "[security]\ncertificate = \"secret\"\nkey = \"secret\"\n[limits]"),
        ("open", "[admin]\nlisten = \"127.0.0.1:0\"", "[admin]\nlisten = \"0.0.0.0:0\""),
        ("port", "[admin]\nlisten = \"127.0.0.1:0\"", &format!("[admin]\nlisten = \"{used}\"")),
        ("state", "\"state-state\"", "\"secret\""),
        ("proc", "\"state-proc\"", "\"/proc/none\""),
    ] {
        edge(name, from, to);
    }
    let agent = "edges = [\"127.0.0.1:1\"]\n[[listen]]\naddress = \"127.0.0.1:0\"\napp = \"x\"\n";
    place.write("agent.toml", agent).unwrap();
    let recorder = "edges = [\"127.0.0.1:1\"]\nsecret_file = \"secret\"\n[limits]\nmemory = \"64MB\"\n";
    place.write("recorder.toml", recorder).unwrap();
    let whole = modules::cell(false);
    let counter = std::fs::read(cells().module("counter")).unwrap();
    for (name, manifest, module) in [
        ("counter", "", Some(&counter)),
        ("nameless", "", Some(&whole)),
        ("modul", "modul = \"cell.wasm\"\n", None),
        ("gone-module", "", None),
        ("dir-module", "module = \".\"\n", None),
        ("text", "", Some(&b"hello".to_vec())),
        ("component", "", Some(&b"\0asm\x0d\0\x01\0".to_vec())),
        ("nothing", "", Some(&modules::MAGIC.to_vec())),
        ("version", "", Some(&modules::importing("marram_v2", "send"))),
        ("foreign", "", Some(&modules::importing("env", "puts"))),
        ("traps", "", Some(&modules::cell(true))),
        ("quota", "[quotas]\nmemory = \"64KiB\"\n", Some(&counter)),
        ("planned", "protect = \"deadline\"\n", Some(&whole)),
        ("fast", "protect = \"epoch\"\n[epoch]\nevery = \"100us\"\n", Some(&whole)),
        ("server", "server = \"db\"\n", Some(&whole)),
        ("rust", "", None),
        ("c", "", None),
    ] {
        let own = if name == "nameless" { String::new() } else { format!("name = {name:?}\n") };
        let named = if manifest.contains("modul") { "" } else { "module = \"cell.wasm\"\n" };
        place.write(&format!("{name}/marram.toml"), format!("{own}{named}{manifest}")).unwrap();
        if let Some(module) = module {
            place.write(&format!("{name}/cell.wasm"), module).unwrap();
        }
    }
    ["rust/Cargo.toml", "c/Makefile"].iter().for_each(|file| drop(place.write(file, "").unwrap()));
    // Directories for `PATH`: with a shell and no compiler, and with a compiler that lacks the target.
    for (directory, programs) in
        [("nothing-there", &[][..]), ("no-target", &[("cargo", "exit 101"), ("rustc", "echo /nowhere")][..])]
    {
        place.write(&format!("{directory}/readme"), "").unwrap();
        std::os::unix::fs::symlink("/bin/sh", place.path().join(directory).join("sh")).unwrap();
        for (program, script) in programs {
            write_program(&place.path().join(directory).join(program), &format!("#!/bin/sh\n{script}\n"));
        }
    }
    place
}
