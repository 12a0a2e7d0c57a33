//! A module's mutable globals, which are state outside of memory: the names under which they are exported to the host, and
//! their values in images and checkpoints.
//!
//! It neither adds these exports nor reads an instance: `deploy` and `cells` do.

use crate::bytes_io::Reader;

/// Prefix of the names that the host adds to a module's exports.
pub(crate) const RESERVED: &str = "marram:";

/// The exported name of the `n`-th mutable global.
pub(crate) fn global_name(n: usize) -> String {
    format!("{RESERVED}global:{n}")
}

/// The value of one mutable global as bits: floats keep their NaN payloads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GlobalValue {
    I32(u32),
    I64(u64),
    F32(u32),
    F64(u64),
    V128(u128),
}

impl GlobalValue {
    /// Converts from the engine's type; `None` for references, which deployment refuses.
    pub(crate) fn from_val(value: &wasmtime::Val) -> Option<Self> {
        Some(match value {
            wasmtime::Val::I32(value) => Self::I32(value.cast_unsigned()),
            wasmtime::Val::I64(value) => Self::I64(value.cast_unsigned()),
            wasmtime::Val::F32(bits) => Self::F32(*bits),
            wasmtime::Val::F64(bits) => Self::F64(*bits),
            wasmtime::Val::V128(value) => Self::V128(value.as_u128()),
            _ => return None,
        })
    }

    /// Converts to the engine's type.
    pub(crate) fn to_val(self) -> wasmtime::Val {
        match self {
            Self::I32(value) => wasmtime::Val::I32(value.cast_signed()),
            Self::I64(value) => wasmtime::Val::I64(value.cast_signed()),
            Self::F32(bits) => wasmtime::Val::F32(bits),
            Self::F64(bits) => wasmtime::Val::F64(bits),
            Self::V128(value) => wasmtime::Val::V128(value.into()),
        }
    }

    /// Writes a type byte and the bits, padded to 16 bytes so that all have one width.
    pub(crate) fn encode(self, out: &mut Vec<u8>) {
        let (kind, bits) = match self {
            Self::I32(bits) => (0, u128::from(bits)),
            Self::I64(bits) => (1, u128::from(bits)),
            Self::F32(bits) => (2, u128::from(bits)),
            Self::F64(bits) => (3, u128::from(bits)),
            Self::V128(bits) => (4, bits),
        };
        out.push(kind);
        out.extend_from_slice(&bits.to_le_bytes());
    }

    /// Reads what [`GlobalValue::encode`] wrote.
    pub(crate) fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        let kind = reader.u8()?;
        let bits = u128::from_le_bytes(reader.array()?);
        Some(match kind {
            0 => Self::I32(bits.try_into().ok()?),
            1 => Self::I64(bits.try_into().ok()?),
            2 => Self::F32(bits.try_into().ok()?),
            3 => Self::F64(bits.try_into().ok()?),
            4 => Self::V128(bits),
            _ => return None,
        })
    }
}
