//! `servers`: to which servers an app's shared cell may connect by itself.

use crate::source::{Problem, Source};
use crate::units::Name;
use toml::Spanned;

/// Most servers of an app.
pub const SERVERS_MAX: usize = 64;

/// The names, each once and in ascending order. `has_cells`: the app's clients share cells that have a backup. `stages`: how many it has.
pub(super) fn resolve(
    source: &Source,
    written: Option<&Spanned<Vec<Spanned<Name>>>>,
    (has_cells, stages): (bool, usize),
) -> Result<Vec<String>, Problem> {
    let Some(written) = written else { return Ok(Vec::new()) };
    let problem = |what: &str| Err(source.problem(&written.span(), what));
    if !has_cells {
        return problem(
            "are those that a shared cell with a backup connects to; write `cell = \"shared\"` and `protect = \"epoch\"` or \"standby\", or name the \
             one server of each session with `server`",
        );
    }
    if stages > 1 {
        return problem("cannot be connected to by a chain, in this build; deploy one module, or remove it");
    }
    let mut names: Vec<String> = Vec::new();
    for name in written.get_ref() {
        if names.contains(&name.get_ref().0) {
            return Err(source.problem(&name.span(), "is named twice"));
        }
        names.push(name.get_ref().0.clone());
    }
    if names.is_empty() || names.len() > SERVERS_MAX {
        return problem(&format!("are 1 to {SERVERS_MAX}; remove it for none"));
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use crate::manifest::Manifest;
    use crate::source::Source;

    fn parse(rest: &str) -> Result<Vec<String>, String> {
        let text = format!("name = \"a\"\nmodule = \"a.wasm\"\n{rest}\n");
        let source = Source::new("marram.toml", text);
        Manifest::parse(&source).map(|manifest| manifest.servers).map_err(|problem| problem.to_string())
    }

    #[test]
    fn servers_are_those_of_protected_shared_cells() {
        for protect in ["epoch", "standby"] {
            let cell = format!("cell = \"shared\"\nprotect = \"{protect}\"\n");
            assert_eq!(parse(&format!("{cell}servers = [\"b\", \"a\"]")), Ok(vec!["a".into(), "b".into()]));
            assert_eq!(parse(&cell), Ok(vec![]));
        }
        let cell = "cell = \"shared\"\nprotect = \"epoch\"\n";
        let many = (0..65).map(|nth| format!("\"s{nth}\",")).collect::<String>();
        for (wrong, needles) in [
            ("servers = [\"a\"]".to_string(), &["`servers`", "`server`"][..]),
            ("cell = \"shared\"\nservers = [\"a\"]".to_string(), &["`servers`", "protect"]),
            (format!("{cell}servers = []"), &["`servers`", "1 to 64"]),
            (format!("{cell}servers = [{many}]"), &["`servers`", "1 to 64"]),
            (format!("{cell}servers = [\"a\", \"a\"]"), &["servers", "twice"]),
        ] {
            let problem = parse(&wrong).expect_err("it is refused");
            assert!(needles.iter().all(|needle| problem.contains(needle)), "{wrong}: {problem}");
        }
    }
}
