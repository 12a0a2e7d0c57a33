//! CPU time of groups of processes, as the kernel counts it, in nanoseconds; pinning to a core, and real-time priority.
//!
//! Read from `/proc/PID/task/TID/schedstat`, whose first field is the time on a processor in
//! nanoseconds. `getrusage` would count only children that have ended, and `stat` counts in ticks
//! of 10 ms, which is longer than what is measured.

use anyhow::Context;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fs;
use std::path::{Path, PathBuf};

/// Lets this thread run before all others that are ready, where this process may: clients and servers have machines of their own, so
/// that their waits for a core are no part of what is measured. For threads that mostly wait for something else.
pub(super) fn run_first() {
    // Where it is not allowed, figures have more spread.
    let _ = lets_run_first(0);
}

/// The same for the main thread of another process; 0 is this thread. False if this process may not.
#[must_use]
pub(super) fn lets_run_first(process: u32) -> bool {
    let parameters = libc::sched_param { sched_priority: 1 };
    let Ok(process) = libc::pid_t::try_from(process) else { return false };
    // SAFETY: the call reads this function's own structure. The standard library has no such call.
    unsafe { libc::sched_setscheduler(process, libc::SCHED_FIFO, &raw const parameters) == 0 }
}

/// Pins this thread, and what it starts from now on, to one core (the last), until dropped. The kernel's placement of processes
/// that wake one another changes the result by more microseconds than the differences measured here.
pub(super) struct OneCore {
    /// The affinity to return to. It belongs to the thread that entered, so the value must be
    /// dropped on the same thread.
    before: CpuSet,
}

impl OneCore {
    /// # Errors
    /// If the kernel does not allow it.
    pub(super) fn enter() -> anyhow::Result<Self> {
        Self::on(|cores| cores.next_back())
    }

    /// The first core instead, which is another one where there are two.
    ///
    /// # Errors
    /// If the kernel does not allow it.
    pub(super) fn enter_other() -> anyhow::Result<Self> {
        Self::on(|cores| cores.next())
    }

    /// Pins the thread to the core that `choose` takes from those that it may use now. Processes
    /// that run already stay where they are.
    fn on(choose: fn(&mut dyn DoubleEndedIterator<Item = usize>) -> Option<usize>) -> anyhow::Result<Self> {
        let before = sched_getaffinity(None)?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|core| before.is_set(*core));
        let core = choose(&mut cores).context("there is no core")?;
        let mut one = CpuSet::new();
        one.set(core);
        sched_setaffinity(None, &one)?;
        Ok(Self { before })
    }
}

impl Drop for OneCore {
    fn drop(&mut self) {
        // This was allowed before.
        let _ = sched_setaffinity(None, &self.before);
    }
}

/// CPU time in nanoseconds of all threads of all processes in these groups so far. Processes that ended do not count.
pub(super) fn spent_ns(groups: &[u32]) -> u64 {
    processes(groups).map(|path| threads_ns(&path)).sum()
}

/// CPU time of this thread alone.
pub(super) fn of_this_thread_ns() -> u64 {
    of_thread_ns(Path::new("/proc/thread-self")).unwrap_or(0)
}

/// `None` if the thread has ended meanwhile.
fn of_thread_ns(thread: &Path) -> Option<u64> {
    fs::read_to_string(thread.join("schedstat")).ok()?.split_ascii_whitespace().next()?.parse().ok()
}

/// The kernel's directories of the processes in these groups.
pub(super) fn processes(groups: &[u32]) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| {
        let group = fs::read_to_string(path.join("stat")).ok().and_then(|stat| group_of(&stat));
        group.is_some_and(|group| groups.contains(&group))
    })
}

/// The process group: the third field behind the command's name, which is in parentheses and may contain anything.
fn group_of(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(2)?.parse().ok()
}

/// The processes in a group that are shards of an edge: they have the argument `shard`.
pub(super) fn shards(group: u32) -> impl Iterator<Item = u32> {
    let is_shard = |path: &PathBuf| {
        let line = fs::read(path.join("cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(b"shard")
    };
    let ids = |path: PathBuf| path.file_name()?.to_str()?.parse().ok();
    let all: Vec<PathBuf> = processes(&[group]).filter(is_shard).collect();
    all.into_iter().filter_map(ids)
}

/// CPU time in nanoseconds of all threads of one process so far.
pub(super) fn of_process_ns(process: u32) -> u64 {
    threads_ns(Path::new(&format!("/proc/{process}")))
}

/// Ticks in which the machine's cores did something, and all ticks, since it was started.
pub(super) fn machine_ticks() -> (u64, u64) {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let all: Vec<u64> = stat.lines().next().map_or_else(Vec::new, |line| {
        line.split_ascii_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect()
    });
    // user, nice, system, idle, iowait, irq, softirq, steal; guests' time is in the first two again.
    let (sum, idle): (u64, u64) = (all.iter().take(8).sum(), all.iter().skip(3).take(2).sum());
    (sum - idle, sum)
}

/// Sums over the threads that exist now; the time of threads that ended is lost, which short-lived
/// ones make visible.
fn threads_ns(process: &Path) -> u64 {
    let Ok(threads) = fs::read_dir(process.join("task")) else { return 0 };
    threads.flatten().filter_map(|thread| of_thread_ns(&thread.path())).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_behind_any_name() {
        assert_eq!(group_of("17 (a) b) (c) S 1 42 42 0"), Some(42));
        assert_eq!(group_of("nonsense"), None);
    }

    #[test]
    fn this_process_spends_time() {
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        assert!(spent_ns(&[group_of(&stat).unwrap()]) > 0);
    }
}
