//! One cell for each key that clients come with: each key's clients have one history and no other's, whichever edges are killed; the
//! chat room has a room for each path; mistakes with keys are answered with what to do.

use super::{
    guests::{Guest, finish},
    hall::epochs,
    lost::give_up,
    world::{Seen, World, layout},
};
use crate::support::{
    self,
    chat::Client,
    marram,
    stream::until,
    websocket::{Raw, request},
};
use marram_cluster::{AgentSide, free_address};
use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(60);
/// Pieces that every guest must have heard of before and after each fault.
const SOME: u64 = 5;
/// The key of all clients of a listener of its own.
const LOBBY: &str = "lobby";

/// An app with keys, protected so.
fn keyed(protection: &str) -> String {
    format!("cell = \"shared\"\nkey = \"required\"\n{protection}")
}

/// A listener's table.
fn listen(at: SocketAddr, app: &str, rest: &str) -> String {
    format!("[[listen]]\naddress = \"{at}\"\napp = \"{app}\"\n{rest}\n")
}

fn addresses<const N: usize>() -> [SocketAddr; N] {
    [(); N].map(|()| free_address().unwrap())
}

/// Edges with halls, and agents on two hosts with two listeners each: for clients of [`LOBBY`], and for those that say their keys
/// first, of four bytes.
struct Halls {
    world: World,
    agents: [[SocketAddr; 2]; 2],
    guests: BTreeMap<&'static str, Vec<Guest>>,
    joined: u64,
}

impl Halls {
    fn new(purpose: &'static str, edges: usize, rest: &str) -> Self {
        let mut world = World::with_app(layout(purpose, edges, support::UNSUSPECTING), edges, ("hall", rest));
        let agents = [addresses(), addresses()];
        let lobbies = agents.map(|[lobby, _]| listen(lobby, "hall", &format!("key = \"name/{LOBBY}\"")));
        // At one of them a rule leads to the app, and has the key.
        let firsts = [
            listen(agents[0][1], "hall", "key = \"first-bytes/4\""),
            listen(agents[1][1], "none", "name = \"first\"")
                + "[[route]]\nname = \"keys\"\nlistener = \"first\"\napp = \"hall\"\nkey = \"first-bytes/4\"\n",
        ];
        let tables = [0, 1].map(|agent| lobbies[agent].clone() + &firsts[agent]);
        let edges = world.cluster.edge_addresses();
        world.cluster.start_agent_with(AgentSide::Client, &edges, &tables[0]).unwrap();
        // An agent of servers takes clients, too.
        let second = format!("{}[servers]\nnone = \"127.0.0.1:9\"\n", tables[1]);
        world.cluster.start_agent_with(AgentSide::Server, &edges, &second).unwrap();
        Self { world, agents, guests: BTreeMap::new(), joined: 0 }
    }

    /// One more guest with this key, at one of the hosts and the other in turn.
    fn join(&mut self, key: &'static str) {
        let guests = self.guests.entry(key).or_default();
        let [lobby, first] = self.agents[guests.len() % 2];
        guests.push(match key {
            LOBBY => Guest::start(lobby, self.joined),
            _ => Guest::start_with(first, self.joined, key.as_bytes()),
        });
        self.joined += 1;
    }

    /// Waits until all guests have heard of more that they said.
    fn hear(&self) {
        let why =
            || format!("{:?}\n{}", self.world.seen_by(&self.world.all()), self.world.cluster.logs.tail(400));
        self.guests.values().flatten().for_each(|guest| guest.hear(SOME, why));
    }

    /// The cells by their keys, once they are those of the guests and all have backups.
    fn backed(&self) -> BTreeMap<String, Seen> {
        let cells = self.world.backed(self.guests.len()).into_values();
        let cells: BTreeMap<String, Seen> =
            cells.map(|cell| (cell.key.clone().expect("it has a key"), cell)).collect();
        assert!(cells.keys().eq(self.guests.keys()), "{cells:?}");
        cells
    }

    /// Ends the guests of a key, who have heard one history.
    fn leave(&mut self, key: &str) {
        finish(self.guests.remove(key).unwrap());
    }

