//! Newcomers' mistakes with running programs: what was done, and the expected message of the command or in the log. Mistakes with
//! commands and files alone are in `mistakes`.

use crate::support;
use marram_cluster::{LogEvent, TempDir, TestCluster, free_address};
use marram_transport::{PreambleAnswer, PreambleVerdict};
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

fn marram() -> Command {
    Command::new(env!("CARGO_BIN_EXE_marram"))
}

/// A running program; dropping it ends it.
struct Stays {
    child: Child,
    log: Lines<BufReader<ChildStdout>>,
}

impl Stays {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let log = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, log }
    }

    /// Reads its log until all of the words have appeared.
    fn says(&mut self, words: &[&str]) {
        let mut said = String::new();
        for line in self.log.by_ref().map(Result::unwrap) {
            said += &(line + "\n");
            if words.iter().all(|word| said.contains(word)) {
                return;
            }
        }
        panic!("it ended without {words:?}: {said}");
    }
}

impl Drop for Stays {
    fn drop(&mut self) {
        // A supervisor's shards end with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An agent with these arguments after `agent client --listen ...=APP`.
fn agent(app: &str, arguments: &[&str]) -> (Stays, SocketAddr) {
    let address = free_address().unwrap();
    let listen = format!("{address}={app}");
    let stays = Stays::start(marram().args(["agent", "client", "--listen", &listen]).args(arguments));
    (stays, address)
}

/// An edge with its own configuration, and the address for its agents.
fn edge(place: &TempDir, name: &str, secret: &str, tables: &str) -> (Stays, SocketAddr) {
    let address = free_address().unwrap();
    (edge_at(place, name, address, secret, tables), address)
}

/// The same, at an address that agents have been given before.
fn edge_at(place: &TempDir, name: &str, address: SocketAddr, secret: &str, tables: &str) -> Stays {
    let admin = free_address().unwrap();
    place.write(&format!("{name}.secret"), secret).unwrap();
    let text = format!(
        "name = \"{name}\"\nstate = \"{name}\"\nlisten = [\"{address}\"]\nsecret_file = \"{name}.secret\"\nshards = 1\n\
         {tables}\n[admin]\nlisten = \"{admin}\"\n"
    );
    let config = place.write(&format!("{name}.toml"), text).unwrap();
    Stays::start(marram().arg("edge").arg("--config").arg(config))
}

/// An edge with the app `counting`, and tokens for operators and agents.
fn cluster() -> TestCluster {
    let layout = support::layout("mistakes-lab", |layout| {
        layout.admin = "token_file = \"../token\"\n".into();
    });
    let apps = |place: &_| Ok(vec![support::cells().manifest(place, "counting", "counter", "")?]);
    let mut cluster = TestCluster::new(layout, apps).unwrap();
    cluster.start_edges("").unwrap();
    cluster
}

/// The mistake, the command, the token file, exit status, words in the message.
type Row<'a> = (&'a str, &'a [&'a str], &'a str, i32, &'a [&'a str]);

/// A client of `counting` that has an answer, so that its session is listed.
fn client(address: SocketAddr) -> TcpStream {
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(b"f").unwrap();
    client.read_exact(&mut [0; 7]).unwrap();
    client
}

/// A digit with which the identifiers of several sessions begin; there are `count` sessions.
fn repeated_first_digit(admin: &str, token: &str, count: usize) -> String {
    let listed = marram().args(["ps", "-q", "--edge", admin, "--token-file", token]).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let firsts: Vec<&str> = listed.lines().map(|id| &id[..1]).collect();
    assert_eq!(firsts.len(), count, "{listed}");
    let is_repeated = |first: &&&str| firsts.iter().filter(|other| other == first).count() > 1;
    firsts.iter().find(is_repeated).expect("more sessions than digits").to_string()
}

#[test]
fn commands_to_a_running_edge() {
    let mut cluster = cluster();
    let (edge, admin) = (cluster.edges[0].address().to_string(), cluster.edges[0].admin().to_string());
    let token = cluster.directory.path().join("token").display().to_string();
    let secret = cluster.directory.path().join("secret").display().to_string();
    let unreached =
        support::cells().manifest(&cluster.directory, "unreached", "forward", "server = \"wbe\"\n").unwrap();
    let unreached = unreached.display().to_string();
    // Among 17 identifiers, at least two begin with the same hexadecimal digit.
    let address = cluster.start_client_agent(&cluster.edge_addresses(), &["counting"]).unwrap()[0].address;
    let clients: Vec<TcpStream> = (0..17).map(|_| client(address)).collect();
    let twice = repeated_first_digit(&admin, &token, clients.len());
    let other = answering("HTTP/1.1 404 Not Found\r\ncontent-length: 5\r\n\r\nhello");
    let none = "0".repeat(32);
    let rows: &[Row<'_>] = &[
        ("no admin token", &["apps"], "", 3, &["the admin token is missing", "--token-file"]),
        ("another admin token", &["apps"], &secret, 3, &["the admin token is wrong", "`admin.token_file`"]),
        (
            "a slip in an app's name",
            &["ps", "--app", "countng"],
            &token,
            0,
            &["`countng`", "did you mean `counting`?"],
        ),
        ("a slip in a phase", &["ps", "--phase", "runing"], &token, 2, &["'runing'", "'running'"]),
        ("no such session", &["kill", &none], &token, 3, &["no such session here", "marram ps"]),
        ("no session that begins so", &["inspect", &none[1..]], &token, 3, &["begins with", "marram ps"]),
        ("a beginning of several", &["inspect", &twice], &token, 2, &["sessions begin with", "write more"]),
        (
            "no identifier",
            &["inspect", "it"],
            &token,
            2,
            &["\"it\" is not a session", "hexadecimal", "marram ps"],
        ),
        ("a server that no agent reaches", &["deploy", &unreached], &token, 0, &["`wbe`", "no agent"]),
        (
            "a rule for a listener that is none",
            &["route", "add", "r", "--listener", "web", "--refuse", "no"],
            &token,
            3,
            &["`listener`", "there are: none"],
        ),
    ];
    for (mistake, arguments, token, code, words) in rows {
        let mut command = marram();
        command.args(*arguments).args(["--edge", &admin]);
        if !token.is_empty() {
            command.args(["--token-file", token]);
        }
        check(mistake, &mut command, *code, words);
    }
    let agents = ["apps", "--edge", &edge];
    check(
        "an agents' address for an admin's",
        marram().args(agents),
        4,
        &["where agents connect", "`listen`"],
    );
    let other = other.to_string();
    let words = ["the answer is not one of this version's admin API"];
    check("an admin API of another version", marram().args(["apps", "--edge", &other]), 1, &words);
    drop(clients);
}

fn check(mistake: &str, command: &mut Command, code: i32, words: &[&str]) {
    let output = command.output().unwrap();
    let said = [output.stderr, output.stdout].concat();
    let said = String::from_utf8_lossy(&said);
    assert_eq!(output.status.code(), Some(code), "{mistake}: {said}");
    for word in words {
        assert!(said.contains(word), "{mistake}: does not say {word:?}: {said}");
    }
}

/// A server that gives this answer to every client.
fn answering(answer: impl AsRef<[u8]> + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.read(&mut [0; 1_024]);
            let _ = stream.write_all(answer.as_ref());
        }
    });
    address
}

