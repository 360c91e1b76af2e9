//! What an operator sees: how the outbox and the queues are, where one job is, and the same as
//! metrics.
//!
//! `cargo run -p tasuki --example admin -- postgres://localhost/example`

use std::time::Duration;

use metrics_exporter_prometheus::PrometheusBuilder;
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tasuki::admin::{Admin, Gauges};
use tasuki::dlq::Letters;
use tasuki::jobs::{Job, Jobs, Schedule};
use tasuki::worker::{Error, Worker};
use tasuki::{Clock, Schema};

#[derive(Serialize, Deserialize)]
struct Report;

impl Job for Report {
    const KIND: &'static str = "report";
    const QUEUE: &'static str = "reports";
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).ok_or("say where: admin <url>")?;
    let pool = PgPool::connect(&url).await?;
    tasuki::migrate(&pool, "admin_example").await?;
    let schema = Schema::new("admin_example")?;
    let (jobs, admin) = (Jobs::new(&schema), Admin::new(&schema));
    let mut connection = pool.acquire().await?;
    sqlx::raw_sql("TRUNCATE admin_example.jobs")
        .execute(&mut *connection)
        .await?;

    // One that is due and that nobody runs, and one for later.
    jobs.enqueue(&mut connection, &Report).await?;
    let tomorrow = Schedule::In(Duration::from_secs(24 * 3600));
    let later = jobs
        .enqueue_with(&mut connection, &Report, tomorrow)
        .await?;

    for queue in admin.queues(&mut connection).await? {
        let (name, waiting, due) = (&queue.queue, queue.waiting.rows, queue.due);
        println!(
            "{name}: {waiting} wait, {due} due, oldest {:?}",
            queue.oldest_due
        );
    }
    let outbox = admin.outbox(&mut connection).await?;
    println!("outbox: {} pending", outbox.pending.rows);
    let found = admin.job(&mut connection, later.id().as_uuid()).await?;
    println!("the later one: {:?}", found.map(|found| found.place));
    println!("held by: {:?}", admin.leases(&mut connection).await?);

    // In a service, a recorder that is installed once, and `supervisor.start(gauges)`.
    let recorder = PrometheusBuilder::new().build_recorder();
    let _here = metrics::set_default_local_recorder(&recorder);
    let letters = Letters::new(&schema, &[]);
    let gauges = Gauges::new("example.gauges", pool, &schema, &letters, Clock::system());
    gauges.tick().await?;
    let scraped = recorder.handle().render();
    for line in scraped
        .lines()
        .filter(|line| line.starts_with("tasuki_queue_waiting"))
    {
        println!("{line}");
    }
    Ok(())
}
