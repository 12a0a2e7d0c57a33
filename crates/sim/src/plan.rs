//! What a seed determines: machines, sessions, scripts of programs, faults. Does not know the results.
//!
//! Each property is drawn by a generator of its own (`Random::new(seed, purpose)`), except for
//! those that were drawn together from the first one on. So a new property does not change what
//! older seeds mean, and saved seeds keep finding their bugs. The purposes in use are the second
//! arguments of `Random::new` in this crate; a new one takes a number that is not among them.
//!
//! Most draws are skewed on purpose: times by order of magnitude, faults towards recoveries that
//! are under way, sizes towards limits. Uniform draws would spend nearly all seeds on sessions that
//! end before anything interesting happens.

mod ahead;
mod changes;
mod elastic;
mod epochs;
mod faults;
mod hall;
mod lag;
mod late_hello;
mod late_keys;
mod learning;
mod liar;
mod moves;
mod opening;
mod partial;
mod recalls;
mod renewal;
mod replay;
mod stays;
mod talk;
mod traps;
mod witness;

pub use faults::{Fault, FaultKind, FaultTarget, Moment, On, PAST_BACKUP, When};
pub use learning::Learning;
pub use liar::Liar;
pub use renewal::{Renewal, RenewalStep};
pub use traps::Traps;
pub(crate) use traps::{HALL_TRAP_SIZE, hall_trap, hall_trap_of};
pub use witness::{Absence, Losses, Memory, StoreLoss};

use crate::random::Random;
use marram_shard::api::{App, CheckpointHolder, EpochSettings, Protect, WitnessMode};
use marram_wire::{
    id::ImageHash,
    limits::{CHECKPOINTS_SIZE, RETAINED_MAX},
};

/// A microsecond of virtual time.
pub const US: u64 = 1_000;
/// A millisecond of virtual time.
pub const MS: u64 = 1_000 * US;
/// A second of virtual time.
pub const S: u64 = 1_000 * MS;

/// Each seed from this one on is the seed that is so much smaller, and has a hall: few other seeds have one.
pub const HALLS_FROM: u64 = 1_000_000_000_000_000_000;

/// Everything has ended by then, where agents have room.
const HORIZON_NS: u64 = 150 * S;
/// How long an agent waits for an edge that serves a session which has not begun. An edge asks the coordinator several times for a hall,
/// and one request in eight is lost.
pub(crate) const EDGE_WAIT_NS: u64 = 60 * S;

/// The server's name in manifests.
pub const SERVER: &str = "origin";

/// How many machines an app's cells have.
///
/// Only the image tells: shards and agents treat all shapes alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    /// The chain alone.
    Alone,
    /// A delay stage before the chain and, in sessions with a server, one behind it.
    Delayed {
        /// Whether there is a server.
        server: bool,
    },
    /// The hall, alone.
    Hall,
}

/// The apps that every edge serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Service {
    /// A client and a server, protected by both ends.
    Paired,
    /// No server; the client's end alone protects it.
    Alone,
    /// A client and a server, unprotected.
    Bare,
    /// Many clients in one cell, which has a backup.
    Hall,
}

impl Service {
    /// The services that every seed has.
    pub const ALL: [Self; 3] = [Self::Paired, Self::Alone, Self::Bare];

    /// Whether the app has a server.
    #[must_use]
    pub fn has_server(self) -> bool {
        !matches!(self, Self::Alone | Self::Hall)
    }

    /// The app's image. Each app has its own, though all but the hall run the same chain, alone or between delay stages.
    #[must_use]
    pub fn image(self, delayed: bool) -> ImageHash {
        // Different bytes for each service and shape, and nothing else: no image is ever stored
        // here.
        ImageHash([if delayed { 0xd5 } else { 0xc5 } + self as u8; 32])
    }

    /// The shape of an image's cells: how many machines they have.
    pub(crate) fn shape_of(image: ImageHash) -> Option<Shape> {
        if image == Self::Hall.image(false) {
            return Some(Shape::Hall);
        }
        Self::ALL.into_iter().find_map(|service| {
            let delayed = service.image(true) == image;
            let shape = if delayed { Shape::Delayed { server: service.has_server() } } else { Shape::Alone };
            (delayed || service.image(false) == image).then_some(shape)
        })
    }

