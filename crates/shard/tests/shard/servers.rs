//! Which of several agents of a server is asked for the end of a new session.
//!
//! One shard; the test writes the frames of all agents.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::support;
use marram_shard::{
    api::{App, Configure, Now, Protect, ShardInput, ShardOutput, ShardWireId, ToShard},
    shard::Shard,
};
use marram_wire::{
    frame::{Channel, Code, Ended, Frame, Greet, Hello},
    id::{Generation, HostId, SessionId},
    limits::{WIRE_VERSION, WIRE_VERSION_OLDEST},
    rights::Verified,
    seal::DomainSecret,
};

const CLIENT: ShardWireId = ShardWireId(1);
/// Two agents of the server. The first one connects before the second, and has the larger id.
const A: ShardWireId = ShardWireId(2);
const B: ShardWireId = ShardWireId(3);

fn host(wire: ShardWireId) -> HostId {
    HostId([100 - u8::try_from(wire.0).unwrap(); 16])
}

struct World {
    shard: Shard,
    now_ms: u64,
    app: App,
    channels: Channel,
    sessions: u16,
}

impl World {
    /// With a client's agent and an app, but without agents of its server.
    fn of(app: App, configure: Configure) -> Self {
        support::be_strict();
        let shard = Shard::new(DomainSecret::from_material(b"the domain's"), [2; 32]);
        let mut world = Self { shard, now_ms: 1_000, app, channels: 0, sessions: 0 };
        world.step(ShardInput::Control(ToShard::Configure(configure)));
        world.step(ShardInput::Control(ToShard::Deploy(world.app.clone())));
        world.joins(CLIENT, &[]);
        world
    }

    fn new() -> Self {
        let app = App { server: Some("origin".into()), ..support::app("web") };
        Self::of(app, Configure::default())
    }

    fn step(&mut self, input: ShardInput) -> Vec<ShardOutput> {
        let mut out = Vec::new();
        let now = Now { mono_ns: self.now_ms * 1_000_000, unix_ns: 5_000_000_000 };
        self.shard.step(now, input, &mut out);
        out
    }

    fn frame(&mut self, wire: ShardWireId, frame: impl Into<Frame>) -> Vec<ShardOutput> {
        self.step(ShardInput::Frame { wire, frame: frame.into() })
    }

    /// An agent of these servers connects.
    fn joins(&mut self, wire: ShardWireId, servers: &[&str]) {
        let verified = Box::new(Verified::trusted(host(wire)));
        self.step(ShardInput::WireUp { wire, verified, address: None });
        let servers = servers.iter().map(|server| server.to_string()).collect();
        let greet = Greet { version_oldest: WIRE_VERSION_OLDEST, version_newest: WIRE_VERSION, servers };
        self.frame(wire, greet);
    }

    /// A session of the client that has begun nowhere, and whose other end is at this agent, if it names one. Returns which agent is
    /// asked for that end, and on which channel.
    fn asks(&mut self, number: u16, peer: Option<HostId>) -> (ShardWireId, Channel) {
        self.channels += 2;
        let [high, low] = number.to_be_bytes();
        let mut session = [7; 16];
        (session[0], session[1]) = (high, low);
        let hello = Hello {
            channel: self.channels,
            session: SessionId(session),
            server: false,
            app: self.app.name.clone(),
            fresh: true,
            promised: Generation::NONE,
            image: None,
            proof: None,
            peer,
            origin: None,
            active: false,
            key: Default::default(),
        };
        let told = self.frame(CLIENT, hello);
        let asked = told.iter().find_map(|out| match out {
            ShardOutput::Send { wire, frame: Frame::Promise(ask) } if *wire != CLIENT => {
                assert_eq!(ask.server, "origin");
                Some((*wire, ask.channel))
            }
            _ => None,
        });
        asked.unwrap_or_else(|| panic!("no agent was asked: {told:?}"))
    }

