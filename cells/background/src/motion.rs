//! What of a frame is not background: pixels far from the mean, without the lonely ones, and the largest piece that belongs together.

use crate::{mean::Mean, settings::Settings};
use image::{GrayImage, Luma};
use imageproc::{
    distance_transform::Norm,
    morphology::open_mut,
    region_labelling::{Connectivity, connected_components},
};

/// What was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// Pixels that differ, noise taken out.
    pub pixels: u32,
    /// The largest piece's left edge.
    pub x: u32,
    /// Its upper edge.
    pub y: u32,
    /// Its width.
    pub width: u32,
    /// Its height.
    pub height: u32,
}

/// Looks for changes; keeps its mask between frames, so that none is allocated for each.
pub struct Motion {
    mask: GrayImage,
    settings: Settings,
}

/// A piece of a mask.
#[derive(Clone, Copy)]
struct Piece {
    pixels: u32,
    from: (u32, u32),
    to: (u32, u32),
}

impl Motion {
    /// For frames of this size.
    #[must_use]
    pub fn new(width: u32, height: u32, settings: Settings) -> Self {
        Self { mask: GrayImage::new(width, height), settings }
    }

    /// What has changed in a frame, if enough has.
    pub fn find(&mut self, luma: &[u8], mean: &Mean) -> Option<Change> {
        let frames = mean.frames();
        let far = u32::from(self.settings.threshold) * u32::from(frames);
        let mut changed = 0u32;
        for ((pixel, sum), mask) in luma.iter().zip(mean.sums()).zip(self.mask.iter_mut()) {
            let is_far = (u32::from(*pixel) * u32::from(frames)).abs_diff(u32::from(*sum)) > far;
            *mask = if is_far { u8::MAX } else { 0 };
            changed += u32::from(is_far);
        }
        if changed < self.settings.pixels {
            return None;
        }
        // A pixel with less than a square of 3 x 3 around it is a camera's noise.
        open_mut(&mut self.mask, Norm::LInf, 1);
        let largest = self.largest()?;
        (largest.pixels >= self.settings.pixels).then(|| Change {
            pixels: self.mask.iter().map(|mask| u32::from(*mask > 0)).sum(),
            x: largest.from.0,
            y: largest.from.1,
            width: largest.to.0 - largest.from.0 + 1,
            height: largest.to.1 - largest.from.1 + 1,
        })
    }

    fn largest(&self) -> Option<Piece> {
        let labels = connected_components(&self.mask, Connectivity::Eight, Luma([0]));
        let mut pieces: Vec<Piece> = Vec::new();
        for (x, y, Luma([label])) in labels.enumerate_pixels() {
            let Some(index) = (*label as usize).checked_sub(1) else { continue };
            if pieces.len() <= index {
                pieces.resize(index + 1, Piece { pixels: 0, from: (u32::MAX, u32::MAX), to: (0, 0) });
            }
            let piece = &mut pieces[index];
            piece.pixels += 1;
            piece.from = (piece.from.0.min(x), piece.from.1.min(y));
            piece.to = (piece.to.0.max(x), piece.to.1.max(y));
        }
        // The first of equals, so that the answer is one.
        pieces.into_iter().rev().max_by_key(|piece| piece.pixels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDTH: u32 = 40;
    const HEIGHT: u32 = 30;

    fn frame(paint: impl Fn(u32, u32) -> u8) -> Vec<u8> {
        (0..WIDTH * HEIGHT).map(|at| paint(at % WIDTH, at / WIDTH)).collect()
    }

    #[test]
    fn what_moves_is_found_and_noise_and_slow_light_are_not() {
        let settings = Settings { frames: 4, threshold: 20, pixels: 20 };
        let mut mean = Mean::new((WIDTH * HEIGHT) as usize, 4);
        (0..4).for_each(|_| mean.add(&frame(|x, _| u8::try_from(x).unwrap() + 100)));
        let mut motion = Motion::new(WIDTH, HEIGHT, settings);
        let ground = |x: u32| u8::try_from(x).unwrap() + 100;
        assert_eq!(motion.find(&frame(|x, _| ground(x)), &mean), None);
        assert_eq!(motion.find(&frame(|x, _| ground(x) + 20), &mean), None, "the threshold is not passed");
        let noise = frame(|x, y| if (x * 7 + y * 13) % 11 == 0 { 255 } else { ground(x) });
        assert_eq!(motion.find(&noise, &mean), None, "lonely pixels");
        let thing = |x: u32, y: u32| (10..18).contains(&x) && (5..10).contains(&y);
        let small = |x: u32, y: u32| (30..33).contains(&x) && (20..23).contains(&y);
        let found = motion.find(&frame(|x, y| if thing(x, y) || small(x, y) { 0 } else { ground(x) }), &mean);
        assert_eq!(found, Some(Change { pixels: 49, x: 10, y: 5, width: 8, height: 5 }));
        let few = motion.find(&frame(|x, y| if small(x, y) { 0 } else { ground(x) }), &mean);
        assert_eq!(few, None, "9 pixels are fewer than 20");
    }
}
