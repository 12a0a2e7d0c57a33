//! A client of the cell `counter`, which knows the cell's next answer.

use marram_cluster::TestCluster;
use std::{
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// A connection to the cell, and the last count.
pub(crate) struct Client(BufReader<TcpStream>, u32);

impl Client {
    /// Starts a client's agent for all edges and the app `count`, and counts for the first time.
    pub(crate) fn start(cluster: &mut TestCluster) -> Self {
        let edges = cluster.edge_addresses();
        Self::connect(cluster.start_client_agent(&edges, &["count"]).unwrap()[0].address)
    }

    /// Connects to an agent that is there, and counts once.
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut client = Self(BufReader::new(stream), 0);
        client.count();
        client
    }

    /// Counts once more.
    pub(crate) fn count(&mut self) {
        self.0.get_mut().write_all(b"f").unwrap();
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        self.1 += 1;
        assert_eq!(line.split(' ').next(), Some(&*format!("count={}", self.1)));
    }
}
