//! Several questions to the coordinator at a time. Knows nothing of what they are about.

use super::PATIENCE;
use crate::edge::Answered;
use marram_shard::coordinator::{Ask, AskAnswer};
use std::sync::mpsc::sync_channel;

/// So many are under way at a time: others than these have room at the client, too.
const AT_A_TIME: usize = 32;

/// The answers to these questions, in their order. `ask_then` does not block.
pub(super) fn several(
    asks: impl IntoIterator<Item = Ask>,
    ask_then: impl Fn(Ask, Answered),
) -> Vec<AskAnswer> {
    let away = || AskAnswer::Away("no answer in time".into());
    let (reply, answers) = sync_channel(AT_A_TIME);
    let mut asks = asks.into_iter();
    let (mut answered, mut under_way) = (Vec::new(), 0);
    loop {
        for ask in asks.by_ref().take(AT_A_TIME - under_way) {
            let (number, reply) = (answered.len(), reply.clone());
            answered.push(away());
            under_way += 1;
            ask_then(ask, Box::new(move |said| drop(reply.try_send((number, said)))));
        }
        if under_way == 0 {
            return answered;
        }
        let Ok((number, said)) = answers.recv_timeout(2 * (PATIENCE + PATIENCE)) else { break };
        answered[number] = said;
        under_way -= 1;
    }
    // None is waited for any longer.
    answered.extend(asks.map(|_| away()));
    answered
}

#[cfg(test)]
mod tests {
    use super::*;
    use marram_shard::coordinator::SlotName;
    use std::cell::{Cell, RefCell};

    fn ask(number: u8) -> Ask {
        Ask::Slot { name: SlotName([number; 16]), take: None, from: None }
    }

    /// What a store says of one of these.
    fn said(ask: &Ask) -> AskAnswer {
        let Ask::Slot { name, .. } = ask else { panic!("it is of a slot") };
        AskAnswer::PoliciesLeft(Some(usize::from(name.0[0])))
    }

    #[test]
    fn answers_have_the_order_of_the_questions_and_some_are_under_way_at_a_time() {
        for count in [0, 1, 31, 32, 33, 200] {
            let (waiting, most) = (RefCell::new(Vec::<(Ask, Answered)>::new()), Cell::new(0));
            let is_last = |ask: &Ask| said(ask) == AskAnswer::PoliciesLeft(Some(usize::from(count) - 1));
            let answers = several((0..count).map(ask), |ask, answered| {
                let mut waiting = waiting.borrow_mut();
                let is_last = is_last(&ask);
                waiting.push((ask, answered));
                most.set(waiting.len().max(most.get()));
                // The last of them is answered first.
                if waiting.len() == AT_A_TIME || is_last {
                    while let Some((ask, answered)) = waiting.pop() {
                        answered(said(&ask));
                    }
                }
            });
            let expected: Vec<AskAnswer> = (0..count).map(|number| said(&ask(number))).collect();
            assert_eq!(answers, expected);
            assert_eq!(most.get(), usize::from(count).min(AT_A_TIME));
        }
    }
}
