//! The control, driven by shards and operators of the test.

use super::*;
use crate::api::{
    BackupForm, Counter, EDGE_CONNECTED, EpochSettings, Label, NoteLevel, Protect, TrafficCondition,
    WitnessMode,
};

fn app(name: &str, image: u8) -> App {
    App { image: ImageHash([image; 32]), ..crate::api::tests::app(name, 0) }
}

fn control() -> Control {
    control_with(false)
}

fn control_with(coordinator: bool) -> Control {
    let (sessions_max, recoveries_max, peers, record_stops, sabotage) = (0, 0, true, false, 0);
    let grants = Vec::new();
    Control::new(ControlConfig {
        edge: "e".into(),
        shards: 3,
        sessions_max,
        recoveries_max,
        replay_ns_max: 0,
        memory_max: 0,
        grants,
        peers,
        coordinator,
        record_stops,
        checkpoints_max: 1 << 29,
        dials: Vec::new(),
        learns: false,
        addresses: alloc::vec::Vec::new(),
        hand_over_ms: 0,
        settle_ms: 5_000,
        move_bytes_per_s: 0,
        heartbeat_ms: [50, 200],
        sabotage,
        policies: alloc::vec::Vec::new(),
        whole: false,
    })
}

fn step(control: &mut Control, input: ControlInput) -> Vec<ControlOutput> {
    let mut out = Vec::new();
    control.step(input, &mut out);
    out
}

#[test]
fn a_restarted_shard_receives_every_image_and_which_are_current() {
    let mut control = control();
    for (name, image) in [("a", 2), ("a", 1), ("gone", 3)] {
        step(
            &mut control,
            ControlInput::Request { tag: 0, request: ControlRequest::Deploy(app(name, image)) },
        );
    }
    step(&mut control, ControlInput::Request { tag: 0, request: ControlRequest::Undeploy("gone".into()) });
    let told: Vec<ToShard> = step(&mut control, ControlInput::ShardUp { shard: 0 })
        .into_iter()
        .filter_map(|out| match out {
            ControlOutput::ToShard { message: ToShard::Configure(_), .. } => None,
            ControlOutput::ToShard { message, .. } => Some(message),
            _ => None,
        })
        .collect();
    let (old, gone, current) = (app("a", 2), app("gone", 3), app("a", 1));
    assert_eq!(told, [ToShard::Know(old), ToShard::Know(gone), ToShard::Deploy(current)]);
}

#[test]
fn apps_of_one_image_keep_their_own_settings_in_a_shard_that_restarts() {
    let mut control = control();
    let slow = |image| App { linger_ms: 90_000, ..app("slow", image) };
    for app in [app("a", 1), slow(1), slow(2)] {
        step(&mut control, ControlInput::Request { tag: 0, request: ControlRequest::Deploy(app) });
    }
    let mut told = step(&mut control, ControlInput::ShardUp { shard: 0 });
    told.remove(0);
    let expected = [ToShard::Know(slow(1)), ToShard::Deploy(app("a", 1)), ToShard::Deploy(slow(2))];
    assert_eq!(told, expected.map(|message| ControlOutput::ToShard { shard: 0, message }));
}

fn version(name: &str, image: u8) -> AppVersion {
    app(name, image).version()
}

fn want(control: &mut Control, shard: u8, version: AppVersion) -> Vec<ControlOutput> {
    let mut out = step(control, ControlInput::FromShard { shard, message: FromShard::Want(version) });
    out.retain(|out| !matches!(out, ControlOutput::Log(..)));
    out
}

fn fetched(control: &mut Control, version: AppVersion, result: Result<App, &str>) -> Vec<(u8, ToShard)> {
    let fetched = ControlInput::Fetched { version, result: result.map_err(Into::into) };
    let told = step(control, fetched).into_iter();
    told.filter_map(|out| match out {
        ControlOutput::ToShard { shard, message } => Some((shard, message)),
        _ => None,
    })
    .collect()
}

