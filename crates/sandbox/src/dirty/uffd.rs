//! The kernel's part in tracking.

/// Whether PAGEMAP_SCAN can be used.
pub(crate) fn pagemap_scan_works() -> bool {
    true
}
