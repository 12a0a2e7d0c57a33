//! Thousands of seeded histories against the model.

use super::*;

/// One history of a few sessions. In `strict` histories a recall must give everything, byte for byte; otherwise the recorder
/// may have deleted the session.
fn history(seed: u64, strict: bool) -> (u64, u64) {
    let mut entropy = [0; 32];
    entropy[..8].copy_from_slice(&seed.to_le_bytes());
    let mut random = Random::new(entropy);
    let store = random.below(2) == 0;
    let mut world = World::new(if strict { 64 << 20 } else { 40_000 }, store);
    let mut wire = world.wire();
    let mut models: Vec<Model> = (0..3).map(|index| Model::new(index, 1 + usize::from(index % 2))).collect();
    let (mut found, mut missed) = (0, 0);
    for _ in 0..120 {
        world.now_ns += random.below(S / 2);
        let model = &mut models[usize::try_from(random.below(3)).expect("small")];
        if model.fed_by.is_none() && random.below(2) == 0 {
            if random.below(2) == 0 {
                model.generation.count += 1;
            }
            model.keep(&mut world, wire);
        }
        let size = usize::try_from(random.below(200)).expect("small");
        match random.below(40) {
            0..=20 => model.feed(&mut world, &mut random, size),
            21 | 22 => model.base(&mut world, random.below(4) == 0, 1 + size * 3),
            23..=30 => model.part(&mut world, 1 + size),
            31 | 32 => model.truncate(&mut world, &mut random),
            33 => model.renew(&mut world),
            34 => {
                world.step(RecorderInput::WireDown { wire, reason: "test".into() });
                wire = world.wire();
                for model in &mut models {
                    (model.fed_by, model.arriving) = (None, None);
                }
            }
            35 if store => {
                world.restart();
                wire = world.wire();
                for model in &mut models {
                    (model.fed_by, model.arriving) = (None, None);
                }
            }
            36 => {
                if let Some(wire) = model.fed_by.take() {
                    model.arriving = None;
                    let (channel, code) = (model.channel, Code::Busy);
                    world.hear(wire, Ended { channel, code, reason: "it lags".into() });
                }
            }
            _ => {}
        }
        let model = &models[usize::try_from(random.below(3)).expect("small")];
        match (world.recall(wire, model.session), model.expected()) {
            (Some(answer), Some(expected)) if strict => {
                assert_eq!(answer, expected, "seed {seed}");
                found += 1;
            }
            (Some(_), _) => found += 1,
            // Its wire broke before the data was sufficient, or it had no feed for too long.
            (None, None) => missed += 1,
            (None, Some(_)) => {
                assert!(!strict || (model.fed_by.is_none()), "seed {seed}: what was fed is gone");
                missed += 1;
            }
        }
    }
    (found, missed)
}

#[test]
fn what_was_fed_and_not_truncated_can_be_recalled_byte_for_byte() {
    let (mut found, mut missed) = (0, 0);
    for seed in 0..3_000 {
        let (more, less) = history(seed, true);
        (found, missed) = (found + more, missed + less);
    }
    assert!(found > 100_000 && missed > 1_000, "{found} found, {missed} not");
}

#[test]
fn a_full_recorder_stays_within_its_memory_and_serves_the_others() {
    let found: u64 = (0..1_000).map(|seed| history(seed, false).0).sum();
    assert!(found > 10_000, "{found}");
}
