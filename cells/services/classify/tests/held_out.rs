//! Tests the network on images that it was never trained on, and the cell around it.

use classify::{
    ANSWER_BYTES, Classify, answer,
    network::{CLASSES, Network, best},
    render::{IMAGE_BYTES, render},
};
use marram_sdk::{
    Port,
    double::{Output, Session},
};

/// Class, ground, foreground, ink: see `train/train.py`.
const RECORD_BYTES: usize = 71;

/// At least this many of the 360 must be right: the number in `docs/services.md`, minus one for the rounding of other CPUs.
const RIGHT_MIN: usize = 357;

/// Every held-out image with its class.
fn held_out() -> Vec<(u8, [u8; IMAGE_BYTES])> {
    let (records, rest) = include_bytes!("../data/held_out.bin").as_chunks::<RECORD_BYTES>();
    assert_eq!((records.len(), rest.len()), (360, 0));
    let image = |record: &[u8; RECORD_BYTES]| {
        let [class, gr, gg, gb, fr, fg, fb, ink @ ..] = *record;
        (class, render(&ink, [gr, gg, gb], [fr, fg, fb]).try_into().expect("one image"))
    };
    records.iter().map(image).collect()
}

#[test]
fn the_network_is_as_good_as_the_documentation_says() {
    let network = Network::default();
    let mut right = [0; CLASSES];
    for (class, image) in held_out() {
        right[usize::from(class)] += usize::from(best(&network.scores(&image)) == usize::from(class));
    }
    println!("{} of 360 right, by class: {right:?}", right.iter().sum::<usize>());
    assert!(right.iter().sum::<usize>() >= RIGHT_MIN, "{right:?}");
}

#[test]
fn the_same_image_always_gets_the_same_answer() {
    let (first, second) = (Network::default(), Network::default());
    for (_, image) in held_out().iter().take(20) {
        let scores = first.scores(image).map(f32::to_bits);
        assert_eq!(first.scores(image).map(f32::to_bits), scores);
        assert_eq!(second.scores(image).map(f32::to_bits), scores);
    }
}

#[test]
fn images_are_answered_in_order_however_they_are_cut() {
    let images: Vec<_> = held_out().into_iter().take(4).map(|(_, image)| image).collect();
    let network = Network::default();
    let expected: Vec<_> = images.iter().map(|image| answer(&network.scores(image))).collect();
    for piece in [1, 1000, IMAGE_BYTES, 2 * IMAGE_BYTES + 5, 4 * IMAGE_BYTES] {
        let mut session = Session::<Classify>::new();
        let outputs: Vec<_> = images
            .concat()
            .chunks(piece)
            .flat_map(|bytes| session.message(Port::CLIENT, bytes))
            .map(|output| match output {
                Output::Message { port: Port::CLIENT, payload } => payload,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(outputs, expected, "pieces of {piece}");
        assert!(outputs.iter().all(|answer| answer.len() == ANSWER_BYTES));
        assert_eq!(session.close(Port::CLIENT), [Output::close(Port::CLIENT)]);
    }
}
