//! Edges of one domain, clients' agents and the coordinator's store, driven by the test: frames arrive in the order in which they were
//! sent, and time passes only when a test says so.

#[path = "world/agents.rs"]
mod agents;
#[path = "world/feeds.rs"]
mod feeds;
#[path = "world/many.rs"]
mod many;
#[path = "world/store.rs"]
mod store;
#[path = "world/time.rs"]
mod time;

pub(crate) use agents::Manner;
pub(crate) use feeds::FeedsSeen;
pub(crate) use store::Store;

use crate::support;
use bytes::Bytes;
use marram_session::{
    agent::{Agent, AgentInput, AgentOutput, AgentReport, ConnectionId, Target, WireId as AgentWire},
    cell::{CellId, CellInput, CellOutput, CellStop, Ran, Run, RunOutcome},
    owner::{BackupForm, Owner, OwnerPhase},
};
use marram_shard::{
    api::{
        App, AppName, Configure, EpochSettings, FromShard, NoteLevel, Now, PolicyList, Protect,
        ReplicationPolicy, SessionRow, ShardInput, ShardOutput, ShardWireId, ToShard,
    },
    shard::Shard,
};
use marram_wire::{
    frame::{Channel, Code, Frame, GroupId, StoreMark, StoreSeen},
    header::Header,
    id::{HostId, ImageHash, Port, SessionId},
    key::CellKey,
    peer::Origin,
    rights::Verified,
    seal::DomainSecret,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const MS: u64 = 1_000_000;
/// Longer than an app's `alone_after`, a heartbeat timeout and every wait of an agent.
pub(crate) const LONG_MS: u64 = 8_000;

fn small(number: usize) -> u8 {
    u8::try_from(number).expect("a test has few of them")
}

/// Where a client connects from.
fn client_address(number: usize) -> std::net::SocketAddr {
    ([10, 0, 0, small(number)], 5060).into()
}

/// The cell: numbers what happens, and tells it to all whose ports are open.
#[derive(Clone, Default)]
struct Teller {
    open: BTreeSet<Port>,
    told: u64,
    connects: u32,
}

impl Teller {
    fn run(&mut self, Run { cell, input, .. }: Run) -> Ran {
        let mut outputs = Vec::new();
        let what = match &input {
            CellInput::Open { port, .. } => {
                assert!(self.open.insert(*port), "{port:?} is free");
                "joins".to_string()
            }
            CellInput::Message { payload, .. } => String::from_utf8_lossy(payload).into_owned(),
            CellInput::Close { port } => {
                outputs.push(CellOutput::Close { port: *port });
                self.open.remove(port);
                "closes".to_string()
            }
            CellInput::Gone { port } => {
                self.open.remove(port);
                "is gone".to_string()
            }
            other => panic!("the cell has no {other:?}"),
        };
        if what == "cancel" {
            outputs.push(CellOutput::Close { port: Port(Port::FIRST_CONNECTED.0 + self.connects - 1) });
        }
        if what == "connect" {
            let port = Port(Port::FIRST_CONNECTED.0 + self.connects);
            self.connects += 1;
            outputs.push(CellOutput::Connect { port, name: "store".into() });
        }
        self.told += 1;
        let line = Bytes::from(format!("{} {what}\n", self.told));
        let tell = |port: &Port| CellOutput::Message { port: *port, payload: line.clone() };
        outputs.extend(self.open.iter().map(tell));
        let outcome = match what.as_str() {
            "poison" => RunOutcome::Stopped(CellStop::Trap("unreachable".into())),
            _ => RunOutcome::Idle,
        };
        Ran {
            cell,
            outcome,
            clock_read: false,
            outputs,
            timers: Vec::new(),
            tasks: Vec::new(),
            reads: Vec::new(),
            cost_ns: 1_000,
        }
    }
}

/// Who has one end of a wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Party {
    Edge(usize),
    Agent(usize),
}

enum Event {
    Edge(usize, ShardInput),
    Agent(usize, AgentInput),
}

