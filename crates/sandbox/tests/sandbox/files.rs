//! WASI: files, clocks, randomness and everything that is not available.

use crate::support::{
    self, CELL, cells, deploy_with,
    files::*,
    start_in,
    wasi::{call, proxy},
};
use marram_sandbox::{Cells, Decoded, ImageFile, PrintLevel, Quotas};
use marram_session::cell::{CellId, CheckpointBase};
use std::sync::Arc;

fn image_with(quotas: &Quotas) -> Arc<marram_sandbox::Image> {
    let file = |path: &str, contents: &[u8]| ImageFile { path: path.into(), contents: contents.into() };
    let files = [file("etc/motd", b"welcome to the shore"), file("a.txt", &[5; 9000])];
    deploy_with(&proxy(), quotas, &files)
}

fn begin() -> Cells {
    let mut cells = cells();
    start_in(&mut cells, CELL, &image_with(&Quotas::default()));
    cells
}

#[test]
fn image_files_are_read_and_never_written() {
    let mut cells = begin();
    let fd = open(&mut cells, "etc/motd", 0, READ).unwrap();
    assert_eq!(fd, 4, "the lowest free number");
    assert_eq!(read(&mut cells, fd, 10), Ok(b"welcome to".to_vec()));
    assert_eq!(read(&mut cells, fd, 100), Ok(b" the shore".to_vec()));
    assert_eq!(read(&mut cells, fd, 100), Ok(vec![]));
    assert_eq!(write(&mut cells, fd, b"x"), Err(BADF));
    assert_eq!(open(&mut cells, "etc/motd", 0, READ | WRITE), Err(ROFS));
    assert_eq!(open(&mut cells, "etc/motd", TRUNCATE, READ), Err(ROFS));
    assert_eq!(on_path(&mut cells, "path_unlink_file", "etc/motd"), ROFS);
    assert_eq!(rename(&mut cells, "etc/motd", "motd"), ROFS);
    assert_eq!(rename(&mut cells, "etc", "other"), ROFS);
    assert_eq!(stat(&mut cells, "a.txt"), Ok((4, 9000)));
    assert_eq!(stat(&mut cells, "etc"), Ok((3, 0)));
    assert_eq!(list(&mut cells, "."), [".", "..", "a.txt", "etc"]);
    assert_eq!(list(&mut cells, "etc"), [".", "..", "motd"]);
}

#[test]
fn scratch_files_do_what_files_do() {
    let mut cells = begin();
    let c = &mut cells;
    assert_eq!(open(c, "new", 0, READ), Err(NOENT));
    let fd = open(c, "new", CREATE, READ | WRITE).unwrap();
    assert_eq!(write(c, fd, b"hello world"), Ok(11));
    assert_eq!(seek(c, fd, -5, 2), Ok(6));
    assert_eq!(write(c, fd, b"shore"), Ok(5));
    assert_eq!(seek(c, fd, 0, 0), Ok(0));
    assert_eq!(read(c, fd, 100), Ok(b"hello shore".to_vec()));
    assert_eq!(seek(c, fd, -1, 0), Err(INVAL));
    assert_eq!(seek(c, fd, 5000, 0), Ok(5000));
    assert_eq!(write(c, fd, b"far"), Ok(3));
    assert_eq!(stat(c, "new"), Ok((4, 5003)));
    assert_eq!(call(c, "fd_filestat_set_size", &[fd, 5], &[]).0, OK);
    assert_eq!(call(c, "fd_filestat_set_size", &[fd, 8], &[]).0, OK);
    assert_eq!(seek(c, fd, 0, 0), Ok(0));
    assert_eq!(read(c, fd, 100), Ok(b"hello\0\0\0".to_vec()));
    let appending = open_with(c, "new", 0, READ | WRITE, 1).unwrap();
    assert_eq!(write(c, appending, b"!"), Ok(1));
    assert_eq!(stat(c, "new"), Ok((4, 9)));
    assert_eq!(open(c, "new", CREATE | EXCLUSIVE, WRITE), Err(EXIST));
    let again = open(c, "new", TRUNCATE, WRITE).unwrap();
    assert_eq!(stat(c, "new"), Ok((4, 0)));
    assert_eq!(read(c, again, 1), Err(BADF), "it was not opened for reading");
    for fd in [fd, appending, again] {
        assert_eq!(call(c, "fd_close", &[fd], &[]).0, OK);
        assert_eq!(call(c, "fd_close", &[fd], &[]).0, BADF);
    }
}

