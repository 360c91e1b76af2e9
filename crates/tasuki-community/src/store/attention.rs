//! Who pays attention to what, and what gets the most of it.
//!
//! A row is there as long as the event that pays attention can be seen, and counts as long as its target can.
//! Nothing waits for the disk, as with documents.

use std::sync::Arc;

use sqlx::PgConnection;

use super::fresh::Fresh;
use crate::nostr::{Event, Id};
use crate::search::{Attention, Window};

/// Rows that one question reads. Those behind them are the oldest, and weigh least.
const READ: i64 = 20_000;

/// What stands for all topics.
pub(crate) const ALL: &str = "";

/// What events say of others, by columns.
struct Columns {
    events: Vec<Vec<u8>>,
    targets: Vec<Vec<u8>>,
    from: Vec<Vec<u8>>,
    kinds: Vec<i32>,
    at: Vec<i64>,
}

impl Columns {
    fn of(given: &[Attention]) -> Self {
        let each = || given.iter();
        Self {
            events: each().map(|it| it.event.0.to_vec()).collect(),
            targets: each().map(|it| it.target.0.to_vec()).collect(),
            from: each().map(|it| it.from.0.to_vec()).collect(),
            kinds: each().map(|it| it.kind.into()).collect(),
            at: each().map(|it| it.at).collect(),
        }
    }
}

