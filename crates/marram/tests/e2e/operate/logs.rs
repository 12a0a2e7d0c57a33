//! Operators' view of logs: lines of supervisors, shards and cells, of several edges, and of edges that restart.

use crate::support::{self, own_process};
use bytes::Bytes;
use hyper::Method;
use marram_cluster::{AgentSide, TestCluster, free_address};
use marram_node::logging;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

fn marram(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_marram")).args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Polls until the answer is as wanted, since a shard's lines reach its supervisor with a small delay.
fn until(ask: impl Fn() -> String, wanted: impl Fn(&str) -> bool) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let said = ask();
        if wanted(&said) {
            return said;
        }
        assert!(Instant::now() < deadline, "{said}");
    }
}

/// Edges of one shard with the app `counting`.
fn cluster(purpose: &'static str, edges: usize, log: &str) -> TestCluster {
    let layout = support::layout(purpose, |layout| {
        layout.edges = edges;
        // The harness writes this table last.
        layout.edge_tables = format!("{log}\n");
    });
    let apps = |place: &_| Ok(vec![support::cells().manifest(place, "counting", "counter", "")?]);
    let mut cluster = TestCluster::new(layout, apps).unwrap();
    cluster.start_edges("").unwrap();
    cluster
}

/// A client, after its cell has printed a line; the cell's answer does not matter here.
fn print(cluster: &mut TestCluster) -> TcpStream {
    let address = cluster.start_client_agent(&cluster.edge_addresses(), &["counting"]).unwrap()[0].address;
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(b"pf").unwrap();
    client.read_exact(&mut [0; 7]).unwrap();
    client
}

#[test]
fn what_a_cell_prints_is_found_by_its_app_and_its_session() {
    let mut cluster = cluster("logs", 2, "");
    let _client = print(&mut cluster);
    let urls: Vec<String> =
        cluster.edges.iter().map(|edge| format!("--edge=http://{}", edge.admin())).collect();
    let both = [urls[0].as_str(), urls[1].as_str()];
    let (_, ids, _) = marram(&["ps", "-q", "--app", "counting", both[0], both[1]]);
    let id = ids.trim();
    assert_eq!(id.len(), 32, "{ids}");

    let said = until(
        || {
            let of_it = ["logs", "--json", "--session", id, "--app", "counting", both[0], both[1]];
            let (code, said, _) = marram(&of_it);
            assert_eq!(code, Some(0));
            said
        },
        |said| !said.is_empty(),
    );
    let line: Value = serde_json::from_str(said.trim()).unwrap();
    let fields = ["edge", "shard", "target", "level", "app", "session"].map(|field| line[field].clone());
    // Either edge may own the session, since an agent uses the first one that answers.
    let names = cluster.edges.iter().map(|edge| edge.who() + "-1").collect::<Vec<_>>();
    let home = names.iter().position(|name| line["edge"] == *name).unwrap();
    let expected: [Value; 6] =
        [names[home].as_str().into(), 0.into(), "guest".into(), "INFO".into(), "counting".into(), id.into()];
    assert_eq!(fields, expected, "{said}");
    assert!(line["message"].as_str().unwrap().starts_with("counter counter"), "{said}");
    // As text, selected by the beginning of the session's identifier.
    let (_, said, _) = marram(&["logs", "--session", &id[..12], both[home]]);
    assert!(said.contains("INFO shard 0 cell: counter counter") && said.lines().count() == 1, "{said}");

    // Both edges, ordered by time; warnings only; the last line only.
    let parse =
        |said: &str| said.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>();
    let all = |said: &str| {
        let lines = parse(said);
        let has = |of: &str, message: &str| {
            lines.iter().any(|line| line["edge"] == *of && line["message"] == message)
        };
        names.iter().all(|of| has(of, "listening for operators") && has(of, "cell pool ready"))
    };
    let said = until(|| marram(&["logs", "--json", "-n", "1000", both[0], both[1]]).1, all);
    let spoken = |line: &Value| line["timestamp"].as_str().unwrap().to_owned();
    assert!(parse(&said).is_sorted_by_key(spoken), "{said}");
    assert_eq!(marram(&["logs", "--level", "error", both[0]]).1, "");
    assert_eq!(marram(&["logs", "-n", "1", both[0], both[1]]).1.lines().count(), 1);
    assert_eq!(
        marram(&["logs", "--since", "0.0001us", both[0]]).0,
        Some(2),
        "a time has no parts of nanoseconds"
    );
    assert!(marram(&["logs", "--since", "1h", both[0]]).1.contains("listening for operators"));

    // `kill` accepts the beginning of an identifier too.
    let (code, said, _) = marram(&["kill", &id[..8], both[0], both[1]]);
    assert_eq!((code, said.as_str()), (Some(0), "the session is ended\n"));
}

