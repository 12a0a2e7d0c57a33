//! Routes, compared with a reference that checks rules one by one, and a hundred thousand conversations.

use super::{
    super::ConnectionId,
    flows::{Expired, Flows},
    *,
};
use alloc::{collections::BTreeMap, vec};
use core::{
    net::{IpAddr, Ipv4Addr},
    ops::RangeInclusive,
};
use marram_wire::random::Random;

fn rule(name: &str, action: RouteAction) -> RouteRule {
    RouteRule {
        name: name.into(),
        priority: 0,
        listener: None,
        client: None,
        client_port: None,
        protocol: None,
        sni: None,
        first_bytes: None,
        action,
        key: None,
    }
}

fn app(name: &str) -> RouteRule {
    rule(name, RouteAction::App(name.into()))
}

const ARRIVAL: Arrival<'static> = Arrival {
    listener: "web",
    local: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 80),
    client: SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 1, 2, 3)), 4_000),
    protocol: RouteProtocol::Tcp,
    key: None,
};

/// A decision as a word.
fn decide(rules: &[RouteRule], arrival: &Arrival<'_>, first: &[u8], last: bool) -> String {
    let mut table = RouteTable::new(rules.to_vec()).expect("the rules are right");
    match table.decide(arrival, first, last) {
        Decision::App(app, key) => named(app, key),
        Decision::Refuse(rule, reason) => format!("{rule} refuses: {reason}"),
        Decision::Default(key) => named("default", key),
        Decision::NoKey(why) => format!("no key: {why}"),
        Decision::More => "more".into(),
    }
}

fn named(app: &str, key: Option<CellKey>) -> String {
    key.map_or_else(|| app.to_string(), |key| format!("{app} {key}"))
}

/// A TLS record that holds part of a handshake.
fn record(part: &[u8]) -> Vec<u8> {
    let size = u16::try_from(part.len()).unwrap().to_be_bytes();
    [&[22, 3, 1][..], &size, part].concat()
}

fn list(bytes: &[u8]) -> Vec<u8> {
    [&u16::try_from(bytes.len()).unwrap().to_be_bytes()[..], bytes].concat()
}

/// The handshake message of a client that asks for `name`, or for no server.
fn hello(name: Option<&str>) -> Vec<u8> {
    let name = name.map(|name| {
        let entry = [&[0][..], &list(name.as_bytes())].concat();
        [&[0, 0][..], &list(&list(&entry))].concat()
    });
    let other = [&[0, 43][..], &list(&[2, 3, 4])].concat();
    let extensions = list(&[other.clone(), name.unwrap_or_default(), other].concat());
    let body = [&[3, 3][..], &[7; 32], &[1, 9], &list(&[0x13, 1]), &[1, 0], &extensions].concat();
    let size = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[1][..], &size[1..], &body].concat()
}

#[test]
fn each_field_of_a_rule_is_asked() {
    let v6 = Arrival { client: "[2001:db8::9]:4000".parse().unwrap(), ..ARRIVAL };
    let mapped = Arrival { client: "[::ffff:10.1.9.9]:4000".parse().unwrap(), ..ARRIVAL };
    let udp = Arrival { protocol: RouteProtocol::Udp, ..ARRIVAL };
    let cases = [
        (app("x"), vec![(ARRIVAL, true), (udp, true)]),
        (RouteRule { listener: Some("web".into()), ..app("x") }, vec![(ARRIVAL, true)]),
        (RouteRule { listener: Some("127.0.0.1:80".into()), ..app("x") }, vec![(ARRIVAL, true)]),
        (RouteRule { listener: Some("127.0.0.1:81".into()), ..app("x") }, vec![(ARRIVAL, false)]),
        (RouteRule { listener: Some("mail".into()), ..app("x") }, vec![(ARRIVAL, false)]),
        (
            RouteRule { client: Some("10.1.0.0/16".parse().unwrap()), ..app("x") },
            vec![(ARRIVAL, true), (v6, false), (mapped, true)],
        ),
        (RouteRule { client: Some("10.1.2.4".parse().unwrap()), ..app("x") }, vec![(ARRIVAL, false)]),
        (
            RouteRule { client: Some("0.0.0.0/0".parse().unwrap()), ..app("x") },
            vec![(ARRIVAL, true), (v6, false)],
        ),
        (
            RouteRule { client: Some("2001:db8::/32".parse().unwrap()), ..app("x") },
            vec![(ARRIVAL, false), (v6, true)],
        ),
        (RouteRule { client_port: Some(4_000..=4_000), ..app("x") }, vec![(ARRIVAL, true)]),
        (RouteRule { client_port: Some(0..=3_999), ..app("x") }, vec![(ARRIVAL, false)]),
        (RouteRule { protocol: Some(RouteProtocol::Udp), ..app("x") }, vec![(ARRIVAL, false), (udp, true)]),
    ];
    for (rule, arrivals) in cases {
        for (arrival, matches) in arrivals {
            let expected = if matches { "x" } else { "default" };
            assert_eq!(
                decide(core::slice::from_ref(&rule), &arrival, &[], false),
                expected,
                "{rule:?} {arrival:?}"
            );
        }
    }
}

