//! A stream through the cell: which frames are forwarded, and with which findings.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use background::{
    Background,
    y4m::{Part, Reader},
};
use marram_sdk::{
    Port,
    double::{Output, Session},
};

const WIDTH: usize = 64;
const HEIGHT: usize = 48;

fn clip(frames: usize, moving: &[usize]) -> Vec<u8> {
    let mut clip = format!("YUV4MPEG2 W{WIDTH} H{HEIGHT} F25:1 C420jpeg\n").into_bytes();
    for number in 0..frames {
        clip.extend_from_slice(b"FRAME XCHANGED=9 Ip XLEARNING\n");
        let thing = |at: usize| {
            moving.contains(&number) && (20..32).contains(&(at % WIDTH)) && (10..30).contains(&(at / WIDTH))
        };
        let noise = |at: usize| u8::try_from((at * 31 + number * 17) % 9).unwrap();
        clip.extend((0..WIDTH * HEIGHT).map(|at| if thing(at) { 250 } else { 90 + noise(at) }));
        clip.extend(std::iter::repeat_n(128, WIDTH * HEIGHT / 2));
    }
    clip
}

fn to_server(outputs: Vec<Output>) -> Vec<u8> {
    let bytes = |output| match output {
        Output::Message { port: Port::SERVER, payload } => payload,
        other => panic!("{other:?}"),
    };
    outputs.into_iter().flat_map(bytes).collect()
}

/// The frame lines of a stream.
fn lines(mut stream: &[u8]) -> Vec<String> {
    let mut reader = Reader::default();
    let mut lines = Vec::new();
    while let Some(part) = reader.next(&mut stream).unwrap() {
        if let Part::Frame { parameters, .. } = part {
            lines.push(format!("FRAME{parameters}"));
        }
    }
    assert!(stream.is_empty());
    lines
}

#[test]
fn frames_with_motion_are_forwarded_and_no_others_once_the_scene_is_known() {
    let clip = clip(160, &[130, 131, 150]);
    let mut whole = Session::<Background>::new();
    let forwarded = to_server(whole.message(Port::CLIENT, &clip));
    assert!(forwarded.starts_with(b"YUV4MPEG2 W64 H48 F25:1 C420jpeg\n"));
    let lines = lines(&forwarded);
    assert_eq!(lines.len(), 120 + 3);
    assert_eq!(lines[0], "FRAME Ip XNUMBER=0 XLEARNING");
    assert_eq!(lines[119], "FRAME Ip XNUMBER=119 XLEARNING");
    assert_eq!(lines[120], "FRAME Ip XNUMBER=130 XCHANGED=240 XBOX=20,10,12,20");
    assert_eq!(lines[122], "FRAME Ip XNUMBER=150 XCHANGED=240 XBOX=20,10,12,20");
    // Split anywhere, it gives the same bytes.
    let mut cut = Session::<Background>::new();
    let pieces: Vec<u8> =
        clip.chunks(4093).flat_map(|piece| to_server(cut.message(Port::CLIENT, piece))).collect();
    assert!(pieces == forwarded);
    // Data from the server comes back.
    assert_eq!(cut.message(Port::SERVER, b"seen"), [Output::message(Port::CLIENT, b"seen")]);
}

#[test]
fn what_is_no_video_is_refused_in_words() {
    let mut session = Session::<Background>::new();
    let outputs = session.message(Port::CLIENT, b"GET / HTTP/1.1\r\n\r\n");
    let said = format!("{outputs:?}");
    assert_eq!(
        outputs[0],
        Output::message(
            Port::CLIENT,
            b"error this is no YUV4MPEG2 stream: `ffmpeg -f yuv4mpegpipe` makes one\n"
        ),
        "{said}"
    );
    assert!(outputs.len() >= 3, "{said}");
    assert!(session.message(Port::CLIENT, b"more").is_empty());
}
