//! Newcomers' mistakes with commands and files, one in each row: what was done, and the expected message. Each message says what
//! happened, why, and what to do about it. Mistakes that need a running process are in `mistakes_running`; a full disk is in
//! `operate::full_disk`, a replay without its app in `develop::record`, and a port that requires rights beside `cannot_listen`,
//! since tests may run as root.

use crate::support::mistaken::place;
use std::net::TcpListener;
use std::process::Command;

/// The mistake, the command (`@` is a directory with the files of `place`, `%` an address that is in use), exit status, words in
/// the message.
type Row = (&'static str, &'static str, i32, &'static [&'static str]);

/// The same with an environment variable, after the mistake.
type Set = (&'static str, [&'static str; 2], &'static str, i32, &'static [&'static str]);

const COMMANDS: &[Row] = &[
    ("a slip in a command", "depoly app", 2, &["unrecognized subcommand 'depoly'", "similar", "'deploy'"]),
    ("a slip in a flag", "edge --confg @/edge.toml", 2, &["unexpected argument '--confg'", "'--config'"]),
    ("no command line at all", "agent client", 2, &["required", "--edge"]),
    (
        "an edge without its port",
        "agent client --edge edge-a --listen 127.0.0.1:1=x",
        2,
        &["an address such as", ":7400"],
    ),
    (
        "a name where an agent listens",
        "agent client --edge a:1 --listen localhost:1=x",
        2,
        &["in numbers", "127.0.0.1:8080"],
    ),
    (
        "a listener without its app",
        "agent client --edge a:1 --listen 127.0.0.1:1",
        2,
        &["there is no `=` in it"],
    ),
    ("a client's agent without a listener", "agent client --edge a:1", 2, &["--listen ADDRESS=APP"]),
    (
        "a server's agent without a server",
        "agent server --edge a:1 --listen 127.0.0.1:1=x",
        2,
        &["--server NAME=HOST:PORT"],
    ),
    (
        "the wrong side for a file",
        "agent server --config @/agent.toml",
        2,
        &["agent.toml", "`servers`", "a server's agent needs one"],
    ),
    (
        "an agent's file for an edge",
        "edge --config @/agent.toml",
        2,
        &["agent.toml:1", "unknown field `edges`", "`listen`"],
    ),
    (
        "no such configuration",
        "edge --config nowhere.toml",
        2,
        &["nowhere.toml: cannot be read", "which starts at /"],
    ),
    ("a directory instead of a file", "edge --config @", 2, &["Is a directory", "name a file in it"]),
    (
        "a slip in a field",
        "config check edge @/slip.toml",
        2,
        &["slip.toml:7: `limits.sesions`", "did you mean `sessions`?"],
    ),
    (
        "a time without its unit",
        "config check edge @/unit.toml",
        2,
        &["unit.toml:7: `limits.drain`", "\"5\"", "\"1.5s\""],
    ),
    (
        "a size in a unit of two meanings",
        "config check recorder @/recorder.toml",
        2,
        &["`limits.memory`", "64MB", "\"16MiB\""],
    ),
    (
        "no secret at all",
        "config check edge @/empty.toml",
        2,
        &["empty.toml", "missing field", "`marram config sample edge`"],
    ),
    (
        "a secret that can be guessed",
        "config check edge @/short.toml",
        2,
        &["short.toml:3: `secret_file`", "3 bytes", "openssl rand -hex 32"],
    ),
    (
        "a secret that is not there",
        "config check edge @/nosecret.toml",
        2,
        &["`secret_file`", "gone", "cannot be read", "check the path", "or create one", "openssl rand"],
    ),
    ("a certificate that is none", "config check edge @/pem.toml", 2, &["`security.certificate`", "PEM"]),
    (
        "an admin address for everybody",
        "config check edge @/open.toml",
        2,
        &["`admin.listen`", "not on loopback", "token_file"],
    ),
    (
        "the port is in use",
        "agent client --edge 127.0.0.1:1 --listen %=x",
        1,
        &["cannot listen on", "Address already in use", "stop the program"],
    ),
    (
        "the admin port is in use",
        "edge --config @/port.toml",
        1,
        &["for operators (`admin.listen`)", "Address already in use", "choose another port"],
    ),
    (
        "an address of another machine",
        "agent client --edge a:1 --listen 192.0.2.1:1=x",
        1,
        &["cannot listen on 192.0.2.1:1", "does not have that address", "ip address"],
    ),
    (
        "a state directory that is a file",
        "edge --config @/state.toml",
        1,
        &["secret", "cannot be written to", "another `state`"],
    ),
    (
        "a state directory that cannot be made",
        "edge --config @/proc.toml",
        1,
        &["/proc/none", "cannot be written to", "another `state`"],
    ),
    (
        "certificates that are none",
        "apps --edge https://127.0.0.1:1 --ca @/secret",
        2,
        &["--ca", "no certificate"],
    ),
    (
        "an admin URL of another kind",
        "apps --edge ftp://127.0.0.1:7401",
        2,
        &["not an admin address", "http://HOST:PORT"],
    ),
    (
        "no one is there",
        "apps --edge http://127.0.0.1:1",
        4,
        &["127.0.0.1:1", "Connection refused", "is the edge running"],
    ),
    (
        "deploying to an edge that is dead",
        "deploy @/counter --edge http://127.0.0.1:1",
        4,
        &["127.0.0.1:1", "is the edge running"],
    ),
    (
        "an admin token that is not there",
        "apps --token-file @/gone",
        2,
        &["the token file", "gone cannot be read", "check the path"],
    ),
    (
        "no app where one is looked for",
        "deploy @",
        2,
        &["there is no marram.toml in", "such as cells/services/forward"],
    ),
    ("undeploying nothing", "undeploy", 2, &["required", "<APP>"]),
    (
        "a manifest without a name",
        "config check manifest @/nameless",
        2,
        &["missing field `name`", "`marram config sample manifest`"],
    ),
    ("a slip in a manifest", "config check manifest @/modul", 2, &["`modul`", "did you mean `module`?"]),
    (
        "a module that is not there",
        "config check manifest @/gone-module",
        2,
        &["`module`", "cell.wasm", "cannot be read", "build it first"],
    ),
    (
        "a directory as a module",
        "config check manifest @/dir-module",
        2,
        &["`module`", "directory", "name a file in it"],
    ),
    (
        "a file that is no module",
        "config check manifest @/text",
        2,
        &["not a WebAssembly module", "the .wasm file that the compiler wrote"],
    ),
    ("a component", "config check manifest @/component", 2, &["a component", "wasm32-wasip1"]),
    (
        "a module that is no cell",
        "config check manifest @/nothing",
        2,
        &["does not export `memory`", "docs/abi.md"],
    ),
    ("another version of the ABI", "config check manifest @/version", 2, &["marram_v2.send", "marram_v1"]),
    ("imports that are not ours", "config check manifest @/foreign", 2, &["env.puts", "import"]),
    ("a cell that traps at its start", "config check manifest @/traps", 2, &["initial", "unreachable"]),
    ("a cell over its quota", "config check manifest @/quota", 2, &["memory", "quota"]),
    (
        "a protection that is only planned",
        "config check manifest @/planned",
        2,
        &["`protect`", "planned", "\"endpoints\""],
    ),
    ("epochs too short", "config check manifest @/fast", 2, &["`epoch.every`", "\"500us\"", "\"message\""]),
    (
        "a project over another",
        "new counter --directory @/counter",
        2,
        &["exists already", "choose another name"],
    ),
    (
        "a project's name that names no crate",
        "new 9lives --directory @/9",
        2,
        &["cannot name a crate", "begin with a letter"],
    ),
    ("a project's name in capitals", "new Lives --directory @/9", 2, &["cannot name a crate", "capitals"]),
    (
        "working where the port is in use",
        "dev @/counter --listen %",
        1,
        &["cannot listen on", "Address already in use", "marram dev --listen ADDRESS"],
    ),
    ("nothing to send to an agent", "exec -- true", 2, &["--redirect HOST:PORT=LISTENER", "--config"]),
    ("working where no project is", "dev @", 2, &["there is no", "marram.toml", "marram new"]),
    ("working on an app without its server", "dev @/server", 2, &["the server `db`", "--server HOST:PORT"]),
    (
        "replaying what is not there",
        "replay @/gone.marram",
        2,
        &["gone.marram cannot be read", "check the path"],
    ),
    (
        "replaying something else",
        "replay @/secret",
        1,
        &["secret", "does not begin with the header of a record file"],
    ),
    (
        "a session that is none",
        "logs --session the-first",
        2,
        &["\"the-first\" is not a session", "hexadecimal"],
    ),
    ("a time that is none", "logs --since yesterday", 2, &["yesterday", "\"10m\""]),
];

/// Mistakes in the environment: the variable, and the command.
const VARIABLES: &[Set] = &[
    (
        "a slip in a variable",
        ["MARRAM_EDGE__LIMITS__SESIONS", "5"],
        "config check edge @/edge.toml",
        2,
        &["did you mean MARRAM_EDGE__LIMITS__SESSIONS?"],
    ),
    (
        "one underscore for two",
        ["MARRAM_EDGE_LIMITS__SESSIONS", "5"],
        "config check edge @/edge.toml",
        2,
        &["two underscores", "MARRAM_EDGE__LIMITS__SESSIONS"],
    ),
    (
        "a program that there is not",
        ["MARRAM_EGDE__SHARDS", "5"],
        "config check edge @/edge.toml",
        2,
        &["MARRAM_EDGE__SHARDS?"],
    ),
    (
        "a value of another type",
        ["MARRAM_EDGE__SHARDS", "many"],
        "config check edge @/edge.toml",
        2,
        &["MARRAM_EDGE__SHARDS: ", "\"many\""],
    ),
    (
        "variables without a file",
        ["MARRAM_AGENT__EDGES", "b:1"],
        "agent client --edge a:1 --listen 127.0.0.1:1=x",
        2,
        &["MARRAM_AGENT__EDGES", "--config"],
    ),
    (
        "a level that there is not",
        ["MARRAM_LOG", "inof"],
        "edge --config @/edge.toml",
        2,
        &["MARRAM_LOG=inof", "did you mean `info`?"],
    ),
    (
        "a part that there is not",
        ["MARRAM_LOG", "info,agnet=debug"],
        "edge --config @/edge.toml",
        2,
        &["did you mean `agent`?"],
    ),
    (
        "Rust is not installed",
        ["PATH", "@/nothing-there"],
        "dev @/rust",
        1,
        &["`cargo build", "there is no cargo", "rustup.rs"],
    ),
    (
        "Rust's target is not installed",
        ["PATH", "@/no-target"],
        "dev @/rust",
        1,
        &["wasm32-wasip1 is not installed", "rustup target add"],
    ),
    ("make is not installed", ["PATH", "@/nothing-there"], "dev @/c", 1, &["there is no `make`", "--build"]),
];

#[test]
fn each_mistake_is_reported_with_what_to_do_about_it() {
    // The address is in use as long as this runs.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let used = listener.local_addr().unwrap().to_string();
    let place = place(&used);
    let filled = |text: &str| text.replace('@', &place.path().display().to_string()).replace('%', &used);
    let commands = COMMANDS.iter().map(|(mistake, line, code, words)| (*mistake, None, *line, *code, *words));
    let variables = VARIABLES
        .iter()
        .map(|(mistake, variable, line, code, words)| (*mistake, Some(*variable), *line, *code, *words));
    let mut wrong = Vec::new();
    for (mistake, variable, line, code, words) in commands.chain(variables) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_marram"));
        command.args(line.split(' ').map(filled)).current_dir(place.path());
        command.envs(variable.map(|[name, value]| (name, filled(value))));
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let missing: Vec<_> = words.iter().filter(|word| !said.contains(**word)).collect();
        if output.status.code() != Some(code) || !missing.is_empty() {
            let status = output.status;
            wrong.push(format!("{mistake}: `marram {line}`: {status}, does not say {missing:?}: {said}"));
        }
    }
    assert!(wrong.is_empty(), "{} are not told well:\n{}", wrong.len(), wrong.join("\n"));
}
