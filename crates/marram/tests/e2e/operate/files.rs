//! Files that a manifest names: from the folder of the manifest, through the admin API or a peer, into the tree that cells read
//! with the standard library.

use crate::support;
use marram_cluster::{LogEvent, TestCluster};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Output};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// Edges without apps, with these lines in `[admin]`, in the domain of another run if `domain` is given.
fn empty(purpose: &'static str, edges: usize, admin: String, domain: Option<&TestCluster>) -> TestCluster {
    let layout = support::layout(purpose, |layout| (layout.edges, layout.admin) = (edges, admin));
    let mut cluster = TestCluster::new(layout, |_| Ok(Vec::new())).unwrap();
    domain.into_iter().for_each(|other| support::same_domain(&cluster, other));
    cluster.start_edges("").unwrap();
    cluster
}

/// Deploys the cell `counter` with `files` appended to its manifest.
fn deploy(cluster: &TestCluster, files: &str) -> Output {
    let manifest = support::cells().manifest(&cluster.directory, "reader", "counter", files).unwrap();
    let edges = cluster.edges.iter().map(|edge| format!("--edge={}", edge.admin()));
    Command::new(env!("CARGO_BIN_EXE_marram")).arg("deploy").arg(manifest).args(edges).output().unwrap()
}

fn images(cluster: &TestCluster) -> Vec<String> {
    let image = |edge: &marram_cluster::TestEdge| {
        let list = edge.client().unwrap().json(hyper::Method::GET, "/v1/apps").unwrap();
        list["apps"][0]["image"].as_str().unwrap().to_owned()
    };
    cluster.edges.iter().map(image).collect()
}

/// A session; its cell reads a line for each request.
struct Reader(BufReader<TcpStream>);

impl Reader {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(BufReader::new(stream))
    }

    fn next(&mut self) -> String {
        self.0.get_mut().write_all(b"w").unwrap();
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

#[test]
fn a_cell_reads_its_apps_files_wherever_it_lives() {
    let mut cluster = empty("files", 2, String::new(), None);
    cluster.directory.write("apps/reader/lists/short.txt", "marram\nlyme\nsea sandwort\n").unwrap();
    let files = "[[files]]\npath = \"/etc/words\"\nsource = \"lists/short.txt\"\n";
    let output = deploy(&cluster, files);
    assert!(output.status.success(), "{output:?}");
    let first = images(&cluster);
    assert_eq!(first[0], first[1], "the same bytes are the same image");
    let addresses = cluster.edge_addresses();
    let address = cluster.start_client_agent(&addresses, &["reader"]).unwrap()[0].address;
    let mut reader = Reader::connect(address);
    assert_eq!(reader.next(), "count=1 word=marram");
    // The other edge has the file too, and the session's position in it.
    let owner = cluster.owner().unwrap();
    cluster.edges[owner].kill();
    assert_eq!(reader.next(), "count=2 word=lyme");
    assert_eq!(reader.next(), "count=3 word=sea sandwort");

    // An edge that fetches the app from a peer must not need the file's folder.
    std::fs::remove_file(cluster.directory.path().join("apps/reader/lists/short.txt")).unwrap();
    let peer = cluster.edges[1 - owner].admin();
    let mut new = empty("files-peer", 1, format!("peers = [\"http://{peer}\"]\n"), Some(&cluster));
    let deployed = |event: &LogEvent| event.name() == "deployed" && event.text("app") == "reader";
    new.logs.wait(0, PATIENCE, deployed).expect("it is fetched");
    assert_eq!(images(&new)[0], first[0]);
    let addresses = new.edge_addresses();
    let address = new.start_client_agent(&addresses, &["reader"]).unwrap()[0].address;
    assert_eq!(Reader::connect(address).next(), "count=1 word=marram");
}

#[test]
fn other_bytes_are_another_image_and_no_file_is_an_error_that_the_cell_sees() {
    let mut cluster = empty("files-other", 1, String::new(), None);
    let files = "[[files]]\npath = \"/etc/words\"\nsource = \"words\"\n";
    let mut names = Vec::new();
    for contents in ["one\n", "two\n"] {
        cluster.directory.write("apps/reader/words", contents).unwrap();
        assert!(deploy(&cluster, files).status.success());
        names.push(images(&cluster).remove(0));
    }
    assert!(deploy(&cluster, "").status.success());
    names.push(images(&cluster).remove(0));
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 3, "{names:?}");
    let addresses = cluster.edge_addresses();
    let address = cluster.start_client_agent(&addresses, &["reader"]).unwrap()[0].address;
    assert_eq!(Reader::connect(address).next(), "count=1 word=NotFound");
}

#[test]
fn a_file_that_cannot_be_had_is_named_with_its_field_and_nothing_is_deployed() {
    let cluster = empty("files-bad", 1, String::new(), None);
    cluster.directory.write("apps/secret", "not the app's").unwrap();
    for (source, words) in [
        ("missing", &["marram.toml:5", "`files.source`", "cannot be read"][..]),
        ("../secret", &["marram.toml:5", "`files.source`", "absolute = true"]),
    ] {
        let output = deploy(&cluster, &format!("[[files]]\npath = \"/a\"\nsource = {source:?}\n"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        words.iter().for_each(|word| assert!(said.contains(word), "{said}"));
    }
    // A client of the admin API other than `marram deploy` can leave out files.
    let manifest = "name = \"reader\"\nmodule = \"m\"\n[[files]]\npath = \"/a\"\nsource = \"a\"\n";
    let upload = marram_admin::body::Upload {
        manifest: manifest.into(),
        parts: vec![bytes::Bytes::from_static(b"\0asm")],
    };
    let client = cluster.edges[0].client().unwrap();
    let error = client.call(hyper::Method::POST, "/v1/apps", upload.encode().unwrap()).unwrap_err();
    assert!(error.to_string().contains("names 1 files, and 0 were sent"), "{error}");
    let list = client.json(hyper::Method::GET, "/v1/apps").unwrap();
    assert_eq!(list["apps"].as_array().map(Vec::len), Some(0));
}
