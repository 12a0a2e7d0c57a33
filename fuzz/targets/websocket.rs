//! A WebSocket client's bytes at a gate, its request and the frames after it: any split and any reading times give the same
//! messages, acceptance, refusal or failure; the gate holds no bytes that did not arrive, and each response is complete. The
//! first byte selects the beginning, the allowed origins and the reading times, the second the length of the pieces.
#![no_main]

use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use marram_agent::websocket::{
    codec::{Closing, WsCodec, WsEvent},
    request::{self, END, UpgradeRefusal},
};

/// An acceptable request: the bytes after it are frames, which few other inputs reach.
const RIGHT: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// The results of a client's bytes.
#[derive(Default, PartialEq, Eq, Debug)]
struct Conversation {
    /// The length of its request, and the response.
    granted: Option<(usize, Bytes)>,
    refused: Option<UpgradeRefusal>,
    heard: Vec<WsEvent>,
    /// The header for each message, when it is echoed.
    headers: Vec<Bytes>,
    broken: Option<Closing>,
}

fn has_ended(conversation: &Conversation) -> bool {
    conversation.broken.is_some() || conversation.heard.last() == Some(&WsEvent::Close)
}

/// Reads at most this much of the messages.
fn hear(codec: &mut WsCodec, most: usize, conversation: &mut Conversation) {
    for _ in 0..most {
        if has_ended(conversation) {
            return;
        }
        match codec.decode() {
            Ok(None) => return,
            Ok(Some(heard)) => {
                if let WsEvent::Message(message) = &heard {
                    conversation.headers.push(codec.header(message));
                }
                conversation.heard.push(heard);
            }
            Err(closing) => conversation.broken = Some(closing),
        }
    }
}

/// The results of pieces; after each piece, and at the end, this much is read.
fn converse<'a>(pieces: impl Iterator<Item = &'a [u8]>, origins: &[String], most: usize) -> Conversation {
    let (mut conversation, mut head, mut codec) = (Conversation::default(), BytesMut::new(), None::<WsCodec>);
    let mut came = 0;
    for piece in pieces {
        came += piece.len();
        if let Some(codec) = &mut codec {
            codec.feed(Bytes::copy_from_slice(piece));
            hear(codec, most, &mut conversation);
            assert!(codec.unfinished() <= came, "more is held than came");
        } else {
            let from = head.len().saturating_sub(END.len() - 1);
            head.extend_from_slice(piece);
            match request::read(&head, from, origins) {
                None => assert!(head.len() < request::HEAD_MAX, "more is held than may be"),
                Some(Err(refusal)) => {
                    conversation.refused = Some(refusal);
                    break;
                }
                Some(Ok((len, answer))) => {
                    conversation.granted = Some((len, answer));
                    let codec = codec.insert(WsCodec::default());
                    codec.feed(Bytes::copy_from_slice(&head[len..]));
                    hear(codec, most, &mut conversation);
                }
            }
        }
        if has_ended(&conversation) {
            break;
        }
    }
    if let Some(codec) = &mut codec {
        hear(codec, usize::MAX, &mut conversation);
    }
    conversation
}

/// Whether a response is HTTP, and ends where it says.
fn assert_whole(answer: &[u8]) {
    let text = std::str::from_utf8(answer).expect("it is text");
    let (head, words) = text.split_once("\r\n\r\n").expect("its head has an end");
    let len = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    assert_eq!(len.map_or(0, |len| len.parse().expect("a number")), words.len());
    assert_eq!(head.starts_with("HTTP/1.1 101 "), len.is_none());
}

fuzz_target!(|data: &[u8]| {
    let Some((&[how, piece], data)) = data.split_first_chunk() else { return };
    let stream = match how & 3 {
        0 => data.to_vec(),
        1 => [RIGHT, data].concat(),
        // Slightly shorter than the longest request.
        _ => [b"GET / HTTP/1.1\r\nX: ", &[b'x'; request::HEAD_MAX - 256][..], data].concat(),
    };
    let origins = if how & 4 == 0 { vec![] } else { vec!["https://play.example".to_owned()] };
    let most = if how & 8 == 0 { usize::MAX } else { 1 };
    let cut = converse(stream.chunks(usize::from(piece) + 1), &origins, most);
    assert_eq!(cut, converse(std::iter::once(&stream[..]), &origins, usize::MAX));
    if let Some((len, answer)) = &cut.granted {
        assert!(stream[..*len].ends_with(END));
        assert_whole(answer);
    }
    if let Some(refusal) = &cut.refused {
        assert_whole(&refusal.answer());
    }
    if let Some(closing) = &cut.broken {
        // A complete control frame: at most 123 bytes of text after its code.
        let frame = closing.frame();
        assert!(frame.len() <= 127 && frame[0] == 0x88 && frame.len() == 2 + usize::from(frame[1]));
    }
});
