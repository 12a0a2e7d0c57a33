//! A cell's project, from `marram new` to sessions that run a version that was just edited.

use crate::support::{
    self,
    websocket::{Raw, request},
};
use marram_cluster::{TempDir, free_address};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Lines, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

fn marram(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_marram")).args(arguments).output().unwrap()
}

/// Creates a project and returns its directory.
fn new(place: &TempDir, name: &str, language: &str, more: &[&str]) -> PathBuf {
    support::begin();
    let directory = place.path().join(name);
    let arguments = ["new", name, "--lang", language, "--directory", directory.to_str().unwrap()];
    let output = marram(&[&arguments, more].concat());
    assert!(output.status.success(), "{output:?}");
    directory
}

fn ask(address: SocketAddr, line: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    writeln!(stream, "{line}").unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    answer
}

/// A command as a user types it in a project, with this build's `marram` in the path and without network access for cargo.
fn shell(directory: &Path, command: &str) -> Command {
    let mut shell = Command::new("sh");
    let ours = Path::new(env!("CARGO_BIN_EXE_marram")).parent().unwrap().display();
    let path = std::env::var("PATH").unwrap();
    // The command replaces the shell, so that it receives the signals.
    shell.args(["-c", &format!("exec {command}")]).current_dir(directory);
    shell.env("PATH", format!("{ours}:{path}")).env("CARGO_NET_OFFLINE", "true");
    // Variables that cargo sets for tests.
    shell.env_remove("CARGO_ENCODED_RUSTFLAGS").env_remove("CARGO_TARGET_DIR").env_remove("RUSTFLAGS");
    shell
}

/// `marram dev`, and its output.
struct Dev(Child, Lines<BufReader<ChildStdout>>);

impl Dev {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self(child, lines)
    }

    /// Waits until its output contains these words.
    fn until(&mut self, words: &str) {
        let mut said = String::new();
        for line in self.1.by_ref().map(Result::unwrap) {
            said += &(line + "\n");
            if said.contains(words) {
                return;
            }
        }
        panic!("it ended without {words:?}: {said}");
    }

    fn interrupt(mut self) {
        kill_process(Pid::from_child(&self.0), Signal::INT).unwrap();
        assert!(self.0.wait().unwrap().code().is_some());
    }
}

/// The processes that work in this directory.
fn working_in(directory: &Path) -> Vec<OsString> {
    let directory = directory.canonicalize().unwrap();
    let works_here = |process: std::fs::DirEntry| {
        let at = std::fs::read_link(process.path().join("cwd"));
        at.is_ok_and(|at| at == directory).then(|| process.file_name())
    };
    std::fs::read_dir("/proc").unwrap().flatten().filter_map(works_here).collect()
}

/// Waits until no process works in this directory: what `marram dev` starts inherits its directory. Its address would
/// prove nothing, since another test may listen there by now.
fn nothing_stays_behind(directory: &Path) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = working_in(directory);
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "these processes stay behind: {left:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Replaces text in a source file.
fn edit(path: &Path, from: &str, to: &str) {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains(from));
    std::fs::write(path, text.replace(from, to)).unwrap();
}

#[test]
fn a_project_in_c_is_built_deployed_and_deployed_again_when_it_changes() {
    if !support::cells().module("c/shout").is_file() {
        support::skip::skip("cells in C are not built here: there is no C compiler for Wasm");
        return;
    }
    let place = TempDir::new("project-c").unwrap();
    let directory = new(&place, "my-lines", "c", &[]);
    let listen = free_address().unwrap();
    let mut dev = Dev::start(&mut shell(&directory, &format!("marram dev --listen {listen}")));
    dev.until("is ready");
    assert_eq!(ask(listen, "hello"), "1: hello\n");

    let source = directory.join("my_lines.c");
    edit(&source, "\": %.*s", "\" says %.*s");
    dev.until("deployed: new sessions use it");
    assert_eq!(ask(listen, "hello"), "1 says hello\n");
    edit(&source, "count += 1;", "count += ;");
    dev.until("not deployed");
    assert_eq!(ask(listen, "hello"), "1 says hello\n", "what was deployed stays");
    edit(&source, "count += ;", "count += 10;");
    dev.until("deployed: new sessions use it");
    assert_eq!(ask(listen, "hello"), "10 says hello\n");
    assert!(working_in(&directory).len() > 1, "its processes would be found here");
    dev.interrupt();
    nothing_stays_behind(&directory);
}

#[test]
fn a_project_in_c_is_built_by_zig_with_the_line_of_its_makefile() {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/zig/ziglang");
    let on_path = Command::new("zig").arg("version").output().is_ok_and(|output| output.status.success());
    if !on_path && !installed.join("zig").is_file() {
        return support::skip::skip("there is no zig on this machine");
    }
    let place = TempDir::new("project-zig").unwrap();
    let directory = new(&place, "my-lines", "c", &[]);
    let makefile = std::fs::read_to_string(directory.join("Makefile")).unwrap();
    let line = makefile.lines().next().unwrap().split_once("or: ").expect("it says how with zig").1;
    assert!(line.starts_with("make CC=\"zig cc "), "{line}");
    let mut command = shell(&directory, line);
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{path}:{}", installed.display()));
    let built = command.output().unwrap();
    assert!(built.status.success(), "{built:?}");
    let listen = free_address().unwrap();
    // The module that zig built is newer than its source, so `make` does nothing.
    let mut dev = Dev::start(&mut shell(&directory, &format!("marram dev --listen {listen}")));
    dev.until("is ready");
    assert_eq!(ask(listen, "hello"), "1: hello\n");
    dev.interrupt();
}

