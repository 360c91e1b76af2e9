//! Of whom something is to be said, when next, and what was said last.

use std::collections::BTreeSet;
use std::time::Duration;

use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::nostr::{Coordinate, Id, Target};
use crate::store::ingest::version_key;
use crate::trust::Algorithm;

/// How many are looked at in one transaction.
const BATCH: i64 = 50;

/// Has these looked at before long. In the order of their keys, as everybody who writes them: two who do so
/// wait for each other once at most.
pub(crate) async fn mark(
    tx: &mut PgConnection,
    subjects: &BTreeSet<(Target, Algorithm)>,
    within: Duration,
) -> sqlx::Result<()> {
    let mut rows: Vec<_> = subjects
        .iter()
        .map(|(subject, algorithm)| (subject.to_string(), algorithm.name().to_owned()))
        .collect();
    rows.sort_unstable();
    let (subjects, algorithms): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
    sqlx::query!(
        r#"
        INSERT INTO cn_relay.trust_assertions AS assertion (subject, algorithm, due_at)
        SELECT subject, algorithm, clock_timestamp() + make_interval(secs => $3)
        FROM unnest($1::text[], $2::text[]) AS it (subject, algorithm)
        ON CONFLICT (subject, algorithm) DO UPDATE SET due_at = excluded.due_at
        WHERE assertion.due_at > excluded.due_at
        "#,
        &subjects,
        &algorithms,
        within.as_secs_f64(),
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// One whose time has come.
#[derive(Debug)]
pub(crate) struct Due {
    pub(crate) subject: String,
    pub(crate) algorithm: String,
    pub(crate) value: Option<i16>,
    pub(crate) counted: Option<i32>,
    pub(crate) event_id: Option<Vec<u8>>,
}

/// Takes some whose time has come; nobody else does meanwhile.
pub(crate) async fn due(tx: &mut PgConnection) -> sqlx::Result<Vec<Due>> {
    sqlx::query_as!(
        Due,
        r#"
        SELECT subject, algorithm, value, counted, event_id FROM cn_relay.trust_assertions
        WHERE due_at <= clock_timestamp()
        ORDER BY due_at
        LIMIT $1
        FOR UPDATE SKIP LOCKED
        "#,
        BATCH,
    )
    .fetch_all(tx)
    .await
}

/// The latest version of an event, whether anybody sees it or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Latest {
    pub(crate) id: Id,
    pub(crate) created_at: i64,
    /// When it ends; nothing for one that is hidden.
    pub(crate) ends_at: Option<i64>,
    pub(crate) body: String,
}

/// The latest versions of what is at `places`, in their order.
pub(crate) async fn latest(
    connection: &mut PgConnection,
    places: &[Coordinate],
) -> sqlx::Result<Vec<Option<Latest>>> {
    let keys: Vec<_> = places.iter().map(version_key).collect();
    let rows = sqlx::query!(
        r#"
        SELECT
            version_key AS "version_key!", event_id, created_at, body,
            CASE WHEN hidden_at IS NULL THEN expires_at END AS ends_at
        FROM cn_relay.kept_events
        WHERE version_key = ANY($1)
        "#,
        &keys,
    )
    .fetch_all(connection)
    .await?;
    let found = |key: &Uuid| {
        let row = rows.iter().find(|row| row.version_key == *key)?;
        Some(Latest {
            id: Id::from_slice(&row.event_id)?,
            created_at: row.created_at,
            ends_at: row.ends_at,
            body: row.body.clone(),
        })
    };
    Ok(keys.iter().map(found).collect())
}

/// What becomes of one that was looked at.
pub(crate) struct Looked<'a> {
    pub(crate) due: &'a Due,
    /// When again; nothing: there is nothing to say, and nothing was said.
    pub(crate) again_at: Option<i64>,
    /// What is said now, in place of what was said before.
    pub(crate) said: Option<Spoken>,
}

/// What was published.
pub(crate) struct Spoken {
    pub(crate) value: u8,
    pub(crate) counted: u32,
    pub(crate) event: Id,
    pub(crate) expires_at: i64,
}

/// Writes it down.
pub(crate) async fn looked(tx: &mut PgConnection, all: &[Looked<'_>]) -> sqlx::Result<()> {
    for looked in all {
        let Due {
            subject, algorithm, ..
        } = looked.due;
        let Some(again_at) = looked.again_at else {
            sqlx::query!(
                "DELETE FROM cn_relay.trust_assertions WHERE subject = $1 AND algorithm = $2",
                subject,
                algorithm,
            )
            .execute(&mut *tx)
            .await?;
            continue;
        };
        let said = looked.said.as_ref();
        let moment = |at: i64| OffsetDateTime::from_unix_timestamp(at).ok();
        sqlx::query!(
            r#"
            UPDATE cn_relay.trust_assertions
            SET due_at = $3,
                value = coalesce($4, value),
                counted = coalesce($5, counted),
                event_id = coalesce($6, event_id),
                published_at = CASE WHEN $6::bytea IS NULL THEN published_at ELSE now() END,
                expires_at = coalesce($7, expires_at)
            WHERE subject = $1 AND algorithm = $2
            "#,
            subject,
            algorithm,
            moment(again_at).unwrap_or(OffsetDateTime::UNIX_EPOCH),
            said.map(|it| i16::from(it.value)),
            said.map(|it| i32::try_from(it.counted).unwrap_or(i32::MAX)),
            said.map(|it| it.event.0.to_vec()),
            said.and_then(|it| moment(it.expires_at)),
        )
        .execute(&mut *tx)
        .await?;
    }
    Ok(())
}
