//! How long a file may be. A file over its limit becomes a folder of the same name.

use crate::{File, Finding, Tree, source};

/// Lines of a source file, without the test module at its end.
const SOURCE_LIMIT: usize = 500;

/// Lines of a file that is a test.
const TEST_LIMIT: usize = 800;

/// A file that may be longer, and why splitting it would make it worse.
#[derive(Clone, Copy, Debug)]
pub struct Exception {
    /// Path from the root.
    pub path: &'static str,
    /// Why the file is better whole.
    pub reason: &'static str,
}

/// The files that may be longer.
pub const EXCEPTIONS: &[Exception] = &[];

/// Checks every Rust file against its limit, and that every exception is still needed.
pub fn check(tree: &Tree, exceptions: &[Exception]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        let (lines, limit) = measure(file);
        let is_excepted = exceptions
            .iter()
            .any(|exception| exception.path == file.path);
        if lines > limit && !is_excepted {
            let message = format!(
                "a file of this kind has at most {limit} lines, this one has {lines}: \
                 make it a folder of the same name"
            );
            findings.push(Finding::new(&file.path, limit + 1, message));
        }
    }
    findings.extend(
        exceptions
            .iter()
            .filter_map(|exception| stale(tree, *exception)),
    );
    findings
}

fn stale(tree: &Tree, exception: Exception) -> Option<Finding> {
    let file = tree.rust().find(|file| file.path == exception.path);
    let is_long = file
        .map(measure)
        .is_some_and(|(lines, limit)| lines > limit);
    let message = if !is_long {
        "this file is not over its limit any more: \
         remove it from EXCEPTIONS in tests/tidy/src/size.rs"
    } else if exception.reason.trim().is_empty() {
        "an exception has a reason: write it in EXCEPTIONS in tests/tidy/src/size.rs"
    } else {
        return None;
    };
    Some(Finding::new(exception.path, 1, message))
}

/// The lines that count, and how many there may be.
fn measure(file: &File) -> (usize, usize) {
    if file.is_test() {
        (file.text.lines().count(), TEST_LIMIT)
    } else {
        (lines_without_tests(&file.text), SOURCE_LIMIT)
    }
}

fn lines_without_tests(text: &str) -> usize {
    let code = source::code(text);
    let mut end = code.len();
    for item in source::test_items(&code).into_iter().rev() {
        let after = code.get(item.end..end).unwrap_or_default();
        let head = code.get(item.clone()).unwrap_or_default();
        let head = head.split('{').next().unwrap_or_default();
        let is_module = source::words(head).any(|word| word.text == "mod");
        if !after.trim().is_empty() || !is_module {
            break;
        }
        end = item.start;
    }
    code.get(..end).map_or(0, |kept| kept.lines().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: &[Exception] = &[Exception {
        path: "crates/a/src/table.rs",
        reason: "one table, read as one",
    }];

    fn findings(path: &str, text: &str) -> usize {
        check(&Tree::of(&[(path, text)]), EXCEPTIONS).len()
    }

    #[test]
    fn a_source_file_may_have_five_hundred_lines() {
        assert_eq!(findings("crates/a/src/lib.rs", &"a;\n".repeat(500)), 0);
        assert_eq!(findings("crates/a/src/lib.rs", &"a;\n".repeat(501)), 1);
        assert_eq!(findings("crates/a/src/lib.rs", &"// a\n".repeat(501)), 1);
        assert_eq!(findings("docs/long.md", &"a\n".repeat(5000)), 0);
    }

    #[test]
    fn a_test_file_may_have_eight_hundred_lines() {
        for path in ["crates/a/tests/it/main.rs", "crates/a/src/saga/tests.rs"] {
            assert_eq!(findings(path, &"a;\n".repeat(800)), 0, "{path}");
            assert_eq!(findings(path, &"a;\n".repeat(801)), 1, "{path}");
        }
    }

    #[test]
    fn the_test_module_at_the_end_does_not_count() {
        let module = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "b;\n".repeat(400));
        let long = format!("{}{module}", "a;\n".repeat(500));
        assert_eq!(findings("crates/a/src/lib.rs", &long), 0);
        let with_a_tail = format!("{long}fn tail() {{}}\n");
        assert_eq!(findings("crates/a/src/lib.rs", &with_a_tail), 1);
        let helper = long.replace("mod tests", "fn helper()");
        assert_eq!(findings("crates/a/src/lib.rs", &helper), 1);
        let too_long = format!("a;\n{long}");
        assert_eq!(findings("crates/a/src/lib.rs", &too_long), 1);
    }

    #[test]
    fn an_exception_covers_its_file_while_it_is_needed() {
        let long = "a;\n".repeat(501);
        let tree = Tree::of(&[("crates/a/src/table.rs", &long)]);
        assert_eq!(check(&tree, LONG), []);
        assert_eq!(
            check(&Tree::of(&[("crates/a/src/table.rs", "a;")]), LONG).len(),
            1
        );
        assert_eq!(check(&Tree::default(), LONG).len(), 1, "the file is gone");
    }

    #[test]
    fn an_exception_without_a_reason_is_a_finding() {
        let long = "a;\n".repeat(501);
        let tree = Tree::of(&[("crates/a/src/table.rs", &long)]);
        let silent = Exception {
            path: "crates/a/src/table.rs",
            reason: " ",
        };
        assert_eq!(check(&tree, &[silent]).len(), 1);
    }
}
