//! A real TLS client with a cell at its other end; used by this crate's tests, and by those that run the cell as a module.

use rustls::ClientConnection;
use std::io::Read;

/// Carries bytes between client and cell until neither has more to say; what the client heard. `tell` gives the cell what the
/// client sends, cut as it likes, and answers with what the cell has said to the client meanwhile.
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
            // It ends by having no more, or by the server's last word.
            let _ = client.reader().read_to_end(&mut heard);
        }
        if answer.is_empty() && !client.wants_write() {
            return heard;
        }
    }
}
