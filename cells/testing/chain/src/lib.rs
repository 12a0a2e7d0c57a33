//! The oracle's cell: the hash chain of `marram-chain-algo`.
//!
//! Only the glue is here: the same machine runs natively in the simulator, where no Wasm is needed,
//! and here as a cell.

use marram_chain_adapter::MachineCell;
use marram_chain_algo::Chain;
use marram_sdk::cell;

/// The chain as a cell.
pub type ChainCell = MachineCell<Chain>;

cell!(ChainCell);

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;
    use marram_chain_algo::Record;
    use marram_sdk::{
        Port,
        double::{Output, Session},
    };

    #[test]
    fn what_both_peers_receive_is_one_chain() {
        let mut session = Session::<ChainCell>::new();
        let mut outputs = session.open_client();
        outputs.extend(session.open_server());
        for n in 0..50_u8 {
            outputs.extend(session.message(Port(u32::from(n % 2)), &[n]));
            outputs.extend(session.advance(Duration::from_millis(10)));
        }
        outputs.extend(session.close(Port::CLIENT));
        let mut previous = 0;
        let mut peers = [0; 2];
        for output in &outputs {
            if let Output::Message { port, payload } = output {
                let record = Record::from_bytes(payload.as_slice().try_into().unwrap());
                assert_eq!(record.previous, previous);
                previous = record.digest();
                peers[port.0 as usize] += 1;
            }
        }
        assert!(peers.iter().all(|count| *count > 10), "{peers:?}");
        assert_eq!(outputs.last(), Some(&Output::close(Port::SERVER)));
    }
}
