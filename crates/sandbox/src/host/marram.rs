//! The imports of module `marram_v1`. `docs/abi.md` describes each function.

use super::ports::PortState;
use super::{ABI_MODULE, Host, Hosts, PrintLevel, guest_error, range, split, split_cell};
use crate::keys::is_certificate_verify;
use crate::limits::{
    MESSAGE_BYTES_MAX, OUTPUT_BYTES_PER_HANDLER_MAX, OUTPUTS_PER_HANDLER_MAX, RANDOM_BYTES_MAX,
    SIGNATURES_PER_HANDLER_MAX, TASK_CHANGES_PER_HANDLER_MAX, TIMER_CHANGES_PER_HANDLER_MAX,
};
use marram_session::cell::{CellOutput, TaskChange, TimerChange};
use marram_wire::{
    id::Port,
    limits::{CONNECTIONS_MAX, TEXT_MAX},
};
use std::borrow::Cow;
use wasmparser::ValType::{self, I32, I64};
use wasmtime::{Caller, Linker, Result};

/// Name, parameters and results of every function of the ABI. Deployment checks imports against it.
pub(crate) const FUNCTIONS: &[(&str, &[ValType], &[ValType])] = &[
    ("send", &[I32, I32, I32], &[]),
    ("close", &[I32], &[]),
    ("connect", &[I32, I32], &[I32]),
    ("pause", &[I32], &[]),
    ("resume", &[I32], &[]),
    ("peer", &[I32, I32, I32, I32], &[I32]),
    ("now", &[], &[I64]),
    ("random", &[I32, I32], &[]),
    ("sign", &[I32, I32, I32, I32, I32], &[I32]),
    ("cache_read", &[I32, I32, I32, I32], &[I32]),
    ("timer", &[I64, I64], &[]),
    ("timer_cancel", &[I64], &[]),
    ("spawn", &[I64], &[]),
    ("lock", &[I64, I64], &[]),
    ("unlock", &[I64], &[]),
    ("print", &[I32, I32, I32], &[]),
];

/// Adds the functions. The engine passes pointers, lengths and tokens as unsigned numbers.
pub(super) fn link(linker: &mut Linker<Hosts>) -> Result<()> {
    linker.func_wrap(ABI_MODULE, "send", send)?;
    linker.func_wrap(ABI_MODULE, "close", close)?;
    linker.func_wrap(ABI_MODULE, "connect", connect)?;
    linker.func_wrap(ABI_MODULE, "pause", pause)?;
    linker.func_wrap(ABI_MODULE, "resume", resume)?;
    linker.func_wrap(ABI_MODULE, "peer", peer)?;
    linker.func_wrap(ABI_MODULE, "now", now)?;
    linker.func_wrap(ABI_MODULE, "random", random)?;
    linker.func_wrap(ABI_MODULE, "sign", sign)?;
    linker.func_wrap(ABI_MODULE, "timer", timer)?;
    linker.func_wrap(ABI_MODULE, "timer_cancel", timer_cancel)?;
    linker.func_wrap(ABI_MODULE, "spawn", spawn)?;
    linker.func_wrap(ABI_MODULE, "lock", lock)?;
    linker.func_wrap(ABI_MODULE, "unlock", unlock)?;
    linker.func_wrap(ABI_MODULE, "print", print)?;
    Ok(())
}

fn send(mut caller: Caller<'_, Hosts>, port: u32, ptr: u32, len: u32) -> Result<()> {
    let (memory, hosts) = split_cell(&mut caller)?;
    let host = hosts.running();
    host.only_when_running("send")?;
    match host.ports.state(Port(port)) {
        PortState::Open => {}
        PortState::Gone => return Ok(()),
        PortState::Closed => return Err(guest_error(format!("send: the cell has closed port {port}"))),
        PortState::Connecting => {
            return Err(guest_error(format!("send: port {port} is not open yet: its server is not reached")));
        }
        PortState::Unknown => return Err(guest_error(format!("send: port {port} was never opened"))),
    }
    if len as usize > MESSAGE_BYTES_MAX {
        return Err(guest_error(format!(
            "send: a message of {len} bytes; the maximum is {MESSAGE_BYTES_MAX}"
        )));
    }
    let range = range(memory, ptr, len, "send")?;
    make_room(host, "send", range.len())?;
    hosts.send(Port(port), &memory[range]);
    Ok(())
}

/// Counts another output of `len` bytes. A handler's outputs stay in memory until it ends, so they are limited.
fn make_room(host: &mut Host, call: &str, len: usize) -> Result<()> {
    if host.sent >= OUTPUTS_PER_HANDLER_MAX {
        return Err(guest_error(format!(
            "{call}: more than {OUTPUTS_PER_HANDLER_MAX} outputs in one handler"
        )));
    }
    if host.sent_bytes + len > OUTPUT_BYTES_PER_HANDLER_MAX {
        return Err(guest_error(format!(
            "{call}: more than {OUTPUT_BYTES_PER_HANDLER_MAX} bytes in one handler"
        )));
    }
    host.sent += 1;
    host.sent_bytes += len;
    Ok(())
}

