//! A real TLS client connected to a cell; used by this crate's tests, and by those that run the cell as a module.

use rustls::ClientConnection;
use std::io::Read;

/// Carries bytes between client and cell until neither has more to send; returns what the client received. `tell` gives the cell
/// the client's bytes, split anywhere, and returns the cell's output to the client.
pub(crate) fn converse(client: &mut ClientConnection, mut tell: impl FnMut(&[u8]) -> Vec<u8>) -> Vec<u8> {
    let mut heard = Vec::new();
    loop {
        let mut wire = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut wire).unwrap();
        }
        let answer = tell(&wire);
        let mut rest = &answer[..];
        while !rest.is_empty() {
            client.read_tls(&mut rest).unwrap();
            client.process_new_packets().unwrap();
            // It ends without more data, or with the server's close.
            let _ = client.reader().read_to_end(&mut heard);
        }
        if answer.is_empty() && !client.wants_write() {
            return heard;
        }
    }
}
