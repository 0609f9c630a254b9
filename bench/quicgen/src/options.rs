//! Options of a run: pairs of `--name value`. One that nobody asked for is an error, so that no misspelling passes.

use crate::Outcome;
use std::collections::BTreeMap;
use std::str::FromStr;

pub struct Options {
    given: BTreeMap<String, String>,
}

impl Options {
    pub fn parse(mut words: impl Iterator<Item = String>) -> Outcome<Options> {
        let mut given = BTreeMap::new();
        while let Some(word) = words.next() {
            let name = word.strip_prefix("--").ok_or_else(|| format!("{word:?} is no option"))?;
            let value = words.next().ok_or_else(|| format!("{word} has no value"))?;
            given.insert(name.to_owned(), value);
        }
        Ok(Options { given })
    }

    pub fn optional<T: FromStr>(&mut self, name: &str) -> Outcome<Option<T>> {
        match self.given.remove(name) {
            None => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|_| format!("--{name} {text:?} is not what it takes").into()),
        }
    }

    pub fn take<T: FromStr>(&mut self, name: &str, default: T) -> Outcome<T> {
        Ok(self.optional(name)?.unwrap_or(default))
    }

    pub fn need<T: FromStr>(&mut self, name: &str) -> Outcome<T> {
        self.optional(name)?.ok_or_else(|| format!("--{name} is missing").into())
    }

    /// Called when all was taken.
    pub fn done(&self) -> Outcome<()> {
        match self.given.keys().next() {
            Some(name) => Err(format!("--{name} is not known here").into()),
            None => Ok(()),
        }
    }
}
