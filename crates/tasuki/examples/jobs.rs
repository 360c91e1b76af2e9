//! A job is enqueued in the transaction that makes it necessary, and done after the commit.
//!
//! `cargo run -p tasuki --example jobs -- postgres://localhost/example`

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tasuki::jobs::{Context, Failure, Job, Jobs, Queue, Registry};
use tasuki::worker::Supervisor;
use tasuki::{Clock, Schema};
use tokio::sync::mpsc;

/// Sends a new user a welcome; asked for again while one is waiting or running, it is that one.
#[derive(Serialize, Deserialize)]
struct Welcome {
    user: String,
}

impl Job for Welcome {
    const KIND: &'static str = "welcome";
    const QUEUE: &'static str = "mail";

    fn tries(&self) -> u32 {
        5
    }

    fn unique_id(&self) -> Option<String> {
        Some(self.user.clone())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).ok_or("say where: jobs <url>")?;
    let pool = PgPool::connect(&url).await?;
    tasuki::migrate(&pool, "jobs_example").await?;
    let jobs = Jobs::new(&Schema::new("jobs_example")?);

    // What runs the jobs. In production this is another process, or several.
    let (done, mut told) = mpsc::unbounded_channel();
    let registry = Registry::new().on::<Welcome, _>(move |job: Welcome, context: Context| {
        let done = done.clone();
        async move {
            if context.attempt() == 1 {
                let busy = "the mail server is busy";
                return Err(Failure::retry_after(Duration::from_millis(200), busy));
            }
            done.send(format!(
                "welcomed {} in attempt {}",
                job.user,
                context.attempt()
            ))?;
            Ok(())
        }
    });
    let worker = Queue::new("mail").worker(&jobs, &pool, &registry)?;
    let supervisor = Supervisor::new(Clock::system());
    supervisor.start(worker);

    // What makes them necessary: the job exists if, and only if, this commits.
    let mut tx = pool.begin().await?;
    let ada = Welcome { user: "ada".into() };
    let first = jobs.enqueue(&mut tx, &ada).await?;
    let again = jobs.enqueue(&mut tx, &ada).await?;
    tx.commit().await?;
    jobs.ring();
    println!("enqueued: {first:?}, and again: {again:?}");

    println!("{}", told.recv().await.ok_or("the worker is gone")?);
    let stopped = supervisor.stop(Duration::from_secs(5)).await;
    println!("stopped: {stopped:?}");
    Ok(())
}
