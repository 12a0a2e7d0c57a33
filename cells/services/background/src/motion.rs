//! Finds what is not background in a frame: squares of 2 x 2 pixels that are far from the mean, and the largest connected piece
//! of them.
//!
//! There are a quarter as many squares as pixels: a camera's noise seldom fills one, and the mask is little state.

use crate::{mean::Mean, settings::Settings};
use image::{GrayImage, Luma};
use imageproc::region_labelling::{Connectivity, connected_components};

/// The change that was found, in pixels; all values are even, except at a frame's edges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// Pixels that differ, without noise.
    pub pixels: u32,
    /// Left edge of the largest piece.
    pub x: u32,
    /// Its upper edge.
    pub y: u32,
    /// Its width.
    pub width: u32,
    /// Its height.
    pub height: u32,
}

/// This many of the four pixels of a square must be far from the mean.
const OF_FOUR: u8 = 3;

/// Finds changes; keeps its mask between frames, so that no frame needs an allocation.
pub struct Motion {
    width: usize,
    /// One pixel per square; squares at the right and lower edge of an odd frame are left out.
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
    /// A finder for frames of this size.
    #[must_use]
    pub fn new(width: u32, height: u32, settings: Settings) -> Self {
        Self { width: width as usize, mask: GrayImage::new(width / 2, height / 2), settings }
    }

    /// The change in a frame, if it is large enough.
    pub fn find(&mut self, luma: &[u8], mean: &Mean) -> Option<Change> {
        let frames = mean.frames();
        let far = u32::from(self.settings.threshold) * u32::from(frames);
        let squares = self.mask.width() as usize;
        if squares == 0 || self.mask.height() == 0 {
            return None;
        }
        let is_far = |pixel: u8, sum: u16| {
            u8::from((u32::from(pixel) * u32::from(frames)).abs_diff(u32::from(sum)) > far)
        };
        let mut changed = 0u32;
        let rows = luma.chunks_exact(2 * self.width).zip(mean.sums().chunks_exact(2 * self.width));
        for (mask, (pixels, sums)) in self.mask.chunks_exact_mut(squares).zip(rows) {
            let (upper, lower) = pixels.split_at(self.width);
            let (upper_sums, lower_sums) = sums.split_at(self.width);
            for (at, mask) in mask.iter_mut().enumerate() {
                let pair = |pixels: &[u8], sums: &[u16]| {
                    is_far(pixels[2 * at], sums[2 * at]) + is_far(pixels[2 * at + 1], sums[2 * at + 1])
                };
                let count = pair(upper, upper_sums) + pair(lower, lower_sums);
                *mask = if count >= OF_FOUR { u8::MAX } else { 0 };
                changed += u32::from(*mask > 0);
            }
        }
        if 4 * changed < self.settings.pixels {
            return None;
        }
        let largest = self.largest()?;
        (4 * largest.pixels >= self.settings.pixels).then(|| Change {
            pixels: 4 * changed,
            x: 2 * largest.from.0,
            y: 2 * largest.from.1,
            width: 2 * (largest.to.0 - largest.from.0 + 1),
            height: 2 * (largest.to.1 - largest.from.1 + 1),
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
        // The first of equal pieces, so that the result is unique.
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
        let mut mean = Mean::new((WIDTH * HEIGHT) as usize, 4).unwrap();
        (0..4).for_each(|_| mean.add(&frame(|x, _| u8::try_from(x).unwrap() + 100)));
        let mut motion = Motion::new(WIDTH, HEIGHT, settings);
        let ground = |x: u32| u8::try_from(x).unwrap() + 100;
        assert_eq!(motion.find(&frame(|x, _| ground(x)), &mean), None);
        assert_eq!(motion.find(&frame(|x, _| ground(x) + 20), &mean), None, "the threshold is not passed");
        let noise = frame(|x, y| if (x * 7 + y * 13) % 11 == 0 { 255 } else { ground(x) });
        assert_eq!(motion.find(&noise, &mean), None, "lonely pixels");
        let thing = |x: u32, y: u32| (10..18).contains(&x) && (6..10).contains(&y);
        let small = |x: u32, y: u32| (30..34).contains(&x) && (20..24).contains(&y);
        let found = motion.find(&frame(|x, y| if thing(x, y) || small(x, y) { 0 } else { ground(x) }), &mean);
        assert_eq!(found, Some(Change { pixels: 48, x: 10, y: 6, width: 8, height: 4 }));
        let few = motion.find(&frame(|x, y| if small(x, y) { 0 } else { ground(x) }), &mean);
        assert_eq!(few, None, "16 pixels are fewer than 20");
    }
}