#[test]
fn an_image_that_several_shards_need_is_fetched_once_and_announced_to_all() {
    let mut control = control();
    (0..3).for_each(|shard| drop(step(&mut control, ControlInput::ShardUp { shard })));
    let fetch = ControlOutput::Fetch(version("a", 7));
    assert_eq!(want(&mut control, 0, version("a", 7)), core::slice::from_ref(&fetch));
    assert_eq!(want(&mut control, 1, version("a", 7)), []);
    let missing = ToShard::Missing(Missing { version: version("a", 7), why: "none".into() });
    let told = fetched(&mut control, version("a", 7), Err("none"));
    assert_eq!(told, [(0, missing.clone()), (1, missing)], "the third did not ask");
    assert_eq!(want(&mut control, 1, version("a", 7)), [fetch]);
    let know = ToShard::Know(app("a", 7));
    let told = fetched(&mut control, version("a", 7), Ok(app("a", 7)));
    assert_eq!(told, [0, 1, 2].map(|shard| (shard, know.clone())));
    let told = want(&mut control, 2, version("a", 7));
    assert_eq!(told, [ControlOutput::ToShard { shard: 2, message: know }], "it asked before it was told");
    // New sessions do not begin with it, and peers that ask for it get it.
    let request = ControlRequest::OfImage(ImageHash([7; 32]));
    let answers = step(&mut control, ControlInput::Request { tag: 1, request });
    assert_eq!(
        answers,
        [ControlOutput::Answer { tag: 1, answer: ControlAnswer::Apps(alloc::vec![app("a", 7)]) }]
    );
    let answers = step(&mut control, ControlInput::Request { tag: 2, request: ControlRequest::Apps });
    assert_eq!(answers, [ControlOutput::Answer { tag: 2, answer: ControlAnswer::Apps(Vec::new()) }]);
}

#[test]
fn apps_of_one_image_are_fetched_each_for_itself() {
    let mut control = control();
    step(&mut control, ControlInput::ShardUp { shard: 0 });
    let slow = App { linger_ms: 90_000, ..app("slow", 7) };
    let deploy = ControlRequest::Deploy(app("a", 7));
    step(&mut control, ControlInput::Request { tag: 0, request: deploy });
    // The image is here, and the settings of this app are not.
    assert_eq!(want(&mut control, 0, slow.version()), [ControlOutput::Fetch(slow.version())]);
    assert_eq!(want(&mut control, 0, version("b", 7)), [ControlOutput::Fetch(version("b", 7))]);
    assert_eq!(fetched(&mut control, slow.version(), Ok(slow.clone())), [(0, ToShard::Know(slow.clone()))]);
    let missing = ToShard::Missing(Missing { version: version("b", 7), why: "none".into() });
    assert_eq!(fetched(&mut control, version("b", 7), Err("none")), [(0, missing)]);
    let request = ControlRequest::OfImage(ImageHash([7; 32]));
    let answer = ControlAnswer::Apps(alloc::vec![app("a", 7), slow]);
    assert_eq!(
        step(&mut control, ControlInput::Request { tag: 1, request }),
        [ControlOutput::Answer { tag: 1, answer }]
    );
}

#[test]
fn an_app_with_a_witness_needs_a_coordinator() {
    for coordinator in [false, true] {
        let mut control = control();
        control.config.coordinator = coordinator;
        let app = App { witness: WitnessMode::Strict, ..app("a", 1) };
        let out = step(&mut control, ControlInput::Request { tag: 1, request: ControlRequest::Deploy(app) });
        let refused = |answer: &ControlAnswer| matches!(answer, ControlAnswer::Refused(why) if why.contains("[coordinator]"));
        let done = |answer: &ControlAnswer| {
            if coordinator { *answer == ControlAnswer::Done } else { refused(answer) }
        };
        assert!(matches!(&out[..], [ControlOutput::Answer { tag: 1, answer }] if done(answer)), "{out:?}");
    }
}

