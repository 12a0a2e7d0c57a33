//! What a message costs in allocations: two that carry its outputs away and two of the engine's own, for the stacks of
//! its two calls.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use support::{CELL, deploy, echo, message, start};

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; counting touches a plain thread-local number.
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
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_message_allocates_what_its_output_needs() {
    let mut cells = start(&deploy(&echo()));
    let input = message(&[7; 64]);
    let mut handle = || {
        let run = marram_session::cell::Run { cell: CELL, input: input.clone(), now_ns: 0 };
        match cells.run(run) {
            marram_sandbox::Progress::Done(ran) => assert_eq!(ran.outputs.len(), 1),
            // Preempted by a busy machine: counts for nothing.
            marram_sandbox::Progress::Pending => {
                while !matches!(cells.poll(CELL), marram_sandbox::Progress::Done(_)) {}
            }
        }
    };
    for _ in 0..10 {
        handle();
    }
    let before = COUNT.get();
    for _ in 0..1000 {
        handle();
    }
    let each = (COUNT.get() - before) as f64 / 1000.0;
    // The list of outputs and the payload; the engine's record of a stack for `marram_alloc` and for `marram_recv`.
    assert!(each <= 4.0, "{each}");
}
