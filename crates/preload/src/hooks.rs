//! `connect` and `getpeername`, in front of the C library's.
//!
//! Everything here is unsafe by nature: it is called by any program, from any thread, also before the program's own first
//! instruction. What is not a connection that a rule names goes to the C library as it came. One thing is different: an address
//! that cannot be read ends the program here, where the kernel would only have said so.

use crate::VARIABLE;
use crate::rules::{Protocol, RULES_MAX, Rules, SocketEndpoint};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::ptr::{self, null_mut};
use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU16,
    Ordering::{Acquire, Relaxed, Release},
};

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
const SOL_SOCKET: c_int = 1;
const SO_TYPE: c_int = 3;
const SOCK_STREAM: c_int = 1;
const SOCK_DGRAM: c_int = 2;
const IPPROTO_IPV6: c_int = 41;
const IPV6_V6ONLY: c_int = 26;
const ENOSYS: c_int = 38;
const RTLD_NEXT: *mut c_void = ptr::without_provenance_mut(usize::MAX);

/// `sockaddr_in`, as Linux has it.
#[repr(C)]
#[derive(Clone, Copy)]
struct In4 {
    family: u16,
    port: [u8; 2],
    address: [u8; 4],
    zero: [u8; 8],
}

/// `sockaddr_in6`, as Linux has it.
#[repr(C)]
#[derive(Clone, Copy)]
struct In6 {
    family: u16,
    port: [u8; 2],
    flow: u32,
    address: [u8; 16],
    scope: u32,
}

/// The kernel takes one without the scope.
const IN6_BYTES_MIN: usize = 24;

type Connect = unsafe extern "C" fn(c_int, *const c_void, u32) -> c_int;
type GetPeerName = unsafe extern "C" fn(c_int, *mut c_void, *mut u32) -> c_int;

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn getenv(name: *const c_char) -> *const c_char;
    fn getsockname(fd: c_int, address: *mut c_void, len: *mut u32) -> c_int;
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, size: *mut u32) -> c_int;
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, size: u32) -> c_int;
    fn __errno_location() -> *mut c_int;
    fn abort() -> !;
}

static CONNECT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static GETPEERNAME: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Written by [`begin`] alone, and read by nobody before it is [`READY`].
static mut RULES: Rules = Rules::NONE;
static READY: AtomicBool = AtomicBool::new(false);
static NO_RULES: Rules = Rules::NONE;

/// Why a connection leads to an agent, by its local port, which is the same however often its descriptor is copied. A hint only:
/// a port is used again, and what another program did is not in it, so what the kernel says of the peer decides first.
static HINTS: [AtomicU16; 65_536] = [const { AtomicU16::new(UNKNOWN) }; 65_536];

/// Nothing was noted; the program wanted to go there; anything else is the number of a rule and two.
const UNKNOWN: u16 = 0;
const DIRECT: u16 = 1;

const _: () = assert!(RULES_MAX < u16::MAX as usize - 1, "numbers of rules fit into hints");

/// Has the loader call [`begin`] once. Libraries that the program needs may have run by then: what they connect is theirs.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

extern "C" fn begin() {
    // SAFETY: the name ends in a zero; the environment is read before the program, which could change it, runs; nobody else
    // touches the rules until they are ready.
    unsafe {
        const NAME: [u8; VARIABLE.len() + 1] = {
            let mut name = [0; VARIABLE.len() + 1];
            let mut at = 0;
            while at < VARIABLE.len() {
                name[at] = VARIABLE.as_bytes()[at];
                at += 1;
            }
            name
        };
        let list = getenv(NAME.as_ptr().cast());
        if !list.is_null()
            && let Ok(list) = CStr::from_ptr(list).to_str()
        {
            (*(&raw mut RULES)).parse(list);
        }
    }
    READY.store(true, Release);
}

fn rules() -> &'static Rules {
    if !READY.load(Acquire) {
        return &NO_RULES;
    }
    // SAFETY: nobody writes it any more.
    unsafe { &*(&raw const RULES) }
}

