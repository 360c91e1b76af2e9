//! Runs sagas: those that are begun here go on here at once, in memory; those that others left behind,
//! or that have waited, are claimed.
//!
//! Any number of processes may run the same definitions. A saga is in the hands of one of them, by a
//! lease; another takes over when that expires, and within a second or two when the process has died
//! (`lease::presence`).

use std::collections::HashMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::clerk::Clerk;
use super::define::Definition;
use super::drive::{Left, Live};
use super::journal::{Journal, LOCKED, Writer};
use super::json::Json;
use super::lanes::Lanes;
use super::registry::Registry;
use super::settings::Settings;
use super::store::{Birth, Place};
use super::story::{Millis, Story};
use super::trouble::Trouble;
use super::view::Ended;
use super::work::{Claimer, Keeper};
use super::{Error, Invalid, SagaId, Sagas};
use crate::batch::{Batcher, Options};
use crate::lease::{Fence, Known, Outcome, OwnPool, Presence, Route};
use crate::uuid_v7;
use crate::worker::{Supervisor, Wake, panic_message};

/// Connections of the journal: for what is shared, and for both lanes.
const CONNECTIONS: u32 = 12;
/// Moves that may wait for the journal.
const QUEUE: usize = 1 << 16;
/// How long a move waits for a place in that queue.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often somebody who waits for a saga looks whether it ended elsewhere.
const LOOK: Duration = Duration::from_millis(500);

/// Begins and runs sagas. Clones are the same engine.
#[derive(Clone)]
pub struct Engine(pub(super) Arc<Inner>);

/// What is given back, and why.
pub(super) type Back = (Fence, Outcome<()>);

/// What the parts of an engine share.
pub(super) struct Inner {
    pub(super) settings: Settings,
    pub(super) sagas: Sagas,
    pub(super) registry: Registry,
    pub(super) journal: Arc<Journal>,
    pub(super) batcher: Batcher<Writer>,
    /// Runs the journal, renews leases and shows that we live: for as long as a saga is in hand.
    pub(super) backstage: OnceLock<Supervisor>,
    pub(super) known: Known,
    pub(super) lanes: Lanes,
    pub(super) pool: OwnPool,
    pub(super) tasks: Mutex<JoinSet<()>>,
    pub(super) held: Mutex<HashMap<Uuid, Held>>,
    /// To be given back to whoever claims next.
    pub(super) back: Mutex<Vec<Back>>,
    waiters: Mutex<HashMap<Uuid, oneshot::Sender<Ended>>>,
    pub(super) stopping: CancellationToken,
    /// There may be more to claim than there was room for.
    pub(super) more: AtomicBool,
    pub(super) wake: Wake,
}

/// A saga in hand.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) token: Uuid,
    /// Before it is in the database there is no lease to be renewed, and none to be lost.
    pub(super) born: bool,
    pub(super) since: Instant,
    pub(super) abort: Option<AbortHandle>,
}

/// What became of a saga that is to be begun under an id of the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Begun {
    /// It is begun.
    New,
    /// It is there already, or was.
    Existing,
}

impl Engine {
    /// An engine for the sagas of `registry`.
    ///
    /// # Errors
    /// When a version of a definition is there twice.
    pub fn new(sagas: &Sagas, registry: Registry, settings: Settings) -> Result<Self, Invalid> {
        registry.check()?;
        let journal = Arc::new(Journal {
            pool: OwnPool::beside(settings.pool.clone(), CONNECTIONS)
                .hurried(settings.route, LOCKED),
            store: Arc::clone(&sagas.store),
            sagas: sagas.clone(),
            route: settings.route,
            owner: settings.owner.clone(),
            lease: settings.lease,
            clock: settings.clock.clone(),
            faults: settings.faults.clone(),
        });
        let options = Options::default()
            .queue(QUEUE)
            .wait(PATIENCE)
            .concurrency(settings.batches);
        let name = format!("{}-journal", settings.name);
        let batcher = Batcher::new(&name, Writer(Arc::clone(&journal)), options);
        let wake = Wake::default();
        sagas.bell().wakes(&wake);
        Ok(Self(Arc::new(Inner {
            sagas: sagas.clone(),
            registry,
            journal,
            batcher,
            backstage: OnceLock::new(),
            known: Known::default(),
            lanes: Lanes::new(),
            pool: OwnPool::beside(settings.pool.clone(), 4),
            tasks: Mutex::default(),
            held: Mutex::default(),
            back: Mutex::default(),
            waiters: Mutex::default(),
            stopping: CancellationToken::new(),
            more: AtomicBool::new(false),
            wake,
            settings,
        })))
    }

