//! Typed configuration: embedded defaults, then a file, then the environment.
//!
//! The defaults name every key there is, and the type of each. That makes them the reference
//! page, lets an environment variable be read as what it overrides (a password of digits
//! stays text), and lets a key that is not there be refused with the nearest one that is.
//!
//! Every error is one sentence that names the key and where it came from.

mod address;
mod range;
mod sections;
mod size;
mod source;
mod tree;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use toml::{Table, Value};

pub use address::Address;
pub use range::{time_within, within};
pub use sections::{
    Auth, Common, Database, Http, Leased, LogFormat, Mode, Nats, Platform, Redis, ServiceDatabase,
    ServiceServer, Shutdown, Telemetry,
};
pub use size::Size;

use tree::{Origin, Path as KeyPath};

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file is not there or not readable.
    #[error("configuration file {path} can't be read: {reason}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// The file is not TOML.
    #[error("{origin} is not valid TOML: {reason}")]
    Syntax {
        /// The file, or the part of the defaults.
        origin: String,
        /// Where and what.
        reason: String,
    },
    /// A key that does not exist.
    #[error("unknown key {key} in {origin}{hint}")]
    UnknownKey {
        /// The key.
        key: String,
        /// Where it stands.
        origin: String,
        /// The nearest key that exists.
        hint: String,
    },
    /// A value of the wrong type or out of range.
    #[error("{key} in {origin} is not valid: {reason}")]
    Invalid {
        /// The key.
        key: String,
        /// Where it stands.
        origin: String,
        /// What was expected.
        reason: String,
    },
    /// A value that must be set and is not.
    #[error(
        "{key} is not set: set {variable}, or beside a running `tasuki up` give --env-file .tasuki/run/env"
    )]
    Missing {
        /// The key.
        key: &'static str,
        /// The variable that sets it.
        variable: &'static str,
    },
}

impl Error {
    /// A value that was read and turned out not to do.
    #[must_use]
    pub fn invalid(key: &str, reason: &dyn fmt::Display) -> Self {
        Self::Invalid {
            key: key.to_owned(),
            origin: "the configuration".to_owned(),
            reason: reason.to_string(),
        }
    }
}

/// Everything that was configured, before it is read into types.
#[derive(Clone, Debug)]
pub struct Config {
    defaults: Table,
    values: Table,
    origins: BTreeMap<KeyPath, Origin>,
}

impl Config {
    /// The defaults alone. `parts` are the embedded files of this crate and the services.
    ///
    /// # Errors
    /// When a part is not TOML or two of them name the same section.
    pub fn defaults(parts: &[&str]) -> Result<Self, Error> {
        let mut defaults = Table::new();
        for part in parts {
            let table = source::parse("the embedded defaults", part)?;
            tree::merge_disjoint(&mut defaults, table)?;
        }
        Ok(Self {
            values: defaults.clone(),
            defaults,
            origins: BTreeMap::new(),
        })
    }

    /// Puts the settings of a file over what is there.
    ///
    /// # Errors
    /// When it can't be read, is not TOML, or has a key that does not exist.
    pub fn with_file(self, path: &Path) -> Result<Self, Error> {
        let text = source::read(path)?;
        let table = source::parse(&path.display().to_string(), &text)?;
        self.with_table(table, &Origin::File(path.to_owned()))
    }

