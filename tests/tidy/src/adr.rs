//! Decisions are numbered `0001`, `0002`, .. without gap or repeat, and each says its status, its
//! context and the choice.

use crate::{File, Finding, Tree};

const FOLDER: &str = "docs/adr/";

/// What a decision says, each at the start of a line.
const LINES: [&str; 3] = ["Status:", "Context:", "Decision:"];

/// Files in the folder that are no decisions.
const NO_DECISIONS: [&str; 2] = ["README.md", "template.md"];

/// Checks the decisions in `docs/adr/`.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut numbered: Vec<(u32, &File)> = Vec::new();
    for file in tree.files().iter().filter(|file| is_decision(file)) {
        match number(file.name()) {
            Some(number) => numbered.push((number, file)),
            None => findings.push(Finding::new(
                &file.path,
                1,
                "a decision is named NNNN-what-was-decided.md: rename it",
            )),
        }
        findings.extend(missing_lines(file));
    }
    numbered.sort_by_key(|(number, file)| (*number, &file.path));
    let mut next = 1;
    for (number, file) in numbered {
        if number != next {
            let message = if number < next {
                format!(
                    "numbers are not used twice and start at 0001: \
                     give this decision the number {next:04}"
                )
            } else {
                format!("numbers have no gap: {next:04} is missing before this decision")
            };
            findings.push(Finding::new(&file.path, 1, message));
        }
        next = next.max(number + 1);
    }
    findings
}

fn is_decision(file: &File) -> bool {
    let name = file.path.strip_prefix(FOLDER);
    name.is_some_and(|name| name.ends_with(".md") && !NO_DECISIONS.contains(&name))
}

/// The number of `NNNN-title.md`.
fn number(name: &str) -> Option<u32> {
    let (digits, title) = name.strip_suffix(".md")?.split_once('-')?;
    let is_number = digits.len() == 4 && digits.chars().all(|c| c.is_ascii_digit());
    if !is_number || title.is_empty() {
        return None;
    }
    digits.parse().ok()
}

fn missing_lines(file: &File) -> Option<Finding> {
    let is_missing = |tag: &&str| !file.text.lines().any(|line| line.starts_with(*tag));
    let missing: Vec<&str> = LINES.into_iter().filter(is_missing).collect();
    let message = format!(
        "a decision has lines that start with Status:, Context: and Decision:, add {}",
        missing.join(", ")
    );
    (!missing.is_empty()).then(|| Finding::new(&file.path, 1, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# 1. A\nStatus: accepted\nContext: c\nDecision: d\n";

    fn told(names: &[&str]) -> Vec<String> {
        let paths: Vec<String> = names.iter().map(|name| format!("{FOLDER}{name}")).collect();
        let files: Vec<(&str, &str)> = paths.iter().map(|path| (path.as_str(), GOOD)).collect();
        let findings = check(&Tree::of(&files)).into_iter();
        findings
            .map(|finding| finding.path.replace(FOLDER, ""))
            .collect()
    }

    #[test]
    fn decisions_in_a_row_are_clean() {
        assert!(told(&[]).is_empty());
        assert!(told(&["0002-b.md", "0001-a.md", "0003-c.md"]).is_empty());
        assert!(told(&["0001-a.md", "README.md", "picture.svg"]).is_empty());
    }

    #[test]
    fn a_gap_is_told_once_where_it_ends() {
        assert_eq!(
            told(&["0001-a.md", "0003-c.md", "0004-d.md"]),
            ["0003-c.md"]
        );
        assert_eq!(told(&["0002-b.md"]), ["0002-b.md"]);
    }

    #[test]
    fn a_number_used_twice_and_a_zero_are_findings() {
        assert_eq!(
            told(&["0001-a.md", "0001-b.md", "0002-c.md"]),
            ["0001-b.md"]
        );
        assert_eq!(told(&["0000-a.md", "0001-b.md"]), ["0000-a.md"]);
    }

    #[test]
    fn another_kind_of_name_is_a_finding() {
        for name in ["1-a.md", "notes.md", "0001.md", "0001-.md"] {
            assert_eq!(told(&[name]), [name]);
        }
    }

    #[test]
    fn every_missing_line_is_named() {
        for tag in LINES {
            let text = GOOD.replace(tag, "## Nope");
            let findings = check(&Tree::of(&[("docs/adr/0001-a.md", &text)]));
            assert_eq!(findings.len(), 1, "{tag}");
            assert!(
                findings[0].message.ends_with(&format!("add {tag}")),
                "{}",
                findings[0]
            );
        }
    }

    #[test]
    fn documents_elsewhere_are_free() {
        assert_eq!(check(&Tree::of(&[("docs/0007-a.md", "")])), []);
    }
}
