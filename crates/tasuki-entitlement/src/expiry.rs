//! Revokes what has run out, the longest ago first.
//!
//! Promised: an entitlement that can't be revoked, because somebody holds it or because its row is
//! damaged, holds up no other. It is left, and tried again a little later.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tasuki::worker::{Error, Tick, Worker};
use tokio::time::Instant;

use crate::commands::Commands;
use crate::error;
use crate::store::{self, Due};

/// Entitlements that ran out and could not be revoked, each time that it was tried. Alert on any:
/// the log says why.
const FAILURES_TOTAL: &str = "tasuki_entitlement_expiry_failures_total";

/// Entitlements that are revoked in one transaction.
const AT_ONCE: u16 = 500;
/// How soon after its end an entitlement is revoked, at the latest.
const POLL: Duration = Duration::from_millis(500);
/// When those that were left are tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// Revokes what has run out.
#[derive(Debug)]
pub(crate) struct Expiry {
    /// Has connections of the workers: requests keep theirs.
    commands: Commands,
    left: Mutex<Option<Left>>,
}

/// Some were left. The others are found beyond them, until it is time for all of them again.
#[derive(Clone, Debug)]
struct Left {
    /// Those up to here have been tried.
    tried: Due,
    /// Since when there is nothing beyond. Before, none is tried again: however many are left,
    /// everybody else comes first.
    ended: Option<Instant>,
}

impl Left {
    /// After the page `due` of a walk that had come to `before`, of which `left` could not be
    /// revoked; `None` when all are gone, and the next ones are at the beginning.
    fn after(before: Option<Self>, due: &[Due], left: usize) -> Option<Self> {
        if before.is_none() && left == 0 {
            return None;
        }
        let (before, ended) = before.map(|left| (left.tried, left.ended)).unzip();
        let is_last = due.len() < usize::from(AT_ONCE);
        Some(Self {
            tried: due.last().cloned().or(before)?,
            ended: is_last.then(|| ended.flatten().unwrap_or_else(Instant::now)),
        })
    }

    fn is_over(&self) -> bool {
        self.ended.is_some_and(|ended| ended.elapsed() >= AGAIN)
    }
}

impl Expiry {
    pub(crate) fn new(commands: Commands) -> Self {
        Self {
            commands,
            left: Mutex::new(None),
        }
    }

    /// Where the walk is, unless it begins anew.
    fn left(&self) -> Option<Left> {
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.clone().filter(|left| !left.is_over())
    }

    fn leave(&self, left: Option<Left>) {
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = left;
    }

    /// Revokes all of `due`, or one by one what can be; answers how many are left, or nothing when
    /// another process is at it.
    async fn expire(&self, due: &[Due]) -> Result<Option<usize>, error::Error> {
        if due.is_empty() {
            return Ok(Some(0));
        }
        match self.commands.expire(due).await {
            Err(error) if !error.is_away() => {}
            ended => return ended,
        }
        let mut left = 0;
        for one in due {
            match self.commands.expire(std::slice::from_ref(one)).await {
                // Another process came between: it may have this one, or it is tried again.
                Ok(held) => left += held.unwrap_or(1),
                Err(error) if error.is_away() => return Err(error),
                Err(error) => {
                    left += 1;
                    metrics::counter!(FAILURES_TOTAL).increment(1);
                    tracing::error!(
                        entitlement.sku = %one.stock_keeping_unit,
                        entitlement.expires_at = %one.expires_at,
                        error = &error as &(dyn std::error::Error + 'static),
                        "entitlement has run out and can't be revoked",
                    );
                }
            }
        }
        Ok(Some(left))
    }
}

impl Worker for Expiry {
    fn name(&self) -> &str {
        "entitlement.expiry"
    }

    fn poll_interval(&self) -> Duration {
        POLL
    }

    async fn tick(&self) -> Result<Tick, Error> {
        let before = self.left();
        let tried = before.as_ref().map(|left| &left.tried);
        let mut connection = self.commands.pool.acquire().await?;
        let due = store::run_out(&mut connection, tried, AT_ONCE.into()).await?;
        drop(connection);
        let Some(left) = self.expire(&due).await? else {
            return Ok(Tick::Idle);
        };
        self.leave(Left::after(before, &due, left));
        if due.len() == usize::from(AT_ONCE) {
            return Ok(Tick::Worked);
        }
        Ok(Tick::Idle)
    }
}

#[cfg(test)]
mod tests {
    use time::OffsetDateTime;

    use super::*;

    fn page(first: usize, len: usize) -> Vec<Due> {
        let due = (first..first + len).map(|number| Due {
            expires_at: OffsetDateTime::UNIX_EPOCH,
            user_id: format!("{number:04}"),
            stock_keeping_unit: "s".to_owned(),
            source_id: "p".to_owned(),
        });
        due.collect()
    }

    #[test]
    fn a_walk_over_what_is_left_comes_to_its_end_before_it_begins_anew() {
        let full = usize::from(AT_ONCE);
        assert!(Left::after(None, &page(0, full), 0).is_none());

        let first = Left::after(None, &page(0, full), full).unwrap();
        assert_eq!((&*first.tried.user_id, first.ended), ("0499", None));
        let second = Left::after(Some(first), &page(full, full), 0).unwrap();
        assert_eq!((&*second.tried.user_id, second.ended), ("0999", None));
        assert!(!second.is_over(), "however long it takes");

        let end = Left::after(Some(second), &[], 0).unwrap();
        assert_eq!(end.tried.user_id, "0999");
        let since = end.ended.unwrap();
        let later = Left::after(Some(end), &page(2 * full, 1), 0).unwrap();
        assert_eq!((&*later.tried.user_id, later.ended), ("1000", Some(since)));
        let rush = Left::after(Some(later), &page(2 * full, full), 0).unwrap();
        assert_eq!(rush.ended, None, "there is more beyond");
    }
}
