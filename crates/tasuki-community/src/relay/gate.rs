//! Whether an event may come in now: what its topics may bring, and what is held back while consumers are
//! behind.
//!
//! Events that are not stored are in no log and hold up no consumer: only the rate of their topics counts.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::PgPool;

use super::limits::Bucket;
use crate::domain::is_stored;
use crate::nostr::{Event, Prefix, Refusal, TagKey};
use crate::pressure::{Pressure, Step};
use crate::rules::{Priority, Ruled, Rules};
use crate::store::pressure as store;

/// The gate of one process. Clones are the same.
#[derive(Clone)]
pub(crate) struct Gate {
    rules: Rules,
    pressure: Pressure,
    /// Events that come in while everything is slowed down.
    slow: Arc<Mutex<Bucket>>,
    pool: PgPool,
    /// To which events without a topic belong: never new.
    default: String,
}

/// A place in the buckets that an event has used.
#[must_use]
pub(crate) struct Pass {
    topics: Vec<Arc<Ruled>>,
    slow: Option<Arc<Mutex<Bucket>>>,
}

impl Pass {
    /// Gives it back: the event was known, or not taken.
    pub(crate) fn give_back(self) {
        for topic in &self.topics {
            topic.give();
        }
        if let Some(slow) = &self.slow {
            lock(slow).give();
        }
    }
}

impl Gate {
    pub(crate) fn new(rules: &Rules, pressure: &Pressure, pool: &PgPool, default: &str) -> Self {
        let rate = pressure.settings().events_per_minute;
        Self {
            rules: rules.clone(),
            pressure: pressure.clone(),
            slow: Arc::new(Mutex::new(Bucket::new(rate))),
            pool: pool.clone(),
            default: default.to_owned(),
        }
    }

    /// What can be said before anything else is done.
    pub(crate) fn admits(&self, event: &Event, topics: &[String], now: i64) -> Result<(), Refusal> {
        if !is_stored(event.kind) {
            return Ok(());
        }
        let state = self.pressure.state();
        let age = self.pressure.settings().backfill_age;
        let oldest = now.saturating_sub_unsigned(age.as_secs());
        let is_old = event.created_at < oldest;
        if is_old && state.step >= Step::Backfill {
            return Err(later(&format!("events older than {} are", shown(age))));
        }
        for topic in topics {
            let Some(ruled) = self.rules.topic(topic) else {
                continue;
            };
            let policy = &ruled.policy;
            if is_old && !policy.takes_backfill {
                let age = shown(age);
                let words = format!("the topic {topic} takes no events older than {age}");
                return Err(Refusal::new(Prefix::Restricted, words));
            }
            if policy.priority == Priority::Low && state.step >= Step::Low {
                let what = format!("events of the topic {topic}, which has low priority, are");
                return Err(later(&what));
            }
            let waiting = state.seen.waiting.get(topic).copied().unwrap_or_default();
            if policy.capacity > 0 && waiting >= i64::from(policy.capacity) {
                let words = format!("{waiting} events of the topic {topic} are waiting");
                return Err(Refusal::new(Prefix::RateLimited, words));
            }
        }
        Ok(())
    }

    /// What costs something: asked of events that are signed. A pass is to be given back if nothing came
    /// of it.
    pub(crate) async fn pass(&self, event: &Event, topics: &[String]) -> Result<Pass, Refusal> {
        let is_slow = is_stored(event.kind) && self.pressure.step() >= Step::Slow;
        if is_slow {
            self.none_is_new(event, topics).await?;
        }
        let mut pass = Pass {
            topics: Vec::new(),
            slow: None,
        };
        for topic in topics {
            let Some(ruled) = self.rules.topic(topic) else {
                continue;
            };
            if !ruled.take() {
                pass.give_back();
                let most = ruled.policy.events_per_minute;
                let words = format!("more than {most} events per minute of the topic {topic}");
                return Err(Refusal::new(Prefix::RateLimited, words));
            }
            pass.topics.push(ruled);
        }
        if is_slow {
            if !lock(&self.slow).take() {
                pass.give_back();
                let most = self.pressure.settings().events_per_minute;
                return Err(later(&format!("more than {most} events per minute are")));
            }
            pass.slow = Some(Arc::clone(&self.slow));
        }
        Ok(pass)
    }

    /// Whether every topic is one of which something is stored, or was said.
    async fn none_is_new(&self, event: &Event, topics: &[String]) -> Result<(), Refusal> {
        let unknown = topics
            .iter()
            .filter(|topic| **topic != self.default && self.rules.topic(topic).is_none());
        let unknown: Vec<_> = unknown.collect();
        if unknown.is_empty() {
            return Ok(());
        }
        // As the event has it, or in lower case.
        let writings = event.writings_of_topics();
        let keys: Vec<_> = writings
            .iter()
            .map(|(_, writing)| TagKey::of('t', writing).0)
            .collect();
        let asked = async {
            let mut connection = self.pool.acquire().await?;
            store::known_tags(&mut connection, &keys).await
        };
        let known = asked.await.map_err(|error| {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "topics could not be looked for"
            );
            Refusal::new(
                Prefix::Error,
                "the event could not be stored, send it again",
            )
        })?;
        let is_known = |topic: &str| {
            let mut places = writings.iter().zip(&keys);
            places.any(|((of, _), key)| of == topic && known.contains(key))
        };
        match unknown.into_iter().find(|topic| !is_known(topic)) {
            Some(topic) => Err(later(&format!("new topics, as {topic}, are"))),
            None => Ok(()),
        }
    }
}

/// `what` is not taken until consumers are no longer behind.
fn later(what: &str) -> Refusal {
    let words = format!("{what} not taken while this relay catches up, try again later");
    Refusal::new(Prefix::RateLimited, words)
}

/// An age in words: `1h`, `90s`.
fn shown(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        it if it % 86_400 == 0 => format!("{}d", seconds / 86_400),
        it if it % 3_600 == 0 => format!("{}h", seconds / 3_600),
        it if it % 60 == 0 => format!("{}m", seconds / 60),
        _ => format!("{seconds}s"),
    }
}

fn lock(bucket: &Mutex<Bucket>) -> std::sync::MutexGuard<'_, Bucket> {
    bucket.lock().unwrap_or_else(PoisonError::into_inner)
}
