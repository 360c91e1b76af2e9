//! The library as a contestant: `tasuki-bench ours <verb>`, the same contract as every peer.
//!
//! Each verb runs in a process of its own, with the database of the run in `DATABASE_URL`:
//!
//! - `setup`: the library's tables in [`SCHEMA`].
//! - `fill ROWS`: bulk enqueue, in batches of a thousand.
//! - `drain`: one process with the settings for throughput; the time runs from the start of the
//!   worker until it has stopped, which is after the last settlement.
//! - `enqueue CLIENTS SECONDS`: on every connection, in turn: begin, enqueue one job, commit.
//! - `drain-and-keep`, `load RATE SECONDS`, `idle SECONDS`: what the library is compared with
//!   itself in (`age`).
//! - `latency RATE SECONDS`: a worker as a service runs it, and a producer on a connection of its
//!   own. The wake-up that counts is the one that crosses processes: the producer has a handle of
//!   its own and reaches the worker through the database.
//! - `outbox ROWS BATCH IN_FLIGHT`: events of 220 bytes, written first; then the relay alone, from
//!   its start until the last row is settled. The broker is in `TASUKI_TEST_NATS_URL`.
//! - `saga CALLERS SECONDS [STEPS]`, `saga-worker NUMBER SAGAS`: see `saga::ours`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use futures_util::future::try_join_all;
use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection as _, PgConnection, PgPool};
use tasuki::bus::{NatsBus, StreamSpec};
use tasuki::jobs::{self, Job, Jobs, Queue, Registry};
use tasuki::outbox::{self, Event, Outbox, RelaySettings, Routes};
use tasuki::worker::Supervisor;
use tasuki::{Clock, Schema};
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval};
use uuid::Uuid;

use crate::contest::{Drained, Enqueued, Idled, Measure, Verb, Waited};
use crate::saga::ours as sagas;
use crate::{broker, store};

/// Where the library's tables are.
pub(crate) const SCHEMA: &str = "bench";

/// What takes part in the rounds.
pub(crate) const MEASURES: &[Measure] = &Measure::ROUNDS;

/// Jobs and events per statement of a bulk insert.
const BULK: u32 = 1000;

/// A job that does nothing; its number says when it was enqueued.
#[derive(Serialize, Deserialize)]
pub(crate) struct Noop {
    n: u64,
    email: String,
    template: String,
}

impl Noop {
    pub(crate) fn new(n: u64) -> Self {
        Self {
            n,
            email: "someone@example.com".to_owned(),
            template: "welcome".to_owned(),
        }
    }
}

impl Job for Noop {
    const KIND: &'static str = "noop";
}

/// Does what `verb` asks, and answers with the line that the driver reads.
pub(crate) async fn run(
    url: &str,
    nats: Option<&str>,
    verb: Verb,
) -> anyhow::Result<Option<String>> {
    let line = match verb {
        Verb::Version => version()?,
        Verb::Setup => {
            setup(url).await?;
            return Ok(None);
        }
        Verb::Fill { rows } => {
            fill(url, rows).await?;
            return Ok(None);
        }
        Verb::Drain => serde_json::to_string(&drain(url, &throughput()).await?)?,
        Verb::DrainAndKeep => {
            let queue = throughput().keep_finished();
            serde_json::to_string(&drain(url, &queue).await?)?
        }
        Verb::Load { rate, seconds } => serde_json::to_string(&load(url, rate, seconds).await?)?,
        Verb::Idle { seconds } => serde_json::to_string(&idle(url, seconds).await?)?,
        Verb::Enqueue { clients, seconds } => {
            serde_json::to_string(&enqueue(url, clients, seconds).await?)?
        }
        Verb::Latency { rate, seconds } => {
            serde_json::to_string(&latency(url, rate, seconds).await?)?
        }
        Verb::Outbox {
            rows,
            batch,
            in_flight,
        } => {
            let nats = nats.context("TASUKI_TEST_NATS_URL is not set")?;
            serde_json::to_string(&publish(url, nats, rows, batch, in_flight).await?)?
        }
        Verb::Saga {
            callers,
            seconds,
            steps,
        } => sagas::call(url, steps, callers, seconds).await?.to_string(),
        Verb::SagaWorker { number, sagas } => {
            sagas::work(url, number, sagas).await?;
            return Ok(None);
        }
    };
    Ok(Some(line))
}

