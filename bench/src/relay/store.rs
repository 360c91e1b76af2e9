//! A million events in the tables of the relay, and their index made by hand.

use anyhow::Context as _;
use futures_util::TryStreamExt as _;
use sqlx::{Connection as _, PgConnection};
use tokio::time::Instant;

/// Events in one write.
const CHUNK: usize = 2_000;

const COPY_EVENTS: &str = "
COPY cn_relay.events (event_id, ingested_at, pubkey, created_at, kind, topics, body)
FROM STDIN";

/// The rows of the index, as they are.
const COPY_OUT: &str = "COPY cn_relay.search_documents (event_id, created_at, terms) TO STDOUT";
const LIKE_IT: &str = "
DROP TABLE IF EXISTS public.copied;
CREATE TABLE public.copied (
    event_id bytea NOT NULL,
    created_at bigint NOT NULL,
    terms tsvector NOT NULL
)";
const COPY_IN: &str = "COPY public.copied (event_id, created_at, terms) FROM STDIN";
const INDEXES: &str = "
ALTER TABLE public.copied ADD PRIMARY KEY (event_id);
CREATE INDEX ON public.copied USING gin (terms);
CREATE INDEX ON public.copied (created_at DESC, event_id)";

/// Writes rows, each a line as `COPY` reads it.
pub(super) async fn fill(
    connection: &mut PgConnection,
    mut lines: impl Iterator<Item = String>,
) -> sqlx::Result<u64> {
    let mut copy = connection.copy_in_raw(COPY_EVENTS).await?;
    loop {
        let chunk: String = lines.by_ref().take(CHUNK).collect();
        if chunk.is_empty() {
            return copy.finish().await;
        }
        copy.send(chunk.into_bytes()).await?;
    }
}

/// Which table the index is: another one after a rebuild.
pub(super) async fn index(connection: &mut PgConnection) -> sqlx::Result<i64> {
    sqlx::query_scalar("SELECT 'cn_relay.search_documents'::regclass::oid::bigint")
        .fetch_one(connection)
        .await
}

/// How many documents it has.
pub(super) async fn documents(connection: &mut PgConnection) -> anyhow::Result<u32> {
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM cn_relay.search_documents")
        .fetch_one(connection)
        .await?;
    u32::try_from(count).context("more documents than can be")
}

/// Seconds that a copy of the index takes, with its indexes: what no rebuild can do without.
pub(super) async fn copy_and_index(url: &str) -> anyhow::Result<f64> {
    let mut from = PgConnection::connect(url).await?;
    let rows: Vec<_> = from.copy_out_raw(COPY_OUT).await?.try_collect().await?;
    sqlx::raw_sql(LIKE_IT).execute(&mut from).await?;
    sqlx::query("CHECKPOINT").execute(&mut from).await?;
    let began = Instant::now();
    let mut copy = from.copy_in_raw(COPY_IN).await?;
    for rows in rows.chunks(CHUNK) {
        copy.send(rows.concat()).await?;
    }
    copy.finish().await?;
    sqlx::raw_sql(INDEXES).execute(&mut from).await?;
    let seconds = began.elapsed().as_secs_f64();
    sqlx::raw_sql("DROP TABLE public.copied")
        .execute(&mut from)
        .await?;
    from.close().await?;
    Ok(seconds)
}