#[test]
fn only_so_many_images_are_fetched_at_a_time() {
    let mut control = control();
    step(&mut control, ControlInput::ShardUp { shard: 0 });
    let fetches = |out: Vec<ControlOutput>| matches!(out[..], [ControlOutput::Fetch(_)]);
    for image in 1..=u8::try_from(FETCHES_MAX).unwrap() {
        assert!(fetches(want(&mut control, 0, version("a", image))));
    }
    let out = want(&mut control, 0, version("a", 99));
    assert!(matches!(&out[..], [ControlOutput::ToShard { message: ToShard::Missing(_), .. }]), "{out:?}");
    fetched(&mut control, version("a", 1), Err("none"));
    assert!(fetches(want(&mut control, 0, version("a", 99))));
}

#[test]
fn a_recording_is_its_shard_s_answer_and_the_others_say_that_they_lack_the_session() {
    let recorded = |found, file: Option<&str>| {
        FromShard::Recorded(crate::api::Recorded {
            tag: 7,
            found,
            file: file.map(Into::into),
            why: "its end is away".into(),
        })
    };
    let not_here = || recorded(false, None);
    let (made, refused) = (recorded(true, Some("a.marram")), recorded(true, None));
    for (second, answer) in [
        (not_here(), ControlAnswer::NotFound),
        (made, ControlAnswer::Recorded("a.marram".into())),
        (refused, ControlAnswer::Refused("its end is away".into())),
    ] {
        let mut control = control();
        (0..2).for_each(|shard| drop(step(&mut control, ControlInput::ShardUp { shard })));
        let request = ControlRequest::Record(SessionId([1; 16]), true);
        let asked = step(&mut control, ControlInput::Request { tag: 7, request });
        let record = crate::api::Record { tag: 7, session: SessionId([1; 16]), redact: true };
        let message = ToShard::Record(record);
        assert_eq!(asked, [0, 1].map(|shard| ControlOutput::ToShard { shard, message: message.clone() }));
        assert_eq!(step(&mut control, ControlInput::FromShard { shard: 0, message: not_here() }), []);
        let answered = step(&mut control, ControlInput::FromShard { shard: 1, message: second });
        assert_eq!(answered, [ControlOutput::Answer { tag: 7, answer }]);
    }
}

#[test]
fn a_question_is_answered_when_every_shard_has_or_died() {
    let mut control = control();
    step(&mut control, ControlInput::ShardUp { shard: 0 });
    step(&mut control, ControlInput::ShardUp { shard: 1 });
    step(&mut control, ControlInput::Request { tag: 7, request: ControlRequest::Counters });
    let counted = |counter: &Counter, last| {
        let counters = alloc::vec![counter.clone()];
        FromShard::Counted(crate::api::Counted { tag: 7, counters, last })
    };
    let (first, second) = (Counter::gauge("sessions", 3), Counter::gauge("cells", 4));
    for (counter, last) in [(&first, false), (&second, true)] {
        assert_eq!(
            step(&mut control, ControlInput::FromShard { shard: 0, message: counted(counter, last) }),
            []
        );
    }
    let answered = step(&mut control, ControlInput::ShardDown { shard: 1 });
    let figures = answered.iter().find_map(|out| match out {
        ControlOutput::Answer { tag: 7, answer: ControlAnswer::Counters(figures) } => Some(figures),
        _ => None,
    });
    let figures = figures.expect("no one is waited for any more");
    for counter in [first, second] {
        assert!(figures.contains(&MetricSample { shard: Some(0), counter }), "{figures:?}");
    }
}

