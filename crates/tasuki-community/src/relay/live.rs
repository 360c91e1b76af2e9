//! Who listens in this process, and what they are told as it happens.
//!
//! What this process has taken in is told right after its commit. What others have taken in is read from
//! the log. Every event is told by exactly one of the two: before the commit it is written down that it
//! is ours, and rows of the log that are ours are passed over. If nobody knows whether a commit went
//! through, the log does: what it shows is told, what it never shows never was.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::ingest::Arrival;
use crate::nostr::{Event, Id, TagKey};
use crate::relay::subscriptions::Subscriptions;

/// Events of others whose further rows in the log (one per topic) are still to come.
const REMEMBERED: usize = 4096;

/// An event as it is told: read once, written once for all who get it.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) event: Arc<Event>,
    pub(crate) keys: Vec<TagKey>,
    pub(crate) json: String,
}

impl Told {
    pub(crate) fn new(event: Arc<Event>) -> Arc<Self> {
        let (keys, json) = (event.tag_keys(), event.json());
        Arc::new(Self { event, keys, json })
    }
}

/// Who listens in this process. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Live(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    clients: Mutex<Clients>,
    ours: Mutex<HashMap<Id, Ours>>,
    others: Mutex<Others>,
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
    /// Whether the log has shown any: then its commit went through.
    is_shown: bool,
    is_told: bool,
}

#[derive(Debug, Default)]
struct Others {
    known: HashSet<Id>,
    order: VecDeque<Id>,
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

    /// Tells everybody what he wants of it, in this order.
    pub(crate) fn tell(&self, events: &[Arc<Told>]) {
        let clients: Vec<_> = lock(&self.0.clients).by_number.values().cloned().collect();
        for client in clients {
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
                is_shown: false,
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

    /// Whether an event that the log shows is to be told: neither ours nor told for another topic.
    pub(crate) fn is_news(&self, id: Id) -> bool {
        let mut ours = lock(&self.0.ours);
        if let Some(own) = ours.get_mut(&id) {
            own.left = own.left.saturating_sub(1);
            own.is_shown = true;
            if own.left == 0 && own.is_told {
                ours.remove(&id);
            }
            return false;
        }
        drop(ours);
        let mut others = lock(&self.0.others);
        if !others.known.insert(id) {
            return false;
        }
        others.order.push_back(id);
        if others.order.len() > REMEMBERED
            && let Some(oldest) = others.order.pop_front()
        {
            others.known.remove(&oldest);
        }
        true
    }

    /// Ends an event of ours: answers whether it is to be told now.
    fn settle(&self, id: Id, is_committed: bool) -> bool {
        let mut ours = lock(&self.0.ours);
        let Some(own) = ours.get_mut(&id) else {
            return is_committed;
        };
        let is_there = is_committed || own.is_shown;
        own.is_told = is_there;
        if !is_there || own.left == 0 {
            ours.remove(&id);
        }
        is_there
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
        assert!(
            !live.is_news(one.event.id),
            "the log may be quicker than the answer"
        );
        commit.committed();
        assert!(!live.is_news(one.event.id));
        assert!(lock(&live.0.ours).is_empty());
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
        assert!(!live.is_news(done.event.id));
        drop(commit);
        assert!(lock(&live.0.ours).is_empty());
        // If it comes later after all, the log tells it.
        assert!(live.is_news(lost.event.id));
    }
}
