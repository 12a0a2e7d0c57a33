//! The kernel's part of tracking: asynchronous write protection by userfaultfd, read with PAGEMAP_SCAN.
//!
//! The numbers and layouts are those of `linux/userfaultfd.h` and `linux/fs.h` (Linux 6.7 and later).

use crate::limits::PAGE;
use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

#[repr(C)]
struct UffdApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct UffdRange {
    start: u64,
    len: u64,
}

#[repr(C)]
struct UffdRegister {
    range: UffdRange,
    mode: u64,
    ioctls: u64,
}

/// One run of pages that PAGEMAP_SCAN reports.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

#[repr(C)]
#[derive(Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const UFFD_USER_MODE_ONLY: libc::c_int = 1;
const UFFD_API: u64 = 0xAA;
const UFFDIO_API: u64 = 0xc018_aa3f;
const UFFDIO_REGISTER: u64 = 0xc020_aa00;
const UFFDIO_UNREGISTER: u64 = 0x8010_aa01;
const FEATURE_WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
const FEATURE_WP_ASYNC: u64 = 1 << 15;
const REGISTER_MODE_WP: u64 = 2;

const PAGEMAP_SCAN: u64 = 0xc060_6610;
/// Protect the reported pages in the same walk.
const SCAN_WP_MATCHING: u64 = 1;
/// Fail on a range that is not registered, instead of reporting nothing.
const SCAN_CHECK_WPASYNC: u64 = 2;
const IS_WRITTEN: u64 = 1 << 1;
const IS_FILE: u64 = 1 << 2;
const IS_PRESENT: u64 = 1 << 3;
const IS_SWAPPED: u64 = 1 << 4;
const IS_PFNZERO: u64 = 1 << 5;

/// Runs that one call may report; more take another call.
const REGIONS: usize = 1024;

