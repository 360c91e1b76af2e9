//! Wakes from PostgreSQL: `LISTEN` on its own connection.
//!
//! A notification shortens a wait and carries no truth: while the connection is down
//! workers go on by polling, and when it is back every one of them is woken once, because
//! nobody knows what was missed.

use std::time::Duration;

use sqlx::postgres::{PgListener, PgPool};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::{Bell, Error, Tick, Wake, Worker, store};

/// How long one tick waits for a notification; also how soon a stop is noticed at the latest.
const WAIT: Duration = Duration::from_secs(1);
/// How long the connection may stay silent before it is asked whether it still lives.
const PING_AFTER: Duration = Duration::from_secs(10);
/// How long it may take to answer.
const PING_LIMIT: Duration = Duration::from_secs(5);

/// Turns notifications on channels into wakes. It is a worker itself: start it with the
/// [`Supervisor`](super::Supervisor).
///
/// It holds one connection of `pool` for as long as it runs. The pool must reach PostgreSQL
/// directly: a pooler in transaction mode drops `LISTEN`.
#[derive(Debug)]
pub struct Listener {
    name: String,
    pool: PgPool,
    routes: Vec<(String, Woken)>,
    ping_after: Duration,
    connection: Mutex<Option<Open>>,
}

/// Who hears of a channel.
#[derive(Debug)]
enum Woken {
    One(Wake),
    WhoeverHears(Bell),
}

impl Woken {
    fn wake(&self) {
        match self {
            Self::One(wake) => wake.wake(),
            Self::WhoeverHears(bell) => bell.wake_here(),
        }
    }

    fn heard(&self, word: &str) {
        match self {
            Self::One(wake) => wake.wake(),
            Self::WhoeverHears(bell) => bell.heard(word),
        }
    }
}

/// A connection, and when it was last heard of.
#[derive(Debug)]
struct Open {
    listener: PgListener,
    heard_at: Instant,
}

impl Listener {
    /// A listener that wakes nobody yet.
    #[must_use]
    pub fn new(name: &str, pool: PgPool) -> Self {
        Self {
            name: name.to_owned(),
            pool,
            routes: Vec::new(),
            ping_after: PING_AFTER,
            connection: Mutex::new(None),
        }
    }

    /// Asks a silent connection after this time whether it still lives: one that was cut off
    /// without a word would stay silent for ever.
    #[must_use]
    pub fn ping_after(mut self, silence: Duration) -> Self {
        self.ping_after = silence;
        self
    }

    /// Wakes `wake` whenever somebody notifies `channel`.
    #[must_use]
    pub fn route(mut self, channel: &str, wake: &Wake) -> Self {
        let woken = Woken::One(wake.clone());
        self.routes.push((channel.to_owned(), woken));
        self
    }

    /// Wakes the workers of this process that hear `bell`, also those that come later, whenever
    /// somebody notifies `channel`.
    #[must_use]
    pub fn rings(mut self, channel: &str, bell: &Bell) -> Self {
        let woken = Woken::WhoeverHears(bell.clone());
        self.routes.push((channel.to_owned(), woken));
        self
    }

    async fn connect(&self) -> Result<Open, Error> {
        let mut listener = PgListener::connect_with(&self.pool).await?;
        // A lost connection must come back to us as such: we wake everyone after it.
        listener.eager_reconnect(false);
        listener
            .listen_all(self.routes.iter().map(|(channel, _)| channel.as_str()))
            .await?;
        for (_, woken) in &self.routes {
            woken.wake();
        }
        Ok(Open {
            listener,
            heard_at: Instant::now(),
        })
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
        // Taken out: whatever goes wrong below, the next tick connects anew and wakes everyone.
        let mut open = match connection.take() {
            Some(open) => open,
            None => self.connect().await?,
        };
        let wait = WAIT.min(self.ping_after);
        let Ok(received) = timeout(wait, open.listener.try_recv()).await else {
            if open.heard_at.elapsed() >= self.ping_after {
                timeout(PING_LIMIT, store::ping(&mut open.listener)).await??;
                open.heard_at = Instant::now();
            }
            *connection = Some(open);
            return Ok(Tick::Idle);
        };
        // `None` is a lost connection.
        if let Some(notification) = received? {
            for (channel, woken) in &self.routes {
                if channel == notification.channel() {
                    woken.heard(notification.payload());
                }
            }
            open.heard_at = Instant::now();
            *connection = Some(open);
        }
        Ok(Tick::Worked)
    }
}
