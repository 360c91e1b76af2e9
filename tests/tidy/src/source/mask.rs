//! Blanks comments and the inside of strings, so that a rule reads only code.
//!
//! A small lexer: it knows line and nested block comments, plain, byte, C and raw strings, and
//! tells a character from a lifetime. The quotes of strings stay, so a rule can still see that a
//! literal is there.

/// What the next piece of source is.
enum Piece {
    Code,
    Text,
    Comment,
}

/// The source with comments and string contents replaced by spaces. Lines stay where they were.
pub fn code(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while !rest.is_empty() {
        let (piece, len) = next(rest);
        // A literal that never closes takes all the rest: such a file does not compile anyway.
        let (now, later) = rest.split_at_checked(len).unwrap_or((rest, ""));
        match piece {
            Piece::Code => out.push_str(now),
            Piece::Text => out.extend(now.chars().map(|c| blank_but(c, '"'))),
            Piece::Comment => out.extend(now.chars().map(|c| blank_but(c, '\n'))),
        }
        rest = later;
    }
    out
}

fn blank_but(c: char, kept: char) -> char {
    if c == kept || c == '\n' { c } else { ' ' }
}

fn next(rest: &str) -> (Piece, usize) {
    if rest.starts_with("//") {
        return (Piece::Comment, rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return (Piece::Comment, block_comment(rest));
    }
    if let Some(len) = raw_string(rest).or_else(|| string(rest)) {
        return (Piece::Text, len);
    }
    if let Some(len) = character(rest) {
        return (Piece::Text, len);
    }
    // A whole word at once: the `r` that ends `for` must not open a raw string.
    let word = rest.find(|c| !super::is_word_char(c)).unwrap_or(rest.len());
    let first = rest.chars().next().map_or(1, char::len_utf8);
    (Piece::Code, word.max(first))
}

/// Length of a block comment. They nest.
fn block_comment(rest: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(tail) = rest.get(at..).filter(|tail| !tail.is_empty()) {
        if tail.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if tail.starts_with("*/") {
            depth = depth.saturating_sub(1);
            at += 2;
            if depth == 0 {
                break;
            }
        } else {
            at += tail.chars().next().map_or(1, char::len_utf8);
        }
    }
    at
}

/// Length of `r"..."`, `r#"..."#`, and the same after `b` or `c`.
fn raw_string(rest: &str) -> Option<usize> {
    let bare = rest.strip_prefix(['b', 'c']).unwrap_or(rest);
    let fenced = bare.strip_prefix('r')?;
    let opened = fenced.trim_start_matches('#');
    let hashes = fenced.len() - opened.len();
    let body = opened.strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    let head = rest.len() - body.len();
    Some(
        body.find(&close)
            .map_or(rest.len(), |at| head + at + close.len()),
    )
}

/// Length of `"..."`, and the same after `b` or `c`.
fn string(rest: &str) -> Option<usize> {
    let bare = rest.strip_prefix(['b', 'c']).unwrap_or(rest);
    let body = bare.strip_prefix('"')?;
    let head = rest.len() - body.len();
    Some(closing(body, '"').map_or(rest.len(), |at| head + at))
}

/// Length of `'c'` or `b'c'`; nothing for a lifetime.
fn character(rest: &str) -> Option<usize> {
    let bare = rest.strip_prefix('b').unwrap_or(rest);
    let body = bare.strip_prefix('\'')?;
    let head = rest.len() - body.len();
    let mut chars = body.chars();
    let first = chars.next()?;
    if first == '\\' {
        return closing(body, '\'').map(|at| head + at);
    }
    (chars.next() == Some('\'')).then(|| head + first.len_utf8() + 1)
}

/// The byte after the first `quote` that no backslash escapes.
fn closing(body: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in body.char_indices() {
        if escaped {
            escaped = false;
        } else if c == quote {
            return Some(at + 1);
        } else {
            escaped = c == '\\';
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn reads_as(source: &str, expected: &str) {
        let squeezed: Vec<String> = code(source)
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(squeezed.join("\n"), expected);
    }

    #[test]
    fn comments_go_and_lines_stay() {
        reads_as("a // one\nb /* two\n /* three */ */ c", "a\nb\nc");
        reads_as("/// doc\nfn f() {}", "\nfn f() {}");
        reads_as("a /* never closed", "a");
    }

    #[test]
    fn strings_keep_their_quotes_and_nothing_else() {
        reads_as(r#"f("a // b \" c", 1)"#, r#"f(" " ", 1)"#);
        reads_as("f(\"two\nlines\") + x", "f(\"\n\") + x");
        reads_as(
            r###"f(r#"a " b"#, br"c", b"d", c"e") + x"###,
            r#"f( " " " , " ", " ", " ") + x"#,
        );
        reads_as(r#"a "never closed"#, r#"a ""#);
    }

    #[test]
    fn characters_go_and_lifetimes_stay() {
        reads_as(r#"if c == '"' { x }"#, r#"if c == " { x }"#);
        reads_as(r"if c == '\'' || c == b'\\' { 'é' }", "if c == || c == { }");
        reads_as(
            "fn f<'a>(x: &'a str, y: &'static T)",
            "fn f<'a>(x: &'a str, y: &'static T)",
        );
    }

    #[test]
    fn a_word_that_ends_in_a_prefix_opens_no_string() {
        reads_as(r#"for"x" r#type + y"#, r#"for" " r#type + y"#);
    }
}
