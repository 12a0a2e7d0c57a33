//! `marram replay`: runs a recording, on any machine.
//!
//! ```text
//! file ─▶ Recording ─ (app missing: --from) ─▶ Replayer ─▶ replay::run until a break ─▶ tell: state, dumps, verdict
//! ```
//!
//! The verdict is the purpose: the state's hash at the end must be the recorded one, or a stopped
//! handler must be stopped again for the same reason. Otherwise the status is 5. Nothing of the
//! file is trusted: text in it is escaped before it reaches the terminal.

mod debugger;

use super::operate::{client, read_ca, read_token};
use super::{Failure, emit, record};
use crate::replay::{self, Breaks, Halt, show, span::Span};
use anyhow::{Context, anyhow};
use bytes::Bytes;
use clap::Args;
use marram_config::source::unreadable;
use marram_node::keys;
use marram_node::text::counted;
use marram_sandbox::{DebugError, Images, Keyring, ReplayError, Replayer, StageState};
use marram_wire::recording::{RECORDING_SIZE_MAX, Recording};
use serde_json::{Value, json};
use std::io::{BufRead, IsTerminal};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// `marram replay`
#[derive(Args)]
pub(super) struct Replay {
    /// The file that `marram record` wrote, or that an edge wrote when a handler was stopped.
    file: PathBuf,
    /// Stop when the cell has consumed this many entries of the file.
    #[arg(long, value_name = "N")]
    until: Option<u64>,
    /// Show each handler: when it ran in session time, its input and its results; on a terminal, wait for Enter after each
    /// (q to quit).
    #[arg(long)]
    step: bool,
    /// Show the file's contents without running it.
    #[arg(long, conflicts_with_all = ["until", "step", "dump", "diff", "break_output", "break_memory"])]
    list: bool,
    /// At the end, show a summary of the cell's state ("state") or a range of its memory (AT+LENGTH, followed by @STAGE for a
    /// chain).
    #[arg(long, value_name = "state|AT+LENGTH")]
    dump: Vec<Dump>,
    /// Show the differences in the cell's state between two numbers of consumed entries.
    #[arg(long, num_args = 2, value_names = ["A", "B"], conflicts_with_all = ["until", "break_output", "break_memory"])]
    diff: Vec<u64>,
    /// Stop after the first handler that sends this text; "hex:00ff" for bytes.
    #[arg(long, value_name = "TEXT")]
    break_output: Option<String>,
    /// Stop after the first handler that changes this range of memory.
    #[arg(long, value_name = "AT+LENGTH")]
    break_memory: Option<Span>,
    /// The directory of images, which are kept for the next time; a temporary one if left out.
    #[arg(long, value_name = "DIRECTORY")]
    images: Option<PathBuf>,
    /// An edge that has the app, if the file does not contain it: its admin address, as http://HOST:PORT.
    #[arg(long, value_name = "ADMIN_URL")]
    from: Option<String>,
    /// File with that edge's admin token.
    #[arg(long, value_name = "FILE", requires = "from")]
    token_file: Option<PathBuf>,
    /// Certificates (PEM) to verify that edge with, if its address is https://.
    #[arg(long, value_name = "FILE", requires = "from")]
    ca: Option<PathBuf>,
    /// A private key that the edge signs with for the cell. A session that uses one cannot be replayed without it.
    #[arg(long = "key", value_name = "FILE")]
    keys: Vec<PathBuf>,
    /// Wait for gdb or lldb when the cell has consumed this many entries (0 if left out). Its code is then compiled so that it
    /// can be stepped through in its own source, and a handler may take any time.
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "0", conflicts_with_all = ["diff", "list", "json"])]
    debugger: Option<u64>,
    /// For --debugger: the app's module before it was stripped for deployment; for a chain, one for each stage.
    #[arg(long, value_name = "MODULE", requires = "debugger")]
    symbols: Vec<PathBuf>,
    /// Print one JSON object.
    #[arg(long, conflicts_with_all = ["step", "list"])]
    json: bool,
}

/// What to show of the cell at the end.
#[derive(Clone, Copy)]
enum Dump {
    State,
    Memory(Span),
}

impl FromStr for Dump {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "state" { Ok(Self::State) } else { text.parse().map(Self::Memory) }
    }
}

