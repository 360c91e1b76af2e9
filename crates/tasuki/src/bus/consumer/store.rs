//! How far a consumer has read, where it outlives the process.

use sqlx::{AssertSqlSafe, PgPool};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::bus::ConsumerSpec;
use crate::{Schema, transaction};

const LOAD: &str = "
SELECT stream_created_at, stream_seq, event_id
FROM {schema}.consumer_places
WHERE stream = $1 AND durable = $2";

/// Several processes may read for one durable: the furthest counts.
const SAVE: &str = "
INSERT INTO {schema}.consumer_places AS place
    (stream, durable, stream_created_at, stream_seq, event_id)
VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (stream, durable) DO UPDATE
SET
    stream_created_at = excluded.stream_created_at,
    stream_seq = excluded.stream_seq,
    event_id = excluded.event_id,
    read_at = now()
WHERE excluded.stream_created_at <> place.stream_created_at
    OR excluded.stream_seq > place.stream_seq";

const FORGET: &str = "DELETE FROM {schema}.consumer_places WHERE stream = $1 AND durable = $2";

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
    pool: PgPool,
    load: String,
    save: String,
    forget: String,
}

impl Places {
    pub(super) fn new(pool: PgPool, schema: &Schema) -> Self {
        Self {
            pool,
            load: schema.render(LOAD),
            save: schema.render(SAVE),
            forget: schema.render(FORGET),
        }
    }

    pub(super) async fn load(&self, of: &ConsumerSpec) -> sqlx::Result<Option<Place>> {
        let mut tx = transaction::begin(&self.pool).await?;
        let place: Option<(OffsetDateTime, i64, Uuid)> =
            sqlx::query_as(AssertSqlSafe(self.load.as_str()))
                .bind(&*of.stream.name)
                .bind(&*of.durable)
                .fetch_optional(&mut *tx)
                .await?;
        transaction::commit(tx).await?;
        Ok(place.map(|(created_at, sequence, id)| Place {
            created_at,
            sequence: u64::try_from(sequence).unwrap_or_default(),
            id,
        }))
    }

    pub(super) async fn save(&self, of: &ConsumerSpec, place: &Place) -> sqlx::Result<()> {
        let mut tx = transaction::begin(&self.pool).await?;
        sqlx::query(AssertSqlSafe(self.save.as_str()))
            .bind(&*of.stream.name)
            .bind(&*of.durable)
            .bind(place.created_at)
            .bind(i64::try_from(place.sequence).unwrap_or(i64::MAX))
            .bind(place.id)
            .execute(&mut *tx)
            .await?;
        transaction::commit(tx).await
    }

    pub(super) async fn forget(&self, of: &ConsumerSpec) -> sqlx::Result<()> {
        let mut tx = transaction::begin(&self.pool).await?;
        sqlx::query(AssertSqlSafe(self.forget.as_str()))
            .bind(&*of.stream.name)
            .bind(&*of.durable)
            .execute(&mut *tx)
            .await?;
        transaction::commit(tx).await
    }
}
