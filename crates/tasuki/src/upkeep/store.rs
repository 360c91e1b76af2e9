//! The SQL of upkeep.
//!
//! Names of partitions are only known at run time: they come from PostgreSQL's catalogue, quoted
//! by it, or are made of a checked table name and digits.

use std::ops::Range;
use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection, PgPool, Postgres, Row, Transaction};
use time::OffsetDateTime;
use uuid::Uuid;

use super::rules::{By, Partitioned};
use super::span::{Missing, Span, suffix, time_of, uuid_from};
use crate::{Schema, transaction};

/// How long a lock is waited for. Whoever comes after us waits behind us, so not longer than a
/// person would notice.
const LOCK_LIMIT: &str = "200ms";

/// A short transaction of the one process that works on a schema.
pub(super) struct Turn {
    pub(super) tx: Transaction<'static, Postgres>,
    /// The database's time.
    pub(super) now: OffsetDateTime,
}

impl Turn {
    /// Rolls back, at once and not when the connection is used next: until then this process
    /// would be in its own way.
    pub(super) async fn give_up(self) {
        if let Err(error) = self.tx.rollback().await {
            // The connection is gone, and the transaction with it; why is told by what failed.
            tracing::debug!(
                error = &error as &(dyn std::error::Error + 'static),
                "rollback failed",
            );
        }
    }
}

/// Begins a transaction; `None` when another process has the turn.
pub(super) async fn turn(
    pool: &PgPool,
    schema: &Schema,
    statement_limit: Duration,
) -> sqlx::Result<Option<Turn>> {
    let mut tx = transaction::begin(pool).await?;
    let row = sqlx::query(
        "SELECT
             set_config('lock_timeout', $2, TRUE),
             set_config('statement_timeout', $3, TRUE),
             pg_try_advisory_xact_lock(hashtextextended('tasuki upkeep ' || $1, 0)) AS mine,
             now() AS now",
    )
    .bind(schema.as_str())
    .bind(LOCK_LIMIT)
    .bind(format!("{}ms", statement_limit.as_millis()))
    .fetch_one(&mut *tx)
    .await?;
    let (mine, now): (bool, _) = (row.try_get("mine")?, row.try_get("now")?);
    Ok(mine.then_some(Turn { tx, now }))
}

/// Whether somebody was in the way: a lock that was not had in time, a deadlock, a statement that
/// took too long, or a row that came into the DEFAULT partition while its range was attached.
pub(super) fn is_contention(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    matches!(code.as_deref(), Some("55P03" | "40P01" | "57014" | "23514"))
}

/// Whether a statement was cut because it took too long.
pub(super) fn is_too_slow(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.as_deref() == Some("57014")
}

/// The statements for one partitioned table.
#[derive(Debug)]
pub(super) struct Statements {
    /// The table, schema-qualified.
    parent: String,
    head: String,
    partitions: String,
    lock_out: String,
}

/// A partitioned table as it is.
pub(super) struct Layout {
    pub(super) default: Option<DefaultPartition>,
    /// All but the default one, in no order.
    pub(super) partitions: Vec<Partition>,
}

pub(super) struct DefaultPartition {
    pub(super) name: String,
    pub(super) bytes: i64,
}

pub(super) struct Partition {
    /// Schema-qualified and quoted.
    pub(super) name: String,
    pub(super) span: Span,
}

impl Statements {
    pub(super) fn of(schema: &Schema, rule: &Partitioned) -> Self {
        let table = &rule.table;
        let render = |sql: &str| schema.render(&sql.replace("{table}", table));
        let partitions = match rule.by {
            By::Time(_) => PARTITIONS_BY_TIME,
            By::UuidV7 { .. } => PARTITIONS_BY_UUID,
        };
        Self {
            parent: render("{schema}.{table}"),
            head: render(HEAD),
            partitions: render(&partitions.replace("{bounds}", BOUNDS)),
            lock_out: render(LOCK_OUT),
        }
    }

