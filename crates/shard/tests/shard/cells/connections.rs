//! Shared cells that connect to a server, whose agent asks edges as clients' agents do.

use super::{
    FORMS, heard, is_one_history,
    world::{LONG_MS, Manner, World},
};
use marram_session::owner::BackupForm;
use marram_shard::api::ServerRowState;
use marram_wire::{
    frame::Code,
    limits::{CONNECT_ANSWER_NS, CONNECT_NS},
};

const CONNECT_MS: u64 = CONNECT_NS / 1_000_000;
/// The app's.
const LINGER_MS: u64 = 20_000;
const ANSWER_MS: u64 = CONNECT_ANSWER_NS / 1_000_000;

/// A cell with two clients that has connected to a server.
fn connected(form: BackupForm) -> (World, usize, usize) {
    let mut world = World::new(3, form);
    let (one, two) = (world.joins(0), world.joins(1));
    let server = world.serves(2);
    world.runs(LONG_MS);
    world.says(one, "connect");
    world.runs(100);
    (world, two, server)
}

#[test]
fn a_cell_connects_to_a_server_and_talks_with_it() {
    for form in FORMS {
        let (mut world, two, server) = connected(form);
        assert_eq!(world.connects_to(server), 1, "{:?}", world.notes);
        world.says(two, "question");
        world.runs(100);
        assert!(heard(&world, server, "question"));
        world.says(server, "answer");
        world.runs(100);
        assert!(heard(&world, two, "answer"));
        is_one_history(&world, &[0, two, server]);
        assert_eq!(world.cells_at(world.runs_at()[0]), [(String::new(), 2)], "a server is no client");
    }
}

#[test]
fn the_servers_of_a_cell_are_listed() {
    let (mut world, two, server) = connected(BackupForm::Log);
    let edge = world.runs_at()[0];
    let listed = |world: &mut World| {
        let rows = world.rows_at(edge);
        let cell = rows.into_iter().find_map(|row| row.cell).expect("it has the cell");
        assert_eq!((cell.clients, cell.listed.len(), cell.servers.len()), (2, 2, 1));
        let row = cell.servers.into_iter().next().expect("there is one");
        assert_eq!((&row.server[..], row.port, row.in_gate), ("store", 1 << 31, false));
        assert!(row.agent.is_some());
        (row.state, row.waiting_bytes > 0)
    };
    assert_eq!(listed(&mut world), (ServerRowState::Connected, false));
    world.cuts_off(server, true);
    world.says(two, "are you there?");
    world.runs(100);
    assert_eq!(listed(&mut world), (ServerRowState::Away, true));
}

#[test]
fn a_connection_outlives_the_edge_of_its_cell() {
    for form in FORMS {
        let (mut world, two, server) = connected(form);
        for death in 0..2 {
            let at = world.runs_at();
            world.says(two, "before");
            world.says(server, "so be it");
            world.kills(at[0]);
            world.says(two, "after");
            world.says(server, "and so on");
            world.runs(LONG_MS);
            for word in ["after", "so be it", "and so on"] {
                assert!(heard(&world, server, word), "death {death}: {word}: {:?}", world.heard(server));
                assert!(heard(&world, two, word), "death {death}: {word}: {:?}", world.heard(two));
            }
            is_one_history(&world, &[0, two, server]);
            world.runs(LONG_MS);
        }
        assert_eq!(world.connects_to(server), 1, "it is the same connection");
    }
}

#[test]
fn a_connection_that_was_asked_for_is_made_by_the_next_edge() {
    for (form, ms) in FORMS.into_iter().flat_map(|form| (0..6).map(move |ms| (form, ms))) {
        let mut world = World::new(3, form);
        let one = world.joins(0);
        let server = world.serves(1);
        world.runs(LONG_MS);
        let at = world.runs_at()[0];
        world.says(one, "connect");
        world.settles_some(10 * usize::try_from(ms).expect("small"));
        world.kills(at);
        world.runs(LONG_MS);
        assert!(heard(&world, one, "connect"), "{form:?}, {ms}");
        assert_eq!(world.connects_to(server), 1, "{form:?}, {ms}: {:?}", world.heard(one));
        world.says(server, "welcome");
        world.runs(100);
        assert!(heard(&world, one, "welcome"));
        is_one_history(&world, &[one, server]);
    }
}