    fn finish(self) {
        assert_eq!(self.world.lost(0), 0, "no session ended");
        self.guests.into_values().for_each(finish);
    }
}

/// Clients of four keys; these edges are killed, one after the other, and started again. A guest more comes each time.
fn killed(purpose: &'static str, edges: &[usize], protection: &str) {
    let mut halls = Halls::new(purpose, 3, &keyed(protection));
    for key in [LOBBY, "aaaa", "bbbb", "cccc", LOBBY, "aaaa", "bbbb", "cccc", "aaaa"] {
        halls.join(key);
    }
    for edge in edges {
        halls.hear();
        let before = halls.backed();
        halls.world.cluster.edges[*edge].kill();
        halls.join(LOBBY);
        halls.hear();
        let after = halls.backed();
        for (key, was) in before {
            let expected = if was.owner == *edge { was.backup } else { Some(was.owner) };
            assert_eq!(Some(after[&key].owner), expected, "{key} after the death of {edge}");
        }
        halls.world.restart(*edge);
    }
    halls.hear();
    halls.finish();
}

#[test]
fn each_key_has_one_history_whichever_edge_is_killed() {
    killed("keys-kills", &[0, 1, 2], &epochs("every = \"1ms\""));
}

#[test]
fn each_key_has_one_history_with_a_standby() {
    killed("keys-standby", &[0], "protect = \"standby\"\nstandby = \"hot\"\n");
}

#[test]
fn the_cells_of_a_slot_move_together() {
    let mut halls = Halls::new("keys-moves", 3, &format!("slots = 1\n{}", keyed(&epochs("every = \"1ms\""))));
    for key in [LOBBY, "aaaa", "bbbb", LOBBY, "aaaa", "bbbb"] {
        halls.join(key);
    }
    for stops in [false, true] {
        halls.hear();
        let (cells, rows) = (halls.backed(), halls.world.rows(halls.backed()[LOBBY].owner));
        let Seen { owner, backup, .. } = cells[LOBBY];
        assert!(cells.values().all(|cell| (cell.owner, cell.backup) == (owner, backup)), "{cells:?}");
        let backup = backup.unwrap();
        if stops {
            let edge = &mut halls.world.cluster.edges[owner];
            edge.terminate();
            edge.process().unwrap().wait().unwrap();
            edge.kill();
        } else {
            let cell = rows.iter().find(|row| row["key"] == "aaaa").expect("it is in the list");
            let to = halls.world.name(backup);
            halls.world.marram(owner, &["move", cell["session"].as_str().unwrap(), "--to", &to]);
        }
        halls.hear();
        assert!(halls.backed().values().all(|cell| cell.owner == backup), "{:?}", halls.backed());
    }
    halls.finish();
}

#[test]
fn clients_of_a_gate_have_keys() {
    const GATE: usize = 2;
    let mut halls = Halls::new("keys-gate", 3, &keyed(&epochs("every = \"1ms\"")));
    halls.join("aaaa");
    halls.join("bbbb");
    halls.world.cluster.edges[GATE].kill();
    let edges: Vec<String> = halls.world.cluster.edge_addresses().iter().map(SocketAddr::to_string).collect();
    let gate = free_address().unwrap();
    let tables = format!(
        "gate = [{{ listen = \"{gate}\", app = \"hall\", key = \"first-bytes/4\" }}]\ngates = {{ edges = {edges:?} }}"
    );
    halls.world.restart_with(GATE, &tables);
    for (key, guests) in &mut halls.guests {
        guests.push(Guest::start_with(gate, 100, key.as_bytes()));
    }
    halls.hear();
    let owner = halls.backed()["aaaa"].owner;
    if owner != GATE {
        halls.world.cluster.edges[owner].kill();
        halls.hear();
    }
    halls.finish();
}

