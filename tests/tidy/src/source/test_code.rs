//! Finds attributes, and the items that exist only under test.

use std::ops::Range;

use super::Attribute;

/// Every attribute of `code` (already without comments and strings), in order.
pub fn attributes(code: &str) -> Vec<Attribute<'_>> {
    let starts = code.match_indices('#').map(|(at, _)| at);
    starts.filter_map(|at| attribute(code, at)).collect()
}

fn attribute(code: &str, start: usize) -> Option<Attribute<'_>> {
    let hash = code.get(start + 1..)?;
    let inner = hash.starts_with('!');
    let open = start + 1 + usize::from(inner);
    let bracket = code.get(open..)?;
    if !bracket.starts_with('[') {
        return None;
    }
    let end = open + balanced(bracket)?;
    Some(Attribute {
        start,
        end,
        body: code.get(open + 1..end - 1)?,
        inner,
    })
}

/// Length up to the bracket that closes the first one.
fn balanced(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

/// Where the items under `#[cfg(test)]` are, in bytes of `code`, attribute included.
pub fn test_items(code: &str) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    for attribute in attributes(code) {
        let inside_the_last = found.last().is_some_and(|last| attribute.start < last.end);
        if inside_the_last || !is_test_only(attribute.body) {
            continue;
        }
        let rest = code.get(attribute.end..).unwrap_or_default();
        // An inner attribute stands for all that follows it.
        let len = if attribute.inner {
            rest.len()
        } else {
            item(rest)
        };
        found.push(attribute.start..attribute.end + len);
    }
    found
}

fn is_test_only(attribute: &str) -> bool {
    let compact: String = attribute.split_whitespace().collect();
    compact == "cfg(test)" || compact.starts_with("cfg(all(test,")
}

/// Length of the item that starts here: up to its `;`, its closing brace, or the end of the block
/// it is in.
fn item(rest: &str) -> usize {
    let mut depth = 0_usize;
    for (at, c) in rest.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth == 0 => return at,
            ')' | ']' => depth -= 1,
            '}' => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            ';' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// The code with every item under `#[cfg(test)]` replaced by spaces.
pub fn without_tests(code: &str) -> String {
    let mut out = String::with_capacity(code.len());
    let mut at = 0;
    for range in test_items(code) {
        out.push_str(code.get(at..range.start).unwrap_or_default());
        let gone = code.get(range.clone()).unwrap_or_default();
        out.extend(gone.chars().map(|c| if c == '\n' { c } else { ' ' }));
        at = range.end;
    }
    out.push_str(code.get(at..).unwrap_or_default());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(code: &str) -> String {
        without_tests(code)
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn attributes_are_found_with_their_nested_brackets() {
        let code = "#![warn(a)]\n#[expect(b, reason = [c])]\nlet d = e # f;";
        let found = attributes(code);
        let bodies: Vec<&str> = found.iter().map(|attribute| attribute.body).collect();
        assert_eq!(bodies, ["warn(a)", "expect(b, reason = [c])"]);
        assert!(found[0].inner && !found[1].inner);
    }

    #[test]
    fn a_test_item_ends_where_it_ends() {
        assert_eq!(left("a; #[cfg(test)] mod tests { fn f() { b } } c"), "a; c");
        assert_eq!(left("a; #[cfg(test)] mod tests; c"), "a; c");
        assert_eq!(left("#[cfg(test)] fn f(x: [u8; 3]) { b; } c"), "c");
        assert_eq!(
            left("#[cfg(all(test, unix))]\n#[expect(x)]\nfn f() {} c"),
            "c"
        );
        assert_eq!(
            left("struct S { a: A, #[cfg(test)] b: B } c"),
            "struct S { a: A, } c"
        );
        assert_eq!(left("#![cfg(test)] a; b {}"), "");
    }

    #[test]
    fn what_is_also_built_without_tests_stays() {
        for code in [
            "#[cfg(not(test))] fn f() {}",
            "#[cfg(any(test, x))] fn f() {}",
            "#[test] fn f() {}",
        ] {
            assert_eq!(left(code), code);
        }
    }

    #[test]
    fn lines_stay_where_they_were() {
        assert_eq!(
            without_tests("a\n#[cfg(test)]\nmod t {\n}\nb")
                .lines()
                .count(),
            5
        );
    }
}
