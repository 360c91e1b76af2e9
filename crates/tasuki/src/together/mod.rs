//! Writes that travel together: the last words of a transaction, in one round trip.
//!
//! What a batch comes to goes into several tables: the caller's own, the outbox, the answers under
//! the idempotency keys. No part reads what another one writes, so they can be parts of one
//! statement, which PostgreSQL runs as a whole or not at all. Whoever waits for the batch waits
//! for one answer of the database instead of three.
//!
//! Begin with a statement of your own, add [`Outbox::enqueue_with`] and [`Keys::store_with`], and
//! [`run`](Together::run) it.
//!
//! Invariant: every part writes as many rows as it was said to, or the statement fails.
//!
//! [`Outbox::enqueue_with`]: crate::outbox::Outbox::enqueue_with
//! [`Keys::store_with`]: crate::idempotency::Keys::store_with

mod store;

use std::fmt::Write as _;

use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::{Arguments as _, PgConnection, Row as _};

/// Several writes as one statement.
#[derive(Debug)]
#[must_use = "nothing is written before it is run"]
pub struct Together {
    /// The parts so far, from `WITH` on.
    parts: String,
    /// What counts the rows of the first one.
    count: String,
    arguments: PgArguments,
    expected: Vec<Expected>,
}

/// What a part has to come to.
#[derive(Debug)]
struct Expected {
    part: &'static str,
    rows: usize,
    /// Hears of it when it did.
    done: fn(usize),
}

/// Why nothing was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The database failed.
    #[error("the database failed")]
    Store(#[from] sqlx::Error),
    /// Somebody wrote the same rows without the locks that guard them. Roll back.
    #[error("of {expected} rows of {part} {got} could be written")]
    Short {
        /// Which part.
        part: &'static str,
        /// How many rows it should have written.
        expected: usize,
        /// How many it wrote.
        got: i64,
    },
}

impl Together {
    /// Begins with a statement of the caller's own, and its arguments: `WITH` one or more parts
    /// that write, and in a line of its own the `SELECT` of how many rows that were. `part` names
    /// it in an error if they are not `rows`.
    pub fn new(part: &'static str, sql: &str, arguments: PgArguments, rows: usize) -> Self {
        let (parts, count) = sql.trim_end().rsplit_once("\nSELECT ").unwrap_or((sql, ""));
        let done = |_| {};
        Self {
            parts: parts.trim_end().to_owned(),
            count: format!("SELECT {count}"),
            arguments,
            expected: vec![Expected { part, rows, done }],
        }
    }

    /// Adds a statement that inserts `rows`, with parameters that count from 1.
    pub(crate) fn add(
        &mut self,
        expected: (&'static str, usize, fn(usize)),
        sql: &str,
        arguments: impl FnOnce(&mut PgArguments) -> Result<(), BoxDynError>,
    ) -> sqlx::Result<()> {
        let (part, rows, done) = expected;
        let before = self.arguments.len();
        arguments(&mut self.arguments).map_err(sqlx::Error::Encode)?;
        let sql = renumbered(sql, before);
        // Writing into a string can't fail.
        write!(self.parts, ",\n\n{part} AS ({sql}\nRETURNING 1\n)").unwrap_or_default();
        self.expected.push(Expected { part, rows, done });
        Ok(())
    }

    /// Runs it. Commit afterwards what it wrote.
    ///
    /// # Errors
    /// When the database fails, or a part wrote less than it should have: roll back.
    pub async fn run(self, transaction: &mut PgConnection) -> Result<(), Error> {
        let Self {
            parts,
            count,
            arguments,
            expected,
        } = self;
        let mut sql = format!("{parts}\n\nSELECT ({count})");
        for Expected { part, .. } in expected.iter().skip(1) {
            // Writing into a string can't fail.
            write!(sql, ", (SELECT count(*) FROM {part})").unwrap_or_default();
        }
        let row = store::run(transaction, sql, arguments).await?;
        for (index, expected) in expected.iter().enumerate() {
            expected.check(&row, index)?;
        }
        for Expected { rows, done, .. } in expected {
            done(rows);
        }
        Ok(())
    }
}

impl Expected {
    fn check(&self, row: &PgRow, index: usize) -> Result<(), Error> {
        let (part, expected) = (self.part, self.rows);
        let got: i64 = row.try_get(index)?;
        if usize::try_from(got) == Ok(expected) {
            return Ok(());
        }
        Err(Error::Short {
            part,
            expected,
            got,
        })
    }
}

/// `sql` with `$1` as the parameter after the first `before`, and so on.
fn renumbered(sql: &str, before: usize) -> String {
    let mut pieces = sql.split('$');
    let mut renumbered = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let digits = piece.len() - piece.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, rest) = piece.split_at(digits);
        match number.parse::<usize>() {
            // Writing into a string can't fail.
            Ok(number) => write!(renumbered, "${}{rest}", number + before).unwrap_or_default(),
            Err(_none) => {
                renumbered.push('$');
                renumbered.push_str(piece);
            }
        }
    }
    renumbered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_counted_on_from_those_before() {
        let sql = "SELECT $1, $12::text[], 'a$b', $";
        assert_eq!(renumbered(sql, 3), "SELECT $4, $15::text[], 'a$b', $");
        assert_eq!(renumbered(sql, 0), sql);
    }
}
