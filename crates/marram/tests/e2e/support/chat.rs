//! Clients of the chat room: in a terminal, or in a browser's page.

use super::websocket::{Raw, request};
use std::{
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// A client of the room that reads.
pub(crate) enum Client {
    Terminal(BufReader<TcpStream>),
    /// With lines that have come and were not asked for.
    Browser(Raw, Vec<String>),
}

impl Client {
    /// Connects as `nc` does.
    pub(crate) fn terminal(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self::Terminal(BufReader::new(stream))
    }

    /// Connects to this path as a page from `page_at` does.
    pub(crate) fn browser(to: SocketAddr, path: &str, page_at: SocketAddr) -> Self {
        let mut client = Raw::new(to);
        let head = client.ask(&request(path, &format!("Origin: http://{page_at}\r\n")));
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        Self::Browser(client, Vec::new())
    }

    /// Sends a line.
    pub(crate) fn say(&mut self, line: &str) {
        match self {
            Self::Terminal(stream) => writeln!(stream.get_mut(), "{line}").unwrap(),
            Self::Browser(client, _) => client.send(0x81, format!("{line}\n").as_bytes()),
        }
    }

    /// The next line; an empty one at the end of the connection.
    pub(crate) fn hear(&mut self) -> String {
        match self {
            Self::Terminal(stream) => {
                let mut line = String::new();
                stream.read_line(&mut line).unwrap();
                line.trim_end().to_owned()
            }
            Self::Browser(client, lines) => {
                while lines.is_empty() {
                    let (first, payload) = client.frame();
                    assert_eq!(first, 0x81, "text, in whole messages");
                    let text = String::from_utf8(payload).unwrap();
                    assert!(text.ends_with('\n'), "whole lines: {text:?}");
                    lines.extend(text.lines().rev().map(str::to_owned));
                }
                lines.pop().unwrap()
            }
        }
    }

    /// Receives until this line has come.
    pub(crate) fn hear_until(&mut self, wanted: &str) {
        loop {
            let line = self.hear();
            assert!(!line.is_empty(), "the connection ended before {wanted:?}");
            if line == wanted {
                return;
            }
        }
    }

    /// The next lines that were said.
    pub(crate) fn said(&mut self, count: usize) -> Vec<String> {
        let mut said = Vec::new();
        while said.len() < count {
            let line = self.hear();
            assert!(!line.is_empty() && !line.starts_with("error "), "{line:?} after {said:?}");
            said.extend(Some(line).filter(|line| !line.starts_with("* ")));
        }
        said
    }

    /// Says its name, and waits until the room says that these are here.
    pub(crate) fn join(mut self, name: &str, here: &str) -> Self {
        self.say(&format!("/name {name}"));
        self.hear_until(&format!("* you are {name}; here: {here}"));
        self
    }
}
