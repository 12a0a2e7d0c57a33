//! The limits of sessions on a shard, per app and per tenant, and the refusal beyond them.
//!
//! One shard; the test writes the frames of its client's agent.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::support;
use marram_shard::{
    api::{
        App, Configure, Counter, FromShard, Grant, Kill, Label, NoteLevel, Now, ShardInput, ShardOutput,
        ShardWireId, Tag, ToShard,
    },
    shard::Shard,
};
use marram_wire::{
    frame::{Channel, Code, Frame, Greet, Hello, Superseded, Welcome},
    id::{Generation, HostId, ImageHash, SessionId},
    limits::{WIRE_VERSION, WIRE_VERSION_OLDEST},
    rights::Verified,
    seal::{DomainSecret, SessionKeys, proof},
};

const WIRE: ShardWireId = ShardWireId(1);

fn secret() -> DomainSecret {
    DomainSecret::from_material(b"the domain's")
}

fn session(number: u8) -> SessionId {
    SessionId([number; 16])
}

fn app(name: &str, tenant: &str, sessions_max: u32) -> App {
    App { tenant: tenant.into(), sessions_max, ..support::app(name) }
}

/// An agent's wire, verified with this host id.
fn up(wire: ShardWireId, host: u8) -> ShardInput {
    ShardInput::WireUp { wire, verified: Box::new(Verified::trusted(HostId([host; 16]))), address: None }
}

struct World {
    shard: Shard,
    challenge: [u8; 16],
    channels: Channel,
}

impl World {
    /// A shard with these apps, and the session limits that the operator grants to tenants.
    fn new(apps: &[App], grants: &[(&str, u32)]) -> Self {
        support::be_strict();
        let mut world = Self { shard: Shard::new(secret(), [2; 32]), challenge: [0; 16], channels: 0 };
        let grant = |(tenant, sessions_max): &(&str, u32)| Grant {
            tenant: (*tenant).into(),
            weight: 100,
            sessions_max: *sessions_max,
            priority: true,
        };
        let grants = grants.iter().map(grant).collect();
        world.tell(ToShard::Configure(Configure { grants, ..Configure::default() }));
        apps.iter().for_each(|app| drop(world.tell(ToShard::Deploy(app.clone()))));
        world.step(up(WIRE, 9));
        let greet =
            Greet { version_oldest: WIRE_VERSION_OLDEST, version_newest: WIRE_VERSION, servers: Vec::new() };
        let told = world.step(ShardInput::Frame { wire: WIRE, frame: greet.into() });
        let [ShardOutput::Send { frame: Frame::Welcome(Welcome { challenge, .. }), .. }, ..] = &told[..]
        else {
            panic!("{told:?}")
        };
        world.challenge = *challenge;
        world
    }

    fn step(&mut self, input: ShardInput) -> Vec<ShardOutput> {
        let mut out = Vec::new();
        self.shard.step(Now { mono_ns: 1_000_000_000, unix_ns: 5_000_000_000 }, input, &mut out);
        out
    }

    fn tell(&mut self, message: ToShard) -> Vec<ShardOutput> {
        self.step(ShardInput::Control(message))
    }

    /// Asks for a session: a new one, or one that continues here.
    fn ask(&mut self, number: u8, app: &App, fresh: bool) -> Vec<ShardOutput> {
        self.ask_after(number, app, fresh, Generation::default())
    }

    /// The same, from an end that has promised this generation.
    fn ask_after(&mut self, number: u8, app: &App, fresh: bool, promised: Generation) -> Vec<ShardOutput> {
        self.channels += 2;
        let session = session(number);
        let resume = SessionKeys::derive(&secret(), session).resume();
        let hello = Hello {
            channel: self.channels,
            session,
            server: false,
            app: app.name.clone(),
            fresh,
            promised,
            image: (!fresh).then_some(app.image),
            proof: (!fresh).then(|| proof(&resume, &self.challenge, session)),
            peer: None,
            origin: None,
            active: false,
            key: Default::default(),
        };
        self.step(ShardInput::Frame { wire: WIRE, frame: hello.into() })
    }

    /// The same; returns the refusal, if there is one.
    fn hello(&mut self, number: u8, app: &App, fresh: bool) -> Result<(), String> {
        let told = self.ask(number, app, fresh);
        for out in &told {
            if let ShardOutput::Send { frame: Frame::Reject(reject), .. } = out {
                assert_eq!(reject.code, Code::Busy, "another edge may have room");
                return Err(reject.reason.clone());
            }
        }
        assert!(
            told.iter().any(|out| matches!(out, ShardOutput::Send { frame: Frame::Promise(_), .. })),
            "{told:?}"
        );
        Ok(())
    }