/// Puts in what events say.
pub(crate) async fn put(tx: &mut PgConnection, given: &[Attention]) -> sqlx::Result<()> {
    let columns = Columns::of(given);
    sqlx::query_file!(
        "src/store/attention.sql",
        &columns.events,
        &columns.targets,
        &columns.from,
        &columns.kinds,
        &columns.at,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Events have come that others may have named before: that counts from now on, in their topics.
pub(crate) async fn learn(
    tx: &mut PgConnection,
    come: &[(Arc<Event>, &[String])],
) -> sqlx::Result<()> {
    let (mut targets, mut authors, mut topics) = (Vec::new(), Vec::new(), Vec::new());
    for (event, named) in come {
        for topic in named.iter().map(String::as_str).chain([ALL]) {
            targets.push(event.id.0.to_vec());
            authors.push(event.author.0.to_vec());
            topics.push(topic.to_owned());
        }
    }
    sqlx::query!(
        r#"
        WITH given AS MATERIALIZED (
            SELECT event_id, target, from_key, kind, given_at FROM cn_relay.attention
            WHERE target = ANY($1) AND topic = '' AND NOT counts
        )

        INSERT INTO cn_relay.attention AS known (
            event_id, target, topic, counts, from_key, kind, given_at
        )
        SELECT
            given.event_id, given.target, come.topic, TRUE, given.from_key, given.kind, given.given_at
        FROM given
        JOIN unnest($1::bytea[], $2::bytea[], $3::text[]) AS come (target, author, topic)
            ON come.target = given.target AND come.author <> given.from_key
        WHERE (SELECT set_config('synchronous_commit', 'off', TRUE)) = 'off'
        ON CONFLICT (event_id, target, topic) DO UPDATE SET counts = TRUE
        "#,
        &targets,
        &authors,
        &topics,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Events have gone: what they say is nothing any more, and what others say of them counts nowhere.
pub(crate) async fn remove(tx: &mut PgConnection, gone: &[Id]) -> sqlx::Result<()> {
    let gone: Vec<_> = gone.iter().map(|id| id.0.to_vec()).collect();
    sqlx::query!(
        r#"
        WITH removed AS (
            DELETE FROM cn_relay.attention
            WHERE event_id = ANY($1) AND (SELECT set_config('synchronous_commit', 'off', TRUE)) = 'off'
        ),

        nowhere AS (
            DELETE FROM cn_relay.attention
            WHERE target = ANY($1) AND topic <> '' AND NOT event_id = ANY($1)
        )

        UPDATE cn_relay.attention SET counts = FALSE
        WHERE target = ANY($1) AND topic = '' AND counts AND NOT event_id = ANY($1)
        "#,
        &gone,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// How much attention an event gets.
#[derive(Clone, Debug)]
pub(crate) struct Trending {
    pub(crate) target: Vec<u8>,
    pub(crate) score: f64,
    pub(crate) people: i64,
}

/// What gets the most attention in a topic, or in [`ALL`]. Some may have gone since.
pub(crate) async fn trending(
    connection: &mut PgConnection,
    topic: &str,
    window: Window,
    limit: i64,
) -> sqlx::Result<Vec<Trending>> {
    let seconds = i64::try_from(window.length().as_secs()).unwrap_or(i64::MAX);
    sqlx::query_file_as!(
        Trending,
        "src/store/trending.sql",
        topic,
        seconds,
        window.half_life().as_secs_f64(),
        READ,
        limit,
    )
    .fetch_all(connection)
    .await
}

/// The table of an attempt at a rebuild.
pub(crate) const fn fresh(attempt: i64) -> Fresh {
    Fresh::new("attention", attempt)
}

/// An empty table beside the one in use; what earlier attempts have left goes.
pub(crate) async fn begin_rebuild(connection: &mut PgConnection, fresh: Fresh) -> sqlx::Result<()> {
    let make = "CREATE TABLE cn_relay.attention_fresh (
             event_id bytea NOT NULL,
             target bytea NOT NULL,
             topic text NOT NULL,
             counts boolean NOT NULL,
             from_key bytea NOT NULL,
             kind integer NOT NULL,
             given_at bigint NOT NULL,
             CONSTRAINT attention_fresh_pkey PRIMARY KEY (event_id, target, topic)
         )";
    fresh.make(connection, make).await
}

/// Fills it. Targets are as they are now, and not as they were: whatever has become of them since, the log
/// says next.
pub(crate) async fn fill(
    connection: &mut PgConnection,
    fresh: Fresh,
    given: &[Attention],
) -> sqlx::Result<()> {
    if given.is_empty() {
        return Ok(());
    }
    let columns = Columns::of(given);
    let put = include_str!("attention.sql");
    let put = put.replace(
        "cn_relay.attention AS known",
        "cn_relay.attention_fresh AS known",
    );
    sqlx::query(fresh.named(&put))
        .bind(&columns.events)
        .bind(&columns.targets)
        .bind(&columns.from)
        .bind(&columns.kinds)
        .bind(&columns.at)
        .execute(connection)
        .await?;
    Ok(())
}

/// Its other indexes, once it is full.
pub(crate) async fn finish_rebuild(
    connection: &mut PgConnection,
    fresh: Fresh,
) -> sqlx::Result<()> {
    let finish =
        "CREATE INDEX attention_fresh_topic_idx ON cn_relay.attention_fresh (topic, given_at DESC)
             INCLUDE (target, from_key, kind) WHERE counts;
         CREATE INDEX attention_fresh_target_idx ON cn_relay.attention_fresh (target, topic);
         ANALYZE cn_relay.attention_fresh";
    fresh.at_length(connection, finish).await
}

/// Puts it in the place of the one in use.
pub(crate) async fn switch(tx: &mut PgConnection, fresh: Fresh) -> sqlx::Result<()> {
    sqlx::raw_sql(fresh.named(
        "DROP TABLE cn_relay.attention;
         ALTER TABLE cn_relay.attention_fresh RENAME TO attention;
         ALTER TABLE cn_relay.attention RENAME CONSTRAINT attention_fresh_pkey TO attention_pkey;
         ALTER INDEX cn_relay.attention_fresh_topic_idx RENAME TO attention_topic_idx;
         ALTER INDEX cn_relay.attention_fresh_target_idx RENAME TO attention_target_idx;",
    ))
    .execute(&mut *tx)
    .await?;
    fresh.drop_earlier(tx).await
}
