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

/// Some were left. Until it is time for them, the others are found one after the other.
#[derive(Clone, Debug)]
struct Left {
    since: Instant,
    /// Those up to here have been tried.
    tried: Option<Due>,
}

impl Expiry {
    pub(crate) fn new(commands: Commands) -> Self {
        Self {
            commands,
            left: Mutex::new(None),
        }
    }

    /// What was left a moment ago.
    fn left(&self) -> Option<Left> {
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.clone().filter(|left| left.since.elapsed() < AGAIN)
    }

    fn leave(&self, left: Left) {
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = Some(left);
    }

    /// Revokes all of `due`, or one by one what can be; answers how many are left.
    async fn expire(&self, due: &[Due]) -> Result<usize, error::Error> {
        if due.is_empty() {
            return Ok(0);
        }
        match self.commands.expire(due).await {
            Err(error) if !error.is_away() => {}
            ended => return ended,
        }
        let mut left = 0;
        for one in due {
            match self.commands.expire(std::slice::from_ref(one)).await {
                Ok(held) => left += held,
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
        Ok(left)
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
        let mut connection = self.commands.pool.acquire().await?;
        let due = match &before {
            None => store::run_out(&mut connection, AT_ONCE.into()).await?,
            Some(Left { tried, .. }) => {
                store::run_out_beyond(&mut connection, tried.as_ref(), AT_ONCE.into()).await?
            }
        };
        drop(connection);
        if self.expire(&due).await? > 0 {
            // The first time, where they are in that order is not known: from its beginning.
            self.leave(match before {
                None => Left {
                    since: Instant::now(),
                    tried: None,
                },
                Some(before) => Left {
                    tried: due.last().cloned(),
                    ..before
                },
            });
        }
        if due.len() == usize::from(AT_ONCE) {
            return Ok(Tick::Worked);
        }
        Ok(Tick::Idle)
    }
}
