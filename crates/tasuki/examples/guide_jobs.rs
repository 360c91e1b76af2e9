//! The bookshop sends receipts: the service of the guide `docs/start/jobs.md`.
//!
//! `cargo run -p tasuki --example guide_jobs -- postgres://localhost/example`

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx::{PgConnection, PgPool};
use tasuki::inbox::{self, Inbox};
use tasuki::jobs::{
    BoxError, Context, Failure, Handler, Job, Jobs, Priority, Queue, Registry, Repeat, Schedule,
    Schedules,
};
use tasuki::retry::Backoff;
use tasuki::worker::Supervisor;
use tasuki::{Clock, Schema};
use time::OffsetDateTime;

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS receipts.orders (
    order_id bigint PRIMARY KEY, email text NOT NULL, receipt text NOT NULL DEFAULT 'waiting'
);
CREATE TABLE IF NOT EXISTS receipts.mailed (day date PRIMARY KEY, mails bigint NOT NULL);
TRUNCATE receipts.orders, receipts.mailed";

/// Mails the receipt of an order.
#[derive(Serialize, Deserialize)]
struct SendReceipt {
    order: i64,
    email: String,
}

impl Job for SendReceipt {
    const KIND: &'static str = "send-receipt";
    const QUEUE: &'static str = "mail";

    fn tries(&self) -> u32 {
        8
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(20)
    }

    fn backoff(&self) -> Backoff {
        Backoff::exponential(Duration::from_secs(2), Duration::from_secs(600))
    }

    fn unique_id(&self) -> Option<String> {
        Some(self.order.to_string())
    }

    fn priority(&self) -> Priority {
        Priority::High
    }
}

/// What a handler needs, it has as fields.
struct Mailer {
    pool: PgPool,
    inbox: Inbox,
}

impl Handler<SendReceipt> for Mailer {
    async fn run(&self, job: SendReceipt, context: Context) -> Result<(), Failure> {
        if !job.email.contains('@') {
            return Err(Failure::reject("that is no address"));
        }
        // The same in every attempt: whoever sends the mail knows it by this, and sends it once.
        mail(&job.email, context.id().as_uuid()).await?;
        let count = async |tx: &mut PgConnection| count_mail(tx, job.order).await;
        let id = context.id().as_uuid();
        self.inbox.once(&self.pool, "mailer", id, count).await?;
        Ok(())
    }

