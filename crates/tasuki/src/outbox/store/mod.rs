//! The outbox's SQL: what is asked, and what is answered.

mod sql;

use std::collections::HashMap;

use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::{Arguments as _, AssertSqlSafe, FromRow, PgConnection, Row};
use time::OffsetDateTime;
use uuid::Uuid;

use self::sql::{
    AT_OR_AFTER, ELSEWHERE, HIGHEST, INSERT, INSERT_ALL, LOOK, MOVED, NEWEST, REUSED, SEND_AGAIN,
    SEND_AGAIN_ELSEWHERE, SETTLE, TABLE,
};
use super::Event;
use crate::Schema;
use crate::bus::Position;
use crate::lease::{Claim, Claimed, Fence, Leases};
use crate::together::Together;

/// How many keys one claim looks at, and how many events of one key it takes at most: a busy
/// key gets a share, not the whole claim.
const KEYS_PER_CLAIM: i64 = 500;
const EVENTS_PER_KEY: i64 = 100;

/// A claimed event, on its way to the broker.
#[derive(Debug, FromRow)]
pub struct EventRow {
    pub(super) seq: i64,
    pub(super) event_type: String,
    pub(super) aggregate_key: String,
    pub(super) ordering_key: Option<String>,
    pub(super) payload: Vec<u8>,
    pub(super) traceparent: Option<String>,
    pub(super) correlation_id: Option<String>,
    pub(super) causation_id: Option<Uuid>,
    pub(super) occurred_at: OffsetDateTime,
    pub(super) next_retry_at: OffsetDateTime,
    /// Seconds since it was enqueued, by the database's clock.
    pub(super) age: f64,
    /// How many ordered events its claim meant to take.
    pub(super) picked: i64,
    /// The number of its claim in this process.
    #[sqlx(default)]
    pub(super) claim: i64,
}

/// Where a claim begins.
#[derive(Debug)]
pub(super) struct Place<'a> {
    /// Ordered events: after this key.
    pub(super) after_key: &'a str,
    /// Unordered events: due at this time or later; `None`: a minute ago.
    pub(super) from: Option<OffsetDateTime>,
}

/// A published event, and where the broker said that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromRow)]
pub(super) struct Stored {
    pub(super) event_id: Uuid,
    pub(super) stream_seq: i64,
}

#[derive(Debug)]
pub(super) struct Store {
    leases: Leases,
    channel: String,
    look: String,
    insert: String,
    insert_all: String,
    settle: String,
    elsewhere: String,
    newest: String,
    highest: String,
    at_or_after: String,
    reused: String,
    send_again: String,
    send_again_elsewhere: String,
}

impl Store {
    pub(super) fn new(schema: &Schema) -> Self {
        let render = |sql: &str| schema.render(&sql.replace("{moved}", MOVED));
        Self {
            leases: Leases::new(schema, &TABLE),
            channel: format!("{schema}.outbox"),
            look: render(&LOOK.replace("{claimable}", &TABLE.claimable())),
            insert: render(INSERT),
            insert_all: render(INSERT_ALL),
            settle: render(SETTLE),
            elsewhere: render(ELSEWHERE),
            newest: render(NEWEST),
            highest: render(HIGHEST),
            at_or_after: render(AT_OR_AFTER),
            reused: render(REUSED),
            send_again: render(SEND_AGAIN),
            send_again_elsewhere: render(SEND_AGAIN_ELSEWHERE),
        }
    }

    pub(super) const fn leases(&self) -> &Leases {
        &self.leases
    }

    pub(super) fn channel(&self) -> &str {
        &self.channel
    }

    pub(super) fn statements(&self) -> impl Iterator<Item = &str> {
        let own = [
            &self.look,
            &self.insert,
            &self.insert_all,
            &self.settle,
            &self.elsewhere,
            &self.newest,
            &self.highest,
            &self.at_or_after,
            &self.reused,
            &self.send_again,
            &self.send_again_elsewhere,
        ];
        let own = own.into_iter().map(String::as_str);
        own.chain(self.leases.statements())
    }

