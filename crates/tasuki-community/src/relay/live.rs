//! Who listens in this process, and what they are told as it happens.
//!
//! What this process has taken in is told right after its commit. What others have taken in is read from
//! the log. Every event is told by exactly one of the two: before the commit it is written down that it
//! is ours, and rows of the log that are ours and told are passed over. If nobody knows whether a commit
//! went through, the log does: what it shows is told then, as it is then; what it never shows never was.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::ingest::Arrival;
use crate::nostr::{Event, Id, TagKey};
use crate::relay::recent::Recent;
use crate::relay::subscriptions::Subscriptions;

/// An event as it is told: read once, written once for all who get it.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) event: Arc<Event>,
    pub(crate) keys: Vec<TagKey>,
    pub(crate) json: String,
    /// When nobody sees it any more (NIP-40).
    ends: Option<i64>,
}

impl Told {
    pub(crate) fn new(event: Arc<Event>) -> Arc<Self> {
        let (keys, json, ends) = (event.tag_keys(), event.json(), event.expiration());
        Arc::new(Self {
            event,
            keys,
            json,
            ends,
        })
    }

    /// Whether nobody is to see it any more, at this second.
    pub(crate) fn has_ended(&self, now: i64) -> bool {
        self.ends.is_some_and(|end| end <= now)
    }
}

/// Who listens in this process. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Live(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    clients: Mutex<Clients>,
    ours: Mutex<HashMap<Id, Ours>>,
    /// Events of others whose further rows in the log (one per topic) are still to come.
    others: Mutex<Recent>,
    /// Events that nobody stores.
    passing: Mutex<Recent>,
    followed: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Clients {
    last: u64,
    by_number: HashMap<u64, Arc<Subscriptions>>,
}

/// An event of this process that the log has not shown in full.
#[derive(Debug)]
struct Ours {
    /// Rows that are to come.
    left: usize,
    /// By the commit, or by the first of its rows in the log, whichever came first.
    is_told: bool,
}

/// A client's place among those who listen. Dropping it leaves.
#[derive(Debug)]
pub(crate) struct Listening {
    number: u64,
    live: Live,
}

impl Drop for Listening {
    fn drop(&mut self) {
        lock(&self.live.0.clients).by_number.remove(&self.number);
    }
}

/// Events that are about to be committed. Dropped, nobody knows whether they were.
#[derive(Debug)]
#[must_use]
pub(crate) struct Commit {
    live: Live,
    events: Vec<Arc<Told>>,
    is_known: bool,
}

impl Live {
    /// From now on this client is told.
    pub(crate) fn listen(&self, client: Arc<Subscriptions>) -> Listening {
        let mut clients = lock(&self.0.clients);
        clients.last += 1;
        let number = clients.last;
        clients.by_number.insert(number, client);
        Listening {
            number,
            live: self.clone(),
        }
    }

    /// What others take in is heard from now on.
    pub(crate) fn is_followed(&self) {
        self.0.followed.send_replace(true);
    }

    /// Waits until what others take in is heard: what is looked for in the store before that, and stored
    /// by others after it, would be missed.
    pub(crate) async fn followed(&self) {
        let mut followed = self.0.followed.subscribe();
        // The sender is here as long as we are.
        drop(followed.wait_for(|is_followed| *is_followed).await);
    }

    /// Nobody knows what others have taken in: everybody has to come again.
    pub(crate) fn missed(&self) {
        let clients = self.clients();
        for client in clients {
            client.missed();
        }
    }

    fn clients(&self) -> Vec<Arc<Subscriptions>> {
        lock(&self.0.clients).by_number.values().cloned().collect()
    }

    /// Tells everybody what he wants of it, in this order.
    pub(crate) fn tell(&self, events: &[Arc<Told>]) {
        if events.is_empty() {
            return;
        }
        for client in self.clients() {
            client.offer(events);
        }
    }

