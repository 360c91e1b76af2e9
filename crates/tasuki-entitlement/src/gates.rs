//! Who in this process is at work on an entitlement, and who asks for one that is held elsewhere.
//!
//! The database decides who may change what; this only saves it questions whose answer is known
//! here. Two batches of one process never want the same entitlement at the same time. Of all those
//! who wait for one that another process holds, one asks again and again, and tells the others.
//!
//! No end is missed: whoever waits for one has found it under the same mutex under which it is
//! removed, and only then told.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tasuki::idempotency::LockNumber;
use tokio::sync::watch;
use tokio::time::timeout;

/// How long a batch of which nothing can be done waits for whoever is at work on it: a few
/// transactions. Meanwhile others can join it only behind it.
const SHORTLY: Duration = Duration::from_millis(10);

/// Changes once when what it is the end of comes to one; is closed without it when it is given up.
pub(crate) type End = watch::Receiver<()>;

/// What this process is doing. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gates(Arc<Mutex<Busy>>);

#[derive(Debug, Default)]
struct Busy {
    work: HashMap<LockNumber, End>,
    probes: HashMap<LockNumber, End>,
}

/// A batch at work. Dropping it tells everybody who waits for it.
#[derive(Debug)]
pub(crate) struct Work {
    gates: Gates,
    locks: HashSet<LockNumber>,
    end: watch::Sender<()>,
}

/// The one who asks for all who wait. Dropping it leaves that to another one.
#[derive(Debug)]
pub(crate) struct Probe {
    gates: Gates,
    lock: LockNumber,
    is_free: bool,
    end: watch::Sender<()>,
}

impl Gates {
    /// Goes to work on those of `wanted` that nobody is at work on.
    pub(crate) fn enter(&self, wanted: &[LockNumber]) -> Work {
        let (sender, end) = watch::channel(());
        let mut locks = HashSet::with_capacity(wanted.len());
        let mut busy = self.busy();
        for lock in wanted {
            if let Entry::Vacant(free) = busy.work.entry(*lock) {
                free.insert(end.clone());
                locks.insert(*lock);
            }
        }
        drop(busy);
        Work {
            gates: self.clone(),
            locks,
            end: sender,
        }
    }

    /// As [`enter`](Self::enter). When somebody is at work on all of them, waits a little for the
    /// end: what came for one hot entitlement stays together and in its order.
    pub(crate) async fn enter_soon(&self, wanted: &[LockNumber]) -> Work {
        let work = self.enter(wanted);
        if !work.locks.is_empty() {
            return work;
        }
        let other = wanted.first().and_then(|lock| self.work(*lock));
        if let Some(mut end) = other {
            // Whether it ended or not shows when it is tried.
            timeout(SHORTLY, end.changed()).await.ok();
        }
        self.enter(wanted)
    }

    /// The end of the work on `lock`, if somebody is at it.
    pub(crate) fn work(&self, lock: LockNumber) -> Option<End> {
        self.busy().work.get(&lock).cloned()
    }

    /// Asks for all who wait for `lock`.
    ///
    /// # Errors
    /// Somebody does already: this is the end of it.
    pub(crate) fn probe(&self, lock: LockNumber) -> Result<Probe, End> {
        let (sender, end) = watch::channel(());
        match self.busy().probes.entry(lock) {
            Entry::Occupied(other) => return Err(other.get().clone()),
            Entry::Vacant(free) => {
                free.insert(end);
            }
        }
        Ok(Probe {
            gates: self.clone(),
            lock,
            is_free: false,
            end: sender,
        })
    }

    fn busy(&self) -> MutexGuard<'_, Busy> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Work {
    /// Whether this is who is at work on `lock`.
    pub(crate) fn has(&self, lock: LockNumber) -> bool {
        self.locks.contains(&lock)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let mut busy = self.gates.busy();
        for lock in &self.locks {
            busy.work.remove(lock);
        }
        drop(busy);
        self.end.send_replace(());
    }
}

impl Probe {
    /// The way is free: everybody who waits may try.
    pub(crate) fn free(mut self) {
        self.is_free = true;
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.gates.busy().probes.remove(&self.lock);
        if self.is_free {
            self.end.send_replace(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: LockNumber = LockNumber::from_raw(1);
    const OTHER: LockNumber = LockNumber::from_raw(2);

    #[tokio::test]
    async fn work_is_left_out_by_others_until_it_is_dropped() {
        let gates = Gates::default();
        let first = gates.enter(&[LOCK, LOCK]);
        let second = gates.enter(&[LOCK, OTHER]);
        assert_eq!((first.has(LOCK), second.has(LOCK)), (true, false));
        assert!(second.has(OTHER));
        let mut end = gates.work(LOCK).unwrap();
        drop(first);
        end.changed().await.unwrap();
        assert!(gates.work(LOCK).is_none());
        assert!(gates.work(OTHER).is_some());
        assert!(gates.enter(&[LOCK]).has(LOCK));
    }

    #[tokio::test]
    async fn a_batch_waits_a_little_for_what_it_wants_and_not_for_ever() {
        let gates = Gates::default();
        let first = gates.enter(&[LOCK]);
        assert!(!gates.enter_soon(&[LOCK]).await.has(LOCK));
        let leave = async { drop(first) };
        let (second, ()) = tokio::join!(gates.enter_soon(&[LOCK]), leave);
        assert!(second.has(LOCK));
    }

    #[tokio::test]
    async fn whoever_follows_wakes_when_the_way_is_free_and_when_it_is_given_up() {
        let gates = Gates::default();
        let probe = gates.probe(LOCK).unwrap();
        let mut follower = gates.probe(LOCK).unwrap_err();
        probe.free();
        assert!(follower.changed().await.is_ok());

        let probe = gates.probe(LOCK).unwrap();
        let mut follower = gates.probe(LOCK).unwrap_err();
        drop(probe);
        assert!(follower.changed().await.is_err(), "another one asks now");
        assert!(gates.probe(LOCK).is_ok());
    }
}