#[test]
fn the_highest_priority_is_asked_first_and_of_one_priority_what_was_written_first() {
    let at = |name, priority| RouteRule { priority, ..app(name) };
    let refuse = RouteRule { priority: 2, ..rule("wall", RouteAction::Refuse("not from there".into())) };
    assert_eq!(decide(&[at("a", 0), at("b", 0)], &ARRIVAL, &[], false), "a");
    assert_eq!(decide(&[at("a", -1), at("b", 0), at("c", 1), at("d", 1)], &ARRIVAL, &[], false), "c");
    assert_eq!(decide(&[at("c", 1), refuse], &ARRIVAL, &[], false), "wall refuses: not from there");
}

#[test]
fn a_rule_that_needs_more_holds_up_those_behind_it_and_no_others() {
    let ssh = RouteRule { first_bytes: Some(b"SSH-".to_vec()), priority: 1, ..app("ssh") };
    let rest = app("rest");
    let rules = [ssh.clone(), rest.clone()];
    let cases: [(&[u8], bool, &str); 6] = [
        (b"", false, "more"),
        (b"SS", false, "more"),
        (b"SSH-2", false, "ssh"),
        (b"G", false, "rest"),
        (b"SS", true, "rest"),
        (b"", true, "rest"),
    ];
    for (first, last, expected) in cases {
        assert_eq!(decide(&rules, &ARRIVAL, first, last), expected, "{first:?} {last}");
    }
    assert_eq!(decide(&[RouteRule { priority: 2, ..rest }, ssh], &ARRIVAL, b"SSH-2", false), "rest");
}

#[test]
fn a_tls_client_is_asked_for_the_name_of_its_server() {
    let sni = |name| ServerName::parse(name).unwrap();
    let rules = [
        RouteRule { sni: Some(sni("a.example.org")), ..app("one") },
        RouteRule { sni: Some(sni("*.Example.org")), ..app("any") },
    ];
    let cases = [
        (record(&hello(Some("a.example.org"))), "one"),
        (record(&hello(Some("A.Example.ORG."))), "one"),
        (record(&hello(Some("b.example.org"))), "any"),
        (record(&hello(Some("example.org"))), "default"),
        (record(&hello(Some("c.b.example.org"))), "default"),
        (record(&hello(None)), "default"),
        (b"GET / HTTP/1.1\r\n".to_vec(), "default"),
        (b"\x16\x03\x01".to_vec(), "more"),
        (Vec::new(), "more"),
    ];
    for (first, expected) in cases {
        assert_eq!(decide(&rules, &ARRIVAL, &first, false), expected, "{first:?}");
    }
    let udp = Arrival { protocol: RouteProtocol::Udp, ..ARRIVAL };
    assert_eq!(decide(&rules, &udp, &record(&hello(Some("a.example.org"))), false), "default");
}

#[test]
fn a_hello_is_read_however_it_is_cut() {
    let message = hello(Some("a.example.org"));
    for at in 1..message.len() {
        let (a, b) = message.split_at(at);
        let stream = [record(a), record(b), vec![0xff; 9]].concat();
        let whole = 2 * 5 + message.len();
        for upto in 0..stream.len() {
            let expected = if upto < whole { Sni::More } else { Sni::Name("a.example.org".into()) };
            assert_eq!(server_name(&stream[..upto]), expected, "cut at {at}, {upto} bytes");
        }
    }
}

