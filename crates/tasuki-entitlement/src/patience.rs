//! Waiting for what somebody else holds: outside of every transaction, and not for ever.
//!
//! A transaction that is shared waits for nobody, or everybody in it would. A request whose key or
//! entitlement is held comes back out of it undone, waits here without a connection or a lock, and
//! tries again. So a stalled process holds up those who want the same as it, and nobody else.

use std::time::Duration;

use tasuki::retry::Backoff;
use tokio::time::{Instant, sleep_until};

/// The first pause: about as long as a transaction takes.
const FIRST: Duration = Duration::from_millis(2);
/// The longest one.
const LONGEST: Duration = Duration::from_millis(50);

/// How long one request still waits.
#[derive(Debug)]
pub(crate) struct Patience {
    deadline: Instant,
    tries: u32,
}

impl Patience {
    /// Waits for up to `wait` from now on.
    pub(crate) fn new(wait: Duration) -> Self {
        Self {
            deadline: Instant::now() + wait,
            tries: 0,
        }
    }

    /// Pauses, and says whether to try again. The last try is at the very end.
    pub(crate) async fn pause(&mut self) -> bool {
        let now = Instant::now();
        if now >= self.deadline {
            return false;
        }
        self.tries = self.tries.saturating_add(1);
        // Out of step, or two who want the same would meet again and again.
        let pauses = Backoff::exponential(FIRST, LONGEST).jitter(0.5, 1.5);
        sleep_until(self.deadline.min(now + pauses.pick(self.tries))).await;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn patience_tries_more_than_once_and_ends_when_it_should() {
        let (began, wait) = (Instant::now(), Duration::from_millis(300));
        let mut patience = Patience::new(wait);
        let mut tries = 0;
        while patience.pause().await {
            tries += 1;
        }
        assert!(began.elapsed() >= wait);
        assert!((2..150).contains(&tries), "{tries}");

        assert!(!Patience::new(Duration::ZERO).pause().await);
    }
}
