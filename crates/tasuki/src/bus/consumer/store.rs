//! How far a consumer has read, where it outlives the process.

use std::time::Duration;

use sqlx::{AssertSqlSafe, PgPool};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::Schema;
use crate::bus::ConsumerSpec;
use crate::lease::{Line, OwnPool, Route, within};

const LOAD: &str = "
SELECT stream_created_at, stream_seq, event_id
FROM {schema}.consumer_places
WHERE stream = $1 AND durable = $2";

/// Several processes may read for one durable: the furthest counts. One statement, which does not
/// wait for the disk: nobody should hold this row for longer than the server takes, and a place that
/// a crash of the database takes along is only an older one.
const SAVE: &str = "
INSERT INTO {schema}.consumer_places AS place
    (stream, durable, stream_created_at, stream_seq, event_id)
SELECT $1::text, $2::text, $3::timestamptz, $4::bigint, $5::uuid
WHERE set_config('synchronous_commit', 'off', TRUE) = 'off'
ON CONFLICT (stream, durable) DO UPDATE
SET
    stream_created_at = excluded.stream_created_at,
    stream_seq = excluded.stream_seq,
    event_id = excluded.event_id,
    read_at = now()
WHERE excluded.stream_created_at > place.stream_created_at
    OR (
        excluded.stream_created_at = place.stream_created_at
        AND excluded.stream_seq > place.stream_seq
    )";

/// Only what we know to be gone: another process may have begun anew already.
const FORGET: &str = "
DELETE FROM {schema}.consumer_places
WHERE stream = $1
    AND durable = $2
    AND stream_created_at = $3
    AND stream_seq = $4
    AND event_id = $5";

/// How long a statement may take.
const LIMIT: Duration = Duration::from_secs(5);

/// A message that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) created_at: OffsetDateTime,
    pub(super) sequence: u64,
    pub(super) id: Uuid,
}

/// The places in one schema.
#[derive(Debug)]
pub(super) struct Places {
    pool: OwnPool,
    pub(super) route: Route,
    load: String,
    save: String,
    forget: String,
}

impl Places {
    pub(super) fn new(pool: PgPool, schema: &Schema) -> Self {
        Self {
            pool: OwnPool::beside(pool, 1),
            route: Route::Direct,
            load: schema.render(LOAD),
            save: schema.render(SAVE),
            forget: schema.render(FORGET),
        }
    }

    pub(super) async fn load(&self, of: &ConsumerSpec) -> sqlx::Result<Option<Place>> {
        let mut line = Line::open(self.pool.get(), self.route).await?;
        let place = sqlx::query_as(AssertSqlSafe(self.load.as_str()))
            .bind(&*of.stream.name)
            .bind(&*of.durable)
            .fetch_optional(line.connection());
        let place: Option<(OffsetDateTime, i64, Uuid)> =
            within(LIMIT, place).await.inspect_err(|_| line.hang_up())?;
        line.close().await?;
        Ok(place.map(|(created_at, sequence, id)| Place {
            created_at,
            sequence: u64::try_from(sequence).unwrap_or_default(),
            id,
        }))
    }

    pub(super) async fn save(&self, of: &ConsumerSpec, place: &Place) -> sqlx::Result<()> {
        self.execute(&self.save, of, place).await
    }

    pub(super) async fn forget(&self, of: &ConsumerSpec, place: &Place) -> sqlx::Result<()> {
        self.execute(&self.forget, of, place).await
    }

    async fn execute(&self, sql: &str, of: &ConsumerSpec, place: &Place) -> sqlx::Result<()> {
        let mut line = Line::open(self.pool.get(), self.route).await?;
        let done = sqlx::query(AssertSqlSafe(sql))
            .bind(&*of.stream.name)
            .bind(&*of.durable)
            .bind(place.created_at)
            .bind(i64::try_from(place.sequence).unwrap_or(i64::MAX))
            .bind(place.id)
            .execute(line.connection());
        within(LIMIT, done).await.inspect_err(|_| line.hang_up())?;
        line.close().await
    }
}
