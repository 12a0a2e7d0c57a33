//! Runs a recording: makes the image from the app in the file or in the image directory, makes the cell from the checkpoints or
//! the seed, and gives it the inputs of the session's cell.
//!
//! A replay runs as a live cell does, handler by handler, with the same limits; only the time comes from the log.
//!
//! ```text
//! Recording --Player (session)--> Run --Cells--> Ran --Player: same as in the session?--> ReplayStep
//! ```
//! The player decides which input is next and whether the result fits the log; the cells compute.
//! Both are the code of a live edge, so a replay that diverges shows a bug or a changed machine,
//! and not a difference of the tools.

use crate::cells::{Cells, CellsConfig, Progress, StageState};
use crate::chain::{Chain, Image};
use crate::checkpoint::{Decoded, RestoreError};
use crate::debugging::{self, DebugError};
use crate::dirty::Tracking;
use crate::host::Print;
use crate::images::{Images, LoadError};
use crate::keys::Keyring;
use crate::start_error::CellStartError;
use marram_session::cell::{CellId, CellInput, CellOutput, Ran, TaskChange, TimerChange};
use marram_session::replay::{PlayError, Player, ReplayStart, StepResult};
use marram_wire::{
    header::{Lock, Task},
    id::ImageHash,
    recording::Recording,
};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// The number of the only cell.
const CELL: CellId = CellId(1);

/// One handler that ran.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplayStep {
    /// Index of the log entry that it consumed, from 0.
    pub entry: u64,
    /// The input.
    pub input: CellInput,
    /// The time that it observed, or would have observed, in nanoseconds of session time.
    pub now_ns: i64,
    /// Its result.
    pub result: StepResult,
    /// The messages that it sent to peers that were still connected.
    pub outputs: Vec<CellOutput>,
    /// Its changes to timers.
    pub timers: Vec<TimerChange>,
    /// Its changes to tasks and locks.
    pub tasks: Vec<TaskChange>,
    /// The texts that it printed.
    pub prints: Vec<Print>,
    /// Its run time here, in nanoseconds.
    pub cost_ns: u64,
}

