//! Configuration files of operators, and the messages about mistakes in them.

use marram_config::agent::{self, AgentRole};
use marram_config::manifest::{Manifest, SAMPLE};
use marram_config::source::Source;
use marram_config::{edge, recorder};
use std::path::PathBuf;
use std::time::Duration;

/// A directory with a token and a secret in it, removed at the end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("marram-config-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        for file in ["token", "secret"] {
            std::fs::write(path.join(file), "0123456789abcdef0123456789abcdef\n").unwrap();
        }
        std::fs::write(path.join("short"), "abc\n").unwrap();
        Self(path)
    }

    fn source(&self, text: &str) -> Source {
        let path = self.0.join("config.toml");
        std::fs::write(&path, text).unwrap();
        Source::read(&path).unwrap()
    }

    fn edge(&self, text: &str) -> Result<edge::EdgeSettings, String> {
        edge::EdgeSettings::parse(&self.source(text)).map_err(|problem| problem.to_string())
    }

    fn recorder(&self, text: &str) -> Result<recorder::RecorderSettings, String> {
        recorder::RecorderSettings::parse(&self.source(text)).map_err(|problem| problem.to_string())
    }

    fn agent(&self, text: &str, side: AgentRole) -> Result<agent::AgentSettings, String> {
        agent::AgentSettings::parse(&self.source(text), side).map_err(|problem| problem.to_string())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const EDGE: &str = "state = \"state\"\nlisten = [\"127.0.0.1:7400\"]\nsecret_file = \"secret\"\n";
const AGENT: &str =
    "edges = [\"127.0.0.1:7400\"]\n[[listen]]\naddress = \"127.0.0.1:8080\"\napp = \"forward\"\n";

/// The sample with every commented-out setting turned on.
fn all_settings(sample: &str) -> String {
    let setting =
        |line: &str| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).map(str::to_owned);
    sample.lines().map(|line| setting(line).unwrap_or_else(|| line.to_owned()) + "\n").collect()
}

