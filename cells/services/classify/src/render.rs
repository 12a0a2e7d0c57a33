//! Turns a digit of 8 x 8 pixels into an image for the network: the same integer arithmetic as in `train/train.py`.
//! Does not know the network.

/// Bytes of an image: 32 rows of 32 red values, then as many green, then as many blue.
pub const IMAGE_BYTES: usize = 3 * SIDE * SIDE;

/// Pixels of an image's side.
pub const SIDE: usize = 32;

/// Pixels of a digit's side.
const DIGIT_SIDE: usize = 8;

/// A written digit: the amount of ink, from 0 to 16, for each pixel.
pub type Ink = [u8; DIGIT_SIDE * DIGIT_SIDE];

/// Red, green, blue.
pub type Colour = [u8; 3];

/// The digit, enlarged fourfold with linear interpolation between pixel centres, in one colour on another.
#[must_use]
pub fn render(ink: &Ink, ground: Colour, foreground: Colour) -> Vec<u8> {
    let mut image = Vec::with_capacity(IMAGE_BYTES);
    for (ground, foreground) in ground.into_iter().zip(foreground) {
        for y in 0..SIDE {
            for x in 0..SIDE {
                let cover = cover(ink, x, y);
                let mixed = u32::from(ground) * (1024 - cover) + u32::from(foreground) * cover;
                image.push(u8::try_from((mixed + 512) >> 10).expect("between the two colours"));
            }
        }
    }
    image
}

/// Ink on a pixel, in parts of 1,024.
fn cover(ink: &Ink, x: usize, y: usize) -> u32 {
    let at = |row: usize, column: usize| u32::from(ink[row * DIGIT_SIDE + column]);
    let ([left, right], right_part) = neighbours(x);
    let ([above, below], below_part) = neighbours(y);
    let (left_part, above_part) = (8 - right_part, 8 - below_part);
    (at(above, left) * left_part + at(above, right) * right_part) * above_part
        + (at(below, left) * left_part + at(below, right) * right_part) * below_part
}

/// The two pixels of the digit between whose centres a pixel of the image lies, and its distance from the first one in
/// eighths.
fn neighbours(pixel: usize) -> ([usize; 2], u32) {
    // In eighths of a pixel of the digit, from the centre of a pixel before the first.
    let at = 2 * pixel + 5;
    let first = (at / 8).saturating_sub(1);
    let second = (at / 8).min(DIGIT_SIDE - 1);
    ([first, second], u32::try_from(at % 8).expect("less than eight"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_ink_is_ground_and_full_ink_is_the_colour() {
        for (ink, expected) in [(0, [10, 20, 30]), (16, [200, 100, 0])] {
            let image = render(&[ink; 64], [10, 20, 30], [200, 100, 0]);
            assert_eq!(image.len(), IMAGE_BYTES);
            for (plane, value) in image.chunks(SIDE * SIDE).zip(expected) {
                assert!(plane.iter().all(|byte| *byte == value));
            }
        }
    }

    #[test]
    fn a_pixel_blends_into_adjacent_pixels() {
        let mut ink = [0; 64];
        ink[0] = 16;
        let image = render(&ink, [0; 3], [255; 3]);
        assert_eq!(image[..10], [255, 255, 223, 159, 96, 32, 0, 0, 0, 0]);
    }
}