#[test]
fn operators_see_keys_and_a_cell_ends_with_its_last_client() {
    let mut halls =
        Halls::new("keys-operators", 2, &format!("slots = 1\n{}", keyed(&epochs("every = \"1ms\""))));
    for key in ["aaaa", "aaaa", LOBBY] {
        halls.join(key);
    }
    halls.hear();
    let owner = halls.backed()[LOBBY].owner;
    let listed = halls.world.marram(owner, &["ps"]);
    assert!(["KEY", "CLIENTS", "aaaa", LOBBY].iter().all(|word| listed.contains(word)), "{listed}");
    let row_of = |halls: &Halls, key: &str| halls.world.rows(owner).into_iter().find(|row| row["key"] == key);
    let row = row_of(&halls, "aaaa").expect("it is in the list");
    assert_eq!((&row["cell"], &row["clients"], &row["slot"]), (&"shared".into(), &2.into(), &0.into()));
    let shown = halls.world.marram(owner, &["inspect", row["session"].as_str().unwrap()]);
    let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(lines.contains(&vec!["key", "aaaa"]) && lines.contains(&vec!["slot", "0"]), "{shown}");
    let slots = halls.world.marram(owner, &["coordinator", "cells"]);
    assert!(slots.contains("SLOT") && slots.contains(&halls.world.name(owner)), "{slots}");

    // Both are in one slot, which is given up as a whole, and by its number.
    let give_up = |slot: &[&str]| {
        let edge = format!("http://{}", halls.world.cluster.edges[owner].admin());
        let output =
            marram().args(["coordinator", "give-up", "hall", "--edge", &edge]).args(slot).output().unwrap();
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(give_up(&[]).contains("`--slot`"));
    assert!(give_up(&["--slot", "0"]).contains(&halls.world.name(1 - owner)));

    halls.leave("aaaa");
    until(|| row_of(&halls, "aaaa").is_none().then_some(()), || format!("{:?}", halls.world.rows(owner)));
    // The next one with that key is in another cell.
    halls.join("aaaa");
    halls.hear();
    let again = row_of(&halls, "aaaa").expect("it is in the list");
    assert_ne!(again["session"], row["session"]);
    halls.finish();
}

#[test]
fn a_slot_whose_edges_do_not_come_back_is_given_up_with_all_of_its_cells() {
    let rest = format!("slots = 1\n{}", keyed(&epochs("every = \"1ms\"")));
    let mut halls = Halls::new("keys-given-up", 3, &rest);
    for key in ["aaaa", "bbbb", "aaaa", "bbbb"] {
        halls.join(key);
    }
    halls.hear();
    let Seen { owner, backup, .. } = halls.backed()["aaaa"];
    let both = [owner, backup.unwrap()];
    let other = (0..3).find(|edge| !both.contains(edge)).unwrap();
    let names = both.map(|edge| halls.world.name(edge));
    // Their power fails: neither of them notices that the other one is gone.
    both.iter().rev().for_each(|edge| halls.world.cluster.edges[*edge].stop());
    both.iter().for_each(|edge| halls.world.cluster.edges[*edge].kill());
    let given_up = give_up(&halls.world, other, Some(0), &names);
    assert!(given_up.status.success(), "{given_up:?}");
    let text = String::from_utf8_lossy(&given_up.stdout);
    assert!(text.contains("are lost") && names.iter().all(|name| text.contains(name)), "{text}");
    for guest in core::mem::take(&mut halls.guests).into_values().flatten() {
        until(|| guest.error(), || halls.world.cluster.logs.tail(400));
    }
    // Each key begins again, at the edge that has given the slot up.
    for key in ["aaaa", "bbbb", "aaaa"] {
        halls.join(key);
    }
    halls.hear();
    let cells = halls.world.marram(other, &["coordinator", "cells"]);
    assert!(cells.contains(&halls.world.name(other)) && cells.contains("there"), "{cells}");
    let again = give_up(&halls.world, other, Some(0), &names);
    assert!(String::from_utf8_lossy(&again.stdout).contains("nothing to give up"), "{again:?}");

    // The former edges come back, and have nothing to say.
    halls.world.cluster.power_on(&both).unwrap();
    halls.join("bbbb");
    halls.hear();
    assert!(halls.backed().values().all(|cell| cell.owner == other), "{:?}", halls.backed());
    halls.guests.into_values().for_each(finish);
}

#[test]
fn the_chat_room_has_a_room_for_each_path() {
    let rest = keyed(&epochs("every = \"1ms\""));
    let mut world = World::with_app(layout("keys-rooms", 3, support::UNSUSPECTING), 3, ("room", &rest));
    let [plain, web] = addresses();
    // A terminal is in the room of a path, too.
    let tables = listen(plain, "room", "key = \"name//chess\"")
        + &listen(
            web,
            "room",
            &format!("protocol = \"websocket\"\nkey = \"path\"\norigins = [\"http://{plain}\"]"),
        );
    let edges = world.cluster.edge_addresses();
    world.cluster.start_agent_with(AgentSide::Client, &edges, &tables).unwrap();
    let mut ann = Client::browser(web, "/chess", plain).join("ann", "ann");
    let mut bob = Client::browser(web, "/chess?as=bob", plain).join("bob", "ann, bob");
    let mut cy = Client::terminal(plain).join("cy", "ann, bob, cy");
    // Another room: the name is free there.
    let mut other = Client::browser(web, "/go", plain).join("ann", "ann");
    let both = world.backed(2);
    let keys: Vec<_> = both.values().map(|cell| cell.key.clone().unwrap()).collect();
    assert!(keys.contains(&"/chess".into()) && keys.contains(&"/go".into()), "{keys:?}");
    let Seen { owner, .. } = both.into_values().find(|cell| cell.key.as_deref() == Some("/chess")).unwrap();
    for (turn, line) in ["before", "after"].iter().enumerate() {
        ann.say(line);
        other.say(&format!("alone {line}"));
        for client in [&mut ann, &mut bob, &mut cy] {
            assert_eq!(client.said(1), [format!("ann: {line}")]);
        }
        assert_eq!(other.said(1), [format!("ann: alone {line}")]);
        if turn == 0 {
            world.cluster.edges[owner].kill();
        }
    }
    // The page is served by HTTP, at each path.
    let mut page = TcpStream::connect(plain).unwrap();
    page.set_read_timeout(Some(PATIENCE)).unwrap();
    page.write_all(b"GET /chess HTTP/1.1\r\nHost: room\r\n\r\n").unwrap();
    let mut answer = String::new();
    page.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("</html>\n"), "{answer}");
}

