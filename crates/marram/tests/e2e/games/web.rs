//! The games' pages in a real browser, which uses WebSocket to an agent. Snake is played twice, and in one game the edge dies:
//! every line and every pixel at the end must be equal. In battleship and scrabble the edge dies too, the game continues, and the
//! page shows each move. Pong tests keys and buttons.

use crate::support::{
    self,
    browser::{Browser, serve},
};
use marram_cluster::{AgentSide, TestCluster, free_address};
use serde_json::Value;
use std::path::Path;

const ARROW_DOWN: char = '\u{e015}';

/// A game in a browser.
struct Table {
    cluster: TestCluster,
    browser: Browser,
}

impl Table {
    /// Opens the game's page; `None` without a browser.
    fn new(purpose: &'static str, game: &str, page: &str) -> Option<Self> {
        let browser = Browser::start(1_000, 700)?;
        let layout = support::layout(purpose, |layout| layout.edges = 2);
        let mut cluster = TestCluster::new(layout, |place| {
            let words = "[[files]]\npath = \"/etc/words\"\nsource = \"words\"\n";
            let files = if game == "scrabble" { words } else { "" };
            place.write(&format!("apps/{game}/words"), "pa\nna\nzone\nha\nae\nyo\n")?;
            let manifest = format!("protect = \"endpoints\"\n{files}");
            Ok(vec![support::cells().manifest(place, game, game, &manifest)?])
        })
        .unwrap();
        cluster.start_edges("").unwrap();
        let site = serve(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cells/examples/play/web"));
        let (gate, edges) = (free_address().unwrap(), cluster.edge_addresses());
        let listener = format!(
            "[[listen]]\naddress = \"{gate}\"\napp = \"{game}\"\nprotocol = \"websocket\"\norigins = [\"http://{site}\"]\n"
        );
        cluster.start_agent_with(AgentSide::Client, &edges, &listener).unwrap();
        browser.open(&format!("http://{site}/{page}?game={game}&gate=ws://{gate}"));
        browser.wait("gate.told.length > 0");
        Some(Self { cluster, browser })
    }

    fn say(&self, lines: &str) {
        self.browser.run(&format!("gate.say({:?})", lines.trim_end()));
    }

    /// Kills the edge that runs the game.
    fn kill(&mut self) -> usize {
        let (owner, start) = (self.cluster.owner().unwrap(), self.cluster.logs.end());
        self.cluster.edges[owner].kill();
        start
    }

    /// Every line that the page received, and a picture of the field.
    fn end(&self) -> (Value, Value) {
        let told = self.browser.run("return gate.told");
        self.browser.run("draw()");
        (told, self.browser.run("return canvas.toDataURL()"))
    }
}

#[test]
fn snake_in_a_browser_goes_on_when_its_edge_dies() {
    let play = |purpose, is_killed: bool| {
        let mut table = Table::new(purpose, "snake", "arcade.html")?;
        // All lines at once, since the clock would not wait for a slow browser.
        table.say("start 8641\nat 87 down\nat 93 left\nat 255 down");
        table.browser.wait("state.tick >= 60");
        let killed = is_killed.then(|| table.kill());
        if let Some(start) = killed {
            table.cluster.wait_for_owner(start).unwrap();
        }
        table.browser.wait("state.over !== null");
        table.browser.show(purpose);
        Some(table.end())
    };
    let Some(calm) = play("web-snake", false) else { return };
    let killed = play("web-snake-killed", true).unwrap();
    assert_eq!(calm.0, killed.0);
    assert_eq!(calm.0.as_array().unwrap().last().unwrap(), "over length 7, hit the wall");
    assert!(calm.1.as_str().unwrap().len() > 1_000 && calm == killed, "the pictures differ");
}

#[test]
fn keys_and_buttons_play() {
    let Some(table) = Table::new("web-pong", "pong", "arcade.html") else { return };
    table.browser.click("#play");
    table.browser.wait("state.tick > 0 && document.getElementById('veil').hidden");
    table.browser.press(ARROW_DOWN);
    table.browser.wait("state.world.tops[0] === 16");
    table.browser.press('w');
    table.browser.wait("state.world.tops[0] < 10");
    table.browser.show("web-pong");
    assert_eq!(table.browser.run("return gate.told.filter(line => line.startsWith('error')).length"), 0);
}

#[test]
fn battleship_in_a_browser_is_shot_for_shot() {
    let Some(mut table) = Table::new("web-battleship", "battleship", "battleship.html") else { return };
    // The number of squares that were shot at, in one of the two seas.
    let shots =
        |sea: &str| format!("document.querySelectorAll('#{sea} .miss, #{sea} .hit, #{sea} .sunk').length");
    table.say("start 5");
    table.browser.wait("state.isOn && document.querySelectorAll('#yours .ship').length === 17");
    for (index, square) in ["a1", "e5", "j10", "c3"].into_iter().enumerate() {
        let killed = (index == 2).then(|| table.kill());
        table.browser.click(&format!("#edge [data-square={square}]"));
        table.browser.wait(&format!(
            "{} === {n} && {} === {n}",
            shots("edge"),
            shots("yours"),
            n = index + 1
        ));
        if let Some(start) = killed {
            table.cluster.wait_for_owner(start).unwrap();
        }
    }
    table.browser.show("web-battleship");
    assert_eq!(table.browser.run("return gate.told.filter(line => line.startsWith('error')).length"), 0);
}

#[test]
fn scrabble_in_a_browser_is_laid_by_clicks() {
    let Some(mut table) = Table::new("web-scrabble", "scrabble", "words.html") else { return };
    table.browser.run("begin()");
    table.say("start 180");
    table.browser.wait("document.querySelectorAll('#rack .tile').length === 7");
    let killed = table.kill();
    // The second click turns the word.
    table.browser.click("[data-square=h8]");
    table.browser.click("[data-square=h8]");
    table.browser.run("document.getElementById('word').value = 'pa'");
    table.browser.click("#move [name=play]");
    table.browser.wait("document.querySelectorAll('#board .tile').length >= 2");
    table.cluster.wait_for_owner(killed).unwrap();
    let letter = |square: &str| {
        let script = format!("return document.querySelector('[data-square={square}]').textContent[0]");
        table.browser.run(&script)
    };
    assert_eq!([letter("h8"), letter("h9")], ["P", "A"]);
    table.browser.show("web-scrabble");
    assert_eq!(table.browser.run("return gate.told.filter(line => line.startsWith('error')).length"), 0);
}
