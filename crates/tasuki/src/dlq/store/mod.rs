//! The statements over dead letters, for one schema and its sources.
//!
//! A filter has many optional parts. Its statements are sent without a name, so that PostgreSQL
//! plans them for the values at hand, drops what is not asked for and finds the index for the
//! rest; a plan for all values would read everything every time.

mod sql;

use std::time::Duration;

use sqlx::postgres::{PgArguments, PgRow, Postgres};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, FromRow, PgConnection, Row};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{Action, Audit, Death, Deaths, Filter, Group, Letter, LetterId, Open, Page};
use crate::Schema;
use crate::lease::Table;

/// The library's own lease tables and their keys.
const OWN: [(&str, &str); 3] = [
    ("jobs", "job_id"),
    ("outbox_events", "event_id"),
    ("seqlog_set_aside", "set_aside_id"),
];

/// The statements of one schema.
#[derive(Debug)]
pub(super) struct Statements {
    /// In the order of their names, which is the order of locks.
    pub(super) sources: Vec<Source>,
    list: String,
    show: String,
    trail: String,
    groups: String,
    stuck: String,
    foreign: String,
    known: String,
    open_sources: String,
    open: String,
    begin: String,
    deaths: String,
}

/// A table whose rows can be put back.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) name: &'static str,
    redrive: String,
    discard: String,
}

/// What is to be done, by whom and why.
#[derive(Clone, Copy, Debug)]
pub(super) struct Act<'a> {
    pub(super) action: Action,
    pub(super) actor: &'a str,
    pub(super) reason: Option<&'a str>,
}

/// How far a watch has come: a snapshot of the database.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    snapshot: String,
    /// Nothing that died before is news: the transaction ids of letters that were restored
    /// from another server's dump mean nothing here.
    not_before: OffsetDateTime,
}

type Statement<'q> = Query<'q, Postgres, PgArguments>;

