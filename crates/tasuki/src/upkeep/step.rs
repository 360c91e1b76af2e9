//! The steps of upkeep. Each is one short transaction that looks, decides and acts; whatever it
//! leaves undone, the next one finds.

use std::ops::Range;
use std::sync::PoisonError;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::{Instant, sleep};

use super::rules::{By, Expiring, Partitioned};
use super::span::{Missing, Span, first_missing, span_of};
use super::store::{self, Layout, Partition, Statements, Sweep, Turn};
use super::{Error, Upkeep, meter};

/// Attaching scans the default partition under lock: up to this size that takes about as long
/// as a lock may be waited for.
const DEFAULT_LIMIT_BYTES: i64 = 64 * 1024 * 1024;
/// For the range that comes next it may take longer: from then on the default one fills no further,
/// and empties as its rows grow old.
const DEFAULT_LIMIT_BYTES_AHEAD: i64 = 1024 * 1024 * 1024;
/// So many rows move out of the default partition at once; more are left where they are.
const MOVE_LIMIT: u32 = 10_000;
/// So many rows go at once.
pub(super) const BATCH: u32 = 1000;
/// So many rows of a default partition are counted for its metric.
const COUNT_LIMIT: u32 = 1000;
/// How often whoever waits for its turn asks again.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step<T> {
    /// It did this.
    Did(T),
    /// There was nothing to do.
    Nothing,
    /// Somebody was in the way; at the next tick nobody may be.
    Postponed,
    /// Another process has the turn.
    Busy,
}

/// What became of the first range without a partition, and where it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filled {
    /// It has one.
    Made(OffsetDateTime),
    /// It is left to the default partition.
    Left(OffsetDateTime),
}

/// What became of the oldest partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is gone.
    Dropped,
    /// It has a row that may still be needed, and is left alone until that is not.
    Kept,
}

/// One partitioned table at work.
pub(super) struct Table<'a> {
    pub(super) upkeep: &'a Upkeep,
    pub(super) rule: &'a Partitioned,
    pub(super) statements: &'a Statements,
    /// How long its rows are kept.
    pub(super) keep: Duration,
    /// How long to wait while another process has the turn.
    pub(super) patience: Duration,
}

/// A table as one transaction finds it.
pub(super) struct Look {
    pub(super) turn: Turn,
    pub(super) layout: Layout,
}

impl Look {
    pub(super) fn spans(&self) -> Vec<Span> {
        self.layout.partitions.iter().map(|p| p.span).collect()
    }

    fn default_bytes(&self) -> i64 {
        self.layout.default.as_ref().map_or(0, |d| d.bytes)
    }

    pub(super) fn cutoff(&self, keep: Duration) -> OffsetDateTime {
        self.turn.now.saturating_sub(span_of(keep))
    }
}

