//! The workers of an engine: one claims what is due, one keeps the leases of what runs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::PgConnection;
use tokio::time::Instant;

use super::drive::Live;
use super::engine::{Back, Inner, lock};
use super::journal::LOCKED;
use super::store::{Place, SagaRow};
use super::story::Story;
use super::trouble::{GIVEN_BACK_AT_MOST, Trouble, is_locked};
use crate::lease::{Bereaved, Claim, Claimed, Estate, Fence, Line, Outcome, within};
use crate::testing::crash_point;
use crate::worker::{Error, Tick, Wake, Worker};

/// Sagas per claim.
const BATCH: usize = 200;
/// How long an answer of the database is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// A saga whose processes died so often without a move is not tried again by itself.
const LOST_AT_MOST: i32 = 10;
/// When a story that can't be read is looked at again.
const UNREADABLE: Duration = Duration::from_secs(60);

/// Claims sagas that are due, and gives back those that can't go on here.
pub(super) struct Claimer(pub(super) Arc<Inner>);

/// Renews the leases of sagas that take long between two moves, also while the engine stops.
pub(super) struct Keeper {
    name: String,
    inner: Arc<Inner>,
}

impl Keeper {
    pub(super) fn new(inner: Arc<Inner>) -> Self {
        let name = format!("{}-keeper", inner.settings.name);
        Self { name, inner }
    }
}

impl Worker for Claimer {
    fn name(&self) -> &str {
        &self.0.settings.name
    }

    fn poll_interval(&self) -> Duration {
        self.0.settings.poll
    }

    fn wake(&self) -> Wake {
        self.0.wake.clone()
    }

    async fn tick(&self) -> Result<Tick, Error> {
        self.0.known.wait().await;
        self.0.give_back().await?;
        self.0.claim().await
    }

    /// Every saga comes to its next move, and no further. Others may have each as soon as it has.
    async fn finish(&self) {
        self.0.stopping.cancel();
        let mut tasks = std::mem::take(&mut *lock(&self.0.tasks));
        while tasks.join_next().await.is_some() {
            while tasks.try_join_next().is_some() {}
            self.0.give_back_or_tell().await;
        }
    }

    async fn release(&self) {
        let mut tasks = std::mem::take(&mut *lock(&self.0.tasks));
        tasks.shutdown().await;
        // What is cut here is rolled back; what is written is written.
        if let Some(backstage) = self.0.backstage.get() {
            let _how = backstage.stop(Duration::from_secs(2)).await;
        }
        let held = lock(&self.0.held).drain().collect::<Vec<_>>();
        let back = held.into_iter().map(|(id, held)| {
            let token = held.token;
            (Fence { id, token }, Trouble::nothing())
        });
        lock(&self.0.back).extend(back);
        self.0.give_back_or_tell().await;
    }
}

impl Worker for Keeper {
    fn name(&self) -> &str {
        &self.name
    }

    fn poll_interval(&self) -> Duration {
        self.inner.settings.lease / 6
    }

    async fn tick(&self) -> Result<Tick, Error> {
        self.inner.renew().await?;
        Ok(Tick::Idle)
    }
}

impl Inner {
    /// How many more it may have in hand.
    fn room(&self) -> usize {
        let held = lock(&self.held).len();
        self.settings.slots.saturating_sub(held)
    }

    /// There is room for more: if there are any, and it is worth a claim, the next one should come now.
    pub(super) fn room_made(&self) {
        let worth = (self.settings.slots / 4).clamp(1, BATCH);
        if self.more.load(Ordering::SeqCst) && self.room() >= worth {
            self.wake.wake();
        }
    }

    async fn claim(self: &Arc<Self>) -> Result<Tick, Error> {
        // Before the room is looked at: whoever makes some from here on wakes us.
        self.more.store(true, Ordering::SeqCst);
        let room = self.room().min(BATCH);
        if room == 0 || self.stopping.is_cancelled() {
            return Ok(Tick::Idle);
        }
        let store = &self.sagas.store;
        let mut line = Line::open(self.pool.get(), self.settings.route).await?;
        let call = within(PATIENCE, store.call(line.connection())).await;
        call.inspect_err(|_| line.hang_up())?;
        line.close().await?;
        let mut line = Line::open(self.pool.get(), self.settings.route).await?;
        let claim = Claim {
            owner: &self.settings.owner,
            lease: self.settings.lease,
            limit: room,
        };
        let known = self.registry.known();
        let rows = store.claim(line.connection(), &claim, &known);
        let rows = within(PATIENCE, rows).await;
        let rows = rows.inspect_err(|_| line.hang_up())?;
        line.close().await?;
        crash_point("saga.claimed");
        let claimed = rows.len();
        let mut unreadable = Vec::new();
        for row in rows {
            let fence = row.fence;
            match self.load(row) {
                Ok(live) => self.take(live),
                Err(error) => {
                    tracing::error!(saga.id = %fence.id, error, "saga can't be read");
                    let after = UNREADABLE;
                    unreadable.push((fence, Outcome::<()>::Snooze { after, error }));
                }
            }
        }
        let locked = self.put_back(&unreadable).await?;
        lock(&self.back).extend(locked);
        let more = claimed >= room;
        self.more.store(more, Ordering::SeqCst);
        Ok(if more { Tick::Worked } else { Tick::Idle })
    }