impl Statements {
    pub(super) fn new(schema: &Schema, more: &[Table]) -> Self {
        let mut tables = OWN.to_vec();
        tables.extend(more.iter().map(|table| (table.name, table.key)));
        tables.sort_unstable();
        tables.dedup_by_key(|(name, _)| *name);
        let standing: Vec<_> = tables
            .iter()
            .map(|(name, key)| sql::STANDING.replace("{name}", name).replace("{key}", key))
            .collect();
        let names: Vec<_> = tables.iter().map(|(name, _)| format!("'{name}'")).collect();
        let render = |sql: &str| {
            let sql = sql
                .replace("{meant}", sql::MEANT)
                .replace("{is_open}", sql::IS_OPEN)
                .replace("{standing}", &standing.join("\n        OR "))
                .replace("{names}", &names.join(", "));
            schema.render(&sql)
        };
        let source = |(name, key): &(&'static str, &'static str)| {
            let render = |sql: &str| render(&sql.replace("{name}", name).replace("{key}", key));
            Source {
                name,
                redrive: render(sql::REDRIVE),
                discard: render(sql::DISCARD),
            }
        };
        Self {
            sources: tables.iter().map(source).collect(),
            list: render(sql::LIST),
            show: render(sql::SHOW),
            trail: render(sql::TRAIL),
            groups: render(sql::GROUPS),
            stuck: render(sql::STUCK),
            foreign: render(sql::FOREIGN),
            known: render(sql::KNOWN),
            open_sources: render(sql::OPEN_SOURCES),
            open: render(sql::OPEN),
            begin: sql::BEGIN.to_owned(),
            deaths: render(sql::DEATHS),
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &str> {
        let acts = self.sources.iter().flat_map(|s| [&s.redrive, &s.discard]);
        let own = [
            &self.list,
            &self.show,
            &self.trail,
            &self.groups,
            &self.stuck,
            &self.foreign,
            &self.known,
            &self.open_sources,
            &self.open,
            &self.begin,
            &self.deaths,
        ];
        acts.chain(own).map(String::as_str)
    }

    pub(super) async fn list(
        &self,
        connection: &mut PgConnection,
        filter: &Filter,
        page: &Page,
    ) -> sqlx::Result<Vec<Letter>> {
        let rows = filtered(&self.list, filter)
            .bind(page.after.map(|cursor| cursor.failed_at))
            .bind(page.after.map(|cursor| cursor.id))
            .bind(page.limit())
            .fetch_all(connection)
            .await?;
        rows.iter().map(Letter::from_row).collect()
    }

    pub(super) async fn show(
        &self,
        connection: &mut PgConnection,
        id: LetterId,
    ) -> sqlx::Result<Option<Letter>> {
        sqlx::query_as(AssertSqlSafe(self.show.as_str()))
            .bind(id)
            .fetch_optional(connection)
            .await
    }

    pub(super) async fn trail(
        &self,
        connection: &mut PgConnection,
        source: &str,
        source_id: Uuid,
    ) -> sqlx::Result<Vec<Audit>> {
        sqlx::query_as(AssertSqlSafe(self.trail.as_str()))
            .bind(source)
            .bind(source_id)
            .fetch_all(connection)
            .await
    }

    /// The time, how many letters there are in all, and their kinds.
    pub(super) async fn groups(
        &self,
        connection: &mut PgConnection,
        filter: &Filter,
    ) -> sqlx::Result<(OffsetDateTime, u64, Vec<Group>)> {
        let rows = filtered(&self.groups, filter).fetch_all(connection).await?;
        let first = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let as_of = first.try_get("as_of")?;
        let count = count(first, "total")?;
        let groups = rows
            .iter()
            // Without a letter there is still a row, which tells the time.
            .filter(|_| count > 0)
            .map(Group::from_row)
            .collect::<sqlx::Result<_>>()?;
        Ok((as_of, count, groups))
    }

    /// Open letters whose row is not there to be put back.
    pub(super) async fn stuck(
        &self,
        connection: &mut PgConnection,
        filter: &Filter,
    ) -> sqlx::Result<u64> {
        let row = filtered(&self.stuck, filter).fetch_one(connection).await?;
        count(&row, "letters")
    }

    /// Open letters whose source is not known here.
    pub(super) async fn foreign(
        &self,
        connection: &mut PgConnection,
        filter: &Filter,
    ) -> sqlx::Result<u64> {
        let row = filtered(&self.foreign, filter)
            .fetch_one(connection)
            .await?;
        count(&row, "letters")
    }

    /// How many different `ids` there are, how many of them are letters, how many closed ones.
    pub(super) async fn known(
        &self,
        connection: &mut PgConnection,
        ids: &[LetterId],
    ) -> sqlx::Result<(u64, u64, u64)> {
        let row = sqlx::query(AssertSqlSafe(self.known.as_str()))
            .bind(ids)
            .fetch_one(connection)
            .await?;
        Ok((
            count(&row, "asked")?,
            count(&row, "known")?,
            count(&row, "closed")?,
        ))
    }

    pub(super) async fn open(&self, connection: &mut PgConnection) -> sqlx::Result<Vec<Open>> {
        let sources: Vec<String> = sqlx::query_scalar(AssertSqlSafe(self.open_sources.as_str()))
            .fetch_all(&mut *connection)
            .await?;
        let mut open = Vec::with_capacity(sources.len());
        for source in sources {
            let row = sqlx::query(AssertSqlSafe(self.open.as_str()))
                .bind(&source)
                .fetch_one(&mut *connection)
                .await?;
            let oldest: f64 = row.try_get("oldest_seconds")?;
            open.push(Open {
                source,
                letters: count(&row, "letters")?,
                oldest: Duration::try_from_secs_f64(oldest.max(0.0)).unwrap_or_default(),
            });
        }
        Ok(open)
    }

    pub(super) async fn now(&self, connection: &mut PgConnection) -> sqlx::Result<OffsetDateTime> {
        sqlx::query_scalar("SELECT clock_timestamp()")
            .fetch_one(connection)
            .await
    }

    /// Where a watch begins: now.
    pub(super) async fn begin(&self, connection: &mut PgConnection) -> sqlx::Result<Seen> {
        let row = sqlx::query(AssertSqlSafe(self.begin.as_str()))
            .fetch_one(connection)
            .await?;
        Ok(Seen {
            snapshot: row.try_get("snapshot")?,
            not_before: row.try_get("not_before")?,
        })
    }

    /// Every death that was committed after `seen`, and how far that was.
    pub(super) async fn deaths(
        &self,
        connection: &mut PgConnection,
        seen: &Seen,
    ) -> sqlx::Result<(Seen, Deaths)> {
        let rows = sqlx::query(AssertSqlSafe(self.deaths.as_str()))
            .bind(&seen.snapshot)
            .bind(seen.not_before)
            .fetch_all(connection)
            .await?;
        let first = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let now = Seen {
            snapshot: first.try_get("snapshot")?,
            not_before: seen.not_before,
        };
        let letters = count(first, "total")?;
        let groups = rows
            .iter()
            .filter(|_| letters > 0)
            .map(Death::from_row)
            .collect::<sqlx::Result<_>>()?;
        Ok((now, Deaths { letters, groups }))
    }
}

impl Source {
    /// Does it to at most `limit` letters, and says to how many.
    pub(super) async fn act(
        &self,
        connection: &mut PgConnection,
        filter: &Filter,
        act: &Act<'_>,
        limit: u64,
    ) -> sqlx::Result<u64> {
        let sql = match act.action {
            Action::Redrive => &self.redrive,
            Action::Discard => &self.discard,
        };
        let done = filtered(sql, filter)
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .bind(act.actor)
            .bind(act.reason)
            .execute(connection)
            .await?;
        Ok(done.rows_affected())
    }
}

/// A statement with the filter as its first eight parameters.
fn filtered<'q>(sql: &'q str, filter: &'q Filter) -> Statement<'q> {
    sqlx::query(AssertSqlSafe(sql))
        .persistent(false)
        .bind(filter.source.as_deref())
        .bind(filter.queue.as_deref())
        .bind(filter.kind.as_deref())
        .bind(filter.error.as_deref())
        .bind(filter.failed_after)
        .bind(filter.failed_before)
        .bind(filter.ids.as_deref())
        .bind(filter.state.as_str())
}

fn count(row: &PgRow, column: &str) -> sqlx::Result<u64> {
    let count: i64 = row.try_get(column)?;
    Ok(u64::try_from(count).unwrap_or(0))
}
