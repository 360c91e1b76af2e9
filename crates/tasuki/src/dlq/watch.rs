//! Tells somebody when something dies.

use std::fmt;
use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sqlx::{FromRow, PgPool};

use super::store::Seen;
use super::{LetterId, Letters};
use crate::transaction;
use crate::worker::{Error, Tick, Worker};

/// How often it looks, unless [`Watch::every`] says otherwise.
const EVERY: Duration = Duration::from_secs(5);

/// What has died since the last word.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deaths {
    /// How many rows.
    pub letters: u64,
    /// What they are, most deaths first; the first hundred kinds.
    pub groups: Vec<Death>,
}

/// Deaths of one kind.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
#[non_exhaustive]
pub struct Death {
    /// The table that the rows died in.
    pub source: String,
    /// The queue, or where the rows were to go.
    pub queue: String,
    /// The kind of job, or the type of event.
    pub kind: String,
    /// How many.
    #[sqlx(try_from = "i64")]
    pub letters: u64,
    /// One of the letters.
    pub sample: LetterId,
    /// What that one died of.
    pub error: String,
}

/// Calls `tell` with a summary of what has died, at most once per poll: a webhook, a
/// notification, whatever the service has.
///
/// At least once: a `tell` that fails is called again, with the same deaths and those that came
/// in between. No death is missed between the first tick and the last, in whatever order they
/// were committed. How far it has come is kept in memory: it begins at its first tick, and what
/// died before is in the list and in the gauges ([`admin::Gauges`](crate::admin::Gauges)). Run
/// one: two watches tell twice.
pub struct Watch<F> {
    name: String,
    pool: PgPool,
    letters: Letters,
    every: Duration,
    tell: F,
    seen: Mutex<Option<Seen>>,
}

impl<F> Watch<F> {
    /// A watch called `name` (`<service>.dead_letters`).
    #[must_use]
    pub fn new(name: &str, pool: PgPool, letters: &Letters, tell: F) -> Self {
        Self {
            name: name.to_owned(),
            pool,
            letters: letters.clone(),
            every: EVERY,
            tell,
            seen: Mutex::default(),
        }
    }

    /// Looks this often; deaths in between are told together.
    #[must_use]
    pub fn every(mut self, every: Duration) -> Self {
        self.every = every;
        self
    }

    fn remember(&self, seen: Seen) {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(seen);
    }
}

impl<F, R> Worker for Watch<F>
where
    F: Fn(Deaths) -> R + Send + Sync + 'static,
    R: Future<Output = Result<(), Error>> + Send,
{
    fn name(&self) -> &str {
        &self.name
    }

    fn poll_interval(&self) -> Duration {
        self.every
    }

    async fn tick(&self) -> Result<Tick, Error> {
        let statements = &self.letters.statements;
        let before = self
            .seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let mut tx = transaction::begin(&self.pool).await?;
        let Some(before) = before else {
            self.remember(statements.begin(&mut tx).await?);
            return Ok(Tick::Idle);
        };
        let (now, deaths) = statements.deaths(&mut tx, &before).await?;
        drop(tx);
        if deaths.letters > 0 {
            tracing::warn!(
                letters = deaths.letters,
                watch = self.name,
                "rows have died"
            );
            (self.tell)(deaths).await?;
        }
        // Only now: whatever went wrong above is told again.
        self.remember(now);
        // Idle also after a word: a disaster is told in summaries, one per poll.
        Ok(Tick::Idle)
    }
}

impl<F> fmt::Debug for Watch<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("name", &self.name)
            .field("every", &self.every)
            .finish_non_exhaustive()
    }
}