fn close(mut caller: Caller<'_, Hosts>, port: u32) -> Result<()> {
    let hosts = caller.data_mut();
    let host = hosts.running();
    host.only_when_running("close")?;
    match host.ports.close(Port(port)) {
        // The server is not to be reached any more.
        PortState::Open | PortState::Connecting => {
            make_room(host, "close", 0)?;
            hosts.close(Port(port));
            Ok(())
        }
        PortState::Closed | PortState::Gone => Ok(()),
        PortState::Unknown => Err(guest_error(format!("close: port {port} was never opened"))),
    }
}

/// Connects to a server that the manifest grants; answers with its port.
fn connect(mut caller: Caller<'_, Hosts>, name: u32, len: u32) -> Result<u32> {
    let (memory, hosts) = split_cell(&mut caller)?;
    hosts.running().only_when_running("connect")?;
    if len as usize > TEXT_MAX {
        return Err(guest_error(format!("connect: a name of {len} bytes; the maximum is {TEXT_MAX}")));
    }
    let range = range(memory, name, len, "connect")?;
    let name = String::from_utf8_lossy(&memory[range]).into_owned();
    let is_only = hosts.is_only_stage();
    let host = hosts.running();
    if !is_only || !host.servers.contains(&name) {
        let name = name.escape_debug();
        return Err(guest_error(format!(
            "connect: the app is not granted the server `{name}`; name it in the manifest, with `servers`"
        )));
    }
    make_room(host, "connect", 0)?;
    let Some(port) = host.ports.connect() else {
        return Err(guest_error(format!("connect: more than {CONNECTIONS_MAX} servers at a time")));
    };
    hosts.connect(port, name);
    Ok(port.0)
}

fn pause(mut caller: Caller<'_, Hosts>, port: u32) -> Result<()> {
    change_flow(caller.data_mut(), "pause", Port(port), |stage, port| CellOutput::Pause { stage, port })
}

fn resume(mut caller: Caller<'_, Hosts>, port: u32) -> Result<()> {
    change_flow(caller.data_mut(), "resume", Port(port), |stage, port| CellOutput::Resume { stage, port })
}

/// Pauses or resumes receiving from a port. The cell may have closed the other direction.
fn change_flow(
    hosts: &mut Hosts,
    call: &'static str,
    port: Port,
    change: fn(u8, Port) -> CellOutput,
) -> Result<()> {
    let host = hosts.running();
    host.only_when_running(call)?;
    match host.ports.state(port) {
        PortState::Open | PortState::Closed => {
            make_room(host, call, 0)?;
            let change = change(host.stage, port);
            hosts.change_flow(change);
            Ok(())
        }
        PortState::Gone | PortState::Connecting => Ok(()),
        PortState::Unknown => Err(guest_error(format!("{call}: port {} was never opened", port.0))),
    }
}

/// Result of `peer` if the value is unknown.
const UNKNOWN: i32 = -1;

/// Writes the value only if there is room for all of it, and returns its length in both cases.
fn peer(mut caller: Caller<'_, Hosts>, port: u32, field: u32, buf: u32, room: u32) -> Result<i32> {
    let (memory, host) = split(&mut caller)?;
    host.only_when_running("peer")?;
    let place = range(memory, buf, room, "peer")?;
    let value = host.ports.peer(Port(port)).and_then(|peer| match field {
        0 => peer.address.map(|address| Cow::Owned(address.to_string())),
        1 => Some(Cow::Borrowed(&peer.listener[..])).filter(|name| !name.is_empty()),
        2 => peer.identity.as_deref().map(Cow::Borrowed),
        _ => None,
    });
    let Some(value) = value else { return Ok(UNKNOWN) };
    if let Some(place) = memory[place].get_mut(..value.len()) {
        place.copy_from_slice(value.as_bytes());
    }
    Ok(i32::try_from(value.len()).expect("a text of a log entry is short"))
}

fn now(mut caller: Caller<'_, Hosts>) -> Result<i64> {
    let host = caller.data_mut().running();
    host.only_when_running("now")?;
    Ok(host.now())
}

fn random(mut caller: Caller<'_, Hosts>, ptr: u32, len: u32) -> Result<()> {
    let (memory, host) = split(&mut caller)?;
    host.only_when_running("random")?;
    if len as usize > RANDOM_BYTES_MAX {
        return Err(guest_error(format!(
            "random: {len} bytes in one call; the maximum is {RANDOM_BYTES_MAX}"
        )));
    }
    let range = range(memory, ptr, len, "random")?;
    host.generator.fill(&mut memory[range]);
    Ok(())
}

