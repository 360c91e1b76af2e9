//! Events that arrive together: what is known of them, and what becomes of them.

use std::collections::BTreeMap;

use sqlx::PgConnection;
use tasuki::idempotency::LockNumber;
use uuid::Uuid;

use crate::NAME;
use crate::domain::{Known, Plan, Version};
use crate::nostr::{Class, Coordinate, DELETION, Event, Id, class, short_hash};

/// The locks on every event and version that `events` are, or delete: who has them decides alone.
pub(crate) fn locks(events: &[&Event]) -> Vec<LockNumber> {
    let mut locks = Vec::with_capacity(events.len());
    let of = |kind: &str, what: &str| LockNumber::of(&[NAME, kind, what]);
    for event in events {
        locks.push(of("event", &event.id.to_string()));
        locks.extend(event.coordinate().map(|it| of("version", &it.to_string())));
        let deletion = event.deletion().unwrap_or_default();
        locks.extend(deletion.ids.iter().map(|it| of("event", &it.to_string())));
        let versions = deletion.coordinates.iter();
        locks.extend(versions.map(|it| of("version", &it.to_string())));
    }
    locks
}

/// Takes locks in a transaction that has begun without them. In the order of their numbers, so that two
/// batches never wait for each other.
pub(crate) async fn lock(tx: &mut PgConnection, locks: Vec<LockNumber>) -> sqlx::Result<()> {
    let mut locks: Vec<_> = locks.into_iter().map(LockNumber::get).collect();
    locks.sort_unstable();
    locks.dedup();
    sqlx::query!(
        r#"SELECT pg_advisory_xact_lock(number) AS "nothing!: ()" FROM unnest($1::bigint[]) AS number"#,
        &locks,
    )
    .fetch_all(tx)
    .await?;
    Ok(())
}

/// What is known of `events`.
pub(crate) async fn known(tx: &mut PgConnection, events: &[&Event]) -> sqlx::Result<Known> {
    let coordinates: Vec<_> = events.iter().map(|event| event.coordinate()).collect();
    let ids: Vec<_> = events.iter().map(|event| event.id.0.to_vec()).collect();
    let targets: Vec<_> = events.iter().map(|event| target(&event.id)).collect();
    let authors: Vec<_> = events.iter().map(|event| event.author.0.to_vec()).collect();
    let versions: Vec<_> = coordinates
        .iter()
        .map(|it| it.as_ref().map(version_key))
        .collect();
    let rows = sqlx::query_file!(
        "src/store/known.sql",
        &ids,
        &targets,
        &authors,
        &versions as &[Option<Uuid>],
    )
    .fetch_all(tx)
    .await?;
    let mut known = Known::default();
    for row in rows {
        known.now = row.now;
        let place = usize::try_from(row.place - 1).unwrap_or(usize::MAX);
        let (Some(event), Some(coordinate)) = (events.get(place), coordinates.get(place)) else {
            continue;
        };
        if row.is_seen {
            known.seen.insert(event.id);
        }
        if row.is_deleted {
            known.deleted.insert((event.id, event.author));
        }
        let Some(coordinate) = coordinate else {
            continue;
        };
        if let Some(until) = row.deleted_until {
            known.deleted_until.insert(coordinate.clone(), until);
        }
        let id = row.latest_id.as_deref().and_then(Id::from_slice);
        if let (Some(id), Some(created_at)) = (id, row.latest_created_at) {
            let version = Version { created_at, id };
            known.latest.insert(coordinate.clone(), version);
        }
    }
    Ok(known)
}

/// Writes what was decided.
pub(crate) async fn write(
    tx: &mut PgConnection,
    events: &[&Event],
    topics: &[&[String]],
    plan: &Plan,
) -> sqlx::Result<()> {
    let versions: Vec<_> = plan.replaced.iter().map(version_key).collect();
    if !plan.deletions.is_empty() {
        hold(tx, events, plan, &versions).await?;
    }
    if !versions.is_empty() {
        sqlx::query_file!("src/store/replaced.sql", &versions)
            .execute(&mut *tx)
            .await?;
    }
    if !plan.accepted.is_empty() {
        store(tx, events, topics, plan).await?;
    }
    if !plan.deletions.is_empty() {
        delete(tx, events, plan).await?;
    }
    Ok(())
}

/// Locks the rows that are replaced and deleted. The locks on ids and versions do not keep two batches from
/// each other here: who deletes an event by its id knows nothing of its version.
async fn hold(
    tx: &mut PgConnection,
    events: &[&Event],
    plan: &Plan,
    replaced: &[Uuid],
) -> sqlx::Result<()> {
    let (mut versions, mut ids) = (replaced.to_vec(), Vec::new());
    for event in plan.deletions.iter().filter_map(|index| events.get(*index)) {
        let asked = event.deletion().unwrap_or_default();
        ids.extend(asked.ids.iter().map(|id| id.0.to_vec()));
        versions.extend(asked.coordinates.iter().map(version_key));
    }
    sqlx::query_file!("src/store/held.sql", &versions, &ids)
        .fetch_all(tx)
        .await?;
    Ok(())
}

