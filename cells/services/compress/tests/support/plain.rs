//! What a server reads from its input, found by a parser that shares no code with the cell: heads and bodies, up to the first
//! request for another protocol. And whether the cell itself would pass it again.

use compress::config::Config;
use compress::http::Mediator;
use compress::pipe::{Out, Pipe, Side};

/// A head, its body without framing, and its trailers; some may be missing if the input ends early.
#[derive(PartialEq, Eq, Debug)]
struct Request {
    head: Vec<u8>,
    body: Vec<u8>,
    trailers: Vec<u8>,
    is_upgrade: bool,
}

/// Takes this many bytes, or all if there are fewer.
fn take<'a>(bytes: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(len.min(bytes.len()));
    *bytes = rest;
    taken
}

/// Takes a line with its end.
fn line<'a>(bytes: &mut &'a [u8]) -> &'a [u8] {
    let end = bytes.windows(2).position(|two| two == b"\r\n");
    take(bytes, end.map_or(bytes.len(), |end| end + 2))
}

/// Takes lines up to an empty one.
fn lines(bytes: &mut &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let line = line(bytes);
        all.extend_from_slice(line);
        if line.len() <= 2 {
            return all;
        }
    }
}

fn request(bytes: &mut &[u8]) -> Request {
    let head = lines(bytes);
    let text = String::from_utf8_lossy(&head).to_ascii_lowercase();
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let (mut body, mut trailers) = (Vec::new(), Vec::new());
    if value("transfer-encoding:").is_some() {
        while !bytes.is_empty() {
            let size = String::from_utf8_lossy(line(bytes)).trim().to_owned();
            match usize::from_str_radix(&size, 16).expect("the size of a chunk") {
                0 => {
                    trailers = lines(bytes);
                    break;
                }
                size => body.extend_from_slice(take(bytes, size)),
            }
            assert!(b"\r\n".starts_with(line(bytes)), "a chunk is longer than it says");
        }
    } else if let Some(length) = value("content-length:") {
        body.extend_from_slice(take(bytes, length.parse().expect("a length")));
    }
    Request { body, trailers, is_upgrade: value("upgrade:").is_some(), head }
}

fn requests(mut bytes: &[u8]) -> Vec<Request> {
    let mut all: Vec<Request> = Vec::new();
    while !bytes.is_empty() && !all.last().is_some_and(|last| last.is_upgrade) {
        all.push(request(&mut bytes));
    }
    all
}

/// Sends a server's input to a cell that changes nothing, which must neither refuse it nor read it differently.
pub(crate) fn assert_passes_again(heard: &[u8]) {
    let wanted = requests(heard);
    let config = Config::parse("requests pass").expect("a configuration");
    let (mut mediator, mut out) = (Mediator::new(config), Out::default());
    let mut say = |side, bytes: &[u8]| {
        mediator.receive(side, bytes, &mut out);
        while mediator.step(&mut out) {}
        assert!(out.reason.is_none() && !out.closes_client, "{:?}: {heard:?}", out.reason);
    };
    for piece in heard.chunks(64 << 10) {
        say(Side::Client, piece);
    }
    // A refusal would wait for the answers to earlier requests.
    let upgrades = wanted.iter().filter(|request| request.is_upgrade).count();
    for _ in upgrades..wanted.len() {
        say(Side::Server, b"HTTP/1.1 204 No Content\r\n\r\n");
    }
    assert_eq!(requests(&out.server), wanted);
}
