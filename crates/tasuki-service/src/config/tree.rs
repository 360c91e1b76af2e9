//! Configuration as a tree of keys: paths, lookups, merging, showing.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::path::PathBuf;

use toml::{Table, Value};

use super::Error;

/// Keys whose values are never shown, wherever they stand.
const SECRET_WORDS: [&str; 5] = [
    "password",
    "secret",
    "passphrase",
    "credential-value",
    "token-value",
];
/// What is shown instead.
const HIDDEN: &str = "<hidden>";

/// Where a value was set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    File(PathBuf),
    Environment(String),
    Program,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Environment(name) => write!(f, "environment variable {name}"),
            Self::Program => f.write_str("tasuki itself"),
        }
    }
}

/// `database.max-connections`, as its parts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Path(Vec<String>);

impl Path {
    pub(super) fn new(parts: Vec<String>) -> Self {
        Self(parts)
    }

    pub(super) fn parse(text: &str) -> Self {
        Self(text.split('.').map(ToOwned::to_owned).collect())
    }

    pub(super) fn push(&mut self, part: &str) {
        self.0.push(part.to_owned());
    }

    /// This path, then the one above it, up to its section.
    pub(super) fn prefixes(&self) -> impl Iterator<Item = Self> + '_ {
        (1..=self.0.len())
            .rev()
            .filter_map(|len| self.0.get(..len).map(|parts| Self(parts.to_vec())))
    }

    fn split_last(&self) -> Option<(&String, &[String])> {
        self.0.split_last()
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("."))
    }
}

/// Adds the sections of `part`; two parts must not define the same one.
pub(super) fn merge_disjoint(all: &mut Table, part: Table) -> Result<(), Error> {
    for (section, value) in part {
        if all.contains_key(&section) {
            return Err(Error::Syntax {
                origin: "the embedded defaults".to_owned(),
                reason: format!("section [{section}] is there twice"),
            });
        }
        all.insert(section, value);
    }
    Ok(())
}

pub(super) fn get<'t>(table: &'t Table, path: &Path) -> Option<&'t Value> {
    let (last, above) = path.split_last()?;
    let mut table = table;
    for part in above {
        table = table.get(part)?.as_table()?;
    }
    table.get(last)
}

/// Whether `path` is a value of `defaults`, or lies below an empty table there: such a table
/// is free-form, and the type that it is read into decides.
pub(super) fn exists(defaults: &Table, path: &Path) -> bool {
    match get(defaults, path) {
        Some(Value::Table(table)) => table.is_empty(),
        Some(_) => true,
        None => path.prefixes().skip(1).any(
            |above| matches!(get(defaults, &above), Some(Value::Table(table)) if table.is_empty()),
        ),
    }
}

pub(super) fn set(table: &mut Table, path: &Path, value: Value) {
    let Some((last, above)) = path.split_last() else {
        return;
    };
    let mut table = table;
    for part in above {
        let below = table
            .entry(part)
            .or_insert_with(|| Value::Table(Table::new()));
        if !below.is_table() {
            *below = Value::Table(Table::new());
        }
        let Value::Table(next) = below else { return };
        table = next;
    }
    table.insert(last.clone(), value);
}

/// Whether `path` is a section of `defaults`: in a file it may stand empty.
pub(super) fn is_section(defaults: &Table, path: &Path) -> bool {
    matches!(get(defaults, path), Some(Value::Table(_)))
}

/// Every value with its path; an empty table counts as one.
pub(super) fn leaves(table: Table) -> Vec<(Path, Value)> {
    fn walk(above: &[String], table: Table, out: &mut Vec<(Path, Value)>) {
        // Values first: in TOML they belong to the section that was named last.
        let is_section = |value: &Value| value.as_table().is_some_and(|below| !below.is_empty());
        let (below, here): (Vec<_>, Vec<_>) =
            table.into_iter().partition(|(_, value)| is_section(value));
        for (key, value) in here.into_iter().chain(below) {
            let mut path = above.to_vec();
            path.push(key);
            match value {
                Value::Table(below) if !below.is_empty() => walk(&path, below, out),
                value => out.push((Path(path), value)),
            }
        }
    }
    let mut out = Vec::new();
    walk(&[], table, &mut out);
    out
}

