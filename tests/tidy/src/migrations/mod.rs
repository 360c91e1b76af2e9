//! Migrations say why, in which phase, under which lock and how to undo; indexes are built without
//! stopping writers.
//!
//! sqlx looks for `-- no-transaction` at the very start of the file and nowhere else, so a marker
//! anywhere else is a migration that does not do what its author thinks.

mod statements;

use crate::{File, Finding, Tree};
use statements::{Statement, statements};

const MARKER: &str = "-- no-transaction";

/// What a header answers.
const HEADER: [&str; 4] = ["Why:", "Phase:", "Lock:", "Undo:"];

const OUTSIDE: &str = "a concurrent index can't be built in a transaction: \
                       make `-- no-transaction` line 1";

const ALONE: &str = "a concurrent index stands alone in its file: \
                     move the other statements to another migration";

/// Checks every `migrations/*.sql`.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let migrations = tree.files().iter().filter(|file| is_migration(file));
    let partitioned: Vec<String> = migrations.clone().flat_map(partitioned).collect();
    let mut findings = Vec::new();
    for file in migrations {
        let told = [marker(file), header(file), indexes(file, &partitioned)];
        let told = told.into_iter().flatten();
        findings.extend(told.map(|(line, message)| Finding::new(&file.path, line, message)));
    }
    findings
}

fn is_migration(file: &File) -> bool {
    let mut parts = file.path.rsplit('/');
    let is_sql = parts.next().is_some_and(|name| name.ends_with(".sql"));
    is_sql && parts.next() == Some("migrations")
}

fn is_outside_a_transaction(file: &File) -> bool {
    file.text.starts_with(MARKER)
}

fn marker(file: &File) -> Vec<(usize, String)> {
    let lines = file.text.lines().enumerate();
    let strays =
        lines.filter(|(at, line)| is_marker(line) && (*at > 0 || !line.starts_with(MARKER)));
    let message = "sqlx reads the marker only at the very start of the file: \
                   make `-- no-transaction` line 1, or remove it";
    strays.map(|(at, _)| (at + 1, message.to_owned())).collect()
}

/// Whether the author of this line meant the marker.
fn is_marker(line: &str) -> bool {
    let comment = line.trim_start().strip_prefix("--");
    comment.is_some_and(|text| {
        text.trim_start()
            .to_lowercase()
            .starts_with("no-transaction")
    })
}

fn header(file: &File) -> Vec<(usize, String)> {
    let lines = file.text.lines();
    let lines = lines.skip(usize::from(is_outside_a_transaction(file)));
    let header: Vec<&str> = lines.map_while(|line| line.strip_prefix("--")).collect();
    let answers = |tag: &str| {
        let mut answers = header
            .iter()
            .filter_map(|line| line.strip_prefix(' ')?.strip_prefix(tag));
        answers.any(|answer| !answer.trim().is_empty())
    };
    let missing: Vec<&str> = HEADER.into_iter().filter(|tag| !answers(tag)).collect();
    if missing.is_empty() {
        return Vec::new();
    }
    let missing = missing.join(", ");
    let message = format!(
        "a migration starts with `-- Why:`, `-- Phase:`, `-- Lock:`, `-- Undo:`: add {missing}"
    );
    vec![(1, message)]
}

/// The tables with partitions that a file makes.
fn partitioned(file: &File) -> Vec<String> {
    let all = statements(&file.text);
    let parents = all.iter().filter(|statement| statement.is_partitioned());
    parents.filter_map(Statement::made_table).collect()
}

fn indexes(file: &File, partitioned: &[String]) -> Vec<(usize, String)> {
    let all = statements(&file.text);
    let made: Vec<String> = all.iter().filter_map(Statement::made_table).collect();
    let mut told = Vec::new();
    for statement in &all {
        let Some(index) = statement.index() else {
            continue;
        };
        let mut tell = |message: String| told.push((statement.line, message));
        if index.concurrently {
            if !is_outside_a_transaction(file) {
                tell(OUTSIDE.to_owned());
            }
            if all.len() > 1 {
                tell(ALONE.to_owned());
            }
        } else if index.only && partitioned.contains(&index.table) {
            // Nothing is built: partitions that are made from now on have it.
        } else if !made.contains(&index.table) {
            tell(format!(
                "an index on a table that is in use is built with \
                 CREATE INDEX CONCURRENTLY, alone in its file (or ON ONLY a partitioned table): \
                 {} is not created here",
                index.table
            ));
        }
    }
    told
}

#[cfg(test)]
mod tests;
