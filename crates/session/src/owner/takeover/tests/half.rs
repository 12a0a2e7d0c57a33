//! A checkpoint that is in flight when its sender is lost.

use super::*;

/// A checkpoint is announced, and half of it arrives.
fn half(standby: &mut Standby, meta: CheckpointMeta) {
    standby.owner.fed(NOW, Base { channel: 9, meta, took: Vec::new() }.into(), &mut standby.out);
    standby.owner.name_cell(CellId(2));
    let half = CheckpointPart { channel: 9, bytes: Bytes::from_static(&[0; 8]) };
    standby.owner.fed(NOW, half.into(), &mut standby.out);
    standby.out.clear();
}

#[test]
fn half_a_checkpoint_leaves_the_cell_where_it_stood() {
    let mut standby = fed_from_the_middle();
    let meta = CheckpointMeta { size: 16, number: 2, ..standby.history.meta(4) };
    half(&mut standby, meta);
    standby.owner.feed_lost(&mut standby.out);
    assert!(matches!(&standby.out[..], [OwnerEffect::Remove(CellId(2))]), "{:?}", standby.out);
    standby.opens(&level(5, 4), &Says { log: 5..5, ..silent(5) });
    assert!(standby.goes_on(), "{:?}", standby.out);
    assert_eq!(standby.owner.cell(), Some(CELL));
    assert_eq!((standby.heard(), standby.echoes()), (SAID[2..4].to_vec(), Vec::new()));
}

#[test]
fn a_cell_that_starts_while_its_successor_is_on_its_way_is_gone_on_with() {
    for late in [false, true] {
        let mut standby = Standby::new(0, false);
        for entry in 0..3 {
            standby.owner.fed(NOW, standby.history.fed(entry), &mut standby.out);
        }
        standby.owner.name_cell(CELL);
        let meta = CheckpointMeta { size: 16, ..standby.history.meta(2) };
        half(&mut standby, meta);
        let started = |standby: &mut Standby| standby.owner.started(NOW, CELL, Ok(()), &mut standby.out);
        if !late {
            started(&mut standby);
        }
        standby.owner.feed_lost(&mut standby.out);
        standby.opens(&level(3, 1), &silent(3));
        if late {
            assert!(!standby.goes_on(), "{:?}", standby.out);
            started(&mut standby);
            standby.settle();
        }
        assert!(standby.goes_on(), "{:?}", standby.out);
        assert_eq!(standby.owner.cell(), Some(CELL));
        assert_eq!((standby.heard(), standby.echoes()), (SAID[..2].to_vec(), vec![SAID[1]]));
    }
}

#[test]
fn a_cell_that_cannot_start_is_not_gone_on_with() {
    let mut standby = Standby::new(0, false);
    standby.owner.fed(NOW, standby.history.fed(0), &mut standby.out);
    standby.owner.name_cell(CELL);
    let meta = CheckpointMeta { size: 16, ..standby.history.meta(1) };
    half(&mut standby, meta);
    let error = CellError { code: Code::Busy, reason: "no slot".into() };
    standby.owner.started(NOW, CELL, Err(error), &mut standby.out);
    let removed =
        |cell| standby.out.iter().any(|effect| matches!(effect, OwnerEffect::Remove(id) if *id == cell));
    assert!(removed(CELL) && removed(CellId(2)), "{:?}", standby.out);
    assert!(standby.out.iter().any(|effect| matches!(effect, OwnerEffect::Done(Code::Busy, _))));
}
