//! WebAssembly modules written by hand, each with exactly one mistake.

/// The header of a module, which is also an empty module.
pub(crate) const MAGIC: &[u8] = b"\0asm\x01\0\0\0";

/// The types: `()`, `(i32) -> i32`, `(i32, i32, i32)`.
const TYPES: &[u8] = b"\x03\x60\0\0\x60\x01\x7f\x01\x7f\x60\x03\x7f\x7f\x7f\0";

fn section(id: u8, content: &[u8]) -> Vec<u8> {
    [&[id, u8::try_from(content.len()).unwrap()], content].concat()
}

fn name(name: &str) -> Vec<u8> {
    [&[u8::try_from(name.len()).unwrap()], name.as_bytes()].concat()
}

/// A module that imports a function of this name.
pub(crate) fn importing(from: &str, function: &str) -> Vec<u8> {
    let import = [&b"\x01"[..], &name(from), &name(function), b"\0\0"].concat();
    [MAGIC, &section(1, TYPES), &section(2, &import)].concat()
}

/// A cell that does nothing, or traps when it is initialised.
pub(crate) fn cell(traps: bool) -> Vec<u8> {
    let exports = [
        (name("memory"), [2, 0]),
        (name("marram_alloc"), [0, 0]),
        (name("marram_recv"), [0, 1]),
        (name("_initialize"), [0, 2]),
    ];
    let exports = exports.map(|(name, what)| [&name[..], &what].concat()).concat();
    let initialize: &[u8] = if traps { b"\x03\0\0\x0b" } else { b"\x02\0\x0b" };
    let code = [&b"\x03\x04\0\x41\0\x0b\x02\0\x0b"[..], initialize].concat();
    [
        MAGIC,
        &section(1, TYPES),
        &section(3, b"\x03\x01\x02\0"),
        &section(5, b"\x01\0\x01"),
        &section(7, &[b"\x04", &exports[..]].concat()),
        &section(10, &code),
    ]
    .concat()
}
