//! Ctrl-C ends a run with all its processes. They are in groups of their own, which do not receive a terminal's signals.

use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::BTreeSet;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The status that shells report for a program that was interrupted.
const EXIT_STATUS: i32 = 130;
/// How often to try to remove a directory to which a process still writes, and the delay between attempts.
const REMOVALS: usize = 50;
const BETWEEN_REMOVALS: Duration = Duration::from_millis(20);

/// The processes to end, and what to remove.
#[derive(Default)]
struct Remains {
    groups: BTreeSet<i32>,
    directories: BTreeSet<PathBuf>,
    /// Network namespaces, by name.
    namespaces: BTreeSet<String>,
}

static REMAINS: Mutex<Option<Remains>> = Mutex::new(None);

fn remains() -> MutexGuard<'static, Option<Remains>> {
    // Sets of plain values are valid after any panic.
    REMAINS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on a SIGINT, a SIGTERM, or a SIGHUP as from a terminal that closes kills every process of every run, removes the
/// runs' directories and ends this program. A [`TestCluster`](super::TestCluster) calls this; programs that start processes
/// before they have a cluster call it themselves. A second call does nothing.
///
/// # Errors
/// If the operating system has no thread or descriptor left.
pub fn end_on_interrupt() -> anyhow::Result<()> {
    static HEEDED: AtomicBool = AtomicBool::new(false);
    if HEEDED.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    let (sender, mut receiver) = UnixStream::pair()?;
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::low_level::pipe::register(signal, sender.try_clone()?)?;
    }
    std::thread::Builder::new().name("interrupt".into()).spawn(move || {
        // The sender stays open as long as the signals are registered, which is until the program ends.
        if receiver.read(&mut [0; 1]).is_ok() {
            clean();
            std::process::exit(EXIT_STATUS);
        }
    })?;
    Ok(())
}

fn clean() {
    let Some(remains) = remains().take() else { return };
    for group in remains.groups.into_iter().filter_map(Pid::from_raw) {
        // This fails if the group is gone already, which is fine.
        let _ = kill_process_group(group, Signal::KILL);
    }
    for namespace in remains.namespaces {
        // The kernel removes its devices and their settings with it.
        let _ = Command::new("ip").args(["netns", "del", &namespace]).output();
    }
    for directory in remains.directories {
        // A killed process may not have ended yet.
        for _ in 0..REMOVALS {
            if std::fs::remove_dir_all(&directory).is_ok() {
                break;
            }
            std::thread::sleep(BETWEEN_REMOVALS);
        }
    }
}

/// Registers a process group until [`ended`].
pub(super) fn started(group: Pid) {
    remains().get_or_insert_default().groups.insert(group.as_raw_nonzero().get());
}

/// The group is gone; its number may be reused soon.
pub(super) fn ended(group: Pid) {
    remains().get_or_insert_default().groups.remove(&group.as_raw_nonzero().get());
}

/// Registers a network namespace until [`left`].
pub(super) fn joined(namespace: &str) {
    remains().get_or_insert_default().namespaces.insert(namespace.to_owned());
}

/// The namespace is gone.
pub(super) fn left(namespace: &str) {
    remains().get_or_insert_default().namespaces.remove(namespace);
}

/// Registers a directory until [`removed`].
pub(super) fn made(directory: &Path) {
    remains().get_or_insert_default().directories.insert(directory.to_owned());
}

/// The directory is gone.
pub(super) fn removed(directory: &Path) {
    remains().get_or_insert_default().directories.remove(directory);
}
