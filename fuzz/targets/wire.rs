//! The first bytes in each direction of a connection, and the handshake after them, as any process that reaches an edge's port
//! may send them. Encoding decoded bytes gives the same bytes; without the token no peer gets as far as a frame.
#![no_main]

use libfuzzer_sys::fuzz_target;
use marram_transport::{
    PREAMBLE_SIZE, Preamble, PreambleAnswer, PreambleVerdict, Security, Socket, WireAcceptor,
};
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::LazyLock;

/// An edge with a token that does not require encryption from agents.
static ACCEPTOR: LazyLock<WireAcceptor> = LazyLock::new(|| {
    let token = Some("a token that no input has".to_owned());
    let security = Security { token, insecure_plain: true, ..Security::default() };
    WireAcceptor::new(&WireAcceptor::complete(&security).expect("a certificate")).expect("it is sound")
});

fuzz_target!(|data: &[u8]| {
    let Some((first, rest)) = data.split_first_chunk::<PREAMBLE_SIZE>() else { return };
    if let Some(answer) = PreambleAnswer::decode(*first) {
        assert_eq!(PreambleAnswer::decode(answer.encode()), Some(answer));
        assert!(!answer.to_string().is_empty());
    }
    if let Ok(preamble) = Preamble::decode(*first) {
        assert!(Preamble::may_begin(first));
        assert_eq!(Preamble::decode(preamble.encode()), Ok(preamble));
        let verdict = ACCEPTOR.judge(preamble, false);
        assert!(preamble.token || verdict == PreambleVerdict::TokenMissing, "{verdict:?} without a token");
    }
    for tls in [false, true] {
        let (mut agent, edge) = UnixStream::pair().expect("two sockets");
        edge.set_nonblocking(true).expect("a socket");
        let socket = Socket::Unix(mio::net::UnixStream::from_std(edge));
        let mut wire = ACCEPTOR.accept(socket, tls).expect("it begins");
        // As much as a socket holds at once, then the end of the stream.
        agent.write_all(rest).expect("there is room");
        agent.shutdown(Shutdown::Write).expect("it is connected");
        while wire.read().is_ok() {
            assert!(!wire.is_up(), "no one has shown the token");
        }
        assert!(!wire.is_up() && wire.next_frame().is_ok_and(|frame| frame.is_none()));
    }
});
