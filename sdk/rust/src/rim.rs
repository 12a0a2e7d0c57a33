//! The Wasm side of the ABI `marram_v1`: the imports, the inbox that the host writes into, and the one place where
//! the cell lives. All of the SDK's unsafe code is here. Public only for the macro `cell!`.

use core::{
    cell::RefCell,
    sync::atomic::{AtomicUsize, Ordering},
};

use alloc::{string::String, vec::Vec};

use crate::{Cell, Context, Level, Port, PortKind, Unread, context::PeerField};

/// If a large message made the inbox bigger than this, its memory is freed after the message.
const INBOX_KEPT_BYTES_MAX: usize = 256 * 1024;

/// Messages up to this size are placed beside the cell.
const INBOX_NEAR_BYTES: usize = 1024;

mod import {
    #[link(wasm_import_module = "marram_v1")]
    unsafe extern "C" {
        pub(super) fn send(port: u32, ptr: *const u8, len: usize);
        pub(super) safe fn now() -> i64;
        pub(super) fn random(ptr: *mut u8, len: usize);
        pub(super) safe fn timer(delay_ns: i64, token: u64);
        pub(super) safe fn timer_cancel(token: u64);
        pub(super) safe fn spawn(token: u64);
        pub(super) safe fn lock(id: u64, token: u64);
        pub(super) safe fn unlock(id: u64);
        pub(super) safe fn close(port: u32);
        pub(super) fn connect(name: *const u8, len: usize) -> u32;
        pub(super) safe fn pause(port: u32);
        pub(super) safe fn resume(port: u32);
        pub(super) fn peer(port: u32, field: u32, buf: *mut u8, cap: usize) -> i32;
        pub(super) fn sign(key: u32, ptr: *const u8, len: usize, out: *mut u8, room: usize) -> usize;
        pub(super) fn cache_read(key: *const u8, key_len: usize, buf: *mut u8, cap: usize) -> i32;
        pub(super) fn print(level: u32, ptr: *const u8, len: usize);
    }

    unsafe extern "C" {
        /// Made by the linker: runs the constructors of libc. Calling it ourselves also keeps the linker from
        /// wrapping every export in a call to it.
        pub(super) fn __wasm_call_ctors();
    }
}

/// Bytes of the longest signature.
const SIGNATURE_BYTES_MAX: usize = 128;

/// Buffer size for facts about a peer: most names are shorter, and a longer one is read again.
const PEER_BYTES: usize = 64;

/// Minimum buffer size for an object; an object that is larger than the buffer is read again.
const OBJECT_BYTES: usize = 4096;
/// The size of the last object that was read: the next one is likely not larger.
static LIKELY_BYTES: AtomicUsize = AtomicUsize::new(0);

/// The host behind the imports.
#[derive(Default)]
pub(crate) struct Host;

impl Host {
    pub(crate) fn send(&mut self, port: Port, payload: &[u8]) {
        // SAFETY: the host reads exactly `len` bytes at `ptr` before it returns, and keeps no pointer.
        unsafe { import::send(port.0, payload.as_ptr(), payload.len()) }
    }

    pub(crate) fn now(&mut self) -> i64 {
        import::now()
    }

    pub(crate) fn random(&mut self, buffer: &mut [u8]) {
        // SAFETY: the host writes exactly `len` bytes at `ptr` before it returns, and keeps no pointer.
        unsafe { import::random(buffer.as_mut_ptr(), buffer.len()) }
    }

    pub(crate) fn peer(&mut self, port: Port, field: PeerField) -> Option<String> {
        let mut text = alloc::vec![0; PEER_BYTES];
        loop {
            // SAFETY: the host writes at most as many bytes as `text` has before it returns, and keeps no pointer.
            let len = unsafe { import::peer(port.0, field as u32, text.as_mut_ptr(), text.len()) };
            let len = usize::try_from(len).ok()?;
            if len <= text.len() {
                text.truncate(len);
                return String::from_utf8(text).ok();
            }
            // Nothing was written, as there was no room for all of it.
            text.resize(len, 0);
        }
    }

    pub(crate) fn sign(&mut self, key: u32, message: &[u8]) -> Vec<u8> {
        let mut out = alloc::vec![0; SIGNATURE_BYTES_MAX];
        // SAFETY: the host reads `len` bytes at `ptr` and writes at most as many as `out` has before it returns, and keeps no
        // pointer.
        let len = unsafe { import::sign(key, message.as_ptr(), message.len(), out.as_mut_ptr(), out.len()) };
        out.truncate(len);
        out
    }

    pub(crate) fn cache(&mut self, key: &str) -> Result<Option<Vec<u8>>, Unread> {
        // Unused capacity is not written, and so is not in the next checkpoint either.
        let mut object: Vec<u8> = Vec::new();
        let likely = LIKELY_BYTES.load(Ordering::Relaxed).max(OBJECT_BYTES);
        if object.try_reserve_exact(likely).is_err() {
            object.reserve_exact(OBJECT_BYTES);
        }
        loop {
            let (buf, cap) = (object.as_mut_ptr(), object.capacity());
            // SAFETY: the host reads `key_len` bytes at `key` and writes at most `cap` at `buf` before it returns, and keeps no
            // pointer.
            let len = unsafe { import::cache_read(key.as_ptr(), key.len(), buf, cap) };
            match len {
                -1 => return Ok(None),
                -2 => return Err(Unread::Away),
                _ => {}
            }
            let Ok(len) = usize::try_from(len) else { return Err(Unread::Refused) };
            LIKELY_BYTES.store(len, Ordering::Relaxed);
            if len <= cap {
                // SAFETY: the host has written the first `len` bytes, which are within the vector's capacity.
                unsafe { object.set_len(len) };
                object.shrink_to_fit();
                return Ok(Some(object));
            }
            // Nothing was written, as there was no room for all of it.
            object.reserve_exact(len);
        }
    }

