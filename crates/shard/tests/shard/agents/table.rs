//! docs/red-team.md names every test of this suite. (The guests' suite checks that it names no other test.)

use std::path::Path;

#[test]
fn the_page_names_every_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("../../docs/red-team.md")).unwrap();
    for entry in std::fs::read_dir(root.join("tests/shard/agents")).unwrap() {
        let path = entry.unwrap().path();
        if path.ends_with("table.rs") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for test in text.split("#[test]\nfn ").skip(1).filter_map(|rest| rest.split('(').next()) {
            assert!(
                page.contains(&format!("`{test}` |")),
                "docs/red-team.md does not name {test}, in {}",
                path.display()
            );
        }
    }
}