    pub(super) async fn insert(
        &self,
        connection: &mut PgConnection,
        event: &Event,
        trace: Option<&str>,
    ) -> sqlx::Result<()> {
        sqlx::query(AssertSqlSafe(self.insert.as_str()))
            .bind(event.id)
            .bind(&event.event_type)
            .bind(&event.aggregate_key)
            .bind(event.ordering_key.as_deref())
            .bind(&event.payload[..])
            .bind(event.traceparent.as_deref().or(trace))
            .bind(event.correlation_id.as_deref())
            .bind(event.causation_id)
            .bind(event.occurred_at)
            .execute(connection)
            .await?;
        Ok(())
    }

    pub(super) async fn insert_all(
        &self,
        connection: &mut PgConnection,
        events: &[Event],
        trace: Option<&str>,
    ) -> sqlx::Result<()> {
        let mut arguments = PgArguments::default();
        columns(&mut arguments, events, trace).map_err(sqlx::Error::Encode)?;
        sqlx::query_with(AssertSqlSafe(self.insert_all.as_str()), arguments)
            .execute(connection)
            .await?;
        Ok(())
    }

    /// The same as a part of a statement of the caller's.
    pub(super) fn insert_all_with(
        &self,
        together: &mut Together,
        events: &[Event],
        trace: Option<&str>,
    ) -> sqlx::Result<()> {
        let expected: (_, _, fn(usize)) = ("events", events.len(), |_| {});
        together.add(expected, &self.insert_all, |arguments| {
            columns(arguments, events, trace)
        })
    }

    /// Claims events, the ordered ones by key in turn and the others by age; also says after
    /// which key to go on, `None` when there is none beyond.
    pub(super) async fn claim(
        &self,
        connection: &mut PgConnection,
        claim: &Claim<'_>,
        place: &Place<'_>,
    ) -> sqlx::Result<(Vec<Claimed<EventRow>>, Option<String>)> {
        use sqlx::Arguments;
        let claimed = self.leases.claim_from(connection, claim, |arguments| {
            arguments.add(place.after_key)?;
            arguments.add(place.from)?;
            arguments.add(KEYS_PER_CLAIM)?;
            arguments.add(EVENTS_PER_KEY)
        });
        claimed.await
    }

    /// When the first event without a key is due that may be claimed before `until`.
    pub(super) async fn look(
        &self,
        connection: &mut PgConnection,
        until: Option<OffsetDateTime>,
    ) -> sqlx::Result<Option<OffsetDateTime>> {
        sqlx::query_scalar(AssertSqlSafe(self.look.as_str()))
            .bind(until)
            .fetch_optional(connection)
            .await
    }

    /// Moves what the broker has acknowledged to the published ones, with its position.
    pub(super) async fn settle(
        &self,
        connection: &mut PgConnection,
        done: &[(Fence, Position)],
    ) -> sqlx::Result<Vec<Uuid>> {
        let sequence = |at: &Position| i64::try_from(at.sequence).unwrap_or(i64::MAX);
        let streams: Vec<&str> = done.iter().map(|(_, at)| &*at.stream).collect();
        let created: Vec<OffsetDateTime> =
            done.iter().map(|(_, at)| at.stream_created_at).collect();
        sqlx::query_scalar(AssertSqlSafe(self.settle.as_str()))
            .bind(done.iter().map(|(fence, _)| fence.id).collect::<Vec<_>>())
            .bind(
                done.iter()
                    .map(|(fence, _)| fence.token)
                    .collect::<Vec<_>>(),
            )
            .bind(streams)
            .bind(created)
            .bind(done.iter().map(|(_, at)| sequence(at)).collect::<Vec<_>>())
            .fetch_all(connection)
            .await
    }

    /// Whether events are said to be in another stream of this name than the one that there
    /// is now.
    pub(super) async fn elsewhere(
        &self,
        connection: &mut PgConnection,
        stream: &str,
        created_at: OffsetDateTime,
    ) -> sqlx::Result<bool> {
        sqlx::query_scalar(AssertSqlSafe(self.elsewhere.as_str()))
            .bind(stream)
            .bind(created_at)
            .fetch_one(connection)
            .await
    }

