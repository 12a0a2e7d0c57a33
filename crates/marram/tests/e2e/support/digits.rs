//! Images for the cell `classify`, on which it was not trained.

#[path = "../../../../../cells/services/classify/src/render.rs"]
#[allow(dead_code, unreachable_pub, reason = "the cell's own, of which this uses one function")]
mod render;

/// Size of an answer.
pub(crate) const ANSWER_BYTES: usize = 41;
/// Class, ground, foreground, ink: see `cells/services/classify/train/train.py`.
const RECORD_BYTES: usize = 71;
/// The cell classifies 358 of 360 correctly.
const HELD_OUT: &[u8] = include_bytes!("../../../../../cells/services/classify/data/held_out.bin");
/// Number of images.
pub(crate) const IMAGES: usize = HELD_OUT.len() / RECORD_BYTES;

/// The class of an image, and the image.
pub(crate) fn image(number: usize) -> (u8, Vec<u8>) {
    let (records, _) = HELD_OUT.as_chunks::<RECORD_BYTES>();
    let [class, gr, gg, gb, fr, fg, fb, ink @ ..] = records[number];
    (class, render::render(&ink, [gr, gg, gb], [fr, fg, fb]))
}
