//! The transaction that many steps share, each on a savepoint of its own.
//!
//! Nothing is begun before a step asks for the connection: a batch whose steps don't write costs one
//! statement. Who asks first begins the transaction and locks the rows of all the sagas in it, so
//! that no step runs for a saga that somebody else has by now. A savepoint is taken when a step first
//! asks, and released together with taking the next one; what a failing step wrote goes back to it.
//!
//! In a shared transaction nobody waits for long: a step that others hold up, or that is slow, fails
//! and is run again in one of its own.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use sqlx::{PgConnection, PgPool, SqlSafeStr};
use uuid::Uuid;

use super::store::{NEXT_SAVEPOINT, Place, RELEASE, ROLL_BACK, SAVEPOINT, Store};
use crate::transaction::{self, Transaction};

/// How long a step may wait for a lock, and how long a statement may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) lock: Duration,
    pub(super) statement: Duration,
}

impl Limits {
    /// In a transaction that others wait for.
    pub(super) const SHARED: Self = Self {
        lock: Duration::from_millis(50),
        statement: Duration::from_secs(1),
    };

    /// In a transaction of one's own.
    pub(super) fn alone(timeout: Duration) -> Self {
        let most = timeout.clamp(Duration::from_millis(1), Duration::from_secs(24 * 3600));
        Self {
            lock: most,
            statement: most,
        }
    }
}

/// The transaction of a [`Local`](super::Local) step.
#[derive(Debug)]
pub struct Tx {
    pool: PgPool,
    store: Arc<Store>,
    limits: Limits,
    places: Vec<Place>,
    open: Option<Transaction>,
    /// Those that are still ours.
    sound: HashSet<Uuid>,
    savepoint: Savepoint,
    current: usize,
    /// Steps that lost what they wrote because a statement had failed and they did not say so.
    doomed: HashSet<usize>,
    stale: bool,
    broken: bool,
}

/// Where the savepoint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Savepoint {
    None,
    /// There is one, and nothing was written since.
    Clean,
    /// This step has used it.
    Used(usize),
}

impl Tx {
    pub(super) fn new(pool: PgPool, store: Arc<Store>, limits: Limits, places: Vec<Place>) -> Self {
        Self {
            pool,
            store,
            limits,
            places,
            open: None,
            sound: HashSet::new(),
            savepoint: Savepoint::None,
            current: 0,
            doomed: HashSet::new(),
            stale: false,
            broken: false,
        }
    }

    /// The connection, inside the transaction in which this step is recorded. Whatever is written
    /// there commits with the record, and is undone if the step fails.
    ///
    /// # Errors
    /// When the database can't be asked, or the saga is another process's by now.
    pub async fn get(&mut self) -> sqlx::Result<&mut PgConnection> {
        let got = self.prepare().await;
        if got.is_err() && !self.stale {
            self.broken = true;
        }
        got?;
        match &mut self.open {
            Some(open) => Ok(open),
            None => Err(sqlx::Error::BeginFailed),
        }
    }

    async fn prepare(&mut self) -> sqlx::Result<()> {
        if self.open.is_none() {
            self.begin().await?;
        }
        let place = self.places.get(self.current);
        if place.is_none_or(|place| !self.sound.contains(&place.id)) {
            self.stale = true;
            return Err(sqlx::Error::Protocol(
                "another process has this saga".into(),
            ));
        }
        match self.savepoint {
            Savepoint::Used(by) if by == self.current => return Ok(()),
            Savepoint::Used(last) => self.keep(last, NEXT_SAVEPOINT).await?,
            Savepoint::Clean => {}
            Savepoint::None => self.say(SAVEPOINT).await?,
        }
        self.savepoint = Savepoint::Used(self.current);
        Ok(())
    }

    async fn begin(&mut self) -> sqlx::Result<()> {
        let Limits { lock, statement } = self.limits;
        let (lock, statement) = (lock.as_millis(), statement.as_millis());
        let limits =
            format!("SET LOCAL lock_timeout = {lock}; SET LOCAL statement_timeout = {statement}");
        let mut open = transaction::begin_with(&self.pool, &limits).await?;
        let sound = self.store.fence(&mut open, &self.places).await?;
        self.sound.extend(sound);
        self.open = Some(open);
        Ok(())
    }

    /// Says that those which are not in the table yet are ours all the same.
    pub(super) fn trust(&mut self, ids: impl Iterator<Item = Uuid>) {
        self.sound.extend(ids);
    }

    /// Keeps what the last step has written, by `statement`. One that had met an error without a word
    /// has written nothing, and is told so.
    async fn keep(&mut self, last: usize, statement: &'static str) -> sqlx::Result<()> {
        match self.say(statement).await {
            Ok(()) => {
                self.savepoint = Savepoint::Clean;
                Ok(())
            }
            Err(error) if is_doomed(&error) => {
                self.say(ROLL_BACK).await?;
                self.doomed.insert(last);
                self.savepoint = Savepoint::Clean;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    async fn say(&mut self, statement: &'static str) -> sqlx::Result<()> {
        let Some(open) = &mut self.open else {
            return Err(sqlx::Error::BeginFailed);
        };
        super::store::say(open, statement.into_sql_str()).await
    }

    /// The step of the saga at `index` begins.
    pub(super) fn turn(&mut self, index: usize) {
        self.current = index;
        self.stale = false;
    }

    /// Whether the saga whose turn it is is known to be another's.
    pub(super) fn is_stale(&self) -> bool {
        let place = self.places.get(self.current);
        self.stale
            || self.open.is_some() && place.is_none_or(|place| !self.sound.contains(&place.id))
    }

    /// Takes back what the step whose turn it is has written.
    pub(super) async fn take_back(&mut self) -> sqlx::Result<()> {
        if self.savepoint == Savepoint::Used(self.current) {
            self.say(ROLL_BACK).await?;
            self.savepoint = Savepoint::Clean;
        }
        Ok(())
    }

    /// All steps have run: answers those that have written nothing because they are doomed.
    pub(super) async fn settle(&mut self) -> sqlx::Result<HashSet<usize>> {
        if self.broken {
            return Err(sqlx::Error::BeginFailed);
        }
        if let Savepoint::Used(last) = self.savepoint {
            self.keep(last, RELEASE).await?;
        }
        Ok(std::mem::take(&mut self.doomed))
    }

    /// The transaction, if any step has begun it.
    pub(super) fn opened(&mut self) -> Option<&mut Transaction> {
        self.open.as_mut()
    }

    pub(super) async fn commit(self) -> sqlx::Result<()> {
        match self.open {
            Some(open) => open.commit().await,
            None => Ok(()),
        }
    }
}

/// Whether an earlier statement had failed.
fn is_doomed(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.as_deref() == Some("25P02")
}