    fn begin(&mut self, number: u8, app: &App) -> Result<(), String> {
        self.hello(number, app, true)
    }

    fn end(&mut self, number: u8) {
        self.tell(ToShard::Kill(Kill { tag: 0, session: session(number), reason: "enough".into() }));
    }

    fn counted<'a>(&mut self, name: &str, label: impl Into<Option<&'a Label>>) -> u64 {
        let label = label.into();
        let told = self.tell(ToShard::List(Tag { tag: 1 }));
        let counters = told.into_iter().find_map(|out| match out {
            ShardOutput::Control(FromShard::Counted(counted)) => Some(counted.counters),
            _ => None,
        });
        let of = |counter: &Counter| counter.name == name && counter.label.as_ref() == label;
        counters.unwrap().into_iter().find(of).map(|counter| counter.value).expect("it is counted")
    }
}

#[test]
fn an_app_takes_as_many_sessions_as_its_manifest_says_and_says_so_to_the_next() {
    let (web, mail) = (app("web", "acme", 2), app("mail", "acme", 0));
    let mut world = World::new(&[web.clone(), mail.clone()], &[]);
    assert_eq!((world.begin(1, &web), world.begin(2, &web)), (Ok(()), Ok(())));
    let why = world.begin(3, &web).unwrap_err();
    assert!(why.contains("`web`") && why.contains("quotas.sessions = 2"), "{why}");
    assert_eq!(world.begin(4, &mail), Ok(()), "other apps do not notice");
    let of = Label::app("web");
    assert_eq!(
        (world.counted("app_sessions", &of), world.counted("app_sessions_refused_total", &of)),
        (2, 1)
    );
    world.end(1);
    assert_eq!(world.counted("app_sessions", &of), 1);
    assert_eq!(world.begin(3, &web), Ok(()));
}

#[test]
fn another_version_of_an_app_counts_with_the_sessions_of_the_old_one() {
    let old = app("web", "acme", 1);
    let new = App { image: ImageHash([99; 32]), ..old.clone() };
    let mut world = World::new(std::slice::from_ref(&old), &[]);
    assert_eq!(world.begin(1, &old), Ok(()));
    world.tell(ToShard::Deploy(new.clone()));
    assert!(world.begin(2, &new).is_err());
}

#[test]
fn a_tenant_s_apps_share_its_sessions_and_another_tenant_has_its_own() {
    let (web, mail, other) = (app("web", "acme", 0), app("mail", "acme", 0), app("x", "other", 0));
    let mut world = World::new(&[web.clone(), mail.clone(), other.clone()], &[("acme", 2)]);
    assert_eq!((world.begin(1, &web), world.begin(2, &mail)), (Ok(()), Ok(())));
    for (number, app) in [(3, &web), (4, &mail)] {
        let why = world.begin(number, app).unwrap_err();
        assert!(why.contains("`acme`") && why.contains("tenant.sessions = 2"), "{why}");
    }
    assert_eq!(world.begin(5, &other), Ok(()));
    let of = Label::tenant("acme");
    let counted =
        (world.counted("tenant_sessions", &of), world.counted("tenant_sessions_refused_total", &of));
    assert_eq!(counted, (2, 2));
}

#[test]
fn a_session_that_was_let_in_somewhere_is_not_turned_away_when_it_has_to_move() {
    let web = app("web", "acme", 1);
    let mut world = World::new(std::slice::from_ref(&web), &[("acme", 1)]);
    assert_eq!(world.begin(1, &web), Ok(()));
    assert_eq!(world.hello(2, &web, false), Ok(()), "its edge died; it has the key to show for it");
    assert!(world.begin(3, &web).is_err(), "what is new waits until both are fewer");
    world.end(1);
    assert!(world.begin(3, &web).is_err(), "and one is still all that there may be");
    world.end(2);
    assert_eq!(world.begin(3, &web), Ok(()));
}

#[test]
fn sessions_of_a_full_shard_are_slowed_and_new_ones_refused() {
    let web = app("web", "acme", 0);
    let mut world = World::new(std::slice::from_ref(&web), &[]);
    // Not enough for the least share of a session, so one alone fills it.
    let told = world.tell(ToShard::Configure(Configure { memory_max: 50_000, ..Configure::default() }));
    assert_eq!(notes(&told).len(), 0);
    assert_eq!(world.begin(1, &web), Ok(()), "one session alone always fits");
    let told = world.ask(2, &web, true);
    let words = ["`limits.memory` of the edge", "1 sessions", "of 50000"];
    let refused = |out: &ShardOutput| {
        matches!(out, ShardOutput::Send { frame: Frame::Reject(reject), .. }
            if reject.code == Code::Busy && words.iter().all(|word| reject.reason.contains(word)))
    };
    assert!(told.iter().any(refused), "{told:?}");
    assert_eq!(world.hello(3, &web, false), Ok(()), "one that is recovered is never refused");
    assert_eq!(world.counted("memory_max_bytes", None), 50_000);
    assert_eq!(world.counted("sessions", None), 2, "and none is ended");
    let told = world.tell(ToShard::Configure(Configure { memory_max: 1 << 30, ..Configure::default() }));
    assert_eq!(notes(&told), [(NoteLevel::Info, "the shard has memory for new sessions again")]);
    assert_eq!(world.begin(2, &web), Ok(()));
}