#[test]
fn an_agent_that_comes_in_time_is_asked_and_none_is_waited_for_long() {
    let mut world = World::new(2, BackupForm::Log);
    let one = world.joins(0);
    world.runs(LONG_MS);
    world.says(one, "connect");
    world.runs(CONNECT_MS / 2);
    let server = world.serves(0);
    world.runs(CONNECT_MS / 2);
    assert_eq!(world.connects_to(server), 1);
    world.cuts_off(server, true);
    world.says(one, "connect");
    world.runs(CONNECT_MS + LONG_MS);
    assert!(heard(&world, one, "is gone"));
    let why = "the shared cell is not connected to the server `store`: it was not reached in 10 s: no agent that reaches it is connected to this edge";
    assert!(world.notes.iter().any(|note| note == why), "{:?}", world.notes);
    assert_eq!(world.connects_to(server), 1);
}

#[test]
fn agents_of_a_server_are_asked_in_turn_and_one_of_them_connects() {
    use Manner::{IsBusy, IsSilent, Takes};
    for manners in [[Takes, IsBusy, IsSilent], [IsBusy, Takes, IsSilent], [IsBusy, IsBusy, Takes]] {
        let mut world = World::new(2, BackupForm::Log);
        let one = world.joins(0);
        let servers = [0, 1, 0].map(|edge| world.serves(edge));
        servers.into_iter().zip(manners).for_each(|(server, manner)| world.behaves(server, manner));
        world.runs(LONG_MS);
        world.says(one, "connect");
        world.runs(100);
        let connects = servers.map(|server| world.connects_to(server));
        assert_eq!(connects, manners.map(|manner| usize::from(manner == Takes)), "{manners:?}");
    }
}

#[test]
fn connections_of_cells_are_shared_by_the_agents_of_a_server() {
    let mut world = World::new(2, BackupForm::Log);
    let one = world.joins(0);
    let servers = [0, 1].map(|edge| world.serves(edge));
    world.runs(LONG_MS);
    for _ in 0..4 {
        world.says(one, "connect");
        world.runs(100);
    }
    assert_eq!(servers.map(|server| world.connects_to(server)), [2, 2]);
}

#[test]
fn an_agent_that_answers_late_does_not_connect_beside_another_one() {
    for late_ms in [0, 100, LONG_MS] {
        let mut world = World::new(2, BackupForm::Log);
        let one = world.joins(0);
        let servers = [0, 1].map(|edge| world.serves(edge));
        world.behaves(servers[0], Manner::IsSilent);
        world.runs(LONG_MS);
        world.says(one, "connect");
        world.runs(ANSWER_MS - 100);
        assert_eq!(servers.map(|server| world.connects_to(server)), [0, 0], "it is waited for");
        world.runs(200 + late_ms);
        assert_eq!(world.reads_late(servers[0]), 1);
        world.runs(LONG_MS);
        assert_eq!(servers.map(|server| world.connects_to(server)), [0, 1], "{:?}", world.notes);
        world.says(one, "question");
        world.says(servers[1], "answer");
        world.runs(100);
        assert!(heard(&world, servers[1], "question") && heard(&world, one, "answer"));
        // The next edge asks the same agent.
        world.kills(world.runs_at()[0]);
        world.says(one, "after");
        world.runs(LONG_MS);
        assert!(heard(&world, servers[1], "after"));
        assert_eq!(servers.map(|server| world.connects_to(server)), [0, 1]);
        is_one_history(&world, &[one, servers[1]]);
    }
}

#[test]
fn a_connection_that_the_cell_cancels_is_not_made() {
    let mut world = World::new(2, BackupForm::Log);
    let one = world.joins(0);
    let server = world.serves(0);
    world.behaves(server, Manner::IsSilent);
    world.runs(LONG_MS);
    world.says(one, "connect");
    world.runs(100);
    world.says(one, "cancel");
    world.runs(100);
    assert!(heard(&world, one, "is gone"));
    world.reads_late(server);
    world.runs(CONNECT_MS);
    assert_eq!(world.connects_to(server), 0);
    world.says(one, "connect");
    world.runs(100);
    assert_eq!(world.connects_to(server), 1);
}

#[test]
fn a_server_that_does_not_answer_closes_the_port() {
    let mut world = World::new(2, BackupForm::Log);
    let one = world.joins(0);
    let server = world.serves(0);
    world.refuses(server);
    world.runs(LONG_MS);
    world.says(one, "connect");
    world.runs(1_000);
    assert_eq!(world.connects_to(server), 1);
    let lines: Vec<&str> =
        world.heard(one).into_iter().filter_map(|line| Some(line.split_once(' ')?.1)).collect();
    assert_eq!(lines[lines.len() - 3..], ["joins", "closes", "is gone"], "{lines:?}");
    assert!(world.notes.iter().any(|note| note.contains("it is refused")), "{:?}", world.notes);
}

