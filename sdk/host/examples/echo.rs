//! A server with an embedded end: echoes the input of each session.
//!
//!     echo NAME EDGE [EDGE ...]      NAME is the `server` of the app's manifest; the token as in `ask`

use marram_host::{Server, Settings};
use std::io::{Error, ErrorKind, copy};
use std::process::ExitCode;
use std::thread;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("echo: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let name =
        arguments.next().ok_or_else(|| Error::new(ErrorKind::InvalidInput, "echo NAME EDGE [EDGE ...]"))?;
    let mut settings = Settings::new(arguments);
    if let Ok(token) = std::env::var("MARRAM_TOKEN") {
        settings = settings.token(&token);
    }
    let server = Server::start(settings, &name)?;
    for connection in server.incoming() {
        // Ends with its session.
        thread::spawn(move || {
            if let Err(error) = copy(&mut &connection, &mut &connection) {
                eprintln!("{error}");
            }
        });
    }
    Ok(())
}
