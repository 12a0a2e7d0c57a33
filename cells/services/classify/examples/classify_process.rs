//! The same network as a native server with one process per client: `marram bench classify` compares cells with it, and with
//! processes that run the cell's module. Prints its address; ends when its standard input ends.

use classify::network::Network;
use classify::render::IMAGE_BYTES;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};

/// Argument: this process serves the client that is its standard input.
const CLIENT: &str = "client";
/// Each client has a process of its own; more threads in it would only take cores from the other clients.
const ONE_THREAD: [(&str, &str); 2] = [("RTEN_NUM_THREADS", "1"), ("RAYON_NUM_THREADS", "1")];

fn main() -> io::Result<()> {
    if std::env::args().nth(1).is_some_and(|word| word == CLIENT) {
        return serve(TcpStream::from(io::stdin().as_fd().try_clone_to_owned()?));
    }
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    println!("{}", listener.local_addr()?);
    std::thread::spawn(|| {
        // Standard input carries no data, only its end.
        let _ = io::stdin().read(&mut [0]);
        std::process::exit(0)
    });
    let program = std::env::current_exe()?;
    for stream in listener.incoming() {
        let socket = Stdio::from(OwnedFd::from(stream?));
        let mut command = Command::new(&program);
        let mut child = command.arg(CLIENT).envs(ONE_THREAD).stdin(socket).spawn()?;
        // The client sees how it ends.
        std::thread::spawn(move || _ = child.wait());
    }
    Ok(())
}

fn serve(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (network, mut image) = (Network::default(), [0; IMAGE_BYTES]);
    loop {
        match stream.read_exact(&mut image) {
            // The client has disconnected.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        stream.write_all(&classify::answer(&network.scores(&image)))?;
    }
}