/// The next function of this name: the C library's, or what stands in for it. Looked up at the first call, which may come before
/// [`begin`]; null if there is none.
fn resolve_real(kept: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = kept.load(Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: the name ends in a zero.
    let found = unsafe { dlsym(RTLD_NEXT, name.as_ptr()) };
    kept.store(found, Relaxed);
    found
}

/// Where the hint of a descriptor's connection is.
fn hint(fd: c_int) -> Option<&'static AtomicU16> {
    let mut local = Written { v6: In6 { family: 0, port: [0; 2], flow: 0, address: [0; 16], scope: 0 } };
    let mut size = size_of::<Written>() as u32;
    // SAFETY: the pointers are to a place and a number of our own, and the size is right; what is read then was written.
    let local = unsafe {
        let failed = preserving_errno(|| getsockname(fd, (&raw mut local).cast(), &raw mut size)) != 0;
        if failed { None } else { read((&raw const local).cast(), size) }
    };
    local.map(|(_, place)| &HINTS[usize::from(place.port)])
}

/// Runs something that may set `errno`, and leaves it as it was.
fn preserving_errno<T>(f: impl FnOnce() -> T) -> T {
    // SAFETY: the C library's own place, one a thread.
    unsafe {
        let errno = __errno_location();
        let before = *errno;
        let result = f();
        *errno = before;
        result
    }
}

/// A socket's number for one of its options.
fn option(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    let (mut value, mut size) = (0, 4);
    // SAFETY: the pointers are to numbers of our own, and the size is right.
    let failed = unsafe { getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut size) } != 0;
    (!failed && size == 4).then_some(value)
}

fn protocol(fd: c_int) -> Option<Protocol> {
    match preserving_errno(|| option(fd, SOL_SOCKET, SO_TYPE)) {
        Some(SOCK_STREAM) => Some(Protocol::Tcp),
        Some(SOCK_DGRAM) => Some(Protocol::Udp),
        _ => None,
    }
}

/// Reads an address of either version.
///
/// # Safety
/// `address` is null or points to `len` bytes.
unsafe fn read(address: *const c_void, len: u32) -> Option<(u16, SocketEndpoint)> {
    if address.is_null() || len < 2 {
        return None;
    }
    let len = len as usize;
    // SAFETY: as far as is said to be there, aligned or not.
    unsafe {
        match address.cast::<u16>().read_unaligned() {
            AF_INET if len >= size_of::<In4>() => {
                let it = address.cast::<In4>().read_unaligned();
                let ip = IpAddr::V4(Ipv4Addr::from(it.address));
                Some((AF_INET, SocketEndpoint::new(ip, u16::from_be_bytes(it.port))))
            }
            AF_INET6 if len >= IN6_BYTES_MIN => {
                let mut it = In6 { family: 0, port: [0; 2], flow: 0, address: [0; 16], scope: 0 };
                let bytes = len.min(size_of::<In6>());
                ptr::copy_nonoverlapping(address.cast::<u8>(), (&raw mut it).cast(), bytes);
                let ip = IpAddr::V6(Ipv6Addr::from(it.address));
                Some((AF_INET6, SocketEndpoint::new(ip, u16::from_be_bytes(it.port))))
            }
            _ => None,
        }
    }
}

/// An address as a socket of a family takes it.
union Written {
    v4: In4,
    v6: In6,
}

fn write(family: u16, place: SocketEndpoint) -> Option<(Written, u32)> {
    let port = place.port.to_be_bytes();
    if family == AF_INET {
        let v4 = In4 { family, port, address: place.v4()?.octets(), zero: [0; 8] };
        return Some((Written { v4 }, size_of::<In4>() as u32));
    }
    let v6 = In6 { family, port, flow: 0, address: place.address, scope: 0 };
    Some((Written { v6 }, size_of::<In6>() as u32))
}

