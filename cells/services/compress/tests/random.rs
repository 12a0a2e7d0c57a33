//! Random conversations in both modes, split anywhere: each side reads what the other one sent. And random bytes, which must
//! neither trap nor be accepted as valid.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use compress::codec::{Decoder, Encoder, Format};
use marram_sdk::double::Random;
use support::{Conversation, gzip, plain};

/// Bytes, some of which are compressible.
fn random_content(random: &mut Random) -> Vec<u8> {
    let len = random.pick(&[0, 1, 19, 500, 3000, 150_000]);
    let variety = random.pick(&[1, 4, 256]);
    (0..len).map(|_| random.below(variety).to_le_bytes()[0]).collect()
}

/// The body with framing, and the framing's fields.
fn randomly_framed(random: &mut Random, body: &[u8]) -> Vec<u8> {
    if random.below(2) == 0 {
        return [format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes(), body].concat();
    }
    let mut wire = b"Transfer-Encoding: chunked\r\n\r\n".to_vec();
    let most = random.pick(&[3, 1000, 40_000]);
    let mut rest = body;
    // Small chunks only for small bodies.
    while !rest.is_empty() {
        let (chunk, after) = rest.split_at((1 + random.below(most.max(body.len() / 50))).min(rest.len()));
        wire.extend_from_slice(format!("{:X}{}\r\n", chunk.len(), random.pick(&["", ";a=b"])).as_bytes());
        wire.extend_from_slice(chunk);
        wire.extend_from_slice(b"\r\n");
        rest = after;
    }
    wire.extend_from_slice(random.pick(&["0\r\n\r\n", "00\r\nX-Sum: 1\r\n\r\n"]).as_bytes());
    wire
}

/// The expected result of one exchange on both sides.
struct Exchange {
    request: Vec<u8>,
    asked: Vec<u8>,
    is_head: bool,
    takes_gzip: bool,
    answer: Vec<u8>,
}

fn exchange(random: &mut Random) -> Exchange {
    let method = random.pick(&["GET", "HEAD", "POST", "PUT"]);
    let accept = random.pick(&[
        "",
        "Accept-Encoding: gzip, br\r\n",
        "Accept-Encoding: gzip;q=0\r\n",
        "Accept-Encoding: identity\r\n",
    ]);
    let content =
        random.pick(&["", "Content-Type: text/html\r\n", "Content-Type: application/octet-stream\r\n"]);
    let head = format!("{method} /{} HTTP/1.1\r\nHost: a\r\n{accept}{content}", random.below(1000));
    let asked = if matches!(method, "POST" | "PUT") { random_content(random) } else { Vec::new() };
    let mut request = head.into_bytes();
    if asked.is_empty() {
        request.extend_from_slice(b"\r\n");
    } else {
        request.extend(randomly_framed(random, &asked));
    }
    Exchange {
        request,
        asked,
        is_head: method == "HEAD",
        takes_gzip: accept.contains("gzip,"),
        answer: random_content(random),
    }
}

/// The server's response to a request with these properties.
fn answer(random: &mut Random, exchange: &Exchange, fields: &str) -> Vec<u8> {
    let content = random.pick(&["", "Content-Type: text/html\r\n", "Content-Type: image/png\r\n"]);
    let compresses = fields.contains("gzip") && random.below(2) == 0;
    let coding = if compresses { "Content-Encoding: gzip\r\n" } else { "" };
    let body = if compresses { gzip(&exchange.answer) } else { exchange.answer.clone() };
    let early = random.pick(&["", "", "HTTP/1.1 100 Continue\r\n\r\n"]);
    let head =
        format!("{early}HTTP/1.1 {}\r\n{content}{coding}", random.pick(&["200 OK", "404 Not Found", "403 "]));
    let framed = randomly_framed(random, &body);
    let kept = if exchange.is_head {
        framed.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4
    } else {
        framed.len()
    };
    [head.as_bytes(), &framed[..kept]].concat()
}

#[test]
fn any_cut_of_any_conversation_brings_each_side_what_the_other_said() {
    for seed in 0..200 {
        let random = &mut Random::new(seed);
        let requests = random.pick(&["", "requests compress", "requests decompress"]);
        let mut talk = Conversation::new(requests);
        let exchanges: Vec<Exchange> = (0..12).map(|_| exchange(random)).collect();
        let said: Vec<u8> = exchanges.iter().flat_map(|exchange| exchange.request.clone()).collect();
        let piece = random.pick(&[1, 5, 300, 70_000, 1 << 20]).max(said.len() / 3000);
        talk.client(&said, piece);
        let (mut heard, mut answers) = (talk.take_server(), Vec::new());
        plain::assert_passes_again(&heard);
        for exchange in &exchanges {
            let asked = support::read(&mut heard, false);
            assert_eq!(asked.body, exchange.asked, "seed {seed}");
            answers.extend(answer(random, exchange, &asked.fields));
        }
        assert!(heard.is_empty());
        let piece = random.pick(&[1, 5, 300, 70_000, 1 << 20]).max(answers.len() / 3000);
        talk.server(&answers, piece);
        let mut heard = talk.take_client();
        for exchange in &exchanges {
            let mut message = support::read(&mut heard, exchange.is_head);
            if message.status == "100 Continue" {
                message = support::read(&mut heard, exchange.is_head);
            }
            let wanted = if exchange.is_head { &[][..] } else { &exchange.answer };
            assert!(message.body == wanted, "seed {seed}: {}{}", message.status, message.fields);
            assert!(exchange.takes_gzip || !message.fields.contains("Content-Encoding"), "seed {seed}");
        }
        assert!(heard.is_empty() && !talk.is_closed(0), "{}", talk.reasons());
    }
}