    /// The app's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Paired => "paired",
            Self::Alone => "alone",
            Self::Bare => "bare",
            Self::Hall => "hall",
        }
    }
}

/// One write of a program.
#[derive(Clone, Copy, Debug)]
pub struct Chunk {
    /// Delay after the previous write, in nanoseconds.
    pub after_ns: u64,
    /// Size in bytes.
    pub size: usize,
}

/// What a local program does with its connection, independent of what it receives.
#[derive(Clone, Debug)]
pub struct Script {
    /// Its writes.
    pub chunks: Vec<Chunk>,
    /// Delay after the last write until it ends its output, in nanoseconds.
    pub close_after_ns: u64,
    /// Whether it then resets the connection instead.
    pub resets: bool,
    /// How long its socket takes to accept data, in nanoseconds.
    pub slowness_ns: u64,
    /// How long the program reads nothing at the start, in nanoseconds.
    pub stall_ns: u64,
}

/// How much the programs of a seed send. Few seeds have more than the usual load, because each
/// costs hundreds of times as much.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Load {
    /// Some messages of some bytes.
    Usual,
    /// About a megabyte.
    Bulky,
    /// More than an end may keep, all at once.
    Flood,
    /// So many small messages that their answers fill every window before the reader starts to read.
    Drizzle,
}

impl Load {
    /// Draws once, always: the draws after it do not depend on the result.
    fn of(random: &mut Random) -> Self {
        match random.below(1_000) {
            0..30 => Self::Bulky,
            30..40 => Self::Flood,
            40..47 => Self::Drizzle,
            _ => Self::Usual,
        }
    }
}

/// A client that connects.
#[derive(Clone, Debug)]
pub struct Visit {
    /// Time of the connection, in nanoseconds.
    pub at_ns: u64,
    /// Index of the client's agent.
    pub agent: usize,
    /// The app.
    pub service: Service,
    /// Which of the hall's cells it asks for; none if there is one.
    pub key: Option<u8>,
    /// The client's script.
    pub script: Script,
}

/// How a handler is stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Poison {
    /// The handler fails when a cell consumes its n-th event. Counted by the cell over its whole
    /// life and saved in checkpoints, so that a replay reaches the same event again.
    pub event: u64,
    /// Whether it fails every time, or only the first time.
    pub always: bool,
}

