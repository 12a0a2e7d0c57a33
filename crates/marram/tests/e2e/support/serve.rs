//! Servers that have a thread for each connection.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
};

/// Serves each connection in a thread of its own, which ends when its client disconnects.
pub(crate) fn serve(one: impl Fn(TcpStream) -> std::io::Result<()> + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let one = one.clone();
            thread::spawn(move || one(stream));
        }
    });
    address
}

/// A server that echoes what it receives.
pub(crate) fn echo() -> SocketAddr {
    serve(|mut stream| {
        stream.set_nodelay(true)?;
        let mut buffer = vec![0; 64 << 10];
        loop {
            match stream.read(&mut buffer)? {
                0 => return Ok(()),
                len => stream.write_all(&buffer[..len])?,
            }
        }
    })
}