pub(super) fn replay(arguments: &Replay) -> Result<(), Failure> {
    let mut recording = read(&arguments.file)?;
    if arguments.list {
        emit(&(about(&recording) + &show::listing(&recording)));
        return Ok(());
    }
    if let Some(url) = arguments.from.as_ref().filter(|_| recording.apps.is_empty()) {
        recording.apps = fetch(url, arguments, &recording)?;
    }
    let keyring = keyring(&arguments.keys)?;
    let images = Place::new(arguments.images.as_deref())?;
    let mut replayer = match arguments.debugger {
        None => Replayer::new(recording, &images.images, keyring).map_err(failure)?,
        Some(_) => debugged(recording, &images.images, keyring, &arguments.symbols)?,
    };
    // The code is loaded: a temporary directory need not outlive that, however the process ends.
    drop(images);
    if !arguments.json {
        emit(&about(replayer.recording()));
    }
    // Either order of the two numbers is accepted; a replay only goes forward.
    if let [a, b] = arguments.diff[..] {
        return diff(&mut replayer, a.min(b), a.max(b), arguments.json);
    }
    if let Some(entries) = arguments.debugger {
        let breaks = Breaks { until: Some(entries), ..Breaks::default() };
        if replay::run(&mut replayer, &breaks, |_, _| true).map_err(failure)? != Halt::Until {
            return Err(too_far(&replayer, "--debugger one of at most that many"));
        }
        debugger::wait(entries)?;
    }
    let breaks = Breaks {
        until: arguments.until,
        output: arguments.break_output.as_deref().map(wanted).transpose()?,
        memory: arguments.break_memory,
    };
    let waits = arguments.step && std::io::stdin().is_terminal();
    let halt = replay::run(&mut replayer, &breaks, |_, step| {
        if arguments.step {
            emit(&show::step(step));
        }
        !waits || !says_quit()
    });
    let halt = halt.map_err(failure)?;
    tell(arguments, &breaks, &replayer, &halt)
}

/// The end of the input counts as Enter.
fn says_quit() -> bool {
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    read.is_ok() && line.trim() == "q"
}

/// Reads a file, up to the largest size of a recording.
/// The size is checked first: a wrong file is refused before it fills the memory.
fn read(path: &Path) -> Result<Recording, Failure> {
    let name = path.display();
    let missing = |error: std::io::Error| Failure::Usage(anyhow!("{name} {}", unreadable(path, &error)));
    let meta = std::fs::metadata(path).map_err(missing)?;
    if !meta.is_file() {
        return Err(Failure::Usage(anyhow!("{name} is not a file: name a file that `marram record` wrote")));
    }
    let size = meta.len();
    if size > RECORDING_SIZE_MAX {
        return Err(Failure::Other(anyhow!(
            "{name} has {size} bytes; a record file has at most {RECORDING_SIZE_MAX}"
        )));
    }
    let bytes = std::fs::read(path).map_err(missing)?;
    Recording::decode(&bytes.into()).map_err(|broken| {
        Failure::Other(anyhow!("{name}: {broken}; record the session again, or use another copy of the file"))
    })
}

/// Asks one edge for the image that the recording names, with an operator's token.
fn fetch(
    url: &str,
    arguments: &Replay,
    recording: &Recording,
) -> Result<Vec<(marram_wire::id::ImageHash, Bytes)>, Failure> {
    let token = arguments.token_file.as_deref().map(read_token).transpose()?;
    let ca = arguments.ca.as_deref().map(read_ca).transpose()?;
    let client = client(url, token, ca.as_deref())?;
    record::apps(&client, recording.about.image)
}

/// Identified by their public keys, so the order of the flags does not matter, and a key that is
/// not needed does no harm.
fn keyring(files: &[PathBuf]) -> Result<Keyring, Failure> {
    let mut keyring = Keyring::default();
    for path in files {
        let pem =
            std::fs::read(path).with_context(|| format!("the key {} cannot be read", path.display()))?;
        let (id, signer) = keys::read(&pem)
            .map_err(|why| Failure::Usage(anyhow!("--key names {}, a file that {why}", path.display())))?;
        keyring.add(id, signer);
    }
    Ok(keyring)
}

fn debugged(
    recording: Recording,
    images: &Images,
    keyring: Keyring,
    symbols: &[PathBuf],
) -> Result<Replayer, Failure> {
    let modules = debugger::symbols(symbols)?;
    Replayer::new_debugged(recording, images, keyring, &modules).map_err(|error| match error {
        ReplayError::Debug(DebugError::NoInfo) => {
            Failure::Usage(anyhow!("{}, with --symbols", DebugError::NoInfo))
        }
        ReplayError::Debug(error @ (DebugError::Bare(at) | DebugError::Mismatch(at))) => {
            Failure::Usage(anyhow!("--symbols {}: {error}", symbols[at].display()))
        }
        other => failure(other),
    })
}

fn too_far(replayer: &Replayer, instead: &str) -> Failure {
    Failure::Usage(anyhow!(
        "the recording ends after {}: give {instead}",
        counted(replayer.entries(), "entry")
    ))
}

