//! HTTP of a client and a server, split anywhere, through the cell `compress`: it terminates, sends nothing after a close, and
//! would pass the requests that it sends to the server again unchanged. The first byte selects the configuration, the next the
//! length of the pieces.
#![no_main]

#[path = "../../cells/services/compress/tests/support/plain.rs"]
mod plain;

use compress::config::Config;
use compress::http::Mediator;
use compress::pipe::{Out, Pipe, Side};
use libfuzzer_sys::fuzz_target;

/// Separates what the client sends from what the server sends.
const TURN: u8 = 0xfe;

/// Steps until there is nothing to do; adds the output to what each side received.
fn go_on(mediator: &mut Mediator, out: &mut Out, heard: &mut [Vec<u8>; 2]) -> bool {
    let mut steps = 0;
    while mediator.step(out) {
        steps += 1;
        // A decoded body may be a thousand times as long.
        assert!(steps < 100_000, "it goes on for ever");
    }
    heard[0].append(&mut out.client);
    heard[1].append(&mut out.server);
    out.closes_client && out.closes_server
}

/// What both sides receive in a conversation, and whether it was refused.
fn converse(config: &Config, turns: &[&[u8]], piece: usize) -> ([Vec<u8>; 2], bool) {
    let (mut mediator, mut out, mut heard) =
        (Mediator::new(config.clone()), Out::default(), <[Vec<u8>; 2]>::default());
    let mut is_over = false;
    for (turn, said) in turns.iter().enumerate() {
        let side = if turn % 2 == 0 { Side::Client } else { Side::Server };
        for piece in said.chunks(piece) {
            let before = heard.clone();
            mediator.receive(side, piece, &mut out);
            let was_over = is_over;
            is_over = go_on(&mut mediator, &mut out, &mut heard);
            assert!(!was_over || heard == before, "something is said behind the end");
        }
    }
    for side in [Side::Client, Side::Server] {
        mediator.end(side);
        is_over |= go_on(&mut mediator, &mut out, &mut heard);
    }
    assert!(is_over, "both sides have left");
    (heard, out.reason.is_some())
}

fuzz_target!(|data: &[u8]| {
    let Some((&[how, piece], data)) = data.split_first_chunk() else { return };
    let requests = ["pass", "compress", "decompress"][usize::from(how % 3)];
    let config =
        Config::parse(&format!("requests {requests}\nmin_length 1\nlevel 1")).expect("a configuration");
    let turns: Vec<&[u8]> = data.split(|byte| *byte == TURN).take(20).collect();
    let (heard, is_refused) = converse(&config, &turns, usize::from(piece) + 1);
    plain::assert_passes_again(&heard[1]);
    // Any split gives the same result, if the sides take the same turns.
    let (whole, was_refused) = converse(&config, &turns, usize::MAX);
    assert_eq!(is_refused, was_refused);
    // The framing of bodies depends on their pieces; messages without a body are the same.
    let has_bodies = |heard: &[u8]| heard.windows(5).any(|five| five.eq_ignore_ascii_case(b"chunk"));
    if !is_refused && !heard.iter().chain(&whole).any(|heard| has_bodies(heard)) {
        assert_eq!(heard, whole);
    }
});
