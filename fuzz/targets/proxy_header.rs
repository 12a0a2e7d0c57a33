//! Headers of the PROXY protocol: a decision does not change when more bytes arrive, the reader never waits for more than the
//! longest header, and encoding a decoded header gives bytes that decode to the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use marram_session::agent::proxy::{HEADER_MAX, ProxyHeader, read, write};

fuzz_target!(|data: &[u8]| {
    let whole = read(data);
    assert!(whole != Ok(ProxyHeader::More) || data.len() < HEADER_MAX, "waits for more than can be");
    // Every cut of a long input would take for ever.
    for upto in (0..data.len()).step_by(1 + data.len() / 64) {
        // An error may have another text when more bytes are there.
        let (early, whole) = (read(&data[..upto]).map_err(drop), whole.map_err(drop));
        assert!(early == Ok(ProxyHeader::More) || early == whole, "{early:?} became {whole:?}");
    }
    if let Ok(ProxyHeader::Header { len, ends }) = whole {
        assert!(len <= data.len().min(HEADER_MAX));
        let written = write(ends);
        let Ok(ProxyHeader::Header { len, ends: again }) = read(&written) else {
            panic!("{written:?} is no header")
        };
        assert_eq!(len, written.len());
        let plain = |at: std::net::SocketAddr| (at.ip().to_canonical(), at.port());
        assert_eq!(
            again.map(|ends| (plain(ends.source), plain(ends.destination))),
            ends.map(|ends| (plain(ends.source), plain(ends.destination)))
        );
    }
});