    /// A claimed saga as it can be driven.
    fn load(&self, claimed: Claimed<SagaRow>) -> Result<Live, String> {
        let given_back = claimed.failed_attempts;
        let Claimed { fence, row, .. } = claimed;
        let declared = self.registry.get(&row.definition, row.version);
        let declared = Arc::clone(declared.ok_or("its definition is not known here")?);
        let mut story: Story =
            serde_json::from_str(&row.story).map_err(|error| error.to_string())?;
        story.fits(&declared.name, declared.version, &declared.fingerprint)?;
        story.recovered(&declared);
        let rested = Duration::try_from_secs_f64(row.rested).unwrap_or_default();
        story.age(u64::try_from(rested.as_millis()).unwrap_or(u64::MAX));
        let mut dirty = false;
        if row.lost > LOST_AT_MOST && story.stuck.is_none() {
            let step = story.step().unwrap_or_default().to_owned();
            story.park(
                &step,
                format!("its process died {} times in a row", row.lost),
            );
            dirty = true;
        } else if given_back > GIVEN_BACK_AT_MOST && story.stuck.is_none() {
            let step = story.step().unwrap_or_default().to_owned();
            let why = "in a row, for errors that the log has";
            story.park(&step, format!("it was given back {given_back} times {why}"));
            dirty = true;
        }
        let remaining = row
            .remaining
            .map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default());
        Ok(Live {
            place: Place {
                id: fence.id,
                token: fence.token,
                moves: row.moves,
            },
            declared,
            story,
            birth: None,
            traceparent: row.traceparent,
            heard: row.signals,
            deadline: remaining.and_then(|left| Instant::now().checked_add(left)),
            aged: Instant::now(),
            pause: None,
            dirty,
            given_back,
            crowded: false,
            begun: None,
        })
    }

    async fn give_back_or_tell(&self) {
        if let Err(error) = self.give_back().await {
            tracing::warn!(
                worker = self.settings.name,
                error = &*error as &(dyn std::error::Error + 'static),
                "sagas could not be given back, their leases will expire",
            );
        }
    }

    /// Lets others have what can't go on here.
    async fn give_back(&self) -> Result<(), Error> {
        // They stay there until it is done: this may be cut at its await. Nobody else takes any out.
        let back = lock(&self.back).clone();
        let locked = self.put_back(&back).await?;
        lock(&self.back).splice(..back.len(), locked);
        Ok(())
    }

    /// Gives them back. Answers those whose rows somebody has locked: the others don't wait for them.
    async fn put_back(&self, all: &[Back]) -> Result<Vec<Back>, Error> {
        match self.try_put_back(all).await {
            Ok(()) => return Ok(Vec::new()),
            Err(error) if is_locked(&error) => {}
            Err(error) => return Err(error.into()),
        }
        let mut locked = Vec::new();
        for one in all {
            match self.try_put_back(std::slice::from_ref(one)).await {
                Err(error) if is_locked(&error) => locked.push(one.clone()),
                put_back => put_back?,
            }
        }
        Ok(locked)
    }

    async fn try_put_back(&self, outcomes: &[Back]) -> sqlx::Result<()> {
        if outcomes.is_empty() {
            return Ok(());
        }
        let mut line = Line::hurried(self.journal.pool.get(), self.settings.route, LOCKED).await?;
        let leases = &self.sagas.store.leases;
        let back = within(PATIENCE, leases.put_back(line.connection(), outcomes)).await;
        back.inspect_err(|_| line.hang_up())?;
        line.close().await
    }

    /// Renews every lease that no move has extended lately, and drops the sagas that were lost.
    async fn renew(&self) -> Result<(), Error> {
        let lease = self.settings.lease;
        let mut old: Vec<Fence> = lock(&self.held)
            .iter()
            .filter(|(_, held)| held.born && held.since.elapsed() >= lease / 3)
            .map(|(id, held)| Fence {
                id: *id,
                token: held.token,
            })
            .collect();
        if old.is_empty() {
            return Ok(());
        }
        old.sort_unstable_by_key(|fence| fence.id);
        let now = Instant::now();
        let mut line = Line::open(self.pool.get(), self.settings.route).await?;
        let leases = &self.sagas.store.leases;
        let kept = leases.renew(line.connection(), &old, lease);
        let kept = within((lease / 3).max(Duration::from_secs(1)), kept).await;
        let kept = kept.inspect_err(|_| line.hang_up())?;
        line.close().await?;
        for fence in old {
            self.renewed(fence, kept.contains(&fence.id), now);
        }
        Ok(())
    }

    fn renewed(&self, fence: Fence, kept: bool, now: Instant) {
        let mut held = lock(&self.held);
        let Some(mine) = held.get_mut(&fence.id) else {
            return; // Let go while we asked.
        };
        if mine.token != fence.token {
            return;
        }
        // What moved while we asked has been extended since.
        if kept || mine.since > now {
            mine.since = mine.since.max(now);
        } else if let Some(abort) = held.remove(&fence.id).and_then(|lost| lost.abort) {
            drop(held);
            abort.abort();
            super::tally::lost(&self.settings.name);
            tracing::warn!(worker = self.settings.name, saga.id = %fence.id, "lock lost");
        }
    }
}

impl Bereaved for Arc<Inner> {
    fn bereave<'a>(
        &'a self,
        connection: &'a mut PgConnection,
        owners: &'a [String],
    ) -> BoxFuture<'a, sqlx::Result<Vec<Estate>>> {
        Box::pin(self.sagas.store.bereave(connection, owners))
    }

    fn bereaved(&self) {
        self.wake.wake();
    }
}