    /// Lets `supervisor` run it. What is begun before waits until then.
    pub fn start(&self, supervisor: &Supervisor) {
        let inner = &self.0;
        let backstage = inner.backstage.get_or_init(|| supervisor.backstage());
        inner.batcher.start(backstage);
        backstage.start(Keeper::new(Arc::clone(inner)));
        match inner.settings.route {
            Route::Direct => drop(backstage.start(self.presence())),
            Route::Pooler => inner.known.not_at_all(),
        }
        supervisor.start(Claimer(Arc::clone(inner)));
        supervisor.start(Clerk::new(Arc::clone(inner)));
    }

    /// Begins a saga: it is durable when this returns, and goes on by itself.
    ///
    /// # Errors
    /// When the input can't be written, the definition is not in this engine's registry, or the
    /// journal can't be written. After the last it may have begun all the same.
    pub async fn begin<I>(&self, definition: &Definition<I>, input: &I) -> Result<SagaId, Error>
    where
        I: Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        let id = uuid_v7(&self.0.settings.clock);
        let begun = self.0.launch(id, definition, input)?;
        acknowledged(begun).await?;
        Ok(SagaId::from(id))
    }

    /// Begins the saga `id`, once: who repeats it finds it there.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub async fn begin_as<I>(
        &self,
        id: SagaId,
        definition: &Definition<I>,
        input: &I,
    ) -> Result<Begun, Error>
    where
        I: Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        let mut tx = crate::transaction::begin(&self.0.settings.pool).await?;
        let is_new = self
            .0
            .sagas
            .start_as(&mut tx, id, definition, input)
            .await?;
        crate::transaction::commit(tx).await?;
        if is_new {
            self.0.wake.wake();
        }
        Ok(if is_new { Begun::New } else { Begun::Existing })
    }

    /// Begins a saga and waits until it has ended or needs a person, whoever runs it.
    ///
    /// # Errors
    /// As [`begin`](Self::begin); dropping the future leaves the saga running.
    pub async fn run<I>(&self, definition: &Definition<I>, input: &I) -> Result<Ended, Error>
    where
        I: Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        let id = uuid_v7(&self.0.settings.clock);
        let ended = self.0.expect(id);
        let begun = self.0.launch(id, definition, input)?;
        acknowledged(begun).await?;
        ended.wait().await
    }

    /// Waits until a saga has ended or needs a person, whoever runs it.
    ///
    /// # Errors
    /// When there is no such saga, or the database can't be asked.
    pub async fn wait(&self, id: SagaId) -> Result<Ended, Error> {
        let ended = self.0.expect(id.as_uuid());
        match ended.look().await? {
            Some(ended) => Ok(ended),
            None => ended.wait().await,
        }
    }

    fn presence(&self) -> Presence {
        let inner = Arc::clone(&self.0);
        let name = format!("{}-presence", inner.settings.name);
        let (pool, owner) = (inner.settings.pool.clone(), inner.settings.owner.clone());
        let (schema, known) = (inner.sagas.schema().clone(), inner.known.clone());
        Presence::new(&name, pool, &schema, owner, Box::new(inner)).known(known)
    }
}