#[test]
fn a_server_whose_agent_was_away_hears_what_was_said_meanwhile() {
    for form in FORMS {
        let (mut world, two, server) = connected(form);
        world.cuts_off(server, true);
        world.says(two, "are you there?");
        world.says(server, "yes");
        world.runs(1_000);
        if form == BackupForm::Log {
            let at = world.runs_at()[0];
            world.kills(at);
        }
        world.cuts_off(server, false);
        world.runs(LONG_MS);
        assert!(heard(&world, server, "are you there?") && heard(&world, two, "yes"));
        is_one_history(&world, &[0, two, server]);
    }
}

#[test]
fn a_server_that_was_away_for_too_long_is_told_that_it_has_left() {
    let (mut world, two, server) = connected(BackupForm::Log);
    world.cuts_off(server, true);
    // Its agent waits as long, and began later.
    world.runs(20_100);
    assert!(heard(&world, two, "is gone"));
    world.cuts_off(server, false);
    world.runs(LONG_MS);
    assert!(world.ended(server).is_some());
}

#[test]
fn a_server_that_stops_the_cell_costs_its_connection_alone() {
    let (mut world, two, server) = connected(BackupForm::Log);
    world.says(server, "poison");
    world.runs(LONG_MS);
    world.says(two, "on");
    world.runs(100);
    assert!(heard(&world, two, "is gone") && heard(&world, two, "on") && !heard(&world, two, "poison"));
    assert_eq!((world.ended(two), world.connects_to(server)), (None, 1));
}

/// A client has its cell connect to a server.
fn connects(world: &mut World, client: usize) -> usize {
    let server = world.serves(0);
    world.runs(LONG_MS);
    world.says(client, "connect");
    world.runs(100);
    server
}

/// The cell's last client leaves, when its server takes nothing of what the cell has said.
fn leaves_it_full(world: &mut World, client: usize, server: usize) {
    world.behaves(server, Manner::IsFull);
    world.says(client, "goodbye");
    world.closes(client);
}

#[test]
fn a_cell_that_is_over_waits_for_a_server_that_takes_nothing_only_for_the_linger_time() {
    let mut world = World::with_keys(2, BackupForm::Log, 1);
    let (one, two) = (world.joins_cell(0, "a"), world.joins_cell(1, "b"));
    let server = connects(&mut world, one);
    let at = world.runs_at()[0];
    let cells = |world: &World| world.cells_at(at).len();
    leaves_it_full(&mut world, one, server);
    world.runs(LINGER_MS - 100);
    assert_eq!(cells(&world), 2, "the server may take it yet");
    world.runs(200);
    assert_eq!(cells(&world), 1);
    let why = "its agent takes nothing of what the cell has sent, which has no client any more and ends";
    assert!(world.notes.iter().any(|note| note.contains(why)), "{:?}", world.notes);
    assert!(world.ended(server).is_some_and(|code| code != Code::Finished));
    world.says(two, "on");
    world.runs(100);
    assert!(heard(&world, two, "on"));
}

#[test]
fn the_cell_of_all_clients_goes_on_without_any_whatever_its_server_takes() {
    let mut world = World::new(2, BackupForm::Log);
    let one = world.joins(0);
    let server = connects(&mut world, one);
    leaves_it_full(&mut world, one, server);
    world.runs(2 * LINGER_MS);
    let two = world.joins(0);
    world.runs(100);
    world.says(two, "on");
    world.runs(100);
    assert!(heard(&world, two, "on"));
    assert_ne!(world.heard(two)[0], "1 joins", "it has joined the cell that was there");
}

#[test]
fn a_version_that_is_over_waits_for_a_server_that_takes_nothing_only_for_the_linger_time() {
    let mut world = World::new(2, BackupForm::Log);
    let one = world.joins(0);
    let server = connects(&mut world, one);
    (0..2).for_each(|edge| world.deploys_another(edge));
    leaves_it_full(&mut world, one, server);
    world.runs(LINGER_MS - 100);
    assert_eq!(world.runs_at().len(), 1);
    world.runs(200);
    assert_eq!(world.runs_at().len(), 0);
}

#[test]
fn cells_of_keys_have_servers_too() {
    let mut world = World::with_keys(3, BackupForm::Log, 4);
    let (one, two) = (world.joins_cell(0, "a"), world.joins_cell(1, "b"));
    let server = world.serves(2);
    world.runs(LONG_MS);
    for client in [one, two] {
        world.says(client, "connect");
        world.runs(100);
    }
    assert_eq!(world.connects_to(server), 2, "each has its own");
    for edge in world.runs_at() {
        if world.cells_at(edge).iter().any(|(key, _)| key == "b") {
            world.kills(edge);
            break;
        }
    }
    world.says(two, "after");
    world.runs(LONG_MS);
    world.says(server, "answer");
    world.runs(100);
    assert!(heard(&world, server, "after"), "{:?}", world.heard(server));
    assert!(heard(&world, two, "answer") && !heard(&world, one, "answer"));
}
