//! Stored events for a subscription.

use std::collections::{HashMap, HashSet};

use sqlx::PgPool;

use crate::nostr::{Count, Filter, Id, Prefix, Refusal};
use crate::store::find::{self, Found};

/// An event that was found; a long one without its body.
pub(super) type Ready = Found;

/// What any of `filters` wants: newest first, by id within a second, each once.
pub(super) async fn find(pool: &PgPool, filters: &[Filter]) -> Result<Vec<Ready>, Refusal> {
    let found = async {
        let mut connection = pool.acquire().await?;
        let mut found = Vec::new();
        for filter in filters {
            found.append(&mut find::find(&mut connection, filter).await?);
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

/// The bodies of what was found, in its order: long ones are read now, and what has gone meanwhile is
/// left out.
pub(super) async fn bodies(pool: &PgPool, found: &[Ready]) -> sqlx::Result<Vec<(Id, String)>> {
    let long = found.iter().filter(|event| event.body.is_none());
    let long: Vec<_> = long.map(Found::id).collect();
    let mut read = HashMap::new();
    if !long.is_empty() {
        let mut connection = pool.acquire().await?;
        read.extend(find::bodies(&mut connection, &long).await?);
    }
    let ready = found.iter().filter_map(|event| {
        let id = event.id();
        Some((id, event.body.clone().or_else(|| read.remove(&id))?))
    });
    Ok(ready.collect())
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
