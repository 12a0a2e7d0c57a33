//! Tests of the cell on its ports: many connections, one store.

use std::time::Duration;

use marram_sdk::{
    Port, PortKind,
    double::{Output, Session},
};
use memcached::Memcached;

/// Everything sent to a port, and whether it was closed in the end.
fn text(outputs: &[Output], port: Port) -> (String, bool) {
    let (mut text, mut closed) = (String::new(), false);
    for output in outputs {
        match output {
            Output::Message { port: to, payload } => {
                assert_eq!((*to, closed), (port, false));
                text.push_str(&String::from_utf8_lossy(payload));
            }
            Output::Close { port: to } => {
                assert_eq!(*to, port);
                closed = true;
            }
            Output::Connect { server, .. } => panic!("it connects to {server}"),
        }
    }
    (text, closed)
}

fn session(ports: &[u32]) -> Session<Memcached> {
    let mut session = Session::new();
    ports.iter().for_each(|port| assert!(session.open(Port(*port), PortKind::Client).is_empty()));
    session
}

#[test]
fn connections_share_the_store_and_nothing_else() {
    let ports = [0, 1, 77, u32::MAX].map(Port);
    let mut session = session(&ports.map(|port| port.0));
    // Each has an incomplete request while the others continue.
    for port in ports {
        assert!(session.message(port, format!("set k{} 0 0 4\r\nab", port.0).as_bytes()).is_empty());
    }
    for port in ports {
        assert_eq!(text(&session.message(port, b"cd\r\n"), port), ("STORED\r\n".into(), false));
    }
    for port in ports {
        let expected = "VALUE k77 0 4\r\nabcd\r\nEND\r\n".into();
        assert_eq!(text(&session.message(port, b"get k77\r\n"), port), (expected, false));
    }
}

#[test]
fn a_port_can_close_and_come_back() {
    let mut session = session(&[5, 6]);
    assert_eq!(
        text(&session.message(Port(5), b"set k 0 0 1\r\nv\r\nquit\r\n"), Port(5)),
        ("STORED\r\n".into(), true)
    );
    assert!(session.message(Port(5), b"get k\r\n").is_empty());
    assert!(session.close(Port(5)).is_empty());
    session.open(Port(5), PortKind::Client);
    let (answer, closed) = text(&session.message(Port(5), b"get k\r\nstats\r\n"), Port(5));
    assert!(answer.starts_with("VALUE k 0 1\r\nv\r\nEND\r\nSTAT pid 1\r\n") && !closed, "{answer}");
    for stat in
        ["curr_connections 2", "total_connections 3", "get_hits 1", "cmd_set 1", "curr_items 1", "bytes 128"]
    {
        assert!(answer.contains(&format!("STAT {stat}\r\n")), "{stat} in {answer}");
    }
    assert_eq!(session.close(Port(6)), [Output::close(Port(6))]);
}

#[test]
fn a_client_that_asks_for_much_waits_for_its_turn_and_gets_all_of_it() {
    let mut session = session(&[3]);
    let value = "x".repeat(1_000_000);
    session.message(Port(3), format!("set k 0 0 1000000\r\n{value}\r\n").as_bytes());
    let first = session.message(Port(3), &[&b"get"[..], &b" k".repeat(20), b"\r\n"].concat());
    let (begun, _) = text(&first, Port(3));
    assert_eq!(begun.len(), 2 * 1_000_021, "the rest waits");
    // After it has ended its stream it still gets the rest.
    let (closing, closed) = text(&session.close(Port(3)), Port(3));
    assert!(!closed);
    let (rest, closed) = text(&session.advance(Duration::from_millis(45)), Port(3));
    assert_eq!((begun.len() + closing.len() + rest.len(), closed), (20 * 1_000_021 + 5, true));
    assert_eq!(session.timers().count(), 0);
}

#[test]
fn items_go_with_session_time() {
    let mut session = session(&[0]);
    session.message(Port(0), b"set k 0 10 1\r\nv\r\n");
    session.advance(Duration::from_millis(9_999));
    assert_eq!(text(&session.message(Port(0), b"touch k 10\r\n"), Port(0)).0, "TOUCHED\r\n");
    session.advance(Duration::from_secs(9));
    assert_eq!(text(&session.message(Port(0), b"get k\r\n"), Port(0)).0, "VALUE k 0 1\r\nv\r\nEND\r\n");
    session.advance(Duration::from_millis(1001));
    assert_eq!(text(&session.message(Port(0), b"get k\r\n"), Port(0)).0, "END\r\n");
}

#[test]
fn a_datagram_is_a_request_and_shares_the_store() {
    let mut session = session(&[0]);
    session.open(Port(9), PortKind::ClientDatagrams);
    session.message(Port(0), b"set k 0 0 2\r\nhi\r\n");
    let answer = session.message(Port(9), b"\0\x07\0\0\0\x01\0\0get k\r\n");
    assert_eq!(answer, [Output::message(Port(9), b"\0\x07\0\0\0\x01\0\0VALUE k 0 2\r\nhi\r\nEND\r\n")]);
    assert_eq!(session.message(Port(9), b"get k\r\n"), []);
    assert_eq!(session.close(Port(9)), [Output::close(Port(9))]);
    assert_eq!(session.message(Port(9), b"\0\x07\0\0\0\x01\0\0get k\r\n"), []);
}

#[test]
fn servers_are_not_served() {
    let mut session = Session::<Memcached>::new();
    session.open_server();
    assert!(session.message(Port::SERVER, b"version\r\n").is_empty());
}