    /// The table as it is; `None` when it is not a partitioned table.
    pub(super) async fn layout(
        &self,
        connection: &mut PgConnection,
        by: &By,
    ) -> sqlx::Result<Option<Layout>> {
        let head: Option<(Option<String>, Option<i64>)> =
            sqlx::query_as(AssertSqlSafe(&*self.head))
                .fetch_optional(&mut *connection)
                .await?;
        let Some((name, bytes)) = head else {
            return Ok(None);
        };
        let default = name
            .zip(bytes)
            .map(|(name, bytes)| DefaultPartition { name, bytes });
        let select = AssertSqlSafe(&*self.partitions);
        let partitions = match by {
            By::Time(_) => {
                let rows: Vec<(String, Option<OffsetDateTime>, Option<OffsetDateTime>)> =
                    sqlx::query_as(select).fetch_all(connection).await?;
                let span = |(name, from, to)| Partition {
                    name,
                    span: Span { from, to },
                };
                rows.into_iter().map(span).collect()
            }
            By::UuidV7 { .. } => {
                let rows: Vec<(String, Option<Uuid>, Option<Uuid>)> =
                    sqlx::query_as(select).fetch_all(connection).await?;
                let span = |(name, from, to): (_, Option<_>, Option<_>)| Partition {
                    name,
                    span: Span {
                        from: from.map(time_of),
                        to: to.map(time_of),
                    },
                };
                rows.into_iter().map(span).collect()
            }
        };
        Ok(Some(Layout {
            default,
            partitions,
        }))
    }

    /// Holds writers and readers of the table until the end of the transaction.
    pub(super) async fn lock_out(&self, connection: &mut PgConnection) -> sqlx::Result<()> {
        run(connection, &self.lock_out).await.map(drop)
    }

    /// Makes the partition for `range`, still apart from the table. Returns its name.
    pub(super) async fn create(
        &self,
        connection: &mut PgConnection,
        range: Missing,
    ) -> sqlx::Result<String> {
        let (parent, suffix) = (&self.parent, suffix(range.from));
        let name = format!("{parent}{suffix}");
        // A partition has no identity of its own; PostgreSQL 17 refuses one that does.
        let sql = format!("CREATE TABLE {name} (LIKE {parent} INCLUDING ALL EXCLUDING IDENTITY)");
        run(connection, &sql).await?;
        Ok(name)
    }

    /// Moves the rows of `range` out of the default partition into `name`.
    pub(super) async fn move_rows(
        &self,
        connection: &mut PgConnection,
        rule: &Partitioned,
        range: Missing,
        default: &DefaultPartition,
        name: &str,
    ) -> sqlx::Result<u64> {
        let columns: String = sqlx::query_scalar(COLUMNS)
            .bind(&self.parent)
            .fetch_one(&mut *connection)
            .await?;
        let within = within(rule, range);
        let default = &default.name;
        let sql = format!(
            "WITH moved AS (DELETE FROM {default} WHERE {within} RETURNING {columns})
             INSERT INTO {name} ({columns}) SELECT {columns} FROM moved"
        );
        run(connection, &sql).await
    }

