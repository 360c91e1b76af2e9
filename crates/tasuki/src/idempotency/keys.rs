//! Serving requests under their keys: one by one, or a batch in one transaction.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use sqlx::{PgConnection, PgPool, Postgres};
use tokio::time::Instant;
use tracing::Instrument;

use super::flight::{Flights, Turn, Waited};
use super::tally::{self, Tally};
use super::{Answer, Error, LockNumber, Opened, Outcome, Reply, Request, RequestHash, store};
use crate::Schema;
use crate::testing::crash_point;
use crate::together::Together;
use crate::transaction::{self, Transaction};

/// How long an answer is kept.
const TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a twin waits for the first.
const WAIT: Duration = Duration::from_secs(5);
/// No wait is longer, whatever is asked for: it must fit into a deadline.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// The idempotency keys of one schema in one database. Cheap to clone; clones share what they
/// know of running requests, so use one for one database only.
#[derive(Clone, Debug)]
pub struct Keys {
    statements: Arc<store::Statements>,
    flights: Flights,
    namespace: String,
    ttl: Duration,
    wait: Duration,
    forced: Option<LockNumber>,
}

/// A key, locked and read.
#[derive(Debug)]
pub(super) enum Begun {
    /// Nothing is kept: the work is ours, in this transaction, which holds the lock.
    Fresh(Transaction, Box<Hold>),
    /// The answer to the same request.
    Stored(Reply),
}

/// What the first request with a key holds besides its transaction.
#[derive(Debug)]
pub(super) struct Hold {
    keys: Keys,
    request: Request,
    turn: Turn,
    tally: Tally,
}

/// What is under a key.
enum Found {
    Nothing(Transaction, Turn),
    Kept(Reply),
}

impl Keys {
    /// The keys in `schema`: kept for 24 hours, twins wait for 5 seconds.
    #[must_use]
    pub fn new(schema: &Schema) -> Self {
        Self {
            statements: Arc::new(store::Statements::new(schema)),
            flights: Flights::default(),
            namespace: schema.to_string(),
            ttl: TTL,
            wait: WAIT,
            forced: None,
        }
    }

    /// How long an answer is kept. A repetition after that is a new request.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long a request waits for another one with the same key that still runs, before it
    /// is told [`Error::InProgress`]. Zero: it is told at once.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// The name that goes into every lock number, by default that of the schema. All
    /// processes of one service need the same.
    #[must_use]
    pub fn namespace(mut self, namespace: &str) -> Self {
        namespace.clone_into(&mut self.namespace);
        self
    }