#[test]
fn what_is_no_hello_is_not_waited_for() {
    let hello = hello(Some("a.example.org"));
    let changed = |at: usize, to: u8| {
        let mut message = hello.clone();
        message[at] = to;
        record(&message)
    };
    let cases: [(&str, Vec<u8>); 7] = [
        ("another protocol", b"SSH-2.0-x".to_vec()),
        ("an alert", vec![21, 3, 1, 0, 2, 2, 40]),
        ("an empty record", vec![22, 3, 1, 0, 0]),
        ("a record too long", vec![22, 3, 1, 0x40, 1]),
        ("another message", changed(0, 2)),
        ("a message that could never be held", changed(1, 1)),
        ("a session id beyond the message", changed(4 + 34, 255)),
    ];
    for (what, first) in cases {
        assert_eq!(server_name(&first), Sni::NotTls, "{what}");
    }
}

/// A decision is final, and no rule asks for more than can be held.
#[test]
fn decisions_do_not_change_with_what_comes_later() {
    let mut random = Random::new([3; 32]);
    let sample = [record(&hello(Some("b.example.org"))), vec![1; 40]].concat();
    for _ in 0..3_000 {
        let mut bytes = sample.clone();
        for _ in 0..random.below(4) {
            let at = usize::try_from(random.below(bytes.len() as u64)).unwrap();
            bytes[at] = random.bytes::<1>()[0];
        }
        let mut decided = Sni::More;
        for upto in 0..=bytes.len() {
            let now = server_name(&bytes[..upto]);
            assert!(decided == Sni::More || decided == now, "{decided:?} became {now:?}");
            decided = now;
        }
    }
    let endless: Vec<u8> = core::iter::repeat_n(record(&[1, 0, 0x3f, 0xff, 0]), 4_000).flatten().collect();
    let held = &endless[..HELD_MAX + 5];
    assert_ne!(
        decide(&[RouteRule { sni: ServerName::parse("x"), ..app("x") }], &ARRIVAL, held, true),
        "more"
    );
}

/// Checks every rule on its own and takes the best one that matches.
fn judge(rules: &[RouteRule], arrival: &Arrival<'_>, first: &[u8]) -> String {
    let fits = |rule: &&RouteRule| decide(core::slice::from_ref(*rule), arrival, first, true) != "default";
    let best = rules.iter().filter(fits).fold(None::<&RouteRule>, |best, rule| match best {
        Some(best) if best.priority >= rule.priority => Some(best),
        _ => Some(rule),
    });
    best.map_or("default".into(), |rule| rule.name.clone())
}

#[test]
fn tables_agree_with_a_judge_that_asks_each_rule_alone() {
    let mut random = Random::new([5; 32]);
    for _ in 0..2_000 {
        let mut maybe =
            |value: u64| Some(value).filter(|_| random.below(3) == 0).map(|most| random.below(most));
        let rules: Vec<RouteRule> = (0..6)
            .map(|number| RouteRule {
                priority: maybe(3).map_or(0, |priority| i32::try_from(priority).unwrap()),
                listener: maybe(2).map(|number| ["web", "mail"][usize::try_from(number).unwrap()].into()),
                client: maybe(3)
                    .map(|number| ["10.0.0.0/8", "10.1.2.3", "::/0"][usize::try_from(number).unwrap()])
                    .map(|text| text.parse().unwrap()),
                client_port: maybe(3).map(|number| 0..=u16::try_from(number * 3_000).unwrap()),
                first_bytes: maybe(3).map(|number| b"abc"[..usize::try_from(number + 1).unwrap()].to_vec()),
                ..app(&format!("r{number}"))
            })
            .collect();
        for first in [&b""[..], b"a", b"abc", b"zzz"] {
            assert_eq!(decide(&rules, &ARRIVAL, first, true), judge(&rules, &ARRIVAL, first), "{rules:?}");
        }
    }
}

