//! Reads the list of named mutations, whose format is at its head. Does not know the sources.
//!
//! ```text
//! == name of the entry
//! slow: why so few seeds catch it          optional
//! variants: A B C                          optional: one mutation each, VARIANT stands for its name
//! file: crates/session/src/owner/mod.rs
//! any other line: the reason
//! -- from
//! text that is in the file exactly once
//! -- to
//! what replaces it if the mutation is selected
//! -- and                                   optional: another `file:`, from, to
//! ```
//! Mutations are numbered in the order of the list, from 1 on; 0 selects none.

/// The list, relative to the workspace.
pub(super) const LIST: &str = "crates/sim/mutations/named.txt";
/// In a replacement: whether the mutation is selected.
const SWITCH: &str = "BROKEN";
/// In a replacement: the variant's name.
const VARIANT: &str = "VARIANT";

/// One rule of the protocol, broken.
#[derive(Clone, Debug)]
pub(super) struct Mutation {
    /// Selects it; from 1 on.
    pub(super) number: u32,
    /// For people; unique.
    pub(super) name: String,
    /// Whether so few fresh seeds catch it that CI has no time to search for one.
    pub(super) slow: bool,
}

/// One change of one file, for one or more mutations.
#[derive(Clone, Debug)]
pub(super) struct Edit {
    /// Name of the entry.
    pub(super) entry: String,
    /// Line of the entry in the list, for messages.
    pub(super) line: usize,
    /// Relative to the workspace.
    pub(super) file: String,
    /// Text to replace.
    pub(super) from: String,
    /// Its replacement, with the expression of the switch.
    pub(super) to: String,
    /// A Rust expression: whether a mutation with this change is selected.
    pub(super) switch: String,
    /// Whether `to` contains the switch, and so replaces `from` as it stands.
    pub(super) is_whole: bool,
}

/// All mutations, and their changes.
#[derive(Clone, Default, Debug)]
pub(super) struct Named {
    pub(super) mutations: Vec<Mutation>,
    pub(super) edits: Vec<Edit>,
}

/// Reads the list.
///
/// # Errors
/// What is wrong with the first bad entry.
pub(super) fn parse(text: &str) -> Result<Named, String> {
    let mut named = Named::default();
    let mut entry: Option<Entry<'_>> = None;
    for (line, words) in (1..).zip(text.lines()) {
        if let Some(name) = words.strip_prefix("== ") {
            entry.replace(Entry::new(name.trim(), line)).map_or(Ok(()), |entry| entry.finish(&mut named))?;
        } else if let Some(entry) = &mut entry {
            entry.take(words)?;
        }
    }
    entry.map_or(Ok(()), |entry| entry.finish(&mut named))?;
    Ok(named)
}

/// The place of an entry, to begin a message with.
pub(super) fn place(entry: &str, line: usize) -> String {
    format!("mutation `{entry}` ({LIST}, line {line})")
}

/// Part of an entry. Where in an entry the reader is; lines that begin with `-- ` move it on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Head,
    From,
    To,
}

/// An entry that is being read.
#[derive(Debug)]
struct Entry<'a> {
    name: &'a str,
    line: usize,
    /// Empty for an entry without variants.
    variants: Vec<&'a str>,
    slow: bool,
    part: Part,
    changes: Vec<Change<'a>>,
}

#[derive(Default, Debug)]
struct Change<'a> {
    file: Option<&'a str>,
    from: Vec<&'a str>,
    to: Vec<&'a str>,
    /// Whether `-- to` was read, also if nothing follows: an empty replacement removes a statement.
    complete: bool,
}

impl<'a> Entry<'a> {
    fn new(name: &'a str, line: usize) -> Self {
        let changes = vec![Change::default()];
        Self { name, line, variants: Vec::new(), slow: false, part: Part::Head, changes }
    }

    fn wrong(&self, what: &str) -> String {
        format!("{}: {what}", place(self.name, self.line))
    }

    /// Takes the next line of the entry. Unknown words in the head are the reason, for people.
    fn take(&mut self, line: &'a str) -> Result<(), String> {
        let change = self.changes.last_mut().expect("an entry begins with a change");
        match (self.part, line) {
            (Part::Head, "-- from") => self.part = Part::From,
            (Part::From, "-- to") => (self.part, change.complete) = (Part::To, true),
            (Part::To, "-- and") => {
                self.part = Part::Head;
                self.changes.push(Change::default());
            }
            (_, "-- from" | "-- to" | "-- and") => {
                return Err(self.wrong(&format!("`{line}` out of order; it goes `file:`, from, to, and")));
            }
            (Part::From, _) => change.from.push(line),
            (Part::To, _) => change.to.push(line),
            (Part::Head, _) => {
                if let Some(file) = line.strip_prefix("file: ") {
                    change.file = Some(file.trim());
                } else if let Some(variants) = line.strip_prefix("variants: ") {
                    self.variants = variants.split_whitespace().collect();
                } else if line.starts_with("slow: ") {
                    self.slow = true;
                }
            }
        }
        Ok(())
    }

    /// Adds the mutations and their edits. One edit serves all variants if its text does not name
    /// them.
    fn finish(self, named: &mut Named) -> Result<(), String> {
        let variants: Vec<Option<&str>> = match &self.variants[..] {
            [] => vec![None],
            variants => variants.iter().copied().map(Some).collect(),
        };
        let first = u32::try_from(named.mutations.len()).unwrap_or(u32::MAX) + 1;
        let numbered: Vec<(u32, Option<&str>)> = (first..).zip(variants).collect();
        for (number, variant) in &numbered {
            let name =
                variant.map_or_else(|| self.name.to_owned(), |variant| format!("{}/{variant}", self.name));
            if named.mutations.iter().any(|other| other.name == name) {
                return Err(self.wrong("another entry has the same name"));
            }
            named.mutations.push(Mutation { number: *number, name, slow: self.slow });
        }
        for change in &self.changes {
            let Some(file) = change.file.filter(|_| change.complete) else {
                return Err(self.wrong("`file: `, `-- from` or `-- to` is missing"));
            };
            let (from, to) = (change.from.join("\n"), change.to.join("\n"));
            if from.trim().is_empty() {
                return Err(self.wrong("there is nothing after `-- from`"));
            }
            // A change that does not name the variant is the same for all.
            let each = numbered.chunks(if to.contains(VARIANT) { 1 } else { numbered.len() });
            named.edits.extend(each.map(|numbered| self.edit(file, &from, &to, numbered)));
        }
        Ok(())
    }

    /// The switch is an expression that is true if any of the given mutations is selected.
    fn edit(&self, file: &str, from: &str, to: &str, numbered: &[(u32, Option<&str>)]) -> Edit {
        let calls = numbered.iter().map(|(number, _)| format!("::marram_wire::mutant({number})"));
        let switch = format!("({})", calls.collect::<Vec<_>>().join(" || "));
        let variant = numbered.first().and_then(|(_, variant)| *variant).unwrap_or(VARIANT);
        Edit {
            entry: self.name.into(),
            line: self.line,
            file: file.into(),
            from: from.into(),
            to: to.replace(VARIANT, variant).replace(SWITCH, &switch),
            is_whole: to.contains(SWITCH),
            switch,
        }
    }
}