/// One edge, with one shard; none if it is dead.
struct Edge {
    shard: Option<Shard>,
    cells: BTreeMap<CellId, Teller>,
    /// Those that were restored, and may be advanced.
    restored: BTreeSet<CellId>,
    /// The cell as it was copied last.
    copied: Teller,
    wake_ns: Option<u64>,
    /// How often it was started.
    lives: u8,
    frozen: bool,
    /// Whether its cells take very long.
    dawdles: bool,
    /// Whether cells that are restored wait, until [`World::hurries`].
    restores_late: bool,
    /// If only those do that it had then: these.
    slow: Option<BTreeSet<CellId>>,
    /// What reaches it while it is frozen, and what its cells have done.
    kept: Vec<ShardInput>,
}

/// One client's agent, with one client.
struct Client {
    agent: Agent,
    wake_ns: Option<u64>,
    heard: String,
    ended: Option<Code>,
    closed: bool,
    session: Option<SessionId>,
    /// Why edges have refused it, and how its connections have ended.
    refused: Vec<(Code, String)>,
    ends: usize,
    /// The first edge of its agent's list.
    first: usize,
    is_cut_off: bool,
    /// Its connection; of a server's agent, the last one that it was asked for, and how many there were.
    connection: ConnectionId,
    connects: usize,
    /// Whether no connection to its server can be made.
    refuses: bool,
    manner: Manner,
    /// What it has not read yet, with its wire.
    unread: Vec<(u64, Frame)>,
}

/// What begins a copy of a cell: the number of its checkpoint.
const COPY_MIN: usize = 8;

pub(crate) struct World {
    edges: Vec<Edge>,
    clients: Vec<Client>,
    wires: BTreeMap<u64, [Party; 2]>,
    next_wire: u64,
    events: VecDeque<Event>,
    pub(crate) store: Store,
    pub(crate) now_ns: u64,
    /// How often a client was led to another edge.
    pub(crate) led: usize,
    /// What shards have written to their logs.
    pub(crate) notes: Vec<String>,
    /// Those of them that are warnings.
    pub(crate) warnings: Vec<String>,
    /// Why moves were refused or have failed, in the order in which they were answered or over; empty for those that are done.
    pub(crate) moves: Vec<String>,
    /// How many of them were of backups, and succeeded.
    pub(crate) backups_moved: usize,
    /// What shards have listed last of their sessions.
    rows: Vec<SessionRow>,
    /// Edges that have stopped, in the order in which they said so.
    pub(crate) drained: Vec<usize>,
    form: BackupForm,
    policies: Vec<ReplicationPolicy>,
    /// How many slots the app has; 0: all clients share one cell.
    slots: u32,
    /// Checkpoints by what stands for their bytes, with their sizes.
    checkpoints: BTreeMap<u64, (Header, Teller, usize)>,
    /// How many bytes the next one has, and what of the cells that are restored has arrived.
    pub(crate) copy_size: usize,
    /// How many of the next copies cannot be made.
    pub(crate) failing_copies: usize,
    parts: BTreeMap<CellId, Vec<u8>>,
    /// Whether an edge takes all that has arrived before it does what is due, as its processes do.
    takes_batches: bool,
    /// What edges were fed, and how.
    pub(crate) feeds: FeedsSeen,
    /// The epochs that were confirmed.
    pub(crate) confirmed: BTreeSet<(GroupId, u64)>,
}

fn hall(form: BackupForm, slots: u32, shared: bool) -> App {
    App {
        protect: Protect::Epoch,
        shared,
        linger_ms: 20_000,
        epoch: Some(EpochSettings { every_us: 0, alone_after_ms: 1_000, form }),
        slots,
        ..support::app("hall")
    }
}

impl World {
    /// Edges that know each other, and the app on all of them.
    pub(crate) fn new(edges: usize, form: BackupForm) -> Self {
        Self::with_policies(edges, form, &[])
    }

    /// The same, where some sessions are replicated in another way.
    pub(crate) fn with_policies(edges: usize, form: BackupForm, policies: &[ReplicationPolicy]) -> Self {
        Self::with(edges, (form, 0), policies)
    }

    /// The same, where each client has a cell of its own.
    pub(crate) fn with_own_cells(edges: usize, policies: &[ReplicationPolicy]) -> Self {
        Self::begun(edges, (BackupForm::Log, 0), policies, Store { of_sessions: true, ..Store::default() })
    }