#[test]
fn what_cannot_be_a_table_is_named() {
    let refused = |rules: Vec<RouteRule>| {
        let RouteError { index, field, what } = RouteTable::new(rules).unwrap_err();
        format!("{index} {field} {what}")
    };
    let says = [
        (vec![app("a"), app("a")], "1 name is the name of another rule"),
        (
            vec![app("a"), RouteRule { first_bytes: Some(vec![0; 65]), ..app("b") }],
            "1 first_bytes has 65 bytes",
        ),
        (vec![RouteRule { first_bytes: Some(Vec::new()), ..app("b") }], "0 first_bytes has 0 bytes"),
        (
            vec![RouteRule { client_port: Some(RangeInclusive::new(2, 1)), ..app("b") }],
            "0 client_port ends before",
        ),
        (
            vec![RouteRule { sni: ServerName::parse("x"), protocol: Some(RouteProtocol::Udp), ..app("b") }],
            "0 sni is for TLS",
        ),
        ((0..=RULES_MAX).map(|number| app(&format!("{number}"))).collect(), "1024 name exceeds the maximum"),
    ];
    for (rules, begins) in says {
        let said = refused(rules);
        assert!(said.starts_with(begins), "{said}");
    }
    for text in ["10.0.0.1/8", "10.0.0.0/33", "::/129", "10.0.0", "", "a/8", "10.0.0.0/-1"] {
        assert_eq!(text.parse::<Prefix>(), Err(BadPrefix), "{text}");
    }
    for text in ["10.0.0.0/8", "0.0.0.0/0", "::/0", "2001:db8::/32", "1.2.3.4/32"] {
        assert_eq!(text.parse::<Prefix>().map(|prefix| prefix.to_string()), Ok(text.to_string()));
    }
    for text in ["", ".", "a..b", "*.", "*", "a b", "a*.b", "x.", "\u{e9}.org"] {
        assert_eq!(ServerName::parse(text), None, "{text}");
    }
}

#[test]
fn rules_that_stay_keep_their_counts_when_others_come_and_go() {
    let mut table = RouteTable::new(vec![app("a"), app("b")]).unwrap();
    for _ in 0..3 {
        table.decide(&ARRIVAL, &[], false);
    }
    table.replace(vec![RouteRule { priority: 9, ..app("c") }, app("a")]).unwrap();
    table.decide(&ARRIVAL, &[], false);
    let counts: Vec<_> = table.rules().map(|(rule, hits)| (rule.name.as_str(), hits)).collect();
    assert_eq!(counts, [("c", 1), ("a", 3)]);
    let before = table.clone();
    table.replace(vec![app("x"), app("x")]).unwrap_err();
    assert_eq!(table, before);
    table.replace(Vec::new()).unwrap();
    table.decide(&ARRIVAL, &[], false);
    assert_eq!(table.defaults(), 1);
}

const IDLE_NS: u64 = 1_000;

fn client(number: u64) -> SocketAddr {
    let ip = Ipv4Addr::from_bits(u32::try_from(number).unwrap());
    SocketAddr::new(ip.into(), 9)
}

#[test]
fn silence_retires_a_conversation_and_more_of_it_cuts_it_off() {
    let mut flows = Flows::new(2, IDLE_NS);
    assert!(flows.begin(0, client(1), ConnectionId(1)));
    assert!(flows.begin(0, client(2), ConnectionId(2)));
    assert!(!flows.begin(0, client(3), ConnectionId(3)), "no room");
    assert_eq!(flows.heard(600, client(1)), Some(ConnectionId(1)));
    assert_eq!(flows.expire(999), None);
    assert_eq!(flows.expire(1_000), Some(Expired::Silent(ConnectionId(2))));
    assert_eq!(flows.heard(1_100, client(2)), None, "it is another conversation");
    assert_eq!(flows.expire(1_599), None);
    flows.spoke(1_599, ConnectionId(1));
    assert_eq!(flows.expire(2_000), Some(Expired::Stuck(ConnectionId(2))));
    assert_eq!(flows.end(ConnectionId(2)), Some(client(2)));
    assert_eq!(flows.expire(2_598), None, "what goes to a client is a word as well");
    assert_eq!(flows.expire(2_599), Some(Expired::Silent(ConnectionId(1))));
    assert_eq!(flows.end(ConnectionId(1)), Some(client(1)));
    assert!(flows.is_empty() && flows.due_ns().is_none());
}

