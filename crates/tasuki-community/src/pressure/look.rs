//! Looks how far consumers are behind.

use std::collections::HashMap;
use std::time::Duration;

use sqlx::PgPool;
use tasuki::Clock;
use tasuki::seqlog::{Consumers, State};
use tasuki::worker::{Error, Tick, Worker};

use super::{Pressure, Seen};
use crate::rules::Rules;
use crate::store::pressure as store;

/// How often it looks.
const POLL: Duration = Duration::from_secs(1);

/// The worker.
pub(crate) struct Look {
    pub(crate) pool: PgPool,
    pub(crate) consumers: Consumers,
    pub(crate) log: String,
    pub(crate) rules: Rules,
    pub(crate) pressure: Pressure,
    pub(crate) clock: Clock,
}

impl Worker for Look {
    fn name(&self) -> &str {
        "community.pressure"
    }

    fn poll_interval(&self) -> Duration {
        POLL
    }

    async fn tick(&self) -> Result<Tick, Error> {
        let mut connection = self.pool.acquire().await?;
        let all = self.consumers.list(&mut connection).await?;
        let following = all
            .into_iter()
            .filter(|it| it.log == self.log && it.state == State::Following);
        let following: Vec<_> = following.collect();
        // More than the last step needs makes no difference.
        let most = self.pressure.settings().slow_at.saturating_add(1);
        let unnumbered = store::unnumbered(&mut connection, most).await?;
        let consumers: Vec<_> = following
            .iter()
            .map(|it| (it.name.clone(), it.backlog().saturating_add(unnumbered)))
            .collect();
        let slowest = consumers.iter().map(|(_, backlog)| *backlog).max();
        let capped = self.rules.capped();
        let waiting = if capped.is_empty() {
            HashMap::new()
        } else {
            let from = following.iter().map(|it| it.last_seq).min();
            store::waiting(&mut connection, from.unwrap_or_default(), &capped).await?
        };
        let seen = Seen {
            backlog: slowest.unwrap_or(unnumbered),
            consumers,
            waiting,
        };
        self.pressure.learn(seen, self.clock.now());
        Ok(Tick::Idle)
    }
}
