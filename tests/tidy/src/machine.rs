//! Nothing in the tree names the machine it was written on.
//!
//! The needles are put together from parts, so that this file is clean too.

use crate::{Finding, Tree};

/// Where people's folders are; it counts only with a name behind it.
const HOMES: &str = concat!("/ho", "me/");

/// Absolute folders of a working machine.
const FOLDERS: [&str; 3] = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), HOMES];

/// Checks every text file.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files() {
        for (at, line) in file.text.lines().enumerate() {
            if let Some(folder) = FOLDERS.iter().find(|folder| names(line, folder)) {
                let message = format!(
                    "no path of one machine: replace `{folder}..` \
                     by a path from the root, or by a variable"
                );
                findings.push(Finding::new(&file.path, at + 1, message));
            }
        }
    }
    findings
}

fn names(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line.get(..at).unwrap_or_default();
        let after = line.get(at + folder.len()..).unwrap_or_default();
        let is_named = after.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        is_absolute(before) && (is_named || folder != HOMES)
    })
}

/// Whether a `/` after this text starts a path, instead of going on with one.
fn is_absolute(before: &str) -> bool {
    if before.ends_with('/') {
        // The third slash of `file:///..`.
        return before.ends_with("://");
    }
    let goes_on = |c: char| c.is_alphanumeric() || "_-.~})>]*".contains(c);
    !before.ends_with(goes_on)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fires(text: &str) -> bool {
        !check(&Tree::of(&[("docs/a.md", text)])).is_empty()
    }

    #[test]
    fn a_path_of_one_machine_fires() {
        let [work, root, home] = FOLDERS;
        for text in [
            format!("cd {work}main"),
            format!("see `{work}`"),
            format!("DIR={root}x"),
            format!("{home}ann/tasuki"),
            format!("\"file://{work}main\""),
        ] {
            assert!(fires(&text), "{text}");
        }
    }

    #[test]
    fn a_path_that_only_looks_like_one_is_free() {
        let [work, root, home] = FOLDERS;
        for text in [
            format!("docs{work}x"),
            format!("${{DIR}}{work}x"),
            format!("$HOME{root}x ~{root}x .{root}x"),
            format!("https://example.org{work}x"),
            format!("{home}<name>"),
            "/workspace/ /rooted /homes".to_owned(),
        ] {
            assert!(!fires(&text), "{text}");
        }
    }

    #[test]
    fn a_finding_has_its_line() {
        let text = format!("a\nb {}c\n", FOLDERS[0]);
        assert_eq!(check(&Tree::of(&[("Makefile", &text)]))[0].line, 2);
    }
}