    /// Gives all keys the same lock number, to show that it only makes them wait.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn colliding(mut self, number: LockNumber) -> Self {
        self.forced = Some(number);
        self
    }

    /// The number of the lock that serialises requests with the key of `request`.
    #[must_use]
    pub fn lock_number(&self, request: &Request) -> LockNumber {
        self.forced
            .unwrap_or_else(|| LockNumber::of(&[&self.namespace, request.caller(), request.key()]))
    }

    /// Answers `request`: with what is kept under its key, or by doing `work` in the
    /// transaction that keeps its answer. The work must do all it does in that transaction,
    /// and takes no second connection of the pool: twins that each hold one could wait for
    /// another for ever.
    ///
    /// Dropping the future rolls back. If the work panics, too.
    ///
    /// # Errors
    /// Those of the work, rolled back; and [`Error`]: another request has the key, or the
    /// same one still runs, or the database fails. After the latter the request may have been
    /// done, and repeating it tells.
    pub async fn once<E, W>(&self, pool: &PgPool, request: &Request, work: W) -> Result<Outcome, E>
    where
        E: From<Error>,
        W: AsyncFnOnce(&mut PgConnection) -> Result<Answer, E>,
    {
        let span = tracing::info_span!(
            "idempotent request",
            idempotency.key = request.key(),
            idempotency.outcome = tracing::field::Empty,
        );
        let answering = async {
            let (mut tx, hold) = match self.begin(pool, request, self.wait).await? {
                Begun::Stored(reply) => return Ok(Outcome::Replayed(reply)),
                Begun::Fresh(tx, hold) => (tx, hold),
            };
            match work(&mut tx).await {
                Ok(Answer::Decided(reply)) => {
                    hold.commit(tx, &reply).await?;
                    Ok(Outcome::Executed(reply))
                }
                Ok(Answer::Undecided(reply)) => {
                    hold.abandon(tx).await;
                    Ok(Outcome::Undecided(reply))
                }
                Err(error) => {
                    hold.abandon(tx).await;
                    Err(error)
                }
            }
        };
        answering.instrument(span).await
    }

    /// Opens many requests in the caller's transaction: takes the locks of all their keys, in
    /// one order and one statement, and reads what is kept in another. One answer per request,
    /// in their order. Do the fresh ones, and keep their answers with
    /// [`store_all`](Self::store_all) before you commit.
    ///
    /// The transaction must be `READ COMMITTED`, PostgreSQL's default: under a stricter level
    /// twins are told by a serialization failure.
    ///
    /// # Errors
    /// [`Error::InProgress`] when one of the keys was locked for too long, or that the database
    /// failed. Roll back then, and open the requests one by one: only one of them is to blame.
    pub async fn open_all(
        &self,
        tx: &mut PgConnection,
        requests: &[Request],
    ) -> Result<Vec<Opened>, Error> {
        self.open_all_with(tx, requests, &[]).await
    }

    /// As [`open_all`](Self::open_all), and then takes the locks of `also`: of rows that the
    /// work will write and that may not exist yet, which no row lock covers.
    ///
    /// # Errors
    /// As [`open_all`](Self::open_all), and [`Error::Held`] when one of `also` was locked for
    /// too long.
    pub async fn open_all_with(
        &self,
        tx: &mut PgConnection,
        requests: &[Request],
        also: &[LockNumber],
    ) -> Result<Vec<Opened>, Error> {
        // Everybody who waits takes the locks of keys first, and each kind in the order of its
        // numbers: nobody waits in a circle.
        let keys = sorted(requests.iter().map(|request| self.lock_number(request)));
        if !keys.is_empty() {
            let locked = store::lock_all(tx, &keys, self.wait).await;
            locked.map_err(lock_error(Error::InProgress))?;
        }
        let also = sorted(also.iter().copied());
        if !also.is_empty() {
            let locked = store::lock_all(tx, &also, self.wait).await;
            locked.map_err(lock_error(Error::Held))?;
        }
        let requests: Vec<_> = requests.iter().collect();
        self.find_all(tx, &requests, |_| HashMap::new()).await
    }

    /// Begins a transaction and opens many requests in it, as
    /// [`open_all_with`](Self::open_all_with), each with the locks that it needs besides its
    /// key's. But waits for nobody: [`Opened::InProgress`] and [`Opened::Held`] tell which requests
    /// would have to. Those that have been answered before are told so whoever holds what. The
    /// locks that were free are taken, also those of requests that got not all of theirs: end the
    /// transaction soon.
    ///
    /// Who never waits can't wait in a circle, and one lock that is held for long holds up
    /// nobody who does not need it.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn begin_all(
        &self,
        pool: &PgPool,
        asked: &[(&Request, Vec<LockNumber>)],
    ) -> Result<(sqlx::Transaction<'static, Postgres>, Vec<Opened>), Error> {
        let keys = asked.iter().map(|(request, _)| self.lock_number(request));
        let also = asked.iter().flat_map(|(_, also)| also.iter().copied());
        let numbers = sorted(keys.chain(also));
        let mut tx = transaction::begin_with(pool, &store::locking_free(&numbers)).await?;
        let requests: Vec<_> = asked.iter().map(|(request, _)| *request).collect();
        let opened = self.find_all(&mut tx, &requests, |locked| {
            let mut held = HashMap::new();
            for (index, (request, also)) in asked.iter().enumerate() {
                if locked.contains(&self.lock_number(request)) {
                    held.insert(index, Opened::InProgress);
                } else if also.iter().any(|number| locked.contains(number)) {
                    held.insert(index, Opened::Held);
                }
            }
            held
        });
        let opened = opened.await?;
        Ok((tx, opened))
    }

    /// What is kept under the keys of `requests`; `held` says which have to wait for somebody, from
    /// the locks that were not free.
    async fn find_all(
        &self,
        tx: &mut PgConnection,
        requests: &[&Request],
        held: impl FnOnce(&HashSet<LockNumber>) -> HashMap<usize, Opened>,
    ) -> Result<Vec<Opened>, Error> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let (locked, kept) = store::read_all(tx, &self.statements, requests).await?;
        let held = if locked.is_empty() {
            HashMap::new()
        } else {
            held(&locked)
        };
        let opened = compare(requests, kept, held);
        let found = |wanted: fn(&Opened) -> bool| opened.iter().filter(|it| wanted(it)).count();
        tally::count("replayed", found(|it| matches!(it, Opened::Stored(_))));
        tally::count("conflict", found(|it| matches!(it, Opened::Conflict)));
        Ok(opened)
    }

    /// Keeps an answer for each of the fresh requests of [`open_all`](Self::open_all) that came
    /// to a decision, each key once. Commit it with what they did.
    ///
    /// # Errors
    /// [`Error::Broken`] when something is kept already under one of the keys: roll back.
    pub async fn store_all(
        &self,
        tx: &mut PgConnection,
        answered: &[(&Request, &Reply)],
    ) -> Result<(), Error> {
        self.keep(tx, answered).await?;
        tally::count("executed", answered.len());
        Ok(())
    }

    /// Adds the answers to a statement of the caller's, as [`store_all`](Self::store_all) keeps
    /// them.
    ///
    /// # Errors
    /// When an answer can't be kept.
    pub fn store_with(
        &self,
        together: &mut Together,
        answered: &[(&Request, &Reply)],
    ) -> Result<(), Error> {
        if answered.is_empty() {
            return Ok(());
        }
        let done = |answers| tally::count("executed", answers);
        store::store_all_with(together, &self.statements, answered, self.ttl, done)
    }

    /// Removes at most `limit` answers whose time is over, and returns how many. A key that is
    /// being used at this moment stays.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn purge_expired(
        &self,
        connection: &mut PgConnection,
        limit: u32,
    ) -> Result<u64, Error> {
        Ok(store::purge_expired(connection, &self.statements, limit.into()).await?)
    }

    /// How long a twin waits.
    #[cfg(feature = "axum")]
    pub(super) fn patience(&self) -> Duration {
        self.wait
    }

    /// Opens the transaction, takes the lock of the key and reads what is kept under it.
    pub(super) async fn begin(
        &self,
        pool: &PgPool,
        request: &Request,
        wait: Duration,
    ) -> Result<Begun, Error> {
        let mut tally = Tally::new();
        match self.find(pool, request, wait).await {
            Ok(Found::Nothing(tx, turn)) => {
                let hold = Hold {
                    keys: self.clone(),
                    request: request.clone(),
                    turn,
                    tally,
                };
                Ok(Begun::Fresh(tx, Box::new(hold)))
            }
            Ok(Found::Kept(reply)) => {
                tally.ended("replayed");
                Ok(Begun::Stored(reply))
            }
            Err(error) => {
                tally.failed(&error);
                Err(error)
            }
        }
    }

    async fn find(&self, pool: &PgPool, request: &Request, wait: Duration) -> Result<Found, Error> {
        let deadline = Instant::now() + wait.min(LONGEST_WAIT);
        let turn = match self.flights.wait(request, deadline).await {
            Waited::Turn(turn) => turn,
            Waited::Landed(hash, reply) => return same(request, hash, reply),
            Waited::TooLong => return Err(Error::InProgress),
        };
        let number = self.lock_number(request);
        let mut tx = transaction::begin_with(pool, &store::locking_free(&[number])).await?;
        let mut found = store::read(&mut tx, &self.statements, request).await?;
        if found.kept.is_none() && !found.locked {
            // A request of another process has the lock. Whatever it will keep is not in what
            // we read: wait for its end, and read again.
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                transaction::roll_back(tx).await;
                return Err(Error::InProgress);
            }
            let locked = store::lock_all(&mut tx, &[number], left).await;
            locked.map_err(lock_error(Error::InProgress))?;
            found = store::read(&mut tx, &self.statements, request).await?;
        }
        let Some(kept) = found.kept else {
            return Ok(Found::Nothing(tx, turn));
        };
        // Rolled back on its way to the pool. Nothing was written: nobody has to wait for it.
        drop(tx);
        turn.land(kept.hash, kept.reply.clone());
        same(request, kept.hash, kept.reply)
    }

    async fn keep(
        &self,
        tx: &mut PgConnection,
        answered: &[(&Request, &Reply)],
    ) -> Result<(), Error> {
        if answered.is_empty() {
            return Ok(());
        }
        let kept = store::store_all(tx, &self.statements, answered, self.ttl).await?;
        // We hold the locks and found nothing. Whoever wrote did not ask for them.
        if usize::try_from(kept) != Ok(answered.len()) {
            return Err(Error::Broken);
        }
        Ok(())
    }
}