/// Why a recording cannot be run, or cannot continue.
#[derive(Debug)]
pub enum ReplayError {
    /// The app of this image is neither in the file nor in the image directory.
    NoApp(ImageHash),
    /// No image can be made of the app.
    Image(LoadError),
    /// A debugger cannot be used.
    Debug(DebugError),
    /// The cell cannot be started.
    Start(CellStartError),
    /// The cell's checkpoints cannot be restored.
    Restore(RestoreError),
    /// The recording cannot be followed.
    Play(PlayError),
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoApp(image) => write!(
                f,
                "the record file does not contain its app: name an edge that has image {image} with --from \
                 http://ADMIN, or a directory that has it with --images, such as `images` in an edge's state \
                 directory"
            ),
            Self::Image(error) => write!(f, "{error}"),
            Self::Debug(error) => write!(f, "{error}"),
            Self::Start(error) => write!(f, "{error}"),
            Self::Restore(error) => write!(f, "the recording's checkpoints cannot be restored: {error}"),
            Self::Play(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for ReplayError {}

impl From<PlayError> for ReplayError {
    fn from(error: PlayError) -> Self {
        Self::Play(error)
    }
}

/// A recording and the cell that replays it.
pub struct Replayer {
    cells: Cells,
    image: Arc<Image>,
    /// Kept whole, so that [`Replayer::rewind`] can begin again without the file.
    recording: Recording,
    /// The session's half: the position in the log, timers, tasks and what is left of the inputs.
    player: Player,
}

impl Replayer {
    /// Prepares the cell at the start of the recording. The app is taken from the file, else from `images`.
    ///
    /// # Errors
    /// If the recording is redacted, or something that it needs is missing.
    pub fn new(recording: Recording, images: &Images, keyring: Keyring) -> Result<Self, ReplayError> {
        // First, since a redacted recording can never be run.
        let player = Player::new(&recording, CELL)?;
        let image = image(&recording, images)?;
        Self::of_image(recording, (image, player), keyring, false)
    }

    /// As [`Self::new`], for a debugger that is or will be attached to this process: the code has line information, and a handler
    /// may take any time. If a stage's module was deployed without debug information, that of the same program in `symbols` is
    /// used.
    ///
    /// # Errors
    /// As [`Self::new`]; if no stage has debug information; if a module in `symbols` has none, or is not the program of any
    /// stage.
    pub fn new_debugged(
        recording: Recording,
        images: &Images,
        keyring: Keyring,
        symbols: &[Vec<u8>],
    ) -> Result<Self, ReplayError> {
        let player = Player::new(&recording, CELL)?;
        // Stored first, as for any replay: this checks the digests of the apps in the file.
        image(&recording, images)?;
        let image = debugging::load(images, recording.about.image, symbols).map_err(ReplayError::Debug)?;
        Self::of_image(recording, (Arc::new(image), player), keyring, true)
    }

    fn of_image(
        recording: Recording,
        (image, player): (Arc<Image>, Player),
        keyring: Keyring,
        debugged: bool,
    ) -> Result<Self, ReplayError> {
        // Comparing needs no rights to userfaultfd, so a replay works in any container.
        let config = CellsConfig {
            slots: u32::try_from(image.stage_count()).unwrap_or(u32::MAX).max(2),
            tracking: Tracking::Compare,
            debugged,
            ..CellsConfig::default()
        };
        let cells = Cells::new(config).map_err(ReplayError::Start)?.with_keys(keyring);
        let mut replayer = Self { cells, image, recording, player };
        replayer.begin()?;
        Ok(replayer)
    }

    /// Returns to the start of the recording.
    ///
    /// # Errors
    /// If the machine has no room for the cell any more.
    pub fn rewind(&mut self) -> Result<(), ReplayError> {
        self.cells.remove(CELL);
        self.player = Player::new(&self.recording, CELL)?;
        self.begin()
    }

    fn begin(&mut self) -> Result<(), ReplayError> {
        match self.player.beginning() {
            ReplayStart::Seed(seed) => self.cells.start(CELL, &self.image, seed).map_err(ReplayError::Start),
            ReplayStart::Checkpoints => {
                let decoded =
                    Decoded::decode_opened(&self.recording.checkpoints).map_err(ReplayError::Restore)?;
                self.cells.restore(CELL, &self.image, &decoded).map_err(ReplayError::Restore)
            }
        }
    }

    /// Runs the next handler; `None` at the end of the recording.
    ///
    /// # Errors
    /// If the handler behaves differently than it did in the session.
    ///
    /// Outputs to a port that had been closed by then are left out: the session dropped them, and
    /// no peer received them.
    pub fn step(&mut self) -> Result<Option<ReplayStep>, ReplayError> {
        let Some(next) = self.player.next_handler()? else { return Ok(None) };
        let (entry, input, now_ns) = (next.entry, next.run.input.clone(), next.run.now_ns);
        let mut progress = self.cells.run(next.run);
        let mut ran = loop {
            match progress {
                Progress::Done(ran) => break ran,
                Progress::Pending => progress = self.cells.poll(CELL),
            }
        };
        let prints = self.cells.take_prints(CELL);
        let mut open: Vec<_> = self.recording.inputs.iter().map(|inputs| inputs.port).collect();
        open.retain(|port| self.player.hears(*port));
        let result = self.player.ran(&ran)?;
        ran.outputs.retain(|output| match output {
            CellOutput::Message { port, .. } => open.contains(port),
            CellOutput::Close { port } => {
                let heard = open.contains(port);
                open.retain(|other| other != port);
                heard
            }
            CellOutput::Connect { .. } | CellOutput::Pause { .. } | CellOutput::Resume { .. } => true,
        });
        let Ran { outputs, timers, tasks, cost_ns, .. } = ran;
        Ok(Some(ReplayStep { entry, input, now_ns, result, outputs, timers, tasks, prints, cost_ns }))
    }

    /// Number of log entries that the cell has consumed.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.player.entries()
    }

    /// The recording that is run.
    #[must_use]
    pub fn recording(&self) -> &Recording {
        &self.recording
    }

    /// The timers that are set: stage, token, and due time in nanoseconds of session time.
    #[must_use]
    pub fn timers(&self) -> Vec<(u8, u64, i64)> {
        self.player.timers()
    }

    /// The tasks that wait, in order, and the locks that are held.
    #[must_use]
    pub fn tasks(&self) -> (Vec<Task>, Vec<Lock>) {
        self.player.tasks()
    }

    /// The cell's state hash; `None` if the cell was stopped.
    #[must_use]
    pub fn state_hash(&self) -> Option<[u8; 32]> {
        self.cells.state_hash(CELL)
    }

    /// The state of each stage; `None` if the cell was stopped.
    #[must_use]
    pub fn look(&self) -> Option<Vec<StageState>> {
        self.cells.look(CELL)
    }

    /// The names of the stages. The only stage of a cell that is not a chain has an empty name.
    pub fn stages(&self) -> impl Iterator<Item = &str> {
        self.image.stages.iter().map(|stage| &*stage.name)
    }

    /// A range of a stage's memory, or the part of it that exists; `None` if there is no such stage, or the cell was stopped.
    #[must_use]
    pub fn memory(&self, stage: usize, range: Range<usize>) -> Option<Vec<u8>> {
        self.cells.memory(CELL, stage, range)
    }
}

/// The image of a recording. The digests of the apps in the file authenticate them.
///
/// The apps in the file are stored in `images` first. They stay there, as if they had been
/// deployed.
fn image(recording: &Recording, images: &Images) -> Result<Arc<Image>, ReplayError> {
    let image = recording.about.image;
    let unknown = |error| match error {
        LoadError::Unknown(hash) => ReplayError::NoApp(hash),
        other => ReplayError::Image(other),
    };
    // Stages are inserted before the chain that names them.
    let (chains, apps): (Vec<_>, Vec<_>) = recording.apps.iter().partition(|(_, app)| Chain::is_chain(app));
    for (hash, app) in apps.into_iter().chain(chains) {
        if images.app(*hash).is_err() {
            images.insert(*hash, app).map_err(unknown)?;
        }
    }
    images.load(image).map_err(unknown)
}
