//! Unmodified programs, each with its own server behind a cell, started by `marram exec`.
//!
//! They use addresses that do not exist, so all data that they receive came through the agent.

mod redirected;

use crate::support::{self, is_here, skip::skip};
use marram_cluster::TestCluster;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
/// An address from a block for documentation, to which there is no route.
const FAR: &str = "192.0.2.7";
const FAR_V6: &str = "[2001:db8::7]";

/// A server behind a cell, and an agent in front of it.
struct Site {
    cluster: TestCluster,
    agent: SocketAddr,
}

impl Site {
    fn new(purpose: &'static str, edges: usize, server: SocketAddr) -> Self {
        let mut cluster = support::cluster(purpose, edges, 1);
        cluster.start_edges("").unwrap();
        let edges = cluster.edge_addresses();
        cluster.start_server_agent(&edges, &[("peer", server)]).unwrap();
        let agent = cluster.start_client_agent(&edges, &["forward"]).unwrap()[0].address;
        Self { cluster, agent }
    }

    /// A command that redirects this port of the unreachable addresses to the agent.
    fn exec(&self, port: u16, program: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_marram"));
        command.arg("exec");
        for far in [FAR, FAR_V6] {
            command.args(["--redirect", &format!("{far}:{port}={}", self.agent)]);
        }
        command.arg("--").args(program).env("XDG_RUNTIME_DIR", self.cluster.directory.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Kills the owner, and returns when another edge has the session.
    fn kill_the_owner(&mut self) {
        let (owner, start) = (self.cluster.owner().unwrap(), self.cluster.logs.end());
        self.cluster.edges[owner].kill();
        self.cluster.wait_for_owner(start).unwrap();
    }
}

/// The output of a program that succeeded.
fn said(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// The byte that the web server sends at this position.
fn byte(at: usize) -> u8 {
    u8::try_from(at % 251).unwrap()
}

/// A web server that answers with as many bytes as the path says.
fn web() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            // The thread ends when its client disconnects.
            thread::spawn(move || _ = answer(stream));
        }
    });
    address
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    while let Some(line) = lines.next().transpose()? {
        let size = line.split(['/', ' ']).nth(2).and_then(|size| size.parse().ok()).unwrap_or(0_usize);
        while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n")?;
        for at in (0..size).step_by(1 << 16) {
            stream.write_all(&(at..size.min(at + (1 << 16))).map(byte).collect::<Vec<u8>>())?;
        }
    }
    Ok(())
}

#[test]
fn curl_connects_by_either_version_and_survives_the_edges_while_all_else_is_left_alone() {
    let server = web();
    let mut site = Site::new("exec-curl", 2, server);
    for far in [FAR, FAR_V6] {
        let url = format!("http://{far}:8000/5");
        let format = "%{remote_ip} %{remote_port} %{size_download}";
        let output = site.exec(8000, &["curl", "-sgo", "/dev/null", "-w", format, &url]).output().unwrap();
        assert_eq!(said(&output), format!("{} 8000 5", far.trim_matches(['[', ']'])));
    }
    // Another port of the same host, and the same port of another host, are not redirected.
    let url = format!("http://{server}/6");
    let output =
        site.exec(8000, &["curl", "-so", "/dev/null", "-w", "%{remote_port}", &url]).output().unwrap();
    assert_eq!(said(&output), server.port().to_string());

    const SIZE: usize = 30_000_000;
    let url = format!("http://{FAR}:8000/{SIZE}");
    let mut child = site.exec(8000, &["curl", "-s", "--limit-rate", "20M", &url]).spawn().unwrap();
    let (mut pipe, mut at) = (child.stdout.take().unwrap(), 0);
    let mut read = |until: usize| {
        let mut buffer = vec![0; 1 << 16];
        while at < until {
            let len = pipe.read(&mut buffer).unwrap();
            assert_ne!(len, 0, "curl ended after {at} bytes");
            assert!(buffer[..len].iter().enumerate().all(|(n, got)| *got == byte(at + n)), "near byte {at}");
            at += len;
        }
    };
    read(SIZE / 3);
    site.kill_the_owner();
    read(SIZE);
    assert!(child.wait().unwrap().success());
}

