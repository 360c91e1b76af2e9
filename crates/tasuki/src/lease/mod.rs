//! A row with a lease: the one idea under the outbox, jobs and everything else that a worker
//! claims, works on and finishes.
//!
//! A [`Table`] describes where the rows are. [`Leases`] claims, renews and puts back; every
//! claim has a token of its own, so whoever has lost a claim, also to itself, changes nothing
//! any more: that is the [`Fence`]. A [`Runner`] is the worker around it: it claims in
//! batches that fill under load and don't wait when idle, runs [`Work`] side by side, settles
//! in groups, renews what takes long, and gives back what is left when it stops.
//!
//! The database's clock decides about due times and leases; the process's never does.
//!
//! Promised: a row that is due is claimed by somebody, and claimed again when its worker is
//! gone for longer than the lease; two claims of a row never both settle. Not promised: that
//! work runs once (a worker that stalls beyond its lease does not know it yet), nor any order
//! beyond what the table's own pick says.

mod line;
mod own;
mod owner;
mod prefetch;
mod presence;
mod runner;
mod settle;
mod store;
mod table;
mod tally;
mod watermark;
mod work;

use std::time::Duration;

use uuid::Uuid;

pub use owner::Owner;
pub use runner::Runner;
pub(crate) use store::split;
pub use store::{Claim, Leases, give_back};
pub use table::{Letter, Table};
pub use watermark::{Look, Start, Watermark};
pub use work::{Route, Settings, Unit, Work};

pub(crate) use line::{HungUp, Line, within};
pub(crate) use own::OwnPool;
pub(crate) use presence::{Bereaved, Estate, Known, Presence};

/// One claim of one row: what every later word about it must show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fence {
    /// The row.
    pub id: Uuid,
    /// The claim. A later claim of the same row has another.
    pub token: Uuid,
}

/// A row that was claimed.
#[derive(Clone, Debug)]
pub struct Claimed<R> {
    /// Which row, and by which claim.
    pub fence: Fence,
    /// Attempts that failed before this one.
    pub failed_attempts: u32,
    /// What the table's description asked for.
    pub row: R,
}

/// How the work on a row ended.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Outcome<D> {
    /// Done; `D` is what settling needs to know.
    Done(D),
    /// Failed, and to be tried again: costs an attempt.
    Retry {
        /// How long to wait.
        after: Duration,
        /// What went wrong.
        error: String,
    },
    /// It ran, and is not done yet: again later, without the cost of an attempt.
    Snooze {
        /// How long to wait.
        after: Duration,
        /// Why.
        error: String,
    },
    /// It did not run: back without the cost of an attempt.
    Back {
        /// How long to wait.
        after: Duration,
        /// Why, if it is worth a note.
        error: Option<String>,
    },
    /// Never to be tried again by itself: dead, with a dead letter in the same transaction.
    Dead {
        /// What went wrong.
        error: String,
    },
}

/// Longer texts are cut before they are stored: an error message is for people.
const ERROR_LIMIT: usize = 1000;

/// `error` as it is stored: at most 1000 characters, without what PostgreSQL refuses.
pub(crate) fn stored_error(error: &str) -> String {
    error
        .chars()
        .filter(|c| *c != '\0')
        .take(ERROR_LIMIT)
        .collect()
}

/// `error` and its sources, as one line for [`Outcome`]. What a level repeats of its source, as
/// errors of the database do, is said once.
#[must_use]
pub fn told(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        if !text.ends_with(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_error_is_short_and_free_of_what_the_database_refuses() {
        let stored = stored_error(&format!("a\0b{}", "é".repeat(2000)));
        assert!(stored.starts_with("abé"));
        assert_eq!(stored.chars().count(), ERROR_LIMIT);
    }

    #[derive(Debug, thiserror::Error)]
    #[error("outside: {0}")]
    struct Repeating(#[source] std::io::Error);

    #[derive(Debug, thiserror::Error)]
    #[error("above")]
    struct Above(#[source] Repeating);

    #[test]
    fn what_an_error_repeats_of_its_source_is_told_once() {
        let error = Above(Repeating(std::io::Error::other("no room, at line 207")));
        assert_eq!(told(&error), "above: outside: no room, at line 207");
    }
}
