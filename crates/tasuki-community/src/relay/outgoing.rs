//! What is on its way to one client from others: a queue of limited length. A client that reads more
//! slowly than events come is told and cut, and so is one that may have missed something; nothing is left
//! out in silence.

use std::sync::{Arc, OnceLock};

use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio_util::sync::CancellationToken;

use super::live::Told;
use super::subscriptions::Subscription;

/// Clients that were cut because they did not keep up.
const TOO_SLOW: &str = "tasuki_community_slow_clients_total";

/// Why a client can't be told what comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Events came faster than they were read.
    Slow,
    /// What others took in may not have been heard here.
    Missed,
}

/// Says that a client is to be cut, and why. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scissors {
    token: CancellationToken,
    why: Arc<OnceLock<Cut>>,
}

impl Scissors {
    /// The first reason counts; answers whether this is it.
    fn cut(&self, why: Cut) -> bool {
        let is_first = self.why.set(why).is_ok();
        self.token.cancel();
        is_first
    }

    /// Waits until it is cut.
    pub(crate) async fn cut_off(&self) -> Cut {
        self.token.cancelled().await;
        self.why.get().copied().unwrap_or(Cut::Slow)
    }
}

/// An event for a subscription.
#[derive(Debug)]
pub(crate) struct LiveEvent {
    pub(crate) subscription: Subscription,
    pub(crate) event: Arc<Told>,
}

/// Where those who tell put events.
#[derive(Clone, Debug)]
pub(crate) struct Outbound {
    queue: Sender<LiveEvent>,
    scissors: Scissors,
}

/// A queue for so many events, and what says that its client must go.
pub(crate) fn queue(length: usize) -> (Outbound, Receiver<LiveEvent>, Scissors) {
    let (queue, coming) = mpsc::channel(length);
    let scissors = Scissors::default();
    let outbound = Outbound {
        queue,
        scissors: scissors.clone(),
    };
    (outbound, coming, scissors)
}

impl Outbound {
    /// Never waits.
    pub(crate) fn live(&self, subscription: Subscription, event: Arc<Told>) {
        let full = self.queue.try_send(LiveEvent {
            subscription,
            event,
        });
        if matches!(full, Err(mpsc::error::TrySendError::Full(_))) && self.scissors.cut(Cut::Slow) {
            metrics::counter!(TOO_SLOW).increment(1);
        }
    }

    /// Nobody knows what this client has missed.
    pub(crate) fn missed(&self) {
        self.scissors.cut(Cut::Missed);
    }
}
