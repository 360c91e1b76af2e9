//! The database of one service: pools with timeouts, and when it counts as away.
//!
//! Requests, workers and health checks have connections of their own: a rush of requests
//! can't starve the workers, and slow workers make neither requests nor the health wait.

use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection, PgConnection, PgPool, Postgres, Transaction};
pub use tasuki::{is_away, is_passing};
use tokio::time::{Instant, timeout};

use crate::config;

/// Open connections by service, pool (`requests`, `workers`) and state (`used`, `idle`).
const CONNECTIONS: &str = "tasuki_database_connections";

/// How long closing may take.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);
/// A connection that was idle for longer is asked whether it still lives before it is used.
const IDLE: Duration = Duration::from_secs(1);
/// The pause between two attempts to connect.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// How long what waits in a worker's hands may wait for the database: longer than a lock is waited for,
/// and much shorter than a network needs to notice that the other side is gone.
const WORK_LIMIT: Duration = Duration::from_secs(15);

/// Stated, because a database may have another default.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";

/// The pools of one service.
#[derive(Clone, Debug)]
pub struct Database {
    /// For requests.
    pub requests: PgPool,
    /// For workers.
    pub workers: PgPool,
    probe: PgPool,
    unlimited: PgConnectOptions,
    connect_timeout: Duration,
}

/// Why a database can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It did not answer in time.
    #[error("the database at {address} did not answer within {waited:?}")]
    Away {
        /// Host and port.
        address: String,
        /// How long we tried.
        waited: Duration,
        /// The last answer.
        #[source]
        source: sqlx::Error,
    },
    /// It answered, and does not let us in.
    #[error("the database at {address} refuses us")]
    Refused {
        /// Host and port.
        address: String,
        /// Why.
        #[source]
        source: sqlx::Error,
    },
}

/// Connections of their own to the database of `pool`: what has them can't keep others waiting.
#[must_use]
pub fn beside(pool: &PgPool, connections: u32) -> PgPool {
    let options = pool.options().clone().max_connections(connections);
    options.connect_lazy_with(pool.connect_options().as_ref().clone())
}

/// Waits for what `work` asks the database, but not for long: where a host or a firewall has vanished
/// nobody says so. What took too long counts as [away](is_away), and may have happened.
///
/// # Errors
/// Those of `work`, and an I/O error when it takes longer than 15 seconds.
pub async fn in_time<T, E: From<sqlx::Error>>(
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let late = || sqlx::Error::Io(std::io::ErrorKind::TimedOut.into());
    let answer = timeout(WORK_LIMIT, work).await;
    answer.unwrap_or_else(|_elapsed| Err(late().into()))
}

/// A connection that is closed when it is dropped, unless it was [given back](Self::give_back): where
/// an answer was not waited for, the pool would wait for it, and keep the place until it comes.
#[derive(Debug)]
pub struct Held(Option<PoolConnection<Postgres>>);

impl Held {
    /// One of `pool`.
    ///
    /// # Errors
    /// When there is none in time.
    pub async fn of(pool: &PgPool) -> sqlx::Result<Self> {
        Ok(Self(Some(pool.acquire().await?)))
    }

    /// Begins a transaction, in which each statement sees what was committed before.
    ///
    /// # Errors
    /// When the database can't be asked, or takes no writes.
    pub async fn begin(&mut self) -> sqlx::Result<Transaction<'_, Postgres>> {
        self.connection().begin_with(BEGIN).await
    }

    /// The connection itself.
    #[expect(
        clippy::expect_used,
        reason = "only `give_back` takes it, and takes this with it"
    )]
    pub fn connection(&mut self) -> &mut PgConnection {
        self.0.as_mut().expect("it is held")
    }

    /// Everything that was asked on it has been answered.
    pub fn give_back(mut self) {
        self.0 = None;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(connection) = &mut self.0 {
            connection.close_on_drop();
        }
    }
}

