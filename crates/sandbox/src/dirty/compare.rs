//! Finds dirty pages without the kernel: compares every page with the last checkpoint.

use super::push_run;
use crate::image::InitialMemory;
use crate::limits::PAGE;
use marram_session::cell::CheckpointBase;
use std::collections::BTreeMap;
use std::ops::Range;

/// Memory in the last checkpoint, as far as it differs from the image.
#[derive(Default)]
pub(super) struct Shadow {
    pages: BTreeMap<u32, Box<[u8]>>,
}

impl Shadow {
    /// Compares all of memory, and stores it as the last checkpoint.
    pub(super) fn take(
        &mut self,
        memory: &[u8],
        image: &InitialMemory,
        base: CheckpointBase,
    ) -> Vec<Range<u32>> {
        let mut runs = Vec::new();
        for (index, page) in (0_u32..).zip(memory.chunks_exact(PAGE)) {
            let initial = image.page(index).unwrap_or(&[0; PAGE]);
            let previous = self.pages.get(&index).map_or(initial, |page| &page[..]);
            let changed = page != previous;
            let wanted = match base {
                CheckpointBase::Previous => changed,
                CheckpointBase::Image => page != initial,
            };
            if wanted {
                push_run(&mut runs, index..index + 1);
            }
            if changed && page == initial {
                self.pages.remove(&index);
            } else if changed {
                self.pages.insert(index, page.into());
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_returns_to_the_image_is_in_the_delta_and_not_in_the_full() {
        let image = InitialMemory::scan(&[0; 4 * PAGE]);
        let mut memory = vec![0; 4 * PAGE];
        let mut shadow = Shadow::default();
        memory[PAGE] = 1;
        memory[2 * PAGE] = 1;
        let mut pages =
            |memory: &[u8], base| shadow.take(memory, &image, base).into_iter().flatten().collect();
        let mut check = |memory: &[u8], base, expected: &[u32]| {
            let found: Vec<u32> = pages(memory, base);
            assert_eq!(found, expected);
        };
        check(&memory, CheckpointBase::Image, &[1, 2]);
        memory[PAGE] = 0;
        check(&memory, CheckpointBase::Previous, &[1]);
        check(&memory, CheckpointBase::Previous, &[]);
        check(&memory, CheckpointBase::Image, &[2]);
    }
}