/// Asks a server in each way that Python has, and checks the addresses that it sees.
const IN_PYTHON: &str = r#"
import asyncio, os, socket, subprocess, sys, threading

FAR, FAR_V6 = "192.0.2.7", "2001:db8::7"

def ask(family, address):
    with socket.socket(family) as it:
        it.connect((address, 8000))
        assert it.getpeername()[:2] == (address, 8000), it.getpeername()
        assert it.dup().getpeername()[:2] == (address, 8000)
        it.sendall(b"GET /3 HTTP/1.1\r\n\r\n")
        assert it.makefile("rb").readline().startswith(b"HTTP/1.1 200")

def all_kinds():
    ask(socket.AF_INET, FAR)
    ask(socket.AF_INET6, FAR_V6)
    ask(socket.AF_INET6, "::ffff:" + FAR)

all_kinds()

failed = []
def one():
    try:
        all_kinds()
    except BaseException as error:
        failed.append(error)
threads = [threading.Thread(target=one) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not failed, failed

child = os.fork()
if child == 0:
    try:
        all_kinds()
    except BaseException:
        os._exit(1)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0

only = socket.socket(socket.AF_INET6)
only.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
only.connect((FAR_V6, 8000))
assert only.getpeername()[:2] == (FAR_V6, 8000)

slow = socket.socket()
slow.setblocking(False)
assert slow.connect_ex((FAR, 8000)) in (0, 115)

async def later():
    reader, writer = await asyncio.open_connection(FAR, 8000)
    assert writer.get_extra_info("peername") == (FAR, 8000)
    writer.write(b"GET /3 HTTP/1.1\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.close()
asyncio.run(later())

# One that another program made, and that this one never connected.
code = "import socket; print(socket.socket(fileno=%d).getpeername()[0])"
kept = socket.create_connection((FAR, 8000))
got = subprocess.run([sys.executable, "-c", code % kept.fileno()], pass_fds=[kept.fileno()], capture_output=True, text=True)
assert got.stdout.strip() == FAR, got

# Left alone, even if it is the agent that is asked for.
agent = (sys.argv[1].rsplit(":", 1)[0], int(sys.argv[1].rsplit(":", 1)[1]))
with socket.create_connection(agent) as it:
    assert it.getpeername() == agent
there = socket.socket(); there.bind(("127.0.0.1", 0)); there.listen()
with socket.create_connection(there.getsockname()) as it:
    assert it.getpeername() == there.getsockname()
pair, _ = socket.socketpair()
assert pair.getpeername() == ""
try:
    socket.socket().getpeername()
    assert False
except OSError as error:
    assert error.errno == 107, error

try:
    import requests
except ImportError:
    print("no requests")
else:
    assert len(requests.get("http://%s:8000/70000" % FAR).content) == 70000
    print("requests")
print("done")
"#;

#[test]
fn python_gets_the_right_peer_address_in_threads_children_and_without_blocking() {
    let python = support::python_with("requests");
    // Only the last part of the script needs the module.
    if python.is_none() && !is_here("python3") {
        return;
    }
    let site = Site::new("exec-python", 1, web());
    let program = [python.unwrap_or("python3"), "-c", IN_PYTHON, &site.agent.to_string()];
    let said = said(&site.exec(8000, &program).output().unwrap());
    let expected = if python.is_some() { "requests\ndone" } else { "no requests\ndone" };
    assert_eq!(said, expected);
}

#[test]
fn the_agents_own_configuration_says_what_goes_to_it_and_datagrams_go_too() {
    let echo = UdpSocket::bind("127.0.0.1:0").unwrap();
    let server = echo.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 2_048];
        while let Ok((len, from)) = echo.recv_from(&mut buffer) {
            // The client may be gone.
            let _ = echo.send_to(&buffer[..len], from);
        }
    });
    if !is_here("python3") {
        return;
    }
    let mut cluster = support::cluster("exec-udp", 1, 1);
    cluster.start_edges("").unwrap();
    let edges = cluster.edge_addresses();
    let servers = format!("[servers]\npeer = \"udp://{server}\"\n");
    cluster.start_agent_with(marram_cluster::AgentSide::Server, &edges, &servers).unwrap();
    let free = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let listen = format!(
        "[[listen]]\naddress = \"{free}\"\napp = \"forward\"\nprotocol = \"udp\"\nredirect = [\"{FAR}:53\"]\n"
    );
    cluster.start_agent_with(marram_cluster::AgentSide::Client, &edges, &listen).unwrap();
    let config =
        cluster.directory.write("exec.toml", format!("edges = [\"127.0.0.1:1\"]\n{listen}")).unwrap();
    let script = "
