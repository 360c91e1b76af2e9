//! Wakes in the other direction: who has committed work tells the workers.
//!
//! A `NOTIFY` inside a transaction takes a lock of the whole cluster at commit, and forbids
//! two-phase commit. So writers ring a [`Bell`] *after* their commit: the workers of this
//! process are woken at once, and a [`Ringer`] tells those of other processes, in a
//! transaction of its own, once for all the rings since its last word.
//!
//! Ringing carries no truth: a ring that is lost costs at most one poll.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use sqlx::PgPool;
use tokio::time::sleep;

use super::{Error, Tick, Wake, Worker, store};

/// The least time between two notifications: what rings in between shares the second one.
const APART: Duration = Duration::from_millis(5);

/// Tells workers, here and elsewhere, that there may be work. Clones are the same bell.
#[derive(Clone, Debug, Default)]
pub struct Bell(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    name: Name,
    here: RwLock<Vec<Wake>>,
    elsewhere: Wake,
    rung: AtomicBool,
}

/// Tells this bell from those of other processes: who has heard a ring here need not hear it again
/// from the database.
#[derive(Debug)]
struct Name(String);

impl Default for Name {
    fn default() -> Self {
        Self(format!("{:016x}", fastrand::u64(..)))
    }
}

impl Bell {
    /// A bell that nobody hears yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes `wake` at every ring.
    pub fn wakes(&self, wake: &Wake) {
        if let Ok(mut here) = self.0.here.write() {
            here.push(wake.clone());
        }
    }

    /// Rings. Call it after the commit; it never blocks and never fails.
    pub fn ring(&self) {
        self.wake_here();
        self.0.rung.store(true, Ordering::Release);
        self.0.elsewhere.wake();
    }

    /// Somebody has rung, and left this word: it was heard already if it was us.
    pub(super) fn heard(&self, word: &str) {
        if word != self.0.name.0 {
            self.wake_here();
        }
    }

    /// As if it had been rung elsewhere.
    pub(super) fn wake_here(&self) {
        if let Ok(here) = self.0.here.read() {
            here.iter().for_each(Wake::wake);
        }
    }
}

/// Passes the rings of a [`Bell`] on to other processes, as notifications on a channel that
/// their [`Listener`](super::Listener) hears.
#[derive(Debug)]
pub struct Ringer {
    name: String,
    pool: PgPool,
    channel: String,
    bell: Bell,
}

impl Ringer {
    /// A ringer for `bell` on `channel`.
    #[must_use]
    pub fn new(name: &str, pool: PgPool, channel: &str, bell: &Bell) -> Self {
        Self {
            name: name.to_owned(),
            pool,
            channel: channel.to_owned(),
            bell: bell.clone(),
        }
    }
}

impl Worker for Ringer {
    fn name(&self) -> &str {
        &self.name
    }

    fn poll_interval(&self) -> Duration {
        Duration::from_secs(60)
    }

    fn wake(&self) -> Wake {
        self.bell.0.elsewhere.clone()
    }

    async fn tick(&self) -> Result<Tick, Error> {
        if !self.bell.0.rung.swap(false, Ordering::Acquire) {
            return Ok(Tick::Idle);
        }
        store::notify(&self.pool, &self.channel, &self.bell.0.name.0).await?;
        sleep(APART).await;
        Ok(Tick::Worked)
    }
}
