//! The mode `http`, message by message: what the server is asked, what the client gets, and what is refused, however the
//! streams are split.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use support::{Conversation, gunzip, gzip};

const HTML: &str = "Content-Type: text/html; charset=utf-8\r\n";

/// One request and its response, in pieces of several sizes. `wanted` is what the server and then the client must get. If a
/// body's bytes depend on the split, the response is parsed (`support::read`) and compared as `STATUS|fields|body`.
fn check(request: &str, response: &[u8], server: &str, client: &str) {
    for piece in [1, 2, 7, 100_000] {
        let mut talk = Conversation::new("");
        talk.client(request.as_bytes(), piece);
        assert_eq!(talk.server_heard(), server, "pieces of {piece}");
        talk.server(response, piece);
        let heard = support::read(&mut talk.take_client(), request.starts_with("HEAD"));
        assert_eq!(heard.to_string(), client, "pieces of {piece}: {request}");
        assert_eq!(talk.reasons(), "");
    }
}

fn response(head: &str, body: &[u8]) -> Vec<u8> {
    [format!("HTTP/1.1 {head}\r\n").as_bytes(), body].concat()
}

#[test]
fn the_server_is_asked_for_gzip_and_a_client_that_did_not_ask_gets_plain_text() {
    let body = gzip(b"a page");
    let head = format!(
        "200 OK\r\nETag: \"x\"\r\n{HTML}Content-Encoding: gzip\r\nAccept-Ranges: bytes\r\nContent-Length: {}\r\n",
        body.len()
    );
    check(
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        &response(&head, &body),
        "GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n",
        "200 OK|ETag: W/\"x\"|Content-Type: text/html; charset=utf-8|Vary: Accept-Encoding|Transfer-Encoding: chunked|a page",
    );
    // In chunks, and for a client that accepts another coding.
    let chunked: Vec<u8> = body.iter().flat_map(|byte| [b"1\r\n", &[*byte][..], b"\r\n"].concat()).collect();
    let chunked = [&chunked[..], b"0\r\n\r\n"].concat();
    check(
        "GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: br, gzip;q=0\r\n\r\n",
        &response(
            "200 OK\r\nContent-Encoding: GZIP\r\nVary: Cookie, accept-encoding\r\nTransfer-Encoding: chunked\r\n",
            &chunked,
        ),
        "GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: br, gzip\r\n\r\n",
        "200 OK|Vary: Cookie, accept-encoding|Transfer-Encoding: chunked|a page",
    );
    // It answers with a coding that the client accepts.
    check(
        "GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: br\r\n\r\n",
        &response("200 OK\r\nContent-Encoding: br\r\nContent-Length: 3\r\n", b"\x8b\0\x03"),
        "GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: br, gzip\r\n\r\n",
        "200 OK|Content-Encoding: br|Content-Length: 3|\u{fffd}\0\u{3}",
    );
}

#[test]
fn an_uncompressed_response_is_compressed_for_a_client_that_accepts_gzip() {
    let page = "page ".repeat(100);
    let ask = "GET /a?b HTTP/1.1\r\nHost: a\r\nAccept-Encoding: deflate, gzip\r\n\r\n";
    let plain = format!("200 OK\r\n{HTML}ETag: W/\"1\"\r\nContent-Length: {}\r\n", page.len());
    let compressed = format!(
        "200 OK|Content-Type: text/html; charset=utf-8|ETag: W/\"1\"|Vary: Accept-Encoding|Content-Encoding: gzip|\
         Transfer-Encoding: chunked|{page}"
    );
    check(ask, &response(&plain, page.as_bytes()), ask, &compressed);
    // Not for HTTP/1.0, nor for a client that wants no coding; but another client would have got it.
    let varied = "200 OK|Content-Type: text/html; charset=utf-8|ETag: W/\"1\"|Content-Length: 500|Vary: Accept-Encoding";
    let old = "GET / HTTP/1.0\r\nAccept-Encoding: gzip\r\nConnection: keep-alive\r\n\r\n";
    check(old, &response(&plain, page.as_bytes()), old, &format!("{varied}|{page}"));
    let plain_ask = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let asked = "GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n";
    check(plain_ask, &response(&plain, page.as_bytes()), asked, &format!("{varied}|{page}"));
    // HEAD has the same head as GET.
    let head = compressed.replace(&page, "");
    check(&ask.replace("GET", "HEAD"), &response(&plain, b""), &ask.replace("GET", "HEAD"), &head);
}

