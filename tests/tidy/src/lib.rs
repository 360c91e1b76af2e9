//! Tidy: what the style asks and no lint covers.
//!
//! Every rule is one module with one `check`. It takes plain data (a [`Tree`] of files, or a list
//! of [`imports::Package`]) and returns its [`Finding`]s; none means the rule holds. Nothing here
//! writes. `tests/workspace.rs` runs every rule on this repository; the tests at the bottom of each
//! rule show, on made-up files, that it fires and that it does not fire too much.
//!
//! Rules read text, not syntax trees: [`source`] blanks comments and strings first, which is enough
//! for words and attributes. A rule that would need types belongs in a lint instead.

use std::fmt;

pub mod adr;
pub mod imports;
pub mod links;
pub mod machine;
pub mod manifests;
pub mod migrations;
pub mod module_docs;
pub mod promises;
pub mod purity;
pub mod silenced;
pub mod size;
pub mod sleeps;
pub mod source;
pub mod sql;
pub mod tree;

pub use tree::{File, Tree};

/// One place that breaks one rule. Prints as `path:line: message`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Path from the root of the workspace, with `/` between its parts.
    pub path: String,
    /// Line in that file, from 1.
    pub line: usize,
    /// The rule, and what to do about it.
    pub message: String,
}

impl Finding {
    /// A finding at `path:line`.
    pub fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            line,
            message: message.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}
