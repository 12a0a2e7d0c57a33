//! What clients may and may not send, with their bytes cut at any position, and the answers.

use super::*;

const FIN: u8 = 0x80;
const CONTINUED: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// A frame as a client sends it.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mask = [7, 1, 200, 99];
    let mut bytes = vec![first];
    match payload.len() {
        len @ 0..126 => bytes.push(0x80 | u8::try_from(len).unwrap()),
        len @ 126..65_536 => {
            bytes.push(0x80 | 126);
            bytes.extend_from_slice(&u16::try_from(len).unwrap().to_be_bytes());
        }
        len => {
            bytes.push(0x80 | 127);
            bytes.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
    bytes.extend_from_slice(&mask);
    bytes.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    bytes
}

/// The events in these bytes, fed in chunks of this size; and the status code of the close, if there is one.
fn hear(bytes: &[u8], at_a_time: usize) -> (Vec<WsEvent>, Option<u16>) {
    let (mut codec, mut heard) = (WsCodec::default(), Vec::new());
    for bytes in bytes.chunks(at_a_time) {
        codec.feed(Bytes::copy_from_slice(bytes));
        loop {
            match codec.decode() {
                Ok(None) => break,
                Ok(Some(WsEvent::Close)) => {
                    heard.push(WsEvent::Close);
                    return (heard, None);
                }
                Ok(Some(more)) => heard.push(more),
                Err(closing) => return (heard, Some(closing.code)),
            }
        }
    }
    (heard, None)
}

fn message(bytes: &[u8]) -> WsEvent {
    WsEvent::Message(Bytes::copy_from_slice(bytes))
}

#[test]
fn messages_keep_their_boundaries_wherever_the_bytes_are_cut() {
    let long: Vec<u8> = (0..70_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let parts = [
        frame(FIN | TEXT, b"one"),
        frame(FIN | BINARY, b""),
        frame(TEXT, "h\u{e4}".as_bytes().split_last().unwrap().1),
        frame(FIN | PING, b"there?"),
        // The fragments cut a character.
        frame(CONTINUED, &["\u{e4}".as_bytes()[1], b'l']),
        frame(FIN | CONTINUED, b"f"),
        frame(FIN | PONG, b"no one asked"),
        frame(FIN | BINARY, &long),
        frame(FIN | TEXT, b""),
        frame(FIN | CLOSE, &[3, 232]),
        frame(FIN | TEXT, b"too late"),
    ];
    let expected = [
        message(b"one"),
        message(b""),
        WsEvent::Ping(Bytes::from_static(b"there?")),
        message("h\u{e4}lf".as_bytes()),
        message(&long),
        message(b""),
        WsEvent::Close,
    ];
    let bytes = parts.concat();
    for at_a_time in [1, 2, 3, 5, 7, 100, 4_096, 65_536, bytes.len()] {
        assert_eq!(hear(&bytes, at_a_time), (expected.to_vec(), None), "{at_a_time} bytes at a time");
    }
    // Two pieces, cut at every byte of the short ones.
    for cut in 1..parts[..7].concat().len() {
        let mut codec = WsCodec::default();
        let mut heard = Vec::new();
        for bytes in [&bytes[..cut], &bytes[cut..]] {
            codec.feed(Bytes::copy_from_slice(bytes));
            while let Some(more) = codec.decode().unwrap() {
                heard.push(more);
                if heard.last() == Some(&WsEvent::Close) {
                    break;
                }
            }
        }
        assert_eq!(heard, expected, "cut at {cut}");
    }
}

#[test]
fn a_protocol_violation_is_answered_with_its_reason() {
    let mut unmasked = frame(FIN | TEXT, b"");
    unmasked[1] &= 0x7f;
    let most = vec![b'x'; MESSAGE_SIZE_MAX];
    let half = &most[..MESSAGE_SIZE_MAX / 2 + 1];
    let huge = (1_u64 << 40).to_be_bytes();
    let announced = [&[FIN | BINARY, 0xff][..], &huge, &[0; 4]].concat();
    for (bytes, count, code) in [
        (frame(FIN | TEXT, &most), 1, None),
        (frame(FIN | BINARY, &[&most[..], b"x"].concat()), 0, Some(1009)),
        ([frame(BINARY, half), frame(FIN | CONTINUED, half)].concat(), 0, Some(1009)),
        (announced, 0, Some(1009)),
        (frame(FIN | TEXT, &[0xff]), 0, Some(1007)),
        ([frame(TEXT, b"\xc3"), frame(FIN | CONTINUED, b"x")].concat(), 0, Some(1007)),
        (frame(FIN | TEXT, b"\xc3"), 0, Some(1007)),
        (unmasked, 0, Some(1002)),
        (frame(FIN | CONTINUED, b"of what"), 0, Some(1002)),
        ([frame(TEXT, b"a"), frame(FIN | TEXT, b"b")].concat(), 0, Some(1002)),
        (frame(FIN | 3, b"reserved"), 0, Some(1002)),
        (frame(FIN | 0x40 | TEXT, b"compressed"), 0, Some(1002)),
        (frame(PING, b"fragment"), 0, Some(1002)),
        (frame(FIN | PING, &[0; 126]), 0, Some(1002)),
        ([frame(FIN | TEXT, b"a"), frame(FIN | CLOSE, &[3])].concat(), 1, Some(1002)),
        (frame(FIN | CLOSE, &[3, 232, 0xff]), 0, Some(1007)),
    ] {
        for at_a_time in [1_000, 1 << 20] {
            let (heard, closed) = hear(&bytes, at_a_time);
            assert_eq!((heard.len(), closed), (count, code), "{:?}", &bytes[..bytes.len().min(40)]);
        }
    }
}

#[test]
fn an_answer_is_of_the_kind_that_the_client_spoke_last_if_it_can_be() {
    let mut codec = WsCodec::default();
    let (text, other) = (Bytes::from_static(b"yes"), Bytes::from_static(b"\xff"));
    assert_eq!(codec.header(&text)[..], [FIN | TEXT, 3]);
    assert_eq!(codec.header(&other)[..], [FIN | BINARY, 1]);
    codec.feed(frame(FIN | BINARY, b"x").into());
    codec.decode().unwrap();
    assert_eq!(codec.header(&text)[..], [FIN | BINARY, 3]);
    codec.feed(frame(FIN | TEXT, b"x").into());
    codec.decode().unwrap();
    assert_eq!(codec.header(&text)[..], [FIN | TEXT, 3]);
    assert_eq!(codec.header(&Bytes::new())[..], [FIN | TEXT, 0]);
    assert_eq!(codec.header(&vec![b'x'; 126].into())[..], [FIN | TEXT, 126, 0, 126]);
    assert_eq!(codec.header(&vec![b'x'; 65_536].into())[..], [FIN | TEXT, 127, 0, 0, 0, 0, 0, 1, 0, 0]);
}

#[test]
fn frames_that_control_are_short() {
    assert_eq!(pong(Bytes::from_static(b"x"))[..], [FIN | PONG, 1, b'x']);
    assert_eq!(Closing::done().frame()[..], [FIN | CLOSE, 2, 3, 232]);
    let lost = Closing::session(Code::Lost, &"\u{e4}".repeat(100)).frame();
    assert_eq!(lost[..4], [FIN | CLOSE, 124, 3, 243]);
    assert!(std::str::from_utf8(&lost[4..]).is_ok(), "no character is cut");
    assert_eq!(Closing::session(Code::NoEdge, "").frame()[2..], [3, 245]);
}