    fn app(&self) -> App {
        hall(self.form, self.slots, !self.store.of_sessions)
    }

    /// The same, where clients share one cell for each key.
    pub(crate) fn with_keys(edges: usize, form: BackupForm, slots: u32) -> Self {
        Self::with(edges, (form, slots), &[])
    }

    fn with(edges: usize, shape: (BackupForm, u32), policies: &[ReplicationPolicy]) -> Self {
        Self::begun(edges, shape, policies, Store::default())
    }

    fn begun(
        edges: usize,
        (form, slots): (BackupForm, u32),
        policies: &[ReplicationPolicy],
        store: Store,
    ) -> Self {
        support::be_strict();
        let mut world = Self {
            edges: Vec::new(),
            clients: Vec::new(),
            wires: BTreeMap::new(),
            next_wire: 1,
            events: VecDeque::new(),
            store,
            now_ns: 1_000_000_000,
            led: 0,
            notes: Vec::new(),
            warnings: Vec::new(),
            moves: Vec::new(),
            backups_moved: 0,
            rows: Vec::new(),
            drained: Vec::new(),
            form,
            policies: policies.to_vec(),
            slots,
            checkpoints: BTreeMap::new(),
            copy_size: COPY_MIN,
            failing_copies: 0,
            parts: BTreeMap::new(),
            takes_batches: false,
            feeds: FeedsSeen::default(),
            confirmed: BTreeSet::new(),
        };
        for edge in 0..edges {
            world.edges.push(Edge {
                shard: None,
                cells: BTreeMap::new(),
                restored: BTreeSet::new(),
                copied: Teller::default(),
                wake_ns: None,
                lives: 0,
                frozen: false,
                dawdles: false,
                restores_late: false,
                slow: None,
                kept: Vec::new(),
            });
            world.starts(edge, edges);
        }
        world.runs(100);
        world
    }

    /// A new life of an edge, of so many.
    fn starts(&mut self, number: usize, edges: usize) {
        let edge = &mut self.edges[number];
        edge.lives += 1;
        let entropy = [small(number) + 2 + 16 * edge.lives; 32];
        edge.shard = Some(Shard::new(DomainSecret::from_material(b"the domain's"), entropy));
        (edge.cells, edge.restored, edge.wake_ns) = Default::default();
        self.tell(number, ToShard::Configure(self.configure(number, edges)));
        self.deploys(number);
        self.sees_store(number, 1);
    }

    fn configure(&self, number: usize, edges: usize) -> Configure {
        Configure {
            edge: format!("e{number}"),
            dials: (0..edges).filter(|peer| *peer != number).map(|peer| format!("e{peer}:1")).collect(),
            peers: true,
            policies: self.policies.clone(),
            hand_over_ms: 5_000,
            ..Configure::default()
        }
    }

    /// Copies of what moves from an edge share this bandwidth from now on.
    pub(crate) fn limits_moves(&mut self, edge: usize, move_bytes_per_s: u64) {
        let configure = Configure { move_bytes_per_s, ..self.configure(edge, self.edges.len()) };
        self.tell(edge, ToShard::Configure(configure));
    }

    /// An edge has so many sessions at most from now on, with those that it stands by for.
    pub(crate) fn limits_sessions(&mut self, edge: usize, sessions_max: u32) {
        let configure = Configure { sessions_max, ..self.configure(edge, self.edges.len()) };
        self.tell(edge, ToShard::Configure(configure));
    }

    /// The app is deployed at an edge.
    pub(crate) fn deploys(&mut self, edge: usize) {
        self.tell(edge, ToShard::Deploy(self.app()));
    }

    /// Another version of the app is deployed at an edge.
    pub(crate) fn deploys_another(&mut self, edge: usize) {
        let image = ImageHash([99; 32]);
        self.tell(edge, ToShard::Deploy(App { image, ..self.app() }));
    }

    /// The app is removed at an edge.
    pub(crate) fn undeploys(&mut self, edge: usize) {
        self.tell(edge, ToShard::Undeploy(AppName { name: "hall".into() }));
    }