#[test]
fn samples_are_legal_as_they_are_and_with_every_line_on() {
    let place = Place::new("samples");
    let certificate = "-----BEGIN CERTIFICATE-----\n";
    for file in [
        "edge.pem",
        "edge.key",
        "agents-ca.pem",
        "edges-ca.pem",
        "agent.pem",
        "agent.key",
        "recorder.pem",
        "recorder.key",
    ] {
        std::fs::write(place.0.join(file), certificate).unwrap();
    }
    let secret = marram_wire::seal::DomainSecret::from_material(b"secret");
    let key = marram_wire::seal::KeeperKey::derive(&secret).to_text();
    std::fs::write(place.0.join("keeper-key"), format!("{key}\n")).unwrap();
    std::fs::copy(place.0.join("token"), place.0.join("admin-token")).unwrap();
    std::fs::copy(place.0.join("token"), place.0.join("metrics-token")).unwrap();
    for token in ["clients-token", "origin-token", "gates-token", "edges-token"] {
        std::fs::write(place.0.join(token), token.repeat(2)).unwrap();
    }
    let key = place.0.join("site.key");
    std::fs::write(&key, rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    for change in [str::to_owned, all_settings] {
        let text = change(edge::SAMPLE).replace("/etc/marram/", "");
        let config = place.edge(&text).unwrap();
        assert_eq!(config.edge.name, "edge-a");
        assert_eq!(config.edge.timeouts.heartbeat_interval, Duration::from_millis(50));
        let text = change(agent::SAMPLE).replace("/etc/marram/", "");
        assert_eq!(place.agent(&text, AgentRole::Client).unwrap().agent.edges.len(), 2);
        let text = change(&agent::sample_for_servers()).replace("/etc/marram/", "");
        assert_eq!(place.agent(&text, AgentRole::Server).unwrap().agent.servers.len(), 2);
        let text = change(recorder::SAMPLE).replace("/etc/marram/", "");
        let config = place.recorder(&text).unwrap();
        assert_eq!((&config.recorder.name[..], config.recorder.edges.len()), ("site-1", 2));
    }
}

#[test]
fn the_memory_of_agents_and_gates_has_a_default_and_a_least_size() {
    let place = Place::new("memory");
    let agent = |text: &str| place.agent(&format!("{AGENT}{text}"), AgentRole::Client);
    let edge = |text: &str| place.edge(&format!("{EDGE}{text}"));
    assert_eq!(agent("").unwrap().agent.limits.memory_max, marram_agent::MEMORY);
    assert_eq!(agent("[limits]\nmemory = \"1GiB\"\n").unwrap().agent.limits.memory_max, 1 << 30);
    assert_eq!(edge("[gates]\nmemory = \"64MiB\"\n").unwrap().edge.gate_memory, 64 << 20);
    let errors = [
        (agent("[limits]\nmemory = \"15MiB\"\n").map(|_| ()).unwrap_err(), "`limits.memory`"),
        (edge("[gates]\nmemory = \"15MiB\"\n").map(|_| ()).unwrap_err(), "`gates.memory`"),
    ];
    for (error, field) in errors {
        assert!(error.contains(field) && error.contains("16MiB"), "{error}");
    }
}

/// All fields that a parser accepts, as `field`, `table.field`, `table.table.field`. Its own error about an unknown field lists
/// them.
fn known(complains: &dyn Fn(&str) -> String, tables: &[String]) -> Vec<String> {
    let path = tables.join(".");
    let headers: Vec<String> = match tables.len() {
        0 => vec![String::new()],
        _ => vec![format!("[{path}]\n"), format!("[[{path}]]\n")],
    };
    // A table within an array of tables belongs to the array's last element.
    let outer: String =
        (1..tables.len()).map(|depth| format!("[[{}]]\n", tables[..depth].join("."))).collect();
    let said = headers.iter().map(|header| complains(&format!("{outer}{header}nonsense = 1\n")));
    let Some(said) = said.into_iter().find(|said| said.contains("unknown field `nonsense`")) else {
        return vec![path];
    };
    let list = said.split("expected ").nth(1).unwrap();
    let fields = list.split('`').skip(1).step_by(2);
    fields.flat_map(|field| known(complains, &[tables, &[field.to_owned()]].concat())).collect()
}

/// All fields that a sample shows, commented out or not, in the same form.
fn shown(sample: &str) -> std::collections::BTreeSet<String> {
    let mut table = String::new();
    let mut shown = std::collections::BTreeSet::new();
    for line in sample.lines().map(|line| line.trim_start_matches(['#', ' '])) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            table = format!("{}.", name.trim_start_matches('['));
        } else if let Some((key, _)) = line.split_once(" = ").filter(|(key, _)| !key.contains(' ')) {
            shown.insert(format!("{table}{key}"));
            if key == "keys" {
                // It is a field of the app itself, but the sample explains it where it names the files.
                shown.insert(key.to_owned());
            }
        }
    }
    shown
}

