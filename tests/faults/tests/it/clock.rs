//! Processes whose clocks are wrong.

use std::time::Duration;

use tasuki_testkit::eventually;

use crate::site::Site;

const WAITING: &str = "SELECT count(*) FROM app.jobs WHERE status = 'PENDING'";
const MINUTE: i64 = 60;

/// How far a clock that is set to `offset` is before that of the database, in minutes.
async fn minutes_ahead(site: &Site, offset: &str) -> i64 {
    let there: i64 = site.answer_at(offset, &["--time"]).await.parse().unwrap();
    let here = site.count("SELECT extract(epoch FROM now())::bigint").await;
    (there - here + MINUTE / 2).div_euclid(MINUTE)
}

#[tokio::test]
async fn a_process_whose_clock_is_off_by_more_than_an_hour_changes_nothing() {
    let site = Site::open().await;
    assert_eq!(minutes_ahead(&site, "+90m").await, 90);
    assert_eq!(minutes_ahead(&site, "-90m").await, -90);
    // By either clock the schedule would be due at once, or late.
    let arguments = ["--hourly", "--job-takes", "300", "--lease", "15000"];
    let nodes = [
        site.node_at("+90m", &arguments).await,
        site.node_at("-90m", &arguments).await,
    ];
    site.enqueue(200, 60).await;
    site.comes_to_rest(200, 60).await;

    site.enqueue_later(Duration::from_secs(1800)).await;
    site.enqueue_later(Duration::from_secs(2)).await;
    eventually("the one that is due has run", async || {
        (site.effects("job").await == 61).then_some(())
    })
    .await;
    assert_eq!(site.count(WAITING).await, 1, "the other one is not due");
    site.no_attempt_failed().await;
    for node in nodes {
        assert!(!node.log().contains("lock lost"), "{}", node.log());
        node.stop().await;
    }
}

#[tokio::test]
async fn an_answer_does_not_expire_by_the_clock_of_whoever_asks() {
    let site = Site::open().await;
    let answer = site.ask("k").await;
    assert_eq!(minutes_ahead(&site, "+25h").await, 25 * 60);
    assert_eq!(site.answer_at("+25h", &["--ask", "k"]).await, answer);
    assert_eq!(site.effects("request").await, 1);
}
