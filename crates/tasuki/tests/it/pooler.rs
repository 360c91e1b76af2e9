//! Behind PgBouncer in transaction mode, with two sessions for everybody: what works, and what
//! needs a connection of its own.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{PgConnection, PgPool};
use tasuki::admin::{Admin, Gauges};
use tasuki::bus::{MemoryBus, StreamSpec};
use tasuki::dlq::{Filter, Letters, Watch};
use tasuki::idempotency::{Answer, Error, Keys, Outcome, Reply, Request, RequestHash};
use tasuki::inbox::{self, Inbox};
use tasuki::jobs::{Context, Failure, Job, Jobs, Queue, Registry, Repeat, Schedules};
use tasuki::lease::Route;
use tasuki::outbox::{self, Event, Outbox, Reconciler, RelaySettings, Routes};
use tasuki::saga::{
    self, Again, At, Engine, Fail, Local, LocalUndo, Sagas, Settings, State, Step, Tx,
};
use tasuki::seqlog::{self, Entry, Follower, Log};
use tasuki::upkeep::Upkeep;
use tasuki::worker::{Stopped, Supervisor, Worker, drain};
use tasuki::{Clock, Schema, uuid_v7};
use tasuki_stack::PgBouncer;
use tasuki_testkit::{TestDb, breakable, eventually};
use tokio::task::JoinSet;
use tokio::time::timeout;
use uuid::Uuid;

const STREAM: &str = "shop-events";
const SUBJECT: &str = "shop.events";

/// A database, and a pooler in front of it. `db.pool` is a direct way.
struct Pooled {
    pooler: PgBouncer,
    db: TestDb,
}

impl Pooled {
    async fn start(name: &str) -> Self {
        let db = TestDb::new(&[tasuki::migrate::library(&schema())]).await;
        sqlx::query("CREATE TABLE app.effects (name text NOT NULL)")
            .execute(&db.pool)
            .await
            .unwrap();
        let pooler = PgBouncer::start(&breakable(name), &db.url()).await.unwrap();
        Self { pooler, db }
    }

    /// The pool of one process, with more connections than the pooler has sessions.
    fn pool(&self) -> PgPool {
        let options: PgConnectOptions = self.pooler.url().parse().unwrap();
        PgPoolOptions::new()
            .max_connections(6)
            .connect_lazy_with(options.statement_cache_capacity(0))
    }

    /// Asked directly.
    async fn count(&self, sql: &'static str) -> i64 {
        let count = sqlx::query_scalar(sql).fetch_one(&self.db.pool).await;
        count.unwrap()
    }
}

/// A job that says which one it is.
#[derive(Debug, Serialize, Deserialize)]
struct Numbered {
    number: usize,
}

impl Job for Numbered {
    const KIND: &'static str = "numbered";
}

fn schema() -> Schema {
    Schema::new("app").unwrap()
}

fn stream() -> StreamSpec {
    StreamSpec::new(STREAM, [SUBJECT]).max_age(Duration::from_secs(86_400))
}

fn event(n: usize) -> Event {
    let id = uuid_v7(&Clock::system());
    Event::new(id, "OrderPlaced", format!("order:{n}"), format!("{n}"))
}

fn settings(pool: &PgPool) -> RelaySettings {
    let mut settings = RelaySettings::new("app.outbox", pool.clone(), Routes::to(SUBJECT));
    settings.route = Route::Pooler;
    settings.batch = 50;
    settings.in_flight = 4;
    settings
}

async fn enqueue(outbox: &Outbox, pool: &PgPool, count: usize) -> Vec<Uuid> {
    let events: Vec<_> = (0..count).map(event).collect();
    let mut tx = pool.begin().await.unwrap();
    outbox.enqueue_all(&mut tx, &events).await.unwrap();
    tx.commit().await.unwrap();
    let mut ids: Vec<_> = events.iter().map(Event::id).collect();
    ids.sort_unstable();
    ids
}

fn arrived(bus: &MemoryBus) -> Vec<Uuid> {
    let messages = bus.messages(STREAM).into_iter();
    let mut ids: Vec<_> = messages.map(|(_, message)| message.id).collect();
    ids.sort_unstable();
    ids
}