    /// Its machine is back.
    pub(crate) fn restarts(&mut self, edge: usize) {
        self.starts(edge, self.edges.len());
    }

    /// An edge sees a store with this identity.
    pub(crate) fn sees_store(&mut self, edge: usize, identity: u8) {
        let mark = StoreMark { identity: [identity; 16], decisions: 1 };
        self.tell(edge, ToShard::StoreSeen(StoreSeen { mark }));
    }

    fn tell(&mut self, edge: usize, message: ToShard) {
        self.events.push_back(Event::Edge(edge, ShardInput::Control(message)));
    }

    /// A client whose agent asks this edge first, and its first message.
    pub(crate) fn joins(&mut self, first: usize) -> usize {
        let number = self.comes(first);
        self.runs(100);
        number
    }

    /// The same, for the cell of this key.
    pub(crate) fn joins_cell(&mut self, first: usize, key: &str) -> usize {
        let number = self.comes_for(first, key);
        self.runs(100);
        number
    }

    /// The same, before anything of it has arrived.
    pub(crate) fn comes(&mut self, first: usize) -> usize {
        self.comes_for(first, "")
    }

    /// The same, for the cell of this key; of none if it is empty.
    pub(crate) fn comes_for(&mut self, first: usize, key: &str) -> usize {
        let number = self.agent(first, Vec::new());
        self.opens(number, 1, key);
        number
    }

    /// Another connection to the agent of a client, for the cell of this key, with a number that no other one has, and its first message.
    pub(crate) fn opens(&mut self, client: usize, number: u64, key: &str) {
        let connection = ConnectionId(number);
        let input = AgentInput::Accepted {
            key: CellKey::new(key.as_bytes().to_vec()).ok(),
            connection,
            app: "hall".into(),
            datagrams: false,
            messages: true,
            origin: Some(Origin { client: Some(client_address(client)), ..Origin::default() }),
        };
        self.events.push_back(Event::Agent(client, input));
        let bytes = Bytes::from_static(b"hi");
        self.events.push_back(Event::Agent(client, AgentInput::Received { connection, bytes }));
    }

    fn connects(&mut self, client: usize, target: Target) {
        let edge = (usize::from(target.edge) + self.clients[client].first) % self.edges.len();
        let number = self.next_wire;
        let alive = self.edges[edge].shard.is_some() && !self.clients[client].is_cut_off;
        let input = if alive {
            self.next_wire += 1;
            self.wires.insert(number, [Party::Agent(client), Party::Edge(edge)]);
            let host = HostId([small(client) + 100; 16]);
            self.up(edge, number, host);
            AgentInput::WireUp { wire: AgentWire(number), target }
        } else {
            AgentInput::DialFailed { target, reason: "it is dead".into() }
        };
        self.events.push_back(Event::Agent(client, input));
    }

    fn up(&mut self, edge: usize, wire: u64, host: HostId) {
        let verified = Box::new(Verified::trusted(host));
        let address = Some("somewhere".into());
        self.reaches(edge, ShardInput::WireUp { wire: ShardWireId(wire), verified, address });
    }

    fn reaches(&mut self, edge: usize, input: ShardInput) {
        self.events.push_back(Event::Edge(edge, input));
    }

    pub(crate) fn says(&mut self, client: usize, text: &str) {
        let bytes = Bytes::from(text.to_owned());
        let connection = self.clients[client].connection;
        self.events.push_back(Event::Agent(client, AgentInput::Received { connection, bytes }));
    }

    pub(crate) fn closes(&mut self, client: usize) {
        let connection = self.clients[client].connection;
        self.events.push_back(Event::Agent(client, AgentInput::EndOfInput { connection }));
    }

    /// What a client has heard, line by line.
    pub(crate) fn heard(&self, client: usize) -> Vec<&str> {
        self.clients[client].heard.lines().collect()
    }

    pub(crate) fn ended(&self, client: usize) -> Option<Code> {
        self.clients[client].ended
    }

    /// The backup of the cell that runs on this edge, if its group's claim names one.
    pub(crate) fn backup_at(&self, edge: usize) -> Option<String> {
        let shard = self.edges[edge].shard.as_ref()?;
        let mut owners = shard.owners();
        owners.find_map(|owner| shard.backup_of(owner.session()).map(ToString::to_string))
    }

