//! Contacts made anew beside those in use. The history of reports stays, and gets what it lacks.

use std::collections::HashMap;

use sqlx::{Connection as _, PgConnection};

use super::super::fresh::Fresh;
use super::contacts::Columns;
use crate::nostr::{Id, Key};
use crate::trust::Said;

/// The table of an attempt at a rebuild.
pub(crate) const fn fresh(attempt: i64) -> Fresh {
    Fresh::new("trust_contacts", attempt)
}

/// An empty table beside the one in use; what earlier attempts have left goes.
pub(crate) async fn begin(connection: &mut PgConnection, fresh: Fresh) -> sqlx::Result<()> {
    let make = "CREATE TABLE cn_relay.trust_contacts_fresh (
             event_id bytea NOT NULL,
             reference bytea NOT NULL,
             from_key bytea NOT NULL,
             to_key bytea,
             said_at bigint NOT NULL
         )";
    fresh.make(connection, make).await
}

/// Fills it.
pub(crate) async fn fill(
    connection: &mut PgConnection,
    fresh: Fresh,
    said: &[Said],
    authors: &HashMap<Id, Key>,
) -> sqlx::Result<()> {
    let columns = Columns::of(said, authors);
    sqlx::query(fresh.named(
        "INSERT INTO cn_relay.trust_contacts_fresh (event_id, reference, from_key, to_key, said_at)
         SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bytea[], $4::bytea[], $5::bigint[])",
    ))
    .bind(&columns.events)
    .bind(&columns.references)
    .bind(&columns.from)
    .bind(&columns.to)
    .bind(&columns.at)
    .execute(connection)
    .await?;
    Ok(())
}

/// Its indexes, once it is full. Who made an event that is gone by now is known from the table in use: an
/// id belongs to one author for ever.
pub(crate) async fn finish(connection: &mut PgConnection, fresh: Fresh) -> sqlx::Result<()> {
    let mut tx = connection.begin().await?;
    sqlx::raw_sql(fresh.named(
        "SET LOCAL statement_timeout = 0;
         ALTER TABLE cn_relay.trust_contacts_fresh
             ADD CONSTRAINT trust_contacts_fresh_pkey PRIMARY KEY (event_id, reference);
         UPDATE cn_relay.trust_contacts_fresh AS made
         SET to_key = known.to_key
         FROM cn_relay.trust_contacts AS known
         WHERE made.to_key IS NULL AND known.to_key IS NOT NULL
             AND known.event_id = made.event_id AND known.reference = made.reference;
         CREATE INDEX trust_contacts_fresh_pair_idx
             ON cn_relay.trust_contacts_fresh (from_key, to_key, said_at);
         CREATE INDEX trust_contacts_fresh_unknown_idx
             ON cn_relay.trust_contacts_fresh (reference) WHERE to_key IS NULL;
         ANALYZE cn_relay.trust_contacts_fresh;",
    ))
    .execute(&mut *tx)
    .await?;
    tx.commit().await
}

/// Reports of events whose author is known by now.
pub(crate) async fn learn_all(connection: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        UPDATE cn_relay.trust_reports AS report
        SET author = encode(event.pubkey, 'hex')
        FROM (
            SELECT event_id, pubkey FROM cn_relay.events
            UNION ALL
            SELECT event_id, pubkey FROM cn_relay.kept_events
        ) AS event
        WHERE report.author IS NULL AND starts_with(report.target, 'event:')
            AND event.event_id = CASE
                WHEN starts_with(report.target, 'event:') THEN decode(substr(report.target, 7), 'hex')
            END
        "#,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Puts the table in the place of the one in use, and has everything looked at again.
pub(crate) async fn switch(tx: &mut PgConnection, fresh: Fresh) -> sqlx::Result<()> {
    sqlx::raw_sql(fresh.named(
        "DROP TABLE cn_relay.trust_contacts;
         ALTER TABLE cn_relay.trust_contacts_fresh RENAME TO trust_contacts;
         ALTER TABLE cn_relay.trust_contacts
             RENAME CONSTRAINT trust_contacts_fresh_pkey TO trust_contacts_pkey;
         ALTER INDEX cn_relay.trust_contacts_fresh_pair_idx RENAME TO trust_contacts_pair_idx;
         ALTER INDEX cn_relay.trust_contacts_fresh_unknown_idx RENAME TO trust_contacts_unknown_idx;
         INSERT INTO cn_relay.trust_assertions AS assertion (subject, algorithm, due_at)
         SELECT subject, algorithm, now()
         FROM (
             SELECT 'pubkey:' || encode(from_key, 'hex') AS subject, 'density' AS algorithm
             FROM cn_relay.trust_contacts
             UNION
             SELECT target, 'risk' FROM cn_relay.trust_reports
             UNION
             SELECT 'pubkey:' || author, 'risk' FROM cn_relay.trust_reports WHERE author IS NOT NULL
             UNION
             SELECT subject, algorithm FROM cn_relay.trust_assertions
         ) AS concerned
         ORDER BY subject, algorithm
         ON CONFLICT (subject, algorithm) DO UPDATE
         SET due_at = least(assertion.due_at, excluded.due_at);",
    ))
    .execute(&mut *tx)
    .await?;
    fresh.drop_earlier(tx).await
}
