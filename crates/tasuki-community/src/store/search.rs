//! Documents of the index.
//!
//! A transaction that changes documents does not wait for the disk: whoever stores events would wait behind
//! it. After a crash of the server the last ones may be gone, and with each the offset that it has moved,
//! so their rows of the log come again.

use sqlx::{AssertSqlSafe, PgConnection};

use super::fresh::Fresh;
use crate::nostr::Id;
use crate::search::{Document, Query};

/// How many events a rebuild reads at a time.
const BATCH: u32 = 500;
/// So many documents are sorted rather than read in order.
const FEW: i64 = 3_000;

/// Puts documents in, or in the place of those that are there.
pub(crate) async fn put(tx: &mut PgConnection, documents: &[Document]) -> sqlx::Result<()> {
    let columns = Columns::of(documents);
    sqlx::query!(
        r#"
        INSERT INTO cn_relay.search_documents (event_id, created_at, terms)
        SELECT it.event_id, it.created_at, it.terms::tsvector || to_tsvector('pg_catalog.english', it.words)
        FROM unnest($1::bytea[], $2::bigint[], $3::text[], $4::text[])
            AS it (event_id, created_at, terms, words)
        WHERE (SELECT set_config('synchronous_commit', 'off', TRUE)) = 'off'
        ON CONFLICT (event_id) DO UPDATE SET terms = excluded.terms
        "#,
        &columns.ids,
        &columns.created,
        &columns.vectors,
        &columns.words,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Takes documents out.
pub(crate) async fn remove(tx: &mut PgConnection, ids: &[Id]) -> sqlx::Result<()> {
    let ids: Vec<_> = ids.iter().map(|id| id.0.to_vec()).collect();
    sqlx::query!(
        r#"
        DELETE FROM cn_relay.search_documents
        WHERE event_id = ANY($1) AND (SELECT set_config('synchronous_commit', 'off', TRUE)) = 'off'
        "#,
        &ids
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// The ids of what `query` finds, newest first. Some may have gone since they were indexed.
///
/// How much it finds decides the way in, and nobody knows that before: words that always stand together, as
/// the pairs of one Japanese word do, are estimated as if they did not. So the index of words is asked for
/// a few; if there are more than that, reading the newest documents soon finds enough.
pub(crate) async fn indexed(
    connection: &mut PgConnection,
    query: &Query,
    limit: i64,
) -> sqlx::Result<Vec<Id>> {
    let rows = sqlx::query!(
        r#"
        WITH few AS MATERIALIZED (
            SELECT event_id, created_at FROM cn_relay.search_documents
            WHERE terms @@ (CASE
                WHEN $1 = '' THEN $2::text::tsquery
                WHEN $2 = '' THEN plainto_tsquery('pg_catalog.english', $1)
                ELSE plainto_tsquery('pg_catalog.english', $1) && $2::text::tsquery
            END)
            LIMIT $4
        )

        SELECT event_id, (SELECT count(*) FROM few) AS "count!"
        FROM few
        ORDER BY created_at DESC, event_id
        LIMIT $3
        "#,
        query.words,
        query.rest,
        limit,
        FEW + 1,
    )
    .fetch_all(&mut *connection)
    .await?;
    let ids: Vec<_> = if rows.first().is_some_and(|row| row.count > FEW) {
        newest(connection, query, limit).await?
    } else {
        rows.into_iter().map(|row| row.event_id).collect()
    };
    Ok(ids.iter().filter_map(|id| Id::from_slice(id)).collect())
}

/// The same, by reading the newest documents until there are enough. `IS TRUE` keeps the index of words out.
async fn newest(
    connection: &mut PgConnection,
    query: &Query,
    limit: i64,
) -> sqlx::Result<Vec<Vec<u8>>> {
    sqlx::query_scalar!(
        r#"
        SELECT event_id FROM cn_relay.search_documents
        WHERE terms @@ (CASE
            WHEN $1 = '' THEN $2::text::tsquery
            WHEN $2 = '' THEN plainto_tsquery('pg_catalog.english', $1)
            ELSE plainto_tsquery('pg_catalog.english', $1) && $2::text::tsquery
        END) IS TRUE
        ORDER BY created_at DESC, event_id
        LIMIT $3
        "#,
        query.words,
        query.rest,
        limit,
    )
    .fetch_all(connection)
    .await
}

/// The same, of what can be seen now. Each that is found is looked for in the tables before the newest are
/// taken, so it is for when [`indexed`] does not do.
pub(crate) async fn visible_only(
    connection: &mut PgConnection,
    query: &Query,
    limit: i64,
) -> sqlx::Result<Vec<Id>> {
    let rows = sqlx::query_scalar!(
        r#"
        SELECT event_id FROM cn_relay.search_documents
        WHERE terms @@ (CASE
            WHEN $1 = '' THEN $2::text::tsquery
            WHEN $2 = '' THEN plainto_tsquery('pg_catalog.english', $1)
            ELSE plainto_tsquery('pg_catalog.english', $1) && $2::text::tsquery
        END)
            AND (
                EXISTS (
                    SELECT FROM cn_relay.events AS event
                    WHERE event.event_id = search_documents.event_id AND event.hidden_at IS NULL
                ) OR EXISTS (
                    SELECT FROM cn_relay.kept_events AS event
                    WHERE event.event_id = search_documents.event_id AND event.hidden_at IS NULL
                )
            )
        ORDER BY created_at DESC, event_id
        LIMIT $3
        "#,
        query.words,
        query.rest,
        limit,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows.iter().filter_map(|id| Id::from_slice(id)).collect())
}

/// An event, and its topics.
pub(crate) type Visible = (String, Vec<String>);

/// Begins to read all visible events of these kinds, in a snapshot and in the order of the tables: that is
/// the only one in which reading all of them is quick, and about the one in which documents are read later.
pub(crate) async fn begin_reading(
    connection: &mut PgConnection,
    kinds: &[u16],
) -> sqlx::Result<()> {
    let kinds: Vec<_> = kinds.iter().map(ToString::to_string).collect();
    let kinds = kinds.join(",");
    let of = |table: &str| {
        format!(
            "SELECT body, topics FROM cn_relay.{table}
             WHERE kind = ANY('{{{kinds}}}'::integer[]) AND hidden_at IS NULL"
        )
    };
    let (regular, kept) = (of("events"), of("kept_events"));
    let declare = format!(
        "SET LOCAL enable_seqscan = on;
         -- Of a kind that is rare, a page may be far away.
         SET LOCAL statement_timeout = 0;
         DECLARE visible NO SCROLL CURSOR FOR {regular} UNION ALL {kept}"
    );
    // Safe: nothing is written into it but numbers.
    sqlx::raw_sql(AssertSqlSafe(declare))
        .execute(connection)
        .await?;
    Ok(())
}

/// The next of them; nothing at the end.
pub(crate) async fn read(connection: &mut PgConnection) -> sqlx::Result<Vec<Visible>> {
    let fetch = AssertSqlSafe(format!("FETCH FORWARD {BATCH} FROM visible"));
    let fetch = sqlx::query_as(fetch);
    // It would name a cursor that is gone with this transaction.
    fetch.persistent(false).fetch_all(connection).await
}

/// The table of an attempt at a rebuild.
pub(crate) const fn fresh(attempt: i64) -> Fresh {
    Fresh::new("search_documents", attempt)
}

/// An empty table beside the one in use; what earlier attempts have left goes.
pub(crate) async fn begin_rebuild(connection: &mut PgConnection, fresh: Fresh) -> sqlx::Result<()> {
    let make = "CREATE TABLE cn_relay.search_documents_fresh (
             event_id bytea NOT NULL,
             created_at bigint NOT NULL,
             terms tsvector NOT NULL
         )";
    fresh.make(connection, make).await
}

/// Fills it. That is on disk when [`finish_rebuild`] is.
pub(crate) async fn fill(
    connection: &mut PgConnection,
    fresh: Fresh,
    documents: &[Document],
) -> sqlx::Result<()> {
    if documents.is_empty() {
        return Ok(());
    }
    let columns = Columns::of(documents);
    sqlx::query(fresh.named(
        "INSERT INTO cn_relay.search_documents_fresh (event_id, created_at, terms)
         SELECT it.event_id, it.created_at, it.terms::tsvector || to_tsvector('pg_catalog.english', it.words)
         FROM unnest($1::bytea[], $2::bigint[], $3::text[], $4::text[])
             AS it (event_id, created_at, terms, words)
         WHERE (SELECT set_config('synchronous_commit', 'off', TRUE)) = 'off'",
    ))
    .bind(&columns.ids)
    .bind(&columns.created)
    .bind(&columns.vectors)
    .bind(&columns.words)
    .execute(connection)
    .await?;
    Ok(())
}

/// Its index of words, once it is full.
pub(crate) async fn index_words(connection: &mut PgConnection, fresh: Fresh) -> sqlx::Result<()> {
    let index = "CREATE INDEX search_documents_fresh_terms_idx
             ON cn_relay.search_documents_fresh USING gin (terms)";
    fresh.at_length(connection, index).await
}

/// Its other indexes, at the same time.
pub(crate) async fn index_rest(connection: &mut PgConnection, fresh: Fresh) -> sqlx::Result<()> {
    let indexes = "CREATE UNIQUE INDEX search_documents_fresh_pkey
             ON cn_relay.search_documents_fresh (event_id);
         CREATE INDEX search_documents_fresh_created_idx
             ON cn_relay.search_documents_fresh (created_at DESC, event_id)";
    fresh.at_length(connection, indexes).await
}

/// What is left to do when it has all of them.
pub(crate) async fn finish_rebuild(
    connection: &mut PgConnection,
    fresh: Fresh,
) -> sqlx::Result<()> {
    let finish = "ALTER TABLE cn_relay.search_documents_fresh
             ADD PRIMARY KEY USING INDEX search_documents_fresh_pkey;
         ANALYZE cn_relay.search_documents_fresh";
    fresh.at_length(connection, finish).await
}

/// Puts it in the place of the one in use.
pub(crate) async fn switch(tx: &mut PgConnection, fresh: Fresh) -> sqlx::Result<()> {
    sqlx::raw_sql(fresh.named(
        "DROP TABLE cn_relay.search_documents;
         ALTER TABLE cn_relay.search_documents_fresh RENAME TO search_documents;
         ALTER TABLE cn_relay.search_documents
             RENAME CONSTRAINT search_documents_fresh_pkey TO search_documents_pkey;
         ALTER INDEX cn_relay.search_documents_fresh_terms_idx RENAME TO search_documents_terms_idx;
         ALTER INDEX cn_relay.search_documents_fresh_created_idx
             RENAME TO search_documents_created_idx;",
    ))
    .execute(&mut *tx)
    .await?;
    fresh.drop_earlier(tx).await
}

/// Documents by columns.
struct Columns {
    ids: Vec<Vec<u8>>,
    created: Vec<i64>,
    vectors: Vec<String>,
    words: Vec<String>,
}

impl Columns {
    fn of(documents: &[Document]) -> Self {
        let each = || documents.iter();
        Self {
            ids: each().map(|it| it.id.clone()).collect(),
            created: each().map(|it| it.created_at).collect(),
            vectors: each().map(|it| it.vector.clone()).collect(),
            words: each().map(|it| it.words.clone()).collect(),
        }
    }
}