    /// The edges on which a cell runs.
    pub(crate) fn runs_at(&self) -> Vec<usize> {
        let runs = |edge: &Edge| {
            edge.shard.as_ref().is_some_and(|shard| {
                let mut owners = shard.owners();
                owners.any(|owner| owner.phase() == OwnerPhase::Running)
            })
        };
        (0..self.edges.len()).filter(|edge| runs(&self.edges[*edge])).collect()
    }

    /// The edge on which a client's session runs, if it has a cell of its own.
    pub(crate) fn owner_of(&self, client: usize) -> Option<usize> {
        let session = self.clients[client].session?;
        let runs = |edge: &Edge| {
            let owner = edge.shard.as_ref().and_then(|shard| shard.owner(session));
            owner.is_some_and(|owner| owner.phase() == OwnerPhase::Running && !owner.was_handed_over())
        };
        (0..self.edges.len()).find(|edge| runs(&self.edges[*edge]))
    }

    /// The shard of an edge that is alive.
    pub(crate) fn shard(&self, edge: usize) -> &Shard {
        self.edges[edge].shard.as_ref().expect("it is alive")
    }

    /// The keys of the cells that run on an edge, with how many clients they have.
    pub(crate) fn cells_at(&self, edge: usize) -> Vec<(String, usize)> {
        let shard = self.edges[edge].shard.as_ref();
        let owners = shard.into_iter().flat_map(Shard::owners);
        let running = owners.filter(|owner| owner.phase() == marram_session::owner::OwnerPhase::Running);
        let key = |owner: &Owner| owner.key().map(ToString::to_string).unwrap_or_default();
        let mut cells: Vec<_> = running.map(|owner| (key(owner), owner.client_count())).collect();
        cells.sort();
        cells
    }

    /// These policies are in force at an edge from now on.
    pub(crate) fn sets_policies(&mut self, edge: usize, policies: &[ReplicationPolicy]) {
        self.policies = policies.to_vec();
        self.tell(edge, ToShard::Policies(PolicyList { policies: policies.to_vec() }));
        self.settles();
    }

    /// Its machine dies.
    pub(crate) fn kills(&mut self, edge: usize) {
        self.edges[edge].shard = None;
        let dead = |ends: &[Party; 2]| ends.contains(&Party::Edge(edge));
        let wires: Vec<u64> =
            self.wires.iter().filter(|(_, ends)| dead(ends)).map(|(wire, _)| *wire).collect();
        wires.into_iter().for_each(|wire| self.breaks(wire));
    }

    /// The shard of an edge is told this by control.
    pub(crate) fn control(&mut self, edge: usize, message: ToShard) {
        self.tell(edge, message);
    }

    /// The session of a client.
    pub(crate) fn session(&self, client: usize) -> Option<SessionId> {
        self.clients[client].session
    }

    /// It stops for some time.
    pub(crate) fn freezes(&mut self, edge: usize) {
        self.edges[edge].frozen = true;
    }

    /// What has arrived at an edge since it stopped is lost.
    pub(crate) fn loses_unread(&mut self, edge: usize) {
        self.edges[edge].kept.clear();
    }

    pub(crate) fn thaws(&mut self, edge: usize) {
        self.edges[edge].frozen = false;
        let kept = core::mem::take(&mut self.edges[edge].kept);
        self.events.extend(kept.into_iter().map(|input| Event::Edge(edge, input)));
    }

    /// The machine of a client is cut off from all edges, or not any more.
    pub(crate) fn cuts_off(&mut self, client: usize, is_cut_off: bool) {
        self.clients[client].is_cut_off = is_cut_off;
        let own = |ends: &[Party; 2]| is_cut_off && ends.contains(&Party::Agent(client));
        let wires: Vec<u64> =
            self.wires.iter().filter(|(_, ends)| own(ends)).map(|(wire, _)| *wire).collect();
        wires.into_iter().for_each(|wire| self.breaks(wire));
    }

