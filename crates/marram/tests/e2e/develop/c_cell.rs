//! Cells written in C, with real processes: they survive the same faults as those in Rust.

use crate::support;
use marram_cluster::TestCluster;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn cells_in_c_outlive_their_edges() {
    if !support::cells().module("c/counter").is_file() {
        support::skip::skip("cells in C are not built here: there is no C compiler for Wasm");
        return;
    }
    let layout = support::layout("c-cell", |layout| layout.edges = 4);
    let mut cluster = TestCluster::new(layout, |place| {
        let cells = support::cells();
        Ok(vec![
            cells.manifest(place, "counter", "c/counter", "[keep]\nrecovery_target = \"50us\"\n")?,
            cells.manifest(place, "shout", "c/shout", "")?,
        ])
    })
    .unwrap();
    cluster.start_edges("").unwrap();
    let edges = cluster.edge_addresses();
    let listens = cluster.start_client_agent(&edges, &["counter", "shout"]).unwrap();
    let connect = |address| {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        BufReader::new(stream)
    };
    let ask = |client: &mut BufReader<TcpStream>, text: &str| {
        client.get_mut().write_all(text.as_bytes()).unwrap();
        let mut line = String::new();
        client.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    };
    let mut counter = connect(listens[0].address);
    for n in 1..=30 {
        // More memory than a page, so that there is state to preserve.
        assert!(ask(&mut counter, "frm").starts_with(&format!("count={n} float=")));
        if n % 10 == 0 {
            let (owner, start) = (cluster.owner().unwrap(), cluster.logs.end());
            cluster.edges[owner].kill();
            cluster.wait_for_owner(start).unwrap();
        }
    }
    assert!(ask(&mut counter, "m").ends_with("kept=31"));

    let mut shout = connect(listens[1].address);
    assert_eq!(ask(&mut shout, "hello\n"), "HELLO");
    assert_eq!(ask(&mut shout, "again\n"), "AGAIN");
    shout.get_ref().shutdown(Shutdown::Write).unwrap();
    let mut line = String::new();
    shout.read_line(&mut line).unwrap();
    assert_eq!(line, "2 messages\n");
}
