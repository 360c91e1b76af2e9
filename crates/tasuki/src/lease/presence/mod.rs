//! Who has died is known before its leases expire.
//!
//! A process holds an advisory lock in a session of its own for as long as it lives; the server lets
//! go of it as soon as the connection is gone. The others look every half second whose lock is free,
//! and end the leases of that owner. This only makes a lease end earlier: an owner that lives and has
//! lost its session, and so its leases, is still fenced by the token of each claim.
//!
//! The session must be PostgreSQL's own: behind a pooler in transaction mode there is no presence, and
//! leases expire.

mod store;

use std::fmt;
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::{Connection, PgConnection, PgPool};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::Owner;
use crate::Schema;
use crate::worker::{Error, Tick, Worker};
use store::Statements;

/// How often the others are looked after.
const EVERY: Duration = Duration::from_millis(500);
/// How long an answer of the database is waited for.
const LIMIT: Duration = Duration::from_secs(5);

/// Whoever has leases that may end early.
pub(crate) trait Bereaved: Send + Sync + 'static {
    /// Ends the leases of owners that have died. Says how many those were.
    fn bereave<'a>(
        &'a self,
        connection: &'a mut PgConnection,
        owners: &'a [String],
    ) -> BoxFuture<'a, sqlx::Result<u64>>;

    /// It is committed: there may be something to claim.
    fn bereaved(&self);
}

/// Shows that this process lives, and notices who does not.
pub(crate) struct Presence {
    name: String,
    pool: PgPool,
    owner: Owner,
    key: i64,
    statements: Statements,
    heirs: Box<dyn Bereaved>,
    session: Mutex<Option<PgConnection>>,
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
            pool,
            owner,
            key: fastrand::i64(..),
            statements: Statements::new(schema),
            heirs,
            session: Mutex::new(None),
        }
    }

    /// A session that says that we live.
    async fn session(&self) -> sqlx::Result<PgConnection> {
        let mut session = PgConnection::connect_with(&self.pool.connect_options()).await?;
        self.statements.hold(&mut session, self.key).await?;
        Ok(session)
    }

    async fn look(&self, session: &mut PgConnection) -> sqlx::Result<()> {
        let (owner, key) = (self.owner.as_str(), self.key);
        let dead = self.statements.dead(session, owner, key).await?;
        if dead.is_empty() {
            return Ok(());
        }
        let mut tx = session.begin().await?;
        let orphans = self.heirs.bereave(&mut tx, &dead).await?;
        self.statements.forget(&mut tx, &dead).await?;
        tx.commit().await?;
        tracing::warn!(worker = self.name, owners = ?dead, rows = orphans, "owners have died");
        self.heirs.bereaved();
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
        let mut place = self.session.lock().await;
        // Taken out: whatever goes wrong below, the next tick has a session of its own.
        let mut session = match place.take() {
            Some(session) => session,
            None => timeout(LIMIT, self.session()).await??,
        };
        timeout(LIMIT, self.look(&mut session)).await??;
        *place = Some(session);
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
