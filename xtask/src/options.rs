//! The few options of xtask's own commands. Programs of the workspace parse theirs themselves.
//!
//! No library for arguments: there are a handful of flags, and xtask should compile quickly. Order:
//! take all options, then the words, then [`Options::finish`], which makes sure that nothing was
//! misspelt.

use std::collections::VecDeque;

use anyhow::{Context, Result, bail};

/// The remaining arguments of a command.
pub(crate) struct Options {
    words: VecDeque<String>,
}

impl Options {
    /// Takes all arguments.
    pub(crate) fn new(arguments: &[String]) -> Self {
        Self { words: arguments.iter().cloned().collect() }
    }

    /// Removes `--name N`, at any position, and returns N.
    ///
    /// # Errors
    /// If there is no word after it, or that is no number.
    pub(crate) fn number(&mut self, name: &str) -> Result<Option<u64>> {
        let Some(at) = self.words.iter().position(|word| word == name) else { return Ok(None) };
        self.words.remove(at);
        let value = self.words.remove(at).with_context(|| format!("{name} needs a number after it"))?;
        value.parse().map(Some).with_context(|| format!("{name} needs a number, not `{value}`"))
    }

    /// Removes `--name`, and returns whether it was there.
    pub(crate) fn flag(&mut self, name: &str) -> bool {
        let at = self.words.iter().position(|word| word == name);
        at.map(|at| self.words.remove(at)).is_some()
    }

    /// Removes the next plain word, if there is one.
    pub(crate) fn word(&mut self) -> Option<String> {
        let at = self.words.iter().position(|word| !word.starts_with('-'))?;
        self.words.remove(at)
    }

    /// Fails if arguments are left.
    pub(crate) fn finish(self) -> Result<()> {
        match self.words.front() {
            Some(word) => bail!("unknown argument `{word}`"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_numbers_in_any_order() {
        let words =
            |text: &str| Options::new(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        for text in ["frame --seconds 5", "--seconds 5 frame"] {
            let mut options = words(text);
            assert_eq!(options.number("--seconds").unwrap(), Some(5));
            assert_eq!(options.word().as_deref(), Some("frame"));
            options.finish().unwrap();
        }
        assert!(words("--seconds").number("--seconds").is_err());
        assert!(words("--seconds five").number("--seconds").is_err());
        assert!(words("--unknown").finish().is_err());
        let mut options = words("--keep-going");
        assert!(options.flag("--keep-going") && !options.flag("--keep-going"));
        assert_eq!(words("frame").number("--seconds").unwrap(), None);
    }
}
