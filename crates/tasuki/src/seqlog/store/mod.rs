//! A log in SQL: numbering it, reading it, and where its consumers are.

mod offset_sql;
pub(super) mod offsets;
pub(super) mod people;
mod people_sql;
mod sql;

use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, FromRow, PgConnection, Row};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{Entry, Table};
use crate::Schema;
use offsets::Offsets;

/// The statements of one log.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) offsets: Offsets,
    pub(super) channel: String,
    pub(super) appended: String,
    take: String,
    leave: String,
    look_all: String,
    look_since: String,
    number: String,
    read: String,
    head: String,
    append: Option<String>,
    waiting: String,
    behind: String,
}

/// Up to where a look has seen everything: the transactions that had not ended by then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    xmax: i64,
    open: Vec<i64>,
}

impl Seen {
    /// Whether it is of another server, or of another life of this one: what is promoted after a
    /// failure may count its transactions from further back.
    pub(super) const fn is_ahead_of(&self, later: &Self) -> bool {
        self.xmax > later.xmax
    }
}

/// What a look has found.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) seen: Seen,
    txs: Vec<i64>,
    ids: Vec<i64>,
}

/// Some rows without a number: their transactions and the numbers of their appending.
#[derive(Clone, Copy, Debug)]
pub(super) struct Picked<'a> {
    txs: &'a [i64],
    ids: &'a [i64],
}

impl Picked<'_> {
    pub(super) const fn rows(&self) -> usize {
        self.ids.len()
    }
}

impl Look {
    pub(super) const fn rows(&self) -> usize {
        self.ids.len()
    }

    /// What was found, so many rows at a time.
    pub(super) fn batches(&self, rows: usize) -> impl Iterator<Item = Picked<'_>> {
        let batches = self.txs.chunks(rows).zip(self.ids.chunks(rows));
        batches.map(|(txs, ids)| Picked { txs, ids })
    }
}

/// What a batch has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moved {
    /// The highest number of the log.
    pub(super) last_seq: i64,
    pub(super) rows: usize,
}

/// A log as a whole.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub(super) struct HeadRow {
    pub(super) last_seq: i64,
    pub(super) floor_seq: i64,
    pub(super) numbered_at: Option<OffsetDateTime>,
    pub(super) owner: Option<String>,
    pub(super) is_led: bool,
}

/// How far a consumer is behind.
#[derive(Clone, Debug, PartialEq, FromRow)]
pub(super) struct Behind {
    pub(super) consumer: String,
    pub(super) state: String,
    pub(super) backlog: i64,
    pub(super) oldest_seconds: f64,
}

