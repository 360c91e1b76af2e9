//! An event that a client publishes: judged by the rules, verified, taken in.

use std::sync::Arc;

use tasuki::batch::{Batcher, Error};
use tokio::sync::oneshot::{self, Receiver, Sender};

use super::live::Live;
use super::{Buckets, Gate, Policy};
use crate::domain::{Verdict, is_stored};
use crate::ingest::{Arrival, Ingest};
use crate::nostr::{Answer, Event, Fault, Id, Key, Parsed, Prefix, Refusal};
use crate::verify::Verify;

/// Events by `outcome`: stored, duplicate, refused, failed.
const EVENTS: &str = "tasuki_community_events_total";

/// The order in which a client has sent its events: signatures are checked side by side, and a version that
/// overtook an earlier one would make it an old one.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    before: Option<Receiver<()>>,
    after: Option<Sender<()>>,
}

impl Turn {
    /// The one after the event that went into `last`.
    pub(crate) fn behind(last: &mut Option<Receiver<()>>) -> Self {
        let (after, next) = oneshot::channel();
        Self {
            before: last.replace(next),
            after: Some(after),
        }
    }

    /// Waits for those before, once. The next one goes on as soon as this one waits again.
    async fn come(&mut self) {
        if let Some(before) = self.before.take() {
            // Whoever was before has come, or never will.
            before.await.unwrap_or_default();
        }
        self.after = None;
    }
}

/// Takes events of clients.
#[derive(Clone)]
pub(crate) struct Publisher {
    pub(crate) verifier: Batcher<Verify>,
    pub(crate) ingest: Batcher<Ingest>,
    pub(crate) live: Live,
    pub(crate) policy: Arc<Policy>,
    /// Events of each key.
    pub(crate) keys: Buckets<Key>,
    pub(crate) gate: Gate,
}

impl Publisher {
    /// Does all that there is to do, and says what came of it.
    pub(crate) async fn publish(self, parsed: Parsed, topics: Vec<String>, now: i64) -> Answer {
        self.publish_in(Turn::default(), parsed, topics, now).await
    }

    /// The same, after whoever has the turn before.
    pub(crate) async fn publish_in(
        self,
        mut turn: Turn,
        parsed: Parsed,
        topics: Vec<String>,
        now: i64,
    ) -> Answer {
        let id = parsed.id();
        let done = self.verified(&mut turn, parsed, topics, now).await;
        // One that is refused must not let others past those before it.
        turn.come().await;
        match done {
            Ok(verdict) => answer(id, verdict),
            Err(refusal) => {
                let outcome = match refusal.prefix {
                    Prefix::Error => "failed",
                    _ => "refused",
                };
                metrics::counter!(EVENTS, "outcome" => outcome).increment(1);
                Answer::Ok(id.to_string(), false, refusal.to_string())
            }
        }
    }

    /// The same for an event that comes by another way than a connection of a client.
    pub(crate) async fn bring(self, parsed: Parsed, length: usize, now: i64) -> Answer {
        match self.admit(parsed.claims(), length) {
            Ok(topics) => self.publish(parsed, topics, now).await,
            Err(refusal) => Answer::Ok(parsed.id().to_string(), false, refusal.to_string()),
        }
    }

    fn admit(&self, event: &Event, length: usize) -> Result<Vec<String>, Refusal> {
        self.policy.admits(event, length)?;
        if event.is_protected() {
            let words = "this event may only be published by its author";
            return Err(Refusal::new(Prefix::AuthRequired, words));
        }
        self.policy.topics_of(event)
    }

    async fn verified(
        &self,
        turn: &mut Turn,
        parsed: Parsed,
        topics: Vec<String>,
        now: i64,
    ) -> Result<Verdict, Refusal> {
        self.gate.admits(parsed.claims(), &topics, now)?;
        let event = self
            .verifier
            .submit(parsed)
            .await
            .map_err(|it| unverified(&it))?;
        // Only now: whoever has no signature must not use up what an author may do; nor must somebody who
        // sends again what is known.
        let author = event.author;
        if !self.keys.has(author) {
            let words = "too many events of this key";
            return Err(Refusal::new(Prefix::RateLimited, words));
        }
        let pass = self.gate.pass(&event, &topics).await?;
        // From here to its place in the queue nothing is waited for.
        turn.come().await;
        let verdict = self.taken_in(event, topics, now).await;
        if !matches!(verdict, Ok(Verdict::Stored | Verdict::Overtaken)) {
            pass.give_back();
        }
        let verdict = verdict?;
        if !matches!(verdict, Verdict::Duplicate | Verdict::Outdated) {
            self.keys.take(author);
        }
        Ok(verdict)
    }

    async fn taken_in(
        &self,
        event: Arc<Event>,
        topics: Vec<String>,
        now: i64,
    ) -> Result<Verdict, Refusal> {
        if !is_stored(event.kind) {
            return self.pass_on(event, now);
        }
        let ran = self.ingest.submit(Arrival { event, topics }).await;
        ran.map_err(|failed| refusal(&failed))
    }

    /// An event that nobody stores. One that comes again while it is remembered changes nothing.
    fn pass_on(&self, event: Arc<Event>, now: i64) -> Result<Verdict, Refusal> {
        if event.expiration().is_some_and(|end| end <= now) {
            return Ok(Verdict::Expired);
        }
        let ahead = self.policy.limits.ahead.as_secs();
        if event.created_at > now.saturating_add_unsigned(ahead) {
            return Ok(Verdict::Future);
        }
        Ok(match self.live.pass_on(event) {
            true => Verdict::Stored,
            false => Verdict::Duplicate,
        })
    }
}

fn answer(id: Id, verdict: Verdict) -> Answer {
    let (outcome, taken, words) = match verdict {
        Verdict::Stored | Verdict::Overtaken => ("stored", true, ""),
        Verdict::Duplicate => ("duplicate", true, "duplicate: already have this event"),
        Verdict::Outdated => ("duplicate", false, "duplicate: have a newer version"),
        Verdict::Deleted => (
            "refused",
            false,
            "blocked: its author has deleted this event",
        ),
        Verdict::Expired => ("refused", false, "invalid: expired"),
        Verdict::Future => (
            "refused",
            false,
            "invalid: created_at is too far in the future",
        ),
    };
    metrics::counter!(EVENTS, "outcome" => outcome).increment(1);
    Answer::Ok(id.to_string(), taken, words.to_owned())
}

fn refusal(failed: &Error<sqlx::Error>) -> Refusal {
    match failed {
        Error::Overloaded => Refusal::new(Prefix::RateLimited, "too many events are waiting"),
        Error::Stopped => error("the relay is stopping"),
        other => {
            tracing::warn!(
                error = other as &dyn std::error::Error,
                "events could not be stored"
            );
            error("the event could not be stored, send it again")
        }
    }
}

/// Why an event was not verified: what is wrong with it, or with us.
pub(super) fn unverified(failed: &Error<Fault>) -> Refusal {
    match failed {
        Error::Refused(fault) => Refusal::invalid(&*fault.0),
        Error::Overloaded => Refusal::new(Prefix::RateLimited, "too many events are waiting"),
        Error::Stopped => error("the relay is stopping"),
        _ => error("the signature could not be checked"),
    }
}

fn error(words: &str) -> Refusal {
    Refusal::new(Prefix::Error, words)
}
