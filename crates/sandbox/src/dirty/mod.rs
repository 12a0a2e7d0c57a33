//! Finds the pages of a cell's memory that were written since the last checkpoint: with the kernel's help, or by comparing.
//!
//! Tracking begins with a cell's first checkpoint, since most short sessions never need one.

mod compare;
mod uffd;

pub(crate) use uffd::pagemap_scan_works;

use crate::cells::Tracking;
use crate::image::InitialMemory;
use crate::limits::PAGE;
use compare::Shadow;
use marram_session::cell::CheckpointBase;
use std::io;
use std::ops::Range;
use std::rc::Rc;
use uffd::{Kernel, push_run};

/// How dirty pages are found in this process.
#[derive(Clone)]
pub(crate) enum Method {
    Kernel(Rc<Kernel>),
    Compare,
}

impl Method {
    pub(crate) fn choose(tracking: Tracking) -> Self {
        match tracking {
            Tracking::Compare => Self::Compare,
            Tracking::Auto => match Kernel::open() {
                Ok(kernel) if works(&kernel) => Self::Kernel(Rc::new(kernel)),
                _ => Self::Compare,
            },
        }
    }

    pub(crate) fn describe(&self) -> &'static str {
        match self {
            Self::Kernel(_) => "userfaultfd and PAGEMAP_SCAN",
            Self::Compare => {
                "comparison with the last checkpoint (the kernel offers no tracking to this process)"
            }
        }
    }
}

/// Tries tracking once on our own memory: some container sandboxes accept the calls and then fail them.
fn works(kernel: &Kernel) -> bool {
    let memory = vec![0_u8; 3 * PAGE];
    let start = (memory.as_ptr() as usize).next_multiple_of(PAGE);
    let range = start..start + PAGE;
    let mut runs = Vec::new();
    kernel.register(&range).is_ok()
        && kernel.pagemap().written(range.clone(), &mut runs).is_ok()
        && kernel.unregister(&range).is_ok()
}

/// Tracks one cell's memory.
pub(crate) struct Tracker {
    state: State,
}

enum State {
    /// Not used yet.
    Inactive(Method),
    Kernel(Armed),
    Compare(Shadow),
}

/// A range that is registered with the kernel.
struct Armed {
    kernel: Rc<Kernel>,
    range: Range<usize>,
    /// Pages that may differ from the image.
    ever: Bitmap,
    /// Whether untouched pages are protected too. They are from the second checkpoint on: each needs a mark, which was most of
    /// the cost of arming, and few short sessions take a second checkpoint.
    all: bool,
}

impl Drop for Armed {
    /// If the range of a slot stayed registered, the next cell could see its pages: the pool finds written pages by the
    /// flag that our scans clear.
    fn drop(&mut self) {
        if let Err(error) = self.kernel.unregister(&self.range) {
            eprintln!(
                "marram: cannot stop tracking a slot ({error}); stopping, so that no cell sees another's memory"
            );
            std::process::abort();
        }
    }
}

impl Tracker {
    pub(crate) fn new(method: &Method) -> Self {
        Self { state: State::Inactive(method.clone()) }
    }

    /// Ends tracking. Must be called before the memory's slot is given back; dropping also does it.
    pub(crate) fn disarm(&mut self) {
        self.state = State::Inactive(Method::Compare);
    }

    /// Whether there is a checkpoint that a delta can build on.
    pub(crate) fn is_armed(&self) -> bool {
        !matches!(self.state, State::Inactive(_))
    }

