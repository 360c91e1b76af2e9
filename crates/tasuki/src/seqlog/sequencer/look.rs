//! What a sequencer finds: what is new, and, beside that, what should not be there.
//!
//! A look costs what has come since the last one. The first of a tenure may have much before it, and so may
//! one that follows a look that did not find everything; these bear with a slow database for longer, and
//! the lease is renewed meanwhile: however long a look takes, nobody takes over because of it.
//!
//! Beside them everything is swept every few seconds, for rows that no look tells of. A sweep walks over
//! dead rows, too, and may take long while vacuum is held up. So nobody waits for it: a tick gives it a
//! moment, and later ones ask how far it is.

use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::PgPool;
use tokio::time::{Instant, sleep, timeout};

use super::{LIMIT, LOOK, PATIENCE, PATIENT, Sequencer, Tenure, line};
use crate::lease::{Route, within};
use crate::seqlog::store::{Look, Seen, Store};

/// How often everything is swept: a server that was promoted, or that has crashed, may count its
/// transactions from further back than somebody has seen.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
/// While vacuum is held up a sweep may take long; it must not make that worse.
const SHARE: u32 = 20;
/// Most sweeps find an empty table: so long the tick that begins one waits for it.
const MOMENT: Duration = Duration::from_millis(20);

/// When the next sweep is due, or the one that is under way.
pub(super) enum Sweeping {
    Later(Instant),
    Now(Instant, BoxFuture<'static, sqlx::Result<Look>>),
}

impl fmt::Debug for Sweeping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Later(at) => f.debug_tuple("Later").field(at).finish(),
            Self::Now(began, _) => f.debug_tuple("Now").field(began).finish(),
        }
    }
}

impl Sequencer {
    /// What has no number, in the order of its appending. `None` when another one has taken over.
    pub(super) async fn look(&self, tenure: &mut Tenure) -> sqlx::Result<Option<Look>> {
        let looking = self.find(tenure.seen.as_ref(), tenure.is_near);
        let Some(look) = self.hold(tenure, looking).await? else {
            return Ok(None);
        };
        let is_strange = tenure
            .seen
            .as_ref()
            .is_some_and(|seen| seen.is_ahead_of(&look.seen));
        if !is_strange {
            return Ok(Some(look));
        }
        tracing::warn!(
            worker = self.name,
            log = self.log.name(),
            "the server counts its transactions from further back, everything is looked through",
        );
        tenure.seen = None;
        self.hold(tenure, self.find(None, false)).await
    }

    async fn find(&self, since: Option<&Seen>, is_near: bool) -> sqlx::Result<Look> {
        if is_near {
            let mut line = self.line().await?;
            let looking = self.log.store.look(line.connection(), since, LOOK);
            let look = within(LIMIT, looking).await?;
            line.close().await?;
            return Ok(look);
        }
        let mut line = line(self.patient.get(), self.route, &PATIENT).await?;
        let looking = self.log.store.look(line.connection(), since, LOOK);
        let look = within(PATIENCE, looking).await?;
        line.close().await?;
        Ok(look)
    }

    /// Waits for `work`, and keeps the lease meanwhile. `None` when another one has taken over.
    async fn hold<T>(
        &self,
        tenure: &Tenure,
        work: impl Future<Output = sqlx::Result<T>>,
    ) -> sqlx::Result<Option<T>> {
        tokio::select! {
            biased;
            done = work => done.map(Some),
            () = self.until_lost(tenure) => Ok(None),
        }
    }

    /// Renews the lease again and again; returns when another sequencer has it.
    async fn until_lost(&self, tenure: &Tenure) {
        loop {
            sleep(self.lease / 3).await;
            match self.take(tenure.seen.as_ref()).await {
                Ok(Some((epoch, _))) if epoch == tenure.epoch => {}
                Ok(_) => return,
                Err(error) => tracing::warn!(
                    worker = self.name,
                    error = &error as &(dyn std::error::Error + 'static),
                    "lease of a sequencer could not be renewed",
                ),
            }
        }
    }

    /// Begins a sweep when one is due, and asks one that is under way how far it is. What it has found,
    /// if it has come to its end.
    pub(super) async fn sweep(&self, tenure: &mut Tenure) -> Option<Look> {
        let now = Instant::now();
        let sweeping = tenure.sweeping.get_mut();
        let sweeping = sweeping.unwrap_or_else(PoisonError::into_inner);
        let mut moment = Duration::ZERO;
        if let (Sweeping::Later(at), Some(seen)) = (&*sweeping, &tenure.seen)
            && *at <= now
        {
            let (pool, store) = (self.patient.get().clone(), Arc::clone(&self.log.store));
            let sweep = Box::pin(swept(pool, self.route, store, seen.clone()));
            *sweeping = Sweeping::Now(now, sweep);
            moment = MOMENT;
        }
        let Sweeping::Now(began, sweep) = sweeping else {
            return None;
        };
        let swept = timeout(moment, sweep).await.ok()?;
        let took = began.elapsed();
        *sweeping = Sweeping::Later(now + SWEEP_EVERY.max(took * SHARE));
        match swept {
            Ok(found) => Some(found),
            Err(error) => {
                tracing::warn!(
                    worker = self.name,
                    log = self.log.name(),
                    error = &error as &(dyn std::error::Error + 'static),
                    "what waits for a number could not be swept, later again",
                );
                None
            }
        }
    }
}

async fn swept(pool: PgPool, route: Route, store: Arc<Store>, seen: Seen) -> sqlx::Result<Look> {
    let mut line = line(&pool, route, &PATIENT).await?;
    let sweeping = store.sweep(line.connection(), &seen, LOOK);
    let look = within(PATIENCE, sweeping).await?;
    line.close().await?;
    Ok(look)
}