    fn breaks(&mut self, wire: u64) {
        let Some(ends) = self.wires.remove(&wire) else { return };
        for end in ends {
            self.events.push_back(match end {
                Party::Edge(edge) => Event::Edge(edge, ShardInput::WireDown { wire: ShardWireId(wire) }),
                Party::Agent(agent) => {
                    let reason = "it broke".into();
                    Event::Agent(agent, AgentInput::WireDown { wire: AgentWire(wire), reason })
                }
            });
        }
    }

    fn edge_steps(&mut self, number: usize, input: ShardInput) {
        let edge = &mut self.edges[number];
        let is_slow = |ran: &Ran| edge.slow.as_ref().is_none_or(|slow| slow.contains(&ran.cell));
        let waits = edge.restores_late && matches!(&input, ShardInput::Restored { .. });
        if waits || edge.frozen || edge.dawdles && matches!(&input, ShardInput::Ran(ran) if is_slow(ran)) {
            return edge.kept.push(input);
        }
        let Some(shard) = &mut edge.shard else { return };
        let (mut out, now) = (Vec::new(), Now { mono_ns: self.now_ns, unix_ns: 5_000_000_000 });
        shard.step(now, input, &mut out);
        out.into_iter().for_each(|out| self.perform(number, out));
    }

    fn agent_steps(&mut self, number: usize, input: AgentInput) {
        let mut out = Vec::new();
        self.clients[number].agent.step(self.now_ns, input, &mut out);
        for out in out {
            match out {
                AgentOutput::Send { wire, frame } => {
                    if let Frame::Hello(hello) = &frame {
                        self.clients[number].session = Some(hello.session);
                    }
                    self.sends(Party::Agent(number), wire.0, frame);
                }
                AgentOutput::Dial { target } => self.connects(number, target),
                AgentOutput::CloseWire { wire, .. } => self.breaks(wire.0),
                AgentOutput::WakeAt { now_ns: mono_ns } => {
                    // It replaces what was asked for before.
                    self.clients[number].wake_ns = Some(mono_ns);
                }
                AgentOutput::Write { connection, bytes } => {
                    self.clients[number].heard.push_str(core::str::from_utf8(&bytes).expect("it is text"));
                    let bytes = bytes.len() as u64;
                    self.events.push_back(Event::Agent(number, AgentInput::Written { connection, bytes }));
                }
                AgentOutput::Connect { connection, server, .. } => {
                    self.asked_for(number, connection, &server)
                }
                AgentOutput::Close { .. } => self.clients[number].closed = true,
                AgentOutput::Report(AgentReport::Ended { code, .. }) => {
                    self.clients[number].ended = Some(code);
                    self.clients[number].ends += 1;
                }
                _ => {}
            }
        }
    }

    fn sends(&mut self, from: Party, wire: u64, mut frame: Frame) {
        self.led += usize::from(matches!(frame, Frame::Lead(_)));
        let Some([one, other]) = self.wires.get(&wire) else { return };
        let to = if *one == from { *other } else { *one };
        self.feeds.sent(from, wire, &mut frame);
        if let Frame::Confirmed(it) = &frame {
            self.confirmed.insert((it.group, it.number));
        }
        if let (Party::Agent(agent), Frame::Reject(reject)) = (to, &frame) {
            self.clients[agent].refused.push((reject.code, reject.reason.clone()));
        }
        let Some(frame) = self.is_read(to, wire, frame) else { return };
        self.events.push_back(match to {
            Party::Edge(edge) => Event::Edge(edge, ShardInput::Frame { wire: ShardWireId(wire), frame }),
            Party::Agent(agent) => Event::Agent(agent, AgentInput::Frame { wire: AgentWire(wire), frame }),
        });
    }

    /// What stands for the bytes of a checkpoint.
    fn seal(&mut self, header: Header, copied: Teller) -> Result<Bytes, String> {
        if self.failing_copies > 0 {
            self.failing_copies -= 1;
            return Err("no memory is left".to_string());
        }
        let named = self.checkpoints.len() as u64;
        self.checkpoints.insert(named, (header, copied, self.copy_size));
        Ok(named.to_le_bytes().into_iter().chain(std::iter::repeat(0)).take(self.copy_size).collect())
    }

