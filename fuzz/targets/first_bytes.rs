//! The first bytes of a connection, as routes read them: a decision does not change when more bytes arrive, and a route never
//! waits for more bytes than it can hold.
#![no_main]

use libfuzzer_sys::fuzz_target;
use marram_session::agent::routes::{
    Arrival, Decision, HELD_MAX, RouteAction, RouteProtocol, RouteRule, RouteTable, ServerName, Sni,
    server_name,
};

fn rule(name: &str, sni: Option<&str>, first_bytes: Option<&[u8]>) -> RouteRule {
    RouteRule {
        name: name.into(),
        priority: 0,
        listener: None,
        client: None,
        client_port: None,
        protocol: None,
        sni: sni.and_then(ServerName::parse),
        first_bytes: first_bytes.map(<[u8]>::to_vec),
        action: RouteAction::App(name.into()),
        key: (name == "text").then(|| "first-bytes/9".parse().expect("it is a source")),
    }
}

fuzz_target!(|data: &[u8]| {
    let mut table = RouteTable::new(vec![
        rule("text", None, Some(b"SSH-")),
        rule("both", Some("*.example.org"), Some(&[22, 3])),
        rule("named", Some("a"), None),
    ])
    .expect("the rules are right");
    let key = "sni".parse().expect("it is a source");
    let arrival = Arrival {
        listener: "l",
        local: ([127, 0, 0, 1], 1).into(),
        client: ([127, 0, 0, 1], 2).into(),
        protocol: RouteProtocol::Tcp,
        key: Some(&key),
    };
    let whole = server_name(data);
    let decided = format!("{:?}", table.decide(&arrival, data, false));
    // Trying every split of a long input would take too long.
    for upto in (0..data.len()).step_by(1 + data.len() / 64) {
        let first = &data[..upto];
        let name = server_name(first);
        assert!(name == Sni::More || name == whole, "{name:?} became {whole:?}");
        let early = table.decide(&arrival, first, false);
        assert!(early == Decision::More || format!("{early:?}") == decided);
    }
    // Records of one byte each have heads of five.
    assert!(data.len() <= 6 * HELD_MAX || whole != Sni::More, "waits for more than can be");
    assert_ne!(table.decide(&arrival, data, true), Decision::More);
});
