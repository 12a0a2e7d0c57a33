//! The same network as a native server with a process a client: what `marram bench classify` compares cells with, beside processes that
//! run the cell's module. Prints its address; ends when its standard input does.

use classify::network::Network;
use classify::render::IMAGE_BYTES;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};

/// Says that this process serves the client that is its standard input.
const CLIENT: &str = "client";
/// A client has a process of its own; more threads in it than one would only share the cores with the other clients.
const ONE_THREAD: [(&str, &str); 2] = [("RTEN_NUM_THREADS", "1"), ("RAYON_NUM_THREADS", "1")];

fn main() -> io::Result<()> {
    if std::env::args().nth(1).is_some_and(|word| word == CLIENT) {
        return serve(TcpStream::from(io::stdin().as_fd().try_clone_to_owned()?));
    }
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    println!("{}", listener.local_addr()?);
    std::thread::spawn(|| {
        // Nothing is ever said to it.
        let _ = io::stdin().read(&mut [0]);
        std::process::exit(0)
    });
    let program = std::env::current_exe()?;
    for stream in listener.incoming() {
        let socket = Stdio::from(OwnedFd::from(stream?));
        let mut command = Command::new(&program);
        let mut child = command.arg(CLIENT).envs(ONE_THREAD).stdin(socket).spawn()?;
        // How it ends is its client's to see.
        std::thread::spawn(move || _ = child.wait());
    }
    Ok(())
}

fn serve(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (network, mut image) = (Network::default(), [0; IMAGE_BYTES]);
    loop {
        match stream.read_exact(&mut image) {
            // It has gone.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        stream.write_all(&classify::answer(&network.scores(&image)))?;
    }
}