#[test]
fn samples_show_every_field_that_there_is() {
    let place = Place::new("fields");
    let edge = |text: &str| place.edge(text).unwrap_err();
    let agent = |text: &str| place.agent(text, AgentRole::Client).unwrap_err();
    let recorder = |text: &str| place.recorder(text).unwrap_err();
    let manifest = |text: &str| Manifest::parse(&place.source(text)).unwrap_err().to_string();
    let for_servers = agent::sample_for_servers();
    type Complains<'a> = &'a dyn Fn(&str) -> String;
    let kinds: [(&str, Complains<'_>, &str, usize); 5] = [
        ("edge", &edge, edge::SAMPLE, 60),
        ("agent-client", &agent, agent::SAMPLE, 30),
        ("agent-server", &agent, &for_servers, 30),
        ("recorder", &recorder, recorder::SAMPLE, 15),
        ("manifest", &manifest, SAMPLE, 30),
    ];
    for (kind, complains, sample, at_least) in kinds {
        let (known, shown) = (known(complains, &[]), shown(sample));
        assert!(known.len() >= at_least, "{kind}: {known:?}");
        // A stage has the same fields as an app.
        let is_shown =
            |field: &String| shown.contains(field) || shown.contains(field.trim_start_matches("stage."));
        let missing: Vec<_> = known.iter().filter(|field| !is_shown(field)).collect();
        assert!(missing.is_empty(), "the sample for {kind} lacks {missing:?}");
    }
}

#[test]
fn samples_show_the_defaults() {
    let place = Place::new("defaults");
    let short = place.agent(AGENT, AgentRole::Client).unwrap().agent;
    let certificate = "-----BEGIN CERTIFICATE-----\n";
    for file in ["edges-ca.pem", "agent.pem", "agent.key"] {
        std::fs::write(place.0.join(file), certificate).unwrap();
    }
    std::fs::copy(place.0.join("token"), place.0.join("admin-token")).unwrap();
    std::fs::copy(place.0.join("token"), place.0.join("metrics-token")).unwrap();
    let sample = all_settings(agent::SAMPLE).replace("/etc/marram/", "");
    assert_eq!(place.agent(&sample, AgentRole::Client).unwrap().agent.timeouts, short.timeouts);
    let short = place.edge(EDGE).unwrap().edge;
    let limits =
        edge::SAMPLE.split("[limits]").nth(1).and_then(|rest| rest.split("[timeouts]").next()).unwrap();
    let text = format!("{EDGE}[limits]\n{}", all_settings(limits));
    assert_eq!(place.edge(&text).unwrap().edge.limits, short.limits);
}

/// Lines of a configuration, and words of the message about what is wrong with them.
type Mistake = (&'static str, &'static [&'static str]);

/// Mistakes in credentials.
const CREDENTIALS: &[Mistake] = &[
    (
        "[[credential]]\nname = \"x\"\nroles = [\"client\"]",
        &["neither a token nor a certificate", "`token_file`"],
    ),
    ("[[credential]]\nname = \"x\"\ntoken_file = \"token\"", &["allows nothing", "servers = [\"origin\"]"]),
    (
        "[[credential]]\nname = \"x\"\ntoken_file = \"token\"\nroles = [\"server\"]",
        &[":7", "names of the servers"],
    ),
    (
        "[[credential]]\nname = \"x\"\ntoken_file = \"token\"\nroles = [\"king\"]",
        &[":7", "not a role", "\"recorder\""],
    ),
    ("[[credential]]\nname = \"x\"\ntoken_file = \"token\"\nroles = [\"operator\"]", &["`admin.token_file`"]),
    ("[[credential]]\nname = \"x\"\ncertificate = \"a\"\nroles = [\"client\"]", &[":6", "`security.ca`"]),
    (
        "[[credential]]\nname = \"x\"\ntoken_file = \"token\"\nroles = [\"client\"]\n[security]\ntoken_file = \"token\"",
        &["the token of another credential", "its own"],
    ),
];

/// Mistakes in `[admin]` and `[security]`.
const ACCESS: &[Mistake] = &[
    ("[admin]\nlisten = \"localhost:7401\"", &[":5", "`admin.listen`", "127.0.0.1:7400"]),
    ("[admin]\nlisten = \"0.0.0.0:7401\"", &[":5", "`admin.listen`", "not on loopback", "token_file"]),
    ("[admin]\npeers = [\"edge-b\"]", &[":5", "`admin.peers`", "http://"]),
    ("[admin]\ntoken_file = \"short\"", &[":5", "`admin.token_file`", "openssl rand"]),
    ("[admin]\ncertificate = \"token\"", &[":5", "`admin.certificate`", "no key"]),
    ("[admin]\nmetrics = \"all\"", &[":5", "`admin.metrics`", "\"open\""]),
    ("[admin]\nmetrics = \"open\"\nmetrics_token_file = \"token\"", &[":5", "`admin.metrics`", "no token"]),
    ("[admin]\nhosts = [\"a:1\"]", &[":5", "`admin.hosts`", "letters"]),
    ("[security]\ntoken_file = \"nowhere\"", &[":5", "`security.token_file`", "nowhere", "cannot be read"]),
    ("[security]\nkey = \"token\"", &[":5", "`security.key`", "certificate = "]),
    ("[security]\nca = \"token\"", &[":5", "`security.ca`", "PEM"]),
];

/// Mistakes in `[coordinator]`.
const COORDINATOR: &[Mistake] = &[
    ("[coordinator]\nlease = \"10s\"", &["`coordinator", "urls = ", "serve = "]),
    (
        "[coordinator]\nserve = \"0.0.0.0:7403\"",
        &[":5", "`coordinator.serve`", "not on loopback", "token_file"],
    ),
    ("[coordinator]\nurls = [\"ftp://etcd:2379\"]", &[":5", "`coordinator.urls`", "https://HOST:PORT"]),
    ("[coordinator]\nurls = [\"etcd:2379\"]", &[":5", "`coordinator.urls`", "http://HOST:PORT"]),
    (
        "[coordinator]\nurls = [\"http://e:1\"]\nlease = \"1s\"",
        &[":6", "`coordinator.lease`", "between 5 and 600 seconds"],
    ),
    ("[coordinator]\nurls = [\"http://e:1\"]\nuser = \"a\"", &[":6", "`coordinator.user`", "password_file"]),
    (
        "[coordinator]\nurls = [\"http://e:1\"]\ntoken_file = \"token\"\nuser = \"a\"\npassword_file = \"token\"",
        &[":7", "`coordinator.user`", "keep one of them"],
    ),
];

/// Mistakes at the top and in the other tables.
const SETTINGS: &[Mistake] = &[
    ("listn = 1", &[":4", "listn", "expected one of", "`listen`"]),
    ("shards = 0", &[":4", "`shards`", "remove it"]),
    ("secret = \"secret\"", &[":4", "unknown field", "did you mean `secret_file`?"]),
    ("suspect_after = \"1s\"", &[":4", "`suspect_after` belongs below `[timeouts]`"]),
    ("[admin]\napps = [\"x\"]", &[":5", "`apps` belongs above the first table"]),
    ("weight = 3", &[":4", "`weight` belongs below `[[tenant]]`"]),
    ("apps = \"x\"", &[":4", "`apps`", "write a list: [\"x\"]"]),
    ("apps = [\"x\"\nshards = 1", &[":5", "or a `]` is missing above"]),
    ("shards = \"two\"", &[":4", "`shards`", "invalid type"]),
    ("sabotage = 5", &["unknown field `sabotage`"]),
    ("whole = true", &["unknown field `whole`"]),
    ("[[gate]]\nlisten = \"0.0.0.0:80\"", &[":4", "gate", "missing field `app`"]),
    ("[timeouts]\nheartbeat = \"150ms\"", &[":5", "`timeouts.heartbeat`", "twice"]),
    ("[timeouts]\nbackoff_max = \"1ms\"", &[":5", "`timeouts.backoff_max`", "backoff_min"]),
    ("[timeouts]\nlinger = \"0s\"", &[":5", "`timeouts.linger`", "more than zero"]),
    ("[limits]\ndrain = \"5\"", &[":5", "`limits.drain`", "\"30s\""]),
    ("[limits]\ncheckpoints = \"5GiB\"", &[":5", "`limits.checkpoints`", "\"1MiB\" to \"4GiB\""]),
    ("[limits]\nmove_bandwidth = \"1KiB\"", &[":5", "`limits.move_bandwidth`", "at least 1MiB", "\"0B\""]),
    ("[[tenant]]\nname = \"a\"\n[[tenant]]\nname = \"a\"", &["listed twice"]),
    ("[[tenant]]\nname = \"a\"\nweight = 0", &["at least 1"]),
    ("[log]\nlevel = \"loud\"", &[":5", "`log.level`", "`debug`"]),
];

#[test]
fn an_edges_errors_name_line_field_and_fix() {
    let place = Place::new("edge");
    for (text, words) in [CREDENTIALS, ACCESS, COORDINATOR, SETTINGS].concat() {
        let error = place.edge(&format!("{EDGE}{text}\n")).map(|_| ()).unwrap_err();
        for word in words {
            assert!(error.contains(word), "{text}: {error:?} does not say {word:?}");
        }
    }
    let error =
        place.edge("state = \"state\"\nlisten = []\nsecret_file = \"secret\"\n").map(|_| ()).unwrap_err();
    assert!(error.contains("`listen`"), "{error}");
}

#[test]
fn an_agents_errors_name_line_field_and_fix() {
    let place = Place::new("agent");
    for (text, side, words) in [
        ("edges = [\"edge-a\"]", AgentRole::Client, &[":1", "`edges`", "edge.example.org:7400"][..]),
        ("edges = []", AgentRole::Client, &["`edges`", "edge-a:7400"]),
        ("edges = [\"a:1\"]", AgentRole::Client, &["`listen`", "[[listen]]"]),
        ("edges = [\"a:1\"]", AgentRole::Server, &["`servers`", "origin"]),
        (
            "edges = [\"a:1\"]\nservers = { \"a b\" = \"c:1\" }",
            AgentRole::Server,
            &[":2", "`servers`", "a name"],
        ),
        (
            "edges = [\"a:1\"]\nservers = { web = \"c\" }",
            AgentRole::Server,
            &[":2", "`servers`", "an address of a server"],
        ),
    ] {
        let error = place.agent(text, side).map(|_| ()).unwrap_err();
        for word in words {
            assert!(error.contains(word), "{text}: {error:?} does not say {word:?}");
        }
    }
}

#[test]
fn an_agent_answers_operators_and_keeps_log_lines_only_if_configured() {
    let place = Place::new("agent-admin");
    let parse = |text: &str| {
        let source = place.source(&format!("{AGENT}{text}"));
        let read =
            agent::AgentSettings::parse(&source, AgentRole::Client).map_err(|problem| problem.to_string());
        (read, source.warnings())
    };
    let (read, warnings) = parse("[log]\nkeep = \"2MiB\"\n");
    let read = read.unwrap();
    assert!(read.admin.is_none() && read.log.kept.is_none());
    assert!(warnings[0].to_string().contains("`log.keep`"), "{warnings:?}");
    let (read, warnings) = parse("[admin]\nlisten = \"127.0.0.1:7403\"\n");
    let read = read.unwrap();
    assert_eq!((read.log.kept, warnings.len()), (Some(marram_node::logging::RING_BYTES), 0));
    assert!(read.admin.unwrap().name.ends_with("-client-agent"));
    for (text, words) in [
        ("[admin]\nlisten = \"0.0.0.0:7403\"", &[":6", "`admin.listen`", "token_file"][..]),
        ("[admin]\nlisten = \"127.0.0.1:7403\"\n[log]\nkeep = \"1KiB\"", &[":8", "`log.keep`", "64KiB"]),
    ] {
        let error = parse(text).0.map(|_| ()).unwrap_err();
        assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
    }
}

#[test]
fn a_recorders_errors_name_line_field_and_fix_and_its_sample_shows_the_defaults() {
    let place = Place::new("recorder");
    let short = "edges = [\"127.0.0.1:7400\"]\nsecret_file = \"secret\"\n";
    for (text, words) in [
        ("edges = []\nsecret_file = \"secret\"", &["`edges`", "edge-a:7400"][..]),
        ("edges = [\"a:1\"]", &["keeper_key_file", "marram config keeper-key"]),
        (
            "edges = [\"a:1\"]\nkeeper_key_file = \"secret\"",
            &[":2", "`keeper_key_file`", "marram config keeper-key"],
        ),
        (
            "edges = [\"a:1\"]\nkeeper_key_file = \"short\"",
            &[":2", "`keeper_key_file`", "marram config keeper-key"],
        ),
        (
            "edges = [\"a:1\"]\nkeeper_key_file = \"secret\"\nsecret_file = \"secret\"",
            &[":3", "`secret_file`", "`keeper_key_file`", "remove it"],
        ),
        ("edges = [\"a:1\"]\nsecret_file = \"short\"", &[":2", "`secret_file`", "openssl rand"]),
    ] {
        let error = place.recorder(text).map(|_| ()).unwrap_err();
        assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
    }
    for (text, words) in [
        ("listen = 1", &[":3", "listen", "expected one of", "`directory`"][..]),
        ("[limits]\nmemory = \"1MiB\"", &[":4", "`limits.memory`", "64MiB"]),
        ("[admin]\nlisten = \"0.0.0.0:7402\"", &[":4", "`admin.listen`", "token_file"]),
        ("[timeouts]\nedge_wait = \"5s\"", &[":4", "edge_wait", "expected one of"]),
        ("[timeouts]\nlinger = \"0s\"", &[":4", "`timeouts.linger`", "more than zero"]),
    ] {
        let error = place.recorder(&format!("{short}{text}\n")).map(|_| ()).unwrap_err();
        assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
    }
    let sample = all_settings(recorder::SAMPLE);
    let tables = |names: [&str; 2]| {
        let rest = sample.split(names[0]).nth(1).and_then(|rest| rest.split(names[1]).next()).unwrap();
        format!("{}\n{rest}", names[0])
    };
    let limits = tables(["[limits]", "# How wires"]);
    let timeouts = tables(["[timeouts]", "[log]"]);
    let shown = place.recorder(&format!("{short}{limits}\n{timeouts}")).unwrap().recorder;
    let own = place.recorder(short).unwrap().recorder;
    assert_eq!((shown.memory, shown.sessions, shown.linger), (own.memory, own.sessions, own.linger));
    let timeouts = |options: &marram_node::recorder::RecorderOptions| {
        // `linger` is a separate option of the recorder.
        marram_agent::Timeouts { linger: Duration::ZERO, ..options.timeouts.clone() }
    };
    assert_eq!(timeouts(&shown), timeouts(&own));
}

#[test]
fn routes_and_listeners_say_what_is_wrong_with_them() {
    let place = Place::new("routes");
    let route = |fields: &str| format!("{AGENT}name = \"web\"\n[[route]]\nname = \"r\"\n{fields}\n");
    for fields in [
        "app = \"a\"",
        "refuse = \"why\"\nlistener = \"web\"",
        "app = \"a\"\nlistener = \"127.0.0.1:8080\"\nclient = \"::/0\"\nclient_port = \"5\"\nprotocol = \"udp\"",
        "app = \"a\"\nsni = \"*.example.org\"\nfirst_bytes_hex = \"1603\"\npriority = -4",
    ] {
        place.agent(&route(fields), AgentRole::Client).expect(fields);
    }
    for (fields, field, says) in [
        ("", "route.app", "is missing"),
        ("app = \"a\"\nrefuse = \"b\"", "route.refuse", "one of them"),
        ("app = \"a\"\nlistener = \"mail\"", "route.listener", "there are: web"),
        ("app = \"a\"\nclient = \"10.0.0.1/8\"", "route.client", "10.1.0.0/16"),
        ("app = \"a\"\nclient_port = \"9-8\"", "route.client_port", "ends before it begins"),
        ("app = \"a\"\nclient_port = \"http\"", "route.client_port", "1024-65535"),
        ("app = \"a\"\nprotocol = \"sctp\"", "route.protocol", "\"udp\" or \"websocket\""),
        (
            "app = \"a\"\nprotocol = \"udp\"\nsni = \"x\"",
            "route.sni",
            "datagrams and WebSocket listeners do not use",
        ),
        ("app = \"a\"\nfirst_bytes = \"\"", "route.first_bytes", "1 to 64"),
        ("app = \"a\"\nfirst_bytes_hex = \"160\"", "route.first_bytes_hex", "two hexadecimal digits"),
        ("app = \"a b\"", "route.app", "a name of at most"),
        ("app = \"a\"\n[[route]]\nname = \"r\"\napp = \"b\"", "route.name", "another rule"),
    ] {
        let said = place.agent(&route(fields), AgentRole::Client).unwrap_err();
        assert!(said.contains(&format!("`{field}`")) && said.contains(says), "{fields}: {said}");
    }
    for (fields, field, says) in [
        ("idle = \"5s\"", "listen.idle", "protocol = \"udp\""),
        ("protocol = \"quic\"", "listen.protocol", "\"udp\" or \"websocket\""),
        ("protocol = \"websocket\"\nflows = 9", "listen.flows", "protocol = \"udp\""),
        ("origins = [\"*\"]", "listen.origins", "protocol = \"websocket\""),
        ("protocol = \"websocket\"\norigins = [\"play.example.org\"]", "listen.origins", "no path"),
        ("protocol = \"udp\"\nflows = 0", "listen.flows", "admits no client"),
        ("protocol = \"udp\"\nidle = \"0s\"", "listen.idle", "more than zero"),
    ] {
        let said = place.agent(&format!("{AGENT}{fields}\n"), AgentRole::Client).unwrap_err();
        assert!(said.contains(&format!("`{field}`")) && said.contains(says), "{fields}: {said}");
    }
}

#[test]
fn what_can_be_lived_with_is_a_warning() {
    let place = Place::new("warnings");
    let mode = |file: &str, mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(place.0.join(file), mode).unwrap();
    };
    let warnings = |text: &str| {
        let source = place.source(text);
        edge::EdgeSettings::parse(&source).unwrap();
        source.warnings().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    mode("secret", 0o640);
    mode("token", 0o640);
    assert_eq!(warnings(EDGE), [""; 0]);
    mode("secret", 0o644);
    let said = warnings(EDGE);
    assert!(
        matches!(&said[..], [one] if one.contains(":3: `secret_file`") && one.contains("chmod o= ")),
        "{said:?}"
    );
    mode("secret", 0o600);
    let open = EDGE.replace("127.0.0.1", "0.0.0.0");
    let said = warnings(&open);
    let words = [":2: `listen`", "token_file", "they refuse it"];
    assert!(matches!(&said[..], [one] if words.iter().all(|word| one.contains(word))), "{said:?}");
    for known in ["token_file = \"token\"", "insecure_plain = true"] {
        assert_eq!(warnings(&format!("{open}[security]\n{known}\n")), [""; 0]);
    }
    mode("token", 0o604);
    assert_eq!(warnings(&format!("{EDGE}[security]\ntoken_file = \"token\"\n")).len(), 1);
}