#[test]
fn a_backup_needs_a_coordinator() {
    let apps = [(Protect::Epoch, false, true), (Protect::Epoch, true, true), (Protect::Warm, false, false)];
    let shared = [(Protect::Warm, true, true), (Protect::Hot, true, true), (Protect::None, true, false)];
    for ((protect, shared, has_backup), coordinator) in
        apps.into_iter().chain(shared).flat_map(|it| [(it, false), (it, true)])
    {
        let app = App {
            protect,
            shared,
            epoch: has_backup.then_some(EpochSettings {
                every_us: 1_000,
                alone_after_ms: 0,
                form: BackupForm::Log,
            }),
            ..app("a", 1)
        };
        let request = ControlRequest::Deploy(app);
        let out = step(&mut control_with(coordinator), ControlInput::Request { tag: 0, request });
        let refused = out.iter().find_map(|out| match out {
            ControlOutput::Answer { answer: ControlAnswer::Refused(why), .. } => Some(why.as_str()),
            _ => None,
        });
        let is_refused = has_backup && !coordinator;
        assert_eq!(refused.is_some(), is_refused, "{protect:?}, {shared}");
        let says = |why: &str| why.contains("[coordinator]") && why.contains(protect.written());
        assert!(refused.is_none_or(says), "{refused:?}");
    }
}

#[test]
fn a_policy_for_an_app_that_has_no_epochs_is_reported() {
    for (named, protect, is_reported) in [
        (Some("a"), Protect::Endpoints, true),
        (Some("a"), Protect::Epoch, false),
        (Some("b"), Protect::Endpoints, false),
        (None, Protect::Endpoints, false),
    ] {
        let mut control = control_with(true);
        control.policies = PolicyLists::new(alloc::vec![ReplicationPolicy {
            name: "calls".into(),
            app: named.map(Into::into),
            ..ReplicationPolicy::default()
        }]);
        let request = ControlRequest::Deploy(App { protect, ..app("a", 1) });
        let out = step(&mut control, ControlInput::Request { tag: 0, request });
        let says = |out: &ControlOutput| matches!(out, ControlOutput::Log(_, text) if text.contains("calls"));
        assert_eq!(out.iter().any(says), is_reported, "{named:?}, {protect:?}: {out:?}");
    }
}

#[test]
fn a_policy_that_asks_for_what_a_shared_cell_cannot_have_is_reported() {
    let (none, traffic) =
        (TrafficCondition::default(), TrafficCondition { bytes_min: Some(1), ..TrafficCondition::default() });
    for (shared, traffic, runs_ahead, field) in [
        (true, traffic, false, Some("`min_rate`")),
        (false, traffic, false, None),
        (true, none, true, Some("`waits = false`")),
        (false, none, true, None),
        (true, none, false, None),
    ] {
        let mut control = control_with(true);
        control.policies = PolicyLists::new(alloc::vec![ReplicationPolicy {
            name: "bulk".into(),
            app: Some("a".into()),
            traffic,
            runs_ahead,
            ..ReplicationPolicy::default()
        }]);
        let request = ControlRequest::Deploy(App { protect: Protect::Epoch, shared, ..app("a", 1) });
        let out = step(&mut control, ControlInput::Request { tag: 0, request });
        let warnings: Vec<&String> = out
            .iter()
            .filter_map(|out| match out {
                ControlOutput::Log(NoteLevel::Warning, text) => Some(text),
                _ => None,
            })
            .collect();
        assert_eq!(warnings.len(), usize::from(field.is_some()), "{shared}: {out:?}");
        assert!(field.is_none_or(|field| warnings[0].contains(field)), "{shared}: {warnings:?}");
    }
}

