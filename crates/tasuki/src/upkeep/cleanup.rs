//! Retention on demand: what an operator asks for instead of waiting for the worker.

use std::time::Duration;

use super::step::{Fate, Step, Table};
use super::store::Partition;
use super::{Error, Upkeep};

/// How long to wait for a process that is at work on the same tables.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pages read per statement: about a thousand rows.
const PAGES: i64 = 16;

/// What a cleanup removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cleaned {
    /// Partitions dropped whole.
    pub partitions: u64,
    /// Rows deleted one by one: those at the edge, and those in the DEFAULT partition.
    pub rows: u64,
    /// Whether something was left because somebody held it. Ask again later.
    pub postponed: bool,
}

impl Upkeep {
    /// Removes now what is older than `older_than`, or than the table's own retention where that
    /// is shorter: drops whole partitions and deletes the edge row by row, in short transactions.
    ///
    /// For the outbox the table is `outbox_published`. Events that wait, are claimed or are dead
    /// are in another table, and nothing here touches that.
    ///
    /// # Errors
    /// When no such table was described, another process stays at work, or the database refuses.
    pub async fn cleanup(&self, table: &str, older_than: Duration) -> Result<Cleaned, Error> {
        let known = self
            .partitioned
            .iter()
            .find(|(rule, _)| rule.table == table);
        let Some((rule, statements)) = known else {
            return Err(Error::Unknown(table.to_owned()));
        };
        let table = Table {
            upkeep: self,
            rule,
            statements,
            keep: rule.keep.min(older_than),
            patience: PATIENCE,
        };
        let mut cleaned = Cleaned::default();
        table.drop_all(&mut cleaned).await?;
        table.empty_default(&mut cleaned).await?;
        table.trim_edges(&mut cleaned).await?;
        Ok(cleaned)
    }
}

impl Table<'_> {
    async fn drop_all(&self, cleaned: &mut Cleaned) -> Result<(), Error> {
        // Every step drops a partition or puts it to rest, so this ends.
        while let Some(fate) = done(self.drop_next().await?, cleaned)? {
            match fate {
                Fate::Dropped => cleaned.partitions += 1,
                Fate::Kept => {}
            }
        }
        Ok(())
    }

    async fn empty_default(&self, cleaned: &mut Cleaned) -> Result<(), Error> {
        while let Some(rows) = done(self.sweep_default().await?, cleaned)? {
            cleaned.rows += rows;
        }
        Ok(())
    }

    async fn trim_edges(&self, cleaned: &mut Cleaned) -> Result<(), Error> {
        let edges = done(self.edges().await?, cleaned)?;
        for edge in edges.unwrap_or_default() {
            self.trim(&edge, cleaned).await?;
        }
        Ok(())
    }

    async fn trim(&self, edge: &Partition, cleaned: &mut Cleaned) -> Result<(), Error> {
        let mut page = 0;
        while let Some(rows) = done(
            self.delete_on_pages(edge, page..page + PAGES).await?,
            cleaned,
        )? {
            cleaned.rows += rows;
            page += PAGES;
        }
        Ok(())
    }
}

/// What a step did, if there is reason to go on.
fn done<T>(step: Step<T>, cleaned: &mut Cleaned) -> Result<Option<T>, Error> {
    match step {
        Step::Did(did) => Ok(Some(did)),
        Step::Nothing => Ok(None),
        Step::Postponed => {
            cleaned.postponed = true;
            Ok(None)
        }
        Step::Busy => Err(Error::Busy(PATIENCE)),
    }
}