/// Everything that a seed determines in advance.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// Number of clients' agents; they come first in the list of agents, then the servers' agents.
    /// Agents are numbered 0 to `clients` - 1, then the servers' agents; see [`Self::agents`].
    pub clients: usize,
    /// Number of servers' agents.
    pub servers: usize,
    /// Number of shards of each edge.
    pub shards: Vec<u8>,
    /// Typical delay between an agent and an edge, in nanoseconds. By caller and edge. Rows:
    /// agents, then edges (they dial each other as standbys), then the recorder.
    pub delay_ns: Vec<Vec<u64>>,
    /// Factor on the delay, by direction: frames that cross on different wires arrive in any order.
    /// By direction, caller and edge, as `delay_ns`.
    pub skew: [Vec<Vec<u64>>; 2],
    /// The inputs of a hall in whose handlers it connects to a server, counted by the cell over its whole life.
    pub hall_connects: [Option<u64>; 2],
    /// The apps, in the order of [`Service::ALL`], and the hall's if the seed has one.
    pub apps: Vec<App>,
    load: Load,
    /// Whether the clients, and whether the servers, use datagrams.
    pub datagrams: [bool; 2],
    /// The clients.
    pub visits: Vec<Visit>,
    /// Which inputs of a hall's clients stop it.
    pub traps: Traps,
    /// The first fault.
    pub first: Fault<On>,
    /// Moves that an operator asks for, and faults at their steps. They do not wait for the first fault.
    pub moves: Vec<Fault<On>>,
    /// What agents and edges have to learn of edges; none if all are configured.
    pub learning: Option<Learning>,
    /// The faults after the first one. They begin when the first one has happened.
    pub faults: Vec<Fault<When>>,
    /// How long handlers and checkpoints take, in nanoseconds.
    pub handler_ns: u64,
    /// How long the handler takes that opens the server's port, in nanoseconds; 0 if as long as the others.
    pub open_ns: u64,
    /// Replay cost that a handler reports, in nanoseconds.
    pub cost_ns: u64,
    /// Extra bytes in every full checkpoint, and in the pages of a backup.
    pub ballast: usize,
    /// Whether cells count as large: their copies are prepared while they run.
    pub large: bool,
    /// Whether inputs of a shard come together, and what is due is done behind the last of them.
    pub batches: bool,
    /// Bytes of checkpoints that ends keep of one session. In some seeds too few for a second full one, or for any.
    pub checkpoints_max: u64,
    /// Which handler fails.
    pub poison: Option<Poison>,
    /// How much later than other answers those of decisions leave the coordinator, in nanoseconds.
    pub decided_late_ns: u64,
    /// How many of the first connections to the server fail.
    pub server_down: u32,
    /// Concurrent recoveries on a shard; 0 for no limit.
    pub recoveries_max: u32,
    /// How long the sessions of an edge that stops may move, in milliseconds.
    pub hand_over_ms: u32,
    /// Bytes in a second that moves may copy from an edge; 0 for no limit.
    pub move_bytes_per_s: u64,
    /// The replay budget of a shard, in nanoseconds; 0 for none.
    pub replay_ns_max: u64,
    /// Whether and how edges are standbys for each other's sessions.
    pub standby: bool,
    /// The site's recorder, in some seeds.
    pub recorder: Option<Site>,
    /// The witness of sessions without a server, in some seeds.
    pub witness: Option<Memory>,
    /// Whether sessions are recorded, by operators and when a handler fails.
    pub records: bool,
    /// Whether cells read from their edge's cache.
    pub reads: bool,
    /// Whether the linger time is shorter than the faults, so that ends may forget sessions meanwhile.
    pub short_linger: bool,
    /// Bytes that the sessions of one agent may keep, in some seeds so few that they are always too few.
    pub memory_max: u64,
    /// As much for one shard; 0 for no limit.
    pub shard_memory_max: u64,
    /// Whether agents lead new sessions to the least loaded edge, not to the first one.
    pub spread: bool,
    /// An owner that renews its standby in vain, in some seeds. It is their only fault.
    pub renewal: Option<Renewal>,
    /// An agent that lies, in some seeds.
    pub liar: Option<Liar>,
}

/// A scenario that takes a seed for itself: drawn first and applied last, so that it overwrites what would disturb it.
#[derive(Clone, Copy)]
enum Scenario {
    Renewal(Renewal),
    Liar(Liar),
    Lag,
    Hall,
}

impl Scenario {
    /// Each kind has a generator of its own; of several that are drawn, the first one here counts.
    fn draw(seed: u64) -> Option<Self> {
        let liar = || liar::draw(seed).map(Self::Liar);
        let lag = || lag::draw(seed).then_some(Self::Lag);
        let hall = || hall::draw(seed).then_some(Self::Hall);
        renewal::draw(seed).map(Self::Renewal).or_else(liar).or_else(lag).or_else(hall)
    }

    fn prepare(self, plan: &mut Plan) {
        match self {
            Self::Renewal(renewal) => renewal.prepare(plan),
            Self::Liar(liar) => liar.prepare(plan),
            Self::Lag => lag::prepare(plan),
            Self::Hall => hall::prepare(plan),
        }
    }
}

