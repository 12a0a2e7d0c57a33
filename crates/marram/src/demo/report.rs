//! The end of the demo: a table of what was wanted and what was seen, and the verdict.
//!
//! The verdict looks at bytes and counts that curl and the server report themselves, and at the
//! agents' reports of recoveries; a demo in which a fault did not happen is a failed demo.

use super::curl::Download;
use super::data::Data;
use super::faults::Faults;
use marram_node::text::table;

/// Everything on which the verdict depends.
pub(super) struct Outcome {
    pub(super) expected: Data,
    pub(super) download: Download,
    pub(super) requests: usize,
    pub(super) web: &'static str,
    pub(super) faults: Faults,
}

impl Outcome {
    /// The closing table.
    pub(super) fn table(&self) -> String {
        let (download, faults) = (&self.download, &self.faults);
        let row = |what: &str, wanted: String, got: String| vec![what.to_owned(), wanted, got];
        let gaps: Vec<String> = faults.gaps_ms.iter().map(|gap| format!("{gap:.1}")).collect();
        let rows = [
            row("bytes received by curl", self.expected.size.to_string(), download.bytes.to_string()),
            row("SHA-256", digest(&self.expected.sha256), digest(&download.sha256)),
            row("curl's exit", "success".into(), download.status.clone()),
            row("connections of curl", "1".into(), download.connections.to_string()),
            row(&format!("requests logged by {}", self.web), "1".into(), self.requests.to_string()),
            row("edges killed", "3 or more".into(), faults.kills.to_string()),
            row("  of them within a recovery", "1".into(), faults.kills_in_recovery.to_string()),
            row("edges stopped and resumed", "1 or more".into(), faults.stops.to_string()),
            row("recoveries", "3 or more".into(), faults.recoveries.to_string()),
            row("frames of replaced edges refused", "1 or more".into(), faults.zombies_refused.to_string()),
            row("time without an owner, ms", String::new(), gaps.join(", ")),
        ];
        format!("\n{}\n", table::format(&["", "WANTED", "SEEN"], &rows))
    }

    /// Everything that is wrong, if anything is.
    /// With `--sabotage`, one error usually leads to others.
    pub(super) fn verdict(&self) -> Result<(), String> {
        let (download, faults) = (&self.download, &self.faults);
        let checks = [
            (download.bytes == self.expected.size, "the number of bytes is wrong"),
            (
                download.sha256 == self.expected.sha256,
                "the SHA-256 is wrong: bytes lost, repeated or changed",
            ),
            (download.success, "curl failed"),
            (download.connections == 1, "curl did not make exactly one connection"),
            (self.requests == 1, "the server did not log exactly one request"),
            (faults.kills >= 3 && faults.kills_in_recovery >= 1, "not every kill was made"),
            (faults.recoveries >= 3, "the session did not recover three times"),
            (faults.zombies_refused >= 1, "no frame of a replaced edge was refused"),
        ];
        let mut wrong: Vec<String> =
            checks.iter().filter(|(held, _)| !held).map(|(_, what)| (*what).to_owned()).collect();
        wrong.extend(faults.interrupted.iter().map(|why| format!("the faults stopped early: {why}")));
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
    }
}

fn digest(bytes: &[u8; 32]) -> String {
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}..{}", &text[..16], &text[48..])
}