#[test]
fn mistakes_with_keys_are_answered_with_what_to_do() {
    let keys = keyed(&epochs("every = \"1ms\""));
    let apps = [
        ("hall", &*keys),
        ("room", "cell = \"shared\"\nprotect = \"epoch\"\n"),
        ("counter", "protect = \"endpoints\"\n"),
    ];
    let mut world = World::with_apps(layout("keys-mistakes", 1, support::UNSUSPECTING), 1, &apps);
    let [without, room, counter, first, web] = addresses();
    let tables = [
        listen(without, "hall", ""),
        listen(room, "room", "key = \"client\""),
        listen(counter, "counter", "key = \"name/x\""),
        listen(first, "hall", "key = \"first-bytes/8\""),
        listen(web, "hall", "protocol = \"websocket\"\nkey = \"path\""),
    ];
    let edges = world.cluster.edge_addresses();
    world.cluster.start_agent_with(AgentSide::Client, &edges, &tables.concat()).unwrap();
    for (address, words) in [
        (without, "its clients come without one; write `key` at the listener"),
        (room, "app `room` has no keys; remove `key` at the listener"),
        (counter, "app `counter` has no keys; remove `key` at the listener"),
        (first, "the client has sent 3 bytes; its key is the first 8"),
    ] {
        let start = world.cluster.logs.end();
        let mut client = TcpStream::connect(address).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        // Those whose key needs no bytes may be refused before.
        let _ = client.write_all(b"abc").and_then(|()| client.shutdown(Shutdown::Write));
        assert!(!matches!(client.read(&mut [0]), Ok(1)), "{words}");
        let said = world.cluster.logs.wait(start, PATIENCE, |event| event.fields.to_string().contains(words));
        assert!(said.is_some(), "{words}\n{}", world.cluster.logs.tail(40));
    }
    let mut client = Raw::new(web);
    let head = client.ask(&request(&format!("/{}", "a".repeat(256)), ""));
    let said = String::from_utf8(client.rest()).unwrap();
    assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
    assert!(said.contains("has 257 bytes; the maximum is 256. It is the path"), "{said}");
}
