//! A stop that takes long, and the signal that ends the patience.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use tasuki_testkit::eventually;

use crate::serving::addresses;
use crate::support::World;

/// Much shorter than the drain delay below, much longer than an exit.
const AT_ONCE: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_second_signal_exits_at_once_with_130() {
    let world = World::new();
    let patient = |mut command: std::process::Command| {
        command.env("TASUKI_SHUTDOWN__DRAIN_DELAY", "30s");
        command
    };
    let up = world.start(patient(world.command(&["up"])));
    let mut up = world.ready(up).await;
    let mut serve = world.start(patient(world.joined(&["serve", "system"])));
    let (api, _) = addresses(&mut serve).await;
    let ready = [format!("{}/readyz", api.unwrap()), up.url("/readyz")];
    world.answers(&ready[0], "", 200).await;

    for (process, ready) in [&mut serve, &mut up.process].into_iter().zip(ready) {
        process.signal(Signal::TERM);
        // Readiness falls while the listener still answers.
        world.answers(&ready, "", 503).await;
        assert!(process.exited().is_none());
        let began = Instant::now();

        process.signal(Signal::TERM);

        let answer = process.ended().await;
        assert_eq!(answer.code, Some(130), "{answer:?}");
        assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    }
    assert!(!world.env_path().exists());
    eventually("all servers are gone", async || {
        world.holders().is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_signal_ends_a_serve_that_still_waits_for_its_database() {
    let world = World::new();
    let mut command = world.command(&["serve", "system"]);
    for (name, address) in [
        ("TASUKI_DATABASE__URL", "postgres://u:p@127.0.0.1:1/d"),
        ("TASUKI_NATS__URL", "nats://127.0.0.1:1"),
        ("TASUKI_REDIS__URL", "redis://127.0.0.1:1"),
        ("TASUKI_DATABASE__START_TIMEOUT", "10m"),
    ] {
        command.env(name, address);
    }
    let mut serve = world.start(command);
    eventually("it says what it waits for", async || {
        let told = serve.stderr().contains("waiting for the database");
        told.then_some(())
    })
    .await;

    serve.signal(Signal::TERM);

    assert_eq!(serve.ended().await.code, Some(130));
}
