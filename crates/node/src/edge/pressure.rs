//! Whether the machine, or the control group of this process, runs out of memory.
//!
//! Read every few seconds (`TEND_EVERY` in `executor.rs`), by each shard for itself. Only what was
//! prepared for future clients is given up then; running cells are never touched.

use std::fs;

/// Memory is short if less than 1 / `SHORT` is left.
const SHORT: u64 = 16;

/// Whether little memory is left. If that cannot be read, there is enough.
pub(super) fn is_short() -> bool {
    machine().is_some_and(|(left, all)| left < all / SHORT)
        || group().is_some_and(|(left, all)| left < all / SHORT)
}

/// Available and total, in KiB.
/// `MemAvailable` counts what the kernel could free, such as its page cache.
fn machine() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    Some((field(&text, "MemAvailable:")?, field(&text, "MemTotal:")?))
}

fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Left and allowed in this process's control group, in bytes; `None` without a limit.
///
/// Only version 2 of control groups, and only the process's own group: a limit of a parent group is
/// not seen.
fn group() -> Option<(u64, u64)> {
    let path = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = path.lines().find_map(|line| line.strip_prefix("0::"))?.trim_start_matches('/').to_owned();
    let read =
        |file: &str| fs::read_to_string(format!("/sys/fs/cgroup/{path}/{file}")).ok()?.trim().parse().ok();
    let (used, all): (u64, u64) = (read("memory.current")?, read("memory.max")?);
    Some((all.saturating_sub(used), all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_by_name() {
        let text = "MemTotal:       24689980 kB\nMemFree:        1 kB\nMemAvailable:   22000000 kB\n";
        assert_eq!(field(text, "MemAvailable:"), Some(22_000_000));
        assert_eq!(field(text, "MemTotal:"), Some(24_689_980));
        assert_eq!(field(text, "Swap:"), None);
        assert!(machine().is_some_and(|(left, all)| left <= all));
    }
}
