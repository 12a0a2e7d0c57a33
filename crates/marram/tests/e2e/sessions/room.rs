//! The chat room: one cell, its clients in terminals and browsers. All see the same lines in one order; one that never reads, one
//! that floods and one that sends garbage cost only themselves; and the page that the room serves talks to `nc`.

use crate::support::{self, browser::Browser, chat::Client};
use marram_cluster::{AgentSide, TestCluster, free_address};
use std::{
    io::{Read, Write},
    net::SocketAddr,
};

/// With the name, less than a client may say at once.
const LINES: usize = 5;

/// An edge with the room, and an agent with a listener for terminals and one for browsers.
fn room(purpose: &'static str) -> (TestCluster, SocketAddr, SocketAddr) {
    let apps =
        |place: &_| Ok(vec![support::cells().manifest(place, "room", "room", "cell = \"shared\"\n")?]);
    let mut cluster = TestCluster::new(support::layout(purpose, |_| ()), apps).unwrap();
    cluster.start_edges("").unwrap();
    let [plain, web] = [(); 2].map(|()| free_address().unwrap());
    let listeners = format!(
        "[[listen]]\naddress = \"{plain}\"\napp = \"room\"\n\
         [[listen]]\naddress = \"{web}\"\napp = \"room\"\nprotocol = \"websocket\"\norigins = [\"http://{plain}\"]\n"
    );
    let edges = cluster.edge_addresses();
    cluster.start_agent_with(AgentSide::Client, &edges, &listeners).unwrap();
    (cluster, plain, web)
}

#[test]
fn terminals_and_browsers_see_the_same_lines_whatever_others_do() {
    let (_cluster, plain, web) = room("room");
    // Each on its own port, so the order in `here` is that of their connections.
    let ann = Client::terminal(plain).join("ann", "ann");
    let bob = Client::browser(web, "/", plain).join("bob", "ann, bob");
    // It never reads again.
    let _mute = Client::terminal(plain).join("mute", "ann, bob, mute");
    let flood = Client::terminal(plain).join("flood", "ann, bob, mute, flood");
    let cy = Client::browser(web, "/", plain).join("cy", "ann, bob, mute, flood, cy");

    let flooding = std::thread::spawn(move || {
        let Client::Terminal(mut stream) = flood else { panic!("it is one") };
        // The room closes the connection meanwhile.
        let _ = stream.get_mut().write_all(&b"\x1b[2J\xff\xfe\n".repeat(100_000));
        let mut told = Vec::new();
        let _ = stream.read_to_end(&mut told);
        String::from_utf8(told).unwrap()
    });
    let garbage = std::thread::spawn(move || {
        let Client::Terminal(mut stream) = Client::terminal(plain) else { panic!("it is one") };
        let mut word = 1_u32;
        let mut noise = || {
            word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            word.to_be_bytes()[0]
        };
        let bytes: Vec<u8> = (0..1 << 18).map(|_| noise()).collect();
        let _ = stream.get_mut().write_all(&bytes);
        let mut told = Vec::new();
        let _ = stream.read_to_end(&mut told);
        String::from_utf8(told).unwrap()
    });
    let talking = [(ann, "ann"), (bob, "bob"), (cy, "cy")].map(|(mut client, name)| {
        std::thread::spawn(move || {
            (0..LINES).for_each(|n| client.say(&format!("{name} {n}")));
            let said = client.said(3 * LINES);
            (client, said)
        })
    });
    let [(mut ann, heard), (bob, by_bob), (_cy, by_cy)] = talking.map(|talk| talk.join().unwrap());
    assert!(heard == by_bob && heard == by_cy, "{heard:?}\n{by_bob:?}\n{by_cy:?}");
    for name in ["ann", "bob", "cy"] {
        let its: Vec<_> = heard.iter().filter(|line| line.starts_with(&format!("{name}: "))).collect();
        assert_eq!(
            its,
            (0..LINES).map(|n| format!("{name}: {name} {n}")).collect::<Vec<_>>().iter().collect::<Vec<_>>()
        );
    }
    for told in [flooding.join().unwrap(), garbage.join().unwrap()] {
        assert!(told.contains("error that line"), "{told}");
        assert!(told.ends_with("; goodbye\n") && told.len() < 8 << 10, "{told}");
    }

    // Who comes now finds the same history, and a name that is taken.
    let mut late = Client::terminal(plain);
    late.say("/name Ann");
    assert_eq!(late.hear(), "error the name Ann is taken");
    late.say("/name dee");
    assert_eq!(late.said(3 * LINES), heard);
    let Client::Browser(mut bob, _) = bob else { panic!("it is one") };
    bob.send(0x88, &[3, 232]);
    late.hear_until("* bob has left");
    ann.say("/quit");
    ann.hear_until("* goodbye");
    assert_eq!(ann.hear(), "");
    late.hear_until("* ann has left");
}

#[test]
fn the_rooms_page_talks_to_a_terminal() {
    let Some(browser) = Browser::start(700, 500) else { return };
    let (_cluster, plain, web) = room("room-page");
    let mut ann = Client::terminal(plain).join("ann", "ann");
    ann.say("hello <b>there</b>");
    browser.open(&format!("http://{plain}/?gate=ws://{web}"));
    let say = |text: &str| {
        browser.run(&format!("input.value = {text:?}"));
        browser.click("button");
    };
    browser.wait("socket.readyState === 1");
    say("ann");
    browser.wait("log.innerText.includes('error the name ann is taken') && !name");
    say("bob");
    ann.hear_until("* bob has joined");
    browser.wait("here.innerText === 'here: ann, bob' && log.innerText.includes('hello <b>there</b>')");
    say("hi from a page");
    ann.hear_until("bob: hi from a page");
    ann.say("/name anna");
    browser.wait("here.innerText === 'here: anna, bob'");
    browser.show("room");
    ann.say("/quit");
    browser.wait("here.innerText === 'here: bob' && log.innerText.includes('anna has left')");
}