impl Inner {
    pub(super) fn now(&self) -> Millis {
        Millis::of(self.settings.clock.now())
    }

    /// Starts a new saga; the answer tells when it is durable.
    fn launch<I: Serialize>(
        self: &Arc<Self>,
        id: Uuid,
        definition: &Definition<I>,
        input: &I,
    ) -> Result<oneshot::Receiver<Result<(), Error>>, Error> {
        let declared = Arc::clone(&definition.declared);
        if !self.registry.knows(&declared) {
            return Err(Error::Unknown {
                name: declared.name.clone(),
                version: declared.version,
            });
        }
        if self.stopping.is_cancelled() {
            return Err(Error::Stopped);
        }
        let input = Json::of(input).map_err(Error::Input)?;
        let (begun, durable) = oneshot::channel();
        let place = Place {
            id,
            token: Uuid::new_v4(),
            moves: 0,
        };
        let traceparent = self.sagas.trace();
        let live = Live {
            place,
            story: Story::new(input, &declared.fingerprint),
            birth: Some(Birth {
                definition: declared.name.clone(),
                version: declared.stored_version(),
                deadline: declared.timeout,
                traceparent: traceparent.clone(),
            }),
            traceparent,
            heard: Vec::new(),
            deadline: declared
                .timeout
                .and_then(|limit| Instant::now().checked_add(limit)),
            aged: Instant::now(),
            pause: None,
            dirty: false,
            given_back: 0,
            crowded: lock(&self.held).len() >= self.settings.slots,
            begun: Some(begun),
            declared,
        };
        self.take(live);
        Ok(durable)
    }

    /// Drives a saga from here on.
    pub(super) fn take(self: &Arc<Self>, live: Live) {
        let place = live.place;
        let held = Held {
            token: place.token,
            born: live.birth.is_none(),
            since: Instant::now(),
            abort: None,
        };
        lock(&self.held).insert(place.id, held);
        let drive = Arc::clone(self).drive(live);
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        let abort = tasks.spawn(drive);
        drop(tasks);
        self.with_held(place, |held| held.abort = Some(abort));
    }

    async fn drive(self: Arc<Self>, mut live: Live) {
        if live.birth.is_some() {
            self.known.wait().await;
        }
        let going = AssertUnwindSafe(self.go(&mut live)).catch_unwind().await;
        let left = going.unwrap_or_else(|panic| {
            let panic = panic_message(&*panic);
            tracing::error!(saga.id = %live.place.id, panic, "saga driver panicked");
            Left::GivenUp(Some(Trouble::Panicked(panic.to_owned())))
        });
        self.let_go(&mut live, &left);
    }