fn version() -> serde_json::Result<String> {
    let version = concat!("tasuki ", env!("CARGO_PKG_VERSION")).to_owned();
    serde_json::to_string(&crate::contest::Version { version })
}

/// Makes the library's tables in [`SCHEMA`].
pub(crate) async fn setup(url: &str) -> anyhow::Result<()> {
    let pool = PgPool::connect(url).await?;
    tasuki::migrate(&pool, SCHEMA).await?;
    pool.close().await;
    Ok(())
}

/// A pool as a service would have it for its hot paths: a connection is used without being asked
/// first whether it lives.
pub(crate) async fn pool(url: &str, connections: u32) -> anyhow::Result<PgPool> {
    let options: PgConnectOptions = url.parse()?;
    let pool = PgPoolOptions::new()
        .max_connections(connections)
        .min_connections(connections)
        .test_before_acquire(false)
        .connect_with(options)
        .await?;
    Ok(pool)
}

fn jobs() -> anyhow::Result<Jobs> {
    Ok(Jobs::new(&Schema::new(SCHEMA)?))
}

async fn fill(url: &str, rows: u32) -> anyhow::Result<()> {
    let (pool, jobs) = (pool(url, 1).await?, jobs()?);
    for from in (0..rows).step_by(usize::try_from(BULK)?) {
        let batch: Vec<Noop> = (from..rows.min(from + BULK))
            .map(|n| Noop::new(u64::from(n)))
            .collect();
        let mut tx = pool.begin().await?;
        jobs.enqueue_all(&mut tx, &batch).await?;
        tx.commit().await?;
    }
    Ok(())
}

/// The queue with the settings for throughput.
fn throughput() -> Queue {
    Queue::new("default").concurrency(500)
}

async fn drain(url: &str, queue: &Queue) -> anyhow::Result<Drained> {
    let (pool, jobs) = (pool(url, 6).await?, jobs()?);
    let (mut watch, schema) = (PgConnection::connect(url).await?, Schema::new(SCHEMA)?);
    let waiting = store::left(&mut watch, &schema, "jobs").await?;
    let done = Arc::new((AtomicU32::new(0), Notify::new()));
    let told = Arc::clone(&done);
    let handler = move |_job: Noop, _context: jobs::Context| {
        if told.0.fetch_add(1, Ordering::Relaxed) + 1 == waiting {
            told.1.notify_one();
        }
        std::future::ready(Ok::<(), jobs::Failure>(()))
    };
    let worker = queue.worker(&jobs, &pool, &Registry::new().on::<Noop, _>(handler))?;
    let supervisor = Supervisor::new(Clock::system());
    let began = Instant::now();
    supervisor.start(worker);
    done.1.notified().await;
    // A worker that has stopped has settled everything.
    let _stopped = supervisor.stop(Duration::from_secs(5)).await;
    let seconds = began.elapsed().as_secs_f64();
    let left = store::left(&mut watch, &schema, "jobs").await?;
    anyhow::ensure!(left == 0, "{left} jobs are left");
    let rows = done.0.load(Ordering::Relaxed);
    Ok(Drained { rows, seconds })
}

