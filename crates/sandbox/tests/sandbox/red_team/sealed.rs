//! Attacks on what was frozen at deployment: a guest that writes wherever it can, so that the next cell of its image would
//! find it there; and files that were changed while the program did not look.

use crate::support::files::{CREATE, OK, READ, ROFS, TRUNCATE, WRITE, on_path, open, read, rename, write};
use crate::support::wasi::{call, proxy};
use crate::support::{CELL, Dir, ask, cells, deploy, deploy_with, echo, guest, start_in};
use marram_sandbox::{Cells, CellsConfig, Chain, ImageFault, ImageFile, Images, LoadError, Quotas, Reset};
use marram_session::cell::CellId;

/// Hash of an unused cell of this image, in any slot.
fn unused(cells: &mut Cells, image: &std::sync::Arc<marram_sandbox::Image>) -> [u8; 32] {
    start_in(cells, CellId(99), image);
    let hash = cells.state_hash(CellId(99)).unwrap();
    cells.remove(CellId(99));
    hash
}

#[test]
fn a_cell_that_overwrites_memory_and_globals_leaves_the_next_one_the_image() {
    let vandal = guest(
        r#"(global $g (mut i64) (i64.const 5)) (global $f (mut f64) (f64.const 0.5))
           (data (i32.const 0x1000) "of the image") (data $late "passive")
           (func (export "_initialize") (i64.store (i32.const 0x2000) (i64.const 77)))
           (func (export "marram_recv") (param $port i32) (param i32 i32)
             (memory.init $late (i32.const 0x3000) (i32.const 0) (i32.const 7))
             (i32.store8 (i32.const 0x3008) (i32.load8_u (i32.const 0x1000)))
             (i64.store (i32.const 0x3010) (global.get $g))
             (call $send (local.get $port) (i32.const 0x3000) (i32.const 24))
             (drop (memory.grow (i32.const 3)))
             (memory.fill (i32.const 0) (i32.const 0x66) (i32.mul (memory.size) (i32.const 65536)))
             (global.set $g (i64.const -1)) (global.set $f (f64.const -1)))"#,
    );
    for reset in [Reset::Rewrite, Reset::Discard] {
        let image = deploy(&vandal);
        let mut cells = Cells::new(CellsConfig { slots: 1, reset, ..CellsConfig::default() }).unwrap();
        let new = unused(&mut cells, &image);
        let mut first = None;
        for _ in 0..4 {
            start_in(&mut cells, CELL, &image);
            let said = ask(&mut cells, b"");
            assert_eq!(said, *first.get_or_insert_with(|| said.clone()));
            assert_ne!(cells.state_hash(CELL), Some(new), "it has changed what it could");
            cells.remove(CELL);
            assert_eq!(unused(&mut cells, &image), new, "{reset:?}");
        }
    }
}

#[test]
fn a_cell_that_writes_renames_and_removes_files_leaves_the_next_one_the_images() {
    let file = |path: &str| ImageFile { path: path.into(), contents: b"sealed".to_vec() };
    let image = deploy_with(&proxy(), &Quotas::default(), &[file("etc/rules"), file("top")]);
    let mut cells = cells();
    let new = unused(&mut cells, &image);
    start_in(&mut cells, CELL, &image);
    let c = &mut cells;
    for path in ["etc/rules", "top", "./etc/../top", "etc/./rules"] {
        assert_eq!(open(c, path, 0, WRITE), Err(ROFS), "{path}");
        assert_eq!(open(c, path, TRUNCATE, READ), Err(ROFS), "{path}");
        assert_eq!(open(c, path, CREATE | TRUNCATE, READ | WRITE), Err(ROFS), "{path}");
        assert_eq!(on_path(c, "path_unlink_file", path), ROFS, "{path}");
        assert_eq!(rename(c, path, "stolen"), ROFS, "{path}");
    }
    // A new file next to the image's files, and over them.
    let mine = open(c, "mine", CREATE, READ | WRITE).unwrap();
    assert_eq!(write(c, mine, b"forged"), Ok(6));
    assert_eq!(rename(c, "mine", "top"), ROFS);
    assert_eq!(rename(c, "mine", "etc/rules"), ROFS);
    assert_eq!(rename(c, "etc", "elsewhere"), ROFS);
    assert_eq!(rename(c, "mine", "etc/other"), OK);
    // A file opened for reading cannot be written by any call.
    let rules = open(c, "etc/rules", 0, READ).unwrap();
    assert!(write(c, rules, b"x").is_err());
    assert_ne!(call(c, "fd_filestat_set_size", &[rules, 0], &[]).0, OK);
    assert_eq!(call(c, "fd_renumber", &[mine, rules], &[]).0, OK);
    assert_eq!(write(c, rules, b"x"), Ok(1), "the number is another file's now");
    let rules = open(c, "etc/rules", 0, READ).unwrap();
    assert_eq!(read(c, rules, 10), Ok(b"sealed".to_vec()));
    cells.remove(CELL);
    assert_eq!(unused(&mut cells, &image), new);
}

