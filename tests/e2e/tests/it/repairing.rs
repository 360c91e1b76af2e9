//! What operators do about outboxes, all of them: what the broker lost is sent again, what is old is
//! removed, what is dead is sent again. A command that does nothing fails here.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "helpers of tests"
)]

use rustix::process::Signal;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgPool};
use tasuki_testkit::eventually;

use crate::relaying::relay;
use crate::shopping::bought;
use crate::support::{Up, World};
use crate::walk::grant;

const SERVICES: [&str; 3] = ["entitlement", "shop", "community"];
/// Where their outboxes are, and where these publish to.
const SCHEMAS: [&str; 3] = ["entitlement", "shop", "cn_relay"];
const STREAMS: [&str; 3] = ["entitlement-events", "shop-events", "community-events"];

/// A platform that publishes nothing, and does not see by itself what the broker lost.
async fn silent(world: &World) -> Up {
    let mut command = world.command(&["up"]);
    for service in SERVICES {
        let name = service.to_uppercase();
        command.env(format!("TASUKI_{name}__OUTBOX__ENABLED"), "false");
    }
    world.ready(world.start(command)).await
}

/// The numbers that a command answers for the outbox of each service.
async fn of_each(world: &World, words: &[&str], number: &str) -> [i64; 3] {
    let told = world.run(world.joined(words)).await.json();
    let services: Vec<_> = told.as_array().unwrap().iter().collect();
    let services: Vec<_> = services.iter().map(|it| &it["service"]).collect();
    assert_eq!(services, SERVICES, "{told}");
    [0, 1, 2].map(|at| told[at][number].as_i64().unwrap())
}

async fn waiting(world: &World) -> [i64; 3] {
    of_each(world, &["outbox", "list", "--json"], "pending").await
}

/// How many published events each outbox has.
async fn published(pool: &PgPool) -> [i64; 3] {
    let counts = SCHEMAS.map(|schema| format!("(SELECT count(*) FROM {schema}.outbox_published)"));
    let sql = AssertSqlSafe(format!("SELECT ARRAY[{}]", counts.join(", ")));
    let all: Vec<i64> = sqlx::query_scalar(sql).fetch_one(pool).await.unwrap();
    all.try_into().unwrap()
}

/// Authors are told of labels.
async fn labelled(world: &World) {
    for author in ["ab".repeat(32), "cd".repeat(32)] {
        let target = format!("pubkey:{author}");
        let add = ["label", "add", &target, "--label", "spam", "--for", "1d"];
        let why = ["--topic", "run", "--reason", "nothing but spam"];
        relay(world, &[&add[..], &why].concat()).await.ok();
    }
}

#[tokio::test]
async fn what_is_old_is_removed_and_what_the_broker_lost_is_sent_again_from_every_outbox() {
    let world = World::new();
    let mut up = world.up().await;
    grant(&up, "ann").await;
    bought(&up, "bob").await;
    labelled(&world).await;
    let pool = up.database().await;
    eventually("everything is published", async || {
        (waiting(&world).await == [0; 3]).then_some(())
    })
    .await;
    let before = published(&pool).await;
    the_old_ones_are_removed(&world, &pool).await;
    let left = published(&pool).await;
    assert_eq!(left, before.map(|events| events - 1));
    assert!(left.iter().all(|events| *events > 0), "{left:?}");

    pool.close().await;
    up.process.signal(Signal::TERM);
    assert_eq!(up.process.ended().await.code, Some(0));
    let up = silent(&world).await;
    for stream in STREAMS {
        up.jetstream().await.delete_stream(stream).await.unwrap();
    }
    let reconcile = ["outbox", "reconcile", "--json"];
    assert_eq!(of_each(&world, &reconcile, "sent_again").await, left);
    assert_eq!(waiting(&world).await, left);
    assert_eq!(of_each(&world, &reconcile, "sent_again").await, [0; 3]);
    what_waits_is_listed(&world, left).await;
    let text = world.run(world.joined(&reconcile[..2])).await.ok();
    assert!(
        text.contains("shop: the broker had lost 0 events"),
        "{text}"
    );
}

