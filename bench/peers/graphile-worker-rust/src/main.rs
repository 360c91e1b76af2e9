//! `graphile_worker` (Rust) behind the sub-commands that every peer of this benchmark has.
//!
//! Settings of its own benchmark (`benches/perf_test.rs`): concurrency 500 and a local queue of
//! 5,000, with completions in batches. Smaller numbers were tried, and were no better. For latency
//! there is no local queue and no delayed completion: a notification starts the job at once.

use std::{
    env,
    error::Error,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, RawJobSpec, TaskHandler, WorkerContext,
    WorkerOptions, WorkerUtils,
};
use serde::{Deserialize, Serialize};
use sqlx::{Connection, PgPool, postgres::PgPoolOptions};
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{sleep, sleep_until},
};

type Done = Result<(), Box<dyn Error + Send + Sync>>;

const SCHEMA: &str = "graphile_worker";

#[derive(Clone, Deserialize, Serialize)]
struct Noop {
    n: usize,
    email: String,
    template: String,
}

impl Noop {
    fn new(n: usize) -> Self {
        Self {
            n,
            email: "someone@example.com".to_owned(),
            template: "welcome".to_owned(),
        }
    }
}

/// What the handler does beside nothing: it counts, or it notes how long the job waited.
#[derive(Clone, Debug)]
enum Watch {
    Count {
        done: Arc<AtomicUsize>,
        wanted: usize,
        all: Arc<Notify>,
    },
    Wait {
        called: Arc<Mutex<Vec<Instant>>>,
        waited: Arc<Mutex<Vec<Duration>>>,
        wanted: usize,
        all: Arc<Notify>,
    },
}

impl TaskHandler for Noop {
    const IDENTIFIER: &'static str = "noop";

    async fn run(self, ctx: WorkerContext) -> impl IntoTaskHandlerResult {
        let now = Instant::now();
        match ctx.get_ext::<Watch>() {
            Some(Watch::Count { done, wanted, all }) => {
                if done.fetch_add(1, Ordering::Relaxed) + 1 == *wanted {
                    all.notify_one();
                }
            }
            Some(Watch::Wait {
                called,
                waited,
                wanted,
                all,
            }) => {
                let began = called.lock().unwrap()[self.n];
                let mut waited = waited.lock().unwrap();
                waited.push(now - began);
                if waited.len() == *wanted {
                    all.notify_one();
                }
            }
            None => {}
        }
        Ok::<(), String>(())
    }
}

#[tokio::main]
async fn main() -> Done {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let url = env::var("DATABASE_URL")?;
    match words.as_slice() {
        ["version"] => version(),
        ["setup"] => setup(&url).await,
        ["fill", rows] => fill(&url, rows.parse()?).await,
        ["drain"] => drain(&url).await,
        ["enqueue", clients, seconds] => enqueue(&url, clients.parse()?, seconds.parse()?).await,
        ["latency", rate, seconds] => latency(&url, rate.parse()?, seconds.parse()?).await,
        _ => Err(
            "usage: version | setup | fill N | drain | enqueue CLIENTS SECONDS | latency RATE SECONDS".into(),
        ),
    }
}