    /// Writes down that these events are ours.
    pub(crate) fn about_to_commit<'a>(
        &self,
        arrivals: impl Iterator<Item = &'a Arrival>,
    ) -> Commit {
        let mut ours = lock(&self.0.ours);
        let mut events = Vec::new();
        for Arrival { event, topics } in arrivals {
            let entry = Ours {
                left: topics.len(),
                is_told: false,
            };
            ours.insert(event.id, entry);
            events.push(Told::new(Arc::clone(event)));
        }
        drop(ours);
        Commit {
            live: self.clone(),
            events,
            is_known: false,
        }
    }

    /// Whether an event that the log shows may have to be told.
    pub(crate) fn is_open(&self, id: Id) -> bool {
        let ours = lock(&self.0.ours);
        ours.get(&id).is_none_or(|own| !own.is_told)
    }

    /// Whether an event that the log shows is to be told: neither told by its commit nor for another topic.
    pub(crate) fn is_news(&self, id: Id) -> bool {
        let mut ours = lock(&self.0.ours);
        if let Some(own) = ours.get_mut(&id) {
            own.left = own.left.saturating_sub(1);
            // Its commit went through, and its answer is not here: who deletes or replaces it elsewhere
            // must not be told of before it.
            let is_news = !std::mem::replace(&mut own.is_told, true);
            if own.left == 0 && !is_news {
                ours.remove(&id);
            }
            return is_news;
        }
        drop(ours);
        lock(&self.0.others).is_new(id)
    }

    /// Tells an event that nobody stores, once; answers whether this was the time.
    pub(crate) fn pass_on(&self, event: Arc<Event>) -> bool {
        let is_new = lock(&self.0.passing).is_new(event.id);
        if is_new {
            self.tell(&[Told::new(event)]);
        }
        is_new
    }

    /// Ends an event of ours: answers whether it is to be told now.
    fn settle(&self, id: Id, is_committed: bool) -> bool {
        let mut ours = lock(&self.0.ours);
        let Some(own) = ours.get_mut(&id) else {
            return is_committed;
        };
        let is_told = std::mem::replace(&mut own.is_told, true);
        // What was not committed as far as we know, and is shown later, is told then.
        if own.left == 0 || (!is_committed && !is_told) {
            ours.remove(&id);
        }
        is_committed && !is_told
    }
}

impl Commit {
    /// The commit went through.
    pub(crate) fn committed(mut self) {
        self.is_known = true;
    }
}

impl Drop for Commit {
    fn drop(&mut self) {
        let (live, is_known) = (self.live.clone(), self.is_known);
        self.events
            .retain(|event| live.settle(event.event.id, is_known));
        live.tell(&self.events);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nostr::Signer;

    fn arrival(topics: &[&str]) -> Arrival {
        let event = Signer::random().event(1, 1, vec![], String::new());
        Arrival {
            event: Arc::new(event),
            topics: topics.iter().map(|it| (*it).to_owned()).collect(),
        }
    }

    #[test]
    fn what_is_ours_is_passed_over_in_the_log_for_each_topic_and_then_forgotten() {
        let live = Live::default();
        let one = arrival(&["a", "b"]);
        let commit = live.about_to_commit([&one].into_iter());
        assert!(live.is_open(one.event.id));
        commit.committed();
        assert!(!live.is_open(one.event.id));
        assert!(!live.is_news(one.event.id) && !live.is_news(one.event.id));
        assert!(lock(&live.0.ours).is_empty());
    }

    #[test]
    fn what_the_log_shows_before_its_commit_is_answered_is_told_then_and_only_then() {
        for is_answered in [true, false] {
            for topics in [&["a"][..], &["a", "b"]] {
                let live = Live::default();
                let one = arrival(topics);
                let commit = live.about_to_commit([&one].into_iter());
                assert!(live.is_news(one.event.id));
                assert!(!live.settle(one.event.id, is_answered), "told twice");
                drop(commit);
                for _ in &topics[1..] {
                    assert!(!live.is_news(one.event.id));
                }
                assert!(lock(&live.0.ours).is_empty());
            }
        }
    }

    #[test]
    fn what_others_took_in_is_news_once() {
        let live = Live::default();
        let id = arrival(&[]).event.id;
        assert!(live.is_news(id) && !live.is_news(id));
    }

    #[test]
    fn after_a_commit_that_nobody_knows_of_the_log_decides() {
        let live = Live::default();
        let (lost, done) = (arrival(&["a"]), arrival(&["a"]));
        let commit = live.about_to_commit([&lost, &done].into_iter());
        assert!(live.is_news(done.event.id));
        drop(commit);
        assert!(lock(&live.0.ours).is_empty());
        // If it comes later after all, the log tells it.
        assert!(live.is_news(lost.event.id));
    }
}
