//! Which paths a source file names, outside of tests: its `use` trees and the paths inside of its code. Reads tokens, not
//! syntax; does not know which files there are.
//!
//! A real parser would take longer to compile than all of xtask. Tokens are enough: paths are words
//! joined by `::`, imports begin with `use`, and code for tests is marked by an attribute. Macros
//! are read as they are written, not as they expand.

use std::collections::BTreeMap;

/// What one file names.
#[derive(Default, Debug)]
pub(super) struct Source {
    pub(super) imports: Vec<Import>,
    pub(super) paths: Vec<NamedPath>,
    /// Macros that it defines.
    pub(super) macros: Vec<String>,
    /// Modules that it declares for tests alone.
    pub(super) test_modules: Vec<String>,
    /// How often each word occurs. Counts those outside of imports, to see whether an imported name
    /// is used.
    words: BTreeMap<String, usize>,
}

/// One leaf of a `use` tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Import {
    /// The inline modules around it.
    pub(super) scope: Vec<String>,
    pub(super) path: Vec<String>,
    /// The name that it has in this file.
    pub(super) name: String,
    pub(super) is_public: bool,
}

/// A path of at least two names in the code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct NamedPath {
    /// The inline modules around it.
    pub(super) scope: Vec<String>,
    pub(super) path: Vec<String>,
}

impl Source {
    /// Reads a file.
    pub(super) fn read(text: &str) -> Self {
        let mut reader =
            Reader { tokens: tokens(text), at: 0, depth: 0, scopes: Vec::new(), source: Self::default() };
        if !reader.is_for_tests(0, true) {
            reader.read();
        }
        reader.source
    }

    /// Whether an import is only handed on: public, and not used by the file itself.
    pub(super) fn hands_on(&self, import: &Import) -> bool {
        import.is_public && self.words.get(&import.name).is_none_or(|count| *count == 0)
    }
}

/// Walks the tokens once.
struct Reader<'a> {
    tokens: Vec<&'a str>,
    at: usize,
    /// Open braces.
    depth: usize,
    /// The inline modules around the present token, each with the depth of its content.
    scopes: Vec<(String, usize)>,
    source: Source,
}

impl<'a> Reader<'a> {
    /// Empty behind the end, which is no token of any text.
    fn token(&self, at: usize) -> &'a str {
        self.tokens.get(at).copied().unwrap_or_default()
    }

    /// The names of the inline modules around the present place.
    fn scope(&self) -> Vec<String> {
        self.scopes.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Reads up to the end of the file.
    fn read(&mut self) {
        while self.at < self.tokens.len() {
            if self.is_for_tests(self.at, false) {
                self.skip_item();
                continue;
            }
            let (token, next) = (self.token(self.at), self.token(self.at + 1));
            if is_word(token) {
                *self.source.words.entry(token.to_owned()).or_default() += 1;
            }
            match token {
                "use" if next != "<" => {
                    let is_public = self.at > 0 && matches!(self.token(self.at - 1), "pub" | ")");
                    self.at += 1;
                    self.import(Vec::new(), is_public);
                    continue;
                }
                "mod" if self.token(self.at + 2) == "{" => {
                    self.scopes.push((next.to_owned(), self.depth + 1));
                }
                "macro_rules" => self.source.macros.push(self.token(self.at + 2).to_owned()),
                "{" => self.depth += 1,
                "}" => {
                    self.scopes.pop_if(|(_, depth)| *depth == self.depth);
                    self.depth = self.depth.saturating_sub(1);
                }
                _ if is_word(token) && next == "::" => {
                    self.path();
                    continue;
                }
                _ => {}
            }
            self.at += 1;
        }
    }

    /// Whether an attribute begins here that keeps what follows for tests.
    fn is_for_tests(&self, at: usize, whole_file: bool) -> bool {
        let start: &[&str] = if whole_file { &["#", "!", "[", "cfg", "("] } else { &["#", "[", "cfg", "("] };
        let rest = self.tokens.get(at..).unwrap_or_default();
        rest.starts_with(start) && {
            let attribute = rest.split(|token| *token == "]").next().unwrap_or_default();
            attribute.contains(&"test") && !attribute.contains(&"not") && !attribute.contains(&"any")
        }
    }

    /// Skips an attribute and its item.
    ///
    /// An item ends with its block, with a semicolon, or, for a field or a variant, with a comma.
    fn skip_item(&mut self) {
        while self.token(self.at) == "#" {
            while !matches!(self.token(self.at), "]" | "") {
                self.at += 1;
            }
            self.at += 1;
        }
        let (mut nested, mut is_block, mut is_field) = (0_usize, false, true);
        while self.at < self.tokens.len() {
            let token = self.token(self.at);
            match token {
                "fn" | "mod" | "impl" | "struct" | "enum" | "trait" if nested == 0 => {
                    (is_block, is_field) = (true, false);
                    if token == "mod" && self.token(self.at + 2) == ";" {
                        self.source.test_modules.push(self.token(self.at + 1).to_owned());
                    }
                }
                "use" | "const" | "static" | "let" | "type" if nested == 0 => is_field = false,
                "{" | "(" | "[" => nested += 1,
                // The end of what is around it.
                "}" | ")" | "]" if nested == 0 => return,
                "}" | ")" | "]" => nested -= 1,
                _ => {}
            }
            let ends = match token {
                ";" => true,
                "," => is_field,
                "}" => is_block,
                _ => false,
            };
            self.at += 1;
            if nested == 0 && ends {
                return;
            }
        }
    }

    /// Reads a `use` tree below a prefix, up to what ends it.
    ///
    /// Calls itself for each branch of a group, with the path so far.
    fn import(&mut self, mut path: Vec<String>, is_public: bool) {
        let mut name = None;
        loop {
            let token = self.token(self.at).to_owned();
            match token.as_str() {
                "{" => {
                    while !matches!(self.token(self.at), "}" | "") {
                        self.at += 1;
                        if self.token(self.at) != "}" {
                            self.import(path.clone(), is_public);
                        }
                    }
                    self.at += 1;
                    return;
                }
                "as" => {
                    name = Some(self.token(self.at + 1).to_owned());
                    self.at += 2;
                    continue;
                }
                "self" if !path.is_empty() => {}
                "::" => {}
                _ if token == "*" || is_word(&token) => path.push(token),
                _ => break,
            }
            self.at += 1;
        }
        if let Some(last) = path.last() {
            let name = name.unwrap_or_else(|| last.clone());
            self.source.imports.push(Import { scope: self.scope(), path, name, is_public });
        }
    }

    /// Reads a path in the code.
    ///
    /// A single word is no path: it is local, or comes from an import, which is an arrow already.
    fn path(&mut self) {
        let mut path = vec![self.token(self.at).to_owned()];
        while self.token(self.at + 1) == "::" && is_word(self.token(self.at + 2)) {
            self.at += 2;
            path.push(self.token(self.at).to_owned());
        }
        self.at += 1;
        if path.len() > 1 {
            self.source.paths.push(NamedPath { scope: self.scope(), path });
        }
    }
}

