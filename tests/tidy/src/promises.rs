//! A promise names the test that fails when it is broken, and that test exists.

use std::collections::HashSet;

use crate::{Finding, Tree};

const FILE: &str = "docs/guarantees.md";

/// What precedes the names of tests in a decision.
const HELD_BY: &str = "Held by:";

/// Checks the last column of every table in `docs/guarantees.md`, and what every decision says it
/// is held by.
pub fn check(tree: &Tree) -> Vec<Finding> {
    [promises(tree), decisions(tree)].concat()
}

/// The tests that decisions name.
fn decisions(tree: &Tree) -> Vec<Finding> {
    let tests = functions(tree);
    let decisions = tree.files().iter();
    let decisions = decisions.filter(|file| file.path.starts_with("docs/adr/"));
    let mut findings = Vec::new();
    for file in decisions {
        let Some((before, held_by)) = file.text.split_once(HELD_BY) else {
            continue;
        };
        // Other things in code stand there, too; a test is a sentence.
        let names = held_by.split('`').skip(1).step_by(2);
        let sentences = names.filter(|name| name.matches('_').count() > 2);
        for name in sentences.filter(|name| !tests.contains(name)) {
            let message = format!("there is no test `{name}`");
            let line = before.lines().count();
            findings.push(Finding::new(&file.path, line, message));
        }
    }
    findings
}

fn promises(tree: &Tree) -> Vec<Finding> {
    let Some(promises) = tree.files().iter().find(|file| file.path == FILE) else {
        return vec![Finding::new(FILE, 1, "promises are written here: make it")];
    };
    let tests = functions(tree);
    let mut findings = Vec::new();
    for (index, row) in promises.text.lines().enumerate() {
        let Some(named) = last_cell(row) else {
            continue;
        };
        let names: Vec<&str> = named.split('`').skip(1).step_by(2).collect();
        if names.is_empty() {
            let message = "a promise names its test: write one, then this line";
            findings.push(Finding::new(FILE, index + 1, message));
        }
        for name in names.into_iter().filter(|name| !tests.contains(name)) {
            let message = format!("there is no test `{name}`: a promise without one is none");
            findings.push(Finding::new(FILE, index + 1, message));
        }
    }
    findings
}

/// The last cell of a table's row; none for its header and the line below that.
fn last_cell(row: &str) -> Option<&str> {
    let cells = row.trim().strip_prefix('|')?.strip_suffix('|')?;
    let last = cells.rsplit('|').next()?.trim();
    let is_row = last != "test" && !last.starts_with("---");
    is_row.then_some(last)
}

/// The names of all functions in files that hold tests, and the words at the beginning of a line
/// where a macro makes the tests: it is given their names in such a list.
fn functions(tree: &Tree) -> HashSet<&str> {
    // An attribute with options, as of a clock that stands still, is one, too.
    let holds_tests = |text: &str| text.contains("test]") || text.contains("::test(");
    let sources = tree.files().iter();
    let sources = sources.filter(|file| file.path.ends_with(".rs") && holds_tests(&file.text));
    let mut names = HashSet::new();
    for file in sources {
        let written = file.text.split("fn ").skip(1);
        names.extend(written.filter_map(|rest| rest.split(['(', '<']).next()));
        if file.text.contains("fn $") {
            let listed = file.text.lines().map(str::trim_start);
            names.extend(listed.filter_map(|line| line.split([' ', ';']).next()));
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST: (&str, &str) = ("crates/a/tests/it/main.rs", "#[test]\nfn it_holds() {}\n");

    fn table(row: &str) -> Vec<Finding> {
        let text = format!("| claim | mechanism | test |\n| --- | --- | --- |\n{row}\n");
        check(&Tree::of(&[(FILE, &text), TEST]))
    }

    #[test]
    fn a_promise_with_an_existing_test_is_fine() {
        assert_eq!(table("| It holds. | somehow | `it_holds` |"), []);
    }

    #[test]
    fn a_promise_whose_test_is_gone_is_found() {
        let found = table("| It holds. | somehow | `it_holds`, `it_held` |");
        assert_eq!(found.len(), 1);
        assert!(found[0].message.contains("it_held"), "{}", found[0]);
    }

    #[test]
    fn a_test_whose_attribute_has_options_is_found() {
        let paused = "#[tokio::test(start_paused = true)]\nasync fn it_held() {}\n";
        let row = "| claim | mechanism | test |\n| It held. | somehow | `it_held` |\n";
        let tree = [(FILE, row), ("crates/a/src/lib.rs", paused)];
        assert_eq!(check(&Tree::of(&tree)), []);
    }

    #[test]
    fn a_test_that_a_macro_makes_is_found_by_the_name_that_it_is_given() {
        let made =
            "#[tokio::test]\nasync fn $name() {}\n\nkilled_at! {\n    it_held \"here\";\n}\n";
        let row = "| claim | mechanism | test |\n| It held. | somehow | `it_held` |\n";
        let tree = [(FILE, row), ("crates/a/tests/it/main.rs", made)];
        assert_eq!(check(&Tree::of(&tree)), []);
        let written = made.replace('$', "");
        let tree = [(FILE, row), ("crates/a/tests/it/main.rs", written.as_str())];
        assert_eq!(check(&Tree::of(&tree)).len(), 1);
    }

    #[test]
    fn a_promise_without_a_test_is_found() {
        assert_eq!(table("| It holds. | somehow | |").len(), 1);
    }

    #[test]
    fn a_decision_whose_test_is_gone_is_found() {
        let decision = |test: &str| format!("# 1. So be it\n\nHeld by: `{test}`, `lib.rs`.\n");
        let findings = |test: &str| {
            let text = decision(test);
            let sentence = "#[test]\nfn it_still_holds_today() {}\n";
            let tree = [
                (FILE, ""),
                ("docs/adr/0001-so.md", text.as_str()),
                ("crates/a/tests/it/main.rs", sentence),
            ];
            check(&Tree::of(&tree)).len()
        };
        assert_eq!(findings("it_still_holds_today"), 0);
        assert_eq!(findings("it_has_held_before"), 1);
    }

    #[test]
    fn a_missing_file_is_found() {
        assert_eq!(check(&Tree::of(&[TEST])).len(), 1);
    }
}
