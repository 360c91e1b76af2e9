//! The statements behind the questions.

mod sql;

use std::time::Duration;

use serde_json::Value;
use sqlx::postgres::PgRow;
use sqlx::types::Json;
use sqlx::{AssertSqlSafe, PgConnection, Row};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{
    Count, Found, Holder, OutboxStats, Partition, Place, QueueStats, SagaStats, TwopcStats,
};
use crate::Schema;

/// The statements of one schema.
#[derive(Debug)]
pub(super) struct Statements {
    schema: String,
    outbox: String,
    outbox_estimate: String,
    newest_partitions: String,
    queue_names: String,
    queue: String,
    queue_estimate: String,
    sagas: String,
    leases: String,
    partitions: String,
    event: String,
    waiting: String,
    job: String,
    twopc: String,
}

impl Statements {
    pub(super) fn new(schema: &Schema) -> Self {
        Self {
            schema: schema.to_string(),
            outbox: schema.render(sql::OUTBOX),
            outbox_estimate: schema.render(sql::OUTBOX_ESTIMATE),
            newest_partitions: schema.render(sql::NEWEST_PARTITIONS),
            queue_names: schema.render(sql::QUEUE_NAMES),
            queue: schema.render(sql::QUEUE),
            queue_estimate: schema.render(sql::QUEUE_ESTIMATE),
            sagas: schema.render(sql::SAGAS),
            leases: schema.render(sql::LEASES),
            partitions: sql::PARTITIONS.to_owned(),
            event: schema.render(sql::EVENT),
            waiting: schema.render(sql::WAITING),
            job: schema.render(sql::JOB),
            twopc: schema.render(sql::TWOPC),
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &str> {
        let all = [
            &self.outbox,
            &self.newest_partitions,
            &self.queue_names,
            &self.queue,
            &self.sagas,
            &self.leases,
            &self.partitions,
            &self.event,
            &self.waiting,
            &self.job,
            &self.twopc,
        ];
        all.into_iter().map(String::as_str)
    }

    pub(super) async fn outbox(&self, connection: &mut PgConnection) -> sqlx::Result<OutboxStats> {
        let row = sqlx::query(AssertSqlSafe(self.outbox.as_str()))
            .fetch_one(&mut *connection)
            .await?;
        let in_flight = number(&row, "in_flight")?;
        let failed = number(&row, "failed")?;
        let mut pending = Count {
            rows: number(&row, "pending")?,
            estimated: row.try_get("is_full")?,
        };
        if pending.estimated {
            let all: Json<Value> = sqlx::query_scalar(AssertSqlSafe(self.outbox_estimate.as_str()))
                .fetch_one(&mut *connection)
                .await?;
            let others = in_flight.saturating_add(failed);
            pending.rows = pending.rows.max(planned(&all).saturating_sub(others));
        }
        let live: Option<OffsetDateTime> = row.try_get("newest_at")?;
        let (enqueued, published) = self.last_published(connection).await?;
        Ok(OutboxStats {
            oldest_undelivered: age(&row, "oldest_seconds")?,
            pending,
            due: number(&row, "due")?,
            in_flight,
            expired: number(&row, "expired")?,
            failed,
            enqueued: number(&row, "enqueued")?,
            enqueued_last_at: live.max(enqueued),
            published_last_at: published,
        })
    }

    pub(super) async fn twopc(&self, connection: &mut PgConnection) -> sqlx::Result<TwopcStats> {
        let row = sqlx::query(AssertSqlSafe(self.twopc.as_str()))
            .fetch_one(connection)
            .await?;
        Ok(TwopcStats {
            open: number(&row, "open")?,
            oldest: age(&row, "oldest_seconds")?,
        })
    }

    /// When the newest published events were enqueued and published. No index is kept for this:
    /// the one by position in a stream, which reconciliation needs, leads to them as well.
    async fn last_published(
        &self,
        connection: &mut PgConnection,
    ) -> sqlx::Result<(Option<OffsetDateTime>, Option<OffsetDateTime>)> {
        let newest_partitions = AssertSqlSafe(self.newest_partitions.as_str());
        let partitions: Vec<String> = sqlx::query_scalar(newest_partitions)
            .fetch_all(&mut *connection)
            .await?;
        let mut newest = (None, None);
        for name in &partitions {
            // Safe: PostgreSQL has quoted the name.
            let last = AssertSqlSafe(sql::LAST_PUBLISHED.replace("{partition}", name));
            let row = sqlx::query(last)
                .persistent(false)
                .fetch_one(&mut *connection)
                .await?;
            newest.0 = row.try_get("created_at").map(|at| newest.0.max(at))?;
            newest.1 = row.try_get("published_at").map(|at| newest.1.max(at))?;
        }
        Ok(newest)
    }

    pub(super) async fn sagas(&self, connection: &mut PgConnection) -> sqlx::Result<SagaStats> {
        let row = sqlx::query(AssertSqlSafe(self.sagas.as_str()))
            .fetch_one(connection)
            .await?;
        Ok(SagaStats {
            started: number(&row, "started")?,
            compensating: number(&row, "compensating")?,
            needs_attention: number(&row, "stuck")?,
            oldest_due: age(&row, "oldest_seconds")?,
        })
    }

    pub(super) async fn queues(
        &self,
        connection: &mut PgConnection,
    ) -> sqlx::Result<Vec<QueueStats>> {
        let names: Vec<String> = sqlx::query_scalar(AssertSqlSafe(self.queue_names.as_str()))
            .fetch_all(&mut *connection)
            .await?;
        let mut queues = Vec::with_capacity(names.len());
        for name in names {
            queues.push(self.queue(connection, name).await?);
        }
        Ok(queues)
    }

    async fn queue(&self, connection: &mut PgConnection, name: String) -> sqlx::Result<QueueStats> {
        let row = sqlx::query(AssertSqlSafe(self.queue.as_str()))
            .bind(&name)
            .fetch_one(&mut *connection)
            .await?;
        let (running, dead) = (number(&row, "running")?, number(&row, "dead")?);
        let mut waiting = Count {
            rows: number(&row, "waiting")?,
            estimated: row.try_get("is_full")?,
        };
        if waiting.estimated {
            let all: Json<Value> = sqlx::query_scalar(AssertSqlSafe(self.queue_estimate.as_str()))
                .bind(&name)
                .persistent(false)
                .fetch_one(connection)
                .await?;
            let others = running.saturating_add(dead);
            waiting.rows = waiting.rows.max(planned(&all).saturating_sub(others));
        }
        Ok(QueueStats {
            queue: name,
            waiting,
            due: number(&row, "due")?,
            running,
            expired: number(&row, "expired")?,
            dead,
            oldest_due: age(&row, "oldest_seconds")?,
        })
    }

    pub(super) async fn leases(&self, connection: &mut PgConnection) -> sqlx::Result<Vec<Holder>> {
        sqlx::query_as(AssertSqlSafe(self.leases.as_str()))
            .fetch_all(connection)
            .await
    }

    pub(super) async fn partitions(
        &self,
        connection: &mut PgConnection,
    ) -> sqlx::Result<Vec<Partition>> {
        sqlx::query_as(AssertSqlSafe(self.partitions.as_str()))
            .bind(&self.schema)
            .fetch_all(connection)
            .await
    }

    pub(super) async fn event(
        &self,
        connection: &mut PgConnection,
        id: Uuid,
    ) -> sqlx::Result<Option<Found>> {
        find(connection, &self.event, id).await
    }

    pub(super) async fn waiting(
        &self,
        connection: &mut PgConnection,
        limit: u32,
    ) -> sqlx::Result<Vec<Found>> {
        let rows = sqlx::query(AssertSqlSafe(self.waiting.as_str()))
            .bind(i64::from(limit))
            .fetch_all(connection)
            .await?;
        let rows = rows.iter();
        rows.map(|row| found(row.try_get("event_id")?, row))
            .collect()
    }

    pub(super) async fn job(
        &self,
        connection: &mut PgConnection,
        id: Uuid,
    ) -> sqlx::Result<Option<Found>> {
        find(connection, &self.job, id).await
    }
}

/// Asks for one row wherever it is: in one statement, so that it can't slip from one table into
/// the next between two.
async fn find(connection: &mut PgConnection, sql: &str, id: Uuid) -> sqlx::Result<Option<Found>> {
    let row = sqlx::query(AssertSqlSafe(sql))
        .bind(id)
        .fetch_optional(connection)
        .await?;
    row.map(|row| found(id, &row)).transpose()
}

fn found(id: Uuid, row: &PgRow) -> sqlx::Result<Found> {
    let attempts: Option<i32> = row.try_get("attempt_count")?;
    Ok(Found {
        id,
        kind: row.try_get("kind")?,
        queue: row.try_get("queue")?,
        created_at: row.try_get("created_at")?,
        attempts: attempts.and_then(|attempts| u32::try_from(attempts).ok()),
        ordering_key: row.try_get("ordering_key")?,
        last_error: row.try_get("last_error")?,
        place: place(row)?,
    })
}

fn place(row: &PgRow) -> sqlx::Result<Place> {
    let state: String = row.try_get("place")?;
    Ok(match state.as_str() {
        "PENDING" => Place::Waiting {
            due_at: row.try_get("at")?,
        },
        "FAILED" => Place::Dead {
            letter: row.try_get("letter_id")?,
        },
        "PUBLISHED" => Place::Published {
            at: row.try_get("at")?,
            stream: row.try_get("who")?,
            stream_created_at: row.try_get("until")?,
            stream_seq: number(row, "stream_seq")?,
        },
        "FINISHED" => Place::Finished {
            at: row.try_get("at")?,
        },
        "DISCARDED" => Place::Discarded {
            at: row.try_get("at")?,
            by: row.try_get("who")?,
            reason: row.try_get("reason")?,
        },
        // What else a live row can be: IN_FLIGHT, PROCESSING.
        _ => Place::Claimed {
            by: row.try_get("who")?,
            since: row.try_get("at")?,
            until: row.try_get("until")?,
        },
    })
}

fn number(row: &PgRow, column: &str) -> sqlx::Result<u64> {
    let number: i64 = row.try_get(column)?;
    Ok(u64::try_from(number).unwrap_or(0))
}

fn age(row: &PgRow, column: &str) -> sqlx::Result<Option<Duration>> {
    let seconds: Option<f64> = row.try_get(column)?;
    Ok(seconds.map(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default()))
}

/// How many rows PostgreSQL expects of a statement that it has explained.
fn planned(explained: &Value) -> u64 {
    let rows = explained.pointer("/0/Plan/Plan Rows");
    rows.and_then(Value::as_u64).unwrap_or(0)
}