#[test]
fn what_has_gone_is_said() {
    let cluster = cluster("logs-gone", 1, "keep = \"64KiB\"");
    let url = format!("--edge=http://{}", cluster.edges[0].admin());
    let (_, before, said) = marram(&["logs", &url]);
    assert!(!before.is_empty() && said.is_empty(), "{said}");
    let client = cluster.edges[0].client().unwrap();
    // Each call logs a line.
    for _ in 0..500 {
        client.call(Method::PUT, "/v1/routes", Bytes::from_static(b"{\"routes\":[]}")).unwrap();
    }
    let (_, _, said) = marram(&["logs", "-n", "100000", &url]);
    assert!(said.contains("older lines were dropped") && said.contains("log.keep"), "{said}");
    let (_, lines, said) = marram(&["logs", "-n", "3", &url]);
    assert!(lines.lines().count() == 3 && said.is_empty(), "enough is left: {said}");
}

/// A running command, with its output as lines.
struct Following(Child);

impl Following {
    fn until(lines: &mut impl Iterator<Item = std::io::Result<String>>, words: &str) -> String {
        let mut said = String::new();
        for line in lines.map(Result::unwrap) {
            said += &(line + "\n");
            if said.contains(words) {
                return said;
            }
        }
        panic!("it ended without {words:?}: {said}");
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_edge_that_goes_away_is_said_and_asked_again() {
    let mut cluster = cluster("logs-follow", 2, "");
    let urls: Vec<String> =
        cluster.edges.iter().map(|edge| format!("--edge=http://{}", edge.admin())).collect();
    let mut following = follow(&["logs", "--follow", &urls[0], &urls[1]]);
    let mut lines = BufReader::new(following.0.stdout.take().unwrap()).lines();
    let mut errors = BufReader::new(following.0.stderr.take().unwrap()).lines();
    let mut said = Following::until(&mut lines, "B-1: listening for operators");
    cluster.edges[1].kill();
    Following::until(&mut errors, "B-1 is unreachable: ");
    cluster.start_edge(1, "").unwrap();
    Following::until(&mut errors, "B-2 is reachable again");
    // The restarted edge's log from its beginning, and no line of the other edge twice.
    said += &Following::until(&mut lines, "B-2: listening for operators");
    assert_eq!(said.matches("A-1: listening for operators").count(), 1, "{said}");
    let _client = print(&mut cluster);
    Following::until(&mut lines, "cell: counter counter");
}

/// Starts a command with piped output.
fn follow(arguments: &[&str]) -> Following {
    let mut command = Command::new(env!("CARGO_BIN_EXE_marram"));
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    Following(command.spawn().unwrap())
}

#[test]
fn an_agent_that_has_an_address_for_operators_says_what_it_knows_among_edges() {
    let layout =
        support::layout("logs-agent", |layout| layout.admin = "token_file = \"../admin-token\"\n".into());
    let mut cluster = TestCluster::new(layout, |place| {
        place.write_private("admin-token", "0123456789abcdef0123456789abcdef")?;
        Ok(vec![support::cells().manifest(place, "counting", "counter", "")?])
    })
    .unwrap();
    cluster.start_edges("").unwrap();
    let token = cluster.directory.path().join("admin-token");
    let token = token.display().to_string();
    let (admin, address) = (free_address().unwrap(), free_address().unwrap());
    let tables = format!(
        "name = \"web-1\"\n[admin]\nlisten = \"{admin}\"\ntoken_file = {token:?}\n\
         [[listen]]\naddress = \"{address}\"\napp = \"counting\"\n"
    );
    cluster.start_agent_with(AgentSide::Client, &cluster.edge_addresses(), &tables).unwrap();
    let (edge, agent) =
        (format!("--edge=http://{}", cluster.edges[0].admin()), format!("--edge=http://{admin}"));
    let (code, _, said) = marram(&["logs", &agent]);
    assert!(code == Some(3) && said.contains("token is missing"), "{code:?} {said}");
    let (code, _, said) = marram(&["ps", "--token-file", &token, &agent]);
    assert!(
        code == Some(3) && said.contains("an agent does not support GET /v1/sessions"),
        "{code:?} {said}"
    );

    let both = ["--level", "info", "--token-file", &token, &edge, &agent];
    let mut following = follow(&[&["logs", "--follow"], &both[..]].concat());
    let mut lines = BufReader::new(following.0.stdout.take().unwrap()).lines();
    let said = Following::until(&mut lines, "edge up");
    let of_it = said.lines().last().unwrap();
    assert!(of_it.contains(" INFO web-1: edge up edge=A-1 ") && of_it.ends_with(" shard=0"), "{said}");
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(b"pf").unwrap();
    client.read_exact(&mut [0; 7]).unwrap();
    let id = marram(&["ps", "-q", "--token-file", &token, &edge]).1.trim().to_owned();
    assert_eq!(marram(&["kill", &id, "--token-file", &token, &edge]).0, Some(0));
    let said = Following::until(&mut lines, "session ended early");
    let of_it = said.lines().last().unwrap();
    assert!(of_it.contains(" WARN web-1: ") && of_it.contains(&format!("session={id}")), "{said}");

    // As JSON: the process that logged a line, and the edge that it is about.
    let (_, said, _) = marram(&[&["logs", "--json"], &both[..]].concat());
    let lines: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let has = |who: &str, message: &str| {
        lines.iter().any(|line| line["who"] == who && line["edge"] == "A-1" && line["message"] == message)
    };
    assert!(has("web-1", "edge up") && has("A-1", "listening for operators"), "{said}");
}

#[test]
fn what_a_guest_printed_before_it_was_stopped_is_in_the_line_about_its_end() {
    const SESSIONS: usize = 4;
    let mut cluster = cluster("logs-words", 1, "");
    let address = cluster.start_client_agent(&cluster.edge_addresses(), &["counting"]).unwrap()[0].address;
    for _ in 0..SESSIONS {
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(b"p!").unwrap();
        // The session has ended, orderly or by a reset.
        let _ = client.read(&mut [0]);
    }
    let edge = format!("--edge=http://{}", cluster.edges[0].admin());
    let ends = |said: &str| -> Vec<String> {
        said.lines().filter(|line| line.contains(": Guest: ")).map(str::to_owned).collect()
    };
    // Each session is logged twice, since it has a second attempt. Some of the cells' own lines are suppressed.
    let all = until(|| marram(&["logs", &edge]).1, |said| ends(said).len() >= 2 * SESSIONS);
    for line in ends(&all) {
        let words = "; it printed: thread '<unnamed>' (1) panicked at testing/counter/src/lib.rs:";
        assert!(
            line.contains("unreachable") && line.contains(words) && line.ends_with(": told to panic"),
            "{line}"
        );
    }
    // The client's agent gets the reason for the end, and not what the cell printed for operators.
    let told = cluster.logs.all(0, |event| TestCluster::is_report(AgentSide::Client, "ended", event));
    let reasons: Vec<&str> = told.iter().map(|event| event.text("reason")).collect();
    assert!(
        !reasons.is_empty() && reasons.iter().all(|reason| reason.contains("unreachable")),
        "{reasons:?}"
    );
    assert!(reasons.iter().all(|reason| !reason.contains("told to panic")), "{reasons:?}");
}

/// Lines that this process keeps and that were not returned before.
fn unseen(after: &mut u64) -> Vec<Value> {
    let mut lines = Vec::new();
    loop {
        let taken = logging::kept().unwrap().take(*after, None).lines;
        let Some(last) = taken.last() else { return lines };
        *after = last.number;
        lines.extend(taken.iter().map(|line| serde_json::from_str::<Value>(&line.text).unwrap()));
    }
}

/// The only test of its process: the log and the panic hook are the whole process's.
#[test]
fn a_panic_is_in_the_log_and_all_else_is_as_before() {
    static SAID: AtomicUsize = AtomicUsize::new(0);
    if !own_process::entered() {
        return;
    }
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| match std::thread::current().name() {
        Some("kitchen") => {
            SAID.fetch_add(1, Ordering::Relaxed);
        }
        _ => before(panic),
    }));
    let options = logging::LogOptions { kept: Some(logging::RING_BYTES), ..logging::LogOptions::default() };
    // The second call has no effect.
    (0..2).for_each(|_| logging::start(&options).unwrap());
    let in_kitchen = |panics: Box<dyn Fn() + Send>| {
        let thread = std::thread::Builder::new().name("kitchen".into());
        thread.spawn(panics).unwrap().join()
    };
    let mut after = 0;
    let of_it = |lines: Vec<Value>| -> Vec<Value> {
        lines.into_iter().filter(|line| line["thread"] == "kitchen").collect()
    };

