//! Recordings of a shared cell: made from what its owner keeps, and played with its clients.

use crate::owner::{
    hall::Hall,
    teller::Teller,
    traps::{BEHIND, Behind, FALLS, Fall, hall, script},
};
use marram_session::{
    cell::CellId,
    owner::{BackupForm, Feed, RecordRequest},
    replay::{PlayError, Player, StepResult},
};
use marram_wire::{
    id::Port,
    recording::{RecordedMessage, Recording},
};

/// What the owner answers to an operator's request.
pub(crate) fn record(hall: &mut Hall) -> Result<Recording, String> {
    hall.recorded.clear();
    hall.step(|owner, now, out| owner.record(now, RecordRequest { tag: Some(1), redact: false }, out));
    let result = hall.recorded.pop_front().expect("an answer");
    if let Ok(made) = &result {
        assert_eq!(Recording::decode(&made.encode()).as_ref(), Ok(made), "it can be kept in a file");
        let redacted = made.clone().redacted(&[1; 32]);
        assert_eq!(Recording::decode(&redacted.encode()), Ok(redacted), "and so without what was said");
    }
    result
}

/// Plays a recording. Returns the cell at the end, and why it was stopped there.
pub(crate) fn play(recording: &Recording, mut cell: Teller) -> (Teller, Option<String>) {
    let mut player = Player::new(recording, CellId(99)).expect("it can be run");
    while let Some(next) = player.next_handler().expect("its parts fit together") {
        let ran = cell.run(&next.run);
        match player.ran(&ran).expect("it goes the same way") {
            StepResult::Stopped(reason) => return (cell, Some(reason)),
            StepResult::Handler | StepResult::Entry => {}
        }
    }
    (cell, None)
}

#[test]
fn the_cell_is_recorded_at_any_position_and_plays_to_the_same_state() {
    let mut from_checkpoints = 0;
    for behind in BEHIND {
        for fall in FALLS {
            let mut hall = hall(behind);
            for (number, step) in script(fall).into_iter().enumerate() {
                step(&mut hall);
                hall.settles();
                if number % 3 == 2 {
                    hall.says(0, "work");
                }
                let what = format!("{fall:?}, {behind:?}, step {number}");
                let recording = record(&mut hall).unwrap_or_else(|why| panic!("{what}: {why}"));
                from_checkpoints += usize::from(recording.header.is_some());
                let played = play(&recording, hall.cell_of(&recording));
                assert_eq!(played, (hall.cell().clone(), None), "{what}");
            }
        }
    }
    assert!(from_checkpoints > 50, "{from_checkpoints}");
}

#[test]
fn a_client_that_stops_the_cell_is_recorded_with_the_handler_that_it_stopped() {
    for behind in BEHIND {
        for fall in FALLS {
            let mut hall = hall(behind);
            hall.recorded.clear();
            for step in script(fall) {
                step(&mut hall);
                hall.settles();
            }
            let stops: Vec<_> = hall.recorded.drain(..).map(|made| made.expect("it fits together")).collect();
            // A cell that does what is forbidden was not stopped.
            assert_eq!(stops.len(), usize::from(fall != Fall::TooMuch), "{fall:?}, {behind:?}");
            for recording in stops {
                assert_eq!(Recording::decode(&recording.encode()).as_ref(), Ok(&recording));
                let (_, reason) = play(&recording, hall.cell_of(&recording));
                assert_eq!(reason.as_deref(), Some("it falls"), "{fall:?}, {behind:?}");
            }
        }
    }
}

#[test]
fn a_port_can_have_had_two_clients() {
    let mut hall = hall(Behind::Nothing);
    hall.joins("a");
    hall.joins("b");
    hall.says(0, "one");
    hall.closes(0);
    let next = hall.joins("c");
    hall.says(next, "two");
    assert_eq!(hall.port(next), Some(Port::CLIENT));
    let recording = record(&mut hall).expect("it is recorded");
    assert!(recording.about.shared && recording.header.is_none());
    let said: Vec<_> =
        recording.inputs.iter().map(|inputs| (inputs.port.0, inputs.messages.0.clone())).collect();
    let text = |text: &'static str| RecordedMessage::Payload(text.into());
    let first = vec![text("a"), text("one"), RecordedMessage::Close, text("c"), text("two")];
    assert_eq!(said, [(0, first), (2, vec![text("b")])]);
    assert_eq!(play(&recording, Teller::default()), (hall.cell().clone(), None));
}

#[test]
fn an_owner_that_has_just_taken_over_has_nothing_to_show() {
    let mut hall = Hall::new();
    hall.settles();
    hall.joins("a");
    hall.settles();
    hall.holds_after_promotion = true;
    hall.promotes(usize::MAX);
    let why = record(&mut hall).expect_err("its first checkpoint is not sealed");
    assert!(why.contains("its first checkpoint is on its way"), "{why}");
    hall.answers();
    assert!(record(&mut hall).is_ok());
}

#[test]
fn a_position_between_two_handlers_is_waited_for() {
    let mut hall = Hall::alone(BackupForm::Log);
    hall.gets_backup(Feed::Backup);
    hall.joins("a");
    hall.settles();
    hall.edge.holds_runs = true;
    hall.says(0, "one");
    hall.step(|owner, now, out| owner.record(now, RecordRequest { tag: Some(1), redact: false }, out));
    assert!(hall.recorded.is_empty(), "a handler runs");
    hall.answers();
    let recording = hall.recorded.pop_front().expect("it has run").expect("it is recorded");
    assert_eq!(play(&recording, hall.cell_of(&recording)), (hall.cell().clone(), None));
}

#[test]
fn a_file_whose_clients_do_not_fit_is_not_played() {
    let mut hall = hall(Behind::Nothing);
    hall.joins("a");
    hall.closes(0);
    let recording = record(&mut hall).expect("it is recorded");
    let mut other = recording.clone();
    other.inputs[0].messages.0.truncate(1);
    assert!(Recording::decode(&other.encode()).is_err());
    let mut player = Player::new(&other, CellId(1)).expect("its log can be read");
    let mut cell = Teller::default();
    let error = loop {
        match player.next_handler() {
            Ok(Some(next)) => _ = player.ran(&cell.run(&next.run)),
            Ok(None) => panic!("a message is missing"),
            Err(error) => break error,
        }
    };
    assert_eq!(error, PlayError::Inconsistent);
}
