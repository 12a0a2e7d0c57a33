//! Finds the pages of a cell's memory that were written since the last checkpoint: with the kernel's help, or by comparing.
//!
//! Tracking begins with a cell's first checkpoint, since most short sessions never need one.

mod compare;
mod page_set;
mod uffd;

pub(crate) use page_set::PageSet;
pub(crate) use uffd::pagemap_scan_works;

use crate::image::InitialMemory;
use crate::limits::PAGE;
use compare::Shadow;
use marram_session::cell::CheckpointBase;
use std::io;
use std::ops::Range;
use std::rc::Rc;
use uffd::Kernel;

/// Whether dirty pages are found with the kernel's help.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tracking {
    /// With userfaultfd and PAGEMAP_SCAN if the kernel supports both and this process may use them, else by comparing.
    Auto,
    /// By comparing memory with the last checkpoint: slower, works everywhere.
    Compare,
}

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

/// Pages that one call of [`Tracker::collect`] examines: the walk takes the kernel about a tenth of a millisecond.
pub(crate) const PART_PAGES: usize = 4096;

/// Tracks one cell's memory.
///
/// ```text
/// arm --> collect, collect, ... --> pages (what a checkpoint needs) --> settle (it was copied)
/// restore --> skip (memory is as some checkpoints say) --> collect ...
/// ```
/// Writes that were collected stay *pending* until a checkpoint has copied them: a copy that was begun and is given up
/// loses nothing.
pub(crate) struct Tracker {
    state: State,
    /// Pages that were written since the last checkpoint, as far as they were collected.
    pending: PageSet,
    /// Pages that deltas on the last full checkpoint contain.
    in_deltas: PageSet,
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
    /// Pages that may differ from the image, without pending ones.
    ever: PageSet,
    /// By part.
    protected: Vec<Protected>,
}

/// Which pages of a part are protected, so that the kernel reports the next write to them.
///
/// Untouched pages are from the second time on that the part is examined: each needs a mark, which was most of the cost of
/// arming, and few short sessions take a second checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Protected {
    Nothing,
    Written,
    All,
}

impl Drop for Armed {
    fn drop(&mut self) {
        self.end_at(0);
    }
}

impl Tracker {
    pub(crate) fn new(method: &Method) -> Self {
        let (pending, in_deltas) = (PageSet::default(), PageSet::default());
        Self { state: State::Inactive(method.clone()), pending, in_deltas }
    }

    /// Ends tracking of the memory from this offset on. Must be called before that memory is given back; dropping also does it. The cell does not run
    /// any more.
    pub(crate) fn disarm_from(&mut self, offset: usize) {
        match &mut self.state {
            State::Kernel(armed) => armed.end_at(offset),
            _ => *self = Self::new(&Method::Compare),
        }
    }

    /// Whether there is a checkpoint that a delta can build on.
    pub(crate) fn is_armed(&self) -> bool {
        !matches!(self.state, State::Inactive(_))
    }

    /// Starts to track, unless it does already. Until [`Self::settle`] everything that differs from the image is pending.
    pub(crate) fn arm(&mut self, memory: &[u8]) {
        let State::Inactive(method) = &self.state else { return };
        let armed = match method {
            Method::Kernel(kernel) => Armed::new(Rc::clone(kernel), memory).ok(),
            Method::Compare => None,
        };
        self.state = armed.map_or_else(|| State::Compare(Shadow::default()), State::Kernel);
    }

    /// Adds the pages of a part of memory that were written since it was examined before. From now on later writes to it are
    /// found by the next call. `part` counts parts of [`PART_PAGES`]; the last one may be short. Adds them to `found` as well.
    ///
    /// # Errors
    /// If the kernel refuses. The cell's next checkpoint must be a full one; its pages are found by comparing.
    pub(crate) fn collect(
        &mut self,
        memory: &[u8],
        image: &InitialMemory,
        part: usize,
        found: &mut PageSet,
    ) -> io::Result<()> {
        let pages = pages_of(memory, part);
        let mut written = Vec::new();
        let collected = match &mut self.state {
            State::Inactive(_) => Ok(()),
            State::Kernel(armed) => armed.collect(memory, part, &mut written),
            State::Compare(shadow) => {
                shadow.collect(memory, image, pages.clone(), &mut written);
                Ok(())
            }
        };
        let first = u32::try_from(pages.start).unwrap_or(u32::MAX);
        for run in written {
            found.add(first + run.start..first + run.end);
            self.pending.add(first + run.start..first + run.end);
        }
        if collected.is_err() {
            self.pending = PageSet::default();
            self.state = State::Compare(Shadow::default());
        }
        collected
    }

