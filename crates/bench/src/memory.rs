//! Memory of groups of processes, as the kernel counts it.
//!
//! `Pss` is what a process would free if it ended alone, with shared pages divided by their users:
//! the sum over a group is the memory that the group uses, and pages that forked processes share
//! are not counted many times.

use super::cpu;
use std::fs;

/// The proportional set size of all processes of a group, in KiB: a page that several processes map counts for each in part.
pub(super) fn proportional_kib(group: u32) -> u64 {
    let of = |path: std::path::PathBuf| fs::read_to_string(path.join("smaps_rollup")).ok();
    cpu::processes(&[group]).filter_map(of).filter_map(|text| pss_kib(&text)).sum()
}

/// The resident set of one process, in KiB: now, and the largest so far. 0 if it is gone.
pub(super) fn resident_kib(process: u32) -> (u64, u64) {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let of = |name| kib(&status, name).unwrap_or(0);
    (of("VmRSS:"), of("VmHWM:"))
}

/// The line `Pss: <n> kB` of `smaps_rollup`; `None` for a kernel thread, which has none.
fn pss_kib(rollup: &str) -> Option<u64> {
    kib(rollup, "Pss:")
}

/// The line `<name> <n> kB`.
fn kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_found_among_its_parts() {
        let text = "5581-7ffd ---p 0 00:00 0 [rollup]\nRss:  9000 kB\nPss:    1234 kB\nPss_Dirty:   77 kB\n";
        assert_eq!(pss_kib(text), Some(1_234));
        assert_eq!(pss_kib("nonsense"), None);
    }

    #[test]
    fn this_process_has_a_resident_set_and_one_that_is_gone_has_none() {
        let (now, most) = resident_kib(std::process::id());
        assert!(0 < now && now <= most, "{now} {most}");
        assert_eq!(resident_kib(u32::MAX), (0, 0));
    }
}
