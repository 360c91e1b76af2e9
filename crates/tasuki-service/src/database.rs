//! The database of one service: two pools with timeouts, and when it counts as away.
//!
//! Requests and workers have connections of their own: a rush of requests can't starve the
//! relay, and a slow worker can't make requests wait.

use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use crate::config;

/// Open connections by service, pool (`requests`, `workers`) and state (`used`, `idle`).
const CONNECTIONS: &str = "tasuki_database_connections";

/// The pools of one service.
#[derive(Clone, Debug)]
pub struct Database {
    /// For requests.
    pub requests: PgPool,
    /// For workers, checks and migrations.
    pub workers: PgPool,
}

/// Why a database can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No address.
    #[error(
        "database.url is not set: set TASUKI_DATABASE__URL, or use `tasuki up` for a private database"
    )]
    NoUrl,
    /// An address that is not one.
    #[error("database.url is not a PostgreSQL address: {0}")]
    BadUrl(#[source] sqlx::Error),
    /// A service whose name can't be a schema's.
    #[error(transparent)]
    BadSchema(#[from] tasuki::InvalidSchema),
    /// It did not answer in time.
    #[error("the database did not answer within {}s: {source}", waited.as_secs())]
    Away {
        /// How long we tried.
        waited: Duration,
        /// The last answer.
        source: sqlx::Error,
    },
}

impl Database {
    /// Pools for `service`. Connects when first used.
    ///
    /// # Errors
    /// When the address is missing or malformed.
    pub fn new(
        service: &str,
        settings: &config::Database,
        own: Option<&config::ServiceDatabase>,
    ) -> Result<Self, Error> {
        let own = own.map(|own| &own.url).filter(|url| !is_empty(url));
        let url = own.unwrap_or(&settings.url);
        if is_empty(url) {
            return Err(Error::NoUrl);
        }
        let options: PgConnectOptions = url.expose_secret().parse().map_err(Error::BadUrl)?;
        let millis = |limit: Duration| limit.as_millis().to_string();
        let options = options
            .application_name(&format!("tasuki-{service}"))
            .options([
                ("statement_timeout", millis(settings.statement_timeout)),
                ("lock_timeout", millis(settings.lock_timeout)),
                (
                    "idle_in_transaction_session_timeout",
                    millis(settings.idle_in_transaction_timeout),
                ),
            ]);
        let pool = |connections: u32| {
            PgPoolOptions::new()
                .max_connections(connections)
                .acquire_timeout(settings.acquire_timeout)
                .connect_lazy_with(options.clone())
        };
        Ok(Self {
            requests: pool(settings.max_connections.get()),
            workers: pool(settings.worker_connections.get()),
        })
    }

    /// Waits until the database answers.
    ///
    /// # Errors
    /// When it does not within `limit`.
    pub async fn wait(&self, limit: Duration) -> Result<(), Error> {
        let deadline = tokio::time::Instant::now() + limit;
        loop {
            match self.workers.acquire().await {
                Ok(_connection) => return Ok(()),
                Err(source) if tokio::time::Instant::now() >= deadline || !is_away(&source) => {
                    return Err(Error::Away {
                        waited: limit,
                        source,
                    });
                }
                Err(_away) => tokio::time::sleep(Duration::from_millis(200)).await,
            }
        }
    }

    /// Tells the metrics how full the pools of `service` are.
    pub(crate) fn report(&self, service: &'static str) {
        for (name, pool) in [("requests", &self.requests), ("workers", &self.workers)] {
            let idle = u32::try_from(pool.num_idle()).unwrap_or(u32::MAX);
            let used = pool.size().saturating_sub(idle);
            for (state, count) in [("idle", idle), ("used", used)] {
                metrics::gauge!(CONNECTIONS, "service" => service, "pool" => name, "state" => state)
                    .set(f64::from(count));
            }
        }
    }

    /// Closes both pools; connections in use are waited for.
    pub async fn close(&self) {
        self.requests.close().await;
        self.workers.close().await;
    }
}

fn is_empty(url: &SecretString) -> bool {
    url.expose_secret().is_empty()
}

/// Whether `error` says that the database can't be reached or has no room, rather than that
/// it refused what we asked: then trying again can help.
#[must_use]
pub fn is_away(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed => true,
        sqlx::Error::Database(database) => database.code().is_some_and(|code| {
            // Connection exceptions; too many connections; shutting down, crashed, starting.
            code.starts_with("08") || matches!(&*code, "53300" | "57P01" | "57P02" | "57P03")
        }),
        _ => false,
    }
}
