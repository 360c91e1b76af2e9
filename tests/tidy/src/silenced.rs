//! No silenced code: no lint switched off without a reason, no test skipped, no note that says
//! "later".
//!
//! The two notes are looked for in comments and strings too, so this file never spells them.

use crate::{
    File, Finding, Tree,
    source::{self, Attribute, words},
};

/// Notes that hide work where nobody plans it.
const NOTES: [&str; 2] = [concat!("FIX", "ME"), concat!("X", "XX")];

/// Macros that compile now and fail later.
const HOLES: [&str; 2] = ["todo", "unimplemented"];

/// Checks every Rust file.
pub fn check(tree: &Tree) -> Vec<Finding> {
    tree.rust().flat_map(check_file).collect()
}

fn check_file(file: &File) -> Vec<Finding> {
    let code = source::code(&file.text);
    let mut told: Vec<(usize, String)> = Vec::new();
    for attribute in source::attributes(&code) {
        if let Some(message) = silences(&attribute) {
            told.push((source::line_at(&code, attribute.start), message.to_owned()));
        }
    }
    for word in words(&code) {
        if HOLES.contains(&word.text) && word.after.starts_with("!(") {
            let message = format!(
                "no holes: write the code that `{}!` stands for, or leave it out",
                word.text
            );
            told.push((word.line, message));
        }
    }
    for word in words(&file.text) {
        if NOTES.contains(&word.text) {
            let message = format!(
                "no notes to nobody: do what the {} says, or open an issue",
                word.text
            );
            told.push((word.line, message));
        }
    }
    told.sort();
    told.into_iter()
        .map(|(line, message)| Finding::new(&file.path, line, message))
        .collect()
}

fn silences(attribute: &Attribute<'_>) -> Option<&'static str> {
    let first = words(attribute.body).next()?;
    let is_conditional = first.text == "cfg_attr";
    // An attribute says what it does in its first word, or behind the condition of a `cfg_attr`.
    let does = |name: &str, open: &str| {
        words(attribute.body)
            .take(if is_conditional { usize::MAX } else { 1 })
            .any(|word| word.text == name && word.is_followed_by(open))
    };
    if does("allow", "(") {
        return Some("lints are expected, not allowed: write `#[expect(.., reason = \"..\")]`");
    }
    if does("ignore", "") {
        return Some("tests are not skipped: assert today's behaviour and say that it is wrong");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLEAN: [usize; 0] = [];

    fn lines(text: &str) -> Vec<usize> {
        let tree = Tree::of(&[("crates/a/tests/it/main.rs", text)]);
        check(&tree)
            .into_iter()
            .map(|finding| finding.line)
            .collect()
    }

    #[test]
    fn silenced_code_fires() {
        for text in [
            "#[allow(dead_code)]\nfn f() {}",
            "#![allow(dead_code)]",
            "#[cfg_attr(test, allow(dead_code))]\nfn f() {}",
            "#[ignore]\nfn f() {}",
            "#[ignore = \"slow\"]\nfn f() {}",
            "#[cfg_attr(windows, ignore)]\nfn f() {}",
            "todo!()",
            "unimplemented!(\"later\")",
        ] {
            assert_eq!(lines(text), [1], "{text}");
        }
    }

    #[test]
    fn notes_fire_in_comments_too() {
        for note in NOTES {
            assert_eq!(
                lines(&format!("fn f() {{}}\n// {note}: later")),
                [2],
                "{note}"
            );
            assert_eq!(lines(&format!("// /tmp/{note}{note}")), CLEAN, "{note}");
        }
    }

    #[test]
    fn everything_else_is_free() {
        for text in [
            "#[expect(dead_code, reason = \"b\")]\nfn f() {}",
            "fn allow(x: X) { policy.allow(x); ignore(todo) }",
            "// #[allow(dead_code)] is banned, and so is todo!()",
            "let text = \"#[ignore] todo!()\";",
            "#[serde(ignore)]\nstruct S;",
            "#[arg(long, allow(x))]\nstruct S;",
        ] {
            assert_eq!(lines(text), CLEAN, "{text}");
        }
    }

    #[test]
    fn only_rust_files_are_read() {
        let text = format!("#[allow(x)] {}", NOTES.join(" "));
        assert_eq!(check(&Tree::of(&[("docs/style.md", &text)])), []);
    }
}
