//! The exact mean of the last frames for each pixel: a ring of frames and their sums.

/// Bytes per pixel that are needed in addition to the frames: sums, a mask, its labels, and buffers that grow by doubling.
const LOOKING: usize = 8;

/// The mean. A recovery must restore it: without it, everything would be a change for as many frames.
pub struct Mean {
    /// The frames, one after the other. Their memory is reserved and not touched, so that a short stream costs little.
    ring: Vec<u8>,
    sums: Vec<u16>,
    size: usize,
    frames_max: usize,
    /// Index of the next frame to replace.
    next: usize,
}

impl Mean {
    /// An empty mean. Frames have `size` pixels; `frames_max` is at most [`crate::settings::FRAMES_MAX`]. `None` if the cell does
    /// not have enough memory for it and for searching a frame.
    #[must_use]
    pub fn new(size: usize, frames_max: usize) -> Option<Self> {
        let (mut ring, mut room) = (Vec::new(), Vec::<u8>::new());
        ring.try_reserve_exact(size.checked_mul(frames_max)?).ok()?;
        room.try_reserve_exact(size.checked_mul(LOOKING)?).ok()?;
        Some(Self { ring, sums: vec![0; size], size, frames_max, next: 0 })
    }

    /// Whether it covers `frames_max` frames.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.ring.len() == self.size * self.frames_max
    }

    /// Sums over [`Self::frames`] frames.
    #[must_use]
    pub fn sums(&self) -> &[u16] {
        &self.sums
    }

    /// Number of frames that it covers.
    #[must_use]
    pub fn frames(&self) -> u16 {
        u16::try_from(self.ring.len() / self.size.max(1)).expect("a few hundred at the most")
    }

    /// Adds a frame; if the ring is full, it replaces the oldest.
    ///
    /// # Panics
    /// If the frame is of another size.
    pub fn add(&mut self, frame: &[u8]) {
        assert_eq!(frame.len(), self.size, "frames of one stream are of one size");
        if !self.is_full() {
            self.ring.extend_from_slice(frame);
            self.sums.iter_mut().zip(frame).for_each(|(sum, new)| *sum += u16::from(*new));
            return;
        }
        let oldest = &mut self.ring[self.next * self.size..][..self.size];
        for ((sum, old), new) in self.sums.iter_mut().zip(oldest.iter()).zip(frame) {
            *sum = *sum - u16::from(*old) + u16::from(*new);
        }
        oldest.copy_from_slice(frame);
        self.next = (self.next + 1) % self.frames_max;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_of_the_last_frames_and_of_no_other() {
        let mut mean = Mean::new(2, 3).unwrap();
        for (frame, sums, full) in [
            ([255, 0], [255, 0], false),
            ([255, 1], [510, 1], false),
            ([255, 2], [765, 3], true),
            ([0, 3], [510, 6], true),
            ([0, 4], [255, 9], true),
            ([0, 5], [0, 12], true),
            ([9, 6], [9, 15], true),
        ] {
            mean.add(&frame);
            assert_eq!((mean.sums(), mean.is_full()), (&sums[..], full));
        }
        assert_eq!(mean.frames(), 3);
        let mut most = Mean::new(1, crate::settings::FRAMES_MAX).unwrap();
        (0..600).for_each(|_| most.add(&[255]));
        assert_eq!(most.sums(), [u16::MAX]);
    }
}