#[test]
fn names_move_and_go_as_they_should() {
    let mut cells = begin();
    let c = &mut cells;
    assert_eq!(on_path(c, "path_create_directory", "d"), OK);
    assert_eq!(on_path(c, "path_create_directory", "d"), EXIST);
    assert_eq!(on_path(c, "path_create_directory", "d/e"), OK);
    assert_eq!(on_path(c, "path_create_directory", "x/y"), NOENT);
    let fd = open(c, "d/e/f", CREATE, READ | WRITE).unwrap();
    assert_eq!(write(c, fd, b"kept"), Ok(4));
    assert_eq!(on_path(c, "path_remove_directory", "d"), NOTEMPTY);
    assert_eq!(on_path(c, "path_unlink_file", "d"), ISDIR);
    assert_eq!(on_path(c, "path_remove_directory", "d/e/f"), NOTDIR);
    assert_eq!(rename(c, "d", "d/e/d"), INVAL);
    assert_eq!(rename(c, "d/e/f", "f"), OK);
    assert_eq!(list(c, "d/e"), [".", ".."]);
    assert_eq!(rename(c, "d/e", "e"), OK);
    assert_eq!(stat(c, "e/../f"), Ok((4, 4)));
    assert_eq!(stat(c, "../f"), Err(NOTCAPABLE));
    assert_eq!(stat(c, "/f"), Err(NOTCAPABLE));
    assert_eq!(stat(c, "f/"), Err(NOTDIR));
    // Unlinked while open: it stays readable until its last descriptor is closed.
    assert_eq!(on_path(c, "path_unlink_file", "f"), OK);
    assert_eq!(stat(c, "f"), Err(NOENT));
    assert_eq!(seek(c, fd, 0, 0), Ok(0));
    assert_eq!(read(c, fd, 10), Ok(b"kept".to_vec()));
    assert_eq!(call(c, "fd_renumber", &[fd, 3], &[]).0, OK);
    assert_eq!(call(c, "fd_close", &[3], &[]).0, OK);
    assert_eq!(call(c, "fd_prestat_get", &[3, AT], &[]).0, OK);
    assert_eq!(on_path(c, "path_create_directory", "z"), BADF, "the root was given up");
}

#[test]
fn the_scratch_quota_is_kept_and_given_back() {
    let quotas = Quotas { scratch_max: 16 * 1024, ..Quotas::default() };
    let mut cells = cells();
    start_in(&mut cells, CELL, &image_with(&quotas));
    let c = &mut cells;
    for _ in 0..3 {
        let fd = open(c, "a", CREATE, READ | WRITE).unwrap();
        // The node takes 1 KiB, so three pages fit.
        for page in 0..3 {
            assert_eq!(seek(c, fd, page * 4096, 0).unwrap(), page.cast_unsigned() * 4096);
            assert_eq!(write(c, fd, b"x"), Ok(1));
        }
        assert_eq!(write(c, fd, &[1; 3900]), Ok(3900), "no further page");
        assert_eq!(seek(c, fd, 3 * 4096, 0), Ok(3 * 4096));
        assert_eq!(write(c, fd, b"x"), Err(NOSPC));
        assert_eq!(call(c, "fd_filestat_set_size", &[fd, 4096], &[]).0, OK);
        assert_eq!(write(c, fd, b"x"), Ok(1));
        assert_eq!(call(c, "fd_close", &[fd], &[]).0, OK);
        assert_eq!(on_path(c, "path_unlink_file", "a"), OK);
    }
    for n in 0..16 {
        assert_eq!(on_path(c, "path_create_directory", &format!("d{n}")), OK);
    }
    assert_eq!(on_path(c, "path_create_directory", "one too many"), NOSPC);
}

