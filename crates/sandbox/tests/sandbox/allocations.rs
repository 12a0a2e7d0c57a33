//! Counts the allocations for a message to a cell that has lived for a while: two for its outputs and one by the engine, for
//! the stack of the call, independent of the number of stages.

use crate::support::{CELL, deploy, deploy_chain, guest, message, season, start};
use marram_sandbox::{Cells, Progress};
use marram_session::cell::Run;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; counting only changes a plain thread-local number.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(ptr, layout) }
    }

    // The provided versions of these two would write every byte, which costs the other tests of this program time and memory.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller promises.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations per message, averaged over a thousand.
fn of_a_message(cells: &mut Cells) -> f64 {
    let input = message(&[7; 64]);
    let mut handle = || {
        let run = Run { cell: CELL, input: input.clone(), now_ns: 0, logged: None };
        match cells.run(run) {
            Progress::Done(ran) => assert_eq!(ran.outputs.len(), 1),
            // Preempted on a busy machine: not counted separately.
            Progress::Pending => while !matches!(cells.poll(CELL), Progress::Done(_)) {},
        }
    };
    for _ in 0..10 {
        handle();
    }
    let before = COUNT.get();
    for _ in 0..1000 {
        handle();
    }
    (COUNT.get() - before) as f64 / 1000.0
}

#[test]
fn a_message_allocates_what_its_output_needs() {
    let relay = || {
        guest(
            r#"(func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
                 (call $send (i32.sub (i32.const 1) (local.get $port)) (local.get $ptr) (local.get $len)))"#,
        )
    };
    for image in [deploy(&relay()), deploy_chain(&[("a", relay()), ("b", relay()), ("c", relay())])] {
        let mut cells = start(&image);
        season(&mut cells, CELL);
        // The list of outputs and the payload; the engine's record of a stack. The margin is for preemptions.
        let each = of_a_message(&mut cells);
        assert!(each < 3.1, "{each}");
    }
}
