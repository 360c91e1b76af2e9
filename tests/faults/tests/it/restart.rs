//! Processes that stop, pause and come back under load.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tasuki_testkit::eventually;
use uuid::Uuid;

use crate::site::{Site, stretched};

/// Long enough that a row that waited for it would be seen.
const LONG_LEASE: [&str; 2] = ["--lease", "60000"];

const CLAIMED: &str = "SELECT count(*) FROM app.jobs WHERE status = 'PROCESSING'";

#[tokio::test]
async fn in_a_rolling_restart_under_load_no_row_waits_for_its_lease() {
    let site = Site::open().await;
    // No job is done within the grace time: what was cut is given back.
    let arguments = [&LONG_LEASE[..], &["--job-takes", "150", "--grace", "20"]].concat();
    let mut old = vec![site.node(&arguments).await, site.node(&arguments).await];
    let over = AtomicBool::new(false);
    let load = async {
        let (mut events, mut jobs) = (0, 0);
        while !over.load(Ordering::Relaxed) {
            site.enqueue(20, 6).await;
            (events, jobs) = (events + 20, jobs + 6);
            // sleep: the pace of the load
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        (events, jobs)
    };
    let restarts = async {
        for _ in 0..stretched(6, 40) {
            let new = site.node(&arguments).await;
            eventually("it has work in hand", async || {
                (site.count(CLAIMED).await > 0).then_some(())
            })
            .await;
            old.remove(0).stop().await;
            old.push(new);
        }
        over.store(true, Ordering::Relaxed);
    };
    let ((events, jobs), ()) = tokio::join!(load, restarts);
    site.rests_within(Duration::from_secs(20), events, jobs)
        .await;
    for node in old {
        // It has found the place of those before it, and the stream as they had left it.
        assert!(!node.log().contains("from its beginning"), "{}", node.log());
        node.stop().await;
    }
}

/// Who holds which job.
async fn claims(site: &Site) -> HashMap<Uuid, Uuid> {
    let claims = "SELECT job_id, claim_token FROM app.jobs WHERE status = 'PROCESSING'";
    let claims: Vec<(Uuid, Uuid)> = sqlx::query_as(claims).fetch_all(&site.pool).await.unwrap();
    claims.into_iter().collect()
}

#[tokio::test]
async fn a_process_paused_beyond_its_lease_and_continued_changes_nothing_that_others_took() {
    let site = Site::open().await;
    // With the work done and nothing settled.
    let stale = site.node(&["--pause-at", "lease.worked"]).await;
    site.enqueue(0, 8).await;
    let first = eventually("it has claimed them", async || {
        let claims = claims(&site).await;
        (claims.len() == 8).then_some(claims)
    })
    .await;
    let other = site.node(&["--job-takes", "4000"]).await;
    let second = eventually("another has them", async || {
        let claims = claims(&site).await;
        let taken = claims
            .iter()
            .all(|(job, token)| first.get(job) != Some(token));
        (taken && claims.len() == 8).then_some(claims)
    })
    .await;

    stale.resume();
    eventually("it notices", async || {
        stale.log().contains("lock lost").then_some(())
    })
    .await;
    assert_eq!(claims(&site).await, second, "settled, renewed or failed");
    site.comes_to_rest(0, 8).await;
    site.enqueue(50, 8).await;
    site.comes_to_rest(50, 16).await;
    stale.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn killed_over_and_over_the_service_still_does_everything_once_and_in_order() {
    let site = Site::open().await;
    let (mut events, mut jobs) = (0, 0);
    let mut lives = Vec::new();
    for _ in 0..3 {
        lives.push(site.node(&["--job-takes", "5"]).await);
    }
    for _ in 0..stretched(6, 100) {
        let mut node = site.node(&["--job-takes", "5"]).await;
        site.enqueue(200, 50).await;
        (events, jobs) = (events + 200, jobs + 50);
        // sleep: a moment of work before the kill, of another length each time
        tokio::time::sleep(Duration::from_millis(fastrand::u64(5..150))).await;
        node.kill().await;
    }
    site.comes_to_rest(events, jobs).await;
    site.is_in_order().await;
    for node in lives {
        node.stop().await;
    }
}
