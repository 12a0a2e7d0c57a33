//! The module tree of one crate, and in which file a path ends.
//!
//! Resolves `use` paths and paths in code as far as the checks need it: `crate`, `self`, `super`,
//! children, imports of the same file, and re-exports. What cannot be resolved is a path to another
//! crate, or is not an arrow.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Import, Source};

/// A module's path below the crate's root.
pub(super) type Module = Vec<String>;

/// How many re-exports a name is followed through. More would be a loop of re-exports.
const STEPS_MAX: usize = 8;

/// The modules of a crate that have files. Modules for tests are left out, with all that is below
/// them.
pub(super) struct Modules {
    sources: BTreeMap<Module, Source>,
}

impl Modules {
    /// Reads a crate's files. The names are relative to the folder of its sources.
    pub(super) fn read<'a>(files: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let mut sources: BTreeMap<Module, Source> =
            files.filter_map(|(name, text)| Some((module(name)?, Source::read(text)))).collect();
        let of_tests: Vec<Module> = sources
            .iter()
            .flat_map(|(module, source)| source.test_modules.iter().map(|name| child(module, name)))
            .collect();
        sources.retain(|module, _| !of_tests.iter().any(|test| module.starts_with(test)));
        Self { sources }
    }

    /// Whether a module has children with files of their own.
    pub(super) fn has_children(&self, module: &[String]) -> bool {
        self.sources.keys().any(|other| other.len() > module.len() && other.starts_with(module))
    }

    /// Which module names what of which other one.
    ///
    /// A re-export that the file does not use itself is no arrow of it: the arrow is that of the
    /// one who names the thing.
    pub(super) fn arrows(&self) -> BTreeMap<(Module, Module), BTreeSet<String>> {
        let mut arrows: BTreeMap<(Module, Module), BTreeSet<String>> = BTreeMap::new();
        for (from, source) in &self.sources {
            let imports = source.imports.iter().filter(|import| !source.hands_on(import));
            let imports = imports.map(|import| (&import.scope, &import.path));
            let paths = source.paths.iter().map(|path| (&path.scope, &path.path));
            for (scope, path) in imports.chain(paths) {
                if let Some((to, Some(name))) = self.resolve(from, scope, path)
                    && to != *from
                {
                    arrows.entry((from.clone(), to)).or_default().insert(name);
                }
            }
        }
        arrows
    }

    /// The file in which a path ends, and the first name in it; no name if the path is that of a module itself.
    fn resolve(
        &self,
        from: &[String],
        scope: &[String],
        path: &[String],
    ) -> Option<(Module, Option<String>)> {
        self.follow(self.absolute(from, scope, path)?, STEPS_MAX)
    }

    /// The path from the crate's root, if it is one of this crate.
    fn absolute(&self, from: &[String], scope: &[String], path: &[String]) -> Option<Module> {
        let mut base = [from, scope].concat();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => (base, rest) = (Module::new(), &path[1..]),
            "self" => rest = &path[1..],
            "super" => {}
            first if self.sources.contains_key(&child(&base, first)) => {}
            first => {
                // A module that this file has imported.
                let imports = &self.sources.get(from)?.imports;
                let is_it = |it: &&Import| it.name == first && it.scope == scope && it.path != path;
                let module = self.resolve(from, scope, &imports.iter().find(is_it)?.path)?;
                return module.1.is_none().then(|| [&module.0, &path[1..]].concat());
            }
        }
        while rest.first().is_some_and(|first| first == "super") {
            base.pop()?;
            rest = &rest[1..];
        }
        base.extend_from_slice(rest);
        Some(base)
    }

    /// Walks down the modules, then through what the file there only hands on.
    ///
    /// `steps` bounds the re-exports. The result is the deepest module that has a file, and the
    /// first name behind it.
    fn follow(&self, path: Module, steps: usize) -> Option<(Module, Option<String>)> {
        let depth = (0..=path.len()).rev().find(|depth| self.sources.contains_key(&path[..*depth]))?;
        let (module, rest) = path.split_at(depth);
        let Some(name) = rest.first() else { return Some((path, None)) };
        let here = Some((module.to_vec(), Some(name.clone())));
        if let Some(import) =
            self.sources[module].imports.iter().find(|it| it.name == *name && it.scope.is_empty())
            && steps > 0
            && import.path.first().is_some_and(|first| first != name)
        {
            let Some(target) = self.absolute(module, &[], &import.path) else { return here };
            return self.follow([target.as_slice(), &rest[1..]].concat(), steps - 1);
        }
        if module.is_empty()
            && let Some((other, _)) = self.sources.iter().find(|(_, source)| source.macros.contains(name))
        {
            // An exported macro stands at the root wherever it is defined.
            return Some((other.clone(), Some(name.clone())));
        }
        here
    }
}

/// The path of a child module.
fn child(module: &[String], name: &str) -> Module {
    let mut path = module.to_vec();
    path.push(name.to_owned());
    path
}

/// The module of a file; none if it is one of tests.
///
/// `a/mod.rs` and `a.rs` are the module `a`; `lib.rs` and `main.rs` are the root.
fn module(name: &str) -> Option<Module> {
    let mut path: Module = name.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    if path.iter().any(|part| part == "tests") {
        return None;
    }
    if path.last()? == "mod" || name == "lib.rs" || name == "main.rs" {
        path.pop();
    }
    Some(path)
}
