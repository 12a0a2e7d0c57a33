//! Tests the cell with the SDK's test context.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use marram_sdk::{
    Port, Unread,
    double::{Output, Session},
};
use reader::Reader;

fn answer(session: &mut Session<Reader>, line: &str) -> String {
    match &session.message(Port::CLIENT, line.as_bytes())[..] {
        [Output::Message { payload, .. }] => String::from_utf8(payload.clone()).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_line_says_what_was_found_and_all_that_was_read_is_in_the_hash() {
    let mut session = Session::<Reader>::new();
    session.open_client();
    session.cached("a", Ok(Some(b"one")));
    session.cached("b", Err(Unread::Away));
    session.cached("c", Err(Unread::Refused));
    let first = answer(&mut session, "a b c d\n");
    assert!(first.starts_with("a: 3 one; b: away; c: refused; d: nothing; 4 reads, "), "{first}");
    let hash = |line: &str| line.rsplit_once(' ').unwrap().1.to_owned();
    let mut other = Session::<Reader>::new();
    other.cached("a", Ok(Some(b"two")));
    let theirs = answer(&mut other, "a\n");
    session.cached("a", Ok(Some(b"two")));
    assert!(session.message(Port::CLIENT, b"a").is_empty());
    let second = answer(&mut session, "\n");
    assert!(second.starts_with("a: 3 two; 5 reads, ") && hash(&second) != hash(&theirs), "{second} {theirs}");
}
