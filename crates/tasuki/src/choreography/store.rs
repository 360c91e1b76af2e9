//! The statements of stories.

use sqlx::error::BoxDynError;
use sqlx::postgres::PgArguments;
use sqlx::{Arguments as _, AssertSqlSafe, PgConnection};
use uuid::Uuid;

use super::{Cause, Entry};
use crate::Schema;
use crate::outbox::Event;
use crate::together::Together;

/// Rendered for one schema.
#[derive(Debug)]
pub(super) struct Statements {
    entries: String,
    part: String,
}

impl Statements {
    pub(super) fn new(schema: &Schema) -> Self {
        Self {
            entries: schema.render(ENTRIES),
            part: schema.render(PART),
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &str> {
        [&self.entries, &self.part].into_iter().map(String::as_str)
    }
}

/// What was heard, and what is told of it, as the first part of a statement.
pub(super) fn entries(
    statements: &Statements,
    service: &str,
    heard: &[(&str, &Cause)],
    events: &[Event],
) -> sqlx::Result<Together> {
    let rows: Vec<Row<'_>> = heard
        .iter()
        .map(|(consumer, cause)| Row::heard(consumer, cause))
        .chain(events.iter().map(Row::told))
        .collect();
    let mut arguments = PgArguments::default();
    columns(&mut arguments, service, &rows).map_err(sqlx::Error::Encode)?;
    let sql = &statements.entries;
    Ok(Together::new("entries", sql, arguments, rows.len()))
}

/// An entry on its way into the table.
struct Row<'a> {
    correlation_id: &'a str,
    event_id: Uuid,
    causation_id: Option<Uuid>,
    event_type: &'a str,
    consumer: Option<&'a str>,
}

impl<'a> Row<'a> {
    fn heard(consumer: &'a str, cause: &'a Cause) -> Self {
        Self {
            correlation_id: &cause.correlation_id,
            event_id: cause.id,
            causation_id: cause.causation_id,
            event_type: &cause.event_type,
            consumer: Some(consumer),
        }
    }

    fn told(event: &'a Event) -> Self {
        let (correlation_id, causation_id) = event.chain();
        Self {
            correlation_id: correlation_id.unwrap_or_default(),
            event_id: event.id(),
            causation_id,
            event_type: event.event_type(),
            consumer: None,
        }
    }
}

fn columns(
    arguments: &mut PgArguments,
    service: &str,
    rows: &[Row<'_>],
) -> Result<(), BoxDynError> {
    arguments.add(service)?;
    let correlation_ids: Vec<&str> = rows.iter().map(|row| row.correlation_id).collect();
    arguments.add(correlation_ids)?;
    arguments.add(rows.iter().map(|row| row.event_id).collect::<Vec<_>>())?;
    arguments.add(rows.iter().map(|row| row.causation_id).collect::<Vec<_>>())?;
    arguments.add(rows.iter().map(|row| row.event_type).collect::<Vec<_>>())?;
    arguments.add(rows.iter().map(|row| row.consumer).collect::<Vec<_>>())
}

/// The oldest first.
pub(super) async fn part(
    connection: &mut PgConnection,
    statements: &Statements,
    correlation_id: &str,
    limit: u32,
) -> sqlx::Result<Vec<Entry>> {
    sqlx::query_as(AssertSqlSafe(statements.part.as_str()))
        .bind(correlation_id)
        .bind(i64::from(limit))
        .fetch_all(connection)
        .await
}

/// In the form that a [`Together`] begins with.
const ENTRIES: &str = "
WITH entries AS (
    INSERT INTO {schema}.stories
        (service, correlation_id, event_id, causation_id, event_type, consumer)
    SELECT $1, correlation_id, event_id, causation_id, event_type, consumer
    FROM unnest($2::text [], $3::uuid [], $4::uuid [], $5::text [], $6::text [])
        AS entry (correlation_id, event_id, causation_id, event_type, consumer)
    RETURNING 1
)

SELECT count(*) FROM entries";

const PART: &str = "
SELECT correlation_id, event_id, causation_id, event_type, service, consumer, recorded_at
FROM {schema}.stories
WHERE correlation_id = $1
ORDER BY recorded_at, event_id, consumer NULLS FIRST
LIMIT $2";
