//! Tests wait for a condition with a deadline, never for a time. A sleep that must be says why.

use crate::{Finding, Tree, source};

/// Starts the comment that explains a sleep.
const EXCUSE: &str = "// sleep:";

const SLEEPS: [&str; 2] = ["sleep", "sleep_until"];

/// Checks every Rust file in a `tests/` folder.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust().filter(|file| file.is_under("tests")) {
        let code = source::code(&file.text);
        for word in source::words(&code) {
            let is_sleep = SLEEPS.contains(&word.text) && word.after.starts_with('(');
            if is_sleep && !is_excused(&file.text, word.line) {
                let message = "tests wait for a condition, not for a time: \
                               poll with a deadline, or say why in `// sleep: <reason>`";
                findings.push(Finding::new(&file.path, word.line, message));
            }
        }
    }
    findings
}

/// Whether the line, from 1, or the one above it gives a reason.
fn is_excused(text: &str, line: usize) -> bool {
    let (skipped, taken) = if line > 1 { (line - 2, 2) } else { (0, 1) };
    let mut near = text.lines().skip(skipped).take(taken);
    near.any(|line| {
        let reason = line.split_once(EXCUSE).map(|(_, reason)| reason.trim());
        reason.is_some_and(|reason| !reason.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLEAN: [usize; 0] = [];

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let tree = Tree::of(&[(path, text)]);
        check(&tree)
            .into_iter()
            .map(|finding| finding.line)
            .collect()
    }

    #[test]
    fn a_sleep_in_a_test_fires() {
        for text in [
            "tokio::time::sleep(SECOND).await;",
            "std::thread::sleep(SECOND);",
            "sleep(SECOND).await; // a moment",
            "sleep_until(later).await;",
            "sleep(SECOND).await; // sleep:",
        ] {
            assert_eq!(lines("crates/a/tests/it/main.rs", text), [1], "{text}");
            assert_eq!(lines("tests/faults/src/lib.rs", text), [1], "{text}");
        }
    }

    #[test]
    fn a_reason_on_the_line_or_above_it_excuses_one_sleep() {
        let text = "// sleep: the server has no event for this.\nsleep(A);\n\
                    sleep(B); // sleep: as above.\n\nsleep(C);";
        assert_eq!(lines("crates/a/tests/it/main.rs", text), [5]);
    }

    #[test]
    fn what_is_no_sleep_or_no_test_is_free() {
        for text in [
            "// sleep(1)",
            "let sql = \"SELECT pg_sleep(1)\";",
            "use tokio::time::sleep;",
            "asleep(x)",
        ] {
            assert_eq!(lines("crates/a/tests/it/main.rs", text), CLEAN, "{text}");
        }
        assert_eq!(lines("crates/a/src/worker.rs", "sleep(pause)"), CLEAN);
    }
}