impl Database {
    /// Pools for `service`. Connects when first used.
    ///
    /// # Errors
    /// When the address is missing.
    pub fn new(
        service: &str,
        settings: &config::Database,
        own: &config::ServiceDatabase,
    ) -> Result<Self, config::Error> {
        let own = Some(&own.url).filter(|url| !url.is_empty());
        let url = own.unwrap_or(&settings.url);
        let options: PgConnectOptions = url.parse("database.url", "TASUKI_DATABASE__URL")?;
        let options = options.application_name(&format!("tasuki-{service}"));
        let millis = |limit: Duration| limit.as_millis().to_string();
        let idle = millis(settings.idle_in_transaction_timeout);
        let limited = options.clone().options([
            ("statement_timeout", millis(settings.statement_timeout)),
            ("lock_timeout", millis(settings.lock_timeout)),
            ("idle_in_transaction_session_timeout", idle),
        ]);
        let pool = |connections: u32, options: &PgConnectOptions| {
            PgPoolOptions::new()
                .max_connections(connections)
                .acquire_timeout(settings.acquire_timeout)
                // A round trip per use is too much; one after a pause finds what has died.
                .test_before_acquire(false)
                .before_acquire(|connection, about| {
                    Box::pin(
                        async move { Ok(about.idle_for < IDLE || connection.ping().await.is_ok()) },
                    )
                })
                .connect_lazy_with(options.clone())
        };
        // A table may be empty when a plan is made, and have a million rows when it is used next.
        // All of our statements have an index to go by, so they do from the first row on.
        let indexed = limited
            .clone()
            .options([("enable_seqscan", "off"), ("jit", "off")]);
        // Requests send the same few statements over and over, all of which go by a key: planning
        // each anew costs more than running it. Workers' claims have limits that a plan must know.
        let planned = indexed
            .clone()
            .options([("plan_cache_mode", "force_generic_plan")]);
        Ok(Self {
            requests: pool(settings.max_connections.get(), &planned),
            workers: pool(settings.worker_connections.get(), &indexed),
            probe: pool(1, &limited),
            // A migration may take as long as it needs, but must not stand in the way.
            unlimited: options.options([("lock_timeout", millis(settings.lock_timeout))]),
            connect_timeout: settings.connect_timeout,
        })
    }

    /// A connection of its own, without a limit on statements: for migrations. Tries until
    /// the database answers.
    ///
    /// # Errors
    /// When it does not within `limit`, or refuses us.
    pub async fn connect(&self, limit: Duration) -> Result<PgConnection, Error> {
        let deadline = Instant::now() + limit;
        let mut told = false;
        loop {
            let attempt = timeout(
                self.connect_timeout.min(limit),
                PgConnection::connect_with(&self.unlimited),
            );
            let source = match attempt.await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(source)) => source,
                Err(_elapsed) => sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()),
            };
            let (host, port) = (self.unlimited.get_host(), self.unlimited.get_port());
            let address = format!("{host}:{port}");
            if !is_away(&source) {
                return Err(Error::Refused { address, source });
            }
            if Instant::now() + RETRY_PAUSE >= deadline {
                let waited = limit;
                return Err(Error::Away {
                    address,
                    waited,
                    source,
                });
            }
            if !told {
                told = true;
                tracing::info!(address, error = %source, "waiting for the database");
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// Waits until the database answers, and opens the first connection of each pool, so
    /// that the first request does not have to.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn wait(&self, limit: Duration) -> Result<(), Error> {
        let connection = self.connect(limit).await?;
        // It answered: what else there is to say, the first statement will say.
        connection.close().await.unwrap_or_default();
        for pool in [&self.requests, &self.workers, &self.probe] {
            drop(pool.acquire().await);
        }
        Ok(())
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

    /// Closes the pools. Connections in use are waited for, but not for long: one whose
    /// server does not answer any more never comes back.
    pub async fn close(&self) {
        let close = async {
            tokio::join!(
                self.requests.close(),
                self.workers.close(),
                self.probe.close()
            );
        };
        if timeout(CLOSE_LIMIT, close).await.is_err() {
            tracing::warn!("database connections did not come back and were left");
        }
    }

    /// Whether the database answers, asked on a connection of its own: neither a rush of
    /// requests nor busy workers make a service look ill, and asking takes nothing from them.
    ///
    /// # Errors
    /// When it does not.
    pub async fn probe(&self) -> sqlx::Result<()> {
        self.probe.acquire().await?.ping().await
    }
}