impl Table<'_> {
    /// Makes the first partition that is missing at or after `cursor` (now, if `None`). Says
    /// where to go on from.
    pub(super) async fn create_next(
        &self,
        cursor: Option<OffsetDateTime>,
    ) -> Result<Step<Filled>, Error> {
        let Some(mut look) = self.look().await? else {
            return Ok(Step::Busy);
        };
        let now = look.turn.now;
        let mut horizon = span_of(self.rule.horizon());
        if look.default_bytes() > DEFAULT_LIMIT_BYTES {
            // Each attachment is a scan that writers wait for. After the next range nobody writes
            // to the default partition any more, and nobody waits.
            horizon = horizon.min(span_of(self.rule.width.longest()));
        }
        let until = now.saturating_add(horizon);
        let start = cursor.unwrap_or(now);
        let range = first_missing(&look.spans(), start, until, self.rule.width);
        let made = match range {
            None => Ok(Step::Nothing),
            Some(range) => self.make(&mut look, range).await,
        };
        self.finish(look.turn, made).await
    }

    /// Drops the oldest partition of which every row may go.
    pub(super) async fn drop_next(&self) -> Result<Step<Fate>, Error> {
        let Some(mut look) = self.look().await? else {
            return Ok(Step::Busy);
        };
        let cutoff = look.cutoff(self.keep);
        let is_due = |partition: &&Partition| {
            let is_past = partition.span.to.is_some_and(|to| to <= cutoff);
            is_past && !self.upkeep.is_resting(&partition.name, cutoff)
        };
        let due = look.layout.partitions.iter().filter(is_due);
        // One that takes too long comes last, behind those that did so before it: it must not keep the others.
        let next = due.min_by_key(|it| (self.upkeep.slow_since(&it.name), it.span.to));
        let dropped = match next {
            None => Ok(Step::Nothing),
            Some(next) => {
                let dropped = self.drop_old(&mut look.turn, next, cutoff).await;
                self.note_pace(&next.name, &dropped);
                dropped
            }
        };
        self.finish(look.turn, dropped).await
    }

    /// Deletes a batch of old rows of the default partition.
    pub(super) async fn sweep_default(&self) -> Result<Step<u64>, Error> {
        let Some(mut look) = self.look().await? else {
            return Ok(Step::Busy);
        };
        let cutoff = look.cutoff(self.keep);
        let deleted = match &look.layout.default {
            None => Ok(0),
            Some(default) => self.sweep_of(&mut look.turn, &default.name, cutoff).await,
        };
        let deleted = deleted.map(|rows| counted(&self.rule.table, rows));
        self.finish(look.turn, deleted).await
    }

    /// The partitions with both rows that may go and rows that may not, by their range.
    pub(super) async fn edges(&self) -> Result<Step<Vec<Partition>>, Error> {
        let Some(mut look) = self.look().await? else {
            return Ok(Step::Busy);
        };
        let cutoff = look.cutoff(self.keep);
        let partitions = std::mem::take(&mut look.layout.partitions).into_iter();
        let edges = partitions.filter(|partition| partition.span.reaches_over(cutoff));
        let edges = Ok(Step::Did(edges.collect()));
        self.finish(look.turn, edges).await
    }

    /// Deletes the old rows on some pages of a partition; `Nothing` when it ends before them.
    pub(super) async fn delete_on_pages(
        &self,
        partition: &Partition,
        pages: Range<i64>,
    ) -> Result<Step<u64>, Error> {
        let Some(mut turn) = self.upkeep.turn(&self.rule.table, self.patience).await? else {
            return Ok(Step::Busy);
        };
        let cutoff = turn.now.saturating_sub(span_of(self.keep));
        let (name, at) = (&partition.name, self.rule.at());
        let deleted = match self.note_end(&mut turn, name, Some(cutoff)).await {
            Ok(()) => store::delete_on_pages(&mut turn.tx, name, at, cutoff, pages).await,
            Err(error) => Err(error),
        };
        let deleted = deleted.map(|rows| {
            rows.map_or(Step::Nothing, |rows| {
                meter::deleted(&self.rule.table, rows);
                Step::Did(rows)
            })
        });
        self.finish(turn, deleted).await
    }

    /// Reports how the table is.
    pub(super) async fn report(&self) -> Result<Step<()>, Error> {
        let Some(mut look) = self.look().await? else {
            return Ok(Step::Busy);
        };
        let rows = match &look.layout.default {
            None => Ok(0),
            Some(default) => store::count_rows(&mut look.turn.tx, &default.name, COUNT_LIMIT).await,
        };
        let overdue = self.overdue(&look);
        let reported = rows.map(|rows| {
            meter::state(self.rule, &look, rows, overdue);
            Step::Did(())
        });
        self.finish(look.turn, reported).await
    }

    /// For how long the oldest partition that nothing is known to need has been due; zero if there is
    /// none, or nothing is removed at all.
    fn overdue(&self, look: &Look) -> time::Duration {
        let cutoff = look.cutoff(self.keep);
        let wanted = |it: &&Partition| !self.upkeep.is_resting(&it.name, cutoff);
        let due = look.layout.partitions.iter().filter(wanted);
        let oldest = due.filter_map(|partition| partition.span.to).min();
        match (oldest, self.upkeep.clean_every) {
            (Some(oldest), Some(_)) => (cutoff - oldest).max(time::Duration::ZERO),
            _ => time::Duration::ZERO,
        }
    }

    /// The table, in a transaction; `None` when another process has the turn.
    async fn look(&self) -> Result<Option<Look>, Error> {
        let Some(mut turn) = self.upkeep.turn(&self.rule.table, self.patience).await? else {
            return Ok(None);
        };
        let failure = match self.statements.layout(&mut turn.tx, &self.rule.by).await {
            Ok(Some(layout)) => return Ok(Some(Look { turn, layout })),
            Ok(None) => {
                let table = format!("{}.{}", self.upkeep.schema, self.rule.table);
                Error::NotPartitioned(table)
            }
            Err(source) => failed(&self.rule.table, source),
        };
        turn.give_up().await;
        Err(failure)
    }

    /// Makes and attaches the partition of `range`, or leaves the range to the default one.
    async fn make(&self, look: &mut Look, range: Missing) -> sqlx::Result<Step<Filled>> {
        let default_bytes = look.default_bytes();
        let (rule, tx) = (self.rule, &mut *look.turn.tx);
        let is_live = range.from <= look.turn.now.saturating_add(live_for(&rule.by));
        if default_bytes > DEFAULT_LIMIT_BYTES_AHEAD {
            tracing::warn!(
                table = %rule.table,
                default.bytes = default_bytes,
                "partition not made, the default one is too large to look through",
            );
            return Ok(Step::Postponed);
        }
        if range.from <= look.turn.now && default_bytes > DEFAULT_LIMIT_BYTES {
            return Ok(Step::Did(Filled::Left(range.to)));
        }
        if is_live {
            // Rows of this range may be on their way into the default partition at this moment.
            // A writer that waits for the default's lock while we attach would find, once it has
            // it, that its row does not belong there any more, and fail. Held here, before it
            // looks for a partition, it finds the new one. A reader, too: one that has read which
            // partitions there are and waits for the default's lock would look for rows that have
            // moved where they were, and not where they are.
            self.statements.lock_out(tx).await?;
        }
        let mut strays = 0;
        if let Some(default) = &look.layout.default {
            strays = store::count_within(tx, rule, default, range, MOVE_LIMIT + 1).await?;
        }
        if strays > i64::from(MOVE_LIMIT) {
            return Ok(Step::Did(Filled::Left(range.to)));
        }
        if strays > 0 && !is_live {
            self.statements.lock_out(tx).await?;
        }
        let name = self.statements.create(tx, range).await?;
        if let Some(default) = &look.layout.default
            && strays > 0
        {
            self.statements
                .move_rows(tx, rule, range, default, &name)
                .await?;
        }
        self.statements.attach(tx, rule, range, &name).await?;
        meter::created(&rule.table);
        tracing::info!(table = %rule.table, partition = %name, rows.moved = strays, "partition made");
        Ok(Step::Did(Filled::Made(range.to)))
    }

    /// Says of a partition that it can't be dropped in the time that a statement has: by itself that
    /// will not change.
    fn note_pace(&self, partition: &str, dropped: &sqlx::Result<Step<Fate>>) {
        let is_slow = dropped.as_ref().is_err_and(store::is_too_slow);
        self.upkeep.pace(partition, is_slow);
        if is_slow {
            meter::too_slow(&self.rule.table);
            tracing::warn!(
                table = %self.rule.table,
                partition,
                limit = ?self.upkeep.statement_limit,
                "partition not dropped, to look for what may still be needed in it took too long",
            );
        }
    }

    /// Drops `partition`, unless a row in it is not older than `cutoff`.
    async fn drop_old(
        &self,
        turn: &mut Turn,
        partition: &Partition,
        cutoff: OffsetDateTime,
    ) -> sqlx::Result<Step<Fate>> {
        match &self.rule.by {
            // The range says it all.
            By::Time(_) => {}
            By::UuidV7 { at, .. } => {
                if let Some(youngest) = store::seal(&mut turn.tx, partition, at, cutoff).await? {
                    self.upkeep.rest(partition.name.clone(), youngest);
                    return Ok(Step::Did(Fate::Kept));
                }
            }
        }
        if self.rule.log.is_some() {
            // Before its head row, as whoever appends to the log does: nobody waits for the other.
            self.statements.lock_out(&mut turn.tx).await?;
            self.note_end(turn, &partition.name, None).await?;
        }
        store::drop_partition(&mut turn.tx, partition).await?;
        meter::dropped(&self.rule.table);
        tracing::info!(table = %self.rule.table, partition = %partition.name, "partition dropped");
        Ok(Step::Did(Fate::Dropped))
    }

    async fn sweep_of(
        &self,
        turn: &mut Turn,
        default: &str,
        cutoff: OffsetDateTime,
    ) -> sqlx::Result<u64> {
        self.note_end(turn, default, Some(cutoff)).await?;
        let sweep = Sweep::of(default, self.rule.at(), None);
        sweep.run(&mut turn.tx, cutoff, BATCH).await
    }

    /// Writes down which rows of a sequenced log are about to go: all of `name`, or those that are
    /// older than `before`.
    async fn note_end(
        &self,
        turn: &mut Turn,
        name: &str,
        before: Option<OffsetDateTime>,
    ) -> sqlx::Result<()> {
        let Some(log) = &self.rule.log else {
            return Ok(());
        };
        let (schema, at) = (&self.upkeep.schema, self.rule.at());
        store::note_end(&mut turn.tx, schema, log, (name, at), before).await
    }

    async fn finish<T>(&self, turn: Turn, result: sqlx::Result<Step<T>>) -> Result<Step<T>, Error> {
        finish(&self.rule.table, turn, result).await
    }
}