    fn let_go(&self, live: &mut Live, left: &Left) {
        let Place { id, token, .. } = live.place;
        let worker = &self.settings.name;
        self.drop_held(live.place);
        self.room_made();
        if let Some(begun) = live.begun.take() {
            // Whoever has gone does not need to know.
            begun.send(self.unborn(left)).unwrap_or_default();
        }
        match left {
            Left::Ended => {
                self.told(live);
                if let Some(waiter) = lock(&self.waiters).remove(&id) {
                    // Whoever has gone does not need to know.
                    drop(waiter.send(Ended::of(live.place.id, &live.story)));
                }
            }
            Left::Resting | Left::Dead => {}
            Left::Lost => {
                super::tally::lost(worker);
                tracing::warn!(worker, saga.id = %id, "lock lost");
                // Unless it is ours after all, and only the answer to our last move got lost.
                lock(&self.back).push((Fence { id, token }, Trouble::nothing()));
            }
            Left::Born | Left::GivenUp(_) => {
                let outcome = match left {
                    Left::GivenUp(Some(trouble)) => {
                        let error = trouble as &(dyn std::error::Error + 'static);
                        tracing::warn!(worker, saga.id = %id, error, "saga given back");
                        trouble.outcome(live.given_back)
                    }
                    _ => Trouble::nothing(),
                };
                lock(&self.back).push((Fence { id, token }, outcome));
                self.wake.wake();
            }
        }
    }

    /// The answer to whoever began a saga that was let go before any of its moves was known to be made.
    fn unborn(&self, left: &Left) -> Result<(), Error> {
        match left {
            Left::Born => Ok(()),
            Left::GivenUp(Some(trouble)) => Err(trouble.clone().into()),
            _ if self.stopping.is_cancelled() => Err(Error::Stopped),
            _ => Err(Error::Journal(
                "it was given up before its first move".into(),
            )),
        }
    }

    /// Counts an end, and tells of one that people must hear of.
    fn told(&self, live: &Live) {
        let worker = &self.settings.name;
        let state = live.story.state();
        super::tally::ended(worker, &live.declared.name, state);
        if let Some(stuck) = &live.story.stuck {
            tracing::error!(
                worker,
                saga.id = %live.place.id,
                saga.definition = live.declared.name,
                saga.step = stuck.step,
                error = stuck.reason,
                "saga needs attention",
            );
        }
    }

    /// It was written just now, and its lease extended.
    pub(super) fn touch(&self, place: Place) {
        self.with_held(place, |held| {
            held.born = true;
            held.since = Instant::now();
        });
    }

    /// What is held by this claim: the same saga may be here once more, by a later one.
    fn with_held(&self, place: Place, change: impl FnOnce(&mut Held)) {
        let mut held = lock(&self.held);
        if let Some(mine) = held
            .get_mut(&place.id)
            .filter(|mine| mine.token == place.token)
        {
            change(mine);
        }
    }

    fn drop_held(&self, place: Place) {
        let mut held = lock(&self.held);
        if held
            .get(&place.id)
            .is_some_and(|mine| mine.token == place.token)
        {
            held.remove(&place.id);
        }
    }

    fn expect(self: &Arc<Self>, id: Uuid) -> Expected {
        let (sender, told) = oneshot::channel();
        lock(&self.waiters).insert(id, sender);
        Expected {
            engine: Arc::clone(self),
            id,
            told,
        }
    }
}

/// Waits until a new saga is durable.
async fn acknowledged(begun: oneshot::Receiver<Result<(), Error>>) -> Result<(), Error> {
    // Who drove it was cut off, perhaps in the middle of its first commit.
    begun.await.unwrap_or_else(|_cut| Err(Trouble::Cut.into()))
}

/// Somebody who waits for the end of a saga.
struct Expected {
    engine: Arc<Inner>,
    id: Uuid,
    told: oneshot::Receiver<Ended>,
}

impl Expected {
    async fn wait(mut self) -> Result<Ended, Error> {
        loop {
            // It may end in another process, which tells nobody here; and whoever asks for the same
            // saga later is the one that is told.
            match timeout(LOOK, &mut self.told).await {
                Ok(Ok(ended)) => return Ok(ended),
                Ok(Err(_replaced)) => sleep(LOOK).await,
                Err(_elapsed) => {}
            }
            if let Some(ended) = self.look().await? {
                return Ok(ended);
            }
        }
    }

    /// How it has ended, if it has.
    async fn look(&self) -> Result<Option<Ended>, Error> {
        let mut connection = self.engine.settings.pool.acquire().await?;
        let id = SagaId::from(self.id);
        let view = self.engine.sagas.get(&mut connection, id).await?;
        Ok(view.ok_or(Error::NotFound(id))?.ended())
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        lock(&self.engine.waiters).remove(&self.id);
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl From<Trouble> for Error {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Stopped => Self::Stopped,
            trouble => Self::Journal(trouble.into()),
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("settings", &self.0.settings)
            .field("registry", &self.0.registry)
            .field("held", &lock(&self.0.held).len())
            .finish_non_exhaustive()
    }
}