    /// The pages that a checkpoint on `base` needs, as far as they were collected.
    pub(crate) fn pages(&self, base: CheckpointBase) -> PageSet {
        let mut pages = self.pending.clone();
        match (base, &self.state) {
            (CheckpointBase::Previous | CheckpointBase::Backup, _) | (_, State::Inactive(_)) => {}
            (CheckpointBase::Full, _) => pages.add_all(&self.in_deltas),
            (CheckpointBase::Image | CheckpointBase::Apart, State::Kernel(armed)) => {
                pages.add_all(&armed.ever)
            }
            (CheckpointBase::Image | CheckpointBase::Apart, State::Compare(shadow)) => {
                shadow.add_pages(&mut pages)
            }
        }
        pages
    }

    /// What was collected is in a checkpoint on `base`: the next delta need not contain it.
    pub(crate) fn settle(&mut self, base: CheckpointBase) {
        let pending = std::mem::take(&mut self.pending);
        match base {
            CheckpointBase::Image => self.in_deltas = PageSet::default(),
            CheckpointBase::Previous | CheckpointBase::Backup | CheckpointBase::Full => {
                self.in_deltas.add_all(&pending);
            }
            CheckpointBase::Apart => return self.pending = pending,
        }
        if let State::Kernel(armed) = &mut self.state {
            armed.ever.add_all(&pending);
        }
    }

    /// All of memory is known as it is now, because checkpoints were just written to it: only later writes count. `deltas` are
    /// the pages that may differ from the full one on which merged deltas build; `has_full`, if it is one of these.
    ///
    /// # Errors
    /// As [`Self::collect`].
    pub(crate) fn skip(
        &mut self,
        memory: &[u8],
        image: &InitialMemory,
        (has_full, deltas): (bool, &PageSet),
    ) -> io::Result<()> {
        self.arm(memory);
        let mut found = PageSet::default();
        (0..parts(memory)).try_for_each(|part| self.collect(memory, image, part, &mut found))?;
        let before = std::mem::take(&mut self.in_deltas);
        self.settle(CheckpointBase::Image);
        if !has_full {
            self.in_deltas = before;
        }
        self.in_deltas.add_all(deltas);
        Ok(())
    }
}

/// Parts of a memory, for [`Tracker::collect`].
pub(crate) fn parts(memory: &[u8]) -> usize {
    memory.len().div_ceil(PART_PAGES * PAGE)
}

/// The pages of a part.
fn pages_of(memory: &[u8], part: usize) -> Range<usize> {
    let end = memory.len() / PAGE;
    (part * PART_PAGES).min(end)..((part + 1) * PART_PAGES).min(end)
}

impl Armed {
    /// No page is pending or known to differ.
    fn new(kernel: Rc<Kernel>, memory: &[u8]) -> io::Result<Self> {
        let start = memory.as_ptr() as usize;
        let range = start..start + memory.len();
        kernel.register(&range)?;
        // From here on dropping unregisters the range.
        Ok(Self {
            kernel,
            range,
            ever: PageSet::default(),
            protected: vec![Protected::Nothing; parts(memory)],
        })
    }

    /// Ends tracking from this offset on.
    ///
    /// If the range of a slot stayed registered, the next cell could see its pages: the pool finds written pages by the
    /// flag that our scans clear.
    fn end_at(&mut self, offset: usize) {
        let ends = self.range.start.saturating_add(offset)..self.range.end;
        if ends.is_empty() {
            return;
        }
        if let Err(error) = self.kernel.unregister(&ends) {
            eprintln!(
                "marram: cannot stop tracking a slot ({error}); stopping, so that no cell sees another's memory"
            );
            std::process::abort();
        }
        self.range.end = ends.start;
    }

    /// Adds the runs of a part's pages that were written, relative to the part.
    fn collect(&mut self, memory: &[u8], part: usize, dirty: &mut Vec<Range<u32>>) -> io::Result<()> {
        self.extend(memory)?;
        let pages = pages_of(memory, part);
        let Some(protected) = self.protected.get_mut(part) else { return Ok(()) };
        let range = self.range.start + pages.start * PAGE..self.range.start + pages.end * PAGE;
        let pagemap = self.kernel.pagemap();
        match *protected {
            Protected::Nothing => {
                pagemap.written_own(range, dirty)?;
                *protected = Protected::Written;
            }
            Protected::Written => {
                pagemap.written_own(range.clone(), dirty)?;
                // The remaining pages are untouched. If they are protected, the next scan need not distinguish them from
                // written pages.
                pagemap.written(range, &mut Vec::new())?;
                *protected = Protected::All;
            }
            Protected::All => pagemap.written(range, dirty)?,
        }
        Ok(())
    }

    /// Tracks memory that was added since.
    fn extend(&mut self, memory: &[u8]) -> io::Result<()> {
        let end = self.range.start + memory.len();
        if end > self.range.end {
            self.kernel.register(&(self.range.end..end))?;
            let first_new = self.range.len() / (PART_PAGES * PAGE);
            self.range.end = end;
            self.protected.truncate(first_new);
            self.protected.resize(parts(memory), Protected::Nothing);
        }
        Ok(())
    }
}
