//! A process to be killed: relay, reconciler, consumer and job worker of a small service.
//!
//! Every event and every job is to have one effect, a row in `app.effects`. Nothing there is
//! unique, so an effect that happens twice is two rows. It runs until it is told to stop, or
//! dies at the crash point that it was given.

mod work;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tasuki::bus::{Consumer, ConsumerSpec, NatsBus, StreamSpec};
use tasuki::inbox::Inbox;
use tasuki::jobs::{Jobs, Queue, Registry, Repeat, Schedules};
use tasuki::lease::Route;
use tasuki::outbox::{self, Outbox, Reconciler, RelaySettings, Routes};
use tasuki::worker::Supervisor;
use tasuki::{Clock, Schema};
use tokio::signal::unix::{SignalKind, signal};
use uuid::Uuid;

use work::{Bury, Effects, Pay, Payment};

/// One process of the service under test.
#[derive(Parser)]
struct Node {
    /// The database, with the library's tables in schema `app`.
    #[arg(long)]
    database: String,
    /// The broker: an address, or several with commas in between.
    #[arg(long)]
    nats: String,
    /// The stream, and the prefix of its subject.
    #[arg(long)]
    stream: String,
    /// How long a claim holds, in milliseconds.
    #[arg(long, default_value_t = 1500)]
    lease: u64,
    /// Where to die.
    #[arg(long)]
    crash_at: Option<String>,
    /// Where to stop, until somebody lets it continue.
    #[arg(long)]
    pause_at: Option<String>,
    /// At which time of coming there.
    #[arg(long, default_value_t = 1)]
    nth: u32,
    /// How many servers hold the stream.
    #[arg(long, default_value_t = 1)]
    replicas: usize,
    /// How long a stop waits for what runs, in milliseconds.
    #[arg(long, default_value_t = 10_000)]
    grace: u64,
    /// How long a job takes, in milliseconds.
    #[arg(long, default_value_t = 0)]
    job_takes: u64,
    /// Enqueues a job every hour, too.
    #[arg(long)]
    hourly: bool,
    /// Runs sagas instead of everything else.
    #[arg(long)]
    sagas: bool,
    /// Starts so many sagas first.
    #[arg(long, default_value_t = 0)]
    begin: u32,
    /// Has its engine begin them instead, one after the other, and notes each that is acknowledged.
    #[arg(long)]
    by_engine: bool,
    /// Numbers a log and follows it instead of everything else.
    #[arg(long)]
    seqlog: bool,
    /// Only numbers it.
    #[arg(long)]
    only_numbers: bool,
    /// Does so as behind a pooler.
    #[arg(long)]
    pooled: bool,
    /// Prints the seconds since 1970 by its own clock instead, and ends.
    #[arg(long)]
    time: bool,
    /// Answers one request with this idempotency key instead, prints the answer and ends.
    #[arg(long)]
    ask: Option<String>,
    /// Takes one event with this id instead, prints whether it was new and ends.
    #[arg(long)]
    take: Option<Uuid>,
    /// Reacts to one event with this id instead, prints whether it was new and ends.
    #[arg(long)]
    react: Option<Uuid>,
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let node = Node::parse();
    if let Some(point) = &node.crash_at {
        tasuki::testing::crash_at(point, node.nth);
    }
    if let Some(point) = &node.pause_at {
        tasuki::testing::pause_at(point, node.nth);
    }
    if node.time {
        println!("{}", Clock::system().now().unix_timestamp());
        return Ok(());
    }
    if let Some(key) = &node.ask {
        println!("{}", work::answer(&node.pool().await?, key).await?);
        return Ok(());
    }
    if let Some(event) = node.take {
        println!("{}", work::take(&node.pool().await?, event).await?);
        return Ok(());
    }
    if let Some(event) = node.react {
        println!("{}", work::react(&node.pool().await?, event).await?);
        return Ok(());
    }
    let supervisor = Supervisor::new(Clock::system());
    if node.sagas {
        let lease = Duration::from_millis(node.lease);
        let sagas = work::saga::Work {
            lease,
            begin: node.begin,
            by_engine: node.by_engine,
        };
        sagas.start(&supervisor, &node.pool().await?).await?;
    } else if node.seqlog {
        let work = work::seqlog::Work {
            lease: Duration::from_millis(node.lease),
            route: if node.pooled {
                Route::Pooler
            } else {
                Route::Direct
            },
            only_numbers: node.only_numbers,
        };
        work::seqlog::start(&supervisor, &node.pool().await?, &work)?;
    } else {
        node.start(&supervisor).await?;
    }
    println!("ready");
    signal(SignalKind::terminate())?.recv().await;
    let stopped = supervisor.stop(Duration::from_millis(node.grace)).await;
    // Whoever waited for the first line may not listen any more.
    eprintln!("{stopped:?}");
    Ok(())
}