import socket
it = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
it.settimeout(60)
it.connect(('192.0.2.7', 53))
assert it.getpeername() == ('192.0.2.7', 53)
it.send(b'hello')
print(it.recv(100).decode())
";
    let output = Command::new(env!("CARGO_BIN_EXE_marram"))
        .args(["exec", "--config", config.to_str().unwrap(), "--", "python3", "-c", script])
        .output()
        .unwrap();
    assert_eq!(said(&output), "hello");
}

#[test]
fn the_environment_overrides_the_configuration_as_it_does_for_the_agent() {
    let place = marram_cluster::TempDir::new("exec-environment").unwrap();
    let text = format!(
        "edges = [\"127.0.0.1:1\"]\n[[listen]]\naddress = \"127.0.0.1:1\"\napp = \"x\"\nredirect = [\"{FAR}:1\"]\n"
    );
    let config = place.write("agent.toml", text).unwrap();
    let exec = |name: &str, value: &str| {
        // The redirections, as the program receives them in its environment.
        let output = Command::new(env!("CARGO_BIN_EXE_marram"))
            .args(["exec", "--config", config.to_str().unwrap(), "--", "sh", "-c", "echo $MARRAM_EXEC"])
            .env(name, value)
            .env("XDG_RUNTIME_DIR", place.path())
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (_, before, said) = exec("NOTHING", "");
    assert!(before.contains("127.0.0.1:1") && before.contains(&format!("{FAR}:1")), "{before} {said}");
    let (code, moved, _) = exec("MARRAM_AGENT__LISTEN__0__ADDRESS", "127.0.0.1:2");
    assert_eq!((code, moved), (Some(0), before.replace("127.0.0.1:1", "127.0.0.1:2")));
    let (code, others, _) = exec("MARRAM_AGENT__LISTEN__0__REDIRECT", &format!("{FAR}:3,{FAR}:4"));
    assert_eq!((code, others.matches(FAR).count()), (Some(0), 2), "{others}");
    assert!(others.contains(&format!("{FAR}:4")), "{others}");
    let (code, _, said) = exec("MARRAM_AGENT__LISTEN__0__ADRESS", "127.0.0.1:2");
    let right = "did you mean MARRAM_AGENT__LISTEN__0__ADDRESS?";
    assert!(code == Some(2) && said.contains(right), "{code:?} {said}");
}

#[test]
fn what_cannot_be_redirected_is_explained() {
    let refused = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_marram")).arg("exec").args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let to = "192.0.2.7:1=127.0.0.1:1";
    assert!(refused(&["--", "true"]).contains("/etc/marram/agent.toml"));
    assert!(refused(&["--redirect", "192.0.2.7", "--", "true"]).contains("HOST:PORT=LISTENER"));
    assert!(refused(&["--redirect", to, "--", "no-such-program-1"]).contains("PATH"));
    assert!(refused(&["--redirect", to, "--", "/etc/passwd"]).contains("not executable"));
    // No process listens there: a warning, and the program runs.
    let output = Command::new(env!("CARGO_BIN_EXE_marram"))
        .args(["exec", "--redirect", to, "--", "sh", "-c", "exit 7"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert!(String::from_utf8(output.stderr).unwrap().contains("no agent listens on 127.0.0.1:1"));
}

/// A server that is ended on drop.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_port() -> u16 {
    marram_cluster::free_address().unwrap().port()
}

/// Starts a server and waits until it accepts connections.
fn serve(command: &mut Command, port: u16) -> (Server, SocketAddr) {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut server = Server(child);
    let until = Instant::now() + PATIENCE;
    while TcpStream::connect(address).is_err() {
        let ended = server.0.try_wait().unwrap();
        assert!(Instant::now() < until && ended.is_none(), "{command:?}: {ended:?}");
        thread::sleep(Duration::from_millis(20));
    }
    (server, address)
}

/// A program that answers each line with one line.
struct Dialogue {
    child: Child,
    told: BufReader<ChildStdout>,
}

impl Dialogue {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let told = BufReader::new(child.stdout.take().unwrap());
        Self { child, told }
    }

    fn ask(&mut self, say: &str) -> String {
        writeln!(self.child.stdin.as_ref().unwrap(), "{say}").unwrap();
        let mut line = String::new();
        self.told.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

#[test]
fn redis_cli_keeps_its_connection_when_an_edge_dies() {
    if !is_here("redis-server") || !is_here("redis-cli") {
        return;
    }
    let port = free_port();
    let port_text = port.to_string();
    let (_server, address) =
        serve(Command::new("redis-server").args(["--port", &port_text, "--save", ""]), port);
    let mut site = Site::new("exec-redis", 2, address);
    let mut program = Dialogue::start(&mut site.exec(6379, &["redis-cli", "-h", FAR]));
    // State of the connection: its number, and a transaction in progress.
    let number = program.ask("client id");
    assert_eq!(program.ask("multi"), "OK");
    assert_eq!(program.ask("incr marram"), "QUEUED");
    site.kill_the_owner();
    assert_eq!(program.ask("exec"), "1");
    assert_eq!(program.ask("client id"), number);
    program.end();
}

/// The id of the user `nobody`, which servers use that should not run as root.
const NOBODY: u32 = 65_534;

#[test]
fn psql_keeps_its_transaction_when_an_edge_dies() {
    let programs = Path::new("/usr/lib/postgresql");
    let newest = std::fs::read_dir(programs).ok().and_then(|all| all.flatten().map(|it| it.path()).max());
    let Some(programs) = newest.map(|it| it.join("bin")).filter(|_| is_here("psql") && is_root()) else {
        skip("there is no PostgreSQL here, or this user may not start it");
        return;
    };
    let place = marram_cluster::TempDir::new("exec-postgres").unwrap();
    let data = place.path().join("data");
    std::fs::create_dir(&data).unwrap();
    for directory in [place.path(), &data] {
        std::os::unix::fs::chown(directory, Some(NOBODY), None).unwrap();
    }
    let as_nobody = |program: &str| {
        let mut command = Command::new(programs.join(program));
        command.uid(NOBODY).current_dir(place.path()).arg("-D").arg(&data);
        command
    };
    let made = as_nobody("initdb")
        .args(["-U", "marram", "-A", "trust", "--no-sync", "--no-locale"])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let port = free_port();
    let sockets = place.path().to_str().unwrap().to_owned();
    let mut command = as_nobody("postgres");
    let (_server, address) =
        serve(command.args(["-F", "-p", &port.to_string(), "-h", "127.0.0.1", "-k", &sockets]), port);
    // PostgreSQL listens before it accepts clients.
    let until = Instant::now() + PATIENCE;
    let is_ready = || {
        let mut command = Command::new(programs.join("pg_isready"));
        command.args(["-q", "-h", "127.0.0.1", "-p", &port.to_string()]).status().unwrap().success()
    };
    while !is_ready() {
        assert!(Instant::now() < until, "PostgreSQL lets no client in");
    }

    let mut site = Site::new("exec-psql", 2, address);
    let psql = ["psql", "-qAtX", "-v", "ON_ERROR_STOP=1", "-h", FAR, "-U", "marram", "postgres"];
    let mut program = Dialogue::start(&mut site.exec(5432, &psql));
    let backend = program.ask("select pg_backend_pid();");
    assert_eq!(
        program.ask("begin; create temp table t(n int); insert into t values (41); select count(*) from t;"),
        "1"
    );
    site.kill_the_owner();
    assert_eq!(program.ask("update t set n = n + 1; select n from t; commit;"), "42");
    assert_eq!(program.ask("select pg_backend_pid();"), backend);
    program.end();
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn ssh_runs_a_command_on_the_host_that_it_asked_for() {
    if !is_here("ssh") || !is_here("/usr/sbin/sshd") {
        return;
    }
    if !is_root() {
        skip("only root starts sshd");
        return;
    }
    let place = marram_cluster::TempDir::new("exec-ssh").unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    for name in ["host", "user"] {
        let made =
            Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &path(name)]).status();
        assert!(made.unwrap().success());
    }
    std::fs::copy(path("user.pub"), path("authorized")).unwrap();
    std::fs::set_permissions(path("authorized"), PermissionsExt::from_mode(0o600)).unwrap();
    // The directory that sshd needs for privilege separation.
    std::fs::create_dir_all("/run/sshd").unwrap();
    let config = format!(
        "HostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPidFile none\nListenAddress 127.0.0.1\nPermitRootLogin yes\n",
        path("host"),
        path("authorized")
    );
    place.write("sshd_config", config).unwrap();
    let port = free_port();
    let sshd = ["-D", "-f", &path("sshd_config"), "-p", &port.to_string()];
    let (_server, address) = serve(Command::new("/usr/sbin/sshd").args(sshd), port);

    // A connection without `marram exec`. On some machines this user cannot log in.
    let plain = Command::new("ssh")
        .args(["-F", "none", "-i", &path("user"), "-o", "UserKnownHostsFile=/dev/null"])
        .args(["-o", "StrictHostKeyChecking=no", "-o", "BatchMode=yes", "-p", &port.to_string()])
        .args(["127.0.0.1", "true"])
        .output()
        .unwrap();
    if !plain.status.success() {
        skip(format_args!("sshd refuses every login here: {plain:?}"));
        return;
    }

    let site = Site::new("exec-ssh-site", 1, address);
    let known = format!("UserKnownHostsFile={}", path("known"));
    let ssh = [
        "ssh",
        "-v",
        "-F",
        "none",
        "-i",
        &path("user"),
        "-o",
        &known,
        "-o",
        "StrictHostKeyChecking=accept-new",
        FAR,
    ];
    let output = site.exec(22, &[&ssh[..], &["echo", "$SSH_CONNECTION", "done"]].concat()).output().unwrap();
    assert!(said(&output).ends_with("done"), "{output:?}");
    let known = std::fs::read_to_string(path("known")).unwrap();
    assert!(known.starts_with(FAR), "the key is known by the name that was asked for: {known}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains(&format!("Authenticated to {FAR}")),
        "{output:?}"
    );
}

/// Writes a program's source into the site's directory.
fn source(site: &Site, name: &str, text: &str) -> PathBuf {
    site.cluster.directory.write(name, text).unwrap()
}

#[test]
fn a_java_client_connects_both_of_its_ways() {
    const TEXT: &str = r#"
import java.net.*;
import java.nio.channels.SocketChannel;
import java.util.Scanner;
public class Client {
    public static void main(String[] a) throws Exception {
        try (Scanner s = new Scanner(new URL("http://192.0.2.7:8000/70000").openStream(), "ISO-8859-1").useDelimiter("\\A")) {
            System.out.println(s.next().length());
        }
        SocketChannel channel = SocketChannel.open(new InetSocketAddress("192.0.2.7", 8000));
        System.out.println(((InetSocketAddress) channel.getRemoteAddress()).getPort());
        channel = SocketChannel.open();
        channel.configureBlocking(false);
        channel.connect(new InetSocketAddress("2001:db8::7", 8000));
        while (!channel.finishConnect()) Thread.onSpinWait();
        System.out.println("connected");
    }
}
"#;
    if !is_here("java") || !is_here("javac") {
        return;
    }
    let site = Site::new("exec-java", 1, web());
    let file = source(&site, "Client.java", TEXT);
    let output = site.exec(8000, &["java", file.to_str().unwrap()]).output().unwrap();
    assert_eq!(said(&output), "70000\n8000\nconnected");
}

#[test]
fn a_node_client_connects() {
    const TEXT: &str = r#"
const http = require("http"), net = require("net");
http.get("http://192.0.2.7:8000/70000", (answer) => {
    let size = 0;
    answer.on("data", (part) => (size += part.length));
    answer.on("end", () => {
        const socket = net.connect(8000, "2001:db8::7", () => {
            console.log(size, socket.remoteAddress, socket.remotePort);
            socket.destroy();
        });
    });
});
"#;
    if !is_here("node") {
        return;
    }
    let site = Site::new("exec-node", 1, web());
    let file = source(&site, "client.js", TEXT);
    let output = site.exec(8000, &["node", file.to_str().unwrap()]).output().unwrap();
    assert_eq!(said(&output), "70000 2001:db8::7 8000");
}
