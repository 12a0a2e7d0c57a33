//! A guest that makes any host call with any arguments, for a test.

use super::{CELL, ask_at};
use marram_sandbox::Cells;
use std::fmt::Write;

/// Address of the data that a test gives to the guest; pointers in arguments point here.
pub const DATA: u32 = 0x100_080;
/// Bytes of that.
pub const DATA_BYTES: usize = 4096 - 128;

/// Every call with its parameters, `i` for 32 and `I` for 64 bits, and whether it returns an errno.
pub const CALLS: &[(&str, &str, &str, bool)] = &[
    ("wasi_snapshot_preview1", "args_get", "ii", true),
    ("wasi_snapshot_preview1", "args_sizes_get", "ii", true),
    ("wasi_snapshot_preview1", "clock_res_get", "ii", true),
    ("wasi_snapshot_preview1", "clock_time_get", "iIi", true),
    ("wasi_snapshot_preview1", "environ_get", "ii", true),
    ("wasi_snapshot_preview1", "environ_sizes_get", "ii", true),
    ("wasi_snapshot_preview1", "fd_advise", "iIIi", true),
    ("wasi_snapshot_preview1", "fd_allocate", "iII", true),
    ("wasi_snapshot_preview1", "fd_close", "i", true),
    ("wasi_snapshot_preview1", "fd_datasync", "i", true),
    ("wasi_snapshot_preview1", "fd_fdstat_get", "ii", true),
    ("wasi_snapshot_preview1", "fd_fdstat_set_flags", "ii", true),
    ("wasi_snapshot_preview1", "fd_fdstat_set_rights", "iII", true),
    ("wasi_snapshot_preview1", "fd_filestat_get", "ii", true),
    ("wasi_snapshot_preview1", "fd_filestat_set_size", "iI", true),
    ("wasi_snapshot_preview1", "fd_filestat_set_times", "iIIi", true),
    ("wasi_snapshot_preview1", "fd_pread", "iiiIi", true),
    ("wasi_snapshot_preview1", "fd_prestat_dir_name", "iii", true),
    ("wasi_snapshot_preview1", "fd_prestat_get", "ii", true),
    ("wasi_snapshot_preview1", "fd_pwrite", "iiiIi", true),
    ("wasi_snapshot_preview1", "fd_read", "iiii", true),
    ("wasi_snapshot_preview1", "fd_readdir", "iiiIi", true),
    ("wasi_snapshot_preview1", "fd_renumber", "ii", true),
    ("wasi_snapshot_preview1", "fd_seek", "iIii", true),
    ("wasi_snapshot_preview1", "fd_sync", "i", true),
    ("wasi_snapshot_preview1", "fd_tell", "ii", true),
    ("wasi_snapshot_preview1", "fd_write", "iiii", true),
    ("wasi_snapshot_preview1", "path_create_directory", "iii", true),
    ("wasi_snapshot_preview1", "path_filestat_get", "iiiii", true),
    ("wasi_snapshot_preview1", "path_filestat_set_times", "iiiiIIi", true),
    ("wasi_snapshot_preview1", "path_link", "iiiiiii", true),
    ("wasi_snapshot_preview1", "path_open", "iiiiiIIii", true),
    ("wasi_snapshot_preview1", "path_readlink", "iiiiii", true),
    ("wasi_snapshot_preview1", "path_remove_directory", "iii", true),
    ("wasi_snapshot_preview1", "path_rename", "iiiiii", true),
    ("wasi_snapshot_preview1", "path_symlink", "iiiii", true),
    ("wasi_snapshot_preview1", "path_unlink_file", "iii", true),
    ("wasi_snapshot_preview1", "poll_oneoff", "iiii", true),
    ("wasi_snapshot_preview1", "proc_exit", "i", false),
    ("wasi_snapshot_preview1", "proc_raise", "i", true),
    ("wasi_snapshot_preview1", "random_get", "ii", true),
    ("wasi_snapshot_preview1", "sched_yield", "", true),
    ("wasi_snapshot_preview1", "sock_accept", "iii", true),
    ("wasi_snapshot_preview1", "sock_recv", "iiiiii", true),
    ("wasi_snapshot_preview1", "sock_send", "iiiii", true),
    ("wasi_snapshot_preview1", "sock_shutdown", "ii", true),
    ("marram_v1", "send", "iii", false),
    ("marram_v1", "close", "i", false),
    ("marram_v1", "pause", "i", false),
    ("marram_v1", "resume", "i", false),
    ("marram_v1", "peer", "iiii", true),
    ("marram_v1", "random", "ii", false),
    ("marram_v1", "timer", "II", false),
    ("marram_v1", "timer_cancel", "I", false),
    ("marram_v1", "print", "iii", false),
];