async fn what_waits_is_listed(world: &World, left: [i64; 3]) {
    let list = ["outbox", "list", "--waiting", "--json"];
    let waiting = world.run(world.joined(&list)).await.json();
    let waiting = waiting.as_array().unwrap();
    let of = |service| waiting.iter().filter(|it| it["service"] == service).count();
    assert_eq!(SERVICES.map(of).map(|it| i64::try_from(it).unwrap()), left);
    assert!(
        waiting.iter().all(|it| it["place"] == "waiting"),
        "{waiting:?}"
    );
    let few = ["outbox", "list", "--waiting", "--limit", "1"];
    let few = world.run(world.joined(&few)).await.ok();
    assert_eq!(few.lines().count(), 4, "the oldest of each: {few}");
    assert!(
        few.contains(waiting[0]["event_id"].as_str().unwrap()),
        "{few}"
    );
}

/// One event of each outbox is three hours old.
async fn the_old_ones_are_removed(world: &World, pool: &PgPool) {
    for schema in SCHEMAS {
        let sql = format!(
            "UPDATE {schema}.outbox_published SET published_at = now() - interval '3 hours'
             WHERE event_id = (
                SELECT event_id FROM {schema}.outbox_published ORDER BY event_id LIMIT 1
             )"
        );
        let aged = sqlx::query(AssertSqlSafe(sql)).execute(pool).await.unwrap();
        assert_eq!(aged.rows_affected(), 1);
    }
    let cleanup = ["outbox", "cleanup", "--older-than", "2h", "--json"];
    assert_eq!(of_each(world, &cleanup, "rows").await, [1; 3]);
    assert_eq!(of_each(world, &cleanup, "rows").await, [0; 3]);
}

#[tokio::test]
async fn an_event_that_the_broker_refused_is_dead_until_somebody_sends_it_again() {
    let world = World::new();
    let mut command = world.command(&["up"]);
    command.env("TASUKI_ENTITLEMENT__OUTBOX__MAX_ATTEMPTS", "1");
    let up = world.ready(world.start(command)).await;
    let broker = up.jetstream().await;
    let stream = broker.get_stream("entitlement-events").await.unwrap();
    let fine = stream.cached_info().config.clone();
    let mut narrow = fine.clone();
    narrow.max_message_size = 1;
    broker.update_stream(narrow).await.unwrap();
    grant(&up, "ann").await;
    let dead = eventually("it is dead", async || {
        let list = ["dlq", "list", "--source", "outbox_events", "--json"];
        let dead = world.run(world.joined(&list)).await.json();
        dead[0]["source_id"].as_str().map(str::to_owned)
    })
    .await;
    let show = ["outbox", "show", &dead, "--json"];
    let place = async || world.run(world.joined(&show)).await.json()["place"].clone();
    assert_eq!(place().await, "dead");

    broker.update_stream(fine).await.unwrap();
    let retry = ["outbox", "retry", &dead, "--json"];
    let retried = world.run(world.joined(&retry)).await.json();
    assert_eq!(retried, json!({ "retried": 1, "already": [], "not": [] }));
    eventually("it is published", async || {
        (place().await == "published").then_some(())
    })
    .await;
    let again: Value = world.run(world.joined(&retry)).await.json();
    assert_eq!(again["retried"], 0);
    assert!(again["already"][0].as_str().unwrap().contains("published"));
    eventually("it is told", async || {
        let verify = ["verify", "--json", "--settle", "0s"];
        let found: Value =
            serde_json::from_str(&world.run(world.joined(&verify)).await.out).ok()?;
        (found["sent"] == 1 && found["problem_count"] == 0).then_some(())
    })
    .await;
}
