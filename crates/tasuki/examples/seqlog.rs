//! Orders are counted by a consumer that follows a log: none missed, none twice, and one that can't be
//! counted waits for a person.
//!
//! `cargo run -p tasuki --example seqlog -- postgres://localhost/app`

use std::time::Duration;

use sqlx::PgPool;
use tasuki::retry::Backoff;
use tasuki::seqlog::{Consumers, Entry, Failure, Follower, Handler, Log, Numbered, Read, Tx};
use tasuki::worker::{Error, Supervisor};
use tasuki::{Clock, Schema};
use tokio::time::{sleep, timeout};

/// Adds up what orders are worth.
struct Totals;

impl Handler for Totals {
    type Row = Read;

    async fn handle(&self, rows: &[Numbered<Read>], tx: &mut Tx) -> Result<(), Failure> {
        let mut worth = 0;
        for row in rows {
            let text = std::str::from_utf8(&row.row.payload).map_err(Failure::poison)?;
            // An order that says no number will never say one: it is set aside at once.
            worth += text.parse::<i64>().map_err(Failure::poison)?;
        }
        // In the transaction in which the offset moves: both, or neither.
        sqlx::query("UPDATE seqlog_example.totals SET worth = worth + $1")
            .bind(worth)
            .execute(tx.get().await?)
            .await?;
        Ok(())
    }
}

async fn tables(pool: &PgPool) -> Result<(), Error> {
    tasuki::migrate(pool, "seqlog_example").await?;
    for sql in [
        "CREATE TABLE IF NOT EXISTS seqlog_example.totals (worth bigint NOT NULL)",
        "TRUNCATE seqlog_example.totals",
        "INSERT INTO seqlog_example.totals VALUES (0)",
    ] {
        sqlx::query(sql).execute(pool).await?;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).ok_or("give a database URL")?;
    let pool = PgPool::connect(&url).await?;
    tables(&pool).await?;
    let schema = Schema::new("seqlog_example")?;
    let log = Log::new(&schema);

    // In every process. One of them numbers, one follows; another takes over when it is gone.
    let supervisor = Supervisor::new(Clock::system());
    supervisor.start(log.sequencer("example.sequencer", &pool));
    let totals = Follower::new(&log, "totals-v1", &pool, Totals)
        .attempts(3, Backoff::list([Duration::from_millis(10)]));
    supervisor.start(totals);
    supervisor.start(log.listener(&pool)); // Not needed, only quicker than polls.

    // This transaction appends first and commits last; a number drawn now would be missed.
    let mut slow = pool.begin().await?;
    log.append(&mut slow, &[Entry::new("OrderPlaced", "1000")])
        .await?;
    for worth in ["1", "20", "three hundred"] {
        let mut tx = pool.begin().await?;
        log.append(&mut tx, &[Entry::new("OrderPlaced", worth)])
            .await?;
        tx.commit().await?;
        log.ring();
    }
    slow.commit().await?;
    log.ring();

    let mut db = pool.acquire().await?;
    let consumers = Consumers::new(&schema);
    let caught_up = async {
        loop {
            let head = log.head(&mut db).await?.last_seq;
            let list = consumers.list(&mut db).await?;
            let mut all = list.iter().filter(|it| it.name == "totals-v1");
            if head > 0 && all.any(|it| it.last_seq == head) && worth(&pool).await? >= 1021 {
                return Ok::<_, Error>(());
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(30), caught_up).await??;
    println!("worth: {}", worth(&pool).await?);
    if let Some(story) = consumers.show(&mut db, "totals-v1").await? {
        println!("backlog: {}", story.consumer.backlog());
        for row in story.set_aside {
            println!("set aside: {} ({})", row.entry, row.error);
        }
    }
    let _stopped = supervisor.stop(Duration::from_secs(5)).await;
    Ok(())
}

async fn worth(pool: &PgPool) -> sqlx::Result<i64> {
    sqlx::query_scalar("SELECT worth FROM seqlog_example.totals")
        .fetch_one(pool)
        .await
}