impl Plan {
    /// The plan of `seed`.
    ///
    /// `opening` is a scenario too, but takes only two faults for itself.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        match seed.checked_sub(HALLS_FROM) {
            Some(seed) => Self::of_scenario(seed, Some(Scenario::Hall)),
            None => Self::of_scenario(seed, Scenario::draw(seed)),
        }
    }

    /// When everything must have ended.
    ///
    /// A hall may be lost with both its edges. Then its clients come and wait in vain, and where an agent keeps hardly anything, one
    /// after the other.
    pub(crate) fn horizon_ns(&self) -> u64 {
        let in_turn =
            if self.has_hall() && self.memory_max < UNLIMITED { self.visits.len() as u64 } else { 0 };
        HORIZON_NS + in_turn * EDGE_WAIT_NS
    }

    /// Whether its visits are those of a hall's clients.
    pub(crate) fn has_hall(&self) -> bool {
        self.visits.iter().any(|visit| visit.service == Service::Hall)
    }

    fn of_scenario(seed: u64, scenario: Option<Scenario>) -> Self {
        let mut random = Random::new(seed, 1);
        let mut plan = Self::draw(seed, scenario, &mut random);
        replay::prepare(&mut plan);
        if let Some((first, second)) = opening::faults(seed, plan.clients, plan.open_ns) {
            plan.first = first;
            plan.faults.push(second);
        }
        if scenario.is_none() {
            partial::prepare(&mut plan);
            if !plan.keeps_many_messages() && !plan.has_epochs() {
                plan.moves = moves::draw(seed, plan.agents());
                moves::divide(&mut plan);
                moves::expose(&mut plan);
                moves::witness(&mut plan);
            }
            // A backup that an end's agent does not reach is no backup for its session.
            plan.learning = learning::draw(&plan).filter(|_| !plan.has_epochs());
        }
        plan.connect_edges();
        if random.percent(4) {
            plan.poison = Some(Poison { event: random.between(1, 30), always: random.percent(50) });
        }
        if random.percent(2) {
            plan.server_down = 1;
        }
        epochs::prepare(&mut plan);
        match scenario {
            Some(scenario) => {
                scenario.prepare(&mut plan);
                traps::prepare(&mut plan);
                late_keys::prepare(&mut plan);
            }
            None => {
                epochs::move_backups(&mut plan);
                elastic::prepare(&mut plan);
                changes::prepare(&mut plan);
                ahead::prepare(&mut plan);
                recalls::prepare(&mut plan);
                late_hello::prepare(&mut plan);
            }
        }
        stays::prepare(&mut plan);
        plan
    }

    /// The plan before the scenario is applied, and without connections between edges.
    ///
    /// The order of draws from `random` is part of what seeds mean.
    fn draw(seed: u64, scenario: Option<Scenario>, random: &mut Random) -> Self {
        let is_renewal = matches!(scenario, Some(Scenario::Renewal(_)));
        let is_liar = matches!(scenario, Some(Scenario::Liar(_)));
        let (clients, servers) = agents(random, scenario);
        let shards: Vec<u8> = (0..random.between(2, 3)).map(|_| 1 + u8::from(random.percent(30))).collect();
        let shards = if is_renewal { vec![1; renewal::EDGES] } else { shards };
        let faults = faults::draw(random, clients, servers, shards.len());
        let lethal = !is_renewal && !is_liar && faults.iter().any(Fault::is_lethal);
        let short_linger = random.percent(3) || lethal;
        let linger_ms = if short_linger { random.between(500, 3_000) } else { 25_000 };
        let drawn = Load::of(random);
        let load = if scenario.is_some() { Load::Usual } else { drawn };
        let count = if load == Load::Usual { random.between(1 + u64::from(is_liar), 4) } else { 1 };
        let epoch = match scenario {
            Some(Scenario::Hall) => Some(epochs::settings(seed)),
            Some(_) => None,
            None => epochs::draw(seed).filter(|_| load != Load::Drizzle),
        };
        let standby = match scenario {
            Some(Scenario::Lag) => Some(Protect::Hot),
            _ if epoch.is_some() => Some(Protect::Epoch),
            _ => standby(seed, load, is_renewal),
        };
        let witness = witness::witness(seed).or_else(|| epoch.as_ref().map(|_| epochs::coordinator(seed)));
        let visits: Vec<_> =
            (0..count).map(|_| visit(random, clients, load, seed.is_multiple_of(2))).collect();
        let messages = visits.iter().map(|visit| visit.script.chunks.len() as u64).sum();
        Self {
            seed,
            clients,
            servers,
            delay_ns: delays(random, clients + servers, shards.len()),
            skew: skew(seed, clients + servers + shards.len() + 1, shards.len()),
            apps: apps(random, linger_ms, (delayed(seed), standby, &witness, epoch)),
            shards,
            load,
            datagrams: datagrams(seed, load),
            visits,
            traps: Traps::default(),
            decided_late_ns: 0,
            first: faults::first(&mut Random::new(seed, 17), clients + servers, messages),
            moves: Vec::new(),
            learning: None,
            faults,
            handler_ns: random.magnitude(US, 200 * US),
            open_ns: opening::slowness_ns(seed),
            cost_ns: random.magnitude(100, 50 * US),
            ballast: ballast(random),
            large: Random::new(seed, 37).percent(30),
            batches: Random::new(seed, 87).percent(12),
            checkpoints_max: checkpoints_max(seed),
            poison: None,
            server_down: 0,
            hall_connects: [None; 2],
            recoveries_max: if random.percent(20) { 1 } else { 0 },
            hand_over_ms: Random::new(seed, 65).pick(&[0, 20, 500, 500]),
            move_bytes_per_s: move_bytes_per_s(seed),
            replay_ns_max: 0,
            standby: standby.is_some(),
            recorder: site(seed, load),
            witness,
            records: Random::new(seed, 11).percent(25),
            reads: Random::new(seed, 31).percent(40),
            short_linger,
            memory_max: memory(seed),
            shard_memory_max: shard_memory(seed, load),
            spread: Random::new(seed, 55).percent(50),
            renewal: None,
            liar: None,
        }
    }

    /// Whether queues have tens of thousands of messages.
    pub fn keeps_many_messages(&self) -> bool {
        self.load == Load::Drizzle
    }

    /// Whether a program may send as much as an end keeps at most.
    pub fn fills_ends(&self) -> bool {
        matches!(self.load, Load::Flood | Load::Drizzle)
    }

    /// Whether outputs wait for a backup.
    #[must_use]
    pub fn has_epochs(&self) -> bool {
        self.apps.iter().any(|app| app.epoch.is_some())
    }

    /// Whether edges dial each other: to stand by for sessions, or to take moved ones.
    #[must_use]
    pub fn connects_edges(&self) -> bool {
        self.standby || !self.moves.is_empty()
    }

    /// Whether agents or shards may keep little.
    pub fn is_short_of_memory(&self) -> bool {
        self.memory_max < UNLIMITED || self.shard_memory_max > 0
    }

    /// Whether sessions may wait for ever: agents have hardly any memory, and no checkpoint fits that would give some back.
    pub fn may_starve(&self) -> bool {
        self.memory_max < UNLIMITED && self.checkpoints_max < CHECKPOINTS_SIZE
    }

    /// Edges reach each other with delays like those of agents. If they are standbys, faults also occur between them.
    fn connect_edges(&mut self) {
        let mut random = Random::new(self.seed, 13);
        let (agents, edges) = (self.agents(), self.shards.len());
        self.delay_ns.extend(
            (0..=edges).map(|_| (0..edges).map(|_| random.magnitude(10 * US, MS)).collect::<Vec<_>>()),
        );
        if !self.connects_edges() {
            return;
        }
        for fault in &mut self.faults {
            if let FaultKind::CutWires { agent, .. }
            | FaultKind::CutOneSide { agent, .. }
            | FaultKind::Silence { agent, .. } = &mut fault.kind
                && random.percent(40)
            {
                *agent = agents + random.index(edges);
            }
        }
    }

    /// Number of all agents.
    #[must_use]
    pub fn agents(&self) -> usize {
        self.clients + self.servers
    }

    /// The script of the `nth` connection to a server. A server has no visit of its own: its script
    /// follows from the number of the connection, counted over all agents.
    #[must_use]
    pub fn server_script(&self, nth: u64) -> Script {
        let mut random = Random::new(self.seed ^ (nth << 32), 2);
        if self.has_hall() {
            return hall::served(&mut random);
        }
        if self.load == Load::Drizzle || (self.load == Load::Flood && self.seed.is_multiple_of(2)) {
            // Sends little, but must receive all answers to the client's many messages.
            return Script { slowness_ns: 20 * US, ..script(&mut random, Load::Usual) };
        }
        script(&mut random, self.load)
    }
}

