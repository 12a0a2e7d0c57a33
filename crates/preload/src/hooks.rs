//! Replacements of the C library's `connect` and `getpeername`.
//!
//! Everything here is unsafe by nature: any program calls it, from any thread, also before the program's own first instruction.
//! Connections that no rule names go to the C library unchanged. One thing differs: an unreadable address crashes the program
//! here, where the kernel would only return an error.

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

/// `sockaddr_in` of Linux.
#[repr(C)]
#[derive(Clone, Copy)]
struct In4 {
    family: u16,
    port: [u8; 2],
    address: [u8; 4],
    zero: [u8; 8],
}

/// `sockaddr_in6` of Linux.
#[repr(C)]
#[derive(Clone, Copy)]
struct In6 {
    family: u16,
    port: [u8; 2],
    flow: u32,
    address: [u8; 16],
    scope: u32,
}

/// The kernel accepts one without the scope.
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

/// Written only by [`begin`], and not read before [`READY`] is set.
static mut RULES: Rules = Rules::NONE;
static READY: AtomicBool = AtomicBool::new(false);
static NO_RULES: Rules = Rules::NONE;

/// Why a connection leads to an agent, by its local port, which all copies of its descriptor share. A hint only: ports are
/// reused, and other programs' connections are not in it. So the peer that the kernel reports decides first.
static HINTS: [AtomicU16; 65_536] = [const { AtomicU16::new(UNKNOWN) }; 65_536];

/// 0: nothing is known. 1: the program connected there itself. Otherwise the number of a rule plus 2.
const UNKNOWN: u16 = 0;
const DIRECT: u16 = 1;

const _: () = assert!(RULES_MAX < u16::MAX as usize - 1, "numbers of rules fit into hints");

/// Makes the loader call [`begin`] once. Libraries of the program may have run before: their earlier connections are not
/// redirected.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

extern "C" fn begin() {
    // SAFETY: the name ends in a zero; the environment is read before the program, which could change it, runs; no other code
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
    // SAFETY: no thread writes it any more.
    unsafe { &*(&raw const RULES) }
}

/// The next function of this name: the C library's, or a replacement of it. Looked up at the first call, which may come before
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

/// The hint for a descriptor's connection.
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

/// Runs a function that may set `errno`, and restores it.
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

/// The value of an integer socket option.
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

/// An address in the form of a socket's family.
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

/// Lets an IPv6 socket reach IPv4 addresses. A socket that is already bound to an IPv6 address cannot, and the program gets an
/// error that there is no route.
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

/// The peer that the program sees for a redirected connection; none for any other.
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

/// A bug ends the program; it must not continue in an unknown state.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: it takes nothing and does not come back.
    unsafe { abort() }
}

// The unwinding tables of the core library name it, but nothing calls it: nothing unwinds here. Hidden, since otherwise every
// library of the program with its own would use this one.
core::arch::global_asm!(
    ".hidden rust_eh_personality",
    ".globl rust_eh_personality",
    "rust_eh_personality:",
    "ret"
);