/// A divergence is a result (status 5); all else is an error.
fn failure(error: ReplayError) -> Failure {
    match error {
        ReplayError::Play(marram_session::replay::PlayError::Diverged { .. }) => Failure::Check(error.into()),
        other => Failure::Other(other.into()),
    }
}

/// A directory of images.
/// Compiled images are kept here: compiling takes seconds for a large app.
struct Place {
    images: Images,
    /// The temporary directory, which is removed on drop.
    own: Option<PathBuf>,
}

impl Place {
    fn new(given: Option<&Path>) -> Result<Self, Failure> {
        let own = std::env::temp_dir().join(format!("marram-replay-{}", std::process::id()));
        let images = Images::open(given.unwrap_or(&own));
        let images = images.map_err(|error| Failure::Other(anyhow!("images cannot be created: {error}")))?;
        Ok(Self { images, own: given.is_none().then_some(own) })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(own) = &self.own {
            // If it cannot be removed, it stays in the temporary directory.
            let _ = std::fs::remove_dir_all(own);
        }
    }
}

/// `hex:` and an even number of digits, or the text's own bytes.
fn wanted(text: &str) -> Result<Vec<u8>, Failure> {
    let Some(digits) = text.strip_prefix("hex:") else { return Ok(text.as_bytes().to_vec()) };
    let pair =
        |pair: &[u8]| std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok());
    let plain = digits.bytes().all(|digit| digit.is_ascii_hexdigit()) && digits.len().is_multiple_of(2);
    let bytes: Option<Vec<u8>> = digits.as_bytes().chunks(2).map(pair).collect();
    bytes.filter(|_| plain).ok_or_else(|| Failure::Usage(anyhow!("hex: is followed by two digits a byte")))
}

/// A summary of the recording, in a few lines.
fn about(recording: &Recording) -> String {
    let about = &recording.about;
    let begins = match recording.checkpoints.len() {
        0 => "from its beginning".to_owned(),
        count => format!("from a checkpoint in {}", counted(count as u64, "part")),
    };
    let redacted =
        if about.redacted { "\nredacted: without the contents of messages; it cannot be run" } else { "" };
    format!(
        "session {} of {}, recorded by {} {begins}\nimage {}, generation {}, log offset {} and {} bytes on{redacted}\n",
        about.session,
        show::plain(&about.app),
        show::plain(&about.edge),
        about.image,
        about.generation,
        about.log_offset,
        recording.log.len(),
    )
}

/// One replay for both: it stops at `a`, then at `b`.
fn diff(replayer: &mut Replayer, a: u64, b: u64, as_json: bool) -> Result<(), Failure> {
    let states = [a, b].map(|until| {
        let breaks = Breaks { until: Some(until), ..Breaks::default() };
        let halt = replay::run(replayer, &breaks, |_, _| true).map_err(failure)?;
        match (halt, replayer.look()) {
            (Halt::Until, Some(state)) => Ok(state),
            _ => Err(too_far(replayer, "--diff two of at most that many")),
        }
    });
    let [before, after] = states;
    let (before, after): (Vec<StageState>, Vec<StageState>) = (before?, after?);
    let pairs = || before.iter().zip(&after).enumerate();
    if as_json {
        let stage = |(index, (before, after)): (usize, (&StageState, &StageState))| {
            let changes: Vec<Value> = replay::changes(before, after)
                .iter()
                .map(|it| json!({ "at": it.at, "before": show::hex(&it.before), "after": show::hex(&it.after) }))
                .collect();
            json!({ "stage": index, "memory": changes, "same": before == after })
        };
        let stages: Vec<Value> = pairs().map(stage).collect();
        emit(&format!("{}\n", json!({ "a": a, "b": b, "stages": stages })));
        return Ok(());
    }
    let mut out = format!("after {a} entries -> after {b} entries\n");
    let differences: String = pairs()
        .map(|(index, (before, after))| {
            show::difference(index, before, after, &replay::changes(before, after))
        })
        .collect();
    out += if differences.is_empty() { "nothing is different\n" } else { &differences };
    emit(&out);
    Ok(())
}

