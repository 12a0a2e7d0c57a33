//! Streams of random requests, split anywhere and pipelined, against the naive cache. And streams of invalid
//! requests.

mod traffic;

use marram_sdk::double::Random;
use memcached::{
    clock::Seconds,
    connection::{Connection, Progress},
    server::Server,
};
use traffic::{Naive, request};

/// After the dates that the traffic uses as past, before those it uses as future.
const NOW: Seconds = Seconds(1_800_000_000);

fn server() -> Server {
    Server::new(8 << 20, [3; 16], NOW)
}

/// The replies of a connection to a stream in pieces; `piece` gives their lengths.
fn answers(server: &mut Server, stream: &[u8], mut piece: impl FnMut() -> usize) -> (Vec<u8>, Progress) {
    let (mut connection, mut out) = (Connection::default(), Vec::new());
    let (mut rest, mut progress) = (stream, Progress::Waiting);
    while !rest.is_empty() && progress != Progress::Closed {
        let (now, later) = rest.split_at(piece().clamp(1, rest.len()));
        let mut reply = Vec::new();
        progress = connection.receive(now, server, NOW, &mut reply);
        while progress == Progress::Paused {
            out.append(&mut reply);
            progress = connection.resume(server, NOW, &mut reply);
        }
        out.append(&mut reply);
        rest = later;
    }
    connection.close(server);
    (out, progress)
}

#[test]
fn any_cut_of_any_stream_gets_the_answers_of_the_naive_cache() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let (mut naive, mut stream, mut expected) = (Naive::default(), Vec::new(), Vec::new());
        for _ in 0..200 {
            let (sent, answer) = naive.exchange(&request(&mut random));
            stream.extend(sent);
            expected.extend(answer);
        }
        let longest = [1, 2, 7, 100, 5000, stream.len()][random.below(6)];
        let (seen, _) = answers(&mut server(), &stream, || 1 + random.below(longest));
        let same = seen.iter().zip(&expected).take_while(|(a, b)| a == b).count();
        assert!(
            seen == expected,
            "seed {seed}, pieces to {longest}: after {:?} came {:?} instead of {:?}",
            String::from_utf8_lossy(&expected[same.saturating_sub(40)..same]),
            String::from_utf8_lossy(&seen[same..seen.len().min(same + 60)]),
            String::from_utf8_lossy(&expected[same..expected.len().min(same + 60)]),
        );
    }
}

#[test]
fn noise_is_answered_alike_however_it_is_cut_and_leaks_no_memory() {
    let words: [&[u8]; 14] = [
        b"set ", b"get ", b"k ", b"0 ", b"1 ", b"30 ", b"noreply", b"\r\n", b"\n", b"\r", b"gat ", b"-1 ",
        b"\0\xff", b"append ",
    ];
    for seed in 0..500 {
        let mut random = Random::new(seed);
        let stream: Vec<u8> = (0..400).flat_map(|_| words[random.below(words.len())]).copied().collect();
        let (mut whole, mut cut) = (server(), server());
        let expected = answers(&mut whole, &stream, || usize::MAX);
        assert_eq!(answers(&mut cut, &stream, || 1 + random.below(9)), expected, "seed {seed}");
        // Only readable items are left; drafts are gone.
        let (kept, _) =
            answers(&mut cut, b"flush_all\r\ndelete k\r\ndelete 0\r\ndelete 1\r\nget k\r\n", || 9);
        assert!(kept.ends_with(b"END\r\n"));
    }
}

#[test]
fn a_value_that_is_cut_off_gives_its_memory_back() {
    let mut server = server();
    for _ in 0..100 {
        answers(&mut server, b"set k 0 0 1000000\r\nhalf of it", || 5);
    }
    assert_eq!(server.store().bytes(), 0);
}

#[test]
fn what_is_too_large_is_refused_and_what_follows_is_served() {
    let value = vec![b'x'; 1_048_577];
    let stream = |name: &str| {
        let head = format!("set k 0 0 1\r\nv\r\n{name} k 0 0 {}\r\n", value.len());
        [head.as_bytes(), &value, b"\r\nget k\r\n"].concat()
    };
    let cases = [
        // A refused `set` removes the old value, so that it cannot be read any more.
        ("set", "STORED\r\nSERVER_ERROR object too large for cache\r\nEND\r\n"),
        ("add", "STORED\r\nSERVER_ERROR object too large for cache\r\nVALUE k 0 1\r\nv\r\nEND\r\n"),
    ];
    for (name, expected) in cases {
        let (seen, _) = answers(&mut server(), &stream(name), || 60_000);
        assert_eq!(String::from_utf8_lossy(&seen), expected);
    }
}

#[test]
fn lines_without_end_close_and_long_lines_of_keys_do_not() {
    let keys = "get ".to_owned() + &"k ".repeat(100_000);
    let cases = [
        ("x".repeat(2049), "", Progress::Closed),
        ("x".repeat(2048), "", Progress::Waiting),
        ("x".repeat(2048) + "\r\n", "ERROR\r\n", Progress::Waiting),
        (keys.clone(), "", Progress::Waiting),
        (keys + "\r\n", "END\r\n", Progress::Waiting),
        ("get ".to_owned() + &"k ".repeat(600_000), "", Progress::Closed),
        ("quit\r\nversion\r\n".to_owned(), "", Progress::Closed),
    ];
    for (stream, expected, progress) in cases {
        let (seen, end) = answers(&mut server(), stream.as_bytes(), || 1000);
        assert_eq!((String::from_utf8_lossy(&seen).as_ref(), end), (expected, progress), "{:.20}", stream);
    }
}

#[test]
fn a_short_request_for_much_is_answered_in_bounded_pieces() {
    let mut server = server();
    let value = vec![b'x'; 1_000_000];
    let store = [b"set k 0 0 1000000\r\n", value.as_slice(), b"\r\n"].concat();
    assert_eq!(answers(&mut server, &store, || 50_000).0, b"STORED\r\n");
    let (mut connection, mut out) = (Connection::default(), Vec::new());
    let mut progress =
        connection.receive(b"get k k k k k k k k k k\r\nversion\r\n", &mut server, NOW, &mut out);
    let mut pieces = Vec::new();
    while progress == Progress::Paused {
        pieces.push(out.len());
        out.clear();
        progress = connection.resume(&mut server, NOW, &mut out);
    }
    assert_eq!((pieces, out.as_slice()), (vec![1_000_021; 10], &b"END\r\nVERSION 1.6.0-marram\r\n"[..]));
}