    /// One more session; returns which agent is asked.
    fn begins(&mut self) -> (ShardWireId, Channel) {
        self.sessions += 1;
        self.asks(self.sessions, None)
    }

    /// As many; returns how many of them are at either agent.
    fn begin(&mut self, count: usize) -> [usize; 2] {
        let asked: Vec<_> = (0..count).map(|_| self.begins().0).collect();
        [A, B].map(|agent| asked.iter().filter(|wire| **wire == agent).count())
    }

    /// An agent has no room for the session. Returns what the client is told.
    fn is_busy(&mut self, wire: ShardWireId, channel: Channel) -> Code {
        let told = self.frame(wire, Ended { channel, code: Code::Busy, reason: "no room".into() });
        let code = told.into_iter().find_map(|out| match out {
            ShardOutput::Send { wire: CLIENT, frame: Frame::Reject(reject) } => Some(reject.code),
            _ => None,
        });
        code.unwrap()
    }
}

#[test]
fn new_sessions_are_shared_by_the_agents_of_a_server() {
    let mut world = World::new();
    world.joins(A, &["origin"]);
    world.joins(B, &["other", "origin"]);
    assert_eq!(world.begins().0, A, "the older one, of two without sessions");
    assert_eq!(world.begin(99), [49, 50]);
}

#[test]
fn an_agent_that_comes_later_gets_sessions_until_it_has_as_many() {
    let mut world = World::new();
    world.joins(A, &["origin"]);
    assert_eq!(world.begin(20), [20, 0]);
    world.joins(B, &["origin"]);
    assert_eq!(world.begin(20), [0, 20]);
    assert_eq!(world.begin(20), [10, 10]);
    // What was at an agent that is gone is not counted when it is back.
    world.step(ShardInput::WireDown { wire: A });
    assert_eq!(world.begin(5), [0, 5]);
    world.joins(A, &["origin"]);
    assert_eq!(world.begin(35), [35, 0]);
}

#[test]
fn an_agent_without_room_is_left_alone_for_a_while() {
    let mut world = World::new();
    world.joins(A, &["origin"]);
    world.joins(B, &["origin"]);
    let (asked, channel) = world.begins();
    assert_eq!((asked, world.is_busy(A, channel)), (A, Code::Busy));
    // The same session asks again, as others do.
    assert_eq!(world.asks(world.sessions, None).0, B);
    assert_eq!(world.begin(99), [0, 99]);
    // One whose other end is there already is not led elsewhere.
    assert_eq!(world.asks(10_000, Some(host(A))).0, A);
    world.now_ms += 250;
    let (asked, channel) = world.begins();
    assert_eq!(asked, A, "it may have room again");
    world.is_busy(A, channel);
    world.now_ms += 499;
    assert_eq!(world.begin(5), [0, 5], "it has none, and is left alone for longer");
    world.now_ms += 1;
    assert_eq!(world.begin(20), [20, 0], "it has room, and the fewest sessions");
}

#[test]
fn an_agent_without_room_is_asked_where_there_is_no_other() {
    let mut world = World::new();
    world.joins(A, &["origin"]);
    for _ in 0..3 {
        let (asked, channel) = world.begins();
        assert_eq!((asked, world.is_busy(A, channel)), (A, Code::Busy));
    }
}

#[test]
fn a_protected_session_has_no_end_in_the_gate_of_its_edge_if_there_is_another_agent() {
    let configure = Configure { gate: Some(host(A)), ..Configure::default() };
    let app = App { server: Some("origin".into()), ..support::app("web") };
    for (protect, expected) in [(Protect::Endpoints, [0, 10]), (Protect::None, [5, 5])] {
        let mut world = World::of(App { protect, ..app.clone() }, configure.clone());
        world.joins(A, &["origin"]);
        world.joins(B, &["origin"]);
        assert_eq!(world.begin(10), expected, "{protect:?}");
    }
}
