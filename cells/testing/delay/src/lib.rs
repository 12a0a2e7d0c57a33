//! A stage for chains around the oracle's cell: passes streams on, some data later. It is the delay stage of `marram-chain-algo`.
//!
//! Before and behind the chain's cell, it makes what crosses from stage to stage vary from run to
//! run.

use marram_chain_adapter::MachineCell;
use marram_chain_algo::delay_stage::DelayStage;
use marram_sdk::cell;

/// The delay stage as a cell.
pub type DelayCell = MachineCell<DelayStage>;

cell!(DelayCell);

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;
    use marram_sdk::{
        Port,
        double::{Output, Session},
    };

    #[test]
    fn what_goes_in_comes_out_at_the_other_side_at_the_latest_when_it_ends() {
        let mut session = Session::<DelayCell>::new();
        session.open_client();
        session.open_server();
        let mut came = Vec::new();
        for n in 0..100_u8 {
            let outputs =
                [session.message(Port::CLIENT, &[n; 100]), session.advance(Duration::from_millis(3))];
            came.extend(outputs.concat());
        }
        came.extend(session.close(Port::CLIENT));
        let payload = |output: &Output| match output {
            Output::Message { port: Port::SERVER, payload } => payload.clone(),
            _ => Vec::new(),
        };
        let bytes: Vec<u8> = came.iter().flat_map(payload).collect();
        let expected: Vec<u8> = (0..100).flat_map(|n| [n; 100]).collect();
        assert_eq!(bytes, expected);
        assert_eq!(came.last(), Some(&Output::close(Port::SERVER)));
    }
}