/// See connect(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(fd: c_int, address: *const c_void, len: u32) -> c_int {
    let real = resolve_real(&CONNECT, c"connect");
    if real.is_null() {
        // SAFETY: the C library's own place.
        unsafe { *__errno_location() = ENOSYS };
        return -1;
    }
    // SAFETY: it is the next function of that name, which is the C library's or stands in for it.
    let real: Connect = unsafe { core::mem::transmute(real) };
    // SAFETY: what the program gave us.
    let wanted =
        unsafe { read(address, len) }.and_then(|(family, place)| Some((family, place, protocol(fd)?)));
    let rule = wanted.and_then(|(family, place, protocol)| {
        let number = rules().find(protocol, place)?;
        let via = rules().get(number)?.via;
        if family == AF_INET6 && via.v4().is_some() {
            open_to_v4(fd);
        }
        Some((number, write(family, via)?))
    });
    let (result, note) = match &rule {
        Some((number, (written, len))) => {
            // SAFETY: a whole address of our own.
            (unsafe { real(fd, ptr::from_ref(written).cast(), *len) }, *number as u16 + 2)
        }
        // SAFETY: as the program called us.
        None => (unsafe { real(fd, address, len) }, DIRECT),
    };
    let leads = |(_, place, protocol): &(u16, SocketEndpoint, Protocol)| rules().leads(*protocol, *place);
    if (rule.is_some() || wanted.as_ref().is_some_and(leads))
        && let Some(hint) = hint(fd)
    {
        hint.store(note, Relaxed);
    }
    result
}

/// Lets a socket of version 6 reach addresses of version 4. One that is bound already to an address of version 6 cannot, and the
/// program is told that there is no way.
fn open_to_v4(fd: c_int) {
    preserving_errno(|| {
        if option(fd, IPPROTO_IPV6, IPV6_V6ONLY) == Some(1) {
            let off: c_int = 0;
            // SAFETY: the pointer is to a number of our own, and the size is right.
            unsafe { setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, (&raw const off).cast(), 4) };
        }
    });
}

/// See getpeername(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getpeername(fd: c_int, address: *mut c_void, len: *mut u32) -> c_int {
    let real = resolve_real(&GETPEERNAME, c"getpeername");
    if real.is_null() {
        // SAFETY: the C library's own place.
        unsafe { *__errno_location() = ENOSYS };
        return -1;
    }
    // SAFETY: it is the next function of that name.
    let real: GetPeerName = unsafe { core::mem::transmute(real) };
    let Some((written, size)) = preserving_errno(|| original_peer(fd, real)) else {
        // SAFETY: as the program called us.
        return unsafe { real(fd, address, len) };
    };
    // SAFETY: as the program called us: there is room for as many bytes as it says.
    unsafe {
        let room = len.read_unaligned().min(size) as usize;
        ptr::copy_nonoverlapping((&raw const written).cast::<u8>(), address.cast(), room);
        len.write_unaligned(size);
    }
    0
}

/// What the program is told of a connection that a rule redirected; none of any other.
fn original_peer(fd: c_int, real: GetPeerName) -> Option<(Written, u32)> {
    let mut peer = Written { v6: In6 { family: 0, port: [0; 2], flow: 0, address: [0; 16], scope: 0 } };
    let mut size = size_of::<Written>() as u32;
    // SAFETY: the pointers are to a place and a number of our own, and the size is right; what is read then was written.
    let (family, peer) = unsafe {
        if real(fd, (&raw mut peer).cast(), &raw mut size) != 0 {
            return None;
        }
        read((&raw const peer).cast(), size)?
    };
    let protocol = protocol(fd)?;
    if !rules().leads(protocol, peer) {
        return None;
    }
    let number = match hint(fd).map_or(UNKNOWN, |hint| hint.load(Relaxed)) {
        DIRECT => return None,
        UNKNOWN => None,
        noted => Some(usize::from(noted) - 2),
    };
    write(family, rules().original_peer(number, protocol, peer)?)
}

/// What should never happen ends the program, rather than going on with it in a state that nobody knows.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: it takes nothing and does not come back.
    unsafe { abort() }
}

// Named in the unwinding tables of the core library, and never called: nothing unwinds here. Hidden, since every library of the
// program that has one of its own would otherwise take this.
core::arch::global_asm!(
    ".hidden rust_eh_personality",
    ".globl rust_eh_personality",
    "rust_eh_personality:",
    "ret"
);
