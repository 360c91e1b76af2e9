//! A database that crashes, and comes back.

use std::time::Duration;

use sqlx::PgPool;
use tasuki_service::database::is_away;
use tasuki_stack::{Postgres, Replication};
use tasuki_testkit::breakable;

use crate::site::{Site, stretched};

#[tokio::test]
async fn a_database_that_crashes_under_load_costs_no_attempt_and_everything_happens_once() {
    let options = breakable("faults-database").durable();
    let postgres = Postgres::start(&options).await.unwrap();
    let site = Site::at(&postgres).await;
    let nodes = [
        site.node(&["--job-takes", "20"]).await,
        site.node(&["--job-takes", "20"]).await,
    ];
    let (mut events, mut jobs) = (0, 0);
    for _ in 0..stretched(3, 30) {
        site.enqueue(200, 60).await;
        (events, jobs) = (events + 200, jobs + 60);
        // sleep: a moment of work before the crash, of another length each time
        tokio::time::sleep(Duration::from_millis(fastrand::u64(20..300))).await;
        postgres.kill().await.unwrap();
        // sleep: the outage itself
        tokio::time::sleep(Duration::from_millis(500)).await;
        postgres.start().await.unwrap();
    }
    site.rests_within(Duration::from_secs(30), events, jobs)
        .await;
    site.no_attempt_failed().await;
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test]
async fn a_standby_that_is_not_promoted_yet_counts_as_away() {
    let options = breakable("faults-standby").durable();
    let primary = Postgres::start(&options).await.unwrap();
    let folder = breakable("faults-standby-copy");
    let standby = primary
        .standby(folder.dir().to_owned(), Replication::Asynchronous)
        .await
        .unwrap();
    let url = standby.server().url("postgres");
    let pool = PgPool::connect(&url).await.unwrap();
    let refused = tasuki::begin(&pool).await.unwrap_err();
    assert!(is_away(&refused), "{refused}");
    // Only there: elsewhere the same code is a mistake of ours.
    let unsupported = sqlx::query("DO $$ BEGIN RAISE feature_not_supported; END $$");
    let mistake = unsupported.execute(&pool).await.unwrap_err();
    assert!(!is_away(&mistake), "{mistake}");
}
