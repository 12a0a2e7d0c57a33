//! Chains with real processes: a session through three stages outlives its edges, and the stages that an edge's configuration
//! adds to every app stay with its sessions when they move.

use crate::support::{self, traffic::Traffic};
use marram_cluster::{LogEvent, TempDir, TestCluster, TestEdge};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
/// Configuration of an edge on which every app has the stage `front` before it.
const FORCED: &str = "[chain]\nfirst = [\"front\"]\n";

/// A manifest with three stages that forward everything; the outer two delay some of it.
fn three(place: &TempDir) -> anyhow::Result<PathBuf> {
    let stage = |(name, cell)| {
        let module = format!("{}/../../target/cells/{cell}.wasm", env!("CARGO_MANIFEST_DIR"));
        format!("[[stage]]\nname = \"{name}\"\nmodule = {module:?}\n")
    };
    let stages = [("upper", "delay"), ("middle", "forward"), ("lower", "delay")].map(stage).concat();
    place.write("apps/three/marram.toml", format!("name = \"three\"\nserver = \"peer\"\n{stages}"))
}

#[test]
fn sessions_through_three_stages_outlive_their_edges() {
    let layout = support::layout("chains", |layout| layout.edges = 2);
    let mut cluster = TestCluster::new(layout, |place| Ok(vec![three(place)?])).unwrap();
    cluster.start_edges("").unwrap();
    let edges = cluster.edge_addresses();
    let mut traffic = Traffic::new();
    cluster.start_server_agent(&edges, &[("peer", traffic.server)]).unwrap();
    let listen = cluster.start_client_agent(&edges, &["three"]).unwrap()[0].address;
    let start = cluster.logs.end();
    traffic.start(listen, 3, 300_000, 7);
    let orphaned = |cluster: &TestCluster| cluster.logs.count(start, |event| event.name() == "orphaned");
    let mut kills = 0;
    // Sessions are short: the last owner that was reported may have none left when it is killed.
    while kills < 6 || orphaned(&cluster) == 0 {
        thread::sleep(Duration::from_millis(200));
        let owner = cluster.owner().unwrap();
        cluster.edges[owner].kill();
        cluster.respawn(owner).unwrap();
        kills += 1;
        assert_eq!(traffic.wrong(), Vec::<String>::new(), "kill {kills}; {}", cluster.logs.tail(40));
        assert!(kills < 60, "no kill met a session; {}", cluster.logs.tail(40));
    }
    let (sessions, bytes) = traffic.finish();
    assert!(sessions > 0 && bytes > 0, "{sessions} sessions, {bytes} B");
}

/// Edges without apps, with these peers and tables, in the domain of another run if `domain` is given.
fn empty(
    purpose: &'static str,
    edges: usize,
    peers: &[String],
    tables: &str,
    domain: Option<&TestCluster>,
) -> TestCluster {
    let layout = support::layout(purpose, |layout| {
        layout.edges = edges;
        layout.admin = format!("peers = {peers:?}\n");
        layout.edge_tables = tables.into();
    });
    let mut cluster = TestCluster::new(layout, |_| Ok(Vec::new())).unwrap();
    domain.into_iter().for_each(|other| support::same_domain(&cluster, other));
    cluster.start_edges("").unwrap();
    cluster
}

fn url(edge: &TestEdge) -> String {
    format!("http://{}", edge.admin())
}

fn deploy(cluster: &TestCluster, name: &str, cell: &str) -> Output {
    let manifest = support::cells().manifest(&cluster.directory, name, cell, "").unwrap();
    let edges = cluster.edges.iter().map(|edge| format!("--edge={}", url(edge)));
    Command::new(env!("CARGO_BIN_EXE_marram")).arg("deploy").arg(manifest).args(edges).output().unwrap()
}

fn image(edge: &TestEdge, app: &str) -> Option<String> {
    let list = edge.client().unwrap().json(hyper::Method::GET, "/v1/apps").unwrap();
    let app = list["apps"].as_array().unwrap().iter().find(|listed| listed["name"] == app)?;
    app["image"].as_str().map(str::to_owned)
}

/// A client that counts with its cell.
struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(BufReader::new(stream))
    }

    fn count(&mut self) -> String {
        self.0.get_mut().write_all(b"f").unwrap();
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.split(' ').next().unwrap_or_default().to_owned()
    }
}

#[test]
fn what_an_edge_forces_on_every_app_is_part_of_it_everywhere() {
    let mut cluster = empty("chains-forced", 2, &[], FORCED, None);
    let refused = deploy(&cluster, "counting", "counter");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && said.contains("`front`") && said.contains("deploy `front` first"),
        "{said}"
    );
    for (name, cell) in [("front", "forward"), ("counting", "counter")] {
        let output = deploy(&cluster, name, cell);
        assert!(output.status.success(), "{output:?}");
    }
    let chain = image(&cluster.edges[0], "counting").unwrap();
    assert_eq!(image(&cluster.edges[1], "counting"), Some(chain.clone()));

    let addresses = cluster.edge_addresses();
    let address = cluster.start_client_agent(&addresses, &["counting"]).unwrap()[0].address;
    let mut clients: Vec<_> = (0..4).map(|_| Client::connect(address)).collect();
    clients.iter_mut().for_each(|client| assert_eq!(client.count(), "count=1"));
    cluster.edges[0].kill();
    clients.iter_mut().for_each(|client| assert_eq!(client.count(), "count=2"));

    let admin = url(&cluster.edges[1]);
    for command in ["apps", "ps", "inspect"] {
        let arguments = [command, "--edge", &admin];
        let listed = Command::new(env!("CARGO_BIN_EXE_marram")).args(arguments).output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        assert!(listed.contains("front > counting\n"), "{command}: {listed}");
    }

    // An edge with the same configuration fetches the apps with their stages from a peer; an edge with another configuration does
    // not.
    let peer = [url(&cluster.edges[1])];
    let alike = empty("chains-alike", 1, &peer, FORCED, Some(&cluster));
    let other = empty("chains-other", 1, &peer, "", Some(&cluster));
    let copied = |cluster: &TestCluster| {
        let about = |event: &LogEvent| {
            event.name() == "deployed" && event.text("app") == "counting"
                || event.text("message").contains("could not be fetched")
        };
        cluster.logs.wait(0, PATIENCE, about).expect("it tries");
    };
    copied(&alike);
    assert_eq!(image(&alike.edges[0], "counting"), Some(chain));
    copied(&other);
    assert_eq!(image(&other.edges[0], "counting"), None);
    let why = |event: &LogEvent| event.text("message").contains("`counting` has other stages");
    assert_eq!(other.logs.count(0, why), 1, "{}", other.logs.tail(20));
}