/// Numbers of clients' and of servers' agents.
fn agents(random: &mut Random, scenario: Option<Scenario>) -> (usize, usize) {
    let drawn = (1 + usize::from(random.percent(30)), 1 + usize::from(random.percent(20)));
    match scenario {
        Some(Scenario::Liar(liar)) => liar.agents(drawn),
        Some(Scenario::Hall) => hall::agents(drawn),
        _ => drawn,
    }
}

/// In few seeds full checkpoints are large.
fn ballast(random: &mut Random) -> usize {
    let bytes = if random.percent(4) { random.between(1, 600_000) } else { 0 };
    usize::try_from(bytes).unwrap_or(0)
}

/// Between agents and edges, in nanoseconds, one way. In 15 of 100 seeds half of the pairs are far
/// apart.
fn delays(random: &mut Random, agents: usize, edges: usize) -> Vec<Vec<u64>> {
    let far = random.percent(15);
    let mut delay = || {
        if far && random.percent(50) {
            random.between(2 * MS, 20 * MS)
        } else {
            random.magnitude(10 * US, MS)
        }
    };
    (0..agents).map(|_| (0..edges).map(|_| delay()).collect()).collect()
}

/// In a quarter of all seeds every direction of every pair has its own delay factor.
fn skew(seed: u64, agents: usize, edges: usize) -> [Vec<Vec<u64>>; 2] {
    let mut random = Random::new(seed, 8);
    let skewed = random.percent(25);
    let mut factor = || if skewed && random.percent(50) { random.magnitude(2, 200) } else { 1 };
    let mut direction = || (0..agents).map(|_| (0..edges).map(|_| factor()).collect()).collect();
    [direction(), direction()]
}