/// The call that takes a key, for [`signing_proxy`].
pub const SIGN: (&str, &str, &str, bool) = ("marram_v1", "sign", "iiiii", true);

/// As [`proxy`], also for [`SIGN`].
pub fn signing_proxy() -> Vec<u8> {
    proxy_for(&[CALLS, &[SIGN]].concat())
}

/// A guest that takes `| call 4 | answer page? 4 | 14 arguments of 8 | data |`, makes the call, and sends back
/// `| errno 4 | ... | data |`.
pub fn proxy() -> Vec<u8> {
    proxy_for(CALLS)
}

fn proxy_for(calls: &[(&str, &str, &str, bool)]) -> Vec<u8> {
    let mut text = String::from("(module\n");
    for (n, (module, name, params, errno)) in calls.iter().enumerate() {
        let params: String = params.chars().map(|p| if p == 'i' { " i32" } else { " i64" }).collect();
        let result = if *errno { "(result i32)" } else { "" };
        writeln!(text, r#"(import "{module}" "{name}" (func $c{n} (param{params}) {result}))"#).unwrap();
    }
    text.push_str(
        r#"(memory (export "memory") 40)
           (func (export "marram_alloc") (param i32) (result i32) (i32.const 0x100000))
           (func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
             (local $call i32)
             (local.set $call (i32.load (i32.const 0x100000)))
             (i32.store (i32.const 0x100000) (i32.const 0))
        "#,
    );
    for (n, (_, _, params, errno)) in calls.iter().enumerate() {
        let arguments: String = params
            .chars()
            .enumerate()
            .map(|(n, p)| {
                let at = 0x100_008 + 8 * n;
                if p == 'i' {
                    format!(" (i32.load (i32.const {at}))")
                } else {
                    format!(" (i64.load (i32.const {at}))")
                }
            })
            .collect();
        let call = format!("(call $c{n}{arguments})");
        let call = if *errno { format!("(i32.store (i32.const 0x100000) {call})") } else { call };
        writeln!(text, "(if (i32.eq (local.get $call) (i32.const {n})) (then {call}))").unwrap();
    }
    text.push_str("(call $c46 (local.get $port) (i32.const 0x100000) (i32.const 4096))))");
    assert_eq!(CALLS[46].1, "send");
    super::module(&text)
}

/// The message that asks the proxy for a call.
pub fn request(name: &str, arguments: &[u64], data: &[u8]) -> Vec<u8> {
    let index = CALLS.iter().chain([&SIGN]).position(|call| call.1 == name).expect("the call is in the list");
    let mut message = vec![0; 128];
    message[..4].copy_from_slice(&u32::try_from(index).unwrap().to_le_bytes());
    for (n, argument) in arguments.iter().enumerate() {
        message[8 + 8 * n..16 + 8 * n].copy_from_slice(&argument.to_le_bytes());
    }
    message.extend_from_slice(data);
    message
}

/// Makes a call; returns its errno, and the data after the call.
pub fn call(cells: &mut Cells, name: &str, arguments: &[u64], data: &[u8]) -> (u32, Vec<u8>) {
    let replies = ask_at(cells, CELL, &request(name, arguments, data), 77);
    let reply = replies.last().expect("the proxy answers");
    (u32::from_le_bytes(reply[..4].try_into().unwrap()), reply[128..].to_vec())
}
