//! SIGKILL in the middle of sagas: another process ends each of them as it should end, and nothing that
//! is in this database happens twice.
//!
//! Leases last for an hour: who takes over does so because the owner is known to be dead.

use tasuki_testkit::eventually_within;

use crate::site::{REST, Site};

const SAGAS: i64 = 60;

async fn open() -> Site {
    let site = Site::open().await;
    sqlx::query("CREATE TABLE app.provider (key text PRIMARY KEY, kind text NOT NULL)")
        .execute(&site.pool)
        .await
        .unwrap();
    site
}

/// Every third was refused, and has nothing left; the others are whole.
async fn comes_to_rest(site: &Site, sagas: i64) {
    eventually_within(REST, "every saga has ended", async || {
        let ended = site.count("SELECT count(*) FROM app.sagas_done").await;
        (ended == sagas).then_some(())
    })
    .await;
    assert_eq!(site.count("SELECT count(*) FROM app.sagas").await, 0);
    let ended =
        |state: &str| format!("SELECT count(*) FROM app.sagas_done WHERE state = '{state}'");
    assert_eq!(site.count(&ended("COMPENSATED")).await, sagas / 3);
    assert_eq!(site.count(&ended("COMPLETED")).await, sagas - sagas / 3);
    for (kind, times) in [
        ("reserve", sagas),
        ("release", sagas / 3),
        ("confirm", sagas - sagas / 3),
        ("ship", sagas - sagas / 3),
    ] {
        assert_eq!(site.effects(kind).await, times, "{kind}");
    }
    let once = "SELECT count(*) FROM (
        SELECT id, kind FROM app.effects GROUP BY id, kind HAVING count(*) > 1
    ) AS twice";
    assert_eq!(site.count(once).await, 0);
    let kinds = |kind: &str| format!("SELECT count(*) FROM app.provider WHERE kind = '{kind}'");
    assert_eq!(site.count(&kinds("act")).await, sagas, "each key once");
    assert_eq!(site.count(&kinds("undo")).await, sagas / 3);
}

async fn killed_at(point: &str) {
    let site = open().await;
    let sagas = SAGAS.to_string();
    let forever = ["--sagas", "--lease", "3600000"];
    for (round, nth) in (1..).zip(["1", "4"]) {
        let dies = ["--begin", &sagas, "--crash-at", point, "--nth", nth];
        let mut dies = site.node(&[&forever[..], &dies].concat()).await;
        dies.is_killed().await;
        let lives = site.node(&forever).await;
        comes_to_rest(&site, SAGAS * round).await;
        lives.stop().await;
    }
}

macro_rules! killed_at {
    ($($name:ident $point:literal;)*) => {$(
        #[tokio::test]
        async fn $name() {
            killed_at($point).await;
        }
    )*};
}

killed_at! {
    killed_after_a_claim_of_sagas_each_ends_as_it_should "saga.claimed";
    killed_when_steps_have_acted_and_nothing_is_written_each_saga_ends_as_it_should "saga.acted";
    killed_before_the_commit_of_a_move_each_saga_ends_as_it_should "saga.written";
    killed_after_the_commit_of_a_move_each_saga_ends_as_it_should "saga.committed";
    killed_when_a_saga_has_moved_each_ends_as_it_should "saga.moved";
    killed_between_an_intent_and_its_call_each_saga_ends_as_it_should "saga.begun";
    killed_between_a_call_and_its_record_each_saga_ends_as_it_should "saga.called";
    killed_between_a_compensation_and_its_record_each_saga_ends_as_it_should "saga.undone";
}