#[test]
fn an_altered_app_on_disk_is_refused_by_its_digest() {
    let dir = Dir::new();
    let images = Images::open(&dir.0).unwrap();
    let stage = images.deploy(&echo(), &[], &Quotas::default()).unwrap().hash;
    let chain = Chain::new(false, vec![("a".into(), stage), ("b".into(), stage)]).unwrap();
    let chain = images.deploy_chain(&chain).unwrap();
    for (hash, name) in [(stage, format!("{stage}.app")), (chain, format!("{chain}.chain"))] {
        let path = dir.0.join(name);
        let whole = std::fs::read(&path).unwrap();
        // A well-formed app, but another one: only the digest shows that.
        let other = crate::support::Dir::new();
        let others = Images::open(&other.0).unwrap();
        let forged = others.deploy(&crate::support::mixer(), &[], &Quotas::default()).unwrap().hash;
        let forged = others.app(forged).unwrap();
        let mut flipped = whole.clone();
        *flipped.last_mut().unwrap() ^= 1;
        for bytes in [forged, flipped, whole[..whole.len() - 1].to_vec(), vec![]] {
            std::fs::write(&path, bytes).unwrap();
            // Without compiled code only the app is checked.
            let _ = std::fs::remove_file(images.image_path(hash));
            let error = images.load(hash).unwrap_err();
            assert!(matches!(error, LoadError::App { .. }), "{error}");
            assert!(error.to_string().contains("its bytes do not match its digest"), "{error}");
            assert!(images.app(hash).is_err(), "nor is it given to others");
        }
        std::fs::write(&path, whole).unwrap();
        assert_eq!(images.load(hash).unwrap().hash(), hash);
    }
}

#[test]
fn native_code_of_another_app_is_refused_and_made_again() {
    let dir = Dir::new();
    let images = Images::open(&dir.0).unwrap();
    let [mine, other] = [echo(), crate::support::mixer()]
        .map(|module| images.deploy(&module, &[], &Quotas::default()).unwrap().hash);
    std::fs::copy(images.image_path(other), images.image_path(mine)).unwrap();
    let image = images.load(mine).unwrap();
    assert!(matches!(image.rebuilt(), Some(ImageFault::Corrupt(_))), "{:?}", image.rebuilt());
    let mut cells = cells();
    start_in(&mut cells, CELL, &image);
    assert_eq!(ask(&mut cells, b"hello"), [b"hello"]);
}

#[test]
fn altered_native_code_is_refused_and_made_again() {
    let dir = Dir::new();
    let images = Images::open(&dir.0).unwrap();
    let hash = images.deploy(&echo(), &[], &Quotas::default()).unwrap().hash;
    let path = images.image_path(hash);
    let whole = std::fs::read(&path).unwrap();
    assert_eq!(images.load(hash).unwrap().rebuilt(), None);
    let flipped = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes
    };
    let cases = [
        (whole[..whole.len() / 2].to_vec(), "length"),
        (vec![], "begin"),
        (flipped(0), "begin"),
        (flipped(20), "fails authentication"),
        (flipped(whole.len() / 2), "fails authentication"),
        (flipped(whole.len() - 1), "fails authentication"),
        (flipped(4), "another version"),
    ];
    for (bytes, word) in cases {
        std::fs::write(&path, bytes).unwrap();
        let image = images.load(hash).unwrap();
        let fault = image.rebuilt().expect("it had to be made again").to_string();
        assert!(fault.contains(word), "{fault:?} does not say {word:?}");
        assert_eq!(images.load(hash).unwrap().rebuilt(), None, "the new file is good");
        let mut cells = cells();
        start_in(&mut cells, CELL, &image);
        assert_eq!(ask(&mut cells, b"hello"), [b"hello"]);
    }
    std::fs::remove_file(&path).unwrap();
    assert_eq!(images.load(hash).unwrap().rebuilt(), Some(&ImageFault::Missing));
}

