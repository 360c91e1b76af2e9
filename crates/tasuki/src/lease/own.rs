//! Connections of a worker's own.
//!
//! What others do with a pool must not reach a worker. A handler that holds every connection would
//! keep leases from being renewed; one that is dropped while a `BEGIN` is on its way returns a
//! connection to the pool *inside* a transaction, and a settlement on that connection would be one
//! that nobody commits. So a worker opens a few connections like those of the pool it was given,
//! when it first needs one.

use std::sync::OnceLock;
use std::time::Duration;

use sqlx::PgPool;

use super::Route;

/// A few connections beside a pool, with its options.
#[derive(Debug)]
pub(crate) struct OwnPool {
    beside: PgPool,
    connections: u32,
    lock_timeout: Option<Duration>,
    statement_timeout: Option<Duration>,
    own: OnceLock<PgPool>,
}

impl OwnPool {
    pub(crate) const fn beside(pool: PgPool, connections: u32) -> Self {
        Self {
            beside: pool,
            connections,
            lock_timeout: None,
            statement_timeout: None,
            own: OnceLock::new(),
        }
    }

    /// Whose statements wait for locks for `limit` at most. A pooler keeps no settings of a session: behind
    /// one each transaction has to say it ([`Line::hurried`](super::Line::hurried)).
    pub(crate) fn hurried(mut self, route: Route, limit: Duration) -> Self {
        self.lock_timeout = (route == Route::Direct).then_some(limit);
        self
    }

    /// Whose statements the server gives up after `limit`: also those for whose answer nobody waits any
    /// more. Behind a pooler each transaction has to say it ([`Line::limited`](super::Line::limited)).
    pub(crate) fn limited(mut self, route: Route, limit: Duration) -> Self {
        self.statement_timeout = (route == Route::Direct).then_some(limit);
        self
    }

    pub(crate) fn get(&self) -> &PgPool {
        self.own.get_or_init(|| {
            let options = self.beside.options().clone();
            let mut connect = (*self.beside.connect_options()).clone();
            let timeouts = [
                ("lock_timeout", self.lock_timeout),
                ("statement_timeout", self.statement_timeout),
            ];
            for (name, limit) in timeouts {
                if let Some(limit) = limit {
                    connect = connect.options([(name, limit.as_millis())]);
                }
            }
            options
                .min_connections(0)
                .max_connections(self.connections)
                .connect_lazy_with(connect)
        })
    }
}