impl Hold {
    /// Keeps the answer and commits it with the work.
    pub(super) async fn commit(mut self, mut tx: Transaction, reply: &Reply) -> Result<(), Error> {
        let committed = async {
            let answered = [(&self.request, reply)];
            self.keys.keep(&mut tx, &answered).await?;
            crash_point("idempotency.before_commit");
            // The statement that keeps the answer fails in a doomed transaction.
            tx.commit().await?;
            crash_point("idempotency.committed");
            Ok(())
        };
        match committed.await {
            Ok(()) => {
                self.tally.ended("executed");
                self.turn.land(self.request.hash(), reply.clone());
                Ok(())
            }
            Err(error) => {
                self.tally.failed(&error);
                Err(error)
            }
        }
    }

    /// Rolls back before anybody is answered, so that a repetition finds the key free.
    pub(super) async fn abandon(mut self, tx: Transaction) {
        transaction::roll_back(tx).await;
        self.tally.ended("undecided");
    }
}

fn same(request: &Request, hash: RequestHash, reply: Reply) -> Result<Found, Error> {
    if hash == request.hash() {
        Ok(Found::Kept(reply))
    } else {
        Err(Error::Conflict)
    }
}

/// Takes those of `numbers` that are free until the end of the transaction, waits for none, and
/// returns those that somebody else has.
///
/// # Errors
/// When the database fails.
pub async fn try_lock_all(
    tx: &mut PgConnection,
    numbers: &[LockNumber],
) -> Result<HashSet<LockNumber>, Error> {
    let numbers = sorted(numbers.iter().copied());
    if numbers.is_empty() {
        return Ok(HashSet::new());
    }
    let held = store::try_lock_all(tx, &numbers).await?;
    Ok(held.into_iter().map(LockNumber::from_raw).collect())
}