#[test]
fn agents_that_no_edge_takes() {
    let cluster = cluster();
    let (edge, admin) = (cluster.edges[0].address().to_string(), cluster.edges[0].admin().to_string());
    let file = |name: &str| cluster.directory.path().join(name).display().to_string();
    let (token, secret) = (file("token"), file("secret"));
    let version = answering(PreambleAnswer::new(PreambleVerdict::Version).encode()).to_string();
    for (mistake, arguments, words) in [
        (
            "no token",
            &["--edge", &edge][..],
            &["requires a token", "give this agent the edge's", "--token-file"][..],
        ),
        (
            "another token",
            &["--edge", &edge, "--token-file", &secret],
            &["different tokens", "one that the edge has"],
        ),
        (
            "an admin's address",
            &["--edge", &admin],
            &["does not use Marram's protocol", "the edge's `listen`"],
        ),
        ("an edge of another version", &["--edge", &version], &["version", "upgrade"]),
        ("no one there", &["--edge", "127.0.0.1:1"], &["edge down", "Connection refused"]),
        ("a name of no one", &["--edge", "edge.invalid:7400"], &["cannot resolve the edge's name"]),
    ] {
        eprintln!("{mistake}");
        agent("counting", arguments).0.says(words);
    }
    // The edge is there, and does not have the app.
    let (mut agent, address) = agent("countng", &["--edge", &edge, "--token-file", &token]);
    agent.says(&["edge up"]);
    let _client = TcpStream::connect(address).unwrap();
    agent.says(&["no app `countng`", "marram deploy", "did you mean `counting`?"]);
    let words = "it is refused, and ends unless its agent knows an edge with that app, or waits for one";
    let told = |event: &LogEvent| event.text("message").contains(words);
    cluster.logs.wait(0, Duration::from_secs(60), told).expect("the edge tells it, too");
}

#[test]
fn too_few_descriptors_are_reported_at_the_start() {
    let line = format!(
        "ulimit -n 64; exec {} agent client --edge 127.0.0.1:1 --listen 127.0.0.1:0=x",
        env!("CARGO_BIN_EXE_marram")
    );
    let mut stays = Stays::start(Command::new("sh").args(["-c", &line]));
    stays.says(&["may open only few files", "ulimit", "LimitNOFILE"]);
}