    /// The pages that a checkpoint on `base` needs, in order. From now on only later writes count for the next one on
    /// [`CheckpointBase::Previous`]; the first call always returns the pages for [`CheckpointBase::Image`].
    ///
    /// # Errors
    /// If the kernel refuses. The cell's next checkpoint must be a full one; its pages are found by comparing.
    pub(crate) fn take(
        &mut self,
        memory: &[u8],
        image: &InitialMemory,
        base: CheckpointBase,
    ) -> io::Result<Vec<Range<u32>>> {
        if let State::Inactive(Method::Kernel(kernel)) = &self.state
            && let Ok(armed) = Armed::new(Rc::clone(kernel), memory)
        {
            let runs = armed.ever.runs();
            self.state = State::Kernel(armed);
            return Ok(runs);
        }
        if let State::Kernel(armed) = &mut self.state {
            let taken = armed.take(memory, base);
            if taken.is_err() {
                self.state = State::Compare(Shadow::default());
            }
            return taken;
        }
        if let State::Compare(shadow) = &mut self.state {
            return Ok(shadow.take(memory, image, base));
        }
        let mut shadow = Shadow::default();
        let runs = shadow.take(memory, image, CheckpointBase::Image);
        self.state = State::Compare(shadow);
        Ok(runs)
    }
}

fn address(memory: &[u8]) -> Range<usize> {
    let start = memory.as_ptr() as usize;
    start..start + memory.len()
}

impl Armed {
    fn new(kernel: Rc<Kernel>, memory: &[u8]) -> io::Result<Self> {
        let range = address(memory);
        kernel.register(&range)?;
        // From here on dropping unregisters the range, also after an error.
        let mut armed = Self { kernel, range: range.clone(), ever: Bitmap::default(), all: false };
        let mut own = Vec::new();
        armed.kernel.pagemap().written_own(range, &mut own)?;
        armed.ever.add(&own);
        Ok(armed)
    }

    fn take(&mut self, memory: &[u8], base: CheckpointBase) -> io::Result<Vec<Range<u32>>> {
        let mut dirty = Vec::new();
        let collected = self.collect(memory, &mut dirty);
        // Also after a failure: the kernel reports each write once, and the next full checkpoint needs it.
        self.ever.add(&dirty);
        collected?;
        Ok(match base {
            CheckpointBase::Image => self.ever.runs(),
            CheckpointBase::Previous => dirty,
        })
    }

    fn collect(&mut self, memory: &[u8], dirty: &mut Vec<Range<u32>>) -> io::Result<()> {
        let pagemap = self.kernel.pagemap();
        if self.all {
            pagemap.written(self.range.clone(), dirty)?;
        } else {
            pagemap.written_own(self.range.clone(), dirty)?;
            // The remaining pages are untouched. If they are protected, the next scan need not distinguish them from written
            // pages.
            pagemap.written(self.range.clone(), &mut Vec::new())?;
            self.all = true;
        }
        let now = address(memory);
        if now.end > self.range.end {
            // Grown memory is not registered yet: the pages written there are private; from now on it is tracked.
            let grown = self.range.end..now.end;
            let first = u32::try_from(self.range.len() / PAGE).unwrap_or(u32::MAX);
            let mut own = Vec::new();
            pagemap.private(grown.clone(), &mut own)?;
            for run in own {
                push_run(dirty, first + run.start..first + run.end);
            }
            self.kernel.register(&grown)?;
            self.range.end = now.end;
            pagemap.written(grown, &mut Vec::new())?;
        }
        Ok(())
    }
}

/// A set of page numbers.
#[derive(Default)]
struct Bitmap(Vec<u64>);

impl Bitmap {
    fn add(&mut self, runs: &[Range<u32>]) {
        if let Some(last) = runs.last() {
            let words = (last.end as usize).div_ceil(64);
            self.0.resize(self.0.len().max(words), 0);
        }
        for page in runs.iter().flat_map(Clone::clone) {
            self.0[page as usize / 64] |= 1 << (page % 64);
        }
    }

    fn runs(&self) -> Vec<Range<u32>> {
        let mut runs = Vec::new();
        for (index, word) in (0_u32..).zip(&self.0).filter(|(_, word)| **word != 0) {
            for bit in (0..64).filter(|bit| word >> bit & 1 == 1) {
                push_run(&mut runs, index * 64 + bit..index * 64 + bit + 1);
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bitmap_gives_back_what_was_added_in_order() {
        let mut bitmap = Bitmap::default();
        bitmap.add(&[70..72, 128..129]);
        bitmap.add(&[0..1, 63..70]);
        bitmap.add(&[]);
        assert_eq!(bitmap.runs(), [0..1, 63..72, 128..129]);
    }
}