/// The key that somebody who wrote `path` most likely meant.
pub(super) fn nearest(defaults: &Table, path: &Path) -> Option<Path> {
    let wanted = path.to_string();
    leaves(defaults.clone())
        .into_iter()
        .map(|(known, _)| (strsim::jaro_winkler(&known.to_string(), &wanted), known))
        .filter(|(likeness, _)| *likeness > 0.8)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, known)| known)
}

/// `table` with every secret hidden, also the password inside an address.
pub(super) fn redacted(table: &Table) -> Table {
    let mut shown = table.clone();
    for (path, value) in leaves(table.clone()) {
        if let Value::String(text) = value {
            set(&mut shown, &path, Value::String(hide(&path, &text)));
        }
    }
    shown
}

pub(super) fn show(table: &Table, origins: &BTreeMap<Path, Origin>) -> String {
    let mut text = String::new();
    let mut section = None;
    for (path, value) in leaves(redacted(table)) {
        let Some((key, above)) = path.split_last() else {
            continue;
        };
        if value.is_table() {
            continue;
        }
        if section.as_deref() != Some(above) {
            let gap = if section.is_some() { "\n" } else { "" };
            put(&mut text, format_args!("{gap}[{}]\n", above.join(".")));
            section = Some(above.to_vec());
        }
        put(&mut text, format_args!("{key} = {value}"));
        if let Some(origin) = origins.get(&path) {
            put(&mut text, format_args!("  # from {origin}"));
        }
        text.push('\n');
    }
    text
}

fn put(text: &mut String, piece: fmt::Arguments<'_>) {
    // Writing to a string can't fail.
    text.write_fmt(piece).unwrap_or_default();
}

fn hide(path: &Path, text: &str) -> String {
    let secret = path
        .split_last()
        .is_some_and(|(key, _)| SECRET_WORDS.iter().any(|word| key.contains(word)));
    if secret && !text.is_empty() {
        return HIDDEN.to_owned();
    }
    hide_secrets(text)
}

/// Hides the secrets of the addresses in `text`: what stands before an `@`, but for a user's
/// name that is followed by a password, and the values of secret-like query parameters.
/// When in doubt it hides too much.
fn hide_secrets(text: &str) -> String {
    let mut pieces = text.split("://");
    let mut shown = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        shown.push_str("://");
        let (user, rest) = piece.rsplit_once('@').unwrap_or_default();
        if user.is_empty() && rest.is_empty() {
            shown.push_str(&hide_parameters(piece));
            continue;
        }
        if let Some((name, _password)) = user.split_once(':') {
            shown.push_str(name);
            shown.push(':');
        }
        shown.push_str(HIDDEN);
        shown.push('@');
        shown.push_str(&hide_parameters(rest));
    }
    shown
}

fn hide_parameters(rest: &str) -> String {
    let Some((path, query)) = rest.split_once('?') else {
        return rest.to_owned();
    };
    let shown = query.split('&').map(|parameter| {
        let (name, _value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let lower = name.to_ascii_lowercase();
        if SECRET_WORDS.iter().any(|word| lower.contains(word)) {
            format!("{name}={HIDDEN}")
        } else {
            parameter.to_owned()
        }
    });
    format!("{path}?{}", shown.collect::<Vec<_>>().join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secrets_of_an_address_are_hidden_and_the_rest_is_kept() {
        for (address, shown) in [
            (
                "postgres://u:p@h:1/d?x=y",
                "postgres://u:<hidden>@h:1/d?x=y",
            ),
            (
                "postgres://h/d?user=u&password=p",
                "postgres://h/d?user=u&password=<hidden>",
            ),
            ("redis://:p@h:1", "redis://:<hidden>@h:1"),
            ("postgres://u:p@ss@h/d", "postgres://u:<hidden>@h/d"),
            ("postgres://u:p/q@h/d", "postgres://u:<hidden>@h/d"),
            ("nats://token@h:4222", "nats://<hidden>@h:4222"),
            (
                "nats://a:b@h1,nats://c:d@h2",
                "nats://a:<hidden>@h1,nats://c:<hidden>@h2",
            ),
            ("nats://h:4222", "nats://h:4222"),
            ("plain", "plain"),
        ] {
            assert_eq!(hide_secrets(address), shown);
        }
    }
}