/// The engine charges the cell for the time, as for all of its computation.
fn sign(mut caller: Caller<'_, Hosts>, key: u32, ptr: u32, len: u32, out: u32, room: u32) -> Result<u32> {
    let (memory, host) = split(&mut caller)?;
    host.only_when_running("sign")?;
    let Some(signer) = host.keys.get(key as usize) else {
        let count = host.keys.len();
        return Err(guest_error(format!("sign: there is no key {key}; the manifest names {count}")));
    };
    let message = &memory[range(memory, ptr, len, "sign")?];
    let out = range(memory, out, room, "sign")?;
    if !is_certificate_verify(message) {
        let what =
            "sign: the message is not what a TLS 1.3 server signs in a handshake; nothing else can be signed";
        return Err(guest_error(what));
    }
    if host.signatures >= SIGNATURES_PER_HANDLER_MAX {
        return Err(guest_error(format!(
            "sign: more than {SIGNATURES_PER_HANDLER_MAX} signatures in one handler"
        )));
    }
    host.signatures += 1;
    let signature = signer.sign(message);
    let Some(place) = memory[out].get_mut(..signature.len()) else {
        return Err(guest_error(format!(
            "sign: room for {room} bytes; this signature has {}",
            signature.len()
        )));
    };
    place.copy_from_slice(&signature);
    Ok(u32::try_from(signature.len()).expect("it fits where it was put, whose length is one"))
}

fn timer(mut caller: Caller<'_, Hosts>, delay_ns: i64, token: u64) -> Result<()> {
    let host = caller.data_mut().running();
    host.only_when_running("timer")?;
    // The due time is computed from the handler's time.
    host.clock_read = true;
    let stage = host.stage;
    change_timer(caller.data_mut(), TimerChange::Set { stage, token, delay_ns: delay_ns.max(0) })
}

fn timer_cancel(mut caller: Caller<'_, Hosts>, token: u64) -> Result<()> {
    let host = caller.data_mut().running();
    host.only_when_running("timer_cancel")?;
    let stage = host.stage;
    change_timer(caller.data_mut(), TimerChange::Cancel { stage, token })
}

fn change_timer(hosts: &mut Hosts, change: TimerChange) -> Result<()> {
    let host = hosts.running();
    if host.timer_changes >= TIMER_CHANGES_PER_HANDLER_MAX {
        return Err(guest_error(format!(
            "timer: more than {TIMER_CHANGES_PER_HANDLER_MAX} changes in one handler"
        )));
    }
    host.timer_changes += 1;
    hosts.change_timer(change);
    Ok(())
}

fn spawn(mut caller: Caller<'_, Hosts>, token: u64) -> Result<()> {
    let host = caller.data_mut().running();
    host.only_when_running("spawn")?;
    let stage = host.stage;
    change_task(caller.data_mut(), "spawn", TaskChange::Spawn { stage, token })
}

fn lock(mut caller: Caller<'_, Hosts>, id: u64, token: u64) -> Result<()> {
    let host = caller.data_mut().running();
    host.only_when_running("lock")?;
    let stage = host.stage;
    change_task(caller.data_mut(), "lock", TaskChange::Lock { stage, id, token })
}

fn unlock(mut caller: Caller<'_, Hosts>, id: u64) -> Result<()> {
    let host = caller.data_mut().running();
    host.only_when_running("unlock")?;
    let stage = host.stage;
    let Some(token) = host.task else {
        let what =
            "only the task that holds a lock can release it, and this handler does not belong to a task";
        return Err(guest_error(format!("unlock: lock {id}: {what}")));
    };
    change_task(caller.data_mut(), "unlock", TaskChange::Unlock { stage, id, token })
}

fn change_task(hosts: &mut Hosts, call: &str, change: TaskChange) -> Result<()> {
    let host = hosts.running();
    if host.task_changes >= TASK_CHANGES_PER_HANDLER_MAX {
        return Err(guest_error(format!(
            "{call}: more than {TASK_CHANGES_PER_HANDLER_MAX} changes of tasks and locks in one handler"
        )));
    }
    host.task_changes += 1;
    hosts.change_task(change);
    Ok(())
}

fn print(mut caller: Caller<'_, Hosts>, level: u32, ptr: u32, len: u32) -> Result<()> {
    let (memory, host) = split(&mut caller)?;
    let range = range(memory, ptr, len, "print")?;
    let level = match level {
        0 => PrintLevel::Error,
        1 => PrintLevel::Warning,
        2 => PrintLevel::Information,
        _ => PrintLevel::Debug,
    };
    host.print(level, &memory[range]);
    Ok(())
}
