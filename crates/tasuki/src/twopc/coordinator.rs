//! Who may take part, and where decisions are written down.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use tokio::sync::OnceCell;

use super::participant::{Member, checked};
use super::store::Store;
use super::store::session::{self, Found};
use super::{
    Database, Error, Ledger, Participant, Prefix, Recovery, Sweep, Transaction, TransactionId,
    recovery,
};
use crate::lease::{OwnPool, Owner, Route, within};
use crate::{Clock, Schema};

/// Connections that a process opens beside the pool of the log, to write decisions down over.
const SCRIBES: u32 = 8;
/// How long a participant may take to answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How much longer than that a coordinator is believed to be alive.
const MARGIN: Duration = Duration::from_secs(2);
/// How often the recovery looks for transactions that were left behind.
const POLL: Duration = Duration::from_millis(500);
/// How often participants are asked what is prepared there.
const SWEEP_EVERY: Duration = Duration::from_secs(5);

/// Begins transactions, and ends them. Cheap to clone; every process may have one.
#[derive(Clone, Debug)]
pub struct Coordinator {
    pub(super) schema: Schema,
    /// Where work in the log's own database begins.
    pub(super) pool: PgPool,
    /// Where the log is written and read.
    pub(super) log: Arc<OwnPool>,
    pub(super) store: Arc<Store>,
    pub(super) members: Arc<BTreeMap<String, Member>>,
    pub(super) owner: Owner,
    pub(super) route: Route,
    pub(super) timeout: Duration,
    clock: Clock,
    poll: Duration,
    sweep_every: Duration,
    prefix: Arc<OnceCell<Prefix>>,
}

impl Coordinator {
    /// A coordinator whose log is in `schema` of the database behind `pool`. It knows no
    /// participant yet.
    ///
    /// The log is written over up to eight connections of its own, with the options of the pool: if
    /// every connection of the pool waits for a lock that a prepared transaction holds, there must be
    /// another one to end it.
    #[must_use]
    pub fn new(schema: &Schema, pool: PgPool) -> Self {
        Self {
            schema: schema.clone(),
            log: Arc::new(OwnPool::beside(pool.clone(), SCRIBES)),
            pool,
            store: Arc::new(Store::new(schema)),
            members: Arc::default(),
            owner: Owner::here(),
            route: Route::Direct,
            timeout: TIMEOUT,
            clock: Clock::system(),
            poll: POLL,
            sweep_every: SWEEP_EVERY,
            prefix: Arc::default(),
        }
    }

    /// Lets this database take part.
    ///
    /// # Errors
    /// When there is a participant of that name.
    pub fn database(self, database: &Database) -> Result<Self, Error> {
        let name = database.name().to_owned();
        self.with(name, Member::Database(database.clone()))
    }

    /// Lets this participant take part.
    ///
    /// # Errors
    /// When there is a participant of that name, or the name is none.
    pub fn participant(self, participant: impl Participant) -> Result<Self, Error> {
        let name = participant.name().to_owned();
        checked(&name)?;
        self.with(name, Member::Custom(Arc::new(participant)))
    }

    fn with(mut self, name: String, member: Member) -> Result<Self, Error> {
        if self.members.contains_key(&name) {
            return Err(Error::Twice { name });
        }
        Arc::make_mut(&mut self.members).insert(name, member);
        Ok(self)
    }

    /// How long a participant may take to answer (5 s). A coordinator that was not heard of for two
    /// seconds longer counts as dead. More time lets slow participants prepare, and lets a dead
    /// coordinator's locks stand for longer.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How the log's pool reaches PostgreSQL. Pools of participants may go through a pooler in
    /// transaction mode as they are, if their statement cache is off.
    #[must_use]
    pub const fn through(mut self, route: Route) -> Self {
        self.route = route;
        self
    }

    /// The name that this process has in the log.
    #[must_use]
    pub fn owner(mut self, owner: Owner) -> Self {
        self.owner = owner;
        self
    }

    /// How often the recovery looks for what others left behind (500 ms).
    #[must_use]
    pub const fn poll(mut self, poll: Duration) -> Self {
        self.poll = poll;
        self
    }

    /// How often participants are asked what is prepared there (5 s).
    #[must_use]
    pub const fn sweep_every(mut self, every: Duration) -> Self {
        self.sweep_every = every;
        self
    }

    /// Asks every database whether it can prepare transactions at all, and whether this process may
    /// end what is prepared there for longer than the timeout. For the start of a process, or its
    /// readiness.
    ///
    /// # Errors
    /// [`Error::Disabled`] and [`Error::Foreign`] name the participant and what to do;
    /// [`Error::Away`] for one that can't be asked; [`Error::Log`] when the log can't be read.
    pub async fn check(&self) -> Result<(), Error> {
        let prefix = self.prefix().await.map_err(Error::Log)?;
        for database in self.databases() {
            self.check_one(database, prefix).await?;
        }
        Ok(())
    }

    async fn check_one(&self, database: &Database, prefix: &Prefix) -> Result<(), Error> {
        let participant = || database.name().to_owned();
        let away = |source| Error::Away {
            participant: participant(),
            source,
        };
        let room = within(self.timeout, session::room(database.tellers())).await;
        if room.map_err(away)? == 0 {
            return Err(Error::Disabled {
                participant: participant(),
            });
        }
        let prepared = within(self.timeout, session::prepared(database.tellers(), prefix)).await;
        // While roles change from process to process, the young ones are ended by those that have them.
        let foreign = |found: &Found| !found.is_ours && found.age >= self.timeout;
        match prepared.map_err(away)?.into_iter().find(foreign) {
            None => Ok(()),
            Some(found) => Err(Error::Foreign {
                participant: participant(),
                gid: found.gid,
                owner: found.owner,
            }),
        }
    }

    /// Begins a transaction. `name` says what it is for, to people: 1 to 64 ASCII letters, digits,
    /// `_`, `-` or `.`.
    ///
    /// # Errors
    /// When the name is another, or the log can't be read (which happens once per process).
    pub async fn begin(&self, name: &str) -> Result<Transaction, Error> {
        checked(name)?;
        let prefix = self.prefix().await.map_err(Error::Log)?.clone();
        let id = TransactionId::new(&self.clock);
        Ok(Transaction::new(self.clone(), prefix, id, name))
    }

    /// The worker that ends transactions which their coordinators left behind. Run it in every
    /// process that has all the participants; several share the work.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        recovery::worker(self, self.poll)
    }

    /// The worker that ends what is prepared in a participant and not open in the log.
    #[must_use]
    pub fn sweep(&self) -> Sweep {
        Sweep::new(self, self.sweep_every)
    }

    /// The log, for people.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        Ledger::new(&self.schema)
    }

    /// How long a coordinator is believed to be alive.
    pub(super) fn lease(&self) -> Duration {
        self.timeout.saturating_add(MARGIN)
    }

    pub(super) fn databases(&self) -> impl Iterator<Item = &Database> {
        self.members.values().filter_map(|member| match member {
            Member::Database(database) => Some(database),
            Member::Custom(_) => None,
        })
    }

    /// What the names of this log's branches begin with. Asked for once.
    pub(super) async fn prefix(&self) -> sqlx::Result<&Prefix> {
        self.prefix
            .get_or_try_init(|| async {
                let log = within(self.timeout, self.which_log()).await?;
                Ok(Prefix::of(&self.schema, log))
            })
            .await
    }
}
