//! Description of the machine on which a figure was measured.
//!
//! Printed with every report, because a figure without its machine cannot be compared. Files that
//! cannot be read give `null` or an empty text; that is no reason to fail.

use serde_json::{Value, json};
use std::fs;

/// Processor, memory, kernel.
pub(super) fn describe() -> Value {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.split_once(':').map(|(_, value)| value.trim().to_owned())
    };
    json!({
        "cpu": field(&cpu, "model name"),
        "cores": std::thread::available_parallelism().map(usize::from).unwrap_or(1),
        "memory": field(&memory, "MemTotal"),
        "kernel": kernel.trim(),
        "architecture": std::env::consts::ARCH,
    })
}
