//! Which fresh seed caught each named mutation, so that CI need not search for it again.
//!
//! ```text
//! # comment
//! name of the mutation <tab> seed
//! ```
//! Each seed was found by a search among fresh seeds; none was chosen because of a past bug. A change of the protocol may make a seed miss
//! its mutation: then the search begins again, and `--write` keeps what it finds.

use std::{collections::BTreeMap, fmt::Write as _, fs, io, path::Path};

/// The file, relative to the workspace.
pub(super) const RECORD: &str = "crates/sim/mutations/caught.txt";
/// Its first lines.
const HEAD: &str = "# A fresh seed that caught each named mutation. `cargo xtask sim mutants --write` searches for those that it misses.\n\
                    # CI does the same without writing. `cargo xtask soak mutants` searches for all again.\n";

/// Seeds by the names of mutations.
pub(super) type Record = BTreeMap<String, u64>;

/// Reads the file. One that is not there holds nothing.
///
/// # Errors
/// If it cannot be read, or the first line that is neither a comment nor a name and a seed.
pub(super) fn read(root: &Path) -> io::Result<Record> {
    match fs::read_to_string(root.join(RECORD)) {
        Ok(text) => parse(&text).map_err(io::Error::other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Record::new()),
        Err(error) => Err(error),
    }
}

/// Writes the whole file.
///
/// # Errors
/// If it cannot be written.
pub(super) fn write(root: &Path, record: &Record) -> io::Result<()> {
    fs::write(root.join(RECORD), text(record))
}

fn parse(text: &str) -> Result<Record, String> {
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.starts_with('#') && !line.trim().is_empty());
    let entry = |(number, line): (usize, &str)| {
        let entry =
            line.split_once('\t').and_then(|(name, seed)| Some((name.to_owned(), seed.parse().ok()?)));
        entry.ok_or_else(|| format!("{RECORD}, line {number}: not a name, a tab and a seed: `{line}`"))
    };
    lines.map(entry).collect()
}

fn text(record: &Record) -> String {
    record.iter().fold(HEAD.to_owned(), |mut text, (name, seed)| {
        let _ = writeln!(text, "{name}\t{seed}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        let record = Record::from([("hall/a".to_owned(), 7_000_001), ("b".to_owned(), 2)]);
        assert_eq!(parse(&text(&record)), Ok(record));
    }

    #[test]
    fn a_bad_line_is_named() {
        for line in ["b 7", "b\tx", "b"] {
            let problem = parse(&format!("# words\na\t1\n{line}\n")).unwrap_err();
            assert!(problem.contains("line 3") && problem.contains(line), "{problem}");
        }
    }
}