#[test]
fn a_project_in_rust_goes_by_its_own_readme() {
    let place = TempDir::new("project-rust").unwrap();
    let directory = new(&place, "my-lines", "rust", &[]);
    let readme = std::fs::read_to_string(directory.join("README.md")).unwrap();
    let commands: Vec<&str> = readme.lines().filter_map(|line| line.strip_prefix("    ")).collect();
    let [dev, client, build, deploy] = commands[..] else { panic!("{readme}") };
    assert!(readme.contains("`cargo test`"), "{readme}");
    let output = shell(&directory, "cargo test --quiet").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8(output.stdout).unwrap().contains("1 passed"));
    if !can_build_cells() {
        return support::skip::skip("the Rust compiler in use has no target wasm32-wasip1");
    }

    // As in the README, except for the address, which another test may use.
    let listen = free_address().unwrap();
    let mut dev = Dev::start(&mut shell(&directory, &format!("{dev} --listen {listen}")));
    dev.until("is ready");
    let client = client.replace("127.0.0.1:8088", &listen.to_string());
    let mut curl = shell(&directory, &client).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut input, mut lines) =
        (curl.stdin.take().unwrap(), BufReader::new(curl.stdout.take().unwrap()).lines());
    let mut said = |line: &str| {
        writeln!(input, "{line}").unwrap();
        lines.next().unwrap().unwrap()
    };
    assert_eq!(said("hello"), "1: hello");
    edit(&directory.join("src/lib.rs"), "self.count += 1;", "self.count += 10;");
    dev.until("deployed: new sessions use it");
    assert_eq!(said("hello"), "2: hello", "sessions keep the version with which they began");
    assert_eq!(ask(listen, "hello"), "10: hello\n");
    let _ = curl.kill();
    let _ = curl.wait();
    dev.interrupt();

    let mut cluster = support::cluster("project-edge", 1, 1);
    cluster.start_edges("").unwrap();
    let deploy = deploy.replace("EDGE:7401", &cluster.edges[0].admin().to_string());
    for command in [build, &deploy] {
        let output = shell(&directory, command).output().unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
    }
    let address = cluster.start_client_agent(&cluster.edge_addresses(), &["my-lines"]).unwrap()[0].address;
    assert_eq!(ask(address, "hello"), "10: hello\n");
}

#[test]
fn a_room_from_the_template_has_its_page_and_talks() {
    let place = TempDir::new("project-room").unwrap();
    let directory = new(&place, "our-room", "rust", &["--template", "room"]);
    let readme = std::fs::read_to_string(directory.join("README.md")).unwrap();
    let dev = readme.lines().find_map(|line| line.strip_prefix("    marram dev ")).unwrap();
    let output = shell(&directory, "cargo test --quiet").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8(output.stdout).unwrap().contains("14 passed"));
    if !can_build_cells() {
        return support::skip::skip("the Rust compiler in use has no target wasm32-wasip1");
    }

    // As in the README, except for the addresses.
    let [plain, web] = [(); 2].map(|()| free_address().unwrap().to_string());
    let options = dev.replace("127.0.0.1:8088", &plain).replace("127.0.0.1:8081", &web);
    let mut dev = Dev::start(&mut shell(&directory, &format!("marram dev {options}")));
    dev.until(&format!("and ws://{web}; operators"));
    let page = ask(plain.parse().unwrap(), "GET / HTTP/1.1\r\nHost: room\r\n\r");
    assert_eq!(page, "HTTP/1.1 200 OK\r\n");
    // A page that the room serves may connect.
    let mut client = Raw::new(web.parse().unwrap());
    let head = client.ask(&request("/", &format!("Origin: http://{plain}\r\n")));
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    client.send(0x81, b"/name ann\n");
    assert_eq!(client.frame(), (0x81, b"* you are ann; here: ann\n".to_vec()));
    assert_eq!(ask(plain.parse().unwrap(), "/name ann"), "error the name ann is taken\n");
    dev.interrupt();
}

/// Whether cargo can build cells here.
fn can_build_cells() -> bool {
    let asked =
        Command::new("rustc").args(["--print", "target-libdir", "--target", "wasm32-wasip1"]).output();
    asked.is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
}

#[test]
fn what_is_missing_is_named() {
    let place = TempDir::new("project-missing").unwrap();
    let here = place.path().to_str().unwrap();
    let said = |arguments: &[&str]| {
        let output = marram(arguments);
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(said(&["dev", here]).contains("marram new"));
    place.write("marram.toml", "name = \"x\"\nmodule = \"x.wasm\"\nserver = \"db\"\n").unwrap();
    assert!(said(&["dev", here]).contains("--server"));
    assert!(said(&["dev", here, "--server", "127.0.0.1:1", "--build", "exit 3"]).contains("`exit 3` failed"));
    assert!(said(&["dev", here, "--server", "127.0.0.1:1"]).contains("x.wasm"));
    assert!(said(&["new", "a", "--directory", here]).contains("exists already"));
}
