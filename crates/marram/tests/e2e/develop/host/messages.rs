//! Embedded ends that send messages and datagrams.

use super::{PATIENCE, accepted, between_ends, cluster, patient, settings};
use crate::support;
use marram_cluster::{TestCluster, free_address};
use marram_host::{Client, Connection, ConnectionKind, Server};
use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

/// The n-th message: its number, and as many bytes as follow from it; two consecutive ones differ in length.
fn message(number: u32) -> Vec<u8> {
    let len = usize::try_from(number.wrapping_mul(7_919) % 3_000).unwrap();
    [&number.to_le_bytes()[..], &vec![number.to_le_bytes()[0]; len]].concat()
}

/// Echoes each message of each client, until the server is stopped.
fn serve(server: &Server) {
    for connection in server.incoming() {
        // Ends when its client does.
        thread::spawn(move || {
            while let Some(message) = connection.recv()? {
                connection.send(&message)?;
            }
            std::io::Result::Ok(())
        });
    }
}

/// Two ends of one session behind `forward`, of these kinds.
fn ends(client: &Client, server: &Server, kind: ConnectionKind) -> (Connection, Connection) {
    let near = patient(client.connect_as("forward", kind).unwrap());
    match kind {
        ConnectionKind::Stream => { &near }.write_all(b"first").unwrap(),
        ConnectionKind::Messages | ConnectionKind::Datagrams => near.send(b"first").unwrap(),
    }
    let far = accepted(server);
    match far.kind() {
        ConnectionKind::Stream => { &far }.read_exact(&mut [0; 5]).unwrap(),
        ConnectionKind::Messages | ConnectionKind::Datagrams => {
            assert_eq!(far.recv().unwrap().unwrap(), b"first")
        }
    }
    (near, far)
}

/// Waits until `count` datagrams were dropped.
fn dropped(client: &Client, count: u64) {
    let until = Instant::now() + PATIENCE;
    while client.datagrams_dropped() < count && Instant::now() < until {
        thread::yield_now();
    }
    assert_eq!(client.datagrams_dropped(), count);
}

fn killed_edges_lose_and_repeat_nothing(purpose: &'static str, kind: ConnectionKind) {
    let mut cluster = cluster(purpose, 2);
    between_ends(settings(&cluster), kind, serve, |client, mut moves| {
        let connection = patient(client.connect_as("forward", kind).unwrap());
        // Few are ahead of their answers, so that none is dropped for lack of room.
        let talk = |numbers: std::ops::Range<u32>| {
            let mut ahead = numbers.clone();
            for number in numbers {
                while ahead.start < ahead.end && ahead.start < number + 16 {
                    connection.send(&message(ahead.start)).unwrap();
                    ahead.start += 1;
                }
                assert_eq!(connection.recv().unwrap().unwrap(), message(number), "{number}");
            }
        };
        talk(0..500);
        let mut owner = moves.begun(&cluster);
        for round in 1..4 {
            thread::scope(|scope| {
                // In the middle of the exchange: some answers to earlier messages arrive after the kill.
                let talking = scope.spawn(|| talk(round * 5_000..round * 5_000 + 4_000));
                cluster.edges[owner].kill();
                talking.join().unwrap();
            });
            let dead = std::mem::replace(&mut owner, moves.moved(&cluster));
            cluster.start_edge(dead, "").unwrap();
        }
        connection.send(b"last words").unwrap();
        connection.shutdown_write().unwrap();
        assert_eq!(connection.recv().unwrap().unwrap(), b"last words");
        assert_eq!(connection.recv().unwrap(), None, "the end, in order");
        assert_eq!(connection.failure(), None);
    });
}

#[test]
fn a_killed_edge_loses_and_repeats_no_message() {
    killed_edges_lose_and_repeat_nothing("host-messages", ConnectionKind::Messages);
}

#[test]
fn a_killed_edge_loses_and_repeats_no_datagram() {
    killed_edges_lose_and_repeat_nothing("host-datagrams", ConnectionKind::Datagrams);
}