/// Performs an ioctl whose argument the kernel reads and writes.
fn ioctl<T>(fd: &impl AsRawFd, request: u64, arg: &mut T) -> io::Result<usize> {
    // SAFETY: `arg` is a live exclusive reference to the structure that `request` takes, of the size that is part of
    // the request's number; `fd` is open. No safe wrapper knows these requests.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request as _, std::ptr::from_mut(arg)) };
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// PAGEMAP_SCAN on this process.
pub(super) struct Pagemap {
    file: File,
    regions: RefCell<Vec<PageRegion>>,
}

impl Pagemap {
    pub(super) fn open() -> io::Result<Self> {
        let file = File::open("/proc/self/pagemap")?;
        Ok(Self { file, regions: RefCell::new(vec![PageRegion::default(); REGIONS]) })
    }

    /// Adds the matching runs of pages in `range` to `out`, as page numbers relative to `range.start`.
    fn scan(&self, range: Range<usize>, mut arg: ScanArg, out: &mut Vec<Range<u32>>) -> io::Result<()> {
        let mut regions = self.regions.borrow_mut();
        let base = range.start as u64;
        arg.size = size_of::<ScanArg>() as u64;
        arg.start = base;
        arg.end = range.end as u64;
        arg.vec = regions.as_mut_ptr() as u64;
        arg.vec_len = regions.len() as u64;
        while arg.start < arg.end {
            let count = ioctl(&self.file, PAGEMAP_SCAN, &mut arg)?;
            for region in regions.iter().take(count) {
                let page = |at: u64| u32::try_from((at - base) / PAGE as u64).unwrap_or(u32::MAX);
                push_run(out, page(region.start)..page(region.end));
            }
            arg.start = arg.walk_end;
        }
        Ok(())
    }

    /// Private pages of this process: those written since the memory was mapped. Only before the range is registered:
    /// protection leaves marks on untouched pages that look like swapped pages.
    pub(super) fn private(&self, range: Range<usize>, out: &mut Vec<Range<u32>>) -> io::Result<()> {
        self.scan(range, ScanArg { return_mask: IS_PRESENT, ..own() }, out)
    }

    /// Those private pages, in a registered range without marks, that were written since the last call. They are protected;
    /// untouched pages are not.
    pub(super) fn written_own(&self, range: Range<usize>, out: &mut Vec<Range<u32>>) -> io::Result<()> {
        let own = own();
        let arg = ScanArg {
            flags: SCAN_WP_MATCHING | SCAN_CHECK_WPASYNC,
            category_mask: own.category_mask | IS_WRITTEN,
            return_mask: IS_WRITTEN,
            ..own
        };
        self.scan(range, arg, out)
    }

    /// Pages of a registered range that were written since the last call, and all pages that are not protected yet.
    /// Faster than [`Self::written_own`]: the kernel checks only the protection.
    pub(super) fn written(&self, range: Range<usize>, out: &mut Vec<Range<u32>>) -> io::Result<()> {
        let arg = ScanArg {
            flags: SCAN_WP_MATCHING | SCAN_CHECK_WPASYNC,
            category_mask: IS_WRITTEN,
            return_mask: IS_WRITTEN,
            ..ScanArg::default()
        };
        self.scan(range, arg, out)
    }
}

/// Asks for pages that are neither backed by a file nor the zero page.
fn own() -> ScanArg {
    ScanArg {
        category_inverted: IS_FILE | IS_PFNZERO,
        category_mask: IS_FILE | IS_PFNZERO,
        category_anyof_mask: IS_PRESENT | IS_SWAPPED,
        ..ScanArg::default()
    }
}

/// Adds a run; joins it to the last run if they touch.
pub(super) fn push_run(out: &mut Vec<Range<u32>>, run: Range<u32>) {
    match out.last_mut() {
        Some(last) if last.end == run.start => last.end = run.end,
        _ => out.push(run),
    }
}

/// Whether PAGEMAP_SCAN can be used: Linux 6.7 and /proc.
pub(crate) fn pagemap_scan_works() -> bool {
    let page = Box::new([1_u8; 2 * PAGE]);
    let start = (page.as_ptr() as usize).next_multiple_of(PAGE);
    Pagemap::open().and_then(|pagemap| pagemap.private(start..start + PAGE, &mut Vec::new())).is_ok()
}

/// Starts and ends asynchronous write protection.
pub(crate) struct Kernel {
    uffd: OwnedFd,
    pagemap: Pagemap,
}

impl Kernel {
    /// Opens the userfaultfd and the pagemap, if the kernel has them and lets this process use them.
    pub(crate) fn open() -> io::Result<Self> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | UFFD_USER_MODE_ONLY;
        // SAFETY: the call takes one integer and returns a new descriptor or -1; libc has no function for it.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
        let uffd = unsafe { OwnedFd::from_raw_fd(fd) };
        let features = FEATURE_WP_ASYNC | FEATURE_WP_UNPOPULATED | FEATURE_WP_HUGETLBFS_SHMEM;
        ioctl(&uffd, UFFDIO_API, &mut UffdApi { api: UFFD_API, features, ioctls: 0 })?;
        Ok(Self { uffd, pagemap: Pagemap::open()? })
    }

    pub(super) fn pagemap(&self) -> &Pagemap {
        &self.pagemap
    }

    /// Starts tracking writes to a mapped, page-aligned range.
    pub(super) fn register(&self, range: &Range<usize>) -> io::Result<()> {
        let range = UffdRange { start: range.start as u64, len: range.len() as u64 };
        let mut register = UffdRegister { range, mode: REGISTER_MODE_WP, ioctls: 0 };
        ioctl(&self.uffd, UFFDIO_REGISTER, &mut register).map(|_| ())
    }

    /// Ends tracking. Every page that was written counts as written again, for the pool too.
    pub(super) fn unregister(&self, range: &Range<usize>) -> io::Result<()> {
        let mut range = UffdRange { start: range.start as u64, len: range.len() as u64 };
        ioctl(&self.uffd, UFFDIO_UNREGISTER, &mut range).map(|_| ())
    }
}
