//! Commands that wait at the same time share one transaction, and one bad command fails no
//! other.
//!
//! `cargo run -p tasuki --example batch -- postgres://localhost/example`

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use sqlx::PgPool;
use tasuki::Clock;
use tasuki::batch::{self, Batcher, Group, Options, Ran};
use tasuki::worker::{self, Supervisor};
use uuid::Uuid;

/// A vote has an id of its own, so that running it twice counts it once.
struct Vote {
    id: Uuid,
    choice: &'static str,
}

struct Votes {
    pool: PgPool,
    transactions: Arc<AtomicUsize>,
}

impl Group for Votes {
    type Command = Vote;
    type Reply = ();
    type Error = sqlx::Error;

    /// One statement, and so one transaction, for everything that has queued.
    async fn run(&self, votes: &[Vote]) -> Ran<(), sqlx::Error> {
        let (ids, choices): (Vec<_>, Vec<_>) = votes.iter().map(|it| (it.id, it.choice)).unzip();
        self.transactions.fetch_add(1, Ordering::Relaxed);
        sqlx::query(
            "INSERT INTO batch_example.votes (vote_id, choice)
             SELECT * FROM unnest($1::uuid [], $2::text []) ON CONFLICT DO NOTHING",
        )
        .bind(ids)
        .bind(choices)
        .execute(&self.pool)
        .await?;
        Ok(votes.iter().map(|_| Ok(())).collect())
    }
}

#[tokio::main]
async fn main() -> Result<(), worker::Error> {
    let url = std::env::args().nth(1).ok_or("give a database URL")?;
    let pool = PgPool::connect(&url).await?;
    for sql in [
        "CREATE SCHEMA IF NOT EXISTS batch_example",
        "CREATE TABLE IF NOT EXISTS batch_example.votes (
            vote_id uuid PRIMARY KEY, choice text CHECK (choice IN ('yes', 'no'))
        )",
    ] {
        sqlx::query(sql).execute(&pool).await?;
    }

    let transactions = Arc::new(AtomicUsize::new(0));
    let group = Votes {
        pool,
        transactions: Arc::clone(&transactions),
    };
    let batcher = Batcher::new("example.votes", group, Options::default());
    let supervisor = Supervisor::new(Clock::system());
    batcher.start(&supervisor);

    // Everybody waits for the own vote only. There is no timer: batches grow with the load.
    let vote = async |choice| {
        let id = Uuid::now_v7();
        batcher.submit(Vote { id, choice }).await
    };
    let outcomes = join_all((0..1000).map(|_| vote("yes"))).await;
    let shared = transactions.load(Ordering::Relaxed);
    println!("1000 votes in {shared} transactions");
    assert!(outcomes.iter().all(Result::is_ok) && shared < 100);

    // The database refuses the batch with the third. Alone, only that one fails.
    let outcomes = join_all(["yes", "no", "perhaps", "yes"].map(vote)).await;
    for outcome in &outcomes {
        match outcome {
            Ok(()) => println!("counted"),
            Err(error) => println!("not counted: {error}"),
        }
    }
    let failed = |outcome: &&Result<(), _>| matches!(outcome, Err(batch::Error::Failed(_)));
    assert_eq!(outcomes.iter().filter(|it| it.is_ok()).count(), 3);
    assert_eq!(outcomes.iter().filter(failed).count(), 1);

    println!(
        "stopped: {:?}",
        supervisor.stop(Duration::from_secs(5)).await
    );
    Ok(())
}
