//! Bytes that processes have received over TCP from one address, as the kernel counts them: with all that is around a frame, and without
//! the headers of packets. Asked of `ss`, since a process can ask the kernel only about its own sockets by descriptor.

use crate::cpu;
use std::net::SocketAddr;
use std::process::Command;

/// What the processes in a group have received from an address over the connections that they have there now. None without `ss`, or if
/// they have none.
pub(super) fn bytes(group: u32, from: SocketAddr) -> Option<u64> {
    let port = format!(":{}", from.port());
    let output = Command::new("ss").args(["-tinpHO", "dport", "=", &port]).output().ok()?;
    let pids: Vec<u32> =
        cpu::processes(&[group]).filter_map(|path| path.file_name()?.to_str()?.parse().ok()).collect();
    sum(&String::from_utf8_lossy(&output.stdout), &from.to_string(), &pids)
}

/// The sum over the lines with this peer and one of these processes.
fn sum(lines: &str, from: &str, pids: &[u32]) -> Option<u64> {
    let of_line = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let is_peer = words.nth(4) == Some(from);
        let owner = line.split_once("pid=")?.1.split_once(',')?.0.parse().ok()?;
        if !is_peer || !pids.contains(&owner) {
            return None;
        }
        // Without this word nothing has come yet.
        let received = words.find_map(|word| word.strip_prefix("bytes_received:"));
        received.map_or(Some(0), |number| number.parse().ok())
    };
    lines.lines().filter_map(of_line).reduce(|sum, of_line| sum + of_line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_connections_of_these_processes_count() {
        let line = |port: u16, pid: u32, rest: &str| {
            format!(
                "ESTAB 0 0 127.0.0.1:5414 127.0.0.1:{port} users:((\"marram\",pid={pid},fd=4)) bbr rto:204 {rest}"
            )
        };
        let lines = [
            line(700, 5, "bytes_sent:9 bytes_received:1000 segs_in:2"),
            line(700, 6, "bytes_received:200"),
            line(700, 7, "bytes_received:40"),
            line(701, 5, "bytes_received:5"),
            line(700, 5, "segs_in:2"),
        ];
        assert_eq!(sum(&lines.join("\n"), "127.0.0.1:700", &[5, 6]), Some(1_200));
        assert_eq!(sum(&lines.join("\n"), "127.0.0.1:700", &[8]), None);
        assert_eq!(sum("", "127.0.0.1:700", &[5]), None);
    }
}
