//! `key`, `slots`: one shared cell for each key that clients come with. What the key of a client is, the listener, gate or rule says by
//! which it came.

use crate::source::{Problem, Source};
use toml::Spanned;

/// Slots of an app that does not say how many. Another default would make another version of each such app.
pub const SLOTS: u32 = 64;
/// Most slots of an app.
pub const SLOTS_MAX: u32 = 1_024;

/// How many slots the app has; 0 if it has no keys. `has_cells`: its clients share cells that have a backup.
pub(super) fn resolve(
    source: &Source,
    (key, slots): (Option<&Spanned<String>>, Option<&Spanned<u32>>),
    has_cells: bool,
) -> Result<u32, Problem> {
    let Some(key) = key else {
        let Some(slots) = slots else { return Ok(0) };
        return Err(source.problem(
            &slots.span(),
            "are of an app with one cell for each key; write `key = \"required\"`, or remove it",
        ));
    };
    let problem = |what: &str| Err(source.problem(&key.span(), what));
    if key.get_ref() != "required" {
        return problem(
            "is not \"required\"; what the key of a client is, say at the listeners, gates and rules that lead to the app: `key = \"path\"`",
        );
    }
    if !has_cells {
        return problem(
            "needs `cell = \"shared\"` and `protect = \"epoch\"`: only such cells exist once for all edges; write both, or remove it",
        );
    }
    match slots {
        None => Ok(SLOTS),
        Some(slots) if (1..=SLOTS_MAX).contains(slots.get_ref()) => Ok(*slots.get_ref()),
        Some(slots) => {
            Err(source.problem(&slots.span(), format!("must be 1 to {SLOTS_MAX}; remove it for {SLOTS}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::manifest::Manifest;
    use crate::source::Source;

    fn parse(rest: &str) -> Result<u32, String> {
        let text = format!("name = \"a\"\nmodule = \"a.wasm\"\n{rest}\n");
        let source = Source::new("marram.toml", text);
        Manifest::parse(&source).map(|manifest| manifest.slots).map_err(|problem| problem.to_string())
    }

    #[test]
    fn keys_need_a_protected_shared_cell() {
        let cell = "cell = \"shared\"\nprotect = \"epoch\"\n";
        assert_eq!(parse(cell), Ok(0));
        assert_eq!(parse(&format!("{cell}key = \"required\"")), Ok(64));
        assert_eq!(parse(&format!("{cell}key = \"required\"\nslots = 1024")), Ok(1_024));
        for (rest, parts) in [
            (format!("{cell}slots = 7"), &[":5", "`slots`", "`key = \"required\"`"][..]),
            (format!("{cell}key = \"path\""), &[":5", "`key`", "\"required\"", "listeners"]),
            (format!("{cell}key = 7"), &[":5", "`key`", "expected a string"]),
            (format!("{cell}key = \"required\"\nslots = 0"), &[":6", "`slots`", "1 to 1024"]),
            (format!("{cell}key = \"required\"\nslots = 1025"), &[":6", "`slots`", "1 to 1024"]),
            ("cell = \"shared\"\nkey = \"required\"".into(), &[":4", "`key`", "`protect = \"epoch\"`"]),
            ("protect = \"epoch\"\nkey = \"required\"".into(), &[":4", "`key`", "`cell = \"shared\"`"]),
        ] {
            let refused = parse(&rest).expect_err(&rest);
            assert!(parts.iter().all(|part| refused.contains(part)), "{rest}: {refused}");
        }
    }
}