/// The version that the lock file names.
fn version() -> Done {
    let mut lines = include_str!("../Cargo.lock").lines();
    lines.find(|line| *line == r#"name = "graphile_worker""#);
    let version = lines.next().and_then(|line| line.split('"').nth(1));
    let version = format!("graphile_worker {}, sqlx driver", version.unwrap_or("?"));
    println!("{}", serde_json::json!({ "version": version }));
    Ok(())
}

async fn connect(url: &str, connections: u32) -> Result<PgPool, sqlx::Error> {
    PgPoolOptions::new()
        .min_connections(connections)
        .max_connections(connections)
        .connect(url)
        .await
}

async fn setup(url: &str) -> Done {
    let pool = connect(url, 2).await?;
    WorkerUtils::new(pool, SCHEMA).migrate().await?;
    Ok(())
}

/// Bulk: `add_raw_jobs`, a thousand jobs per statement.
async fn fill(url: &str, rows: usize) -> Done {
    let utils = WorkerUtils::new(connect(url, 2).await?, SCHEMA);
    let numbers: Vec<usize> = (0..rows).collect();
    for chunk in numbers.chunks(1000) {
        let mut jobs = Vec::with_capacity(chunk.len());
        for n in chunk {
            jobs.push(RawJobSpec {
                identifier: Noop::IDENTIFIER.to_owned(),
                payload: serde_json::to_value(Noop::new(*n))?,
                spec: JobSpec::default(),
            });
        }
        utils.add_raw_jobs(&jobs).await?;
    }
    Ok(())
}

/// From the start of the worker until the last row has left the table.
async fn drain(url: &str) -> Done {
    let pool = connect(url, 20).await?;
    let wanted: i64 = sqlx::query_scalar("SELECT count(*) FROM graphile_worker._private_jobs")
        .fetch_one(&pool)
        .await?;
    let wanted = usize::try_from(wanted)?;
    let done = Arc::new(AtomicUsize::new(0));
    let all = Arc::new(Notify::new());
    let worker = WorkerOptions::default()
        .pg_pool(pool.clone())
        .schema(SCHEMA)
        .concurrency(500)
        .local_queue(LocalQueueConfig::default().with_size(5000))
        .complete_job_batch_delay(Duration::from_millis(5))
        .listen_os_shutdown_signals(false)
        .add_extension(Watch::Count {
            done: Arc::clone(&done),
            wanted,
            all: Arc::clone(&all),
        })
        .define_job::<Noop>()
        .init()
        .await?;
    let worker = Arc::new(worker);
    let started = Instant::now();
    let running = tokio::spawn({
        let worker = Arc::clone(&worker);
        async move { worker.run().await }
    });
    all.notified().await;
    let left = "SELECT EXISTS (SELECT FROM graphile_worker._private_jobs)";
    while sqlx::query_scalar::<_, bool>(left).fetch_one(&pool).await? {
        sleep(Duration::from_millis(2)).await;
    }
    let seconds = started.elapsed().as_secs_f64();
    let rows = done.load(Ordering::Relaxed);
    println!(
        "{}",
        serde_json::json!({ "rows": rows, "seconds": seconds })
    );
    worker.request_shutdown();
    running.await??;
    Ok(())
}

/// The documented way to enqueue in one's own transaction: `with_executor`.
async fn enqueue(url: &str, clients: u32, seconds: u64) -> Done {
    let pool = connect(url, clients).await?;
    let utils = WorkerUtils::new(pool.clone(), SCHEMA);
    let started = Instant::now();
    let end = started + Duration::from_secs(seconds);
    let mut tasks = JoinSet::new();
    for _ in 0..clients {
        let (pool, utils) = (pool.clone(), utils.clone());
        tasks.spawn(async move {
            let mut connection = pool.acquire().await?;
            let mut committed = 0_usize;
            while Instant::now() < end {
                let mut tx = connection.begin().await?;
                let mut utils = utils.clone().with_executor(&mut tx);
                utils
                    .add_job(Noop::new(committed), JobSpec::default())
                    .await?;
                drop(utils);
                tx.commit().await?;
                committed += 1;
            }
            Ok::<usize, Box<dyn Error + Send + Sync>>(committed)
        });
    }
    let mut committed = 0;
    for count in tasks.join_all().await {
        committed += count?;
    }
    let per_second = committed as f64 / started.elapsed().as_secs_f64();
    println!("{}", serde_json::json!({ "per_second": per_second }));
    Ok(())
}

/// From the call that enqueues to the first line of the handler, on one clock.
async fn latency(url: &str, rate: u64, seconds: u64) -> Done {
    let wanted = usize::try_from(rate * seconds)?;
    let called = Arc::new(Mutex::new(vec![Instant::now(); wanted]));
    let waited = Arc::new(Mutex::new(Vec::with_capacity(wanted)));
    let all = Arc::new(Notify::new());
    let worker = WorkerOptions::default()
        .pg_pool(connect(url, 10).await?)
        .schema(SCHEMA)
        .concurrency(8)
        .listen_os_shutdown_signals(false)
        .add_extension(Watch::Wait {
            called: Arc::clone(&called),
            waited: Arc::clone(&waited),
            wanted,
            all: Arc::clone(&all),
        })
        .define_job::<Noop>()
        .init()
        .await?;
    let worker = Arc::new(worker);
    let running = tokio::spawn({
        let worker = Arc::clone(&worker);
        async move { worker.run().await }
    });
    let utils = WorkerUtils::new(connect(url, 1).await?, SCHEMA);
    sleep(Duration::from_secs(1)).await; // Listening, and connected.
    let started = Instant::now();
    for n in 0..wanted {
        let due = started + Duration::from_secs_f64(n as f64 / rate as f64);
        sleep_until(due.into()).await;
        called.lock().unwrap()[n] = Instant::now();
        utils.add_job(Noop::new(n), JobSpec::default()).await?;
    }
    let elapsed = started.elapsed().as_secs_f64();
    all.notified().await;
    let mut waited = waited.lock().unwrap().clone();
    waited.sort_unstable();
    let quantile =
        |q: f64| waited[((q * wanted as f64) as usize).min(wanted - 1)].as_secs_f64() * 1000.0;
    println!(
        "{}",
        serde_json::json!({
            "p50_ms": quantile(0.5),
            "p99_ms": quantile(0.99),
            "jobs": wanted,
            "per_second": wanted as f64 / elapsed,
        })
    );
    worker.request_shutdown();
    running.await??;
    Ok(())
}
