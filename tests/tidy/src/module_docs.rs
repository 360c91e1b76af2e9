//! Every source file starts with its module doc: what it is for, before anything else.

use crate::{File, Finding, Tree};

/// Checks the `src/` of every package in `crates/` and `tests/`.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let sources = tree
        .rust()
        .filter(|file| file.is_in_src_of("crates") || file.is_in_src_of("tests"));
    let silent = sources.filter(|file| !starts_with_its_doc(file));
    let message = "a file starts with its module doc: say in `//!` what it is for and what holds";
    silent
        .map(|file| Finding::new(&file.path, 1, message))
        .collect()
}

fn starts_with_its_doc(file: &File) -> bool {
    let mut rest = file.text.trim_start();
    while rest.starts_with("#![") {
        let Some(end) = end_of_attribute(rest) else {
            return false;
        };
        rest = rest.get(end..).unwrap_or_default().trim_start();
    }
    let first = rest.lines().next().unwrap_or_default();
    first
        .strip_prefix("//!")
        .is_some_and(|doc| !doc.trim().is_empty())
}

/// The byte after the attribute that the text starts with; brackets in its strings do not count.
fn end_of_attribute(text: &str) -> Option<usize> {
    let code = crate::source::code(text);
    let attributes = crate::source::attributes(&code);
    // Blanking may shorten a text (a letter of two bytes becomes one space), so the end is
    // carried over as "this many characters", which blanking does not change.
    let end = attributes.first()?.end;
    let characters = code.get(..end)?.chars().count();
    let after = text.char_indices().nth(characters);
    Some(after.map_or(text.len(), |(at, _)| at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fires(path: &str, text: &str) -> bool {
        !check(&Tree::of(&[(path, text)])).is_empty()
    }

    #[test]
    fn a_file_without_its_doc_fires() {
        for text in [
            "",
            "use std::fmt;\n",
            "// A comment is no doc.\n",
            "/// An item's doc is no module doc.\nfn f() {}\n",
            "//!\n",
            "#![warn(x)]\nuse std::fmt;\n//! Too late.\n",
        ] {
            assert!(fires("crates/a/src/x.rs", text), "{text}");
            assert!(fires("tests/e2e/src/x/y.rs", text), "{text}");
        }
    }

    #[test]
    fn blank_lines_and_inner_attributes_may_come_first() {
        for text in [
            "//! Here.\n",
            "\n\n//! Here.\n",
            "#![warn(x)]\n\n//! Here.\n",
            "#![expect(\n    x,\n    reason = \"é [ ]]\"\n)]\n#![warn(y)]\n//! Here.\n",
        ] {
            assert!(!fires("crates/a/src/x.rs", text), "{text}");
        }
    }

    #[test]
    fn files_outside_src_are_free() {
        for path in [
            "crates/a/build.rs",
            "crates/a/tests/it/main.rs",
            "crates/a/src/x.sql",
        ] {
            assert!(!fires(path, "fn main() {}"), "{path}");
        }
    }
}