/// Datagrams only where programs send little: datagrams are dropped if there is no room for them, which is not a fault, so a
/// program that cannot wait for room would lose some.
fn datagrams(seed: u64, load: Load) -> [bool; 2] {
    let mut random = Random::new(seed, 9);
    // Datagrams without room are dropped.
    let has_room = memory(seed) == UNLIMITED && shard_memory(seed, load) == 0;
    let mut draw = || random.percent(20) && load == Load::Usual && has_room;
    [draw(), draw()]
}

/// In a quarter of all seeds cells are chains.
fn delayed(seed: u64) -> bool {
    Random::new(seed, 10).percent(25)
}

/// A recorder near the edges, and its faults. Times in nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Site {
    /// When it crashes, and for how long it is away.
    pub crashes: Vec<(u64, u64)>,
    /// When it is frozen, and for how long.
    pub freezes: Vec<(u64, u64)>,
    /// Whether it sometimes returns something other than what it was sent.
    pub lies: bool,
}

/// In three tenths of all seeds there is a recorder.
fn site(seed: u64, load: Load) -> Option<Site> {
    let mut random = Random::new(seed, 14);
    let random = &mut random;
    let times = |random: &mut Random| {
        let count = if random.percent(30) { random.between(1, 3) } else { 0 };
        let mut time = || (random.magnitude(MS, 2 * S), random.magnitude(MS, S));
        (0..count).map(|_| time()).collect()
    };
    (random.percent(30) && load != Load::Drizzle).then(|| Site {
        crashes: times(random),
        freezes: times(random),
        lies: random.percent(50),
    })
}

/// A session that moves slowly keeps much meanwhile: where agents have hardly any memory, it would wait for the whole move.
fn move_bytes_per_s(seed: u64) -> u64 {
    let drawn = Random::new(seed, 81).pick(&[0, 2 << 10, 8 << 10, 1 << 20]);
    if memory(seed) < UNLIMITED && drawn < 1 << 20 { 0 } else { drawn }
}

/// More than any seed keeps.
const UNLIMITED: u64 = 1 << 40;

/// In an eighth of all seeds agents have hardly any memory, in some of them only for one session at a time.
fn memory(seed: u64) -> u64 {
    let mut random = Random::new(seed, 54);
    match random.below(64) {
        0 => 1,
        1..8 => random.magnitude(80 << 10, 2 << 20),
        _ => UNLIMITED,
    }
}

/// As much for shards, in other seeds. Some have hardly any and refuse all new sessions but one. Floods and
/// drizzles fill it.
fn shard_memory(seed: u64, load: Load) -> u64 {
    let mut random = Random::new(seed, 62);
    let fills = matches!(load, Load::Flood | Load::Drizzle) && random.percent(50);
    match random.below(64) {
        0 => 1,
        1..8 => random.magnitude(80 << 10, 2 << 20),
        _ if fills => random.magnitude(80 << 10, 2 << 20),
        _ => 0,
    }
}

/// In two fifths of all seeds edges are standbys for each other; in half of these they replay continuously.
fn standby(seed: u64, load: Load, needed: bool) -> Option<Protect> {
    let mut random = Random::new(seed, 12);
    // Tens of thousands of messages are enough work for one cell.
    ((random.percent(40) || needed) && load != Load::Drizzle)
        .then(|| random.pick(&[Protect::Warm, Protect::Hot]))
}