#[test]
fn a_listing_names_the_targets_to_which_the_edge_is_not_connected() {
    let targets = |names: &[&str]| names.iter().map(|name| (*name).into()).collect();
    for (listed, connected, said) in [
        (targets(&["x", "y"]), &["x", "y"][..], None),
        (targets(&["e", "x"]), &["x"], None),
        (
            targets(&["e"]),
            &["x"],
            Some(("`calls`", "cannot be the backup of its own sessions: the ring decides. Name")),
        ),
        (targets(&["e", "x"]), &[], Some(("`x`", "Correct the name, or let the configuration of that edge"))),
        (targets(&["x", "y"]), &["y"], Some(("`x`", "the next one"))),
        (targets(&["x", "y"]), &["z"], Some(("`x`, `y`", "the ring"))),
        (targets(&[]), &[], None),
    ] {
        let mut control = control();
        step(&mut control, ControlInput::ShardUp { shard: 0 });
        control.policies = PolicyLists::new(alloc::vec![ReplicationPolicy {
            name: "calls".into(),
            targets: listed,
            ..ReplicationPolicy::default()
        }]);
        step(&mut control, ControlInput::Request { tag: 5, request: ControlRequest::Policies });
        let of = |edge: &&str| Counter::gauge(EDGE_CONNECTED, 1).of(Label::edge(edge));
        let counted =
            crate::api::Counted { tag: 5, counters: connected.iter().map(of).collect(), last: true };
        let out =
            step(&mut control, ControlInput::FromShard { shard: 0, message: FromShard::Counted(counted) });
        let notes = out.iter().find_map(|out| match out {
            ControlOutput::Answer { answer: ControlAnswer::Policies(report), .. } => Some(&report.notes),
            _ => None,
        });
        let notes = notes.expect("an answer");
        assert_eq!(notes.len(), usize::from(said.is_some()), "{connected:?}: {notes:?}");
        assert!(
            said.is_none_or(|(edges, who)| notes[0].contains(edges) && notes[0].contains(who)),
            "{notes:?}"
        );
    }
}

/// What the shards are told of policies, and the answer.
fn changed(control: &mut Control, request: ControlRequest) -> (Vec<Vec<String>>, Option<ControlAnswer>) {
    let (mut told, mut answer) = (Vec::new(), None);
    let mut out = step(control, ControlInput::Request { tag: 5, request });
    if out.iter().any(|out| matches!(out, ControlOutput::ToShard { message: ToShard::List(_), .. })) {
        let counted = crate::api::Counted { tag: 5, counters: Vec::new(), last: true };
        let message = FromShard::Counted(counted);
        out.extend(step(control, ControlInput::FromShard { shard: 0, message }));
    }
    for out in out {
        match out {
            ControlOutput::ToShard { message: ToShard::Policies(list), .. } => {
                told.push(list.policies.into_iter().map(|policy| policy.name).collect());
            }
            ControlOutput::Answer { answer: given, .. } => answer = Some(given),
            _ => {}
        }
    }
    (told, answer)
}

#[test]
fn shards_are_told_of_policies_that_change_and_of_no_others() {
    let policy = |name: &str| ReplicationPolicy { name: name.into(), ..ReplicationPolicy::default() };
    let set = |names: &[&str]| PolicyChange::Set(names.iter().map(|name| policy(name)).collect());
    let change = |change, dry_run| ControlRequest::ChangePolicies { change, dry_run };
    let mut control = control();
    step(&mut control, ControlInput::ShardUp { shard: 0 });
    let (told, answer) = changed(&mut control, change(set(&["a", "b"]), true));
    assert_eq!(told, [[""; 0]; 0], "it would be changed");
    let Some(ControlAnswer::Policies(report)) = answer else { panic!("{answer:?}") };
    assert_eq!((report.differences.len(), report.origin), (2, PolicyOrigin::Configuration));
    let (told, answer) = changed(&mut control, change(set(&["a", "b"]), false));
    assert_eq!(told, [["a", "b"]]);
    let Some(ControlAnswer::Policies(report)) = answer else { panic!("{answer:?}") };
    assert_eq!((report.policies.len(), report.origin), (2, PolicyOrigin::Operator { revision: 1 }));
    // The domain's are kept until this edge has none of its own.
    let domain = |revision, names: &[&str]| {
        let policies = names.iter().map(|name| policy(name)).collect();
        ControlRequest::DomainPolicies(Some(DomainPolicies { revision, policies }))
    };
    assert_eq!(changed(&mut control, domain(3, &["d"])), (Vec::new(), Some(ControlAnswer::Done)));
    let (told, answer) = changed(&mut control, change(PolicyChange::Remove("x".into()), false));
    assert!(told.is_empty() && matches!(answer, Some(ControlAnswer::Refused(_))), "{answer:?}");
    assert_eq!(changed(&mut control, change(PolicyChange::Remove("a".into()), false)).0, [["b"]]);
    assert_eq!(changed(&mut control, change(PolicyChange::Reset, false)).0, [["d"]]);
    // One that starts later gets those in force.
    let out = step(&mut control, ControlInput::ShardUp { shard: 1 });
    let configured = out.iter().find_map(|out| match out {
        ControlOutput::ToShard { shard: 1, message: ToShard::Configure(configure) } => {
            Some(&configure.policies)
        }
        _ => None,
    });
    assert_eq!(configured, Some(&alloc::vec![policy("d")]));
    step(&mut control, ControlInput::ShardDown { shard: 1 });
    assert_eq!(changed(&mut control, domain(4, &["d"])).0, [[""; 0]; 0], "it is the same list");
    assert_eq!(changed(&mut control, ControlRequest::DomainPolicies(None)).0, [[""; 0]]);
}