#[test]
fn messages_of_every_size_are_kept_apart_and_delivered_before_a_client_is_closed() {
    let cluster = cluster("host-sizes", 1);
    let server = Server::start_as(settings(&cluster), &[("peer", ConnectionKind::Messages)]).unwrap();
    let client = Client::start(settings(&cluster)).unwrap();
    let (near, far) = ends(&client, &server, ConnectionKind::Messages);
    assert_eq!((near.kind(), near.server()), (ConnectionKind::Messages, None));
    assert_eq!((far.kind(), far.server()), (ConnectionKind::Messages, Some("peer")));
    let sizes = [0, 1, 0, 65_507, 65_536, 65_537, 1 << 20, 0, 3];
    let expected: Vec<_> = (1..).zip(sizes).map(|(byte, size)| vec![byte; size]).collect();
    for (from, to) in [(&near, &far), (&far, &near)] {
        thread::scope(|scope| {
            scope.spawn(|| expected.iter().for_each(|message| from.send(message).unwrap()));
            for message in &expected {
                let heard = to.recv().unwrap_or_else(|error| panic!("{} bytes: {error}", message.len()));
                assert!(heard.as_ref() == Some(message), "{} bytes", message.len());
            }
        });
    }
    // A non-blocking send takes a message whole or not at all; what it took is delivered even after the connection is dropped.
    near.set_nonblocking(true).unwrap();
    let mut taken = 0;
    let refused = loop {
        match near.send(&vec![7; 1 << 20]) {
            Ok(()) => taken += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.kind(), ErrorKind::WouldBlock);
    assert_eq!(near.recv().unwrap_err().kind(), ErrorKind::WouldBlock);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..taken {
                assert_eq!(far.recv().unwrap().unwrap().len(), 1 << 20);
            }
            assert_eq!(far.recv().unwrap(), None);
            far.shutdown_write().unwrap();
        });
        near.set_nonblocking(false).unwrap();
        { &near }.flush().unwrap();
        drop(near);
        client.close().unwrap();
    });
}