/// Names, keywords and numbers.
fn is_word(token: &str) -> bool {
    token.starts_with(is_part)
}

fn is_part(it: char) -> bool {
    it == '_' || it.is_alphanumeric()
}

/// The words and signs of a text, without comments, strings, characters and lifetimes' ticks. `::` is one sign.
fn tokens(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if first == '"' {
            string_length(rest)
        } else if first == '\'' {
            character_length(rest)
        } else if let Some(length) = raw_string_length(rest) {
            length
        } else if first.is_whitespace() {
            first.len_utf8()
        } else {
            let length = if is_part(first) {
                rest.find(|it| !is_part(it)).unwrap_or(rest.len())
            } else if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            found.push(&rest[..length]);
            length
        };
        rest = &rest[length..];
    }
    found
}

/// The length of a string with its quotes. An escaped quote does not end it.
fn string_length(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of a raw string, if one begins here.
fn raw_string_length(text: &str) -> Option<usize> {
    let marked =
        text.strip_prefix("br").or_else(|| text.strip_prefix("cr")).or_else(|| text.strip_prefix('r'))?;
    let quoted = marked.trim_start_matches('#');
    let hashes = &marked[..marked.len() - quoted.len()];
    let content = quoted.strip_prefix('"')?;
    let end = format!("\"{hashes}");
    let left = content.find(&end).map_or(0, |at| content.len() - at - end.len());
    Some(text.len() - left)
}

/// The length of a character with its quotes, or of a lifetime's tick.
fn character_length(text: &str) -> usize {
    let content = &text[1..];
    if content.starts_with('\\') {
        return content.get(2..).and_then(|rest| rest.find('\'')).map_or(text.len(), |at| at + 4);
    }
    let Some(first) = content.chars().next() else { return 1 };
    if content[first.len_utf8()..].starts_with('\'') { first.len_utf8() + 2 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> (Vec<String>, Vec<String>) {
        let source = Source::read(text);
        let imports = source.imports.iter().map(|import| import.path.join("::")).collect();
        (imports, source.paths.iter().map(|path| path.path.join("::")).collect())
    }

    #[test]
    fn trees_and_paths_are_read() {
        let cases: [(&str, &[&str], &[&str]); 8] = [
            (
                "use crate::a::{self, b::{C, D as E}, f};",
                &["crate::a", "crate::a::b::C", "crate::a::b::D", "crate::a::f"],
                &[],
            ),
            (
                "pub(crate) use super::x;\nfn a() -> self::B { crate::c::D::e() }",
                &["super::x"],
                &["self::B", "crate::c::D::e"],
            ),
            (
                "// crate::a::b\nconst A: &str = \"crate::a::b\"; const B: &str = r#\"crate::\"x\"#; a::b;",
                &[],
                &["a::b"],
            ),
            ("fn a<'a>(b: &'a u8) { if c == '\\'' || c == '\"' { d::e() } }", &[], &["d::e"]),
            ("#[cfg(test)]\nmod tests { use super::*; }\nfn a() { b::c() }", &[], &["b::c"]),
            ("#[cfg(test)]\nuse a::{b, c};\nuse d::e;", &["d::e"], &[]),
            ("struct A { #[cfg(test)] a: b::C, d: e::F }", &[], &["e::F"]),
            ("#![cfg(test)]\nuse a::b;", &[], &[]),
        ];
        for (text, imports, paths) in cases {
            let found = names(text);
            assert_eq!(found.0, imports, "{text}");
            assert_eq!(found.1, paths, "{text}");
        }
    }

    #[test]
    fn inline_modules_macros_and_test_modules_are_known() {
        let source = Source::read(
            "mod a { use super::B; }\nuse c::D;\nmacro_rules! e { () => {} }\n#[cfg(test)]\nmod f;\n",
        );
        assert_eq!(source.imports[0].scope, ["a"]);
        assert!(source.imports[1].scope.is_empty());
        assert_eq!((source.macros, source.test_modules), (vec!["e".to_owned()], vec!["f".to_owned()]));
    }

    #[test]
    fn what_is_handed_on_is_not_used() {
        let source = Source::read("pub use a::B;\npub use a::C;\nuse a::D;\nfn e() -> C {}\n");
        let handed_on: Vec<bool> = source.imports.iter().map(|import| source.hands_on(import)).collect();
        // The words of the `use` itself are not counted.
        assert_eq!(handed_on, [true, false, false]);
    }
}