/// No other client has to come for that.
#[test]
fn a_client_that_waits_for_a_descriptor_is_served_when_one_is_free() {
    let place = TempDir::new("mistakes-files").unwrap();
    let manifest = support::cells().manifest(&place, "counting", "counter", "").unwrap();
    let (mut edge, edge_address) = edge(&place, "e", &"s".repeat(32), &format!("apps = [{manifest:?}]"));
    edge.says(&["an app is deployed"]);
    let address = free_address().unwrap();
    let line = format!(
        "ulimit -n 48; exec {} agent client --edge {edge_address} --listen {address}=counting",
        env!("CARGO_BIN_EXE_marram")
    );
    let mut agent = Stays::start(Command::new("sh").args(["-c", &line]));
    agent.says(&["listening for clients", "edge up"]);
    let mut clients: Vec<_> = (0..64).map(|_| TcpStream::connect(address).unwrap()).collect();
    agent.says(&["cannot accept a client's connection"]);
    let mut last = clients.pop().unwrap();
    drop(clients);
    last.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    last.write_all(b"f").unwrap();
    let mut answer = [0; 7];
    last.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"count=1");
}

#[test]
fn two_apps_of_one_name_are_reported() {
    let place = TempDir::new("mistakes-apps").unwrap();
    let manifest = |folder: &str| {
        let module = support::cells().module("counter");
        let text = format!("name = \"one\"\nmodule = {module:?}\n");
        place.write(&format!("{folder}/marram.toml"), text).unwrap()
    };
    let apps = format!("apps = [{:?}, {:?}]", manifest("a"), manifest("b"));
    let (mut edge, _) = edge(&place, "e", &"s".repeat(32), &apps);
    edge.says(&["b/marram.toml", "two of `apps` have the name `one`", "another `name`"]);
}

#[test]
fn a_clock_that_is_off_or_a_certificate_that_is_old() {
    let place = TempDir::new("mistakes-clock").unwrap();
    let mut authority = rcgen::CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().unwrap();
    let ca = place.write("ca.pem", authority.self_signed(&key).unwrap().pem()).unwrap();
    let issuer = rcgen::Issuer::new(authority, key);
    for (name, years, words) in [
        ("old", [2001, 2002], &["has expired, by this machine's clock", "a new one, or set the clock"]),
        ("young", [2901, 2902], &["is not valid yet, by this machine's clock", "set the clock"]),
    ] {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        [params.not_before, params.not_after] = years.map(|year| rcgen::date_time_ymd(year, 1, 1));
        let certificate = params.signed_by(&key, &issuer).unwrap().pem();
        place.write(&format!("{name}.pem"), certificate).unwrap();
        place.write(&format!("{name}.key"), key.serialize_pem()).unwrap();
        let security = format!("[security]\ncertificate = \"{name}.pem\"\nkey = \"{name}.key\"");
        let (mut edge, address) = edge(&place, name, &"s".repeat(32), &security);
        edge.says(&["listening for agents"]);
        says(&place, &ca, address, words);
    }
}

fn says(place: &TempDir, ca: &Path, edge: SocketAddr, words: &[&str]) {
    let text = format!(
        "edges = [\"{edge}\"]\n[[listen]]\naddress = \"127.0.0.1:0\"\napp = \"x\"\n[security]\nca = {ca:?}\n"
    );
    let config = place.write("agent.toml", text).unwrap();
    Stays::start(marram().args(["agent", "client", "--config"]).arg(config)).says(words);
}

#[test]
fn edges_of_different_secrets() {
    let place = TempDir::new("mistakes-secrets").unwrap();
    let manifest = support::cells().manifest(&place, "counting", "counter", "").unwrap();
    let apps = format!("apps = [{manifest:?}]");
    let (mut first, first_address) = edge(&place, "first", &"a".repeat(32), &apps);
    first.says(&["an app is deployed"]);
    let second_address = free_address().unwrap();
    let edges = [first_address, second_address].map(|address| address.to_string());
    let (mut agent, address) = agent("counting", &["--edge", &edges[0], "--edge", &edges[1]]);
    agent.says(&["listening for clients", "edge=first"]);
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(b"f").unwrap();
    client.read_exact(&mut [0; 7]).unwrap();
    // The session is at the first edge, since the second is started only now.
    let mut second = edge_at(&place, "second", second_address, &"b".repeat(32), &apps);
    second.says(&["an app is deployed"]);
    // The agent warns before it matters, and again when it does.
    agent.says(&[
        "it and edge `first` have different domain secrets",
        "neither can recover the other's sessions",
        "the same `secret_file`",
        "edge=second",
    ]);
    drop(first);
    agent.says(&[
        "edge `second` has another domain secret than the edge where the session began",
        "the same `secret_file`",
    ]);
    second.says(&["it is refused permanently", "the same `secret_file`"]);
}
