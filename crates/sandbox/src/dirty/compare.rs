//! Finds dirty pages without the kernel: compares every page with the last checkpoint.

use super::{PageSet, uffd::push_run};
use crate::image::InitialMemory;
use crate::limits::PAGE;
use std::collections::BTreeMap;
use std::ops::Range;

/// Memory in the last checkpoint, as far as it differs from the image.
#[derive(Default)]
pub(super) struct Shadow {
    pages: BTreeMap<u32, Box<[u8]>>,
}

impl Shadow {
    /// Compares these pages, and stores them as they are now. Adds runs of those that have changed, relative to the first.
    pub(super) fn collect(
        &mut self,
        memory: &[u8],
        image: &InitialMemory,
        pages: Range<usize>,
        changed: &mut Vec<Range<u32>>,
    ) {
        let first = u32::try_from(pages.start).unwrap_or(u32::MAX);
        let contents = memory[pages.start * PAGE..pages.end * PAGE].chunks_exact(PAGE);
        for (index, page) in (first..).zip(contents) {
            let initial = image.page(index).unwrap_or(&[0; PAGE]);
            let previous = self.pages.get(&index).map_or(initial, |page| &page[..]);
            if page == previous {
                continue;
            }
            push_run(changed, index - first..index - first + 1);
            if page == initial {
                self.pages.remove(&index);
            } else {
                self.pages.insert(index, page.into());
            }
        }
    }

    /// Adds the pages that differed from the image when they were compared.
    pub(super) fn add_pages(&self, to: &mut PageSet) {
        self.pages.keys().for_each(|page| to.add(*page..*page + 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_returns_to_the_image_has_changed_and_does_not_differ() {
        let image = InitialMemory::scan(&[0; 4 * PAGE]);
        let mut memory = vec![0; 4 * PAGE];
        let mut shadow = Shadow::default();
        memory[PAGE] = 1;
        memory[2 * PAGE] = 1;
        let mut check = |memory: &[u8], changed: &[u32], differ: &[u32]| {
            let (mut found, mut last, mut now) = (Vec::new(), Vec::new(), PageSet::default());
            shadow.collect(memory, &image, 0..3, &mut found);
            shadow.collect(memory, &image, 3..4, &mut last);
            shadow.add_pages(&mut now);
            let last = last.into_iter().flatten().map(|page| page + 3);
            let found: Vec<u32> = found.into_iter().flatten().chain(last).collect();
            let now: Vec<u32> = now.runs().into_iter().flatten().collect();
            assert_eq!((&found[..], &now[..]), (changed, differ));
        };
        check(&memory, &[1, 2], &[1, 2]);
        memory[PAGE] = 0;
        check(&memory, &[1], &[2]);
        check(&memory, &[], &[2]);
        memory[3 * PAGE] = 1;
        check(&memory, &[3], &[2, 3]);
    }
}
