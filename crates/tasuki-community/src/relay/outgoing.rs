//! What is on its way to one client from others: a queue of limited length. A client that reads more
//! slowly than events come is told and cut; nothing is left out in silence.

use std::sync::Arc;

use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio_util::sync::CancellationToken;

use super::live::Told;
use super::subscriptions::Subscription;

/// Clients that were cut because they did not keep up.
const TOO_SLOW: &str = "tasuki_community_slow_clients_total";

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
    too_slow: CancellationToken,
}

/// A queue for so many events, and what says that it was full.
pub(crate) fn queue(length: usize) -> (Outbound, Receiver<LiveEvent>, CancellationToken) {
    let (queue, coming) = mpsc::channel(length);
    let too_slow = CancellationToken::new();
    let outbound = Outbound {
        queue,
        too_slow: too_slow.clone(),
    };
    (outbound, coming, too_slow)
}

impl Outbound {
    /// Never waits.
    pub(crate) fn live(&self, subscription: Subscription, event: Arc<Told>) {
        let full = self.queue.try_send(LiveEvent {
            subscription,
            event,
        });
        if matches!(full, Err(mpsc::error::TrySendError::Full(_))) && !self.too_slow.is_cancelled()
        {
            metrics::counter!(TOO_SLOW).increment(1);
            self.too_slow.cancel();
        }
    }
}
