//! Links between documents lead somewhere: to a file that a clone has, not just this machine.
//!
//! Read as text: inline links, images and reference definitions, outside code. Addresses with a
//! scheme and anchors are not followed.

use crate::{File, Finding, Tree};

/// Checks every Markdown file.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree
        .files()
        .iter()
        .filter(|file| file.name().ends_with(".md"))
    {
        for (line, target) in links(file) {
            let leads = resolve(&file.path, &target).is_some_and(|path| tree.holds(&path));
            if !leads {
                let message = format!(
                    "links lead to files of this repository: `{target}` is none, \
                     correct or remove it"
                );
                findings.push(Finding::new(&file.path, line, message));
            }
        }
    }
    findings
}

/// The relative links of a document, with their lines.
fn links(file: &File) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut fence: Option<&str> = None;
    for (at, line) in file.text.lines().enumerate() {
        let mark = ["```", "~~~"]
            .into_iter()
            .find(|mark| line.trim_start().starts_with(mark));
        match (fence, mark) {
            (None, Some(_)) => fence = mark,
            (Some(open), Some(mark)) if open == mark => fence = None,
            (Some(_), _) => {}
            (None, None) => {
                let targets = targets(&without_code(line));
                found.extend(targets.into_iter().map(|target| (at + 1, target)));
            }
        }
    }
    found
}

/// The line without what stands between backticks.
fn without_code(line: &str) -> String {
    let parts: Vec<&str> = line.split('`').collect();
    let last = parts.len().saturating_sub(1);
    let is_text = |at: usize| at.is_multiple_of(2) || at == last;
    let kept = parts.iter().enumerate().filter(|(at, _)| is_text(*at));
    kept.map(|(_, part)| *part).collect()
}

fn targets(line: &str) -> Vec<String> {
    let inline = line.split("](").skip(1);
    let inline = inline.filter_map(|rest| rest.split(')').next());
    let definition = line.strip_prefix('[').filter(|rest| !rest.starts_with('^'));
    let definition = definition.and_then(|rest| rest.split_once("]:"));
    let written = inline.chain(definition.map(|(_, target)| target));
    written.filter_map(file_part).map(str::to_owned).collect()
}

/// The file a link names; nothing for an anchor or an address with a scheme.
fn file_part(written: &str) -> Option<&str> {
    let written = written.trim();
    let target = match written.strip_prefix('<') {
        Some(rest) => rest.split('>').next()?,
        None => written.split_whitespace().next()?,
    };
    let path = target.split(['#', '?']).next()?;
    let is_elsewhere = target.starts_with("//") || has_scheme(target);
    (!path.is_empty() && !is_elsewhere).then_some(path)
}

fn has_scheme(target: &str) -> bool {
    let scheme = target.split_once(':').map(|(scheme, _)| scheme);
    let is_scheme_char = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    scheme.is_some_and(|scheme| scheme.chars().all(is_scheme_char))
}

/// The path from the root that `target`, written in the document `from`, means. Nothing if it
/// leaves the repository.
fn resolve(from: &str, target: &str) -> Option<String> {
    let target = target.replace("%20", " ");
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    if target.starts_with('/') {
        parts.clear();
    }
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLEAN: [usize; 0] = [];

    fn broken(text: &str) -> Vec<usize> {
        let tree = Tree::of(&[
            ("docs/learn/outbox.md", text),
            ("docs/guarantees.md", "# G"),
            ("README.md", "# R"),
            ("docs/two words.md", ""),
        ]);
        check(&tree)
            .into_iter()
            .map(|finding| finding.line)
            .collect()
    }

    #[test]
    fn a_link_to_nothing_fires() {
        for text in [
            "[a](missing.md)",
            "[a](../guarantees.md) and [b](../missing.md#x)",
            "![a](shot.png)",
            "[a](/docs/missing.md \"title\")",
            "[a](<missing file.md>)",
            "[a]: missing.md",
            "[a](../../../outside.md)",
            "| `code` | [a](missing.md) |",
        ] {
            assert_eq!(broken(text), [1], "{text}");
        }
    }

    #[test]
    fn a_link_that_leads_somewhere_is_free() {
        for text in [
            "[a](../guarantees.md)",
            "[a](../guarantees.md?plain=1#claim) [b](./outbox.md)",
            "[a](/README.md) [b](../..) [c](..) [d](../learn/)",
            "[a](../two%20words.md) [b](<../two words.md>)",
            "[a]: ../../README.md 'title'",
        ] {
            assert_eq!(broken(text), CLEAN, "{text}");
        }
    }

    #[test]
    fn addresses_anchors_and_code_are_not_followed() {
        for text in [
            "[a](https://example.org/x.md) [b](http://x) [c](mailto:a@example.org)",
            "[a](#here) [b]()",
            "`[a](missing.md)`",
            "```markdown\n[a](missing.md)\n~~~\n[a](missing.md)\n```",
            "[^1]: A footnote.",
            "fn f(a: [u8; 2]) (x)",
        ] {
            assert_eq!(broken(text), CLEAN, "{text}");
        }
        assert_eq!(
            broken("```\ncode\n```\n[a](missing.md)"),
            [4],
            "after the fence"
        );
    }
}