    /// Makes `name` a partition of the table.
    pub(super) async fn attach(
        &self,
        connection: &mut PgConnection,
        rule: &Partitioned,
        range: Missing,
        name: &str,
    ) -> sqlx::Result<()> {
        let parent = &self.parent;
        let (from, to) = (bound(rule, range.from), bound(rule, range.to));
        let sql = format!(
            "ALTER TABLE {parent} ATTACH PARTITION {name} FOR VALUES FROM ({from}) TO ({to})"
        );
        run(connection, &sql).await.map(drop)
    }
}

/// How many rows the default partition has in `range`, counted up to `limit`.
pub(super) async fn count_within(
    connection: &mut PgConnection,
    rule: &Partitioned,
    default: &DefaultPartition,
    range: Missing,
    limit: u32,
) -> sqlx::Result<i64> {
    let (name, within) = (&default.name, within(rule, range));
    count(connection, &format!("{name} WHERE {within}"), limit).await
}

/// How many rows a table has, counted up to `limit`.
pub(super) async fn count_rows(
    connection: &mut PgConnection,
    name: &str,
    limit: u32,
) -> sqlx::Result<i64> {
    count(connection, name, limit).await
}

async fn count(connection: &mut PgConnection, from: &str, limit: u32) -> sqlx::Result<i64> {
    let sql = format!("SELECT count(*) FROM (SELECT FROM {from} LIMIT {limit}) AS counted");
    sqlx::query_scalar(AssertSqlSafe(sql))
        .persistent(false)
        .fetch_one(connection)
        .await
}

/// Keeps rows from coming into `partition` until the end of the transaction, and says the time
/// of its youngest, if that is not before `cutoff`. Whoever writes such old ids waits that long; nobody
/// else does.
pub(super) async fn seal(
    connection: &mut PgConnection,
    partition: &Partition,
    at: &str,
    cutoff: OffsetDateTime,
) -> sqlx::Result<Option<OffsetDateTime>> {
    let name = &partition.name;
    run(
        &mut *connection,
        &format!("LOCK TABLE {name} IN SHARE MODE"),
    )
    .await?;
    // Whatever the planner believes of a table that it has hardly looked at: by the index, if there is one.
    run(&mut *connection, "SET LOCAL enable_seqscan = off").await?;
    let sql = format!("SELECT max({at}) FROM {name} WHERE {at} >= $1");
    sqlx::query_scalar(AssertSqlSafe(sql))
        .persistent(false)
        .bind(cutoff)
        .fetch_one(connection)
        .await
}

/// Raises the floor of a sequenced log over the rows of a partition, or over those that are older than
/// `before`.
pub(super) async fn note_end(
    connection: &mut PgConnection,
    schema: &Schema,
    log: &str,
    (name, at): (&str, &str),
    before: Option<OffsetDateTime>,
) -> sqlx::Result<()> {
    let sql = format!(
        "UPDATE {schema}.seqlogs AS s SET floor_seq = gone.seq
         FROM (SELECT max(seq) AS seq FROM {name} WHERE $2::timestamptz IS NULL OR {at} < $2) AS gone
         WHERE s.log = $1 AND gone.seq > s.floor_seq"
    );
    sqlx::query(AssertSqlSafe(sql))
        .persistent(false)
        .bind(log)
        .bind(before)
        .execute(connection)
        .await?;
    Ok(())
}

pub(super) async fn drop_partition(
    connection: &mut PgConnection,
    partition: &Partition,
) -> sqlx::Result<()> {
    let sql = format!("DROP TABLE {}", partition.name);
    run(connection, &sql).await.map(drop)
}

/// Deletes old rows of one table, some at a time.
#[derive(Debug)]
pub(super) struct Sweep(String);

impl Sweep {
    /// `$1` is the time before which rows go, `$2` how many at most.
    pub(super) fn of(table: &str, column: &str, only: Option<&str>) -> Self {
        Self::by(&format!("{column} < $1"), table, column, only)
    }

    /// The same for rows that end at a time of their own: they go when it has come.
    pub(super) fn ended(table: &str, column: &str, only: Option<&str>) -> Self {
        Self::by(&format!("{column} <= $1"), table, column, only)
    }

    fn by(goes: &str, table: &str, column: &str, only: Option<&str>) -> Self {
        let only = only.map_or_else(String::new, |condition| format!("AND ({condition})"));
        // The rows are locked where they are found; one that somebody holds is left for later.
        Self(format!(
            "DELETE FROM {table} WHERE ctid = ANY (ARRAY (
                 SELECT ctid FROM {table} WHERE {goes} {only}
                 ORDER BY {column} LIMIT $2 FOR UPDATE SKIP LOCKED))"
        ))
    }

    pub(super) async fn run(
        &self,
        connection: &mut PgConnection,
        before: OffsetDateTime,
        limit: u32,
    ) -> sqlx::Result<u64> {
        let done = sqlx::query(AssertSqlSafe(&*self.0))
            .bind(before)
            .bind(i64::from(limit))
            .execute(connection)
            .await?;
        Ok(done.rows_affected())
    }
}