impl Node {
    async fn start(&self, supervisor: &Supervisor) -> Result<()> {
        let schema = Schema::new("app")?;
        let pool = self.pool().await?;
        let client = self.connect().await?;
        let subject = format!("{}.events", self.stream);
        // So short a window that the broker recognises nothing: the inbox has to.
        let spec = StreamSpec::new(self.stream.as_str(), [subject.as_str()])
            .duplicate_window(Duration::from_millis(100))
            .replicas(self.replicas);
        let bus = NatsBus::new(client).with_stream(spec.clone());
        let lease = Duration::from_millis(self.lease);
        let outbox = Outbox::new(&schema);

        let mut settings = RelaySettings::new("app.outbox", pool.clone(), Routes::to(&subject));
        (settings.batch, settings.lease) = (50, lease);
        settings.poll = Duration::from_millis(50);
        let relay = outbox::relay(&outbox, Arc::new(bus.clone()), settings);
        let bus_of_reconciler = Arc::new(bus.clone());
        let streams = vec![spec.clone()];
        let reconciler = Reconciler::new(
            "app.reconcile",
            &outbox,
            bus_of_reconciler,
            pool.clone(),
            streams,
        )
        .every(Duration::from_millis(500))
        .suspecting(relay.work().suspicion());
        supervisor.start(reconciler);
        supervisor.start(relay);

        let handler = Effects {
            pool: pool.clone(),
            inbox: Inbox::new(&schema),
        };
        let durable = ConsumerSpec::new(spec, "effects").ack_wait(Duration::from_secs(2));
        let consumer = Consumer::new("app.consumer", bus, durable, handler)
            .with_max_batch(50)
            .with_wait(Duration::from_millis(200))
            .remembering(pool.clone(), &schema);
        supervisor.start(consumer);

        let jobs = Jobs::new(&schema);
        if self.hourly {
            let hourly = Repeat::every(Duration::from_secs(3600));
            let schedules = Schedules::new(&jobs, &pool).repeat("hourly", hourly, |_| Payment)?;
            supervisor.start(schedules);
        }
        let pay = Pay {
            pool: pool.clone(),
            takes: Duration::from_millis(self.job_takes),
        };
        let worker = Queue::new("default")
            .lease(lease)
            .poll(Duration::from_millis(50))
            .keep_finished()
            .worker(&jobs, &pool, &Registry::new().on(pay).on(Bury))?;
        supervisor.start(worker);
        Ok(())
    }

    async fn pool(&self) -> Result<PgPool> {
        // Well below the timeout of a job, or an outage would be blamed on it.
        let patience = Duration::from_secs(2);
        let options = PgPoolOptions::new()
            .max_connections(8)
            .acquire_timeout(patience);
        Ok(options.connect(&self.database).await?)
    }

    async fn connect(&self) -> Result<async_nats::Client> {
        let addresses = self.nats.split(',').map(str::parse);
        let addresses = addresses.collect::<Result<Vec<async_nats::ServerAddr>, _>>()?;
        // The client does not read credentials from the address.
        let first = addresses.first().context("no address")?;
        let (user, password) = (first.username(), first.password());
        let options = match user.zip(password) {
            Some((user, password)) => async_nats::ConnectOptions::with_user_and_password(
                user.to_owned(),
                password.to_owned(),
            ),
            None => async_nats::ConnectOptions::new(),
        };
        let client = options.retry_on_initial_connect().connect(addresses);
        let client = client.await;
        client.context("connecting to the broker")
    }
}