async fn enqueue(url: &str, clients: u32, seconds: u32) -> anyhow::Result<Enqueued> {
    let (pool, jobs) = (pool(url, clients).await?, jobs()?);
    let until = Instant::now() + Duration::from_secs(u64::from(seconds));
    let client = async || {
        let mut connection = pool.acquire().await?;
        let mut done = 0_u32;
        while Instant::now() < until {
            let mut tx = connection.begin().await?;
            jobs.enqueue(&mut tx, &Noop::new(1)).await?;
            tx.commit().await?;
            done += 1;
        }
        anyhow::Ok(done)
    };
    let done: u32 = try_join_all((0..clients).map(|_| client()))
        .await?
        .iter()
        .sum();
    let per_second = f64::from(done) / f64::from(seconds);
    Ok(Enqueued { per_second })
}

async fn latency(url: &str, rate: u32, seconds: u32) -> anyhow::Result<Waited> {
    let (pool, jobs) = (pool(url, 8).await?, jobs()?);
    let began = Instant::now();
    let waited = Arc::new(std::sync::Mutex::new(Vec::<f64>::new()));
    let told = Arc::clone(&waited);
    let handler = move |job: Noop, _context: jobs::Context| {
        let enqueued = began + Duration::from_micros(job.n);
        if let Ok(mut waited) = told.lock() {
            waited.push(enqueued.elapsed().as_secs_f64() * 1000.0);
        }
        std::future::ready(Ok::<(), jobs::Failure>(()))
    };
    let queue = Queue::new("default");
    let worker = queue.worker(&jobs, &pool, &Registry::new().on::<Noop, _>(handler))?;
    let supervisor = Supervisor::new(Clock::system());
    supervisor.start(worker);
    supervisor.start(jobs.listener(&pool));
    // The producer is another process to the worker: only the database connects them.
    let producer = self::jobs()?;
    supervisor.start(producer.ringer(&pool));

    let mut connection = pool.acquire().await?;
    let jobs_in_all = rate * seconds;
    let mut beat = interval(Duration::from_secs_f64(1.0 / f64::from(rate)));
    beat.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let start = Instant::now();
    for _ in 0..jobs_in_all {
        beat.tick().await;
        let n = u64::try_from(began.elapsed().as_micros())?;
        producer.enqueue(&mut connection, &Noop::new(n)).await?;
        producer.ring();
    }
    let per_second = f64::from(jobs_in_all) / start.elapsed().as_secs_f64();
    let all = usize::try_from(jobs_in_all)?;
    while waited.lock().map_or(all, |waited| waited.len()) < all {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let _stopped = supervisor.stop(Duration::from_secs(5)).await;
    let mut times = waited
        .lock()
        .map(|waited| waited.clone())
        .unwrap_or_default();
    times.sort_by(f64::total_cmp);
    let at = |share: usize| {
        times
            .get(times.len() * share / 100)
            .copied()
            .unwrap_or(f64::NAN)
    };
    Ok(Waited {
        p50_ms: at(50),
        p99_ms: at(99),
        jobs: jobs_in_all,
        per_second,
    })
}

/// A worker and a producer of `rate` jobs a second, until all of them are done.
async fn load(url: &str, rate: u32, seconds: u32) -> anyhow::Result<Drained> {
    let (pool, jobs) = (pool(url, 6).await?, jobs()?);
    let done = Arc::new(AtomicU32::new(0));
    let told = Arc::clone(&done);
    let handler = move |_job: Noop, _context: jobs::Context| {
        told.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Ok::<(), jobs::Failure>(()))
    };
    let worker = throughput().worker(&jobs, &pool, &Registry::new().on::<Noop, _>(handler))?;
    let supervisor = Supervisor::new(Clock::system());
    supervisor.start(worker);
    let began = Instant::now();
    let mut beat = interval(Duration::from_millis(100));
    for _ in 0..seconds * 10 {
        beat.tick().await;
        let batch: Vec<Noop> = (0..rate / 10).map(|n| Noop::new(u64::from(n))).collect();
        let mut tx = pool.begin().await?;
        jobs.enqueue_all(&mut tx, &batch).await?;
        tx.commit().await?;
        jobs.ring();
    }
    let all = seconds * 10 * (rate / 10);
    while done.load(Ordering::Relaxed) < all {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let seconds = began.elapsed().as_secs_f64();
    let _stopped = supervisor.stop(Duration::from_secs(5)).await;
    let rows = done.load(Ordering::Relaxed);
    Ok(Drained { rows, seconds })
}

/// A worker as a service runs it, with nothing to do.
async fn idle(url: &str, seconds: u32) -> anyhow::Result<Idled> {
    let (pool, jobs) = (pool(url, 2).await?, jobs()?);
    let handler =
        |_job: Noop, _context: jobs::Context| std::future::ready(Ok::<(), jobs::Failure>(()));
    let queue = Queue::new("default").poll(POLL);
    let worker = queue.worker(&jobs, &pool, &Registry::new().on::<Noop, _>(handler))?;
    let supervisor = Supervisor::new(Clock::system());
    tracing::subscriber::set_global_default(Statements)?;
    let before = cpu()?;
    supervisor.start(worker);
    let idle = Duration::from_secs(u64::from(seconds));
    tokio::time::sleep(idle).await;
    let (statements, cpu) = (SENT.load(Ordering::Relaxed), cpu()? - before);
    let _stopped = supervisor.stop(Duration::from_secs(5)).await;
    Ok(Idled {
        // Also the one at the start.
        polls: idle.as_secs_f64() / POLL.as_secs_f64() + 1.0,
        statements,
        cpu,
    })
}

/// Statements that this process has sent.
static SENT: AtomicU32 = AtomicU32::new(0);

/// Counts what the driver logs: a line for each statement.
struct Statements;

impl tracing::Subscriber for Statements {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "sqlx::query"
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        SENT.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// How often the idle worker looks.
const POLL: Duration = Duration::from_millis(500);

/// The time that this process has been on a processor, in seconds.
fn cpu() -> anyhow::Result<f64> {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Ok(Duration::try_from(used)?.as_secs_f64())
}

async fn publish(
    url: &str,
    nats: &str,
    rows: u32,
    batch: u32,
    in_flight: u32,
) -> anyhow::Result<Drained> {
    let pool = pool(url, 6).await?;
    let (mut watch, schema) = (PgConnection::connect(url).await?, Schema::new(SCHEMA)?);
    let outbox = Outbox::new(&schema);
    let clock = Clock::system();
    let mut last = Uuid::nil();
    for from in (0..rows).step_by(usize::try_from(BULK)?) {
        let event = |n: u32| {
            let id = tasuki::uuid_v7(&clock);
            Event::new(
                id,
                "Benched",
                format!("thing:{n}"),
                vec![b'x'; broker::BYTES],
            )
        };
        let events: Vec<Event> = (from..rows.min(from + BULK)).map(event).collect();
        last = events.last().map_or(last, |event| event.id());
        let mut tx = pool.begin().await?;
        outbox.enqueue_all(&mut tx, &events).await?;
        tx.commit().await?;
    }
    store::settle(url).await?;
    let spec = StreamSpec::new("bench-outbox", ["bench.outbox"]);
    let bus = NatsBus::new(broker::connect(nats).await?).with_stream(spec);
    let mut settings = RelaySettings::new("bench.outbox", pool, Routes::to("bench.outbox"));
    settings.batch = usize::try_from(batch)?;
    settings.in_flight = usize::try_from(in_flight)?;
    let relay = outbox::relay(&outbox, Arc::new(bus), settings);
    let supervisor = Supervisor::new(clock);
    let began = Instant::now();
    supervisor.start(relay);
    // The last one first, which costs the server almost nothing to tell.
    while store::is_waiting(&mut watch, &schema, last).await? {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    while store::left(&mut watch, &schema, "outbox_events").await? > 0 {}
    let seconds = began.elapsed().as_secs_f64();
    let _stopped = supervisor.stop(Duration::from_secs(5)).await;
    Ok(Drained { rows, seconds })
}
