//! What a client says: each message judged, and begun.

use std::sync::Arc;

use axum::extract::ws::close_code;
use tokio::time::timeout;

use super::super::limits::household;
use super::super::publish::{Turn, unverified};
use super::super::stored;
use super::super::subscriptions::Subscription;
use super::{Client, Done, End, Open, Phase, TURN};
use crate::nostr::{Answer, Asked, Event, Filter, Parsed, Prefix, Refusal, asked};

impl Client {
    pub(super) async fn asked(&mut self, text: &str) -> Result<(), End> {
        let limits = &self.app.settings.limits;
        match asked(text, limits.filter(), limits.filters) {
            Ok(Asked::Event(parsed)) => self.event(parsed, text.len()).await,
            Ok(Asked::Auth(parsed)) => self.auth(parsed).await,
            Ok(Asked::Req(name, filters)) => match self.admit(&name, &filters) {
                Ok(topics) => {
                    self.subscribe(name, filters, topics);
                    Ok(())
                }
                Err(refusal) => self.close(name, refusal).await,
            },
            Ok(Asked::Count(name, filters)) => match self.may_ask(&filters) {
                Ok(_topics) => {
                    self.count(name, filters);
                    Ok(())
                }
                Err(refusal) => self.close(name, refusal).await,
            },
            Ok(Asked::Close(name)) => {
                self.forget(&name);
                Ok(())
            }
            Err(answer) => self.unread(answer).await,
        }
    }

    /// Answers what could not be read. That is work, too.
    pub(super) async fn unread(&mut self, answer: Answer) -> Result<(), End> {
        if !self.events.take() {
            let why = "too many messages that can't be read";
            return Err(End::Cut(close_code::POLICY, why));
        }
        if let Answer::Closed(name, _) = &answer {
            self.forget(name);
        }
        self.answer(&answer).await
    }

    /// Publishes an event, beside whatever else is going on.
    async fn event(&mut self, parsed: Parsed, length: usize) -> Result<(), End> {
        match self.may_publish(parsed.claims(), length) {
            Ok(topics) => {
                let now = self.app.clock.now().unix_timestamp();
                let turn = Turn::behind(&mut self.last_event);
                let publisher = self.app.publisher.clone();
                let publishing = publisher.publish_in(turn, parsed, topics, now);
                self.work
                    .push(Box::pin(async move { Done::Published(publishing.await) }));
                Ok(())
            }
            Err(refusal) => {
                if refusal.prefix == Prefix::AuthRequired {
                    self.challenge().await?;
                }
                let id = parsed.id().to_string();
                self.answer(&Answer::Ok(id, false, refusal.to_string()))
                    .await
            }
        }
    }

