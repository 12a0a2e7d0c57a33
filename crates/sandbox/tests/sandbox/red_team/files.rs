//! Attacks by paths and descriptors: out of the tree, into the image's files, and with as many descriptors as possible.

use super::witness::Witness;
use crate::support::files::{
    AT, BADF, CREATE, DIRECTORY, NOENT, NOSPC, NOTCAPABLE, NOTDIR, NOTSUP, OK, READ, ROOT, WRITE, list,
    on_path, open, read, rename, stat, write,
};
use crate::support::wasi::{call, proxy};
use crate::support::{CELL, cells, deploy_with, start_in};
use marram_sandbox::limits::{DESCRIPTORS_MAX, NAME_BYTES_MAX, NODE_BYTES};
use marram_sandbox::{Cells, ImageFile, Quotas};

const NAMETOOLONG: u32 = 37;
const ILSEQ: u32 = 25;
const MFILE: u32 = 33;

fn begin(scratch_max: u64) -> Cells {
    let file = ImageFile { path: "etc/motd".into(), contents: b"welcome".to_vec() };
    let mut cells = cells();
    start_in(&mut cells, CELL, &deploy_with(&proxy(), &Quotas { scratch_max, ..Quotas::default() }, &[file]));
    cells
}

#[test]
fn paths_that_lead_out_of_the_tree_are_refused() {
    let mut cells = begin(1 << 20);
    let mut witness = Witness::beside(&mut cells);
    let c = &mut cells;
    let climb = "../".repeat(500) + "etc/passwd";
    for path in ["..", "../x", "/", "/etc/passwd", "etc/../..", "etc/../../x", "./../x", "//etc", &climb] {
        assert_eq!(open(c, path, 0, READ), Err(NOTCAPABLE), "{path}");
        assert_eq!(open(c, path, CREATE, WRITE), Err(NOTCAPABLE), "{path}");
        assert_ne!(on_path(c, "path_create_directory", path), OK, "{path}");
        assert_eq!(on_path(c, "path_unlink_file", path), NOTCAPABLE, "{path}");
        assert_ne!(rename(c, "etc/motd", path), OK, "{path}");
        assert_ne!(rename(c, path, "mine"), OK, "{path}");
    }
    for path in ["proc/self/mem", "dev/null", "etc/passwd", "etc/motd/../../../etc/passwd", "~/x", "C:\\x"] {
        assert!(matches!(open(c, path, 0, READ), Err(NOENT | NOTDIR | NOTCAPABLE)), "{path}");
    }
    // Also from a directory further down.
    let etc = open(c, "etc", DIRECTORY, READ).unwrap();
    let path = b"../../x";
    assert_eq!(call(c, "path_unlink_file", &[etc, AT, path.len() as u64], path).0, NOTCAPABLE);
    assert_eq!(list(c, "."), [".", "..", "etc"]);
    witness.is_untouched(c, "paths");
    witness.answers(c);
}

#[test]
fn links_that_could_lead_anywhere_are_not_made() {
    let mut cells = begin(1 << 20);
    let data = b"/etc/passwdlink";
    for (name, arguments) in [
        ("path_symlink", &[AT, 11, ROOT, AT + 11, 4][..]),
        ("path_link", &[ROOT, 0, AT, 11, ROOT, AT + 11, 4]),
        ("path_readlink", &[ROOT, AT + 11, 4, AT + 64, 64, AT + 128]),
    ] {
        assert_eq!(call(&mut cells, name, arguments, data).0, NOTSUP, "{name}");
    }
    assert_eq!(list(&mut cells, "."), [".", "..", "etc"]);
}

#[test]
fn names_that_are_too_long_or_no_text_are_refused() {
    let mut cells = begin(1 << 20);
    let c = &mut cells;
    let longest = "n".repeat(NAME_BYTES_MAX);
    assert!(open(c, &longest, CREATE, WRITE).is_ok());
    for path in [format!("{longest}n"), format!("etc/{longest}n"), format!("{longest}n/x")] {
        assert_eq!(open(c, &path, CREATE, WRITE), Err(NAMETOOLONG));
        assert_eq!(rename(c, &longest, &path), NAMETOOLONG);
    }
    // Longer than any path, over memory that holds one name.
    for len in [4_097, 65_536, 1 << 20] {
        assert_ne!(call(c, "path_create_directory", &[ROOT, AT, len], b"x").0, OK, "{len}");
    }
    assert_eq!(open(c, "", CREATE, WRITE), Err(NOENT));
    for path in [&b"\xff"[..], b"a\xc3", b"\xed\xa0\x80"] {
        assert_eq!(
            call(c, "path_create_directory", &[ROOT, AT, path.len() as u64], path).0,
            ILSEQ,
            "{path:?}"
        );
    }
    assert_eq!(list(c, "."), [".", "..", "etc", &longest]);
}

#[test]
fn descriptors_run_out_with_an_errno_and_come_back() {
    let mut cells = begin(1 << 20);
    let mut witness = Witness::beside(&mut cells);
    let c = &mut cells;
    // Three for the streams, one for the root.
    let opened: Vec<u64> = (4..DESCRIPTORS_MAX).map(|_| open(c, "etc/motd", 0, READ).unwrap()).collect();
    assert_eq!(open(c, "etc/motd", 0, READ), Err(MFILE));
    assert_eq!(open(c, "new", CREATE, WRITE), Err(MFILE));
    assert_eq!(stat(c, "new"), Err(NOENT), "what cannot be opened is not made");
    for fd in [DESCRIPTORS_MAX as u64, 1 << 31, u64::from(u32::MAX)] {
        assert_eq!(call(c, "fd_close", &[fd], &[]).0, BADF);
        assert_ne!(call(c, "fd_renumber", &[4, fd], &[]).0, OK, "{fd}");
    }
    for fd in opened {
        assert_eq!(call(c, "fd_close", &[fd], &[]).0, OK);
    }
    assert!(open(c, "etc/motd", 0, READ).is_ok());
    witness.is_untouched(c, "descriptors");
    witness.answers(c);
}

#[test]
fn files_that_are_unlinked_while_open_count_until_they_are_closed() {
    let mut cells = begin(8 * NODE_BYTES);
    let c = &mut cells;
    for _ in 0..3 {
        let held: Vec<u64> = (0..8)
            .map(|n| {
                let fd = open(c, &format!("f{n}"), CREATE, WRITE).unwrap();
                assert_eq!(on_path(c, "path_unlink_file", &format!("f{n}")), OK);
                fd
            })
            .collect();
        assert_eq!(open(c, "one more", CREATE, WRITE), Err(NOSPC));
        assert_eq!(write(c, held[0], b"x"), Err(NOSPC));
        for fd in held {
            assert_eq!(call(c, "fd_close", &[fd], &[]).0, OK);
        }
    }
    let motd = open(c, "etc/motd", 0, READ).unwrap();
    assert_eq!(read(c, motd, 9), Ok(b"welcome".to_vec()));
}