    let long = format!("out of \"sugar\"\n{}", "\u{fc}".repeat(logging::LINE_BYTES_MAX));
    let cause = in_kitchen(Box::new(move || panic!("{long}"))).unwrap_err();
    assert!(cause.downcast_ref::<String>().unwrap().starts_with("out of"), "it unwinds as before");
    assert_eq!(SAID.load(Ordering::Relaxed), 1);
    let lines = of_it(unseen(&mut after));
    let [line] = &lines[..] else { panic!("{lines:?}") };
    let expected = ["ERROR", "panicked", "kitchen"];
    assert_eq!(["level", "event", "thread"].map(|field| line[field].as_str().unwrap()), expected, "{line}");
    assert!(line["message"].as_str().unwrap().starts_with("a thread panicked: out of \"sugar\"\n\u{fc}"));
    assert!(line["place"].as_str().unwrap().contains("operate/logs.rs:"), "{line}");

    // Panics until a line counts suppressed ones: the first is logged, and the count includes all others.
    let (mut panics, mut told) = (0, Vec::new());
    while told.last().is_none_or(|line: &Value| line["suppressed"].is_null()) {
        let number = panics;
        in_kitchen(Box::new(move || panic!("no {number}"))).unwrap_err();
        panics += 1;
        told.extend(of_it(unseen(&mut after)));
    }
    assert_eq!(told[0]["message"], "a thread panicked: no 0");
    let suppressed = told.last().and_then(|line| line["suppressed"].as_u64()).unwrap();
    let said = SAID.load(Ordering::Relaxed) as u64;
    assert_eq!((told.len() as u64 + suppressed, said), (panics, panics + 1));
}

#[test]
fn each_part_says_as_much_as_it_is_asked_to() {
    let cluster = cluster("logs-levels", 1, "level = \"warn,admin=info\"");
    let url = format!("--edge=http://{}", cluster.edges[0].admin());
    // A line may be on standard error before it can be asked for.
    let said = until(|| marram(&["logs", &url]).1, |said| said.contains("event=deployed"));
    assert!(!said.contains("shard started"), "{said}");
}