/// The columns of what is stored.
#[derive(Default)]
struct Rows {
    ids: Vec<Vec<u8>>,
    authors: Vec<Vec<u8>>,
    created: Vec<i64>,
    kinds: Vec<i32>,
    ends: Vec<Option<i64>>,
    versions: Vec<Option<Uuid>>,
    effective: Vec<Option<String>>,
    bodies: Vec<String>,
    topics: Vec<String>,
    tag_keys: Vec<Uuid>,
    tag_created: Vec<i64>,
    tag_ids: Vec<Vec<u8>>,
    tag_kept: Vec<bool>,
}

impl Rows {
    fn add(&mut self, event: &Event, topics: &[String]) {
        let coordinate = event.coordinate();
        self.ids.push(event.id.0.to_vec());
        self.authors.push(event.author.0.to_vec());
        self.created.push(event.created_at);
        self.kinds.push(event.kind.into());
        self.ends.push(event.expiration());
        self.versions.push(coordinate.as_ref().map(version_key));
        self.effective
            .push(coordinate.map(|it| it.to_string().replace('\0', "")));
        self.bodies.push(event.json());
        // A list of texts can always be written.
        self.topics
            .push(serde_json::to_string(topics).unwrap_or_default());
        let is_kept = event.kind == DELETION || class(event.kind) != Class::Regular;
        for key in event.tag_keys() {
            self.tag_keys.push(key.0);
            self.tag_created.push(event.created_at);
            self.tag_ids.push(event.id.0.to_vec());
            self.tag_kept.push(is_kept);
        }
    }
}

async fn store(
    tx: &mut PgConnection,
    events: &[&Event],
    topics: &[&[String]],
    plan: &Plan,
) -> sqlx::Result<()> {
    let mut rows = Rows::default();
    for index in &plan.stored {
        if let (Some(event), Some(topics)) = (events.get(*index), topics.get(*index)) {
            rows.add(event, topics);
        }
    }
    let accepted = plan.accepted.iter().filter_map(|index| events.get(*index));
    let accepted: Vec<_> = accepted.map(|event| event.id.0.to_vec()).collect();
    sqlx::query_file!(
        "src/store/stored.sql",
        &rows.ids,
        &rows.authors,
        &rows.created,
        &rows.kinds,
        &rows.ends as &[Option<i64>],
        &rows.versions as &[Option<Uuid>],
        &rows.effective as &[Option<String>],
        &rows.bodies,
        &rows.topics,
        &rows.tag_keys,
        &rows.tag_created,
        &rows.tag_ids,
        &rows.tag_kept,
        &accepted,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// What one deletion, or several of one author, ask for.
struct Stone {
    event_id: Option<Vec<u8>>,
    until: Option<i64>,
    deletion: Vec<u8>,
}

async fn delete(tx: &mut PgConnection, events: &[&Event], plan: &Plan) -> sqlx::Result<()> {
    // Each once: a statement can't change a row twice.
    let mut stones: BTreeMap<(Uuid, [u8; 32]), Stone> = BTreeMap::new();
    for event in plan.deletions.iter().filter_map(|index| events.get(*index)) {
        let asked = event.deletion().unwrap_or_default();
        let deletion = event.id.0.to_vec();
        for id in &asked.ids {
            stones.insert(
                (target(id), event.author.0),
                Stone {
                    event_id: Some(id.0.to_vec()),
                    until: None,
                    deletion: deletion.clone(),
                },
            );
        }
        for coordinate in &asked.coordinates {
            let stone = stones.entry((version_key(coordinate), event.author.0));
            let stone = stone.or_insert_with(|| Stone {
                event_id: None,
                until: Some(event.created_at),
                deletion: deletion.clone(),
            });
            stone.until = stone.until.max(Some(event.created_at));
        }
    }
    let targets: Vec<_> = stones.keys().map(|(target, _)| *target).collect();
    let authors: Vec<_> = stones.keys().map(|(_, author)| author.to_vec()).collect();
    let ids: Vec<_> = stones.values().map(|it| it.event_id.clone()).collect();
    let untils: Vec<_> = stones.values().map(|it| it.until).collect();
    let deletions: Vec<_> = stones.values().map(|it| it.deletion.clone()).collect();
    sqlx::query_file!(
        "src/store/deleted.sql",
        &targets,
        &ids as &[Option<Vec<u8>>],
        &authors,
        &untils as &[Option<i64>],
        &deletions,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// The key of what versions have in common.
pub(crate) fn version_key(coordinate: &Coordinate) -> Uuid {
    short_hash(&[b"version", coordinate.to_string().as_bytes()])
}

/// The key of a single event among what was deleted.
fn target(id: &Id) -> Uuid {
    short_hash(&[b"event", &id.0])
}
