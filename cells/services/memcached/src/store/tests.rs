//! Tests of the store alone: memory use, order of eviction, and counters.

use super::*;

const NOW: Seconds = Seconds(1000);

/// The memory of `segments` segments of chunks and their part of the index.
fn store(segments: usize) -> Store {
    Store::new(segments * SEGMENT_CHUNKS * (CHUNK_BYTES + BUCKET_BYTES), [7; 16])
}

fn put(store: &mut Store, mode: Mode, key: &[u8], value: &[u8]) -> Result<Stored, Refusal> {
    let mut draft = store.begin(key, 5, Expiry::NEVER, value.len(), NOW)?;
    // In pieces, as a stream would bring them.
    value.chunks(100).for_each(|piece| assert_eq!(store.fill(&mut draft, piece), piece.len()));
    Ok(store.commit(draft, mode, NOW))
}

fn value(store: &mut Store, key: &[u8]) -> Option<Vec<u8>> {
    let item = store.get(key, NOW)?;
    let value: Vec<u8> = store.value(item).flatten().copied().collect();
    assert_eq!(value.len(), store.value_len(item));
    Some(value)
}

#[test]
fn the_least_recently_used_goes_first_and_only_as_many_as_must() {
    let mut store = store(1);
    // 512 items of one chunk fill the segment.
    let key = |n: u32| format!("key {n}").into_bytes();
    for n in 0..512 {
        assert_eq!(put(&mut store, Mode::Set, &key(n), b"v"), Ok(Stored::Stored));
    }
    assert_eq!((store.bytes(), store.bytes_max(), store.census().evictions), (65536, 65536, 0));
    assert!(value(&mut store, &key(0)).is_some());
    // Two chunks: two of the oldest, 1 and 2, since 0 was just used.
    assert_eq!(put(&mut store, Mode::Set, b"long", &[b'x'; 100]), Ok(Stored::Stored));
    assert_eq!((store.census().evictions, store.bytes()), (2, 65536));
    let there = [0, 1, 2, 3].map(|n| value(&mut store, &key(n)).is_some());
    assert_eq!(there, [true, false, false, true]);
}

#[test]
fn memory_is_counted_to_the_chunk_and_comes_back() {
    let mut store = store(2);
    let value_lens = [0_usize, 86, 87, 210, 211, 10_000];
    let chunks = [1, 1, 2, 2, 3, 81];
    for (len, chunks) in value_lens.into_iter().zip(chunks) {
        assert_eq!(put(&mut store, Mode::Set, b"k", &vec![b'v'; len]), Ok(Stored::Stored));
        assert_eq!(store.bytes(), chunks * CHUNK_BYTES, "{len}");
    }
    assert!(store.delete(b"k", NOW) && !store.delete(b"k", NOW));
    assert_eq!((store.bytes(), store.items()), (0, 0));
}

#[test]
fn an_item_has_a_size_limit_and_a_store_may_be_too_small_for_it() {
    let largest = ITEM_BYTES_MAX - ITEM_OWN_BYTES - 1;
    let mut small = store(8);
    assert_eq!(put(&mut small, Mode::Set, b"a", b"1"), Ok(Stored::Stored));
    assert_eq!(put(&mut small, Mode::Set, b"k", &vec![0; largest]), Err(Refusal::OutOfMemory));
    assert_eq!(put(&mut small, Mode::Set, b"k", &vec![0; largest + 1]), Err(Refusal::TooLarge));
    // A request that could not be satisfied has evicted nothing.
    assert_eq!(value(&mut small, b"a").as_deref(), Some(&b"1"[..]));
    let mut large = store(32);
    assert_eq!(put(&mut large, Mode::Set, b"k", &vec![9; largest]), Ok(Stored::Stored));
    assert_eq!(value(&mut large, b"k").map(|value| value.len()), Some(largest));
}