async fn effect(tx: &mut PgConnection, name: &str) -> sqlx::Result<()> {
    sqlx::query("INSERT INTO app.effects VALUES ($1)")
        .bind(name)
        .execute(tx)
        .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_pooler_two_relays_publish_everything_once() {
    let pooled = Pooled::start("pooled-relay").await;
    let (one, other) = (pooled.pool(), pooled.pool());
    let outbox = Outbox::new(&schema());
    let bus = Arc::new(MemoryBus::new().with_stream(stream()));
    let sent = enqueue(&outbox, &one, 2000).await;

    let relays = [&one, &other].map(|pool| outbox::relay(&outbox, bus.clone(), settings(pool)));
    let (first, second) = tokio::join!(relays[0].drain(), relays[1].drain());

    assert_eq!(first.unwrap() + second.unwrap(), 2000);
    assert!(arrived(&bus) == sent, "{} arrived", arrived(&bus).len());
    let published = pooled.count("SELECT count(*) FROM app.outbox_published");
    assert_eq!(published.await, 2000);
}

/// One effect per saga, and none of one that is refused behind it.
struct Effect;

impl Step for Effect {
    const NAME: &'static str = "effect";
    type Input = u32;
    type Output = ();
    type Failure = Fail<sqlx::Error>;
}

impl Local for Effect {
    async fn act(&self, tx: &mut Tx, n: &u32, _: &At) -> Result<(), Fail<sqlx::Error>> {
        effect(tx.get().await?, &format!("saga {n}")).await?;
        Ok(())
    }
}

impl LocalUndo for Effect {
    async fn undo(&self, tx: &mut Tx, n: &u32, (): &(), _: &At) -> Result<(), Again> {
        sqlx::query("DELETE FROM app.effects WHERE name = 'saga ' || $1")
            .bind(n.to_string())
            .execute(tx.get().await?)
            .await?;
        Ok(())
    }
}

struct Refuse;

impl Step for Refuse {
    const NAME: &'static str = "refuse";
    type Input = u32;
    type Output = ();
    type Failure = Fail<std::io::Error>;
}

impl Local for Refuse {
    async fn act(&self, _: &mut Tx, n: &u32, _: &At) -> Result<(), Fail<std::io::Error>> {
        match n.is_multiple_of(2) {
            true => Ok(()),
            false => Err(Fail::abort(std::io::Error::other("odd"))),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_pooler_sagas_are_done_whole_or_undone() {
    let pooled = Pooled::start("pooled-saga").await;
    let sagas = Sagas::new(&schema());
    let definition = saga::define::<u32>("pooled", 1)
        .local(Effect, |saga| Ok(*saga.input()))
        .pivot_local(Refuse, |saga| Ok(*saga.input()))
        .build()
        .unwrap();
    let registry = saga::Registry::new().with(&definition);
    let settings = Settings::new("app.sagas", pooled.pool()).route(Route::Pooler);
    let engine = Engine::new(&sagas, registry, settings).unwrap();
    let supervisor = Supervisor::new(Clock::system());
    engine.start(&supervisor);
    let numbers: Vec<u32> = (0..40).collect();
    let runs = numbers.iter().map(|n| engine.run(&definition, n));
    let ended = futures_util::future::join_all(runs).await;
    let whole = ended
        .into_iter()
        .filter(|ended| ended.as_ref().unwrap().state == State::Completed);
    assert_eq!(whole.count(), 20);
    assert_eq!(pooled.count("SELECT count(*) FROM app.effects").await, 20);
    let stopped = supervisor.stop(Duration::from_secs(10)).await;
    assert_eq!(stopped, Stopped::Finished);
}

/// Effects of the rows of a log.
struct Followed;

impl seqlog::Handler for Followed {
    type Row = seqlog::Read;

    async fn handle(
        &self,
        rows: &[seqlog::Numbered<seqlog::Read>],
        tx: &mut seqlog::Tx,
    ) -> Result<(), seqlog::Failure> {
        for row in rows {
            effect(tx.get().await?, &format!("row {}", row.seq)).await?;
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_pooler_a_log_is_numbered_and_followed_without_gaps() {
    let pooled = Pooled::start("pooled-log").await;
    let pools = [pooled.pool(), pooled.pool()];
    let log = Log::new(&schema());
    let entries = vec![Entry::new("row", "x"); 100];
    let mut tx = tasuki::begin(&pools[0]).await.unwrap();
    log.append(&mut tx, &entries).await.unwrap();
    tx.commit().await.unwrap();
    let supervisor = Supervisor::new(Clock::system());
    for pool in &pools {
        let sequencer = log.sequencer("app.sequencer", pool).batch(10);
        supervisor.start(sequencer.through(Route::Pooler));
        let follower = Follower::new(&log, "effects-v1", pool, Followed).batch(10);
        supervisor.start(follower.through(Route::Pooler));
    }
    let effects = "SELECT count(*) FROM app.effects";
    eventually("all is followed", async || {
        (pooled.count(effects).await >= 100).then_some(())
    })
    .await;
    let stopped = supervisor.stop(Duration::from_secs(10)).await;
    assert_eq!(stopped, Stopped::Finished);
    assert_eq!(pooled.count(effects).await, 100);
    let distinct = "SELECT count(DISTINCT name) FROM app.effects";
    assert_eq!(pooled.count(distinct).await, 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_pooler_a_reconciler_sends_again_what_the_broker_lost() {
    let pooled = Pooled::start("pooled-reconcile").await;
    let pool = pooled.pool();
    let outbox = Outbox::new(&schema());
    let bus = Arc::new(MemoryBus::new().with_stream(stream()));
    let sent = enqueue(&outbox, &pool, 100).await;
    let relay = outbox::relay(&outbox, bus.clone(), settings(&pool));
    relay.drain().await.unwrap();

    bus.recreate_stream(STREAM);
    let streams = vec![stream()];
    let reconciler = Reconciler::new("app.reconcile", &outbox, bus.clone(), pool, streams)
        .through(Route::Pooler);
    assert_eq!(reconciler.verify().await.unwrap(), 100);
    relay.drain().await.unwrap();

    assert!(arrived(&bus) == sent, "{} arrived", arrived(&bus).len());
    reconciler.tick().await.unwrap();
    assert_eq!(reconciler.verify().await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_pooler_two_workers_run_every_job_once() {
    let pooled = Pooled::start("pooled-jobs").await;
    let jobs = Jobs::new(&schema());
    let runs = Arc::new(Mutex::new(HashMap::<usize, usize>::new()));
    let counting = Arc::clone(&runs);
    let registry = Registry::new().on::<Numbered, _>(move |job: Numbered, _: Context| {
        *counting.lock().unwrap().entry(job.number).or_default() += 1;
        async { Ok::<_, Failure>(()) }
    });
    let pools = [pooled.pool(), pooled.pool()];
    let numbered: Vec<_> = (0..500).map(|number| Numbered { number }).collect();
    let mut tx = pools[0].begin().await.unwrap();
    jobs.enqueue_all(&mut tx, &numbered).await.unwrap();
    tx.commit().await.unwrap();

    let queue = Queue::new("default").through(Route::Pooler);
    let workers = pools.map(|pool| queue.worker(&jobs, &pool, &registry).unwrap());
    let (first, second) = tokio::join!(workers[0].drain(), workers[1].drain());

    assert_eq!(first.unwrap() + second.unwrap(), 500);
    let runs = std::mem::take(&mut *runs.lock().unwrap());
    assert_eq!((runs.len(), runs.values().sum::<usize>()), (500, 500));
    assert_eq!(pooled.count("SELECT count(*) FROM app.jobs").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_pooler_twins_of_two_processes_have_one_effect() {
    let pooled = Pooled::start("pooled-keys").await;
    let runs = Arc::new(AtomicUsize::new(0));
    let mut twins = JoinSet::new();
    for _process in 0..2 {
        // What one process knows of running requests, another does not: only the lock decides.
        let (keys, pool) = (Keys::new(&schema()), pooled.pool());
        for _twin in 0..8 {
            let (keys, pool, runs) = (keys.clone(), pool.clone(), Arc::clone(&runs));
            twins.spawn(async move {
                let hash = RequestHash::of("POST", "/", b"{}");
                let request = Request::new("shop", "k", hash).unwrap();
                keys.once(&pool, &request, async |tx| {
                    runs.fetch_add(1, Ordering::SeqCst);
                    effect(tx, "granted").await.map_err(Error::Store)?;
                    Ok::<_, Error>(Answer::Decided(Reply::new(201, "granted")))
                })
                .await
                .unwrap()
            });
        }
    }
    let outcomes = twins.join_all().await;

    let executed = |outcome: &&Outcome| matches!(outcome, Outcome::Executed(_));
    assert_eq!(outcomes.iter().filter(executed).count(), 1);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!(pooled.count("SELECT count(*) FROM app.effects").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_pooler_an_event_that_arrives_often_has_one_effect() {
    let pooled = Pooled::start("pooled-inbox").await;
    let (inbox, id) = (Inbox::new(&schema()), uuid_v7(&Clock::system()));
    let pools = [pooled.pool(), pooled.pool()];
    let mut arrivals = JoinSet::new();
    for pool in pools.iter().cycle().take(16) {
        let (inbox, pool) = (inbox.clone(), pool.clone());
        arrivals.spawn(async move {
            let handled = inbox.once(&pool, "billing", id, async |tx| {
                effect(tx, "billed").await.map_err(inbox::Error::Store)
            });
            handled.await.unwrap()
        });
    }

    let handled = arrivals.join_all().await;
    assert_eq!(handled.iter().flatten().count(), 1);
    assert_eq!(pooled.count("SELECT count(*) FROM app.effects").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_pooler_upkeep_and_everything_else_that_polls_works() {
    let pooled = Pooled::start("pooled-polls").await;
    let (pool, schema) = (pooled.pool(), schema());
    let (jobs, letters) = (Jobs::new(&schema), Letters::new(&schema, &[]));

    drain(&Upkeep::new(pool.clone(), &schema)).await.unwrap();
    let partitions = pooled.count(
        "SELECT count(*) FROM pg_inherits WHERE inhparent = 'app.outbox_published'::regclass",
    );
    assert!(partitions.await > 1, "nothing but the default partition");

    let schedules = Schedules::new(&jobs, &pool)
        .repeat("count", Repeat::every(Duration::from_secs(3600)), |_| {
            Numbered { number: 1 }
        })
        .unwrap();
    schedules.tick().await.unwrap();
    sqlx::query("UPDATE app.job_schedules SET next_at = now()")
        .execute(&pooled.db.pool)
        .await
        .unwrap();
    schedules.tick().await.unwrap();
    assert_eq!(pooled.count("SELECT count(*) FROM app.jobs").await, 1);

    let watch = Watch::new("app.watch", pool.clone(), &letters, async |_| Ok(()));
    let gauges = Gauges::new(
        "app.gauges",
        pool.clone(),
        &schema,
        &letters,
        Clock::system(),
    );
    for _ in 0..2 {
        watch.tick().await.unwrap();
        gauges.tick().await.unwrap();
    }
    let everything = Filter::default();
    let redriven = letters.redrive_all(&pool, &everything, "operator", None);
    assert_eq!(redriven.await.unwrap().letters, 0);
    let mut tx = pool.begin().await.unwrap();
    let queues = Admin::new(&schema).queues(&mut tx).await.unwrap();
    assert_eq!(queues.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_pooler_rings_go_out_but_only_a_direct_connection_hears_them() {
    let pooled = Pooled::start("pooled-listen").await;
    let pool = pooled.pool();
    let mut direct = PgListener::connect_with(&pooled.db.pool).await.unwrap();
    let mut through = PgListener::connect_with(&pool).await.unwrap();
    let jobs = Jobs::new(&schema());
    // The pooler takes the word, and gives it to a session that it then resets.
    for listener in [&mut direct, &mut through] {
        listener.listen(jobs.channel()).await.unwrap();
    }

    jobs.ring();
    jobs.ringer(&pool).tick().await.unwrap();

    let heard = timeout(Duration::from_secs(20), direct.recv()).await;
    assert_eq!(heard.unwrap().unwrap().channel(), jobs.channel());
    let deaf = timeout(Duration::from_millis(500), through.recv()).await;
    assert!(deaf.is_err(), "{deaf:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_pooler_a_statement_outside_a_transaction_is_refused_and_does_nothing() {
    let pooled = Pooled::start("pooled-direct").await;
    let pool = pooled.pool();
    let outbox = Outbox::new(&schema());
    let bus = Arc::new(MemoryBus::new().with_stream(stream()));
    enqueue(&outbox, &pool, 10).await;

    let mut wrong = settings(&pool);
    wrong.route = Route::Direct;
    let refused = outbox::relay(&outbox, bus.clone(), wrong).drain().await;
    assert!(refused.is_err(), "{refused:?}");
    assert!(arrived(&bus).is_empty());

    let right = outbox::relay(&outbox, bus.clone(), settings(&pool));
    assert_eq!(right.drain().await.unwrap(), 10);
}