#[test]
fn questions_about_slots_go_to_the_coordinator_and_the_answers_back() {
    use crate::api::{SlotAnswer, SlotQuery};
    use crate::coordinator::{Ask, AskAnswer, SlotHeld, SlotName, SlotRecord};

    let mut control = control();
    let (slot, record) = (SlotName([3; 16]), SlotRecord { incarnation: [4; 16], group: [5; 16] });
    let held = SlotHeld { record: SlotRecord { incarnation: [6; 16], ..record.clone() }, holder: None };
    let away = || "it is full".to_string();
    for (take, from, answered, (won, there, why)) in [
        (None, None, AskAnswer::Slot(None), (false, None, None)),
        (None, None, AskAnswer::Slot(Some(held.clone())), (false, Some(held.clone()), None)),
        (Some(record.clone()), None, AskAnswer::Won, (true, None, None)),
        (Some(record.clone()), Some(held.record.clone()), AskAnswer::Won, (true, None, None)),
        (None, Some(held.record.clone()), AskAnswer::Won, (true, None, None)),
        (Some(record.clone()), None, AskAnswer::Away(away()), (false, None, Some(away()))),
        (Some(record), None, AskAnswer::Refused(away()), (false, None, Some(away()))),
    ] {
        let query = SlotQuery { slot, take: take.clone(), from: from.clone() };
        let message = FromShard::decode(FromShard::Slot(query.clone()).to_bytes()).expect("a message");
        let asked = step(&mut control, ControlInput::FromShard { shard: 1, message });
        assert_eq!(asked, [ControlOutput::AskSlot { shard: 1, query: query.clone() }]);
        assert_eq!(query.clone().ask(), Ask::Slot { name: slot, take: take.clone(), from: from.clone() });
        let answer = SlotAnswer::of(query, answered);
        assert_eq!(answer, SlotAnswer { slot, take, from, won, held: there, away: why });
        let told = step(&mut control, ControlInput::SlotAnswer { shard: 1, answer: answer.clone() });
        assert_eq!(told, [ControlOutput::ToShard { shard: 1, message: ToShard::SlotAnswer(answer.clone()) }]);
        let message = ToShard::SlotAnswer(answer);
        assert_eq!(ToShard::decode(message.to_bytes()), Ok(message));
    }
}

fn request(control: &mut Control, tag: u64, request: ControlRequest) -> Vec<ControlOutput> {
    step(control, ControlInput::Request { tag, request })
}

fn from_shard(control: &mut Control, shard: u8, message: FromShard) -> Vec<ControlOutput> {
    step(control, ControlInput::FromShard { shard, message })
}

