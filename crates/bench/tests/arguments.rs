//! The command line of `marram-bench`. Without a test here, `cargo test` would not build the program that tests of `marram bench` start.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::process::{Command, Output};

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_marram-bench")).args(arguments).output().unwrap()
}

#[test]
fn help_lists_benchmarks_and_exit_statuses_and_no_worker() {
    let output = bench(&["--help"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    for word in ["forward", "density", "--json", "--only", "misses its bar"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert!(!text.contains("worker"), "{text}");
}

#[test]
fn a_wrong_command_line_has_a_status_of_its_own() {
    for arguments in [&[][..], &["forwrad"], &["forward", "--jsn"], &["faults", "--json", "--markdown"]] {
        let output = bench(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
    }
    assert!(
        String::from_utf8_lossy(&bench(&["forwrad"]).stderr).contains("forward"),
        "the nearest name is shown"
    );
}
