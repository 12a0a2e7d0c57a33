//! The services that ship as cells, as WebAssembly modules: what their native tests check must also hold in the sandbox.
//! `cargo xtask cells` builds them.

use crate::support::{self, CELL, Dir, ask, cells, deploy_with, message, payloads, run};
use marram_sandbox::{Cells, Image, ImageFile, Images, Quotas};
use marram_session::cell::{CellInput, PortKind, RunOutcome};
use marram_wire::id::Port;
use std::path::Path;
use std::sync::Arc;

/// A built cell.
fn module(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/cells").join(name);
    std::fs::read(&path).expect("`cargo xtask cells` has built the cells")
}

/// Its image, with quotas as in its manifest.
fn image(name: &str, quotas: &Quotas) -> Arc<Image> {
    deploy_with(&module(name), quotas, &[])
}

/// A started cell with a client.
fn started(name: &str, quotas: &Quotas) -> Cells {
    let mut cells = cells();
    cells.start(CELL, &image(name, quotas), support::SEED).expect("a fresh cell starts");
    let open = CellInput::Open { port: Port::CLIENT, kind: PortKind::Client, peer: None };
    assert_eq!(run(&mut cells, CELL, open, 0).outcome, RunOutcome::Idle);
    cells
}

/// The held-out images of `classify`, drawn as its `src/render.rs` does, with their classes.
fn held_out() -> Vec<(u8, Vec<u8>)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cells/services/classify/data/held_out.bin");
    let records = std::fs::read(path).expect("it is part of the tree");
    let colour = |ground: u8, ink: u8, cover: u32| {
        let mixed = u32::from(ground) * (1024 - cover) + u32::from(ink) * cover;
        u8::try_from((mixed + 512) >> 10).expect("between two bytes")
    };
    let draw = |record: &[u8]| {
        let ink = |row: i32, column: i32| {
            let index = 7 + row.clamp(0, 7) * 8 + column.clamp(0, 7);
            i32::from(record[usize::try_from(index).expect("clamped")])
        };
        let cover = |x: i32, y: i32| {
            let (left, above) = ((2 * x - 3).div_euclid(8), (2 * y - 3).div_euclid(8));
            let (right, below) = ((2 * x - 3).rem_euclid(8), (2 * y - 3).rem_euclid(8));
            let row = |row| ink(row, left) * (8 - right) + ink(row, left + 1) * right;
            u32::try_from(row(above) * (8 - below) + row(above + 1) * below).expect("not negative")
        };
        let planes = (0..3).flat_map(|plane| (0..1024).map(move |at| (plane, at % 32, at / 32)));
        let bytes = planes.map(|(plane, x, y)| colour(record[1 + plane], record[4 + plane], cover(x, y)));
        (record[0], bytes.collect())
    };
    records.chunks(71).map(draw).collect()
}

#[test]
fn the_network_is_as_good_in_the_machine_as_outside() {
    let mut cells = started("classify.wasm", &Quotas { nan_canonicalization: false, ..Quotas::default() });
    let images = held_out();
    assert_eq!(images.len(), 360);
    let (mut right, mut costs_ns) = (0, Vec::new());
    for (class, image) in &images {
        let ran = run(&mut cells, CELL, message(image), 0);
        let answers = payloads(&ran);
        assert_eq!(answers.iter().map(Vec::len).collect::<Vec<_>>(), [41]);
        right += usize::from(answers[0][0] == *class);
        costs_ns.push(ran.cost_ns);
    }
    costs_ns.sort_unstable();
    println!("{right} of 360 right, at {} us an image", costs_ns[images.len() / 2] / 1000);
    assert!(right >= 357, "{right} of 360 right");
}

#[test]
fn an_image_gets_the_same_answer_in_every_cell_and_with_either_treatment_of_nan() {
    let (_, image) = &held_out()[0];
    let answers = [false, true].map(|nan_canonicalization| {
        let quotas = Quotas { nan_canonicalization, ..Quotas::default() };
        [0, 1].map(|_| ask(&mut started("classify.wasm", &quotas), image))
    });
    assert_eq!(answers[0][0], answers[0][1]);
    assert_eq!(answers[0], answers[1]);
}

#[test]
fn a_full_cache_stays_within_its_cells_memory() {
    let mut cells = started("memcached.wasm", &Quotas::default());
    // Items of every size up to the largest, twice what the cache holds.
    let mut stored = 0;
    for n in 0_usize.. {
        let len = [100, 135, 1000, 5000, 70_000, 1_048_000][n % 6];
        let set = [format!("set key{n} 0 0 {len}\r\n").as_bytes(), &vec![b'v'; len], b"\r\n"].concat();
        // A message has at most 1 MiB.
        let answers: Vec<_> = set.chunks(1 << 20).flat_map(|piece| ask(&mut cells, piece)).collect();
        assert_eq!(answers, [b"STORED\r\n"]);
        stored += len;
        if stored > 96 << 20 {
            break;
        }
    }
    let stats = ask(&mut cells, b"stats\r\n").concat();
    let stats = String::from_utf8_lossy(&stats).into_owned();
    let stat = |name: &str| {
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} "))).expect(name);
        line.parse::<usize>().expect(name)
    };
    assert!(stat("evictions") > 0 && stat("bytes") <= stat("limit_maxbytes"), "{stats}");
    assert!(stat("bytes") > stat("limit_maxbytes") - (2 << 20), "{stats}");
}

#[test]
fn a_firewall_has_the_rules_of_its_image() {
    let cases: [(Option<&str>, &[u8], bool); 4] = [
        (None, b"GET /index.html", true),
        (None, b"GET /../x", false),
        (Some("allow client prefix \"GET \"\ndefault client deny\n"), b"GET /../x", true),
        (Some("allow client prefix \"GET \"\ndefault client deny\n"), b"PUT /x", false),
    ];
    for (rules, sent, passes) in cases {
        let files: Vec<_> = rules.iter().map(|rules| file("etc/rules", rules)).collect();
        let mut cells = support::start(&deploy_with(&module("firewall.wasm"), &Quotas::default(), &files));
        let passed = ask(&mut cells, sent);
        assert_eq!(passed, if passes { vec![sent.to_vec()] } else { Vec::new() }, "{rules:?}");
    }
}

#[test]
fn wrong_configuration_is_refused_at_deployment() {
    let cases = [
        ("firewall.wasm", "etc/rules", "deny all\n", "/etc/rules:1: `deny all`: the second word says"),
        ("limiter.wasm", "etc/limits", "client messages fast\n", "`client messages fast` is no limit"),
        ("memcached.wasm", "etc/memcached.conf", "-m lots\n", "-m wants MiB"),
    ];
    for (name, path, contents, expected) in cases {
        let dir = Dir::new();
        let images = Images::open(&dir.0).expect("the temporary directory can be used");
        let refused = images.deploy(&module(name), &[file(path, contents)], &Quotas::default());
        let reason = refused.expect_err("the file makes no sense").to_string();
        assert!(reason.contains(expected), "{name}: {reason}");
    }
}

/// A file of an image.
fn file(path: &str, contents: &str) -> ImageFile {
    ImageFile { path: path.into(), contents: contents.into() }
}