/// Reports where the run ended, and whether that agrees with the session.
fn tell(arguments: &Replay, breaks: &Breaks, replayer: &Replayer, halt: &Halt) -> Result<(), Failure> {
    let recording = replayer.recording();
    let (state, recorded) = (replayer.state_hash(), recording.about.state);
    let stop = recording.stop.as_ref();
    // None if there is nothing to compare: the run was ended on purpose, or the file has no hash.
    let same = match halt {
        Halt::End => recorded.map(|recorded| state == Some(recorded)),
        Halt::Stopped(reason) => stop.map(|stop| stop.reason == *reason),
        _ => None,
    };
    let wanted = breaks.output.is_some() || breaks.memory.is_some();
    if arguments.json {
        emit(&format!("{}\n", as_json(arguments, replayer, halt, same)));
    } else {
        let mut out = words(halt, replayer, same);
        for dump in &arguments.dump {
            out += &dumped(replayer, dump);
        }
        emit(&out);
    }
    // The order matters: a divergence is reported rather than a break that was not reached because
    // of it.
    let failed = match (halt, same) {
        (Halt::End, Some(false)) => "the replay ends in another state than the session: it diverged",
        (Halt::Stopped(_), Some(false)) => "the handler was stopped for another reason than in the session",
        (Halt::End | Halt::Stopped(_), _) if breaks.until.is_some() => {
            return Err(too_far(replayer, "--until one of at most that many"));
        }
        (Halt::End | Halt::Stopped(_), _) if wanted => "the recording ended before the place to stop at",
        _ => return arguments.dump.iter().try_for_each(|dump| there_is(replayer, dump)),
    };
    Err(Failure::Check(anyhow!(failed)))
}

/// The verdict for people; `as_json` has the same for programs.
fn words(halt: &Halt, replayer: &Replayer, same: Option<bool>) -> String {
    let entries = counted(replayer.entries(), "entry");
    let state =
        replayer.state_hash().map_or_else(String::new, |hash| format!("state {}\n", show::hex(&hash)));
    let proof = match same {
        Some(true) => "the same run\n",
        Some(false) => "ANOTHER run\n",
        None => "",
    };
    match halt {
        Halt::End => format!(
            "{state}{entries} replayed: {}",
            if proof.is_empty() { "no state hash to compare\n" } else { proof }
        ),
        Halt::Until => format!("{state}stopped after {entries}\n"),
        Halt::Quit => format!("{state}left after {entries}\n"),
        Halt::Stopped(reason) => {
            format!("{entries} replayed, then the handler is stopped: {}\n{proof}", show::plain(reason))
        }
        Halt::Output(step) => {
            format!("{state}stopped at an output after {entries}:\n{}", show::step(step))
        }
        Halt::Memory(step, before, after) => format!(
            "{state}stopped at a change of memory after {entries}:\n{}          {} -> {}\n",
            show::step(step),
            show::hex(before),
            show::hex(after)
        ),
    }
}

fn memory(replayer: &Replayer, span: &Span) -> Option<Vec<u8>> {
    replayer.memory(span.stage, span.range()).filter(|memory| !memory.is_empty())
}

/// Fails if the cell does not have the memory to dump; the output has shown that already.
fn there_is(replayer: &Replayer, dump: &Dump) -> Result<(), Failure> {
    match dump {
        Dump::Memory(span) if memory(replayer, span).is_none() => {
            Err(Failure::Usage(anyhow!("--dump {span}: the cell has no memory there")))
        }
        _ => Ok(()),
    }
}

fn dumped(replayer: &Replayer, dump: &Dump) -> String {
    match dump {
        Dump::State => match replayer.look() {
            Some(stages) => {
                let names: Vec<&str> = replayer.stages().collect();
                show::state(&names, &stages, &replayer.timers(), &replayer.tasks())
            }
            None => "the cell was stopped: nothing is left of it; stop before that with --until\n".to_owned(),
        },
        Dump::Memory(span) => memory(replayer, span)
            .map_or_else(|| format!("there is no memory at {span}\n"), |memory| show::dump(span.at, &memory)),
    }
}

fn as_json(arguments: &Replay, replayer: &Replayer, halt: &Halt, same: Option<bool>) -> Value {
    let about = &replayer.recording().about;
    let halted = match halt {
        Halt::End => json!({ "at": "end" }),
        Halt::Until => json!({ "at": "until" }),
        Halt::Quit => json!({ "at": "quit" }),
        Halt::Stopped(reason) => json!({ "at": "stop", "reason": reason }),
        Halt::Output(step) => json!({ "at": "output", "entry": step.entry }),
        Halt::Memory(step, before, after) => {
            json!({ "at": "memory", "entry": step.entry, "before": show::hex(before), "after": show::hex(after) })
        }
    };
    let dumps: Vec<Value> = arguments.dump.iter().map(|dump| json!(dumped(replayer, dump))).collect();
    json!({
        "session": about.session.to_string(),
        "app": about.app,
        "image": about.image.to_string(),
        "entries": replayer.entries(),
        "state": replayer.state_hash().map(|hash| show::hex(&hash)),
        "recorded_state": about.state.map(|hash| show::hex(&hash)),
        "same": same,
        "halted": halted,
        "dumps": dumps,
    })
}
