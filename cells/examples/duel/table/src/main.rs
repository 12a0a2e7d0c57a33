//! `scrabble-table ADDRESS`: serves tables for two at this address, such as 127.0.0.1:7900.

use std::{env, net::TcpListener, process::ExitCode};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [address] = &arguments[..] else {
        eprintln!("say where to listen: scrabble-table 127.0.0.1:7900");
        return ExitCode::from(2);
    };
    match TcpListener::bind(address) {
        Ok(listener) => scrabble_table::serve(&listener),
        Err(error) => {
            eprintln!("cannot listen on {address}: {error}");
            ExitCode::FAILURE
        }
    }
}
