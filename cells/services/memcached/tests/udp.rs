//! Datagrams and their replies, including the header's bytes.

use memcached::{clock::Seconds, server::Server, udp};

const NOW: Seconds = Seconds(1000);

fn ask(server: &mut Server, header: [u8; 8], text: &[u8]) -> Vec<Vec<u8>> {
    udp::answer(&[&header, text].concat(), server, NOW)
}

#[test]
fn each_datagram_is_answered_with_its_number() {
    let mut server = Server::new(1 << 20, [0; 16], NOW);
    let stored = ask(&mut server, [0xab, 0xcd, 0, 0, 0, 1, 0, 0], b"set k 0 0 2\r\nhi\r\n");
    assert_eq!(stored, [b"\xab\xcd\0\0\0\x01\0\0STORED\r\n"]);
    let got = ask(&mut server, [0, 9, 0, 7, 0, 1, 1, 1], b"get k\r\nversion\r\n");
    assert_eq!(got, [b"\0\x09\0\0\0\x01\0\0VALUE k 0 2\r\nhi\r\nEND\r\nVERSION 1.6.0-marram\r\n"]);
}

#[test]
fn nothing_is_answered_where_nothing_is_asked() {
    let mut server = Server::new(1 << 20, [0; 16], NOW);
    assert!(udp::answer(b"\0\0\0\0\0\x01\0", &mut server, NOW).is_empty());
    for text in [&b""[..], b"set k 0 0 1 noreply\r\nx\r\n", b"set k 0 0 9\r\nx", b"get k", b"quit\r\n"] {
        assert!(ask(&mut server, [0, 0, 0, 0, 0, 1, 0, 0], text).is_empty());
    }
    assert_eq!(server.store().items(), 1);
    assert_eq!(server.store().bytes(), 128, "half a request holds no memory");
}

#[test]
fn requests_of_several_datagrams_are_refused() {
    let mut server = Server::new(1 << 20, [0; 16], NOW);
    for header in [[0, 1, 0, 0, 0, 2, 0, 0], [0, 1, 0, 0, 0, 0, 0, 0], [0, 1, 0, 0, 1, 1, 0, 0]] {
        let answer = ask(&mut server, header, b"version\r\n");
        assert_eq!(answer, [b"\0\x01\0\0\0\x01\0\0SERVER_ERROR multi-packet request not supported\r\n"]);
    }
}

#[test]
fn a_long_answer_takes_several_and_one_that_is_too_long_is_refused() {
    let mut server = Server::new(8 << 20, [0; 16], NOW);
    let header = [0, 5, 0, 0, 0, 1, 0, 0];
    for (key, len) in [("k", 3000_usize), ("large", 1_000_000)] {
        let value = vec![b'z'; len];
        let text = [format!("set {key} 0 0 {len}\r\n").as_bytes(), &value, b"\r\n"].concat();
        assert_eq!(ask(&mut server, header, &text).len(), 1);
    }
    let answer = ask(&mut server, header, b"get k\r\n");
    assert_eq!(answer.iter().map(Vec::len).collect::<Vec<_>>(), [1400, 1400, 247]);
    for (datagram, sequence) in answer.iter().zip(0..) {
        assert_eq!(datagram[..8], [0, 5, 0, sequence, 0, 3, 0, 0]);
    }
    assert_eq!(ask(&mut server, header, b"get large\r\n").len(), 719);
    let refused = ask(&mut server, header, b"get large large\r\n");
    assert_eq!(refused, [b"\0\x05\0\0\0\x01\0\0SERVER_ERROR response too large for UDP\r\n"]);
}
