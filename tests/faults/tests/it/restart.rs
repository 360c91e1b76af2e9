//! Processes that stop, pause and come back under load.

use std::time::Duration;

use crate::site::{Site, stretched};

/// Long enough that a row that waited for it would be seen.
const LONG_LEASE: [&str; 2] = ["--lease", "60000"];

#[tokio::test]
async fn in_a_rolling_restart_under_load_no_row_waits_for_its_lease() {
    let site = Site::open().await;
    let arguments = [&LONG_LEASE[..], &["--job-takes", "20"]].concat();
    let mut old = vec![site.node(&arguments).await, site.node(&arguments).await];
    let (mut events, mut jobs) = (0, 0);
    for _ in 0..stretched(4, 40) {
        for _ in 0..10 {
            site.enqueue(100, 20).await;
            (events, jobs) = (events + 100, jobs + 20);
        }
        let new = site.node(&arguments).await;
        old.remove(0).stop().await;
        old.push(new);
    }
    site.rests_within(Duration::from_secs(20), events, jobs)
        .await;
    for node in old {
        node.stop().await;
    }
}

#[tokio::test]
async fn a_process_paused_beyond_its_lease_and_continued_settles_nothing_that_others_took() {
    let site = Site::open().await;
    let arguments = ["--job-takes", "300"];
    let stale = site.node(&arguments).await;
    site.enqueue(50, 40).await;
    tasuki_testkit::eventually("it has claimed", async || {
        let claimed = "SELECT count(*) FROM app.jobs WHERE status = 'PROCESSING'";
        (site.count(claimed).await > 0).then_some(())
    })
    .await;
    stale.pause();
    let other = site.node(&arguments).await;
    site.comes_to_rest(50, 40).await;
    stale.resume();
    tasuki_testkit::eventually("it notices", async || {
        stale.log().contains("lock lost").then_some(())
    })
    .await;
    site.enqueue(50, 40).await;
    site.comes_to_rest(100, 80).await;
    stale.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn killed_over_and_over_the_service_still_does_everything_once() {
    let site = Site::open().await;
    let (mut events, mut jobs) = (0, 0);
    let lives = site.node(&["--job-takes", "5"]).await;
    for _ in 0..stretched(6, 100) {
        let mut node = site.node(&["--job-takes", "5"]).await;
        site.enqueue(200, 50).await;
        (events, jobs) = (events + 200, jobs + 50);
        // sleep: a moment of work before the kill, of another length each time
        tokio::time::sleep(Duration::from_millis(fastrand::u64(5..150))).await;
        node.kill().await;
    }
    site.comes_to_rest(events, jobs).await;
    lives.stop().await;
}