    fn perform(&mut self, number: usize, out: ShardOutput) {
        let edge = &mut self.edges[number];
        match out {
            ShardOutput::Send { wire, frame } => self.sends(Party::Edge(number), wire.0, frame),
            ShardOutput::CloseWire { wire } => self.breaks(wire.0),
            ShardOutput::Dial { target } => self.dials(number, target),
            ShardOutput::WakeAt { mono_ns } => edge.wake_ns = Some(mono_ns),
            ShardOutput::Start { cell, .. } => {
                edge.cells.insert(cell, Teller::default());
                self.reaches(number, ShardInput::Started { cell, result: Ok(()) });
            }
            ShardOutput::Run(run) => {
                let cell = edge.cells.get_mut(&run.cell).expect("it was started");
                let ran = cell.run(run);
                self.reaches(number, ShardInput::Ran(ran));
            }
            ShardOutput::Remove { cell } => drop(edge.cells.remove(&cell)),
            ShardOutput::Prepare { cell, .. } => self.reaches(number, ShardInput::Prepared { cell }),
            ShardOutput::Copy { cell, .. } => {
                edge.copied = edge.cells[&cell].clone();
            }
            ShardOutput::Checkpoint { cell, header, .. } => {
                let (count, copied) = (header.number, edge.copied.clone());
                let result = self.seal(*header, copied);
                self.reaches(number, ShardInput::Checkpointed { cell, number: count, result });
            }
            ShardOutput::Restore { cell, .. } => drop(edge.restored.insert(cell)),
            ShardOutput::Advance { cell, .. } => {
                assert!(edge.restored.contains(&cell), "a cell that was not restored is advanced");
            }
            ShardOutput::Part { cell, bytes } => {
                let parts = self.parts.entry(cell).or_default();
                parts.extend_from_slice(&bytes);
                let named = u64::from_le_bytes(parts[..COPY_MIN].try_into().expect("a number"));
                let (header, copied, size) = self.checkpoints[&named].clone();
                if parts.len() < size {
                    return;
                }
                self.parts.remove(&cell);
                edge.cells.insert(cell, copied);
                self.reaches(number, ShardInput::Restored { cell, result: Ok(Box::new(header)) });
            }
            ShardOutput::Control(FromShard::Claim(claim)) => {
                if let Some(answer) = self.store.claim(claim) {
                    self.tell(number, ToShard::ClaimAnswer(answer));
                }
            }
            ShardOutput::Control(FromShard::Note(note)) => {
                self.warnings.extend((note.level == NoteLevel::Warning).then(|| note.text.clone()));
                self.notes.push(note.text);
            }
            ShardOutput::Control(FromShard::MoveAnswer(answer)) => {
                // One that begins is told of when it is over.
                assert!(answer.found, "the cell is on this edge");
                self.moves.extend(Some(answer.why).filter(|why| !why.is_empty()));
            }
            ShardOutput::Control(FromShard::MoveOver(over)) => {
                self.backups_moved += usize::from(over.backup && over.why.is_empty());
                self.moves.push(over.why);
            }
            ShardOutput::Control(FromShard::Rows(rows)) => self.rows.extend(rows.rows),
            ShardOutput::Control(FromShard::Drained(_)) => self.drained.push(number),
            ShardOutput::Control(FromShard::Slot(query)) => {
                let answer = self.store.slot(query);
                self.tell(number, ToShard::SlotAnswer(answer));
            }
            _ => {}
        }
    }

    fn dials(&mut self, from: usize, target: Target) {
        // Its list has all edges but itself.
        let to = usize::from(target.edge) + usize::from(usize::from(target.edge) >= from);
        let are_apart = self.feeds.apart.is_some_and(|apart| [from, to].iter().all(|it| apart.contains(it)));
        if are_apart || self.edges.get(to).is_none_or(|edge| edge.shard.is_none()) {
            let reason = "it is not reached".into();
            return self.reaches(from, ShardInput::DialFailed { target, reason });
        }
        let number = self.next_wire;
        self.next_wire += 1;
        self.wires.insert(number, [Party::Edge(from), Party::Edge(to)]);
        self.up(to, number, HostId([small(from) + 200; 16]));
        self.reaches(from, ShardInput::Dialled { wire: ShardWireId(number), target });
    }
}
