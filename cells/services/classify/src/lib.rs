//! Classifies images. A client sends images of 3,072 bytes one after another, split anywhere by the network, and gets
//! 41 bytes for each, in order. Knows the layout of images and answers; the network is in `network`.
//!
//! ```text
//! image   red:1024 | green:1024 | blue:1024        rows of 32 from the top, bytes from the left
//! answer  class:1 | score:4 x 10                   the class with the highest score; little-endian floats
//! ```

pub mod network;
pub mod render;

use marram_sdk::{Cell, Context, Port, cell};

use network::{CLASSES, Network, Scores, best};
use render::IMAGE_BYTES;

/// Bytes of an answer.
pub const ANSWER_BYTES: usize = 1 + 4 * CLASSES;

/// The cell: a network, and the received part of an image.
pub struct Classify {
    network: Network,
    image: Vec<u8>,
}

impl Default for Classify {
    /// Unpacks the weights and runs the network once, so that its memory is in the image that every session starts
    /// from.
    fn default() -> Self {
        let network = Network::default();
        let _ = network.scores(&[0; IMAGE_BYTES]);
        Self { network, image: Vec::with_capacity(IMAGE_BYTES) }
    }
}

/// Encodes the answer to a client.
#[must_use]
pub fn answer(scores: &Scores) -> [u8; ANSWER_BYTES] {
    let mut answer = [0; ANSWER_BYTES];
    answer[0] = u8::try_from(best(scores)).expect("there are ten classes");
    for (bytes, score) in answer[1..].chunks_exact_mut(4).zip(scores) {
        bytes.copy_from_slice(&score.to_le_bytes());
    }
    answer
}

impl Cell for Classify {
    fn message(&mut self, context: &mut Context, port: Port, mut payload: &[u8]) {
        if port != Port::CLIENT {
            return;
        }
        while !payload.is_empty() {
            let (now, later) = payload.split_at(payload.len().min(IMAGE_BYTES - self.image.len()));
            self.image.extend_from_slice(now);
            payload = later;
            if let Ok(image) = self.image.as_slice().try_into() {
                context.send_to_client(&answer(&self.network.scores(image)));
                self.image.clear();
            }
        }
    }

    fn closed(&mut self, context: &mut Context, port: Port) {
        context.close(port);
    }
}

cell!(Classify);
