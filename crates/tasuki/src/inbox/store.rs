//! The statements of the inbox.

use std::collections::HashSet;

use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

use super::Event;
use crate::Schema;

/// Rendered for one schema.
#[derive(Debug)]
pub(super) struct Statements {
    record: String,
    record_all: String,
    seen: String,
}

impl Statements {
    pub(super) fn new(schema: &Schema) -> Self {
        Self {
            record: schema.render(
                "INSERT INTO {schema}.processed_events (event_id, consumer, traceparent, effects)
                 VALUES ($1, $2, $3, $4)
                 ON CONFLICT (event_id, consumer) DO NOTHING",
            ),
            // Rows are inserted in the order of ids, which is the order in which overlapping
            // batches wait for each other: none can wait in a circle.
            record_all: schema.render(
                "INSERT INTO {schema}.processed_events (event_id, consumer, traceparent, effects)
                 SELECT arrived.event_id, $1, arrived.traceparent, arrived.effects
                 FROM UNNEST($2::uuid[], $3::text[], $4::integer[])
                     AS arrived (event_id, traceparent, effects)
                 ORDER BY arrived.event_id
                 ON CONFLICT (event_id, consumer) DO NOTHING
                 RETURNING event_id",
            ),
            seen: schema.render(
                "SELECT event_id FROM {schema}.processed_events
                 WHERE event_id = ANY($2) AND consumer = $1",
            ),
        }
    }
}

/// Whether the row is new.
pub(super) async fn record(
    tx: &mut PgConnection,
    statements: &Statements,
    consumer: &str,
    event: Event<'_>,
) -> sqlx::Result<bool> {
    let done = sqlx::query(AssertSqlSafe(statements.record.as_str()))
        .bind(event.id)
        .bind(consumer)
        .bind(event.traceparent)
        .bind(event.effects)
        .execute(tx)
        .await?;
    Ok(done.rows_affected() == 1)
}

/// The ids that are new. `events` has each id once.
pub(super) async fn record_all(
    tx: &mut PgConnection,
    statements: &Statements,
    consumer: &str,
    events: &[Event<'_>],
) -> sqlx::Result<HashSet<Uuid>> {
    if events.is_empty() {
        return Ok(HashSet::new());
    }
    let ids: Vec<Uuid> = events.iter().map(|event| event.id).collect();
    let traceparents: Vec<Option<&str>> = events.iter().map(|event| event.traceparent).collect();
    let effects: Vec<Option<i32>> = events.iter().map(|event| event.effects).collect();
    let new: Vec<Uuid> = sqlx::query_scalar(AssertSqlSafe(statements.record_all.as_str()))
        .bind(consumer)
        .bind(ids)
        .bind(traceparents)
        .bind(effects)
        .fetch_all(tx)
        .await?;
    Ok(new.into_iter().collect())
}

/// Those of `ids` that have a row.
pub(super) async fn seen(
    connection: &mut PgConnection,
    statements: &Statements,
    consumer: &str,
    ids: &[Uuid],
) -> sqlx::Result<HashSet<Uuid>> {
    let seen: Vec<Uuid> = sqlx::query_scalar(AssertSqlSafe(statements.seen.as_str()))
        .bind(consumer)
        .bind(ids)
        .fetch_all(connection)
        .await?;
    Ok(seen.into_iter().collect())
}
