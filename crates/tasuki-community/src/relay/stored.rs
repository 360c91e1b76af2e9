//! Stored events for a subscription.
//!
//! A client may ask for much and read none of it: of what was found, only so many bytes of bodies are kept,
//! and all others are read when their turn has come to be sent.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::vec::IntoIter;

use sqlx::PgPool;

use super::live::Told;
use crate::domain::is_stored;
use crate::nostr::{Count, Filter, Id, Prefix, Refusal};
use crate::store::find::{self, Found};

/// Bytes of bodies that one search keeps, and that are read at a time.
const ROOM: usize = 256 * 1024;
/// Events that are sent together, and whose bodies are read together.
const CHUNK: usize = 50;

/// An event that was found, maybe without its body.
pub(super) type Ready = Found;

/// What any of `filters` wants: newest first, by id within a second, each once.
pub(super) async fn find(pool: &PgPool, filters: &[Filter]) -> Result<Vec<Ready>, Refusal> {
    let found = async {
        let mut connection = pool.acquire().await?;
        let (mut found, mut room) = (Vec::new(), ROOM);
        for filter in filters {
            let mut more = find::find(&mut connection, filter, room).await?;
            let bodies = more.iter().filter_map(|event| event.body.as_ref());
            room = room.saturating_sub(bodies.map(String::len).sum());
            found.append(&mut more);
        }
        Ok(found)
    };
    let mut found = found.await.map_err(|error| refusal(&error))?;
    if filters.len() > 1 {
        let mut seen = HashSet::new();
        found.retain(|event| seen.insert(event.id()));
        found.sort_by_key(|event| (std::cmp::Reverse(event.created_at), event.id()));
    }
    Ok(found)
}

/// How many events any of `filters` wants.
pub(super) async fn count(pool: &PgPool, filters: &[Filter]) -> Result<Count, Refusal> {
    let counted = async {
        let mut connection = pool.acquire().await?;
        find::count(&mut connection, filters).await
    };
    counted.await.map_err(|error| refusal(&error))
}

/// What is sent next.
pub(super) fn chunk(found: &mut IntoIter<Ready>) -> Vec<Ready> {
    let mut length = 0;
    let fits = found.as_slice().iter().take(CHUNK).take_while(|event| {
        length += event.length();
        length <= ROOM
    });
    // One that is too large by itself goes alone.
    let fits = fits.count().max(1);
    found.take(fits).collect()
}

/// The bodies of what was found, in its order: those that are missing are read now, and what has gone
/// meanwhile is left out.
pub(super) async fn bodies(pool: &PgPool, found: Vec<Ready>) -> sqlx::Result<Vec<(Id, String)>> {
    let missing = found.iter().filter(|event| event.body.is_none());
    let missing: Vec<_> = missing.map(Found::id).collect();
    let mut read = HashMap::new();
    if !missing.is_empty() {
        let mut connection = pool.acquire().await?;
        read.extend(find::bodies(&mut connection, &missing).await?);
    }
    let ready = found.into_iter().filter_map(|event| {
        let id = event.id();
        Some((id, event.body.or_else(|| read.remove(&id))?))
    });
    Ok(ready.collect())
}

/// Leaves of `events` those that can still be seen, and those that nobody stores.
pub(super) async fn retain_visible(pool: &PgPool, events: &mut Vec<Arc<Told>>) -> sqlx::Result<()> {
    let stored = events.iter().filter(|told| is_stored(told.event.kind));
    let stored: Vec<_> = stored.map(|told| told.event.id).collect();
    if stored.is_empty() {
        return Ok(());
    }
    let mut connection = pool.acquire().await?;
    let visible: HashSet<_> = find::visible(&mut connection, &stored)
        .await?
        .into_iter()
        .collect();
    events.retain(|told| !is_stored(told.event.kind) || visible.contains(&told.event.id));
    Ok(())
}

fn refusal(error: &sqlx::Error) -> Refusal {
    tracing::warn!(
        error = error as &dyn std::error::Error,
        "stored events could not be looked for"
    );
    Refusal::new(
        Prefix::Error,
        "the store could not be searched, ask again, or for less",
    )
}
