//! Who has said something to whom. What changes something answers whom it concerns.

use std::collections::{BTreeSet, HashMap};

use sqlx::PgConnection;

use super::events::key;
use crate::nostr::{Id, Key};
use crate::trust::{Reference, Said};

/// What is said, by columns.
pub(super) struct Columns {
    pub(super) events: Vec<Vec<u8>>,
    pub(super) references: Vec<Vec<u8>>,
    pub(super) from: Vec<Vec<u8>>,
    pub(super) to: Vec<Option<Vec<u8>>>,
    pub(super) at: Vec<i64>,
}

impl Columns {
    pub(super) fn of(said: &[Said], authors: &HashMap<Id, Key>) -> Self {
        let each = || said.iter();
        let to = |it: &Said| match it.to {
            Reference::Key(key) => Some(key.0.to_vec()),
            Reference::Event(id) => authors.get(&id).map(|key| key.0.to_vec()),
        };
        Self {
            events: each().map(|it| it.event.0.to_vec()).collect(),
            references: each().map(|it| it.to.bytes().to_vec()).collect(),
            from: each().map(|it| it.from.0.to_vec()).collect(),
            to: each().map(to).collect(),
            at: each().map(|it| it.at).collect(),
        }
    }
}

/// Puts in what is said. `authors` are those who are known of the events that are answered.
pub(crate) async fn put(
    tx: &mut PgConnection,
    said: &[Said],
    authors: &HashMap<Id, Key>,
) -> sqlx::Result<BTreeSet<Key>> {
    let columns = Columns::of(said, authors);
    let rows = sqlx::query!(
        r#"
        INSERT INTO cn_relay.trust_contacts AS contact (event_id, reference, from_key, to_key, said_at)
        SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bytea[], $4::bytea[], $5::bigint[])
        ON CONFLICT (event_id, reference) DO UPDATE SET to_key = excluded.to_key
        WHERE contact.to_key IS NULL AND excluded.to_key IS NOT NULL
        RETURNING from_key, to_key
        "#,
        &columns.events,
        &columns.references,
        &columns.from,
        &columns.to as &[Option<Vec<u8>>],
        &columns.at,
    )
    .fetch_all(tx)
    .await?;
    let rows = rows.iter().map(|row| (&row.from_key, &row.to_key));
    Ok(both(rows))
}

/// Takes out what events have said that nobody sees any more.
pub(crate) async fn remove(tx: &mut PgConnection, ids: &[Id]) -> sqlx::Result<BTreeSet<Key>> {
    let ids: Vec<_> = ids.iter().map(|id| id.0.to_vec()).collect();
    let rows = sqlx::query!(
        "DELETE FROM cn_relay.trust_contacts WHERE event_id = ANY($1) RETURNING from_key, to_key",
        &ids,
    )
    .fetch_all(tx)
    .await?;
    let rows = rows.iter().map(|row| (&row.from_key, &row.to_key));
    Ok(both(rows))
}

/// Events have come that were answered before.
pub(crate) async fn learn(
    tx: &mut PgConnection,
    authors: &[(Id, Key)],
) -> sqlx::Result<BTreeSet<Key>> {
    let ids: Vec<_> = authors.iter().map(|(id, _)| id.0.to_vec()).collect();
    let keys: Vec<_> = authors.iter().map(|(_, key)| key.0.to_vec()).collect();
    let rows = sqlx::query!(
        r#"
        UPDATE cn_relay.trust_contacts AS contact
        SET to_key = known.author
        FROM unnest($1::bytea[], $2::bytea[]) AS known (event_id, author)
        WHERE contact.reference = known.event_id AND contact.to_key IS NULL
        RETURNING contact.from_key, contact.to_key
        "#,
        &ids,
        &keys,
    )
    .fetch_all(tx)
    .await?;
    let rows = rows.iter().map(|row| (&row.from_key, &row.to_key));
    Ok(both(rows))
}

/// Who is on either side; nobody where one is not known.
fn both<'a>(rows: impl Iterator<Item = (&'a Vec<u8>, &'a Option<Vec<u8>>)>) -> BTreeSet<Key> {
    let known = rows.filter_map(|(from, to)| Some([key(from)?, key(to.as_deref()?)?]));
    known.flatten().collect()
}