#[test]
fn noise_ends_in_order_and_what_passes_of_it_would_pass_again() {
    let words = [
        "GET / HTTP/1.1\r\n",
        "POST / HTTP/1.1\r\n",
        "\r\n",
        "\r\n\r\n",
        "\n",
        "Content-Length: 3\r\n",
        "Transfer-Encoding: chunked\r\n",
        "3\r\nabc\r\n",
        "0\r\n\r\n",
        "HTTP/1.1 200 OK\r\n",
        "Content-Encoding: gzip\r\n",
        "Content-Type: text/html\r\n",
        "Upgrade: x\r\nConnection: upgrade\r\n",
        "HTTP/1.1 101 \r\n",
        "\x1f",
        ": ",
        "\0",
        "ffffffff\r\n",
        "HTTP/1.1 100 \r\n",
        "Accept-Encoding: gzip\r\n",
    ];
    for seed in 0..3000 {
        let random = &mut Random::new(seed);
        let config = random.pick(&[
            "",
            "requests compress",
            "requests decompress",
            "mode stream",
            "mode stream\ndirection decompress",
        ]);
        let mut talk = Conversation::new(config);
        for _ in 0..60 {
            let word = random.pick(&words).as_bytes();
            let piece = 1 + random.below(20);
            if random.below(2) == 0 { talk.client(word, piece) } else { talk.server(word, piece) }
        }
        talk.client_ends();
        talk.server_ends();
        assert!(talk.is_closed(0) && talk.is_closed(1), "seed {seed}");
        if !config.contains("stream") {
            plain::assert_passes_again(&talk.take_server());
        }
    }
}

#[test]
fn two_cells_are_a_pair_and_so_are_a_cell_and_a_server_with_zlib() {
    for seed in 0..60 {
        let random = &mut Random::new(seed);
        let (name, format) =
            random.pick(&[("gzip", Format::Gzip), ("zlib", Format::Zlib), ("deflate", Format::Deflate)]);
        let mut near =
            Conversation::new(&format!("mode stream\nformat {name}\nlevel {}", 1 + random.below(9)));
        let mut far = Conversation::new(&format!("mode stream\nformat {name}\ndirection decompress"));
        let (mut encoder, mut decoder) = (Encoder::new(format, 6), Decoder::new(format));
        let (mut wire_bytes, mut plain_bytes) = (0, 0);
        for _ in 0..20 {
            let word = random_content(random);
            let piece = random.pick(&[7, 1000, 1 << 20]).max(word.len() / 100);
            // Forward.
            near.client(&word, piece);
            let wire = near.take_server();
            (wire_bytes, plain_bytes) = (wire_bytes + wire.len(), plain_bytes + word.len());
            far.client(&wire, 1 + random.below(5000));
            assert!(far.take_server() == word, "seed {seed}: what was flushed can be read");
            let mut plain = Vec::new();
            assert_eq!(decoder.read(&wire, &mut plain, 1 << 20), Ok(wire.len()));
            assert!(plain == word);
            // Back.
            far.server(&word, piece);
            let wire = far.take_client();
            near.server(&wire, 1 + random.below(5000));
            assert!(near.take_client() == word, "seed {seed}");
        }
        assert!(wire_bytes < plain_bytes + 100_000);
        // A half-close is passed on, after the stream's end.
        near.client_ends();
        assert!(near.is_closed(1) && !near.is_closed(0));
        far.client(&near.take_server(), 3);
        far.client_ends();
        assert!(far.is_closed(1) && !far.is_closed(0));
        // The other direction ends at a real server.
        let mut other = Conversation::new(&format!("mode stream\nformat {name}"));
        let mut wire = Vec::new();
        encoder.write(b"only this", &mut wire);
        encoder.finish(&mut wire);
        other.server(&wire, 1 + random.below(9));
        other.server_ends();
        assert!(other.is_closed(0) && other.take_client() == b"only this");
        assert_eq!(near.reasons() + &far.reasons() + &other.reasons(), "");
    }
}

#[test]
fn a_stream_that_is_cut_short_or_is_none_says_so() {
    let mut talk = Conversation::new("mode stream");
    talk.server(&gzip(b"a long word")[..15], 4);
    talk.server_ends();
    assert!(talk.is_closed(0) && talk.reasons().contains("cut short"));
    // Bytes after a stream are reported, not dropped silently; another gzip member is part of the stream.
    for (name, format, goes_on) in
        [("gzip", Format::Gzip, true), ("zlib", Format::Zlib, false), ("deflate", Format::Deflate, false)]
    {
        let (mut encoder, mut wire) = (Encoder::new(format, 6), Vec::new());
        for word in [b"one", b"two"] {
            encoder.write(word, &mut wire);
            encoder.finish(&mut wire);
            encoder.reset();
        }
        for piece in 1..=wire.len() {
            let mut talk = Conversation::new(&format!("mode stream\nformat {name}"));
            talk.server(&wire, piece);
            assert_eq!(talk.take_client(), if goes_on { &b"onetwo"[..] } else { b"one" });
            if goes_on {
                assert!(!talk.is_closed(0));
                talk.server(b"?", 1);
            }
            assert!(talk.is_closed(0) && talk.is_closed(1) && talk.reasons().contains("behind the end"));
        }
    }
    let mut talk = Conversation::new("mode stream");
    talk.server(b"HTTP/1.1 200 OK\r\n", 100);
    assert!(talk.is_closed(0) && talk.is_closed(1) && talk.reasons().contains("make no sense"));
}
