//! Tests of the list of mutations and of how they are put into the sources.

use super::{
    named::{self, Named},
    patch::{self, Patched},
    read, root, switch, workshop,
};

/// An entry for the file `a.rs`.
fn entry(name: &str, from: &str, to: &str) -> String {
    format!("== {name}\nA rule.\nfile: a.rs\n-- from\n{from}\n-- to\n{to}\n")
}

fn parse(entries: &[String]) -> Named {
    named::parse(&entries.concat()).unwrap()
}

fn apply(source: &str, entries: &[String]) -> Result<Patched, Vec<String>> {
    patch::apply(source, &parse(entries).edits.iter().collect::<Vec<_>>())
}

/// The text with all mutations, without white space that has no meaning.
fn patched(source: &str, entries: &[String]) -> String {
    let text = apply(source, entries).unwrap().text.replace("::marram_wire::mutant", "is");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn problem(source: &str, entries: &[String]) -> String {
    apply(source, entries).unwrap_err().join("\n")
}

#[test]
fn every_entry_fits_the_sources() {
    let named = read().unwrap();
    if let Err(problems) = workshop::patch_all(&root(), &named.edits) {
        panic!("{problems}");
    }
}

#[test]
fn what_the_copy_changes_in_the_simulator_is_where_it_was() {
    for [file, text, _] in switch::SIMULATOR {
        let source = std::fs::read_to_string(root().join(file)).unwrap();
        assert_eq!(source.matches(text).count(), 1, "`{text}`: adapt SIMULATOR of switch.rs");
    }
}

#[test]
fn a_run_says_which_mutations_its_seeds_reach() {
    let output =
        "seed 8 with 900 reached 2,170\nseed 7 with 12 reached \nseed 9 FAILED: E1: no\n8 passed, 1 failed\n";
    let reached = switch::reached(output).into_iter().map(|it| (it.seed, it.events, it.mutations));
    assert_eq!(reached.collect::<Vec<_>>(), [(7, 12, vec![]), (8, 900, vec![2, 170])]);
    for word in [switch::VARIABLE, switch::TRACE] {
        assert!(switch::SOURCE.contains(&format!("\"{word}\"")), "{word}");
    }
}

#[test]
fn an_entry_is_one_mutation_or_one_of_each_variant() {
    let text = "Words.\n\n    == not-an-entry\n== a\nslow: rare\nfile: a.rs\n-- from\nx\n-- to\n== b\nvariants: C D\n\
                file: a.rs\n-- from\ny\n-- to\nVARIANT\n-- and\nfile: b.rs\n-- from\nz\n-- to\n!BROKEN && z\n";
    let named = named::parse(text).unwrap();
    let mutations: Vec<_> = named.mutations.iter().map(|it| (it.number, &it.name[..], it.slow)).collect();
    assert_eq!(mutations, [(1, "a", true), (2, "b/C", false), (3, "b/D", false)]);
    let edits: Vec<_> = named.edits.iter().map(|it| (&it.file[..], &it.from[..], &it.to[..])).collect();
    let both = "!(::marram_wire::mutant(2) || ::marram_wire::mutant(3)) && z";
    assert_eq!(edits, [("a.rs", "x", ""), ("a.rs", "y", "C"), ("a.rs", "y", "D"), ("b.rs", "z", both)]);
}

#[test]
fn a_bad_entry_is_named() {
    for (text, expected) in [
        (
            "== a\nfile: a.rs\n-- from\nx\n",
            "`a` (crates/sim/mutations/named.txt, line 1): `file: `, `-- from` or",
        ),
        ("== a\n-- from\nx\n-- to\n", "is missing"),
        ("== a\nfile: a.rs\n-- to\n", "`-- to` out of order"),
        ("== a\nfile: a.rs\n-- from\n-- to\nx\n", "nothing after `-- from`"),
        (&[entry("a", "x", "y"), entry("a", "z", "y")].concat(), "line 8): another entry has the same name"),
    ] {
        let problem = named::parse(text).unwrap_err();
        assert!(problem.contains(expected), "{problem}");
    }
}

#[test]
fn both_texts_are_kept_behind_the_switch() {
    let cases = [
        ("a && b", "a && b", "false", "(if (is(1)) { false } else { a && b })"),
        ("f(a) + 1", "f(a)", "2", "(if (is(1)) { 2 } else { f(a) }) + 1"),
        ("a; b;", "a; b;", "b;", "if (is(1)) { b; } else { a; b; }"),
        ("a; b;", "b;", "", "a; if (is(1)) { } else { b; }"),
        ("if a { b }", "if a {", "if a && !BROKEN {", "if a && !(is(1)) { b }"),
    ];
    for (source, from, to, expected) in cases {
        assert_eq!(patched(source, &[entry("a", from, to)]), expected);
    }
}

#[test]
fn mutations_of_one_text_are_chained_and_of_a_part_of_it_nested() {
    let entries =
        [entry("a", "y", "1"), entry("b", "x + y", "2"), entry("c", "y", "3"), entry("d", "z", "4")];
    let inner = "(if (is(1)) { 1 } else if (is(3)) { 3 } else { y })";
    let expected =
        format!("f((if (is(2)) {{ 2 }} else {{ x + {inner} }}), (if (is(4)) {{ 4 }} else {{ z }}))");
    assert_eq!(patched("f(x + y, z)", &entries), expected);
}

#[test]
fn an_entry_that_does_not_fit_is_named_with_what_to_do() {
    let cases = [
        ("a b a", entry("a", "a", "c"), "2 times; make it longer"),
        ("if a < c {", entry("a", "if a < b {", "x"), "Line 1 is the most similar:\nif a < c {"),
        ("x", entry("a", "a < b", "x"), "nor anything similar"),
        ("if a < b {", entry("a", "if a < b {", "if false && a < b {"), "write the word BROKEN in `to`"),
        ("let a = 1;", entry("a", "let a = 1;", "let a = 2;"), "is a `let`"),
        ("a,\nb,", entry("a", "a,", "c,"), "ends in a comma"),
    ];
    for (source, entry, expected) in cases {
        let problem = problem(source, &[entry]);
        assert!(problem.starts_with("mutation `a` (crates/sim/mutations/named.txt, line 1): "), "{problem}");
        assert!(problem.contains(expected), "{problem}");
    }
    // All are reported at once.
    let entries = [entry("a", "x", "1"), entry("b", "y", "2")];
    assert_eq!(apply("z", &entries).unwrap_err().len(), 2);
}

#[test]
fn texts_that_cannot_both_be_replaced_are_refused() {
    let overlapping = problem("a + b + c", &[entry("a", "a + b", "1"), entry("b", "b + c", "2")]);
    assert!(overlapping.contains("`from` texts overlap"), "{overlapping}");
    for entries in [
        [entry("a", "x", "1"), entry("b", "x", "!BROKEN")],
        [entry("a", "x + y", "BROKEN"), entry("b", "x", "1")],
    ] {
        let problem = problem("x + y", &entries);
        assert!(problem.contains("changes the same text"), "{problem}");
    }
}

#[test]
fn an_error_of_the_compiler_leads_to_its_entry() {
    let patched = apply("a\nf(x + y)\nb\nz\n", &[entry("a", "x + y", "1"), entry("b", "y", "2")]).unwrap();
    let line = |text: &str| patched.text.lines().position(|line| line == text).unwrap() + 1;
    assert_eq!(patched.entries_at(line("1")), Some("a"));
    assert_eq!(patched.entries_at(line("2")), Some("b"));
    assert_eq!(patched.entries_at(line("b")), None);
}