/// Deletes the rows on some pages of a table that are older than `before`; `None` when the table
/// ends before them. Page by page, because a partition has no index by time: each page is read
/// once, however many rows there are.
pub(super) async fn delete_on_pages(
    connection: &mut PgConnection,
    name: &str,
    at: &str,
    before: OffsetDateTime,
    pages: Range<i64>,
) -> sqlx::Result<Option<u64>> {
    let all: Option<i64> = sqlx::query_scalar(PAGES)
        .bind(name)
        .fetch_one(&mut *connection)
        .await?;
    let (from, to) = (pages.start, pages.end);
    if all.is_none_or(|all| all <= from) {
        return Ok(None);
    }
    let sql = format!(
        "DELETE FROM {name} WHERE ctid = ANY (ARRAY (
             SELECT ctid FROM {name}
             WHERE ctid >= '({from},0)'::tid AND ctid < '({to},0)'::tid AND {at} < $1
             FOR UPDATE SKIP LOCKED))"
    );
    let done = sqlx::query(AssertSqlSafe(sql))
        .persistent(false)
        .bind(before)
        .execute(connection)
        .await?;
    Ok(Some(done.rows_affected()))
}

async fn run(connection: &mut PgConnection, sql: &str) -> sqlx::Result<u64> {
    let done = sqlx::query(AssertSqlSafe(sql))
        .persistent(false)
        .execute(connection)
        .await?;
    Ok(done.rows_affected())
}

/// The condition that a row belongs to `range`.
fn within(rule: &Partitioned, range: Missing) -> String {
    let key = rule.key();
    let (from, to) = (bound(rule, range.from), bound(rule, range.to));
    format!("{key} >= {from} AND {key} < {to}")
}

/// A bound of a partition, as a literal.
fn bound(rule: &Partitioned, at: OffsetDateTime) -> String {
    match rule.by {
        By::Time(_) => {
            let (date, (hour, minute, second, micro)) = (at.date(), at.to_hms_micro());
            format!("TIMESTAMPTZ '{date} {hour:02}:{minute:02}:{second:02}.{micro:06}+00'")
        }
        By::UuidV7 { .. } => format!("UUID '{}'", uuid_from(at)),
    }
}

/// The default partition; one row if the table is partitioned at all.
const HEAD: &str = "
    SELECT format('%I.%I', n.nspname, d.relname), pg_relation_size(d.oid)
    FROM pg_catalog.pg_partitioned_table AS p
    LEFT JOIN pg_catalog.pg_class AS d ON d.oid = p.partdefid
    LEFT JOIN pg_catalog.pg_namespace AS n ON n.oid = d.relnamespace
    WHERE p.partrelid = to_regclass('{schema}.{table}')";

/// Every other partition, and its bounds as text; NULL for MINVALUE and MAXVALUE.
const BOUNDS: &str = r"
    SELECT
        format('%I.%I', n.nspname, c.relname) AS name,
        substring(pg_get_expr(c.relpartbound, c.oid) FROM 'FROM \(''([^'']*)''\)') AS lower,
        substring(pg_get_expr(c.relpartbound, c.oid) FROM 'TO \(''([^'']*)''\)') AS upper
    FROM pg_catalog.pg_inherits AS i
    JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE i.inhparent = to_regclass('{schema}.{table}')
        AND pg_get_expr(c.relpartbound, c.oid) <> 'DEFAULT'";

const PARTITIONS_BY_TIME: &str = "
    WITH bounds AS ({bounds})
    SELECT
        name,
        CASE WHEN isfinite(lower::timestamptz) THEN lower::timestamptz END,
        CASE WHEN isfinite(upper::timestamptz) THEN upper::timestamptz END
    FROM bounds";

const PARTITIONS_BY_UUID: &str = "
    WITH bounds AS ({bounds})
    SELECT name, lower::uuid, upper::uuid FROM bounds";

/// How many pages a table has; NULL when there is no such table.
const PAGES: &str =
    "SELECT pg_relation_size(to_regclass($1)) / current_setting('block_size')::bigint";

const LOCK_OUT: &str = "LOCK TABLE ONLY {schema}.{table} IN ACCESS EXCLUSIVE MODE";

/// The columns that a row is written with.
const COLUMNS: &str = "
    SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum)
    FROM pg_catalog.pg_attribute
    WHERE attrelid = to_regclass($1)
        AND attnum > 0 AND NOT attisdropped AND attgenerated = ''";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_goes_at_its_time_and_what_is_kept_goes_after_it() {
        assert!(Sweep::ended("t", "at", None).0.contains("WHERE at <= $1"));
        assert!(Sweep::of("t", "at", None).0.contains("WHERE at < $1"));
    }
}
