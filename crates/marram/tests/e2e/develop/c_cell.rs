//! Cells written in C, with real processes: they survive the same faults as those in Rust.

use crate::support;
use marram_cluster::TestCluster;
use marram_wire::limits::{INPUT_WINDOW, STREAM_CUT, charge};
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// Whether this cell is built here.
fn is_built(name: &str) -> bool {
    let built = support::cells().module(name).is_file();
    if !built {
        support::skip::skip("cells in C are not built here: there is no C compiler for Wasm");
    }
    built
}

fn connect(address: SocketAddr) -> BufReader<TcpStream> {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    BufReader::new(stream)
}

/// Sends the text, and reads a line.
fn ask(client: &mut BufReader<TcpStream>, text: &str) -> String {
    client.get_mut().write_all(text.as_bytes()).unwrap();
    let mut line = String::new();
    client.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

#[test]
fn cells_in_c_outlive_their_edges() {
    if !is_built("c/counter") {
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

#[test]
fn a_cell_in_c_pauses_its_client_across_a_kill_and_knows_its_address() {
    const ALL: u64 = 4 << 20;
    if !is_built("c/valve") {
        return;
    }
    let layout = support::layout("c-valve", |layout| layout.edges = 2);
    let apps = |place: &_| Ok(vec![support::cells().manifest(place, "valve", "c/valve", "")?]);
    let mut cluster = TestCluster::new(layout, apps).unwrap();
    cluster.start_edges("").unwrap();
    let edges = cluster.edge_addresses();
    let listens = cluster.start_client_agent(&edges, &["valve"]).unwrap();

    let mut client = connect(listens[0].address);
    let local = client.get_ref().local_addr().unwrap();
    // Long enough for all bytes to arrive, if nothing held them back.
    assert_eq!(ask(&mut client, "pause 1500\n"), "paused");
    let (owner, start) = (cluster.owner().unwrap(), cluster.logs.end());
    cluster.edges[owner].kill();
    client.get_mut().write_all(&vec![b'x'; usize::try_from(ALL).unwrap()]).unwrap();
    cluster.wait_for_owner(start).unwrap();
    client.get_ref().shutdown(Shutdown::Write).unwrap();
    let mut line = String::new();
    client.read_line(&mut line).unwrap();

    let said: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(said[..3], [&local.to_string()[..], &listens[0].address.to_string(), "unknown"], "{line}");
    let [paused, all] = [3, 4].map(|at| said[at].parse::<u64>().unwrap());
    assert!(paused <= INPUT_WINDOW + charge(STREAM_CUT), "{paused} B arrived while the client was paused");
    assert_eq!(all, ALL);
}
