//! `tasuki serve` beside a running `tasuki up`.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "helpers of tests"
)]

use rustix::process::Signal;
use serde_json::Value;
use tasuki_testkit::eventually;

use crate::support::{Process, Up, World};

/// The addresses that a `serve` says it listens on: API and internal.
pub(crate) async fn addresses(serve: &mut Process) -> (Option<String>, String) {
    eventually("serve says where it listens", async || {
        assert!(serve.exited().is_none(), "serve ended: {}", serve.stderr());
        let log = serve.stderr();
        let lines = log
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        let line: Value = lines
            .into_iter()
            .find(|line: &Value| line["message"] == "serving")?;
        let url = |name: &str| {
            let text = line[name].as_str()?;
            let address = text.trim_start_matches("Some(").trim_end_matches(')');
            (address != "None").then(|| format!("http://{address}"))
        };
        Some((url("api"), url("internal")?))
    })
    .await
}

/// The processes of the system service that `/v1/status` lists.
async fn processes(world: &World, up: &Up) -> Vec<String> {
    let status = world.get(&up.url("/v1/status"), up.token()).await.body;
    let instances = status["instances"].as_array().unwrap().iter();
    let system = instances.filter(|instance| instance["service"] == "system");
    let names = system.map(|instance| instance["process"].as_str().unwrap().to_owned());
    names.collect()
}

/// Waits until `/v1/status` lists exactly these processes.
async fn lists(world: &World, up: &Up, expected: &[&Process]) {
    let what = format!("{} instances are listed", expected.len());
    eventually(&what, async || {
        let listed = processes(world, up).await;
        let all = expected.iter().all(|process| {
            let id = format!("/{}", process.pid());
            listed.iter().any(|name| name.ends_with(&id))
        });
        (listed.len() == expected.len() && all).then_some(())
    })
    .await;
}

#[tokio::test]
async fn processes_join_a_running_platform_whole_or_in_part_and_leave_it_again() {
    let world = World::new();
    let up = world.up().await;
    lists(&world, &up, &[&up.process]).await;
    a_whole_one_is_listed_until_it_leaves(&world, &up).await;
    parts_serve_what_they_are_asked_for(&world, &up).await;
    assert_eq!(world.get(&up.url("/readyz"), "").await.status, 200);
}

async fn a_whole_one_is_listed_until_it_leaves(world: &World, up: &Up) {
    let mut serve = world.start(world.joined(&["serve", "system"]));

    let (api, internal) = addresses(&mut serve).await;
    let api = api.unwrap();
    world.answers(&format!("{api}/readyz"), "", 200).await;
    world.answers(&format!("{internal}/readyz"), "", 200).await;
    let status = format!("{api}/v1/status");
    assert_eq!(world.get(&status, up.token()).await.status, 200);
    lists(world, up, &[&up.process, &serve]).await;
    serve.signal(Signal::TERM);
    let answer = serve.ended().await;
    assert_eq!(answer.code, Some(0), "{answer:?}");
    // It took its row with it: nobody has to wait until it has aged.
    assert_eq!(processes(world, up).await.len(), 1);
}

async fn parts_serve_what_they_are_asked_for(world: &World, up: &Up) {
    let command = world.joined(&["serve", "system", "--only", "workers"]);
    let mut workers = world.start(command);
    let command = world.joined(&["serve", "system", "--only", "http"]);
    let mut http = world.start(command);

    let (api, internal) = addresses(&mut workers).await;
    assert_eq!(api, None);
    world.answers(&format!("{internal}/livez"), "", 200).await;
    world.answers(&format!("{internal}/readyz"), "", 200).await;
    let status = format!("{internal}/v1/status");
    assert_eq!(world.get(&status, up.token()).await.status, 404);
    let (api, _) = addresses(&mut http).await;
    let status = format!("{}/v1/status", api.unwrap());
    world.answers(&status, up.token(), 200).await;
    for process in [&mut workers, &mut http] {
        process.signal(Signal::TERM);
        let answer = process.ended().await;
        assert_eq!(answer.code, Some(0), "{answer:?}");
    }
}
