//! The transaction that many steps share, each on a savepoint of its own.
//!
//! Nothing is begun before a step asks for the connection: a batch whose steps don't write costs one
//! statement. Who asks first begins the transaction and locks the rows of all the sagas in it, so
//! that no step runs for a saga that somebody else has by now. A savepoint is taken when a step first
//! asks, and released together with taking the next one; what a failing step wrote goes back to it.
//! The limits of steps begin with the first savepoint: they are not for the locks on the sagas' rows.
//!
//! In a shared transaction nobody waits for long: a step that others hold up, or that is slow, fails
//! and is run again in one of its own. After the first that is held up none waits at all, or each of
//! those that want the same hot row would cost all others its wait.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use sqlx::{PgConnection, PgPool, SqlSafeStr, SqlStr};
use uuid::Uuid;

use super::store::{
    NEXT_SAVEPOINT, Place, RELEASE, ROLL_BACK, ROLL_BACK_AND_HURRY, Store, UNHURRIED,
    first_savepoint,
};
use crate::transaction::{self, Transaction};

/// How long a step may wait for a lock, and how long a statement may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    lock: Duration,
    statement: Duration,
    /// Nobody else waits for this transaction.
    pub(super) is_alone: bool,
}

impl Limits {
    /// In a transaction that others wait for.
    pub(super) const SHARED: Self = Self {
        lock: Duration::from_millis(50),
        statement: Duration::from_secs(1),
        is_alone: false,
    };

    /// In a transaction of one's own.
    pub(super) fn alone(timeout: Duration) -> Self {
        let most = timeout.clamp(Duration::from_millis(1), Duration::from_secs(24 * 3600));
        Self {
            lock: most,
            statement: most,
            is_alone: true,
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
    /// Those that were still ours, and whose rows somebody has locked.
    busy: HashSet<Uuid>,
    savepoint: Savepoint,
    current: usize,
    /// Steps that lost what they wrote because a statement had failed and they did not say so.
    doomed: HashSet<usize>,
    /// Why there is no transaction, or no savepoint.
    broken: Option<sqlx::Error>,
}

/// Whose the saga is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Ours, as far as is known.
    Ours,
    /// Ours, and somebody has locked it.
    Busy,
    /// Another process's by now.
    Stale,
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
            busy: HashSet::new(),
            savepoint: Savepoint::None,
            current: 0,
            doomed: HashSet::new(),
            broken: None,
        }
    }

    /// The connection, inside the transaction in which this step is recorded. Whatever is written
    /// there commits with the record, and is undone if the step fails.
    ///
    /// # Errors
    /// When the database can't be asked, or the saga is another process's by now.
    pub async fn get(&mut self) -> sqlx::Result<&mut PgConnection> {
        if let Err(error) = self.prepare().await {
            let told = sqlx::Error::Protocol(format!("no transaction for this step: {error}"));
            if self.standing() == Standing::Ours {
                self.broken.get_or_insert(error);
            }
            return Err(told);
        }
        match &mut self.open {
            Some(open) => Ok(open),
            None => Err(sqlx::Error::BeginFailed),
        }
    }

    async fn prepare(&mut self) -> sqlx::Result<()> {
        if self.broken.is_some() {
            return Err(sqlx::Error::BeginFailed);
        }
        if self.open.is_none() {
            self.begin().await?;
        }
        let why = match self.standing() {
            Standing::Ours => None,
            Standing::Busy => Some("somebody has locked this saga"),
            Standing::Stale => Some("another process has this saga"),
        };
        if let Some(why) = why {
            return Err(sqlx::Error::Protocol(why.into()));
        }
        match self.savepoint {
            Savepoint::Used(by) if by == self.current => return Ok(()),
            Savepoint::Used(last) => self.keep(last, NEXT_SAVEPOINT).await?,
            Savepoint::Clean => {}
            Savepoint::None => {
                let Limits {
                    lock, statement, ..
                } = self.limits;
                self.say(first_savepoint(lock, statement)).await?;
            }
        }
        self.savepoint = Savepoint::Used(self.current);
        Ok(())
    }

    /// Begins, and locks what is ours.
    pub(super) async fn begin(&mut self) -> sqlx::Result<()> {
        let mut open = transaction::begin_with(&self.pool, UNHURRIED).await?;
        let there = self.places.iter();
        let there = there.filter(|place| !self.sound.contains(&place.id));
        let there: Vec<&Place> = there.collect();
        let may_wait = self.limits.is_alone;
        let (sound, busy) = self.store.fence(&mut open, &there, may_wait).await?;
        self.sound.extend(sound);
        self.busy.extend(busy);
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
        match self.say(statement.into_sql_str()).await {
            Ok(()) => {
                self.savepoint = Savepoint::Clean;
                Ok(())
            }
            Err(error) if is_doomed(&error) => {
                // Before anything is awaited: this is cut when the time of the next step is over.
                self.doomed.insert(last);
                self.say(ROLL_BACK.into_sql_str()).await?;
                self.savepoint = Savepoint::Clean;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    async fn say(&mut self, statement: SqlStr) -> sqlx::Result<()> {
        let Some(open) = &mut self.open else {
            return Err(sqlx::Error::BeginFailed);
        };
        super::store::say(open, statement).await
    }

    /// Whether nobody else waits for this transaction.
    pub(super) const fn is_alone(&self) -> bool {
        self.limits.is_alone
    }

    /// The step of the saga at `index` begins.
    pub(super) fn turn(&mut self, index: usize) {
        self.current = index;
    }

    /// Whose the saga is whose turn it is. Before a step has asked for the transaction, nobody knows.
    pub(super) fn standing(&self) -> Standing {
        let place = self.places.get(self.current);
        match place.map(|place| place.id) {
            _ if self.open.is_none() => Standing::Ours,
            Some(id) if self.sound.contains(&id) => Standing::Ours,
            Some(id) if self.busy.contains(&id) => Standing::Busy,
            _ => Standing::Stale,
        }
    }

    /// Takes back what the step whose turn it is has written. If it was held up in a transaction that
    /// others wait for, nobody waits for a lock there any more.
    pub(super) async fn take_back(&mut self, was_held_up: bool) -> sqlx::Result<()> {
        if self.savepoint == Savepoint::Used(self.current) {
            let hurry = was_held_up && !self.limits.is_alone;
            let statement = if hurry {
                ROLL_BACK_AND_HURRY
            } else {
                ROLL_BACK
            };
            self.say(statement.into_sql_str()).await?;
            self.savepoint = Savepoint::Clean;
        }
        Ok(())
    }

    /// All steps have run: answers those that have written nothing because they are doomed.
    pub(super) async fn settle(&mut self) -> sqlx::Result<HashSet<usize>> {
        if let Some(error) = self.broken.take() {
            return Err(error);
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
