//! `run/env`, read as a script would.

#![expect(clippy::panic, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::path::Path;

/// The variables of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Env(BTreeMap<String, String>);

impl Env {
    /// The file at `path`; `None` when there is none.
    pub(crate) fn read(path: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(path).ok()?;
        let variables = text.lines().map(|line| {
            let variable = line.strip_prefix("export ").unwrap_or(line);
            let (name, value) = variable.split_once('=').unwrap_or((variable, ""));
            (name.to_owned(), value.trim_matches('\'').to_owned())
        });
        Some(Self(variables.collect()))
    }

    /// The value of `TASUKI_<name>`.
    pub(crate) fn get(&self, name: &str) -> &str {
        let found = self.0.get(&format!("TASUKI_{name}"));
        found.unwrap_or_else(|| panic!("TASUKI_{name} is not in the env file: {self:?}"))
    }

    /// The process id in `TASUKI_<name>`.
    pub(crate) fn pid(&self, name: &str) -> u32 {
        let text = self.get(name);
        let pid = text.parse();
        pid.unwrap_or_else(|_error| panic!("TASUKI_{name} is {text:?}"))
    }

    /// Every name and value.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }
}
