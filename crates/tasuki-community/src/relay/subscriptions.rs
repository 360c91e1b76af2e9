//! What one client wants to hear, where those who tell can look.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::live::Told;
use super::outgoing::Outbound;
use crate::nostr::Filter;

/// One subscription under one name; a later one of the same name has another number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Subscription {
    pub(crate) name: String,
    pub(crate) number: u64,
}

/// Filters by the name and with the number of their subscription.
type Wanted = HashMap<String, (u64, Arc<Vec<Filter>>)>;

/// The subscriptions of one client.
#[derive(Debug)]
pub(crate) struct Subscriptions {
    wanted: Mutex<Wanted>,
    outbound: Outbound,
}

impl Subscriptions {
    pub(crate) fn new(outbound: Outbound) -> Self {
        Self {
            wanted: Mutex::default(),
            outbound,
        }
    }

    /// Takes the place of a subscription of the same name.
    pub(crate) fn put(&self, subscription: &Subscription, filters: Arc<Vec<Filter>>) {
        let wanted = (subscription.number, filters);
        self.wanted().insert(subscription.name.clone(), wanted);
    }

    pub(crate) fn remove(&self, name: &str) {
        self.wanted().remove(name);
    }

    /// Hands the client each event once for each subscription that wants it.
    pub(crate) fn offer(&self, events: &[Arc<Told>]) {
        let wanted = self.wanted();
        for event in events {
            for (name, (number, filters)) in wanted.iter() {
                if filters
                    .iter()
                    .any(|filter| filter.wants(&event.event, &event.keys))
                {
                    let subscription = Subscription {
                        name: name.clone(),
                        number: *number,
                    };
                    self.outbound.live(subscription, Arc::clone(event));
                }
            }
        }
    }

    /// Nobody knows what it has missed: it has to come again.
    pub(crate) fn missed(&self) {
        self.outbound.missed();
    }

    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
