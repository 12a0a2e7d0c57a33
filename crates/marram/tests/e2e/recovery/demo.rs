//! A small run of `marram demo`: it must succeed, and it must fail if one bit is flipped on purpose.

use crate::support;
use std::process::Command;

fn demo(arguments: &[&str]) -> (Option<i32>, String) {
    // Fails with an explanation if the cells are not built.
    support::cells();
    let cells = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/cells");
    let mut command = Command::new(env!("CARGO_BIN_EXE_marram"));
    let output =
        command.args(["demo", "--mebibytes", "32", "--rate", "8", "--cells", cells]).args(arguments).output();
    let output = output.unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.code(), said)
}

#[test]
fn every_byte_is_right() {
    let (code, said) = demo(&[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("every byte was right"), "{said}");
}

#[test]
fn the_check_bites() {
    let (code, said) = demo(&["--sabotage", "--bundled-server"]);
    assert_eq!(code, Some(5), "{said}");
    assert!(said.contains("the check works") && said.contains("the bundled file server"), "{said}");
}
