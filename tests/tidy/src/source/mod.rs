//! Rust source as the rules read it: the text with comments and strings blanked, cut into words.
//!
//! [`code`] keeps every line where it was, so a line number found in its result is a line number
//! of the file.

mod mask;
mod test_code;

pub use mask::code;
pub use test_code::{attributes, test_items, without_tests};

/// An attribute, `#[..]` or `#![..]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// Where it starts, in bytes of the code.
    pub start: usize,
    /// The byte after its closing bracket.
    pub end: usize,
    /// What is between the brackets.
    pub body: &'a str,
    /// Whether it is an inner one: `#![..]`.
    pub inner: bool,
}

/// A word (identifier, keyword or number) and what stands around it.
#[derive(Clone, Copy, Debug)]
pub struct Word<'a> {
    /// Line of the word, from 1.
    pub line: usize,
    /// Everything before the word.
    pub before: &'a str,
    /// The word.
    pub text: &'a str,
    /// Everything after the word.
    pub after: &'a str,
}

impl Word<'_> {
    /// Whether the next thing after this word, over spaces and line ends, is `text`.
    pub fn is_followed_by(&self, text: &str) -> bool {
        self.after.trim_start().starts_with(text)
    }

    /// Whether the last thing before this word, over spaces and line ends, is `text`.
    pub fn is_preceded_by(&self, text: &str) -> bool {
        self.before.trim_end().ends_with(text)
    }
}

/// Whether `c` can be part of a word.
pub fn is_word_char(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

/// Every word of `code`, in order.
pub fn words(code: &str) -> impl Iterator<Item = Word<'_>> {
    let mut at = 0;
    let mut line = 1;
    std::iter::from_fn(move || {
        let rest = code.get(at..)?;
        let gap = rest.find(is_word_char)?;
        let from = rest.get(gap..)?;
        let len = from.find(|c| !is_word_char(c)).unwrap_or(from.len());
        let (start, end) = (at + gap, at + gap + len);
        line += newlines(rest.get(..gap)?);
        at = end;
        Some(Word {
            line,
            before: code.get(..start)?,
            text: code.get(start..end)?,
            after: code.get(end..)?,
        })
    })
}

/// The line, from 1, that the byte `at` of `text` is on.
pub fn line_at(text: &str, at: usize) -> usize {
    1 + text.get(..at).map_or(0, newlines)
}

fn newlines(text: &str) -> usize {
    text.matches('\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_carry_their_line_and_their_neighbours() {
        let found: Vec<Word<'_>> = words("sqlx::query!(\n  a_1\n)").collect();
        let texts: Vec<(&str, usize)> = found.iter().map(|w| (w.text, w.line)).collect();
        assert_eq!(texts, [("sqlx", 1), ("query", 1), ("a_1", 2)]);
        assert!(found[1].is_preceded_by("sqlx::") && found[1].is_followed_by("!("));
        assert!(found[2].is_preceded_by("(") && found[2].is_followed_by(")"));
        assert_eq!(words("  ").count(), 0);
    }
}
