//! Games as a client sees them.

use super::*;
use marram_play::double::say;
use marram_sdk::double::Session;

fn open() -> Session<Battleship> {
    let mut session = Session::new();
    session.open_client();
    session
}

#[test]
fn a_game_goes_from_placing_to_shooting_to_its_end() {
    let mut session = open();
    assert_eq!(say(&mut session, "fire a1"), "error say start\n");
    let ships = "carrier (5), battleship (4), cruiser (3), submarine (3), destroyer (2)";
    assert_eq!(say(&mut session, "start 5"), format!("place {ships}\n"));
    assert_eq!(say(&mut session, "place carrier a1 down"), "placed carrier\n");
    assert_eq!(say(&mut session, "fire a1"), "error place your ships first\n");
    assert_eq!(say(&mut session, "place destroyer a5 across"), "error the carrier is there\n");
    assert_eq!(say(&mut session, "place all"), "ready\n");
    assert_eq!(say(&mut session, "place all"), "error all are placed\n");
    let first = say(&mut session, "fire A1");
    assert!(
        first.starts_with("a1 ") && first.lines().nth(1).is_some_and(|line| line.starts_with("edge ")),
        "{first}"
    );
    assert_eq!(say(&mut session, "fire a1"), "error a1 was shot at before\n");
    let mut said = String::new();
    for square in Square::all().skip(1) {
        said = say(&mut session, &format!("fire {square}"));
        if said.contains("over") {
            break;
        }
    }
    assert!(said.ends_with("shots\n") && said.contains("over the edge wins with "), "{said}");
    assert_eq!(say(&mut session, "fire j10"), "error the game is over: start another\n");
    assert!(say(&mut session, "start").starts_with("place "));
}

#[test]
fn whichever_knows_the_edges_fleet_wins() {
    let mut session = open();
    say(&mut session, "start 7\nplace all");
    let round = Round::new(7);
    let ships: Vec<_> = Square::all().filter(|square| round.edge.look(*square, true) == 'o').collect();
    let said: String = ships.iter().map(|square| say(&mut session, &format!("fire {square}"))).collect();
    let own =
        |what: &str| said.lines().filter(|line| !line.starts_with("edge ") && line.contains(what)).count();
    assert_eq!((own(" hit"), own(" sunk "), own(" miss")), (12, 5, 0), "{said}");
    assert!(said.ends_with("over you win with 17 shots\n"), "{said}");
}

#[test]
fn the_board_hides_what_is_not_known_until_the_end() {
    let mut session = open();
    say(&mut session, "start 7\nplace all");
    let before = say(&mut session, "board");
    let halves = |text: &str| -> (String, String) {
        text.lines().skip(2).map(|line| (line[..23].to_owned(), line[23..].to_owned())).unzip()
    };
    let (edge, client) = halves(&before);
    assert_eq!((edge.matches('.').count(), client.matches('o').count()), (100, 17), "{before}");
    let round = Round::new(7);
    for square in Square::all().filter(|square| round.edge.look(*square, true) == 'o') {
        say(&mut session, &format!("fire {square}"));
    }
    assert_eq!(halves(&say(&mut session, "board")).0.matches('#').count(), 17);
}

#[test]
fn the_edges_fleet_is_by_the_cells_own_chance() {
    let fleet = |random| {
        let mut session = open();
        session.seed(random);
        say(&mut session, "start");
        let round = session.cell().game().round.as_ref().unwrap();
        Square::all().map(|square| round.edge.look(square, true)).collect::<String>()
    };
    assert_eq!(fleet(1), fleet(1));
    assert_ne!(fleet(1), fleet(2));
}

#[test]
fn what_means_nothing_is_an_error() {
    let mut session = open();
    say(&mut session, "start 7");
    for (line, why) in [
        ("start x", "a seed is a number"),
        (
            "place raft a1 down",
            "a ship is one of carrier (5), battleship (4), cruiser (3), submarine (3), destroyer (2)",
        ),
        ("place cruiser z1 down", "a square is a column from a to j and a row from 1 to 10"),
        ("place cruiser a1 up", "a ship lies across or down"),
        ("sail", "say start, place, fire, board or quit"),
    ] {
        assert_eq!(say(&mut session, line), format!("error {why}\n"));
    }
    assert!(say(&mut session, &"board\n".repeat(1_000)).ends_with("error too much at once\nclosed"));
}