    fn may_publish(&mut self, event: &Event, length: usize) -> Result<Vec<String>, Refusal> {
        if !self.events.take() || !self.app.events_of_addresses.take(household(self.peer)) {
            let most = self.app.settings.limits.events_per_minute;
            let words = format!("more than {most} events per minute");
            return Err(Refusal::new(Prefix::RateLimited, words));
        }
        if self.app.policy.rules.bans_address(&self.peer) {
            return Err(Refusal::new(Prefix::Blocked, "this address is banned"));
        }
        if self.proof.is_owed(self.app.clock.now()) {
            return Err(Refusal::new(Prefix::AuthRequired, "prove a key first"));
        }
        self.app
            .policy
            .admits(event, length.saturating_sub(r#"["EVENT",]"#.len()))?;
        if event.is_protected() && !self.proof.has(&event.author) {
            let words = "this event may only be published by its author";
            let prefix = match self.proof.is_given() {
                true => Prefix::Restricted,
                false => Prefix::AuthRequired,
            };
            return Err(Refusal::new(prefix, words));
        }
        self.app.policy.topics_of(event)
    }

    async fn auth(&mut self, parsed: Parsed) -> Result<(), End> {
        let id = parsed.id();
        if !self.events.take() {
            let words = Refusal::new(Prefix::RateLimited, "too many messages").to_string();
            return self.answer(&Answer::Ok(id.to_string(), false, words)).await;
        }
        // What it says next may rely on it: that is not read before.
        let verified = self.app.publisher.verifier.submit(parsed).await;
        let now = self.app.clock.now();
        let taken = verified.map_err(|failed| unverified(&failed));
        let taken = taken.and_then(|event| {
            let taken = self.proof.take(&event, now);
            taken.map_err(|fault| Refusal::invalid(fault.0))
        });
        let (is_taken, words) = match taken {
            Ok(()) => (true, String::new()),
            Err(refusal) => (false, refusal.to_string()),
        };
        self.answer(&Answer::Ok(id.to_string(), is_taken, words))
            .await
    }

    /// Whether it may ask for this; the number of topics that it asks for.
    fn may_ask(&mut self, filters: &[Filter]) -> Result<usize, Refusal> {
        let limits = self.app.settings.limits;
        let of_address = &self.app.reqs_of_addresses;
        if !self.reqs.take() || !of_address.take(household(self.peer)) {
            let words = format!("more than {} requests per minute", limits.reqs_per_minute);
            return Err(Refusal::new(Prefix::RateLimited, words));
        }
        if self.proof.is_owed(self.app.clock.now()) {
            return Err(Refusal::new(Prefix::AuthRequired, "prove a key first"));
        }
        Ok(self.app.policy.topics_for(filters)?.len())
    }

    /// Whether it may listen to this; the number of topics that it listens to then.
    fn admit(&mut self, name: &str, filters: &[Filter]) -> Result<usize, Refusal> {
        let topics = self.may_ask(filters)?;
        let limits = self.app.settings.limits;
        let others = self.open.iter().filter(|(other, _)| *other != name);
        let (count, named) = others.fold((0, 0), |(count, named), (_, open)| {
            (count + 1, named + open.topics)
        });
        if count >= limits.subscriptions {
            let words = format!("more than {} subscriptions", limits.subscriptions);
            return Err(Refusal::new(Prefix::RateLimited, words));
        }
        if named + topics > limits.topics {
            let words = format!("more than {} topics", limits.topics);
            return Err(Refusal::new(Prefix::RateLimited, words));
        }
        Ok(topics)
    }

    /// Listens first, then looks.
    fn subscribe(&mut self, name: String, filters: Vec<Filter>, topics: usize) {
        self.last_number += 1;
        let subscription = Subscription {
            number: self.last_number,
            name: name.clone(),
        };
        let filters = Arc::new(filters);
        self.subscriptions.put(&subscription, Arc::clone(&filters));
        let open = Open {
            number: subscription.number,
            name: serde_json::to_string(&name).unwrap_or_default(),
            topics,
            phase: Phase::Looking(Vec::new()),
        };
        self.open.insert(name, open);
        let (pool, turns) = (self.app.pool_for(&filters), Arc::clone(&self.turns));
        let live = self.app.live.clone();
        self.searches.spawn(async move {
            let turn = turns.acquire_owned().await.ok();
            // What others store while nobody hears of it here must be found.
            live.followed().await;
            let found = stored::find(&pool, &filters).await;
            Done::Found(subscription, found, turn)
        });
    }

    /// Counts in a turn of its own: whoever looks for events waits for nobody who counts.
    fn count(&mut self, name: String, filters: Vec<Filter>) {
        let pool = self.app.counting.clone();
        let (own, all) = (Arc::clone(&self.counts), Arc::clone(&self.app.counts));
        self.searches.spawn(async move {
            // One count of each client waits for one of all.
            let turns = async { (own.acquire().await.ok(), all.acquire().await.ok()) };
            let Ok(_turns) = timeout(TURN, turns).await else {
                let words = "too much is being counted, ask again later";
                let refusal = Refusal::new(Prefix::RateLimited, words);
                return Done::Counted(name, Err(refusal));
            };
            Done::Counted(name, stored::count(&pool, &filters).await)
        });
    }

    pub(super) fn forget(&mut self, name: &str) {
        self.subscriptions.remove(name);
        self.open.remove(name);
    }
}