impl Upkeep {
    /// Deletes a batch of expired rows.
    pub(super) async fn sweep_expired(
        &self,
        rule: &Expiring,
        sweep: &Sweep,
    ) -> Result<Step<u64>, Error> {
        let Some(mut turn) = self.turn(&rule.table, Duration::ZERO).await? else {
            return Ok(Step::Busy);
        };
        let cutoff = turn.now.saturating_sub(span_of(rule.keep));
        let deleted = sweep.run(&mut turn.tx, cutoff, BATCH).await;
        let deleted = deleted.map(|rows| counted(&rule.table, rows));
        finish(&rule.table, turn, deleted).await
    }

    /// A transaction of our own turn; `None` when others have it for longer than `patience`.
    async fn turn(&self, table: &str, patience: Duration) -> Result<Option<Turn>, Error> {
        let deadline = Instant::now() + patience;
        loop {
            let turn = store::turn(&self.pool, &self.schema, self.statement_limit).await;
            let turn = turn.map_err(|source| failed(table, source))?;
            if turn.is_some() || Instant::now() >= deadline {
                return Ok(turn);
            }
            sleep(ASK_AGAIN).await;
        }
    }

    fn is_resting(&self, partition: &str, cutoff: OffsetDateTime) -> bool {
        let resting = self.resting.lock().unwrap_or_else(PoisonError::into_inner);
        let youngest = resting.get(partition);
        youngest.is_some_and(|youngest| *youngest >= cutoff)
    }

