//! Waiting for what somebody else holds: outside of every transaction, and not for ever.
//!
//! A transaction that is shared waits for nobody, or everybody in it would. A request whose key or
//! entitlement is held comes back out of it undone, waits here without a connection or a lock, and
//! tries again. So a stalled process holds up those who want the same as it, and nobody else; and
//! of those, one asks for all ([`crate::gates`]), so that it costs the same however many they are.

use std::time::Duration;

use tasuki::idempotency::LockNumber;
use tasuki::retry::Backoff;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::gates::{End, Gates, Probe};

/// The first pause: about as long as a transaction takes.
const FIRST: Duration = Duration::from_millis(2);
/// The longest one.
const LONGEST: Duration = Duration::from_millis(50);
/// The longest one of who asks for all: short, because it is only one.
const LONGEST_FOR_ALL: Duration = Duration::from_millis(10);

/// How long one request still waits.
#[derive(Debug)]
pub(crate) struct Patience {
    wait: Duration,
    deadline: Instant,
    tries: u32,
    /// It asks for others, too; since when.
    probe: Option<(Probe, Instant)>,
}

impl Patience {
    /// Waits for up to `wait` from now on.
    pub(crate) fn new(wait: Duration) -> Self {
        Self {
            wait,
            deadline: Instant::now() + wait,
            tries: 0,
            probe: None,
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
        let longest = if self.probe.is_some() {
            LONGEST_FOR_ALL
        } else {
            LONGEST
        };
        let pauses = Backoff::exponential(FIRST, longest).jitter(0.5, 1.5);
        sleep_until(self.deadline.min(now + pauses.pick(self.tries))).await;
        true
    }

    /// Waits until an entitlement that was held may be free, and says whether it may: `false` when
    /// patience is over.
    pub(crate) async fn outlast(&mut self, lock: LockNumber, gates: &Gates) -> bool {
        loop {
            if let Some(end) = gates.work(lock) {
                return self.until(end).await.is_some();
            }
            if self.probe.is_some() {
                return self.pause().await;
            }
            match gates.probe(lock) {
                Ok(probe) => self.probe = Some((probe, Instant::now())),
                Err(end) => match self.until(end).await {
                    Some(Ended::Free) => return true,
                    // It is still held, and one of us asks from now on.
                    Some(Ended::GivenUp) => {}
                    None => return false,
                },
            }
        }
    }

    /// Tells those who wait for the same that the way is free.
    pub(crate) fn free(&mut self) {
        if let Some((probe, _)) = self.probe.take() {
            probe.free();
        }
    }

    /// Whether it has asked for others most of its time, and so is the one to complain.
    pub(crate) fn is_spokesman(&self) -> bool {
        let half = self.wait / 2;
        matches!(&self.probe, Some((_, since)) if since.elapsed() >= half)
    }

    async fn until(&self, mut end: End) -> Option<Ended> {
        match timeout_at(self.deadline, end.changed()).await {
            Ok(Ok(())) => Some(Ended::Free),
            Ok(Err(_closed)) => Some(Ended::GivenUp),
            Err(_elapsed) => None,
        }
    }
}

/// How what was waited for came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Free,
    GivenUp,
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: LockNumber = LockNumber::from_raw(1);
    const LONG: Duration = Duration::from_secs(30);

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

    #[tokio::test]
    async fn one_asks_and_the_others_wait_for_it() {
        let gates = Gates::default();
        let (mut one, mut other) = (Patience::new(LONG), Patience::new(LONG));
        assert!(one.outlast(LOCK, &gates).await);
        let (followed, ()) = tokio::join!(other.outlast(LOCK, &gates), async { one.free() });
        assert!(followed);
        assert!(other.probe.is_none(), "it never asked");
    }

    #[tokio::test]
    async fn when_the_one_who_asks_gives_up_another_one_asks() {
        let gates = Gates::default();
        let (mut one, mut other) = (Patience::new(LONG), Patience::new(LONG));
        assert!(one.outlast(LOCK, &gates).await);
        let (followed, ()) = tokio::join!(other.outlast(LOCK, &gates), async { drop(one) });
        assert!(followed);
        assert!(other.probe.is_some());
    }

    #[tokio::test]
    async fn whoever_waits_for_work_here_neither_asks_nor_waits_beyond_its_patience() {
        let gates = Gates::default();
        let work = gates.enter(&[LOCK]);
        let mut hasty = Patience::new(Duration::from_millis(20));
        assert!(!hasty.outlast(LOCK, &gates).await);
        let mut patient = Patience::new(LONG);
        let (ended, ()) = tokio::join!(patient.outlast(LOCK, &gates), async { drop(work) });
        assert!(ended);
        assert!(hasty.probe.is_none() && patient.probe.is_none());
    }
}
