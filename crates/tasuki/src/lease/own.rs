//! Connections of a worker's own.
//!
//! What others do with a pool must not reach a worker. A handler that holds every connection would
//! keep leases from being renewed; one that is dropped while a `BEGIN` is on its way returns a
//! connection to the pool *inside* a transaction, and a settlement on that connection would be one
//! that nobody commits. So a worker opens a few connections like those of the pool it was given,
//! when it first needs one.

use std::sync::OnceLock;

use sqlx::PgPool;

/// A few connections beside a pool, with its options.
#[derive(Debug)]
pub(crate) struct OwnPool {
    beside: PgPool,
    connections: u32,
    own: OnceLock<PgPool>,
}

impl OwnPool {
    pub(crate) const fn beside(pool: PgPool, connections: u32) -> Self {
        Self {
            beside: pool,
            connections,
            own: OnceLock::new(),
        }
    }

    pub(crate) fn get(&self) -> &PgPool {
        self.own.get_or_init(|| {
            let options = self.beside.options().clone();
            options
                .min_connections(0)
                .max_connections(self.connections)
                .connect_lazy_with((*self.beside.connect_options()).clone())
        })
    }
}