    async fn failed(
        &self,
        connection: &mut PgConnection,
        job: &SendReceipt,
        error: &str,
    ) -> Result<(), BoxError> {
        sqlx::query("UPDATE receipts.orders SET receipt = $2 WHERE order_id = $1")
            .bind(job.order)
            .bind(format!("none: {error}"))
            .execute(connection)
            .await?;
        Ok(())
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the mail could not be counted")]
enum Uncounted {
    Inbox(#[from] inbox::Error),
    Store(#[from] sqlx::Error),
}

/// In the transaction that remembers this job: counted once, however often it is attempted.
async fn count_mail(tx: &mut PgConnection, order: i64) -> Result<(), Uncounted> {
    sqlx::query("UPDATE receipts.orders SET receipt = 'sent' WHERE order_id = $1")
        .bind(order)
        .execute(&mut *tx)
        .await?;
    sqlx::query(
        "INSERT INTO receipts.mailed AS m (day, mails) VALUES (current_date, 1)
         ON CONFLICT (day) DO UPDATE SET mails = m.mails + 1",
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Stands for your mail service, which takes an idempotency key as any good one does.
async fn mail(address: &str, key: uuid::Uuid) -> std::io::Result<()> {
    println!("mailing {address}, key {}", key.simple());
    tokio::time::sleep(Duration::from_millis(5)).await;
    Ok(())
}

/// Reminds of what was not paid.
#[derive(Serialize, Deserialize)]
struct RemindDebtors {
    day: String,
}

impl Job for RemindDebtors {
    const KIND: &'static str = "remind-debtors";
    const QUEUE: &'static str = "slow";
}

async fn remind(job: RemindDebtors, _: Context) -> Result<(), Failure> {
    println!("reminding the debtors of {}", job.day);
    Ok(())
}

fn start_workers(
    supervisor: &Supervisor,
    jobs: &Jobs,
    pool: &PgPool,
    schema: &Schema,
) -> Result<(), BoxError> {
    let mailer = Mailer {
        pool: pool.clone(),
        inbox: Inbox::new(schema),
    };
    let registry = Registry::new()
        .on::<SendReceipt, _>(mailer)
        .on::<RemindDebtors, _>(remind);
    let mail = Queue::new("mail").concurrency(20).keep_finished();
    let slow = Queue::new("slow").concurrency(2);
    supervisor.start(mail.worker(jobs, pool, &registry)?);
    supervisor.start(slow.worker(jobs, pool, &registry)?);
    // Rings of other processes, and ours to them.
    supervisor.start(jobs.listener(pool));
    supervisor.start(jobs.ringer(pool));
    let remind = |due: OffsetDateTime| RemindDebtors {
        day: due.date().to_string(),
    };
    let schedules = Schedules::new(jobs, pool).repeat(
        "remind-debtors",
        Repeat::cron("0 7 * * mon-fri")?,
        remind,
    )?;
    supervisor.start(schedules);
    Ok(())
}

async fn order(pool: &PgPool, jobs: &Jobs, order: i64, email: &str) -> Result<(), BoxError> {
    let receipt = SendReceipt {
        order,
        email: email.to_owned(),
    };
    let mut tx = pool.begin().await?;
    sqlx::query("INSERT INTO receipts.orders (order_id, email) VALUES ($1, $2)")
        .bind(order)
        .bind(email)
        .execute(&mut *tx)
        .await?;
    jobs.enqueue(&mut tx, &receipt).await?;
    tx.commit().await?;
    jobs.ring();
    Ok(())
}

/// A reminder for one customer, in a week; taken back if they pay before.
async fn remind_later(pool: &PgPool, jobs: &Jobs) -> Result<(), BoxError> {
    let mut connection = pool.acquire().await?;
    let reminder = RemindDebtors {
        day: "today".to_owned(),
    };
    let week = Schedule::In(Duration::from_secs(7 * 24 * 3600));
    let enqueued = jobs.enqueue_with(&mut connection, &reminder, week).await?;
    let view = jobs.get(&mut connection, enqueued.id()).await?;
    println!("in a week: {:?}", view.map(|view| view.state));
    let taken_back = jobs.cancel(&mut connection, enqueued.id()).await?;
    println!("taken back: {taken_back}");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let url = std::env::args()
        .nth(1)
        .ok_or("say where: guide_jobs <url>")?;
    let pool = PgPool::connect(&url).await?;
    tasuki::migrate(&pool, "receipts").await?;
    sqlx::raw_sql(TABLES).execute(&pool).await?;
    let schema = Schema::new("receipts")?;
    let jobs = Jobs::new(&schema);
    let supervisor = Supervisor::new(Clock::system());
    start_workers(&supervisor, &jobs, &pool, &schema)?;

    order(&pool, &jobs, 1, "ada@example.com").await?;
    order(&pool, &jobs, 2, "nowhere").await?;
    remind_later(&pool, &jobs).await?;
    let waiting = "SELECT count(*) FROM receipts.orders WHERE receipt = 'waiting'";
    while sqlx::query_scalar::<_, i64>(waiting)
        .fetch_one(&pool)
        .await?
        > 0
    {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let orders: Vec<(i64, String)> =
        sqlx::query_as("SELECT order_id, receipt FROM receipts.orders ORDER BY order_id")
            .fetch_all(&pool)
            .await?;
    println!("receipts: {orders:?}");
    let stopped = supervisor.stop(Duration::from_secs(25)).await;
    println!("stopped: {stopped:?}");
    Ok(())
}
