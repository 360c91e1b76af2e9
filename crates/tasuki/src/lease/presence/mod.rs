//! Who has died is known before its leases expire.
//!
//! A process holds an advisory lock in a session of its own for as long as it lives; the server lets
//! go of it as soon as the connection is gone. The others look every half second whose lock is free,
//! and end the leases of that owner. This only makes a lease end earlier: an owner that lives and has
//! lost its session, and so its leases, is still fenced by the token of each claim.
//!
//! The server may still be at work for one that has died, and hold its rows: those end a look later. So
//! a dead owner is forgotten only when two looks in a row have found nothing of it any more. What is
//! done about the dead has a connection of its own: it may take long, and whoever does it must not be
//! taken for dead itself.
//!
//! The session must be PostgreSQL's own: behind a pooler in transaction mode there is no presence, and
//! leases expire.

mod store;

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::{Connection, PgConnection, PgPool};
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{OwnPool, Owner};
use crate::Schema;
use crate::transaction;
use crate::worker::{Error, Tick, Worker};
use store::Statements;

/// How often the others are looked after.
const EVERY: Duration = Duration::from_millis(500);
/// How long an answer of the database is waited for.
const LIMIT: Duration = Duration::from_secs(5);
/// And how long, when the leases of the dead are looked for among all others.
const BURIAL: Duration = Duration::from_secs(60);

/// How long a lease that is to be taken waits for the others to know of us.
const PATIENCE: Duration = Duration::from_secs(2);

/// Whether the others would notice our death. Waited for before the first lease is taken: what a
/// process that dies in its first moments has in hand is not left to its lease either.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known(CancellationToken);

impl Known {
    /// Returns at once from the first look on, and when there is none within [`PATIENCE`]: whoever
    /// can't show that it lives works all the same, and its leases expire.
    pub(crate) async fn wait(&self) {
        if !self.0.is_cancelled() && timeout(PATIENCE, self.0.cancelled()).await.is_err() {
            self.0.cancel();
        }
    }

    /// There will be no presence: nobody waits for it.
    pub(crate) fn not_at_all(&self) {
        self.0.cancel();
    }
}

/// Whoever has leases that may end early.
pub(crate) trait Bereaved: Send + Sync + 'static {
    /// Ends the leases of owners that have died. Says what there was of each that had any.
    fn bereave<'a>(
        &'a self,
        connection: &'a mut PgConnection,
        owners: &'a [String],
    ) -> BoxFuture<'a, sqlx::Result<Vec<Estate>>>;

    /// It is committed: there may be something to claim.
    fn bereaved(&self);
}

/// What was found of an owner that has died.
#[derive(Clone, Debug)]
pub(crate) struct Estate {
    pub(crate) owner: String,
    /// Leases that were ended.
    pub(crate) ended: i64,
}

/// Shows that this process lives, and notices who does not.
pub(crate) struct Presence {
    name: String,
    pool: PgPool,
    owner: Owner,
    key: i64,
    statements: Statements,
    heirs: Box<dyn Bereaved>,
    known: Known,
    session: Mutex<Option<PgConnection>>,
    /// Where the dead are looked after.
    own: OwnPool,
    /// The dead of whom the last look has found nothing.
    empty: Mutex<HashSet<String>>,
}

impl fmt::Debug for Presence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Presence")
            .field("name", &self.name)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}

impl Presence {
    pub(crate) fn new(
        name: &str,
        pool: PgPool,
        schema: &Schema,
        owner: Owner,
        heirs: Box<dyn Bereaved>,
    ) -> Self {
        Self {
            name: name.to_owned(),
            own: OwnPool::beside(pool.clone(), 1),
            pool,
            owner,
            key: fastrand::i64(..),
            statements: Statements::new(schema),
            heirs,
            known: Known::default(),
            session: Mutex::new(None),
            empty: Mutex::default(),
        }
    }

    /// Who waits until it is known that we live.
    pub(crate) fn known(self, known: Known) -> Self {
        Self { known, ..self }
    }

    /// A session that says that we live.
    async fn session(&self) -> sqlx::Result<PgConnection> {
        let mut session = PgConnection::connect_with(&self.pool.connect_options()).await?;
        self.statements.hold(&mut session, self.key).await?;
        Ok(session)
    }

    /// Whose lock is free.
    async fn dead(&self) -> Result<Vec<String>, Error> {
        let mut place = self.session.lock().await;
        // Taken out: whatever goes wrong below, the next tick has a session of its own.
        let mut session = match place.take() {
            Some(session) => session,
            None => timeout(LIMIT, self.session()).await??,
        };
        let (owner, key) = (self.owner.as_str(), self.key);
        let dead = self.statements.dead(&mut session, owner, key);
        let dead = timeout(LIMIT, dead).await??;
        *place = Some(session);
        Ok(dead)
    }

    /// Ends the leases of the dead, and forgets those who have none.
    async fn bury(&self, dead: &[String]) -> sqlx::Result<()> {
        let mut tx = transaction::begin(self.own.get()).await?;
        let found = self.heirs.bereave(&mut tx, dead).await?;
        let mut empty = self.empty.lock().await;
        let left = |owner: &&String| found.iter().any(|estate| estate.owner == **owner);
        let now: HashSet<String> = dead.iter().filter(|owner| !left(owner)).cloned().collect();
        let gone: Vec<String> = now.intersection(&empty).cloned().collect();
        self.statements.forget(&mut tx, &gone).await?;
        transaction::commit(tx).await?;
        *empty = now;
        drop(empty);
        let ended: i64 = found.iter().map(|estate| estate.ended).sum();
        if ended > 0 {
            tracing::warn!(worker = self.name, owners = ?dead, rows = ended, "owners have died");
            self.heirs.bereaved();
        }
        Ok(())
    }
}

impl Worker for Presence {
    fn name(&self) -> &str {
        &self.name
    }

    fn poll_interval(&self) -> Duration {
        EVERY
    }

    async fn tick(&self) -> Result<Tick, Error> {
        let dead = self.dead().await?;
        self.known.0.cancel();
        if !dead.is_empty() {
            timeout(BURIAL, self.bury(&dead)).await??;
        }
        Ok(Tick::Idle)
    }

    /// Whoever gives its leases back is not missed.
    async fn release(&self) {
        if let Some(mut session) = self.session.lock().await.take() {
            let owner = [self.owner.as_str().to_owned()];
            let forgotten = self.statements.forget(&mut session, &owner).await;
            if forgotten.and(session.close().await).is_err() {
                tracing::debug!(worker = self.name, "presence ended without a word");
            }
        }
    }
}
