//! How an engine works.

use std::time::Duration;

use sqlx::PgPool;

use super::fault::Faults;
use crate::Clock;
use crate::lease::{Owner, Route};

/// How an [`Engine`](super::Engine) works.
#[derive(Clone, Debug)]
pub struct Settings {
    pub(super) name: String,
    pub(super) pool: PgPool,
    pub(super) route: Route,
    pub(super) owner: Owner,
    pub(super) clock: Clock,
    pub(super) lease: Duration,
    pub(super) poll: Duration,
    pub(super) slots: usize,
    pub(super) batches: usize,
    pub(super) faults: Faults,
}

impl Settings {
    /// Works on `pool`, over connections of its own. `name` (`<service>.<noun>`) names its workers.
    #[must_use]
    pub fn new(name: &str, pool: PgPool) -> Self {
        Self {
            name: name.to_owned(),
            pool,
            route: Route::Direct,
            owner: Owner::here(),
            clock: Clock::system(),
            lease: Duration::from_secs(20),
            poll: Duration::from_millis(200),
            slots: 2000,
            batches: 1,
            faults: Faults::default(),
        }
    }

    /// How the pool reaches PostgreSQL. Behind a pooler the death of a process is not noticed before
    /// its leases expire.
    #[must_use]
    pub fn route(mut self, route: Route) -> Self {
        self.route = route;
        self
    }

    /// The name that claims carry.
    #[must_use]
    pub fn owner(mut self, owner: Owner) -> Self {
        self.owner = owner;
        self
    }

    /// Where ids and the times in stories come from. Due times and leases are the database's.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// How long a claim holds without a renewal: 100 ms to 12 hours.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        let longest = Duration::from_secs(12 * 3600);
        self.lease = lease.clamp(Duration::from_millis(100), longest);
        self
    }

    /// How often it looks for sagas that are due.
    #[must_use]
    pub fn poll(mut self, poll: Duration) -> Self {
        self.poll = poll;
        self
    }

    /// How many sagas it has in hand at most. What is begun beyond waits in the database.
    #[must_use]
    pub fn slots(mut self, sagas: usize) -> Self {
        self.slots = sagas.max(1);
        self
    }

    /// What goes wrong, for a check.
    #[cfg(feature = "testing")]
    pub(super) fn faults(mut self, faults: Faults) -> Self {
        self.faults = faults;
        self
    }

    /// How many shared transactions run at once.
    #[must_use]
    pub fn batches(mut self, batches: usize) -> Self {
        self.batches = batches.max(1);
        self
    }
}
