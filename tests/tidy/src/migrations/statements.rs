//! Cuts a migration into statements: enough SQL to see tables and indexes being created.
//!
//! Comments, strings and dollar-quoted bodies are blanked first, so a `;` or a `CREATE INDEX`
//! inside them is none.

use crate::source::line_at;

/// One statement, as words in lower case; brackets and commas are words too.
pub(super) struct Statement {
    pub(super) line: usize,
    words: Vec<String>,
}

/// A `CREATE INDEX`.
pub(super) struct Index {
    pub(super) table: String,
    pub(super) concurrently: bool,
    /// Not on the partitions that the table has.
    pub(super) only: bool,
}

/// The statements of a file, in order.
pub(super) fn statements(text: &str) -> Vec<Statement> {
    let code = mask(text);
    let mut found = Vec::new();
    let mut at = 0;
    for piece in code.split_inclusive(';') {
        let words = words(piece.trim_end_matches(';'));
        if !words.is_empty() {
            let indent = piece.len() - piece.trim_start().len();
            let line = line_at(&code, at + indent);
            found.push(Statement { line, words });
        }
        at += piece.len();
    }
    found
}

impl Statement {
    /// The table or materialized view this statement makes.
    pub(super) fn made_table(&self) -> Option<String> {
        let mut words = self.words.iter().map(String::as_str);
        if words.next() != Some("create") {
            return None;
        }
        // CREATE [TEMP | UNLOGGED | MATERIALIZED ..] TABLE | VIEW [IF NOT EXISTS] name
        let modifiers = [
            "global",
            "local",
            "temp",
            "temporary",
            "unlogged",
            "materialized",
        ];
        let made = words.find(|word| !modifiers.contains(word))?;
        if !["table", "view"].contains(&made) {
            return None;
        }
        words
            .find(|word| !["if", "not", "exists"].contains(word))
            .map(str::to_owned)
    }

    /// The index this statement makes.
    pub(super) fn index(&self) -> Option<Index> {
        let mut words = self.words.iter().map(String::as_str);
        if words.next() != Some("create") {
            return None;
        }
        // CREATE [UNIQUE] INDEX [CONCURRENTLY] [[IF NOT EXISTS] name] ON [ONLY] table
        if words.find(|word| *word != "unique")? != "index" {
            return None;
        }
        let concurrently = words.clone().next() == Some("concurrently");
        words.find(|word| *word == "on")?;
        let only = words.clone().next() == Some("only");
        let table = words.find(|word| *word != "only")?.to_owned();
        Some(Index {
            table,
            concurrently,
            only,
        })
    }

    /// Whether the table that this statement makes has partitions.
    pub(super) fn is_partitioned(&self) -> bool {
        let mut pairs = self.words.iter().zip(self.words.iter().skip(1));
        pairs.any(|(one, next)| one == "partition" && next == "by")
    }
}

fn words(statement: &str) -> Vec<String> {
    let spaced = statement.replace('"', "").replace('(', " ( ");
    let spaced = spaced.replace(')', " ) ").replace(',', " , ");
    spaced.split_whitespace().map(str::to_lowercase).collect()
}

/// Replaces comments, strings and bodies by spaces; lines stay where they were.
fn mask(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let hidden = hidden(rest);
        let len = hidden.unwrap_or(first.len_utf8());
        let (now, later) = rest.split_at_checked(len).unwrap_or((rest, ""));
        let keep = |c: char| hidden.is_none() || c == '\n';
        out.extend(now.chars().map(|c| if keep(c) { c } else { ' ' }));
        rest = later;
    }
    out
}

/// Length of the comment, string or body that starts here.
fn hidden(rest: &str) -> Option<usize> {
    if rest.starts_with("--") {
        return Some(rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return Some(until(rest, 2, "*/"));
    }
    if rest.starts_with('\'') {
        // A doubled quote reads as two strings side by side, which blanks the same text.
        return Some(until(rest, 1, "'"));
    }
    let fence = fence(rest)?;
    Some(until(rest, fence.len(), fence))
}

/// Length up to and with the first `close` after `open` bytes.
fn until(rest: &str, open: usize, close: &str) -> usize {
    let body = rest.get(open..).unwrap_or_default();
    body.find(close)
        .map_or(rest.len(), |at| open + at + close.len())
}

/// The `$tag$` that opens here. `$1` is a parameter, not a fence.
fn fence(rest: &str) -> Option<&str> {
    let tag = rest.strip_prefix('$')?;
    let len = tag.find('$')?;
    let name = tag.get(..len)?;
    let is_name = name.chars().all(crate::source::is_word_char);
    let is_parameter = name.starts_with(|c: char| c.is_ascii_digit());
    (is_name && !is_parameter).then(|| rest.get(..len + 2))?
}