#[test]
fn an_edge_whose_drain_is_cancelled_counts_nothing_that_shards_say_of_it() {
    let mut control = control();
    let refused = request(&mut control, 1, ControlRequest::CancelDrain);
    assert!(
        matches!(&refused[..], [ControlOutput::Answer { tag: 1, answer: ControlAnswer::Refused(why) }] if why.contains("does not drain")),
        "{refused:?}"
    );
    (0..2).for_each(|shard| drop(step(&mut control, ControlInput::ShardUp { shard })));
    let drain = |tag| ToShard::Drain(Tag { tag });
    let told = request(&mut control, 2, ControlRequest::Drain);
    let again = request(&mut control, 2, ControlRequest::Drain);
    assert_eq!(told, again, "the same drain");
    assert!(told.contains(&ControlOutput::ToShard { shard: 1, message: drain(1) }), "{told:?}");
    assert_eq!(from_shard(&mut control, 0, FromShard::Drained(Tag { tag: 1 })), []);

    let asked = request(&mut control, 3, ControlRequest::CancelDrain);
    let cancel = ToShard::CancelDrain(Tag { tag: 3 });
    assert_eq!(asked, [0, 1].map(|shard| ControlOutput::ToShard { shard, message: cancel.clone() }));
    // What crosses with that, and a new drain.
    assert_eq!(from_shard(&mut control, 1, FromShard::Drained(Tag { tag: 1 })), []);
    let told = request(&mut control, 4, ControlRequest::Drain);
    assert!(told.contains(&ControlOutput::ToShard { shard: 0, message: drain(2) }), "{told:?}");
    assert_eq!(from_shard(&mut control, 1, FromShard::Drained(Tag { tag: 1 })), []);

    let cancelled =
        |stay, moves| FromShard::DrainCancelled(DrainCancelled { tag: 3, stay, moves, handed_over: 1 });
    assert_eq!(from_shard(&mut control, 0, cancelled(2, 1)), []);
    let answer = from_shard(&mut control, 1, cancelled(3, 3));
    let all = ControlAnswer::DrainCancelled(DrainCancelled { tag: 3, stay: 5, moves: 4, handed_over: 2 });
    assert_eq!(answer, [ControlOutput::Answer { tag: 3, answer: all }]);
    assert_eq!(from_shard(&mut control, 1, FromShard::Drained(Tag { tag: 2 })), []);
    assert_eq!(from_shard(&mut control, 0, FromShard::Drained(Tag { tag: 2 })), [ControlOutput::Drained]);
}

#[test]
fn a_policy_for_an_app_that_is_not_deployed_is_noted_also_before_it_is_set() {
    let policy = |app: &str| ReplicationPolicy {
        name: "calls".into(),
        app: Some(app.into()),
        every_us: Some(1_000),
        ..ReplicationPolicy::default()
    };
    for with_shard in [false, true] {
        let mut control = control_with(true);
        if with_shard {
            step(&mut control, ControlInput::ShardUp { shard: 0 });
        }
        let epoch = EpochSettings { every_us: 1_000, alone_after_ms: 3_000, form: BackupForm::Log };
        let app = App { protect: Protect::Epoch, epoch: Some(epoch), ..app("relay", 1) };
        step(&mut control, ControlInput::Request { tag: 1, request: ControlRequest::Deploy(app) });
        let mut notes = |change, dry_run| {
            let request = ControlRequest::ChangePolicies { change, dry_run };
            match changed(&mut control, request).1 {
                Some(ControlAnswer::Policies(report)) => report.notes,
                other => panic!("{other:?}"),
            }
        };
        let (typo, right) = (alloc::vec![policy("realy")], alloc::vec![policy("relay")]);
        let said = ["policy `calls`: no app `realy` is deployed here; did you mean `relay`?"];
        assert_eq!(notes(PolicyChange::Set(typo.clone()), true), said);
        assert_eq!(notes(PolicyChange::Domain(Some(typo.clone())), true), said);
        assert_eq!(notes(PolicyChange::Set(right.clone()), true), [""; 0]);
        assert_eq!(notes(PolicyChange::Set(typo), false), said);
        // What is planned counts, and not what is in force.
        assert_eq!(notes(PolicyChange::Set(right.clone()), true), [""; 0]);
        assert_eq!(notes(PolicyChange::Set(right), false), [""; 0]);
    }
}
