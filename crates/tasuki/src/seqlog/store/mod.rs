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
    look: String,
    sweep: String,
    number: String,
    read: String,
    head: String,
    append: Option<String>,
    waiting: String,
    behind: String,
}

/// Up to where a look has seen everything: the transactions that had not ended by then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    pub(super) backlog: i64,
    pub(super) oldest_seconds: f64,
    pub(super) is_too_far: bool,
}

impl Store {
    pub(super) fn new(schema: &Schema, table: &Table, is_own: bool) -> Self {
        let render = |sql: &str| {
            let sql = sql
                .replace("{pending_written}", &table.written_of("p."))
                .replace("{written}", &table.written_of(""))
                .replace("{log_columns}", &table.columns_of("l."))
                .replace("{closed}", offset_sql::CLOSED)
                .replace("{pending}", table.pending)
                .replace("{log}", table.name)
                .replace("{at}", table.at);
            schema.render(&sql)
        };
        let since = |sql: &str, xmax: &str, open: &str| {
            let ranges = sql::RANGES.replace("{since_xmax}", xmax);
            let ranges = ranges.replace("{since_open}", open);
            render(&sql.replace("{ranges}", &ranges))
        };
        let waiting = since(
            sql::WAITING,
            "(SELECT since.xmax FROM since)",
            "(SELECT since.open FROM since)",
        );
        let look = since(sql::LOOK, "$2::bigint", "$3::bigint []");
        let channel = schema.render(table.channel);
        Self {
            offsets: Offsets::new(render),
            appended: format!("{channel}_appended"),
            channel,
            take: render(sql::TAKE),
            leave: render(sql::LEAVE),
            look,
            sweep: render(sql::SWEEP),
            number: render(sql::NUMBER),
            read: render(sql::READ),
            head: render(sql::HEAD),
            append: is_own.then(|| render(sql::APPEND)),
            waiting,
            behind: render(sql::BEHIND),
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &str> {
        let own = [
            &self.take,
            &self.leave,
            &self.look,
            &self.sweep,
            &self.number,
            &self.read,
            &self.head,
            &self.waiting,
            &self.behind,
        ];
        let own = own.into_iter().chain(&self.append).map(String::as_str);
        own.chain(self.offsets.all())
    }

    /// Whether it is the library's own log.
    pub(super) const fn is_own(&self) -> bool {
        self.append.is_some()
    }

    /// The epoch of this sequencer, and up to where everything is numbered as far as anybody has written
    /// it down, unless another one is at work. What this one has seen is written down.
    pub(super) async fn take(
        &self,
        connection: &mut PgConnection,
        (owner, holder): (&str, Uuid),
        lease: Duration,
        seen: Option<&Seen>,
    ) -> sqlx::Result<Option<(i64, Option<Seen>)>> {
        let row = sqlx::query(AssertSqlSafe(&*self.take))
            .bind(owner)
            .bind(holder)
            .bind(lease.as_secs_f64())
            .bind(seen.map(|seen| seen.xmax))
            .bind(seen.map(|seen| &*seen.open))
            .fetch_optional(connection)
            .await?;
        row.map(|row| {
            let xmax: Option<i64> = row.try_get("seen_xmax")?;
            let open: Option<Vec<i64>> = row.try_get("seen_open")?;
            let seen = xmax.zip(open).map(|(xmax, open)| Seen { xmax, open });
            Ok((row.try_get("epoch")?, seen))
        })
        .transpose()
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

    /// Up to `limit` rows without a number that were not there `since`. Planned for the table as it is:
    /// how large it is differs from look to look.
    pub(super) async fn look(
        &self,
        connection: &mut PgConnection,
        since: Option<&Seen>,
        limit: usize,
    ) -> sqlx::Result<Look> {
        let nothing = Seen::default();
        find(connection, &self.look, since.unwrap_or(&nothing), limit).await
    }

    /// Up to `limit` rows without a number that should have had one: everything up to `seen` has been
    /// numbered.
    pub(super) async fn sweep(
        &self,
        connection: &mut PgConnection,
        seen: &Seen,
        limit: usize,
    ) -> sqlx::Result<Look> {
        find(connection, &self.sweep, seen, limit).await
    }

    /// Numbers rows; `None` when this epoch is over.
    pub(super) async fn number(
        &self,
        connection: &mut PgConnection,
        epoch: i64,
        picked: Picked<'_>,
        (lease, seen): (Duration, Option<&Seen>),
    ) -> sqlx::Result<Option<Moved>> {
        let row = sqlx::query(AssertSqlSafe(&*self.number))
            .persistent(false)
            .bind(epoch)
            .bind(picked.txs)
            .bind(picked.ids)
            .bind(lease.as_secs_f64())
            .bind(seen.map(|seen| seen.xmax))
            .bind(seen.map(|seen| &*seen.open))
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

async fn find(
    connection: &mut PgConnection,
    sql: &str,
    since: &Seen,
    limit: usize,
) -> sqlx::Result<Look> {
    let row = sqlx::query(AssertSqlSafe(sql))
        .persistent(false)
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .bind(since.xmax)
        .bind(&since.open)
        .fetch_one(connection)
        .await?;
    Ok(Look {
        seen: Seen {
            xmax: row.try_get("xmax")?,
            open: row.try_get("open")?,
        },
        txs: row.try_get("txs")?,
        ids: row.try_get("ids")?,
    })
}