fn sorted(numbers: impl IntoIterator<Item = LockNumber>) -> Vec<LockNumber> {
    let mut numbers: Vec<_> = numbers.into_iter().collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// `too_long` when that was it.
fn lock_error(too_long: Error) -> impl FnOnce(sqlx::Error) -> Error {
    move |error| {
        if store::waited_too_long(&error) {
            too_long
        } else {
            Error::Store(error)
        }
    }
}

fn compare(
    requests: &[&Request],
    kept: Vec<(usize, store::Kept)>,
    mut held: HashMap<usize, Opened>,
) -> Vec<Opened> {
    let mut kept: HashMap<usize, store::Kept> = kept.into_iter().collect();
    let mut firsts: HashMap<(&str, &str), (usize, RequestHash)> = HashMap::new();
    let compared = requests.iter().enumerate().map(|(index, request)| {
        if let Some(kept) = kept.remove(&index) {
            return match kept.hash == request.hash() {
                true => Opened::Stored(kept.reply),
                false => Opened::Conflict,
            };
        }
        if let Some(held) = held.remove(&index) {
            return held;
        }
        let mine = (index, request.hash());
        let (first, hash) = *firsts
            .entry((request.caller(), request.key()))
            .or_insert(mine);
        match (first == index, hash == request.hash()) {
            (true, _) => Opened::Fresh,
            (false, true) => Opened::Twin(first),
            (false, false) => Opened::Conflict,
        }
    });
    compared.collect()
}