    pub(crate) fn timer(&mut self, delay_ns: i64, token: u64) {
        import::timer(delay_ns, token);
    }

    pub(crate) fn timer_cancel(&mut self, token: u64) {
        import::timer_cancel(token);
    }

    pub(crate) fn spawn(&mut self, token: u64) {
        import::spawn(token);
    }

    pub(crate) fn lock(&mut self, id: u64, token: u64) {
        import::lock(id, token);
    }

    pub(crate) fn unlock(&mut self, id: u64) {
        import::unlock(id);
    }

    pub(crate) fn close(&mut self, port: Port) {
        import::close(port.0);
    }

    pub(crate) fn connect(&mut self, server: &str) -> Port {
        // SAFETY: the host reads exactly `len` bytes at `ptr` before it returns, and keeps no pointer.
        Port(unsafe { import::connect(server.as_ptr(), server.len()) })
    }

    pub(crate) fn pause(&mut self, port: Port) {
        import::pause(port.0);
    }

    pub(crate) fn resume(&mut self, port: Port) {
        import::resume(port.0);
    }

    pub(crate) fn print(&mut self, level: Level, line: &str) {
        // SAFETY: the host reads exactly `len` bytes at `ptr` before it returns, and keeps no pointer.
        unsafe { import::print(level as u32, line.as_ptr(), line.len()) }
    }
}

/// The cell of this module and the inbox that the host writes the next message into. They are adjacent, so that a small message
/// touches no additional page of memory. A page costs every session a page fault at its first write, space in a checkpoint, and,
/// with thousands of sessions, a cache miss per message.
pub struct Guest<T> {
    cell: RefCell<Option<T>>,
    inbox: RefCell<Inbox>,
}

/// The buffer for the next message.
struct Inbox {
    near: [u8; INBOX_NEAR_BYTES],
    /// For messages that do not fit in `near`.
    far: Vec<u8>,
    /// The requested size in `near`; none if `far` is used.
    asked_near: Option<usize>,
}

impl Inbox {
    fn room_for(&mut self, len: usize) -> *mut u8 {
        self.asked_near = (len <= self.near.len()).then_some(len);
        if self.asked_near.is_some() {
            return self.near.as_mut_ptr();
        }
        self.far.clear();
        self.far.reserve(len);
        self.far.as_mut_ptr()
    }

    /// The bytes that the host wrote.
    fn message(&mut self, ptr: *const u8, len: usize) -> &[u8] {
        if let Some(asked) = self.asked_near {
            assert!(ptr == self.near.as_ptr() && len <= asked, "a message outside the inbox");
            return &self.near[..len];
        }
        assert!(ptr == self.far.as_ptr() && len <= self.far.capacity(), "a message outside the inbox");
        // SAFETY: within capacity, and the host wrote `len` bytes there before this call.
        unsafe { self.far.set_len(len) }
        &self.far
    }

    /// Frees the memory of one large message.
    fn tidy(&mut self) {
        if self.far.capacity() > INBOX_KEPT_BYTES_MAX {
            self.far = Vec::new();
        }
    }
}

// SAFETY: a cell's module has one thread: the target has none, and the host refuses shared memories.
unsafe impl<T> Sync for Guest<T> {}

impl<T: Cell> Guest<T> {
    /// Before `_initialize`.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "const, for a static")]
    pub const fn new() -> Self {
        let inbox = Inbox { near: [0; INBOX_NEAR_BYTES], far: Vec::new(), asked_near: None };
        Self { cell: RefCell::new(None), inbox: RefCell::new(inbox) }
    }

    /// Creates the state that the image is frozen with.
    pub fn initialize(&self) {
        // SAFETY: the host calls `_initialize` once, before anything else, so constructors run once.
        unsafe { import::__wasm_call_ctors() }
        *self.cell.borrow_mut() = Some(T::default());
    }

    /// Memory for the next message. Valid until the next `recv` returns.
    pub fn alloc(&self, len: usize) -> *mut u8 {
        self.inbox.borrow_mut().room_for(len)
    }

    /// Calls `opened`.
    pub fn open(&self, port: u32, kind: u32) {
        self.with_cell(|cell, context| cell.opened(context, Port(port), PortKind::from_number(kind)));
    }

    /// Calls `message` with what the host wrote into the inbox.
    ///
    /// # Panics
    ///
    /// If the host passes another address than the one that `alloc` returned last, or more bytes than it requested.
    pub fn recv(&self, port: u32, ptr: *const u8, len: usize) {
        let mut inbox = self.inbox.borrow_mut();
        let message = inbox.message(ptr, len);
        self.with_cell(|cell, context| cell.message(context, Port(port), message));
        inbox.tidy();
    }

    /// Calls `timer`.
    pub fn timer(&self, token: u64) {
        self.with_cell(|cell, context| cell.timer(context, token));
    }

    /// Calls `task`.
    pub fn task(&self, token: u64) {
        self.with_cell(|cell, context| cell.task(context, token));
    }

    /// Calls `closed`.
    pub fn close(&self, port: u32) {
        self.with_cell(|cell, context| cell.closed(context, Port(port)));
    }

    fn with_cell(&self, handle: impl FnOnce(&mut T, &mut Context)) {
        let mut cell = self.cell.borrow_mut();
        let cell = cell.as_mut().expect("the host calls _initialize before any handler");
        handle(cell, &mut Context { host: Host });
    }
}