#[test]
fn a_conversation_that_was_answered_leaves_its_address_to_the_next() {
    let mut flows = Flows::new(2, IDLE_NS);
    flows.begin(0, client(1), ConnectionId(1));
    flows.retire(10, ConnectionId(1));
    assert_eq!(flows.heard(20, client(1)), None);
    assert!(flows.begin(20, client(1), ConnectionId(2)));
    assert_eq!(flows.end(ConnectionId(1)), Some(client(1)));
    assert_eq!(flows.heard(30, client(1)), Some(ConnectionId(2)), "the older one's end is not its own");
}

/// A hundred thousand conversations come and go in a table for three hundred; a simple model knows which ones exist.
#[test]
fn the_table_stays_bounded_while_conversations_come_and_go() {
    const BOUND: usize = 300;
    let mut random = Random::new([9; 32]);
    let mut flows = Flows::new(BOUND, IDLE_NS);
    let (mut model, mut refused, mut expired) = (BTreeMap::new(), 0u32, 0u32);
    for number in 0..100_000u64 {
        let now_ns = number * 3;
        while let Some(over) = flows.expire(now_ns) {
            let (Expired::Silent(connection) | Expired::Stuck(connection)) = over;
            model.retain(|_, (known, heard_ns)| *known != connection || *heard_ns + IDLE_NS > now_ns);
            assert!(!model.values().any(|(known, _)| *known == connection), "it was not silent");
            expired += 1;
            // Some sessions end at once, others have to be cut off.
            if matches!(over, Expired::Stuck(_)) || random.below(2) == 0 {
                assert!(flows.end(connection).is_some());
            }
        }
        let from = client(random.below(2_000));
        let known = flows.heard(now_ns, from);
        assert_eq!(known, model.get(&from).map(|(connection, _)| *connection), "{number}");
        match known {
            Some(connection) => _ = model.insert(from, (connection, now_ns)),
            None if flows.begin(now_ns, from, ConnectionId(number)) => {
                model.insert(from, (ConnectionId(number), now_ns));
            }
            None => refused += 1,
        }
        assert!(flows.len() <= BOUND && model.len() <= flows.len());
        assert!(flows.due_ns().is_some_and(|due_ns| due_ns > now_ns));
    }
    assert!(refused > 0 && expired > 10_000, "{refused} refused, {expired} expired");
    while let Some(due_ns) = flows.due_ns() {
        while let Some(Expired::Silent(connection) | Expired::Stuck(connection)) = flows.expire(due_ns) {
            flows.end(connection);
        }
    }
    assert!(flows.is_empty());
}

/// The key of a client of a listener with this source of keys.
fn key_of(source: &str, arrival: &Arrival<'_>, first: &[u8], last: bool) -> String {
    let source = source.parse().expect("it is a source");
    decide(&[], &Arrival { key: Some(&source), ..*arrival }, first, last)
}

#[test]
fn a_key_is_what_its_source_says() {
    let at = |client: &str| Arrival { client: client.parse().unwrap(), ..ARRIVAL };
    let (four, six) = (at("10.1.2.3:4000"), at("[2001:db8:1:2:3::4]:4000"));
    let browser = Arrival { protocol: RouteProtocol::WebSocket, ..ARRIVAL };
    let tls = record(&hello(Some("Chess.example.org")));
    let request = b"GET /rooms/chess?name=a HTTP/1.1\r\nHost: a\r\n\r\n";
    for (source, arrival, first, expected) in [
        ("client", &four, &b""[..], "default 10.1.2.3/32"),
        ("client", &at("[::ffff:10.1.2.3]:1"), b"", "default 10.1.2.3/32"),
        ("client", &six, b"", "default 2001:db8:1:2:3::4/128"),
        ("client/24", &four, b"", "default 10.1.2.0/24"),
        ("client/24", &six, b"", "default 2001:db8:1:2::/64"),
        ("client/8/32", &six, b"", "default 2001:db8::/32"),
        ("first-bytes/3", &four, b"abcd", "default abc"),
        ("first-bytes/3", &four, b"\x00\xffa", "default \\x00\\xffa"),
        ("path", &browser, request, "default /rooms/chess"),
        ("path", &browser, b"GET / HTTP/1.1\r\n\r\n", "default /"),
        ("sni", &four, &tls, "default chess.example.org"),
        ("name/lobby", &four, b"", "default lobby"),
    ] {
        assert_eq!(key_of(source, arrival, first, false), expected, "{source}");
        assert_eq!(key_of(source, arrival, first, true), expected, "{source}");
    }
}

