//! SIGKILL in the middle of sagas: another process ends each of them as it should end, and nothing that
//! is in this database happens twice.
//!
//! Where leases last for an hour, who takes over does so because the owner is known to be dead.

use std::time::Duration;

use tasuki_testkit::eventually_within;

use crate::site::{REST, Site, stretched};

/// How many at a time. Every third is refused.
fn sagas() -> i64 {
    stretched(60, 999)
}

/// How long they may take to come to rest.
fn rest() -> Duration {
    stretched(REST, 4 * REST)
}

async fn open() -> Site {
    let site = Site::open().await;
    sqlx::raw_sql(
        "CREATE TABLE app.provider (key text PRIMARY KEY, kind text NOT NULL);
         CREATE TABLE app.told (kind text NOT NULL, id uuid PRIMARY KEY);",
    )
    .execute(&site.pool)
    .await
    .unwrap();
    site
}

/// Every third was refused, and has nothing left; the others are whole.
async fn comes_to_rest(site: &Site, sagas: i64) {
    eventually_within(rest(), "every saga has ended", async || {
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
    let all = sagas().to_string();
    let forever = ["--sagas", "--lease", "3600000"];
    for (round, nth) in (1..).zip(["1", "4"]) {
        let dies = ["--begin", &all, "--crash-at", point, "--nth", nth];
        let mut dies = site.node(&[&forever[..], &dies].concat()).await;
        dies.is_killed().await;
        let lives = site.node(&forever).await;
        comes_to_rest(&site, sagas() * round).await;
        lives.stop().await;
    }
}

#[tokio::test]
async fn a_process_that_slept_beyond_its_leases_changes_nothing_of_sagas_that_others_took() {
    let site = open().await;
    let all = sagas().to_string();
    let lease = ["--sagas", "--lease", "1000"];
    // Its moves are committed, and it has not heard of that.
    let sleeps = [
        "--begin",
        &all,
        "--pause-at",
        "saga.committed",
        "--nth",
        "3",
    ];
    let sleeps = site.node(&[&lease[..], &sleeps].concat()).await;
    sleeps.sleeps().await;
    let lives = site.node(&lease).await;
    comes_to_rest(&site, sagas()).await;
    let moves = "SELECT sum(moves)::bigint FROM app.sagas_done";
    let before = site.count(moves).await;
    sleeps.resume();
    eventually_within(REST, "it notices", async || {
        sleeps.log().contains("lock lost").then_some(())
    })
    .await;
    comes_to_rest(&site, sagas()).await;
    assert_eq!(site.count(moves).await, before);
    sleeps.stop().await;
    lives.stop().await;
}

/// Every saga that is there, and each that was acknowledged is, ends as its number says, and happened
/// once.
async fn those_that_were_begun_come_to_rest(site: &Site) {
    eventually_within(rest(), "every saga has ended", async || {
        (site.count("SELECT count(*) FROM app.sagas").await == 0).then_some(())
    })
    .await;
    let none = async |what: &str, sql: &str| assert_eq!(site.count(sql).await, 0, "{what}");
    let unheard_of = "SELECT count(*) FROM app.told AS t
        WHERE kind = 'acknowledged'
            AND NOT EXISTS (SELECT FROM app.sagas_done AS s WHERE s.saga_id = t.id)";
    none("acknowledged, and not there", unheard_of).await;
    let twice = "SELECT count(*) - count(DISTINCT saga_id) FROM app.sagas_done";
    none("there twice", twice).await;
    let otherwise = "SELECT count(*) FROM app.sagas_done
        WHERE state <> CASE (story ->> 'input')::int % 3
            WHEN 0 THEN 'COMPENSATED' ELSE 'COMPLETED' END";
    none("ended otherwise", otherwise).await;
    for (kind, states) in [
        ("reserve", "'COMPLETED', 'COMPENSATED'"),
        ("release", "'COMPENSATED'"),
        ("confirm", "'COMPLETED'"),
        ("ship", "'COMPLETED'"),
    ] {
        let differ = format!(
            "SELECT count(*) FROM (
                (SELECT id FROM app.effects WHERE kind = '{kind}'
                 EXCEPT ALL SELECT saga_id FROM app.sagas_done WHERE state IN ({states}))
                UNION ALL
                (SELECT saga_id FROM app.sagas_done WHERE state IN ({states})
                 EXCEPT ALL SELECT id FROM app.effects WHERE kind = '{kind}')
            ) AS differ"
        );
        none(kind, &differ).await;
    }
    let charged = "SELECT (SELECT count(*) FROM app.provider WHERE kind = 'act')
        - (SELECT count(*) FROM app.sagas_done)";
    none("charged", charged).await;
}

/// While it begins sagas, and runs those that it has begun.
async fn killed_as_it_begins_at(point: &str) {
    let site = open().await;
    let all = sagas().to_string();
    // On a busy machine it may not have shown that it lives before it dies: then its leases expire.
    let lease = ["--sagas", "--lease", "5000"];
    for nth in ["1", "2", "9"] {
        let begin = ["--by-engine", "--begin", &all];
        let dies = [&lease[..], &begin, &["--crash-at", point, "--nth", nth]].concat();
        let mut dies = site.node(&dies).await;
        dies.is_killed().await;
        let lives = site.node(&lease).await;
        those_that_were_begun_come_to_rest(&site).await;
        lives.stop().await;
    }
    let acknowledged = "SELECT count(*) FROM app.told WHERE kind = 'acknowledged'";
    assert!(site.count(acknowledged).await > 0);
}

#[tokio::test]
async fn sagas_whose_beginner_loses_its_answers_are_begun_once_or_not_at_all() {
    let site = open().await;
    let proxy = site.proxy().await;
    let sagas = stretched("400", "4000");
    // One that was written, and whose process does not know of it, is found by its lease.
    let lease = ["--sagas", "--lease", "5000"];
    let node = [&lease[..], &["--by-engine", "--begin", sagas]].concat();
    let node = site.node_through(&proxy, &node).await;
    let told = "SELECT count(*) FROM app.told";
    let all = sagas.parse::<i64>().unwrap();
    let mut breaks = 0;
    while site.count(told).await < all {
        // sleep: a moment of work before the next break, of another length each time
        tokio::time::sleep(Duration::from_millis(fastrand::u64(20..200))).await;
        proxy.reset().await.unwrap();
        breaks += 1;
        assert!(breaks < 2_000, "it begins nothing any more");
    }
    those_that_were_begun_come_to_rest(&site).await;
    let refused = "SELECT count(*) FROM app.told WHERE kind = 'refused'";
    assert!(site.count(refused).await > 0, "no answer got lost");
    node.stop().await;
}

macro_rules! killed {
    ($how:ident: $($name:ident $point:literal;)*) => {$(
        #[tokio::test]
        async fn $name() {
            $how($point).await;
        }
    )*};
}

killed! {
    killed_as_it_begins_at:
    killed_when_the_first_step_of_a_birth_has_acted_what_was_acknowledged_ends_once "saga.acted";
    killed_before_the_commit_of_a_birth_what_was_acknowledged_ends_once "saga.written";
    killed_after_the_commit_of_a_birth_what_was_acknowledged_ends_once "saga.committed";
    killed_when_a_saga_is_born_what_was_acknowledged_ends_once "saga.moved";
}

killed! {
    killed_at:
    killed_after_a_claim_of_sagas_each_ends_as_it_should "saga.claimed";
    killed_when_steps_have_acted_and_nothing_is_written_each_saga_ends_as_it_should "saga.acted";
    killed_before_the_commit_of_a_move_each_saga_ends_as_it_should "saga.written";
    killed_after_the_commit_of_a_move_each_saga_ends_as_it_should "saga.committed";
    killed_when_a_saga_has_moved_each_ends_as_it_should "saga.moved";
    killed_between_an_intent_and_its_call_each_saga_ends_as_it_should "saga.begun";
    killed_between_a_call_and_its_record_each_saga_ends_as_it_should "saga.called";
    killed_between_a_compensation_and_its_record_each_saga_ends_as_it_should "saga.undone";
}
