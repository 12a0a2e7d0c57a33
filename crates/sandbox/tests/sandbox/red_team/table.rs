//! docs/red-team.md names every test of this suite, and no other tests.

use std::collections::BTreeSet;
use std::path::Path;

/// The names of the tests in a file.
fn tests(path: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let after = text.split("#[test]\n").skip(1).filter_map(|rest| rest.strip_prefix("fn "));
    after.map(|rest| rest.split('(').next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn the_page_names_every_test_and_none_that_is_not_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/red-team.md")).unwrap();
    let mut named = BTreeSet::new();
    let mut file = None;
    for line in page.lines() {
        // A heading ends with the file of its table; a row begins with the test.
        if let Some(heading) = line.strip_prefix("## ") {
            file = heading.split('`').nth(1).map(|path| root.join(path));
        } else if let Some(test) = line.strip_suffix("` |").and_then(|row| row.rsplit('`').next()) {
            let file = file.as_ref().expect("a table is under a heading that names its file");
            assert!(tests(file).contains(test), "{} has no test {test}", file.display());
            named.insert(test.to_owned());
        }
    }
    for entry in
        std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sandbox/red_team")).unwrap()
    {
        let path = entry.unwrap().path();
        for test in tests(&path) {
            let named = named.contains(&test) || path.ends_with("table.rs");
            assert!(named, "docs/red-team.md does not name {test}, in {}", path.display());
        }
    }
}