/// A chain of checkpoints has a few hundred bytes, or some thousand with twins or ballast.
fn checkpoints_max(seed: u64) -> u64 {
    let mut random = Random::new(seed, 53);
    if random.percent(5) { random.magnitude(200, 20_000) } else { CHECKPOINTS_SIZE }
}

/// One app for each service. All keep their checkpoints at the same ends, except where there is no
/// server.
fn apps(
    random: &mut Random,
    linger_ms: u64,
    (delayed, standby, witness, epoch): (bool, Option<Protect>, &Option<Memory>, Option<EpochSettings>),
) -> Vec<App> {
    let keep = random.pick(&[CheckpointHolder::Client, CheckpointHolder::Server, CheckpointHolder::Both]);
    let recovery_target_ns = random.pick(&[0, 20 * US, 200 * US, 5 * MS]);
    let app = |service: Service| App {
        name: service.name().into(),
        image: service.image(delayed),
        protect: match service {
            Service::Bare => Protect::None,
            _ => standby.unwrap_or(Protect::Endpoints),
        },
        server: service.has_server().then(|| SERVER.into()),
        keep: if service == Service::Alone { CheckpointHolder::Client } else { keep },
        recovery_target_ns,
        linger_ms: u32::try_from(linger_ms).unwrap_or(u32::MAX),
        messages_per_s: 0,
        log_bytes_per_s: 0,
        sessions_max: 0,
        shared: false,
        tenant: "t".into(),
        priority: 0,
        witness: match witness {
            Some(witness) if service == Service::Alone && epoch.is_none() => witness.how,
            _ => WitnessMode::None,
        },
        cache: None,
        epoch: epoch.clone().filter(|_| service != Service::Bare),
        slots: 0,
    };
    Service::ALL.into_iter().map(app).collect()
}

/// Most sessions have both ends, since that is where the protocol has most to do.
fn visit(random: &mut Random, clients: usize, load: Load, client_floods: bool) -> Visit {
    let service = match random.below(100) {
        0..2 => Service::Bare,
        2..14 => Service::Alone,
        _ => Service::Paired,
    };
    Visit {
        at_ns: random.magnitude(MS, 300 * MS),
        agent: random.index(clients),
        service,
        key: None,
        script: script(random, if load == Load::Flood && !client_floods { Load::Usual } else { load }),
    }
}

/// Flood and drizzle have no long pauses: their point is a buffer that stays full.
fn script(random: &mut Random, load: Load) -> Script {
    let count = match load {
        Load::Usual => random.between(1, 25),
        Load::Bulky => 30,
        // A fifth more than an end may keep: its program has to wait.
        Load::Flood => RETAINED_MAX / 40_000,
        Load::Drizzle => 24_000,
    };
    let pace_ns = match load {
        Load::Usual | Load::Bulky => random.magnitude(US, 30 * MS),
        Load::Flood => 20 * US,
        Load::Drizzle => 60 * US,
    };
    let pauses = matches!(load, Load::Usual | Load::Bulky);
    let chunk = |random: &mut Random| Chunk {
        after_ns: if pauses && random.percent(5) { random.below(300 * MS) } else { random.below(pace_ns) },
        size: usize::try_from(match load {
            Load::Usual if random.percent(1) => random.magnitude(1, 65_536),
            Load::Usual => random.magnitude(1, 2_000),
            Load::Bulky | Load::Flood => random.between(30_000, 65_536),
            Load::Drizzle => 1,
        })
        .expect("a small number"),
    };
    Script {
        chunks: (0..count).map(|_| chunk(random)).collect(),
        close_after_ns: if random.percent(50) { 0 } else { random.magnitude(US, 300 * MS) },
        resets: load == Load::Usual && random.percent(1),
        slowness_ns: match load {
            Load::Usual if random.percent(10) => random.magnitude(MS, 100 * MS),
            Load::Usual => random.magnitude(US, 50 * US),
            Load::Bulky | Load::Flood | Load::Drizzle => 20 * US,
        },
        stall_ns: if load == Load::Drizzle { 3 * S } else { 0 },
    }
}