#[test]
fn files_travel_in_checkpoints() {
    let image = image_with(&Quotas::default());
    let mut first = cells();
    start_in(&mut first, CELL, &image);
    let (mut chain, mut follower) = (Vec::new(), support::cells());
    let mut checkpoint = |cells: &mut Cells| {
        let base = if chain.is_empty() { CheckpointBase::Image } else { CheckpointBase::Previous };
        chain.push(cells.snapshot(CELL, base).unwrap().encode());
        let mut second = support::cells();
        start_in(&mut second, CellId(5), &image);
        second.restore(CELL, &image, &Decoded::decode(&chain).unwrap()).unwrap();
        assert_eq!(second.state_hash(CELL), cells.state_hash(CELL), "checkpoint {}", chain.len());
        let next = Decoded::decode(&chain[chain.len() - 1..]).unwrap();
        match base {
            CheckpointBase::Image => follower.restore(CELL, &image, &next).unwrap(),
            _ => follower.advance(CELL, &next).unwrap(),
        }
        assert_eq!(follower.state_hash(CELL), cells.state_hash(CELL), "checkpoint {}", chain.len());
        (chain.last().unwrap().len(), second)
    };
    checkpoint(&mut first);
    let log = open(&mut first, "log", CREATE, READ | WRITE).unwrap();
    for n in 0..20 {
        assert_eq!(write(&mut first, log, &[n; 3000]), Ok(3000));
    }
    checkpoint(&mut first);
    assert_eq!(on_path(&mut first, "path_create_directory", "d"), OK);
    assert_eq!(rename(&mut first, "log", "d/log"), OK);
    let (size, _) = checkpoint(&mut first);
    assert!(size < 9000, "{size}: a name and the guest's own pages, not the contents");
    assert_eq!(call(&mut first, "fd_filestat_set_size", &[log, 5000], &[]).0, OK);
    assert_eq!(call(&mut first, "fd_filestat_set_size", &[log, 50_000], &[]).0, OK);
    assert_eq!(seek(&mut first, log, 4990, 0), Ok(4990));
    checkpoint(&mut first);
    assert_eq!(on_path(&mut first, "path_unlink_file", "d/log"), OK);
    let (_, mut second) = checkpoint(&mut first);
    // The restored cell has the same unlinked file under the same descriptor.
    for cells in [&mut first, &mut second] {
        assert_eq!(read(cells, log, 20), Ok([&[1; 10][..], &[0; 10][..]].concat()));
        assert_eq!(call(cells, "fd_close", &[log], &[]).0, OK);
        assert_eq!(open(cells, "next", CREATE, WRITE), Ok(log));
    }
    assert_eq!(first.state_hash(CELL), second.state_hash(CELL));
}

#[test]
fn clocks_and_randomness_are_the_sessions_own() {
    let mut cells = begin();
    for clock in [0, 1] {
        let (errno, data) = call(&mut cells, "clock_time_get", &[clock, 1, AT], &[]);
        assert_eq!((errno, &data[..8]), (OK, &77_u64.to_le_bytes()[..]));
        let (errno, data) = call(&mut cells, "clock_res_get", &[clock, AT], &[]);
        assert_eq!((errno, &data[..8]), (OK, &1_u64.to_le_bytes()[..]));
    }
    assert_eq!(call(&mut cells, "clock_time_get", &[2, 1, AT], &[]).0, INVAL);
    let (_, a) = call(&mut cells, "random_get", &[AT, 32], &[]);
    let mut again = begin();
    let (_, b) = call(&mut again, "random_get", &[AT, 32], &[]);
    assert_eq!(a[..32], b[..32]);
    assert_ne!(a[..32], [0; 32]);
    assert_eq!(call(&mut cells, "random_get", &[0, 100_000], &[]).0, INVAL);
}

#[test]
fn what_is_not_there_says_so() {
    let mut cells = begin();
    let c = &mut cells;
    for name in ["args_sizes_get", "environ_sizes_get"] {
        let (errno, data) = call(c, name, &[AT, AT + 4], &[9; 8]);
        assert_eq!((errno, &data[..8]), (OK, &[0; 8][..]), "{name}");
    }
    for name in
        ["poll_oneoff", "sock_accept", "sock_recv", "sock_send", "sock_shutdown", "path_link", "path_symlink"]
    {
        assert_eq!(call(c, name, &[0; 7], &[]).0, NOTSUP, "{name}");
    }
    assert_eq!(call(c, "sched_yield", &[], &[]).0, OK);
    assert_eq!(read(c, 0, 10), Ok(vec![]));
    assert_eq!(write(c, 1, b"out\nline"), Ok(8));
    assert_eq!(write(c, 2, b"err\n"), Ok(4));
    let prints = c.take_prints(CELL);
    let expected =
        [(PrintLevel::Information, "out"), (PrintLevel::Information, "line"), (PrintLevel::Error, "err")];
    assert_eq!(prints.iter().map(|print| (print.level, print.text.as_str())).collect::<Vec<_>>(), expected);
}