impl Store {
    pub(super) fn new(schema: &Schema, table: &Table, is_own: bool) -> Self {
        let render = |sql: &str| {
            let sql = sql
                .replace("{pending_columns}", &table.columns_of("p."))
                .replace("{log_columns}", &table.columns_of("l."))
                .replace("{columns}", &table.columns_of(""))
                .replace("{pending}", table.pending)
                .replace("{log}", table.name)
                .replace("{at}", table.at);
            schema.render(&sql)
        };
        let channel = schema.render(table.channel);
        Self {
            offsets: Offsets::new(render),
            appended: format!("{channel}_appended"),
            channel,
            take: render(sql::TAKE),
            leave: render(sql::LEAVE),
            look_all: render(sql::LOOK_ALL),
            look_since: render(sql::LOOK_SINCE),
            number: render(sql::NUMBER),
            read: render(sql::READ),
            head: render(sql::HEAD),
            append: is_own.then(|| render(sql::APPEND)),
            waiting: render(sql::WAITING),
            behind: render(sql::BEHIND),
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &str> {
        let own = [
            &self.take,
            &self.leave,
            &self.look_all,
            &self.look_since,
            &self.number,
            &self.read,
            &self.head,
            &self.waiting,
            &self.behind,
        ];
        let own = own.into_iter().chain(&self.append).map(String::as_str);
        own.chain(self.offsets.all())
    }

    /// The epoch of this sequencer, unless another one is at work.
    pub(super) async fn take(
        &self,
        connection: &mut PgConnection,
        (owner, holder): (&str, Uuid),
        lease: Duration,
    ) -> sqlx::Result<Option<i64>> {
        sqlx::query_scalar(AssertSqlSafe(&*self.take))
            .bind(owner)
            .bind(holder)
            .bind(lease.as_secs_f64())
            .fetch_optional(connection)
            .await
    }

    pub(super) async fn leave(
        &self,
        connection: &mut PgConnection,
        epoch: i64,
    ) -> sqlx::Result<()> {
        sqlx::query(AssertSqlSafe(&*self.leave))
            .bind(epoch)
            .execute(connection)
            .await?;
        Ok(())
    }

    /// Up to `limit` rows without a number that were not there `since`. Planned for the values at
    /// hand: how much of the table they mean differs from look to look.
    pub(super) async fn look(
        &self,
        connection: &mut PgConnection,
        since: Option<&Seen>,
        limit: usize,
    ) -> sqlx::Result<Look> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let query = match since {
            None => sqlx::query(AssertSqlSafe(&*self.look_all)).bind(limit),
            Some(seen) => sqlx::query(AssertSqlSafe(&*self.look_since))
                .bind(limit)
                .bind(seen.xmax)
                .bind(&seen.open),
        };
        let row = query.persistent(false).fetch_one(connection).await?;
        Ok(Look {
            seen: Seen {
                xmax: row.try_get("xmax")?,
                open: row.try_get("open")?,
            },
            txs: row.try_get("txs")?,
            ids: row.try_get("ids")?,
        })
    }

    /// Numbers rows; `None` when this epoch is over.
    pub(super) async fn number(
        &self,
        connection: &mut PgConnection,
        epoch: i64,
        picked: Picked<'_>,
        lease: Duration,
    ) -> sqlx::Result<Option<Moved>> {
        let row = sqlx::query(AssertSqlSafe(&*self.number))
            .persistent(false)
            .bind(epoch)
            .bind(picked.txs)
            .bind(picked.ids)
            .bind(lease.as_secs_f64())
            .fetch_optional(connection)
            .await?;
        row.map(|row| {
            let rows: i64 = row.try_get("moved")?;
            Ok(Moved {
                last_seq: row.try_get("last_seq")?,
                rows: usize::try_from(rows).unwrap_or(0),
            })
        })
        .transpose()
    }

    /// The rows after `after`, with their numbers.
    pub(super) async fn read(
        &self,
        connection: &mut PgConnection,
        after: i64,
        limit: u32,
    ) -> sqlx::Result<Vec<PgRow>> {
        sqlx::query(AssertSqlSafe(&*self.read))
            .bind(after)
            .bind(i64::from(limit))
            .fetch_all(connection)
            .await
    }

    pub(super) async fn head(
        &self,
        connection: &mut PgConnection,
    ) -> sqlx::Result<Option<HeadRow>> {
        sqlx::query_as(AssertSqlSafe(&*self.head))
            .fetch_optional(connection)
            .await
    }

    pub(super) async fn append(
        &self,
        connection: &mut PgConnection,
        entries: &[Entry],
    ) -> sqlx::Result<()> {
        let Some(append) = &self.append else {
            return Ok(());
        };
        let each = || entries.iter();
        sqlx::query(AssertSqlSafe(&**append))
            .bind(each().map(|entry| &*entry.kind).collect::<Vec<_>>())
            .bind(each().map(|entry| entry.key.as_deref()).collect::<Vec<_>>())
            .bind(each().map(|entry| &*entry.payload).collect::<Vec<_>>())
            .bind(
                each()
                    .map(|entry| entry.traceparent.as_deref())
                    .collect::<Vec<_>>(),
            )
            .execute(connection)
            .await?;
        Ok(())
    }

    /// Rows without a number, and the age of the first in seconds.
    pub(super) async fn waiting(&self, connection: &mut PgConnection) -> sqlx::Result<(i64, f64)> {
        sqlx::query_as(AssertSqlSafe(&*self.waiting))
            .fetch_one(connection)
            .await
    }

    pub(super) async fn behind(&self, connection: &mut PgConnection) -> sqlx::Result<Vec<Behind>> {
        sqlx::query_as(AssertSqlSafe(&*self.behind))
            .fetch_all(connection)
            .await
    }
}