#[test]
fn a_client_that_leaves_within_a_message_counts_as_broken() {
    let cluster = cluster("host-middle", 1);
    let server = Server::start_as(settings(&cluster), &[("peer", ConnectionKind::Messages)]).unwrap();
    let client = Client::start(settings(&cluster)).unwrap();
    let (near, far) = ends(&client, &server, ConnectionKind::Messages);
    near.send(b"whole").unwrap();
    // Part of a message, as if its program ended before the socket took the rest.
    let mut descriptor = UnixStream::from(near.as_fd().try_clone_to_owned().unwrap());
    descriptor.write_all(&[5, 0, 0, 0, b'h', b'a', b'l', b'f']).unwrap();
    drop((near, descriptor));
    let error = loop {
        match far.recv() {
            Ok(message) => assert_eq!(message.unwrap(), b"whole"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
}

#[test]
fn a_server_of_streams_and_datagrams_learns_the_kind() {
    let mut cluster = TestCluster::new(support::layout("host-kinds", |_| {}), |place| {
        let manifests = [("forward", "peer"), ("other", "lines"), ("third", "whole")];
        let manifest = |(app, server): (&str, &str)| {
            support::cells().manifest(place, app, "forward", &format!("server = \"{server}\"\n"))
        };
        manifests.into_iter().map(manifest).collect()
    })
    .unwrap();
    cluster.start_edges("").unwrap();
    let kinds = [
        ("peer", ConnectionKind::Datagrams),
        ("lines", ConnectionKind::Stream),
        ("whole", ConnectionKind::Messages),
    ];
    let server = Server::start_as(settings(&cluster), &kinds).unwrap();
    let client = Client::start(settings(&cluster)).unwrap();
    let mut told = BTreeSet::new();
    for (app, name, kind) in [
        ("forward", "peer", ConnectionKind::Datagrams),
        ("other", "lines", ConnectionKind::Stream),
        ("third", "whole", ConnectionKind::Messages),
    ] {
        // The client uses a stream in each case.
        let mut near = patient(client.connect(app).unwrap());
        near.write_all(app.as_bytes()).unwrap();
        let far = accepted(&server);
        assert_eq!((far.server(), far.kind()), (Some(name), kind));
        match kind {
            ConnectionKind::Stream => {
                let mut heard = vec![0; app.len()];
                { &far }.read_exact(&mut heard).unwrap();
                assert_eq!(heard, app.as_bytes());
                assert_eq!(far.recv().unwrap_err().kind(), ErrorKind::InvalidInput);
                assert_eq!(far.send(b"x").unwrap_err().kind(), ErrorKind::InvalidInput);
            }
            ConnectionKind::Messages | ConnectionKind::Datagrams => {
                assert_eq!(far.recv().unwrap().unwrap(), app.as_bytes());
                assert_eq!({ &far }.read(&mut [0]).unwrap_err().kind(), ErrorKind::InvalidInput);
                assert_eq!({ &far }.write(b"x").unwrap_err().kind(), ErrorKind::InvalidInput);
            }
        }
        told.insert(far.server().map(str::to_owned));
        near.shutdown_write().unwrap();
    }
    assert_eq!(told.len(), 3);
    for (servers, says) in [
        (&[][..], "needs a name"),
        (&[("", ConnectionKind::Datagrams)], "needs a name"),
        (&[("a", ConnectionKind::Stream), ("a", ConnectionKind::Datagrams)], "`a` is named twice"),
    ] {
        let error = Server::start_as(settings(&cluster), servers).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn datagrams_without_a_place_are_dropped_before_they_have_a_number() {
    let cluster = cluster("host-drops", 1);
    // Each datagram takes 1,000 bytes of the buffer for a session that has not begun.
    const PLACES: u32 = (256 << 10) / 1_000;
    let client = Client::start(settings(&cluster)).unwrap();
    let connection = patient(client.connect_as("forward", ConnectionKind::Datagrams).unwrap());
    let numbered = |number: u32| [&number.to_le_bytes()[..], &[0; 932]].concat();
    for number in 0..1_000 {
        connection.send(&numbered(number)).unwrap();
    }
    dropped(&client, 1_000 - u64::from(PLACES));
    let too_long = connection.send(&[0; 65_508]).unwrap_err();
    assert_eq!(too_long.kind(), ErrorKind::InvalidInput, "{too_long}");
    // The session cannot begin before its server is there.
    let server = Server::start_as(settings(&cluster), &[("peer", ConnectionKind::Datagrams)]).unwrap();
    let far = accepted(&server);
    for number in 0..PLACES {
        assert_eq!(far.recv().unwrap().unwrap(), numbered(number));
    }
    // The session has begun, and there is room for more.
    connection.send(&numbered(PLACES)).unwrap();
    connection.shutdown_write().unwrap();
    assert_eq!(far.recv().unwrap().unwrap(), numbered(PLACES));
    assert_eq!(far.recv().unwrap(), None);
    far.send(b"").unwrap();
    far.shutdown_write().unwrap();
    assert_eq!(connection.recv().unwrap().unwrap(), b"", "it was done itself, and hears what there is still");
    assert_eq!(connection.recv().unwrap(), None);
    assert_eq!(connection.failure(), None);
}

#[test]
fn failures_of_messages_are_distinguished_from_ends_with_reasons() {
    let cluster = cluster("host-messages-fail", 1);
    let server = Server::start_as(settings(&cluster), &[("peer", ConnectionKind::Datagrams)]).unwrap();
    let mut impatient = settings(&cluster);
    impatient.timeouts.drain = Duration::from_millis(300);
    let client = Client::start(impatient).unwrap();
    for kind in [ConnectionKind::Messages, ConnectionKind::Datagrams] {
        let connection = patient(client.connect_as("nonesuch", kind).unwrap());
        let error = connection.recv().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        assert!(error.to_string().contains("nonesuch") && error.to_string().contains("session "), "{error}");
        // The client aborts; the server's program learns that this is not an orderly end.
        let (near, far) = ends(&client, &server, kind);
        near.abort();
        let error = far.recv().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        assert!(far.failure().is_some());
        // The server aborts, even though it had already sent everything.
        let (near, far) = ends(&client, &server, kind);
        far.shutdown_write().unwrap();
        assert_eq!(near.recv().unwrap(), None);
        far.abort();
        loop {
            match near.send(b"y") {
                Ok(()) => thread::yield_now(),
                Err(error) => break assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
            }
        }
    }
    // A message that is too long for a datagram ends the session, with the reason.
    let (near, far) = ends(&client, &server, ConnectionKind::Messages);
    near.send(&[0; 65_508]).unwrap();
    for end in [&near, &far] {
        let error = end.recv().unwrap_err();
        assert!(error.to_string().contains("the maximum is 65507"), "{error}");
    }
    // Without an edge.
    let mut elsewhere = settings(&cluster);
    elsewhere.edges = vec![free_address().unwrap().to_string()];
    elsewhere.timeouts.edge_wait = Duration::from_millis(300);
    let lost = Client::start(elsewhere).unwrap().connect_as("forward", ConnectionKind::Datagrams).unwrap();
    lost.send(b"x").unwrap();
    let error = patient(lost).recv().unwrap_err();
    assert!(error.to_string().starts_with("session "), "{error}");
    // The agent in this program is stopped while a session is open.
    let (near, _far) = ends(&client, &server, ConnectionKind::Datagrams);
    assert_eq!(client.clone().close().unwrap_err().kind(), ErrorKind::TimedOut);
    let error = near.recv().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotConnected, "{error}");
    assert_eq!(
        client.connect_as("forward", ConnectionKind::Messages).unwrap_err().kind(),
        ErrorKind::NotConnected
    );
}
