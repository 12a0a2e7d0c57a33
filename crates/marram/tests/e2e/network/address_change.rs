//! An agent whose own address changes: all its wires break and come again from another address, and edges have to tell that it is the
//! same agent. Its programs talk to its listener, so they notice nothing.

use crate::support;
use marram_cluster::{AgentSide, free_address};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(60);
const ROUNDS: u8 = 5;

/// What is between an agent and its edges: passes its connections on, from an address that can be changed.
struct Network {
    /// The last part of 127.0.0.x.
    host: AtomicU8,
    open: Mutex<Vec<TcpStream>>,
}

impl Network {
    fn new() -> Arc<Self> {
        Arc::new(Self { host: AtomicU8::new(2), open: Mutex::default() })
    }

    /// Where the agent reaches an edge.
    fn to(self: &Arc<Self>, edge: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, network) = (listener.local_addr().unwrap(), Arc::clone(self));
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                if let Ok(far) = network.connect(edge) {
                    let streams = [near.try_clone().unwrap(), far.try_clone().unwrap()];
                    network.open.lock().unwrap().extend(streams);
                    let (near_too, far_too) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                    thread::spawn(move || pass(near, far));
                    thread::spawn(move || pass(far_too, near_too));
                }
            }
        });
        address
    }

    fn connect(&self, edge: SocketAddr) -> std::io::Result<TcpStream> {
        let from = IpAddr::V4(Ipv4Addr::new(127, 0, 0, self.host.load(SeqCst)));
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        bind(&socket, &SocketAddr::new(from, 0))?;
        connect(&socket, &edge)?;
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// The agent has another address from now on; nothing comes through on connections from the old one.
    fn change(&self) {
        self.host.fetch_add(1, SeqCst);
        for stream in self.open.lock().unwrap().drain(..) {
            _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    _ = std::io::copy(&mut from, &mut to);
    _ = to.shutdown(Shutdown::Both);
    _ = from.shutdown(Shutdown::Both);
}

/// A server that echoes datagrams.
fn datagram_echo() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 2_048];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            _ = socket.send_to(&buffer[..len], from);
        }
    });
    address
}

/// Programs of the three kinds behind one agent, each with one connection.
struct Programs {
    tcp: TcpStream,
    udp: UdpSocket,
    websocket: TcpStream,
}

impl Programs {
    fn new(tcp: SocketAddr, udp: SocketAddr, websocket: SocketAddr) -> Self {
        let programs = Self {
            tcp: TcpStream::connect(tcp).unwrap(),
            udp: UdpSocket::bind("127.0.0.1:0").unwrap(),
            websocket: TcpStream::connect(websocket).unwrap(),
        };
        programs.tcp.set_read_timeout(Some(PATIENCE)).unwrap();
        programs.websocket.set_read_timeout(Some(PATIENCE)).unwrap();
        programs.udp.set_read_timeout(Some(PATIENCE)).unwrap();
        programs.udp.connect(udp).unwrap();
        programs
    }

    fn upgrade(&mut self) {
        let request = "GET / HTTP/1.1\r\nHost: gate\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
            Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        self.websocket.write_all(request.as_bytes()).unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.websocket.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        assert!(head.starts_with(b"HTTP/1.1 101 "));
    }

    /// Sends something of each program; returns what its answer must be.
    fn send(&mut self, round: u8) -> [u8; 100] {
        let bytes = [round; 100];
        self.tcp.write_all(&bytes).unwrap();
        self.udp.send(&bytes).unwrap();
        let frame = [&[0x82, 0x80 | 100, 0, 0, 0, 0][..], &bytes].concat();
        self.websocket.write_all(&frame).unwrap();
        bytes
    }

    fn receive(&mut self, sent: [u8; 100]) {
        let mut answer = [0; 100];
        self.tcp.read_exact(&mut answer).unwrap();
        assert_eq!(answer, sent, "of the stream");
        assert_eq!(self.udp.recv(&mut answer).unwrap(), 100);
        assert_eq!(answer, sent, "of the datagrams");
        let mut frame = [0; 102];
        self.websocket.read_exact(&mut frame).unwrap();
        assert_eq!(frame[..2], [0x82, 100]);
        assert_eq!(frame[2..], sent, "of the WebSocket");
    }
}

#[test]
fn programs_keep_their_sessions_while_their_agent_changes_its_address() {
    let network = Network::new();
    let layout = support::layout("address-change", |layout| layout.edges = 2);
    let apps = |place: &_| {
        let cells = support::cells();
        let on = |server: &str| format!("server = {server:?}\nprotect = \"endpoints\"\n");
        Ok(vec![
            cells.manifest(place, "stream", "forward", &on("stream"))?,
            cells.manifest(place, "datagrams", "forward", &on("datagrams"))?,
        ])
    };
    let mut cluster = marram_cluster::TestCluster::new(layout, apps).unwrap();
    cluster.start_edges("").unwrap();
    let edges = cluster.edge_addresses();
    let servers = format!(
        "servers = {{ stream = \"{}\", datagrams = \"udp://{}\" }}",
        support::serve::echo(),
        datagram_echo()
    );
    cluster.start_agent_with(AgentSide::Server, &edges, &servers).unwrap();
    let relayed: Vec<SocketAddr> = edges.iter().map(|edge| network.to(*edge)).collect();
    let addresses = [(); 3].map(|()| free_address().unwrap());
    let listener = |(address, app, protocol): (SocketAddr, &str, &str)| {
        format!("[[listen]]\naddress = \"{address}\"\napp = \"{app}\"\nprotocol = \"{protocol}\"\n")
    };
    let [tcp, udp, websocket] = addresses;
    let listeners = [(tcp, "stream", "tcp"), (udp, "datagrams", "udp"), (websocket, "stream", "websocket")];
    let tables: String = listeners.into_iter().map(listener).collect();
    cluster.start_agent_with(AgentSide::Client, &relayed, &tables).unwrap();
    let mut programs = Programs::new(tcp, udp, websocket);
    programs.upgrade();
    for round in 0..ROUNDS {
        let sent = programs.send(2 * round);
        programs.receive(sent);
        // Once while nothing is on its way, and once with messages under way.
        network.change();
        let sent = programs.send(2 * round + 1);
        network.change();
        programs.receive(sent);
    }
    let ended = cluster.logs.all(0, |event| event.name() == "ended");
    assert!(ended.is_empty(), "a session ended: {}", cluster.logs.tail(40));
}