    /// Puts the variables of an environment over what is there. Only `TASUKI_…` concern us.
    ///
    /// # Errors
    /// When a variable names a key that does not exist, or its text is not of the key's type.
    pub fn with_environment(
        mut self,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, Error> {
        for (name, text) in variables {
            let Some(path) = source::key_of_variable(&name)? else {
                continue;
            };
            let origin = Origin::Environment(name);
            let path = self.known(&path, &origin)?;
            let default = tree::get(&self.defaults, &path);
            let value = source::value_like(default, &text).map_err(|reason| Error::Invalid {
                key: path.to_string(),
                origin: origin.to_string(),
                reason,
            })?;
            self.put(&path, value, origin);
        }
        Ok(self)
    }

    /// Puts one value over what is there, whatever it was: for what the program itself has
    /// found out, such as the address of a server that it has started.
    ///
    /// # Errors
    /// When there is no such key.
    pub fn with_value(mut self, key: &str, value: impl Into<Value>) -> Result<Self, Error> {
        let path = self.known(&KeyPath::parse(key), &Origin::Program)?;
        self.put(&path, value.into(), Origin::Program);
        Ok(self)
    }

    /// Whether somebody set `key`, rather than leaving the default.
    #[must_use]
    pub fn is_set(&self, key: &str) -> bool {
        self.origins.contains_key(&KeyPath::parse(key))
    }

    /// The value of `key` if it is text, else nothing.
    #[must_use]
    pub fn text(&self, key: &str) -> &str {
        let value = tree::get(&self.values, &KeyPath::parse(key));
        value.and_then(Value::as_str).unwrap_or_default()
    }

    /// Reads one section, such as `database` or `system`, into its type.
    ///
    /// # Errors
    /// When a value does not fit; the error names the key and where it was set.
    pub fn section<T: DeserializeOwned>(&self, name: &str) -> Result<T, Error> {
        let value = self.values.get(name).cloned();
        let value = value.unwrap_or_else(|| Value::Table(Table::new()));
        serde_path_to_error::deserialize(value).map_err(|error| {
            let mut path = KeyPath::parse(name);
            for segment in error.path() {
                path.push(&segment.to_string());
            }
            let reason = source::sentence(error.inner());
            let path = self.blamed::<T>(name, &reason, path);
            Error::Invalid {
                key: path.to_string(),
                origin: self.origin(&path),
                reason,
            }
        })
    }

    /// Everything in force as TOML, with secrets hidden and each changed value's origin.
    #[must_use]
    pub fn show(&self) -> String {
        tree::show(&self.values, &self.origins)
    }

    /// Everything in force as data, with secrets hidden.
    #[must_use]
    pub fn redacted(&self) -> Table {
        tree::redacted(&self.values)
    }

    fn with_table(mut self, table: Table, origin: &Origin) -> Result<Self, Error> {
        for (path, value) in tree::leaves(table) {
            let is_section = matches!(&value, Value::Table(_));
            if is_section && tree::is_section(&self.defaults, &path) {
                continue;
            }
            let path = self.known(&path, origin)?;
            self.put(&path, value, origin.clone());
        }
        Ok(self)
    }

    fn put(&mut self, path: &KeyPath, value: Value, origin: Origin) {
        tree::set(&mut self.values, path, value);
        self.origins.insert(path.clone(), origin);
    }

    /// `path` if the defaults know it (or a free-form table above it); else an error with
    /// the nearest key.
    fn known(&self, path: &KeyPath, origin: &Origin) -> Result<KeyPath, Error> {
        if tree::exists(&self.defaults, path) {
            return Ok(path.clone());
        }
        let hint = tree::nearest(&self.defaults, path)
            .map_or_else(String::new, |near| format!(", did you mean {near}?"));
        Err(Error::UnknownKey {
            key: path.to_string(),
            origin: origin.to_string(),
            hint,
        })
    }

    /// The key that `reason` is about. A part of a section that several share does not say which
    /// of its keys it refuses: it is the one that was set and whose default is not refused so.
    fn blamed<T: DeserializeOwned>(&self, name: &str, reason: &str, path: KeyPath) -> KeyPath {
        if !matches!(tree::get(&self.values, &path), Some(Value::Table(_))) {
            return path;
        }
        let set = self.origins.keys();
        let mut below = set.filter(|key| key.prefixes().any(|above| above == path));
        let blamed = below.find(|key| {
            let Some(default) = tree::get(&self.defaults, key) else {
                return false;
            };
            let mut values = self.values.clone();
            tree::set(&mut values, key, default.clone());
            let section = values.remove(name);
            let section = section.unwrap_or_else(|| Value::Table(Table::new()));
            match serde_path_to_error::deserialize::<_, T>(section) {
                Ok(_) => true,
                Err(other) => source::sentence(other.inner()) != reason,
            }
        });
        blamed.cloned().unwrap_or(path)
    }

    fn origin(&self, path: &KeyPath) -> String {
        let set = path.prefixes().find_map(|path| self.origins.get(&path));
        set.map_or_else(|| "the defaults".to_owned(), ToString::to_string)
    }
}
