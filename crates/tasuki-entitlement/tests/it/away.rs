//! When what entitlement stands on is away.

use futures_util::future::join_all;
use http::StatusCode;
use tasuki_stack::Nats;
use tasuki_testkit::{breakable, eventually};

use crate::support::{World, body, send};

#[tokio::test]
async fn without_a_free_connection_the_answer_is_503_and_the_same_key_succeeds_later() {
    let world = World::with(|config| {
        let few = config.with_value("database.max-connections", 2).unwrap();
        few.with_value("database.acquire-timeout", "200ms").unwrap()
    })
    .await;
    world.grant("warm", &body("u", "warm")).await;
    let pool = &world.tables.database.requests;
    let held = [pool.acquire().await.unwrap(), pool.acquire().await.unwrap()];

    let refused = world.grant("k", &body("u", "s")).await;
    assert_eq!(
        refused.status,
        StatusCode::SERVICE_UNAVAILABLE,
        "{}",
        refused.text
    );
    assert_eq!(refused.code(), "UNAVAILABLE");
    assert_eq!(refused.headers["retry-after"], "1");

    drop(held);
    let granted = eventually("a connection is free", async || {
        let answer = world.grant("k", &body("u", "s")).await;
        (answer.status == StatusCode::OK).then_some(answer)
    })
    .await;
    assert_eq!(granted.json()["version"], 1);
}

#[tokio::test]
async fn grants_are_served_while_the_broker_is_away_and_told_when_it_comes() {
    let nats = Nats::start(&breakable("entitlement-broker")).await.unwrap();
    nats.kill().await.unwrap();
    let world = World::with(|config| config.with_value("nats.url", nats.url()).unwrap()).await;

    let granted = world.grant("k", &body("u", "s")).await;
    assert_eq!(granted.status, StatusCode::OK);
    let ready = world.host.get("/readyz").await;
    assert_eq!(ready.status, StatusCode::OK, "{}", ready.text);
    assert_eq!(
        world
            .count("SELECT count(*) FROM entitlement.outbox_events")
            .await,
        1
    );

    nats.start().await.unwrap();
    world.drained().await;
    let attempts =
        world.count("SELECT sum(attempt_count)::bigint FROM entitlement.outbox_published");
    assert_eq!(
        attempts.await,
        0,
        "a broker that is away costs an event nothing"
    );
}

#[tokio::test]
async fn requests_that_run_when_the_process_stops_are_answered() {
    let world = World::start().await;
    let asked = join_all((0..100).map(|index| {
        let request = world
            .raw(http::Method::POST, "/v1/entitlements/grants")
            .bearer_auth(&world.key)
            .header("Idempotency-Key", format!("k{index}"))
            .json(&body("u", &format!("s{index}")));
        send(request)
    }));
    let stop = async {
        eventually("the first is done", async || {
            let done = world
                .count("SELECT count(*) FROM entitlement.entitlements")
                .await;
            (done > 0).then_some(())
        })
        .await;
        world.host.phases.stop();
    };
    let (answers, ()) = tokio::join!(asked, stop);
    for answer in answers {
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    }
    assert_eq!(
        world
            .count("SELECT count(*) FROM entitlement.entitlements")
            .await,
        100
    );
}
