//! Wakes from PostgreSQL: `LISTEN` on its own connection.
//!
//! A notification shortens a wait and carries no truth: while the connection is down
//! workers go on by polling, and when it is back every one of them is woken once, because
//! nobody knows what was missed.

use std::time::Duration;

use sqlx::postgres::{PgListener, PgPool};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::{Error, Tick, Wake, Worker};

/// How long one tick waits for a notification; also how soon a stop is noticed at the latest.
const WAIT: Duration = Duration::from_secs(1);

/// Turns notifications on channels into wakes. It is a worker itself: start it with the
/// [`Supervisor`](super::Supervisor).
///
/// It holds one connection of `pool` for as long as it runs. The pool must reach PostgreSQL
/// directly: a pooler in transaction mode drops `LISTEN`.
#[derive(Debug)]
pub struct Listener {
    name: String,
    pool: PgPool,
    routes: Vec<(String, Wake)>,
    connection: Mutex<Option<PgListener>>,
}

impl Listener {
    /// A listener that wakes nobody yet.
    #[must_use]
    pub fn new(name: &str, pool: PgPool) -> Self {
        Self {
            name: name.to_owned(),
            pool,
            routes: Vec::new(),
            connection: Mutex::new(None),
        }
    }

    /// Wakes `wake` whenever somebody notifies `channel`.
    #[must_use]
    pub fn route(mut self, channel: &str, wake: &Wake) -> Self {
        self.routes.push((channel.to_owned(), wake.clone()));
        self
    }

    async fn connect(&self) -> Result<PgListener, Error> {
        let mut listener = PgListener::connect_with(&self.pool).await?;
        // A lost connection must come back to us as such: we wake everyone after it.
        listener.eager_reconnect(false);
        listener
            .listen_all(self.routes.iter().map(|(channel, _)| channel.as_str()))
            .await?;
        for (_, wake) in &self.routes {
            wake.wake();
        }
        Ok(listener)
    }
}

impl Worker for Listener {
    fn name(&self) -> &str {
        &self.name
    }

    fn poll_interval(&self) -> Duration {
        Duration::from_millis(1)
    }

    async fn tick(&self) -> Result<Tick, Error> {
        let mut connection = self.connection.lock().await;
        let mut listener = match connection.take() {
            Some(listener) => listener,
            None => self.connect().await?,
        };
        let Ok(received) = timeout(WAIT, listener.try_recv()).await else {
            *connection = Some(listener);
            return Ok(Tick::Idle);
        };
        // `None` is a lost connection: the next tick connects anew and wakes everyone.
        if let Some(notification) = received? {
            for (channel, wake) in &self.routes {
                if channel == notification.channel() {
                    wake.wake();
                }
            }
            *connection = Some(listener);
        }
        Ok(Tick::Worked)
    }
}