    /// The event with the highest sequence in this stream.
    pub(super) async fn newest(
        &self,
        connection: &mut PgConnection,
        stream: &str,
        created_at: OffsetDateTime,
    ) -> sqlx::Result<Option<Stored>> {
        sqlx::query_as(AssertSqlSafe(self.newest.as_str()))
            .bind(stream)
            .bind(created_at)
            .fetch_optional(connection)
            .await
    }

    /// The highest sequence that is stored for a stream of this name.
    pub(super) async fn highest(
        &self,
        connection: &mut PgConnection,
        stream: &str,
    ) -> sqlx::Result<Option<i64>> {
        sqlx::query_scalar(AssertSqlSafe(self.highest.as_str()))
            .bind(stream)
            .fetch_one(connection)
            .await
    }

    /// Up to `limit` events of this stream, from this sequence on.
    pub(super) async fn at_or_after(
        &self,
        connection: &mut PgConnection,
        stream: &str,
        created_at: OffsetDateTime,
        sequence: i64,
        limit: i64,
    ) -> sqlx::Result<Vec<Stored>> {
        sqlx::query_as(AssertSqlSafe(self.at_or_after.as_str()))
            .bind(stream)
            .bind(created_at)
            .bind(sequence)
            .bind(limit)
            .fetch_all(connection)
            .await
    }

    /// Whether two events were given the same sequence, from this one on.
    pub(super) async fn reused(
        &self,
        connection: &mut PgConnection,
        stream: &str,
        created_at: OffsetDateTime,
        from: i64,
    ) -> sqlx::Result<bool> {
        sqlx::query_scalar(AssertSqlSafe(self.reused.as_str()))
            .bind(stream)
            .bind(created_at)
            .bind(from)
            .fetch_one(connection)
            .await
    }

    /// Moves these events back to the waiting ones. Answers how many there were.
    pub(super) async fn send_again(
        &self,
        connection: &mut PgConnection,
        stream: &str,
        created_at: OffsetDateTime,
        lost: &[Stored],
    ) -> sqlx::Result<u64> {
        let by_id: HashMap<Uuid, i64> =
            lost.iter().map(|at| (at.event_id, at.stream_seq)).collect();
        let (ids, sequences): (Vec<Uuid>, Vec<i64>) = by_id.into_iter().unzip();
        let moved = sqlx::query(AssertSqlSafe(self.send_again.as_str()))
            .bind(stream)
            .bind(created_at)
            .bind(ids)
            .bind(sequences)
            .execute(connection)
            .await?;
        Ok(moved.rows_affected())
    }

    /// Moves up to `limit` events of other streams of this name back to the waiting ones.
    pub(super) async fn send_again_elsewhere(
        &self,
        connection: &mut PgConnection,
        stream: &str,
        created_at: OffsetDateTime,
        limit: i64,
    ) -> sqlx::Result<u64> {
        let row: PgRow = sqlx::query(AssertSqlSafe(self.send_again_elsewhere.as_str()))
            .bind(stream)
            .bind(created_at)
            .bind(limit)
            .fetch_one(connection)
            .await?;
        Ok(u64::try_from(row.try_get::<i64, _>(0)?).unwrap_or(0))
    }
}

/// Events as the arrays that the statement for many takes.
fn columns(
    arguments: &mut PgArguments,
    events: &[Event],
    trace: Option<&str>,
) -> Result<(), BoxDynError> {
    fn column<'e, T>(events: &'e [Event], read: impl Fn(&'e Event) -> T) -> Vec<T> {
        events.iter().map(read).collect()
    }
    arguments.add(column(events, |event| event.id))?;
    arguments.add(column(events, |event| event.event_type.as_str()))?;
    arguments.add(column(events, |event| event.aggregate_key.as_str()))?;
    arguments.add(column(events, |event| event.ordering_key.as_deref()))?;
    arguments.add(column(events, |event| &event.payload[..]))?;
    arguments.add(column(events, |event| {
        event.traceparent.as_deref().or(trace)
    }))?;
    arguments.add(column(events, |event| event.correlation_id.as_deref()))?;
    arguments.add(column(events, |event| event.causation_id))?;
    arguments.add(column(events, |event| event.occurred_at))
}