/// Valid in every way, and made by this program from this app, but on another machine.
#[test]
fn native_code_that_was_planted_is_refused_and_made_again() {
    let (dir, elsewhere) = (Dir::new(), crate::support::Dir::new());
    let (images, others) = (Images::open(&dir.0).unwrap(), Images::open(&elsewhere.0).unwrap());
    let hash = images.deploy(&echo(), &[], &Quotas::default()).unwrap().hash;
    assert_eq!(others.deploy(&echo(), &[], &Quotas::default()).unwrap().hash, hash);
    let planted = std::fs::read(others.image_path(hash)).unwrap();
    std::fs::write(images.image_path(hash), &planted).unwrap();
    let image = images.load(hash).unwrap();
    assert_eq!(image.rebuilt(), Some(&ImageFault::NotAuthentic));
    assert_ne!(std::fs::read(images.image_path(hash)).unwrap(), planted, "it is made again");
    let mut cells = cells();
    start_in(&mut cells, CELL, &image);
    assert_eq!(ask(&mut cells, b"hello"), [b"hello"]);
    // A deployment also checks it and reports the fault.
    std::fs::write(images.image_path(hash), &planted).unwrap();
    let info = images.deploy(&echo(), &[], &Quotas::default()).unwrap();
    assert_eq!(info.rebuilt, Some(ImageFault::NotAuthentic));
    assert_eq!(images.load(hash).unwrap().rebuilt(), None);
    // Without its key the machine cannot authenticate the files.
    std::fs::remove_file(dir.0.join("key")).unwrap();
    assert_eq!(Images::open(&dir.0).unwrap().load(hash).unwrap().rebuilt(), Some(&ImageFault::NotAuthentic));
}

#[test]
fn other_users_cannot_read_the_image_directory() {
    use std::os::unix::fs::PermissionsExt;
    let dir = Dir::new();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let deeper = dir.0.join("deeper");
    std::fs::create_dir_all(&deeper).unwrap();
    std::fs::set_permissions(&deeper, PermissionsExt::from_mode(0o777)).unwrap();
    Images::open(&deeper).unwrap();
    assert_eq!((mode(&deeper), mode(&deeper.join("key"))), (0o700, 0o600));
}

/// Any damaged upload is refused, or is a cell that runs or traps.
#[test]
fn damaged_modules_are_refused_or_contained() {
    let whole = crate::support::mixer();
    let quotas = Quotas { handler_time_ns: 5_000_000, ..Quotas::default() };
    let dir = Dir::new();
    let images = Images::open(&dir.0).unwrap().with_initialise_ms_max(50);
    let mut cells = cells();
    let (mut refused, mut deployed) = (0, 0);
    for at in (8..whole.len()).step_by(3) {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        let Ok(info) = images.deploy(&damaged, &[], &quotas) else {
            refused += 1;
            continue;
        };
        deployed += 1;
        cells.start(CELL, &images.load(info.hash).unwrap(), crate::support::SEED).unwrap();
        for input in
            [crate::support::message(b"g"), marram_session::cell::CellInput::Timer { stage: 0, token: 1 }]
        {
            let _ = crate::support::run(&mut cells, CELL, input, 0);
        }
        cells.remove(CELL);
        images.remove(info.hash).unwrap();
    }
    assert!(refused > 50 && deployed > 30, "{refused} refused, {deployed} deployed");
}
