//! Dead letters: what will not be retried by itself waits here for a person.
//!
//! A row of any lease table that dies ([`lease::Outcome::Dead`](crate::lease::Outcome::Dead))
//! stays in its table as `FAILED` and leaves a letter, in the same transaction. [`Letters`] is
//! the one list over all of them: look through it, [`preview`](Letters::preview) what a filter
//! means, [`redrive`](Letters::redrive) or [`discard`](Letters::discard). A [`Watch`] tells
//! somebody when something dies.
//!
//! What holds:
//! - A letter is redriven or discarded once. Whoever comes second, also at the same moment,
//!   changes nothing and is told so.
//! - Only a row that is still `FAILED` is put back: a fresh start, with no attempt counted, due
//!   at once. Letter, row and audit change in the caller's transaction, or not at all.
//! - Every change has an audit record with an actor. It outlives the letter.
//! - A call changes a bounded number of letters and says whether there are more, so that no
//!   transaction grows with the size of a disaster.
//!
//! Locks are taken by source, then by time of death, in the order letter, row; two people who
//! redrive overlapping filters wait for each other and never deadlock.
//!
//! After the commit, ring the bells of the [`Acted::sources`]: the rows are due, and a worker
//! that nobody wakes finds them at its next poll.
//!
//! Mind the order: a redriven event keeps its ordering key and is published *after* successors
//! that were published while it was dead. Consumers that care compare versions. A redriven job
//! may meet a twin: the uniqueness of a job ends with its death.

mod act;
mod filter;
mod letter;
mod store;
mod watch;

use std::sync::Arc;

use sqlx::PgConnection;

use crate::Schema;
use crate::lease::Table;
use store::Statements;

pub use act::Acted;
pub(crate) use act::{ACTOR_LIMIT, ACTOR_RULE, REASON_LIMIT, REASON_RULE, is_plain};
pub use filter::{Cursor, Filter, InvalidCursor, Page, State};
pub use letter::{Action, Audit, Group, Letter, LetterId, Listed, Open, Preview, Story};
pub use watch::{Death, Deaths, Watch};

/// Letters that one call changes at most, unless [`Letters::batch`] says otherwise.
const BATCH: u32 = 10_000;
/// Letters that a preview shows.
const SAMPLE: u32 = 5;

/// The dead letters of one schema. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Letters {
    statements: Arc<Statements>,
    batch: u32,
}

/// Why letters could not be read or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A text that nobody could have meant, or that PostgreSQL refuses.
    #[error("`{what}` must be {rule}")]
    Invalid {
        /// Which one: `actor`, `reason`, or a field of the filter.
        what: &'static str,
        /// What it must be.
        rule: &'static str,
    },
    /// The filter names a source whose rows nobody here can put back.
    #[error("there is no source of dead letters called `{0}`")]
    UnknownSource(String),
    /// The database could not be asked.
    #[error("the dead letters could not be read or changed")]
    Store(#[from] sqlx::Error),
}

impl Letters {
    /// The letters in `schema`. Rows of the library's own tables (`jobs`, `outbox_events`,
    /// `seqlog_set_aside`) can always be put back; `sources` are the lease tables that the service adds.
    #[must_use]
    pub fn new(schema: &Schema, sources: &[Table]) -> Self {
        Self {
            statements: Arc::new(Statements::new(schema, sources)),
            batch: BATCH,
        }
    }

    /// Changes at most `letters` per call (10,000 by default): more cost fewer round trips, and
    /// a longer transaction.
    #[must_use]
    pub fn batch(mut self, letters: u32) -> Self {
        self.batch = letters.max(1);
        self
    }

    /// The tables whose rows can be put back, in the order in which they are locked.
    pub fn sources(&self) -> impl Iterator<Item = &'static str> {
        self.statements.sources.iter().map(|source| source.name)
    }

    /// One page of the letters that `filter` means, the latest death first. A letter in a list
    /// has the first 256 bytes of its payload.
    ///
    /// # Errors
    /// When the filter has a text that PostgreSQL refuses, or the database can't be asked.
    pub async fn list(
        &self,
        connection: &mut PgConnection,
        filter: &Filter,
        page: &Page,
    ) -> Result<Listed, Error> {
        filter.check()?;
        // One more than was asked for tells whether there is another page.
        let mut letters = self.statements.list(connection, filter, page).await?;
        let wanted = page.letters();
        let next = match letters.get(wanted.saturating_sub(1)) {
            Some(last) if letters.len() > wanted => Some(Cursor::at(last)),
            _ => None,
        };
        letters.truncate(wanted);
        Ok(Listed { letters, next })
    }

    /// One letter with its whole payload, and what has been done about its row so far.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn show(
        &self,
        connection: &mut PgConnection,
        id: LetterId,
    ) -> Result<Option<Story>, Error> {
        let Some(letter) = self.statements.show(connection, id).await? else {
            return Ok(None);
        };
        let trail = self
            .statements
            .trail(connection, &letter.source, letter.source_id)
            .await?;
        Ok(Some(Story { letter, trail }))
    }

    /// What `filter` means, before anybody acts on it.
    ///
    /// # Errors
    /// As for [`list`](Self::list).
    pub async fn preview(
        &self,
        connection: &mut PgConnection,
        filter: &Filter,
    ) -> Result<Preview, Error> {
        filter.check()?;
        let (as_of, count, groups) = self.statements.groups(connection, filter).await?;
        let stuck = self.statements.stuck(connection, filter).await?;
        let page = Page::first(SAMPLE);
        let sample = self.list(connection, filter, &page).await?.letters;
        Ok(Preview {
            as_of,
            count,
            stuck,
            groups,
            sample,
        })
    }

    /// How many letters are open, by source, and since when. Cheap enough for every few
    /// seconds: counting stops at 10,000.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn open(&self, connection: &mut PgConnection) -> Result<Vec<Open>, Error> {
        Ok(self.statements.open(connection).await?)
    }

    /// Every statement, for a test that prepares them all.
    #[doc(hidden)]
    pub fn statements(&self) -> impl Iterator<Item = &str> {
        self.statements.all()
    }
}