#[test]
fn what_must_not_change_does_not() {
    let ask = "GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n";
    let long = "x".repeat(100);
    for head in [
        "200 OK\r\nContent-Type: image/png\r\nContent-Length: 100\r\n",
        "200 OK\r\nContent-Length: 100\r\n",
        "206 Partial Content\r\nContent-Type: text/html\r\nContent-Range: bytes 0-99/200\r\nContent-Length: 100\r\n",
        "200 OK\r\nContent-Type: text/html\r\nCache-Control: public, no-transform\r\nContent-Length: 100\r\n",
        "200 OK\r\nContent-Type: text/html\r\nContent-Encoding: gzip\r\nContent-Length: 100\r\n",
        "200 OK\r\nContent-Type: text/html\r\nContent-Encoding: aes128gcm\r\nContent-Length: 100\r\n",
        "200 OK\r\nContent-Type: text/html\r\nRepr-Digest: sha-256=:eA==:\r\nContent-Length: 100\r\n",
        "302 Found\r\nContent-Type: text/html\r\nContent-Length: 100\r\n",
    ] {
        let kept = head.trim_end().replace("\r\n", "|");
        // Unchanged: `support::read` would decode.
        for piece in [1, 1000] {
            let mut talk = Conversation::new("");
            talk.client(ask.as_bytes(), piece);
            talk.server(&response(head, long.as_bytes()), piece);
            let heard = String::from_utf8(talk.take_client()).unwrap().replace("\r\n", "|");
            assert_eq!(heard, format!("HTTP/1.1 {kept}||{long}"));
        }
    }
    // Short ones are not compressed.
    check(
        ask,
        &response("200 OK\r\nContent-Type: text/plain\r\nContent-Length: 19\r\n", b"nineteen characters"),
        ask,
        "200 OK|Content-Type: text/plain|Content-Length: 19|nineteen characters",
    );
    // The cell does not ask for gzip for a range, or for a client that wants no changes or accepts only another coding.
    for more in ["Range: bytes=0-9", "Cache-Control: no-transform", "Accept-Encoding: br, identity;q=0"] {
        let ask = format!("GET / HTTP/1.1\r\nHost: a\r\n{more}\r\n\r\n");
        check(&ask, b"HTTP/1.1 204 No Content\r\n\r\n", &ask, "204 No Content|");
    }
}