#[test]
fn a_key_waits_for_the_bytes_that_it_needs_and_no_longer() {
    let tls = record(&hello(Some("chess.example.org")));
    for (source, first) in [("first-bytes/3", &b"ab"[..]), ("sni", &tls[..tls.len() - 1]), ("sni", b"")] {
        assert_eq!(key_of(source, &ARRIVAL, first, false), "more", "{source}");
        let at_last = key_of(source, &ARRIVAL, first, true);
        assert!(at_last.starts_with("no key: the client"), "{source}: {at_last}");
    }
    let nameless = record(&hello(None));
    let long = [&b"GET /"[..], &[b'a'; 256], b" HTTP/1.1\r\n\r\n"].concat();
    let browser = Arrival { protocol: RouteProtocol::WebSocket, ..ARRIVAL };
    for (source, arrival, first, why) in [
        ("sni", &ARRIVAL, &nameless[..], "the client asks for no TLS server by name"),
        ("sni", &ARRIVAL, b"SSH-2", "the client does not begin with TLS"),
        ("path", &browser, b"OPTIONS * HTTP/1.1\r\n\r\n", "the client's request has no path"),
        (
            "path",
            &browser,
            &long,
            "the key of its cell has 257 bytes; the maximum is 256. It is the path of the request; shorten that",
        ),
        ("path", &ARRIVAL, b"GET / HTTP/1.1\r\n\r\n", "a client by tcp has no \"path\""),
        (
            "first-bytes/3",
            &browser,
            b"GET / HTTP/1.1\r\n\r\n",
            "a client by websocket has no \"first-bytes/3\"",
        ),
    ] {
        assert_eq!(key_of(source, arrival, first, false), format!("no key: {why}"));
    }
}

#[test]
fn a_rule_has_a_key_of_its_own_and_counts_when_that_is_known() {
    let chess = RouteRule {
        first_bytes: Some(b"GO".to_vec()),
        key: Some("first-bytes/4".parse().unwrap()),
        ..app("chess")
    };
    let lobby = "name/lobby".parse().unwrap();
    let arrival = Arrival { key: Some(&lobby), ..ARRIVAL };
    let mut table =
        RouteTable::new(vec![chess, RouteRule { first_bytes: Some(b"x".to_vec()), ..app("plain") }])
            .expect("the rules are right");
    assert_eq!(table.decide(&arrival, b"GO", false), Decision::More);
    assert_eq!(
        table.decide(&arrival, b"GO a!", false),
        Decision::App("chess", CellKey::new(&b"GO a"[..]).ok())
    );
    // The listener's key is for its own app.
    assert_eq!(table.decide(&arrival, b"x", false), Decision::App("plain", None));
    assert_eq!(table.decide(&arrival, b"yy", false), Decision::Default(CellKey::new(&b"lobby"[..]).ok()));
    assert_eq!(table.rules().map(|(_, hits)| hits).collect::<Vec<_>>(), [1, 1]);
    assert_eq!(table.defaults(), 1);
}

#[test]
fn sources_of_keys_are_written_as_they_are_read() {
    use marram_wire::codec::Field;
    for text in
        ["client", "client/24", "client/24/48", "first-bytes/64", "path", "sni", "name/lobby", "name/a/b"]
    {
        let source: KeySource = text.parse().expect("it is a source");
        assert_eq!(source.to_string(), text);
        let mut out = bytes::BytesMut::new();
        source.put(&mut out);
        assert_eq!(KeySource::take(&mut out.freeze()), Ok(source));
    }
    let long = format!("name/{}", "a".repeat(257));
    for text in [
        "",
        "client/",
        "client/0",
        "client/33",
        "client/24/129",
        "first-bytes",
        "first-bytes/65",
        "first-bytes/0",
        "path/1",
        "sni/",
        "name",
        "name/",
        "port",
        &long,
    ] {
        assert_eq!(text.parse::<KeySource>(), Err(BadSource), "{text}");
    }
}
