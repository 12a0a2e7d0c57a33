//! Runs recordings for people, up to a point or an event, and compares two points. Knows no edge and no file.
//!
//! A break stops after the handler that caused it, never within one: handlers are the steps of a
//! replay, and between them the cell's state is whole.

pub mod show;
pub mod span;

use marram_sandbox::{ReplayError, ReplayStep, Replayer, StageState};
use marram_session::{cell::CellOutput, replay::StepResult};
use span::Span;

/// When to stop before the recording ends.
///
/// The first one that is met ends the run; with none, it goes to the end of the recording.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Breaks {
    /// When the cell has consumed this many entries.
    pub until: Option<u64>,
    /// When an output contains these bytes.
    pub output: Option<Vec<u8>>,
    /// When this memory changes.
    pub memory: Option<Span>,
}

/// Why a run ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Halt {
    /// The recording ended.
    End,
    /// The cell has consumed [`Breaks::until`] entries.
    Until,
    /// An output of this handler contains the bytes.
    Output(Box<ReplayStep>),
    /// This handler changed the watched memory: before and after.
    Memory(Box<ReplayStep>, Vec<u8>, Vec<u8>),
    /// The recording ends with a handler that was stopped, for this reason.
    Stopped(String),
    /// The callback ended the run.
    Quit,
}

/// Runs until a break or the end. `see` is called with each handler and returns whether to continue.
///
/// # Errors
/// If the replay diverges from the session.
///
/// It may be called again on the same replayer to go on. The order within one handler: `see`, then
/// a stop, then the output, then the memory, then `see`'s request to quit.
pub fn run(
    replayer: &mut Replayer,
    breaks: &Breaks,
    mut see: impl FnMut(&Replayer, &ReplayStep) -> bool,
) -> Result<Halt, ReplayError> {
    let watched = |replayer: &Replayer| breaks.memory.as_ref().map(|span| read(replayer, span));
    let mut before = watched(replayer);
    loop {
        if breaks.until.is_some_and(|until| replayer.entries() >= until) {
            return Ok(Halt::Until);
        }
        let Some(step) = replayer.step()? else { return Ok(Halt::End) };
        let goes_on = see(replayer, &step);
        if let StepResult::Stopped(reason) = &step.result {
            return Ok(Halt::Stopped(reason.clone()));
        }
        if breaks
            .output
            .as_ref()
            .is_some_and(|wanted| step.outputs.iter().any(|output| holds(output, wanted)))
        {
            return Ok(Halt::Output(Box::new(step)));
        }
        let after = watched(replayer);
        if let (Some(before), Some(after)) = (&before, &after)
            && before != after
        {
            return Ok(Halt::Memory(Box::new(step), before.clone(), after.clone()));
        }
        before = after;
        if !goes_on {
            return Ok(Halt::Quit);
        }
    }
}

/// Empty where the memory is not there (yet): growing into the range counts as a change.
fn read(replayer: &Replayer, span: &Span) -> Vec<u8> {
    replayer.memory(span.stage, span.range()).unwrap_or_default()
}

fn holds(output: &CellOutput, wanted: &[u8]) -> bool {
    match output {
        CellOutput::Message { payload, .. } => {
            // An empty text is in every message.
            wanted.is_empty() || payload.windows(wanted.len()).any(|window| window == wanted)
        }
        CellOutput::Close { .. }
        | CellOutput::Pause { .. }
        | CellOutput::Resume { .. }
        | CellOutput::Connect { .. } => false,
    }
}

/// Memory that differs between two states of a stage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The offset in memory.
    pub at: usize,
    /// The bytes before; fewer where memory has grown.
    pub before: Vec<u8>,
    /// The bytes after.
    pub after: Vec<u8>,
}

/// Two changes with fewer equal bytes than this between them are reported as one.
const GAP: usize = 16;

/// The differences in a stage's memory, by offset. Memory that was added counts as zero before, so it is listed where it is
/// not zero.
#[must_use]
pub fn changes(before: &StageState, after: &StageState) -> Vec<Change> {
    let byte = |memory: &[u8], at: usize| memory.get(at).copied().unwrap_or(0);
    let len = before.memory.len().max(after.memory.len());
    let mut spans: Vec<(usize, usize)> = Vec::new();
    // Equal chunks are skipped with one comparison: most of a memory does not change.
    const CHUNK: usize = 4_096;
    for start in (0..len).step_by(CHUNK) {
        let end = len.min(start + CHUNK);
        if before.memory.get(start..end).is_some_and(|was| Some(was) == after.memory.get(start..end)) {
            continue;
        }
        for at in (start..end).filter(|at| byte(&before.memory, *at) != byte(&after.memory, *at)) {
            match spans.last_mut() {
                Some((_, end)) if at < *end + GAP => *end = at + 1,
                _ => spans.push((at, at + 1)),
            }
        }
    }
    let part = |memory: &[u8], (from, to): (usize, usize)| {
        memory.get(from.min(memory.len())..to.min(memory.len())).unwrap_or_default().to_vec()
    };
    let change = |span: (usize, usize)| Change {
        at: span.0,
        before: part(&before.memory, span),
        after: part(&after.memory, span),
    };
    spans.into_iter().map(change).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(memory: Vec<u8>) -> StageState {
        StageState { memory, globals: Vec::new(), ports: Vec::new(), drawn: 0, hash: [0; 32] }
    }

    #[test]
    fn changes_near_each_other_are_one_and_new_memory_counts_where_it_is_not_zero() {
        let before = state(vec![0; 10_000]);
        let mut memory = vec![0; 20_000];
        for at in [5, 20, 4_095, 4_096, 9_000, 15_000] {
            memory[at] = 1;
        }
        let found = changes(&before, &state(memory));
        let places: Vec<(usize, usize, usize)> =
            found.iter().map(|change| (change.at, change.before.len(), change.after.len())).collect();
        assert_eq!(places, [(5, 16, 16), (4_095, 2, 2), (9_000, 1, 1), (15_000, 0, 1)]);
        assert!(changes(&before, &before).is_empty());
    }
}
