//! One process with its descendants: its output lines go to the collected logs, its signals to the whole process group.

use super::interrupt;
use super::log_collector::{LogCollector, LogEvent};
use anyhow::{Context, bail};
use marram_config::environment;
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// The event that is added to the collected logs when a process has closed its standard output.
const ENDED: &str = "process_ended";

/// A running process, leader of a group of its own.
pub struct TestProcess {
    who: Arc<str>,
    child: Child,
    group: Pid,
    reader: Option<thread::JoinHandle<()>>,
    logs: LogCollector,
    /// The file of its standard error.
    errors: PathBuf,
}

impl TestProcess {
    /// Starts a command; its standard error goes to a file, for people.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(
        who: &str,
        command: &mut Command,
        logs: &LogCollector,
        errors: &Path,
    ) -> anyhow::Result<Self> {
        let file = File::options().create(true).append(true).open(errors);
        let file = file.with_context(|| format!("cannot write {}", errors.display()))?;
        // Variables that override an operator's configurations must not affect those of a test.
        for name in std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()) {
            if [environment::EDGE, environment::AGENT, environment::RECORDER, environment::COORDINATOR]
                .iter()
                .any(|of| name.starts_with(of))
            {
                command.env_remove(name);
            }
        }
        let mut child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(file)
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().to_string_lossy()))?;
        let group = Pid::from_child(&child);
        interrupt::started(group);
        let lines = BufReader::new(child.stdout.take().expect("it is piped"));
        let (who, logs, kept): (Arc<str>, _, _) = (who.into(), logs.clone(), logs.clone());
        let name = Arc::clone(&who);
        let reader = thread::spawn(move || {
            // This ends with the last process of the group: all of them hold the other end of the pipe.
            lines.lines().map_while(Result::ok).for_each(|line| logs.add(&name, &line));
            logs.add(&name, &format!("{{\"event\":\"{ENDED}\"}}"));
        });
        Ok(Self { who, child, group, reader: Some(reader), logs: kept, errors: errors.to_owned() })
    }

    /// Waits until `ready` returns true for an event that the process logged from `start` on.
    ///
    /// # Errors
    /// If it ends before, or is not ready in time; the error contains its standard error and the last lines of all logs.
    pub fn wait_ready(
        &self,
        logs: &LogCollector,
        start: usize,
        patience: Duration,
        mut ready: impl FnMut(&LogEvent) -> bool,
    ) -> anyhow::Result<()> {
        let mut ended = false;
        let found = logs.wait(start, patience, |event| {
            let own = event.who == self.who;
            ended |= own && event.name() == ENDED;
            ended || own && ready(event)
        });
        let how = match found {
            Some(_) if !ended => return Ok(()),
            Some(_) => "has ended",
            None => "is not ready",
        };
        let (who, tail) = (&self.who, logs.tail(20));
        let errors = std::fs::read_to_string(&self.errors).unwrap_or_default();
        bail!("{who} {how}\n{errors}the last lines of all processes:\n{tail}")
    }

    /// Its name in the collected logs.
    #[must_use]
    pub fn who(&self) -> &str {
        &self.who
    }

    /// Its process identifier.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the whole group. A group that is gone already is no error.
    pub fn signal(&self, signal: Signal) {
        let _ = kill_process_group(self.group, signal);
    }

    /// Kills the whole group and waits until it is gone. A second call does nothing, since the group's number may be reused.
    pub fn kill(&mut self) {
        let Some(reader) = self.reader.take() else { return };
        self.signal(Signal::KILL);
        interrupt::ended(self.group);
        // Fails only if the process was waited for elsewhere, and then it is gone.
        let _ = self.child.wait();
        // The thread only reads lines: it does not panic, and has no result.
        let _ = reader.join();
    }

    /// Waits until the process has ended by itself.
    ///
    /// # Errors
    /// If the operating system cannot tell.
    pub fn wait(&mut self) -> anyhow::Result<ExitStatus> {
        self.child.wait().with_context(|| format!("cannot wait for {}", self.who))
    }

    /// Whether it has ended.
    pub fn ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)) | Err(_))
    }
}

impl Drop for TestProcess {
    /// # Panics
    /// If the process has found a bug in itself: a test must not pass because other machines have survived it.
    fn drop(&mut self) {
        self.kill();
        let bug = self.logs.last(|event| event.who == self.who && names_bug(event.text("message")));
        if let Some(bug) = bug.filter(|_| !thread::panicking()) {
            panic!("{}: {}", self.who, bug.fields);
        }
    }
}

/// Whether a line reports a bug of Marram, by `bug!` or by an invariant that does not hold.
fn names_bug(line: &str) -> bool {
    line.starts_with("BUG at") || line.contains("a thread panicked: bug: ")
}