#[test]
fn responses_without_a_length_or_a_body() {
    let ask = "GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n";
    check(
        ask,
        b"HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\nContent-Length: 900\r\n\r\n",
        ask,
        "304 Not Modified|ETag: \"1\"|Content-Length: 900|",
    );
    check(ask, b"HTTP/1.1 204 No Content\r\n\r\n", ask, "204 No Content|");
    // Until the connection ends: the client gets explicit framing.
    for piece in [1, 1000] {
        let mut talk = Conversation::new("");
        talk.client(ask.as_bytes(), piece);
        talk.server(format!("HTTP/1.0 200 OK\r\n{HTML}\r\nas long as it takes").as_bytes(), piece);
        talk.server_ends();
        let wanted = "200 OK|Content-Type: text/html; charset=utf-8|Vary: Accept-Encoding|Content-Encoding: gzip|\
                      Transfer-Encoding: chunked|Connection: close|as long as it takes";
        assert_eq!(support::read(&mut talk.take_client(), false).to_string(), wanted);
        assert!(talk.is_closed(0) && talk.is_closed(1));
    }
    // For HTTP/1.0 chunks are removed, and the end of the connection ends the body.
    let mut talk = Conversation::new("");
    talk.client(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", 9);
    talk.server(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\nA: b\r\n\r\n", 3);
    assert_eq!(talk.take_client(), b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nonetwo");
    assert!(talk.is_closed(0));
}

#[test]
fn what_is_streamed_comes_as_it_is_said() {
    let mut talk = Conversation::new("");
    talk.client(b"GET / HTTP/1.1\r\nAccept-Encoding: gzip\r\n\r\n", 100);
    talk.server(format!("HTTP/1.1 200 OK\r\n{HTML}Transfer-Encoding: chunked\r\n\r\n").as_bytes(), 100);
    let mut all = Vec::new();
    for word in ["first\n", "second\n", "third\n"] {
        talk.server(format!("{:x}\r\n{word}\r\n", word.len()).as_bytes(), 100);
        let heard = talk.take_client();
        assert!(!heard.is_empty());
        all.extend(heard);
        assert!(support::body_so_far(&all).ends_with(word.as_bytes()), "{word} is not there yet");
    }
    talk.server(b"0\r\nX-Sum: 3\r\nContent-Length: 5\r\n\r\n", 100);
    all.extend(talk.take_client());
    let heard = support::read(&mut all, false);
    assert_eq!((heard.body, heard.trailers), (b"first\nsecond\nthird\n".to_vec(), "X-Sum: 3|".to_owned()));
}

#[test]
fn many_requests_on_one_connection_are_answered_in_order() {
    for piece in [1, 10, 100_000] {
        let mut talk = Conversation::new("");
        let mut asks = String::new();
        for n in 0..600 {
            asks +=
                &format!("\r\nPOST /{n} HTTP/1.1\r\nContent-Length: 3\r\nAccept-Encoding: gzip\r\n\r\n{n:3}");
        }
        talk.client(asks.as_bytes(), piece);
        let mut served = 0;
        while served < 600 {
            let heard = talk.server_heard();
            let count = heard.matches("POST").count();
            assert!(count > 0 && count <= 256, "after {served} came {count}");
            let answers: String = (served..served + count)
                .map(|n| {
                    let page = format!("answer {n} ").repeat(9);
                    format!("HTTP/1.1 200 OK\r\n{HTML}Content-Length: {}\r\n\r\n{page}", page.len())
                })
                .collect();
            talk.server(answers.as_bytes(), piece);
            served += count;
        }
        let mut heard = talk.take_client();
        for n in 0..600 {
            assert_eq!(support::read(&mut heard, false).body, format!("answer {n} ").repeat(9).as_bytes());
        }
        assert!(heard.is_empty());
    }
}

#[test]
fn a_request_waits_for_leave_to_send_its_body() {
    let mut talk = Conversation::new("");
    let head = "PUT / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\nAccept-Encoding: gzip\r\n\r\n";
    talk.client(head.as_bytes(), 5);
    assert_eq!(talk.server_heard(), head);
    talk.server(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", 5);
    assert_eq!(
        talk.take_client(),
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    );
    talk.client(b"5;x=y\r\nhello\r\n0\r\nA: b\r\n\r\n", 100);
    assert_eq!(talk.server_heard(), "5\r\nhello\r\n0\r\nA: b\r\n\r\n");
    talk.server(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n", 5);
    assert_eq!(talk.take_client(), b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n");
}

#[test]
fn an_upgrade_passes_and_what_is_said_behind_it_is_not_looked_at() {
    let ask = "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let yes = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    for piece in [1, 1000] {
        let mut talk = Conversation::new("");
        talk.client(format!("{ask}\0early").as_bytes(), piece);
        assert_eq!(talk.server_heard(), ask);
        talk.server(format!("{yes}\x01\r\n\r\n").as_bytes(), piece);
        assert_eq!(talk.take_client(), format!("{yes}\x01\r\n\r\n").as_bytes());
        assert_eq!(talk.server_heard(), "\0early");
        talk.client(b"\n\n\n", piece);
        assert_eq!(talk.server_heard(), "\n\n\n");
        talk.client_ends();
        assert!(talk.is_closed(1) && !talk.is_closed(0));
        talk.server(b"bye", piece);
        talk.server_ends();
        assert!(talk.is_closed(0) && talk.take_client() == b"bye");
    }
    // Requests before it are answered first, and change nothing; nor does an answer to one of them switch protocols.
    for head in [
        ask.to_owned(),
        ask.replacen("GET", "POST", 1).replace("\r\n\r\n", "\r\nContent-Length: 2\r\n\r\nhi"),
    ] {
        let first = "GET /1 HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n";
        let no = "HTTP/1.1 204 No Content\r\n\r\n";
        let mut talk = Conversation::new("");
        // The answer arrives before the upgrade request's last byte.
        let (most, last) = head.split_at(head.len() - 1);
        talk.client(format!("{first}{most}").as_bytes(), 1000);
        talk.server(no.as_bytes(), 5);
        talk.client(format!("{last}\0early").as_bytes(), 1000);
        assert_eq!(talk.server_heard(), format!("{first}{head}"));
        talk.server(yes.as_bytes(), 5);
        assert_eq!(talk.take_client(), format!("{no}{yes}").as_bytes());
        assert_eq!((talk.server_heard(), talk.reasons()), ("\0early".to_owned(), String::new()));
        // The answer arrives after the whole request.
        let mut talk = Conversation::new("");
        talk.client(format!("{first}{head}\0early").as_bytes(), 7);
        talk.server(format!("{no}{yes}").as_bytes(), 5);
        assert_eq!(talk.take_client(), format!("{no}{yes}").as_bytes());
        assert_eq!(talk.server_heard(), format!("{first}{head}\0early"));
        // It answers no request.
        let mut talk = Conversation::new("");
        talk.client(format!("{first}{head}\0early").as_bytes(), 7);
        talk.server(yes.as_bytes(), 5);
        assert!(talk.take_client().starts_with(b"HTTP/1.1 502 ") && talk.is_closed(1));
    }
    // The server does not switch: the bytes after it were a request.
    let mut talk = Conversation::new("");
    talk.client(format!("{ask}GET /next HTTP/1.1\r\nAccept-Encoding: gzip\r\n\r\n").as_bytes(), 7);
    assert_eq!(talk.server_heard(), ask);
    talk.server(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\nno", 7);
    assert_eq!(talk.server_heard(), "GET /next HTTP/1.1\r\nAccept-Encoding: gzip\r\n\r\n");
}

#[test]
fn what_makes_no_sense_is_refused_and_nothing_of_it_passes() {
    let long = "x".repeat(70_000);
    let many = "A: b\r\n".repeat(200);
    let start = "GET / HTTP/1.1\r\n";
    for (ask, status, words) in [
        ("NONSENSE\r\n\r\n".to_owned(), 400, ""),
        ("GET / HTTP/2.0\r\n\r\n".into(), 400, "HTTP/1"),
        ("GET  / HTTP/1.1\r\n\r\n".into(), 400, ""),
        ("GET /\x01 HTTP/1.1\r\n\r\n".into(), 400, ""),
        ("CONNECT a:443 HTTP/1.1\r\n\r\n".into(), 405, "CONNECT"),
        (format!("{start}A: b\n\r\n"), 400, "LF alone"),
        ("GET / HTTP/1.1\n\n".into(), 400, "LF alone"),
        (format!("{start}A: b\rC: d\r\n\r\n"), 400, ""),
        (format!("{start}A: b\r\n c\r\n\r\n"), 400, ""),
        (format!("{start}A : b\r\n\r\n"), 400, "name"),
        (format!("{start}A: b\0\r\n\r\n"), 400, "value"),
        (format!("{start}Host: a\r\nHost: b\r\n\r\n"), 400, "two hosts"),
        (format!("{start}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"), 400, "a length, and"),
        (format!("{start}Content-Length: 5\r\nContent-Length: 5\r\n\r\n"), 400, "two lengths"),
        (format!("{start}Content-Length: 5, 5\r\n\r\n"), 400, "no number"),
        (format!("{start}Content-Length: +5\r\n\r\n"), 400, "no number"),
        (format!("{start}Content-Length:\r\n\r\n"), 400, "no number"),
        (format!("{start}Content-Length: 99999999999999999999\r\n\r\n"), 400, "no number"),
        (format!("{start}Transfer-Encoding: gzip, chunked\r\n\r\n"), 400, "transfer codings"),
        (format!("{start}Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"), 400, "once"),
        (format!("{start}Transfer-Encoding: xchunked\r\n\r\n"), 400, "transfer codings"),
        ("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".into(), 400, "HTTP/1.0"),
        (format!("{start}A: {long}\r\n\r\n"), 431, "longer"),
        (format!("{start}{many}\r\n"), 400, "too many fields"),
        (format!("{start}Transfer-Encoding: chunked\r\n\r\n5\nhello"), 400, "LF alone"),
        (format!("{start}Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n"), 400, "too many digits"),
    ] {
        for piece in [1000, 3] {
            let mut talk = Conversation::new("");
            // A valid request before it is answered first.
            let honest = "GET /first HTTP/1.1\r\nAccept-Encoding: gzip\r\n\r\n";
            talk.client(format!("{honest}{ask}GET /smuggled HTTP/1.1\r\n\r\n").as_bytes(), piece);
            let passed = talk.server_heard();
            assert!(
                passed.starts_with(honest) && !passed.contains("smuggled") && !passed.contains("hello"),
                "{passed}"
            );
            assert_eq!(talk.take_client(), b"");
            talk.server(b"HTTP/1.1 204 No Content\r\n\r\n", piece);
            let mut heard = talk.take_client();
            assert_eq!(support::read(&mut heard, false).status, "204 No Content");
            let refusal = support::read(&mut heard, false);
            assert!(refusal.status.starts_with(&status.to_string()), "{ask:?}: {}", refusal.status);
            let said = String::from_utf8(refusal.body).unwrap();
            assert!(said.contains(words) && refusal.fields.contains("Connection: close"), "{ask:?}: {said}");
            assert!(talk.is_closed(0) && talk.is_closed(1) && heard.is_empty());
        }
    }
}

#[test]
fn a_server_that_makes_no_sense_is_a_bad_gateway() {
    for answer in [
        "SSH-2.0-OpenSSH\r\n\r\n",
        "HTTP/1.1 099 Odd\r\n\r\n",
        "HTTP/1.1 200 OK\nA: b\n\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n",
    ] {
        let mut talk = Conversation::new("");
        talk.client(b"GET / HTTP/1.1\r\n\r\n", 100);
        talk.server(answer.as_bytes(), 4);
        let heard = support::read(&mut talk.take_client(), false);
        assert_eq!(heard.status, "502 Bad Gateway", "{answer:?}");
        assert!(talk.is_closed(0) && talk.is_closed(1) && talk.reasons().contains("no answer"));
    }
    // A response that began well ends early, and the client can detect it.
    for body in ["zz\r\n", "5\r\nhello5\r\n", "\r\n"] {
        let mut talk = Conversation::new("");
        talk.client(b"GET / HTTP/1.1\r\n\r\n", 100);
        talk.server(format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{body}").as_bytes(), 100);
        let heard = talk.take_client();
        assert!(heard.starts_with(b"HTTP/1.1 200 OK\r\n") && !heard.ends_with(b"0\r\n\r\n"));
        assert!(talk.is_closed(0));
    }
    // No request was sent.
    let mut talk = Conversation::new("");
    talk.server(b"HTTP/1.1 408 Request Timeout\r\n\r\n", 100);
    assert!(talk.is_closed(0) && talk.take_client().is_empty());
}

#[test]
fn bodies_of_requests_are_compressed_or_decoded_where_the_configuration_says_so() {
    let page = "{\"a\": 1}".repeat(20);
    let mut talk = Conversation::new("requests compress");
    talk.client(format!("POST / HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\nAccept-Encoding: gzip\r\n\r\n{page}", page.len()).as_bytes(), 50);
    let mut heard = talk.take_server();
    let asked = support::read(&mut heard, false);
    assert_eq!(
        asked.fields,
        "Content-Type: application/json|Accept-Encoding: gzip|Content-Encoding: gzip|Transfer-Encoding: chunked|"
    );
    assert_eq!(asked.body, page.as_bytes());

    let mut talk = Conversation::new("requests decompress");
    let body = gzip(page.as_bytes());
    let head = format!(
        "POST / HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\nAccept-Encoding: gzip\r\n\r\n",
        body.len()
    );
    talk.client(&[head.as_bytes(), &body].concat(), 50);
    let asked = support::read(&mut talk.take_server(), false);
    assert_eq!(
        (asked.fields.as_str(), asked.body),
        ("Accept-Encoding: gzip|Transfer-Encoding: chunked|", page.into_bytes())
    );
    // Damaged: the server gets no whole request, the client gets an error.
    talk.server(b"HTTP/1.1 204 No Content\r\n\r\n", 100);
    talk.take_client();
    let mut wrong = body.clone();
    wrong[20] ^= 0xff;
    talk.client(&[head.as_bytes(), &wrong].concat(), 50);
    assert_eq!(support::read(&mut talk.take_client(), false).status, "400 Bad Request");
    assert!(!talk.take_server().ends_with(b"0\r\n\r\n"));
}

#[test]
fn a_bomb_is_streamed() {
    const ZEROS: usize = 200 << 20;
    let mut talk = Conversation::new("");
    talk.client(b"GET / HTTP/1.1\r\n\r\n", 100);
    let bomb = gzip(&vec![0; ZEROS]);
    let head = format!("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n", bomb.len());
    talk.server(head.as_bytes(), 100);
    let head = talk.take_client().len();
    let mut heard = 0;
    for piece in bomb.chunks(64 << 10) {
        let (most, bytes) = talk.count_client(piece);
        assert!(most <= 33 << 20, "one handler brought {most} bytes");
        heard += bytes;
    }
    assert!(head > 0 && (ZEROS..ZEROS + ZEROS / 1000).contains(&heard), "{heard}");
    assert_eq!(gunzip(&bomb).len(), ZEROS);
    assert_eq!(talk.reasons(), "");
}

#[test]
fn the_server_receives_the_clients_address_and_the_client_cannot_forge_it() {
    let said = "X-Forwarded-For: 10.0.0.1\r\nforwarded: for=10.0.0.1;proto=https\r\nx-forwarded-for: 10.0.0.2\r\n\
                X_Forwarded_For: 10.0.0.3\r\n";
    let own = "X-Forwarded-For: 192.0.2.7\r\nForwarded: for=192.0.2.7\r\n";
    let own_v6 = "X-Forwarded-For: 2001:db8::7\r\nForwarded: for=\"[2001:db8::7]\"\r\n";
    let added = "X_Forwarded_For: 10.0.0.3\r\n{gzip}X-Forwarded-For: 10.0.0.1, 10.0.0.2, 192.0.2.7\r\n\
                 Forwarded: for=10.0.0.1;proto=https, for=192.0.2.7\r\n";
    let gzip = "Accept-Encoding: gzip\r\n";
    let (v4, v6) = (Some("192.0.2.7:51000"), Some("[2001:db8::7]:51000"));
    for (mode, client, asks, told) in [
        ("set", v4, "", format!("{gzip}{own}")),
        ("set", v4, said, format!("{gzip}{own}")),
        ("set", v6, said, format!("{gzip}{own_v6}")),
        ("set", None, said, gzip.to_owned()),
        ("append", v4, "", format!("{gzip}{own}")),
        ("append", v4, said, added.replace("{gzip}", gzip)),
        ("append", None, said, format!("{said}{gzip}")),
        ("off", v4, said, format!("{said}{gzip}")),
    ] {
        let client = client.map(|client| client.parse().unwrap());
        let mut talk = Conversation::of(&format!("forwarded {mode}"), client);
        // Every request of a connection gets the fields.
        for _ in 0..2 {
            talk.client(format!("GET / HTTP/1.1\r\nHost: a\r\n{asks}\r\n").as_bytes(), 9);
            assert_eq!(
                talk.server_heard(),
                format!("GET / HTTP/1.1\r\nHost: a\r\n{told}\r\n"),
                "{mode} {client:?}"
            );
        }
    }
    // The server drops the fields that a request's `Connection` lists.
    for (mode, asks, told) in [
        ("set", "Connection: x-forwarded-for\r\n", format!("{gzip}{own}")),
        ("set", "Connection: close,Forwarded , te\r\n", format!("Connection: close, te\r\n{gzip}{own}")),
        ("off", "Connection: Forwarded\r\n", format!("Connection: Forwarded\r\n{gzip}")),
    ] {
        let mut talk = Conversation::of(&format!("forwarded {mode}"), Some(([192, 0, 2, 7], 51_000).into()));
        talk.client(format!("GET / HTTP/1.1\r\nHost: a\r\n{asks}\r\n").as_bytes(), 9);
        assert_eq!(talk.server_heard(), format!("GET / HTTP/1.1\r\nHost: a\r\n{told}\r\n"), "{mode} {asks}");
    }
    let mut talk = Conversation::of("", Some(([192, 0, 2, 7], 51_000).into()));
    talk.client(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 9);
    assert_eq!(
        talk.server_heard(),
        format!("GET / HTTP/1.1\r\nHost: a\r\n{gzip}{own}\r\n"),
        "unless it says otherwise"
    );
}
