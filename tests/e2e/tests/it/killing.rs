//! `kill -9` of `tasuki up`.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tasuki_testkit::{eventually, eventually_within};

use crate::support::{Env, World};

/// What "a few seconds" are on a loaded machine.
const FEW_SECONDS: Duration = Duration::from_secs(10);

#[tokio::test]
async fn no_server_survives_a_killed_up_and_the_next_one_finds_everything() {
    let world = World::new();
    let mut up = world.up().await;
    let create = [
        "apikey",
        "create",
        "--service",
        "system",
        "--name",
        "kept",
        "--operator",
        "--json",
    ];
    let made = world.run(world.joined(&create)).await.json();
    let credential = made["credential"].as_str().unwrap();

    up.process.signal(Signal::KILL);

    assert_eq!(up.process.ended().await.code, None);
    eventually_within(FEW_SECONDS, "all servers are gone", async || {
        world.holders().is_empty().then_some(())
    })
    .await;
    let again = world.start(world.command(&["up"]));
    // From the moment it is at work, nobody is told of servers that are dead.
    eventually("a server is starting", async || {
        (world.holders().len() > 1).then_some(())
    })
    .await;
    let told = Env::read(&world.env_path());
    let stale = told.filter(|env| env.pid("PID") != again.pid());
    assert_eq!(stale, None, "the file of the killed one is still there");
    let again = world.ready(again).await;
    for kept in [
        "SYSTEM_URL",
        "AUTH__ISSUERS__SYSTEM",
        "DATABASE_URL",
        "NATS_URL",
        "REDIS_URL",
        "OPERATOR_TOKEN",
    ] {
        assert_eq!(again.env.get(kept), up.env.get(kept), "{kept}");
    }
    for token in [credential, again.token()] {
        let reply = world.get(&again.url("/v1/status"), token).await;
        assert_eq!(reply.status, 200, "{reply:?}");
    }
    let list = ["apikey", "list", "--service", "system", "--json"];
    let listed = world.run(world.joined(&list)).await.json();
    let names: Vec<&Value> = listed.as_array().unwrap().iter().collect();
    assert!(names.iter().any(|key| key["name"] == "kept"), "{listed}");
}

#[tokio::test]
async fn an_up_that_is_killed_while_it_starts_leaves_nothing_and_can_be_started_again() {
    let world = World::new();
    let mut first = world.start(world.command(&["up"]));
    // Half-way: a server has been started, nothing is ready.
    eventually("a server is starting", async || {
        (world.holders().len() > 1).then_some(())
    })
    .await;

    first.signal(Signal::KILL);

    assert_eq!(first.ended().await.code, None);
    eventually_within(FEW_SECONDS, "all servers are gone", async || {
        world.holders().is_empty().then_some(())
    })
    .await;
    let again = world.up().await;
    assert_eq!(world.get(&again.url("/readyz"), "").await.status, 200);
}

#[tokio::test]
async fn a_signal_while_it_starts_ends_it_with_all_it_has_started() {
    let world = World::new();
    let mut first = world.start(world.command(&["up"]));
    eventually("a server is starting", async || {
        (world.holders().len() > 1).then_some(())
    })
    .await;

    first.signal(Signal::INT);

    let answer = first.ended().await;
    assert_eq!(answer.code, Some(130), "{answer:?}");
    assert!(!world.env_path().exists());
    eventually_within(FEW_SECONDS, "all servers are gone", async || {
        world.holders().is_empty().then_some(())
    })
    .await;
}