#[test]
fn drafts_hold_memory_that_cannot_be_evicted() {
    let mut store = store(1);
    let draft = store.begin(b"d", 0, Expiry::NEVER, 60_000, NOW).unwrap();
    assert_eq!(put(&mut store, Mode::Set, b"k", &[0; 5000]), Err(Refusal::OutOfMemory));
    store.discard(draft);
    assert_eq!(put(&mut store, Mode::Set, b"k", &[0; 5000]), Ok(Stored::Stored));
}

#[test]
fn growing_an_item_never_evicts_that_item() {
    let mut store = store(1);
    assert_eq!(put(&mut store, Mode::Set, b"k", &[b'a'; 25_000]), Ok(Stored::Stored));
    // Old value, addition and result do not fit together: nothing happens.
    assert_eq!(put(&mut store, Mode::Append, b"k", &[b'b'; 10_000]), Ok(Stored::NotStored));
    assert_eq!(value(&mut store, b"k"), Some(vec![b'a'; 25_000]));
    assert_eq!(put(&mut store, Mode::Prepend, b"k", &[b'b'; 1000]), Ok(Stored::Stored));
    assert_eq!(value(&mut store, b"k"), Some([[b'b'; 1000].as_slice(), &[b'a'; 25_000]].concat()));
    // A counter that gets longer while all else is full.
    assert!(store.delete(b"k", NOW));
    assert_eq!(put(&mut store, Mode::Set, b"n", b"9"), Ok(Stored::Stored));
    for n in 0..511_u32 {
        assert_eq!(put(&mut store, Mode::Set, &n.to_le_bytes(), b""), Ok(Stored::Stored));
    }
    assert_eq!(store.count(b"n", Delta::Up(1), NOW), Ok(10));
    assert_eq!((value(&mut store, b"n"), store.census().evictions), (Some(b"10".to_vec()), 1));
}

#[test]
fn a_flush_takes_what_was_there_at_its_time() {
    let mut store = store(1);
    assert_eq!(put(&mut store, Mode::Set, b"old", b""), Ok(Stored::Stored));
    store.flush(Some(Expiry(NOW.0 + 10)));
    assert_eq!(put(&mut store, Mode::Set, b"new", b""), Ok(Stored::Stored));
    assert!(store.get(b"old", Seconds(NOW.0 + 9)).is_some());
    assert!(store.get(b"old", Seconds(NOW.0 + 10)).is_none());
    assert!(store.get(b"new", Seconds(NOW.0 + 10)).is_none());
    assert_eq!(put(&mut store, Mode::Set, b"later", b""), Ok(Stored::Stored));
    assert!(store.get(b"later", Seconds(NOW.0 + 11)).is_some());
}

#[test]
fn what_is_over_is_reclaimed_rather_than_evicted() {
    let mut store = store(1);
    for n in 0..512_u32 {
        let draft = store.begin(&n.to_le_bytes(), 0, Expiry(1001), 0, NOW).unwrap();
        assert_eq!(store.commit(draft, Mode::Set, NOW), Stored::Stored);
    }
    let draft = store.begin(b"k", 0, Expiry::NEVER, 0, Seconds(1001)).unwrap();
    store.discard(draft);
    assert_eq!((store.census().reclaimed, store.census().evictions), (1, 0));
}

#[test]
fn a_number_is_what_strtoull_reads() {
    let cases: [(&[u8], Option<u64>); 12] = [
        (b"0", Some(0)),
        (b"18446744073709551615", Some(u64::MAX)),
        (b"18446744073709551616", None),
        (b" 12", Some(12)),
        (b"+12", Some(12)),
        (b"12 x", Some(12)),
        (b"12x", None),
        (b"-1", None),
        (b"", None),
        (b" ", None),
        (b"x", None),
        (b"000000000000000000000000000005", Some(5)),
    ];
    for (text, expected) in cases {
        assert_eq!(number(text), expected, "{}", String::from_utf8_lossy(text));
    }
}