/// The log lines.
fn notes(told: &[ShardOutput]) -> Vec<(NoteLevel, &str)> {
    let note = |out| match out {
        &ShardOutput::Control(FromShard::Note(ref note)) => Some((note.level, note.text.as_str())),
        _ => None,
    };
    told.iter().filter_map(note).collect()
}

#[test]
fn a_session_that_cannot_be_admitted_is_logged_once_by_one_shard_and_counted_until_it_can() {
    let web = app("web", "acme", 0);
    let mut world = World::new(&[], &[]);
    world.tell(ToShard::Configure(Configure { shard: 1, shards: 2, ..Configure::default() }));
    let (own, other) = (3, 4);
    assert_eq!(notes(&world.ask(other, &web, false)), [], "that is the other shard's");
    let told = world.ask(own, &web, false);
    let words = ["`keep.linger`", "`web`", "does not have", "`marram deploy`"];
    assert!(
        matches!(&notes(&told)[..], [(NoteLevel::Warning, text)] if words.iter().all(|word| text.contains(word))),
        "{told:?}"
    );
    assert_eq!(notes(&world.ask(own, &web, false)), [], "it was said");
    assert_eq!(world.counted("sessions_waiting", None), 1);
    world.tell(ToShard::Deploy(web.clone()));
    assert_eq!(world.hello(own, &web, false), Ok(()));
    assert_eq!(world.counted("sessions_waiting", None), 0);
}

#[test]
fn a_server_without_an_agent_is_named_with_the_servers_that_have_one() {
    let web = App { server: Some("origin".into()), ..app("web", "acme", 0) };
    let mut world = World::new(std::slice::from_ref(&web), &[]);
    let told = world.ask(1, &web, true);
    let text = notes(&told)[0].1;
    assert!(
        text.contains("`origin`") && text.contains("`timeouts.edge_wait`") && text.contains("no agent"),
        "{text}"
    );
    let greet = Greet {
        version_oldest: WIRE_VERSION_OLDEST,
        version_newest: WIRE_VERSION,
        servers: vec!["orgin".into(), "db".into()],
    };
    world.step(up(ShardWireId(2), 8));
    world.step(ShardInput::Frame { wire: ShardWireId(2), frame: greet.clone().into() });
    let told = world.ask(2, &web, true);
    assert!(notes(&told)[0].1.contains("reach `db`, `orgin`"), "{told:?}");
    assert_eq!(world.counted("server_wires", &Label::server("orgin")), 1);
    // Another agent for the same server is logged; the same agent over another wire is not.
    for (wire, host, news) in [(3, 8, 0), (4, 9, 1)] {
        let greet = Greet { servers: vec!["db".into()], ..greet.clone() };
        let mut told = world.step(up(ShardWireId(wire), host));
        told.extend(world.step(ShardInput::Frame { wire: ShardWireId(wire), frame: greet.into() }));
        let told = notes(&told);
        assert_eq!(told.len(), news, "{told:?}");
        assert!(told.iter().all(|(_, text)| text.contains("another agent already reaches `db`")), "{told:?}");
    }
}

#[test]
fn an_end_that_claims_the_last_generation_is_refused_and_harms_no_other() {
    let web = app("web", "acme", 0);
    for fresh in [true, false] {
        let mut world = World::new(core::slice::from_ref(&web), &[]);
        world.begin(1, &web).unwrap();
        let told = world.ask_after(2, &web, fresh, Generation { count: u64::MAX, opener: 1 });
        let refused = told.iter().any(
            |out| matches!(out, ShardOutput::Send { frame: Frame::Reject(reject), .. } if reject.code == Code::Protocol),
        );
        assert!(refused, "{told:?}");
        // An end that was asked for a promise cannot have promised this generation either.
        world.ask(3, &web, fresh);
        let promised = Generation { count: u64::MAX, opener: 1 };
        let superseded = Superseded { channel: world.channels, promised };
        let told = world.step(ShardInput::Frame { wire: WIRE, frame: superseded.into() });
        let ended = notes(&told).iter().any(|(_, text)| text.contains("no generation can follow"));
        assert!(ended, "{told:?}");
        world.begin(4, &web).unwrap();
    }
}