    /// Does not look into `partition` again before its youngest row may go: one row that came
    /// late would make every tick read all of them.
    fn rest(&self, partition: String, youngest: OffsetDateTime) {
        let mut resting = self.resting.lock().unwrap_or_else(PoisonError::into_inner);
        resting.insert(partition, youngest);
    }
}

impl Upkeep {
    fn slow_since(&self, partition: &str) -> Option<Instant> {
        let slow = self.slow.lock().unwrap_or_else(PoisonError::into_inner);
        slow.get(partition).copied()
    }

    fn pace(&self, partition: &str, is_slow: bool) {
        let mut slow = self.slow.lock().unwrap_or_else(PoisonError::into_inner);
        if is_slow {
            slow.insert(partition.to_owned(), Instant::now());
        } else {
            slow.remove(partition);
        }
    }
}

/// Ends the transaction, and with it the turn.
async fn finish<T>(
    table: &str,
    turn: Turn,
    result: sqlx::Result<Step<T>>,
) -> Result<Step<T>, Error> {
    let ended = match result {
        Ok(step) => turn.tx.commit().await.map(|()| step),
        Err(error) => {
            turn.give_up().await;
            Err(error)
        }
    };
    match ended {
        Err(error) if store::is_contention(&error) => {
            meter::postponed(table);
            tracing::debug!(
                table,
                error = &error as &(dyn std::error::Error + 'static),
                "step postponed, somebody holds what it needs",
            );
            Ok(Step::Postponed)
        }
        ended => ended.map_err(|source| failed(table, source)),
    }
}

fn failed(table: &str, source: sqlx::Error) -> Error {
    Error::Store {
        table: table.to_owned(),
        source,
    }
}

fn counted(table: &str, rows: u64) -> Step<u64> {
    if rows == 0 {
        return Step::Nothing;
    }
    meter::deleted(table, rows);
    Step::Did(rows)
}

/// How far ahead of the database's clock rows are written: times are its own, ids are made
/// by clocks that may be hours fast.
fn live_for(by: &By) -> time::Duration {
    match by {
        By::Time(_) => time::Duration::minutes(1),
        By::UuidV7 { .. } => time::Duration::hours(12),
    }
}
