//! Messages between shards and the control across a process boundary, in both directions.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use marram_shard::api::{FromShard, ToShard};

fuzz_target!(|data: &[u8]| {
    let bytes = Bytes::copy_from_slice(data);
    if let Ok(message) = ToShard::decode(bytes.clone()) {
        assert_eq!(ToShard::decode(message.to_bytes()), Ok(message));
    }
    if let Ok(message) = FromShard::decode(bytes) {
        assert_eq!(FromShard::decode(message.to_bytes()), Ok(message));
    }
});
