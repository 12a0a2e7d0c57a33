//! What a client says at a gate for WebSocket, its request and the frames behind it: the same is heard, granted, refused or broken off
//! however it is cut and whenever it is listened to, nothing is held that did not come, and each answer is whole. The first byte says
//! how it begins, who may ask and when it is listened to, the second how long the pieces are.
#![no_main]

use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use marram_agent::websocket::{
    codec::{Closing, WsCodec, WsEvent},
    request::{self, END, Refusal},
};

/// One that is granted: what comes behind it is frames, which few other inputs get to.
const RIGHT: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// All that came of what a client said.
#[derive(Default, PartialEq, Eq, Debug)]
struct Conversation {
    /// How long its request is, and the answer.
    granted: Option<(usize, Bytes)>,
    refused: Option<Refusal>,
    heard: Vec<WsEvent>,
    /// What stands before each message, if it is said back.
    headers: Vec<Bytes>,
    broken: Option<Closing>,
}

fn has_ended(conversation: &Conversation) -> bool {
    conversation.broken.is_some() || conversation.heard.last() == Some(&WsEvent::Close)
}

/// So much of what is to be heard.
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

/// What comes of pieces, after each of which so much is listened to; of all, at the end.
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

/// Whether an answer is one of HTTP, and ends where it says.
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
        // As long as a request may be, but for a little.
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
        // A control frame that is whole: words of 123 bytes at the most behind its code.
        let frame = closing.frame();
        assert!(frame.len() <= 127 && frame[0] == 0x88 && frame.len() == 2 + usize::from(frame[1]));
    }
});
