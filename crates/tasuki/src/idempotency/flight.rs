//! Single flight: of the requests of this process with one key, one goes to the database.
//!
//! The others wait here, without a connection. They were there while the first one ran, so
//! what it committed is their answer too, and most of them need no connection at all. If it
//! came to nothing, the next in line goes.
//!
//! This is only a courtesy to the pool: what must hold is decided by the database.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, timeout_at};

use super::{Reply, Request, RequestHash};

/// What was committed under a key, and when this process knew.
#[derive(Clone, Debug)]
struct Landed {
    hash: RequestHash,
    reply: Reply,
    at: Instant,
}

type Gate = Arc<tokio::sync::Mutex<Option<Landed>>>;
type Name = (String, String);

/// Everybody who is at the gate of a key, by caller and key.
#[derive(Clone, Debug, Default)]
pub(super) struct Flights(Arc<Mutex<HashMap<Name, (Gate, usize)>>>);

/// A place at the gate of a key. The gate goes with the last of them.
#[derive(Debug)]
struct Place {
    flights: Flights,
    name: Name,
    gate: Gate,
}

/// The right to go to the database for a key.
#[derive(Debug)]
pub(super) struct Turn {
    // Dropped before the place, in this order: whoever is next finds the gate open.
    landed: OwnedMutexGuard<Option<Landed>>,
    _place: Place,
}

/// What waiting came to.
#[derive(Debug)]
pub(super) enum Waited {
    /// Go yourself.
    Turn(Turn),
    /// The one before us committed this, while we waited.
    Landed(RequestHash, Reply),
    /// The time was not enough.
    TooLong,
}

impl Flights {
    pub(super) async fn wait(&self, request: &Request, deadline: Instant) -> Waited {
        let arrived = Instant::now();
        let place = self.place(request);
        let gate = Arc::clone(&place.gate).lock_owned();
        let Ok(landed) = timeout_at(deadline, gate).await else {
            return Waited::TooLong;
        };
        // Only what landed while we waited: an older answer may have expired meanwhile.
        match &*landed {
            Some(landed) if landed.at >= arrived => {
                Waited::Landed(landed.hash, landed.reply.clone())
            }
            _ => Waited::Turn(Turn {
                landed,
                _place: place,
            }),
        }
    }

    fn place(&self, request: &Request) -> Place {
        let name = (request.caller().to_owned(), request.key().to_owned());
        let mut flights = self.lock();
        let (gate, places) = flights.entry(name.clone()).or_default();
        *places += 1;
        Place {
            flights: self.clone(),
            name,
            gate: Arc::clone(gate),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Name, (Gate, usize)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn {
    /// Tells those who wait what was committed.
    pub(super) fn land(mut self, hash: RequestHash, reply: Reply) {
        let at = Instant::now();
        *self.landed = Some(Landed { hash, reply, at });
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut flights = self.flights.lock();
        if let Some((_, places)) = flights.get_mut(&self.name) {
            *places -= 1;
            if *places == 0 {
                flights.remove(&self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn request(key: &str) -> Request {
        Request::new("caller", key, RequestHash::of("POST", "/", b"")).unwrap()
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    async fn turn(flights: &Flights, key: &str) -> Turn {
        match flights.wait(&request(key), soon()).await {
            Waited::Turn(turn) => turn,
            other => panic!("no turn: {other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_is_for_one_at_a_time_and_other_keys_do_not_wait() {
        let flights = Flights::default();
        let first = turn(&flights, "a").await;
        drop(turn(&flights, "b").await);
        let late = flights.wait(&request("a"), soon()).await;
        assert!(matches!(late, Waited::TooLong), "{late:?}");
        drop(first);
        drop(turn(&flights, "a").await);
        assert!(flights.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waited_gets_what_landed_and_who_comes_later_does_not() {
        let flights = Flights::default();
        let first = turn(&flights, "a").await;
        let (asked, reply) = (request("a"), Reply::new(200, "x"));
        let waiting = flights.wait(&asked, soon());
        let landing = async {
            tokio::task::yield_now().await;
            first.land(asked.hash(), reply.clone());
        };
        let (waited, ()) = tokio::join!(waiting, landing);
        match waited {
            Waited::Landed(hash, landed) => assert_eq!((hash, landed), (asked.hash(), reply)),
            other => panic!("not landed: {other:?}"),
        }
        drop(turn(&flights, "a").await);
    }
}
