//! The demo's decoder: HTTP heads pass unchanged, and scrambled bodies from the server are decoded.
//! One running key spans each body, so this cell's state depends on every byte that it has seen. Knows of HTTP only
//! the end of a response's head and the length of its body: see `response`.

mod response;

use marram_codec::{DEMO_KEY, RunningKey};
use marram_sdk::{Cell, Context, Port, cell};

use response::{Part, Responses};

/// The decoder's state: the position in the server's stream, and the key there.
pub struct Unscramble {
    responses: Responses,
    key: RunningKey,
    /// Kept between messages so that decoding allocates nothing.
    plain: Vec<u8>,
}

impl Default for Unscramble {
    fn default() -> Self {
        Self { responses: Responses::default(), key: RunningKey::new(DEMO_KEY), plain: Vec::new() }
    }
}

impl Unscramble {
    /// Decodes one piece of the server's stream into `self.plain`, which has the same length.
    fn decode(&mut self, payload: &[u8]) {
        self.plain.clear();
        self.plain.extend_from_slice(payload);
        let mut rest = self.plain.as_mut_slice();
        while !rest.is_empty() {
            let (part, len) = self.responses.next(rest);
            let (piece, after) = rest.split_at_mut(len);
            match part {
                Part::Head => self.key = RunningKey::new(DEMO_KEY),
                Part::Scrambled => self.key.decode(piece),
                Part::Clear => {}
            }
            rest = after;
        }
    }
}

impl Cell for Unscramble {
    fn message(&mut self, context: &mut Context, port: Port, payload: &[u8]) {
        if port == Port::SERVER {
            self.decode(payload);
            context.send_to_client(&self.plain);
        } else {
            context.send_to_server(payload);
        }
    }

    fn closed(&mut self, context: &mut Context, port: Port) {
        context.close(port.opposite());
    }
}

cell!(Unscramble);

#[cfg(test)]
mod tests {
    use super::*;
    use marram_sdk::double::{Output, Session};

    fn scrambled(body: &[u8]) -> Vec<u8> {
        let mut bytes = body.to_vec();
        RunningKey::new(DEMO_KEY).encode(&mut bytes);
        bytes
    }

    fn response(head: &str, body: &[u8]) -> Vec<u8> {
        [format!("HTTP/1.1 {head}\r\n\r\n").as_bytes(), body].concat()
    }

    /// The client's view of a server's stream that arrives in pieces of one size.
    fn received(stream: &[u8], piece: usize) -> Vec<u8> {
        let mut session = Session::<Unscramble>::new();
        stream
            .chunks(piece)
            .flat_map(|chunk| session.message(Port::SERVER, chunk))
            .flat_map(|output| match output {
                Output::Message { port: Port::CLIENT, payload } => payload,
                other => panic!("{other:?}"),
            })
            .collect()
    }

    /// What the server sends and what the client must get, one pair per response.
    fn check(responses: &[(Vec<u8>, Vec<u8>)]) {
        let sent: Vec<u8> = responses.iter().flat_map(|(sent, _)| sent.clone()).collect();
        let expected: Vec<u8> = responses.iter().flat_map(|(_, seen)| seen.clone()).collect();
        for piece in [1, 2, 3, 5, 17, 64, sent.len()] {
            let seen = received(&sent, piece);
            assert!(seen == expected, "pieces of {piece}: {}", String::from_utf8_lossy(&seen));
        }
    }

    /// A response whose body arrives scrambled and is decoded.
    fn decoded(head: &str, body: &[u8]) -> (Vec<u8>, Vec<u8>) {
        (response(head, &scrambled(body)), response(head, body))
    }

    /// A response that passes unchanged.
    fn untouched(head: &str, body: &[u8]) -> (Vec<u8>, Vec<u8>) {
        (response(head, body), response(head, body))
    }

    #[test]
    fn a_body_is_decoded_and_its_head_is_not() {
        check(&[decoded("200 OK\r\nServer: nginx\r\nContent-Length: 11", b"hello world")]);
    }

    #[test]
    fn several_responses_on_one_connection_each_start_a_key() {
        check(&[
            decoded("200 OK\r\nContent-Length: 3", b"one"),
            decoded("200 OK\r\ncontent-length:0003", b"two"),
            decoded("200 OK\r\nContent-Length: 0", b""),
            decoded("200 OK\r\nCONTENT-LENGTH: \t5 ", b"three"),
        ]);
    }

    #[test]
    fn only_whole_files_are_scrambled() {
        check(&[
            untouched("100 Continue", b""),
            untouched("404 Not Found\r\nContent-Length: 4", b"gone"),
            untouched("204 No Content", b""),
            untouched("304 Not Modified\r\nContent-Length: 900", b""),
            untouched("206 Partial Content\r\nContent-Length: 2", b"ab"),
            decoded("200 OK\r\nContent-Length: 4", b"last"),
        ]);
    }

    #[test]
    fn a_body_without_length_lasts_until_the_close() {
        check(&[decoded("200 OK\r\nConnection: close", b"as long as it takes")]);
    }

    #[test]
    fn what_it_cannot_frame_passes_in_clear() {
        check(&[untouched("200 OK\r\nTransfer-Encoding: chunked", b"3\r\nabc\r\n0\r\n\r\n")]);
        check(&[untouched("200 OK\r\nContent-Length: many", b"who knows")]);
        let not_http = b"SSH-2.0-OpenSSH\r\n\r\nabc".to_vec();
        check(&[(not_http.clone(), not_http)]);
    }

    #[test]
    fn a_long_header_line_is_no_reason_to_lose_count() {
        let head = format!("200 OK\r\nSet-Cookie: {}\r\nContent-Length: 4", "x".repeat(10_000));
        check(&[decoded(&head, b"body"), decoded(&head, b"next")]);
    }

    #[test]
    fn requests_and_closes_pass() {
        let mut session = Session::<Unscramble>::new();
        let request = b"GET / HTTP/1.1\r\n\r\n";
        assert_eq!(session.message(Port::CLIENT, request), [Output::message(Port::SERVER, request)]);
        assert_eq!(session.close(Port::CLIENT), [Output::close(Port::SERVER)]);
        assert_eq!(session.close(Port::SERVER), [Output::close(Port::CLIENT)]);
    }
}
