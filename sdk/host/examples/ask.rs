//! A client with an embedded end: sends its standard input to a new cell, and writes the answers to standard output.
//!
//!     ask APP EDGE [EDGE ...]        with the domain's token in MARRAM_TOKEN, if it has one

use marram_host::{Client, Event, Settings};
use std::io::{Error, ErrorKind, Write, copy, stdin, stdout};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let app =
        arguments.next().ok_or_else(|| Error::new(ErrorKind::InvalidInput, "ask APP EDGE [EDGE ...]"))?;
    let mut settings = Settings::new(arguments).observer(|event| match event {
        Event::Owned { address, gap, .. } if gap.is_zero() => eprintln!("begun at {address}"),
        Event::Owned { address, gap, .. } => eprintln!("at {address} after {gap:?} without an edge"),
        _ => {}
    });
    if let Ok(token) = std::env::var("MARRAM_TOKEN") {
        settings = settings.token(&token);
    }
    let client = Client::start(settings)?;
    client.wait_ready(Duration::from_secs(10))?;
    let connection = client.connect(&app)?;
    thread::scope(|scope| {
        scope.spawn(|| copy(&mut stdin(), &mut &connection).and_then(|_| connection.shutdown_write()));
        copy(&mut &connection, &mut stdout())?;
        stdout().flush()
    })?;
    drop(connection);
    client.close()
}
