//! Requests in datagrams: each begins with a header of 8 bytes and is answered with as many datagrams as necessary.
//! Handles headers, and drops all state after each datagram; does not know requests.
//!
//! ```text
//! request:2 | sequence:2 | datagrams:2 | reserved:2 | text        all big-endian
//! ```
//!
//! The client chooses `request` and the answer repeats it, as replies may overtake each other.
//! `sequence` counts the datagrams of an answer from 0, and `datagrams` says how many there are, so
//! that the client knows when it has all of them. A lost one is not sent again: to a client of a
//! cache, that is a miss.

use crate::{
    clock::Seconds,
    connection::{Connection, Progress},
    server::Server,
};

/// The longest datagram that is sent, its header included: it fits every Ethernet. 1,500 bytes of
/// Ethernet less the headers of IP and UDP, with 52 to 72 bytes to spare for tunnels.
pub const DATAGRAM_BYTES_MAX: usize = 1400;

const HEADER_BYTES: usize = 8;

/// Most bytes of one answer: one item of the largest size, and some small ones. Together with
/// [`DATAGRAM_BYTES_MAX`] it keeps the number of datagrams within the header's 16 bits.
const ANSWER_BYTES_MAX: usize = 1_500_000;

/// Answers one datagram: all datagrams of the answer, none if the request says so or is not one. Requests of more
/// than one datagram are refused, as is an answer of more than 1.5 MB.
pub fn answer(datagram: &[u8], server: &mut Server, now: Seconds) -> Vec<Vec<u8>> {
    let Some((header, text)) = datagram.split_at_checked(HEADER_BYTES) else { return Vec::new() };
    let mut out = Vec::new();
    if header[4..6] == [0, 1] {
        run(text, server, now, &mut out);
    } else {
        out.extend_from_slice(b"SERVER_ERROR multi-packet request not supported\r\n");
    }
    let pieces = out.chunks(DATAGRAM_BYTES_MAX - HEADER_BYTES);
    let count =
        u16::try_from(pieces.len()).expect("an answer has far fewer than 65,536 datagrams").to_be_bytes();
    let framed = pieces.zip(0_u16..).map(|(piece, sequence)| {
        let [high, low] = sequence.to_be_bytes();
        [&[header[0], header[1], high, low, count[0], count[1], 0, 0], piece].concat()
    });
    framed.collect()
}

/// Runs the datagram's text on a connection of its own, so an unfinished value or line cannot reach
/// into the next datagram.
fn run(text: &[u8], server: &mut Server, now: Seconds, out: &mut Vec<u8>) {
    let mut connection = Connection::default();
    let mut piece = Vec::new();
    let mut progress = connection.receive(text, server, now, &mut piece);
    loop {
        out.append(&mut piece);
        if out.len() > ANSWER_BYTES_MAX {
            out.clear();
            out.extend_from_slice(b"SERVER_ERROR response too large for UDP\r\n");
            break;
        }
        if progress != Progress::Paused {
            break;
        }
        progress = connection.resume(server, now, &mut piece);
    }
    // An incomplete request in a datagram is dropped.
    connection.close(server);
}
