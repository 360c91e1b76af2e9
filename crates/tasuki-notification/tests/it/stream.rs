//! The live stream: no gap and no repeat, wherever the client reconnects.

use std::time::Duration;

use futures_util::{Stream, StreamExt};
use tasuki_testkit::{TestHost, eventually};
use tokio::time::timeout;

use crate::support::{World, granted};

/// The numbers that a stream tells, as they come.
async fn follow(
    world: &World,
    host: &TestHost,
    after: Option<i64>,
) -> impl Stream<Item = i64> + Unpin {
    let client = reqwest::Client::new();
    let url = format!("http://{}/v1/users/u/notifications/stream", host.api);
    let mut request = client.get(url).bearer_auth(&world.key);
    if let Some(after) = after {
        request = request.header("Last-Event-ID", after.to_string());
    }
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let chunks = Box::pin(futures_util::stream::unfold(
        response,
        async |mut response| {
            let chunk = response.chunk().await.ok().flatten()?;
            Some((String::from_utf8_lossy(&chunk).into_owned(), response))
        },
    ));
    Box::pin(chunks.flat_map(|text| {
        let told = text.split("\n\n").filter(|event| event.contains("data:"));
        let ids: Vec<i64> = told
            .flat_map(str::lines)
            .filter_map(|line| line.strip_prefix("id: ").or(line.strip_prefix("id:")))
            .filter_map(|id| id.trim().parse().ok())
            .collect();
        futures_util::stream::iter(ids)
    }))
}

async fn next(stream: &mut (impl Stream<Item = i64> + Unpin)) -> Option<i64> {
    timeout(Duration::from_secs(20), stream.next())
        .await
        .unwrap()
}

#[tokio::test]
async fn what_comes_is_told_at_once_also_by_a_process_that_did_not_deliver_it() {
    let world = World::start().await;
    let second = world.another().await;
    world.prefer("u", &["in-app"]).await;
    let mut here = follow(&world, &world.host, None).await;
    let mut there = follow(&world, &second, None).await;
    for number in 1..=5 {
        world.tell(&granted("u", &format!("s{number}"), 1)).await;
        assert_eq!(next(&mut here).await, Some(number));
        assert_eq!(next(&mut there).await, Some(number));
    }
}

#[tokio::test]
async fn a_client_that_resumes_elsewhere_gets_what_it_missed_and_nothing_twice() {
    let world = World::start().await;
    let second = world.another().await;
    world.prefer("u", &["in-app"]).await;
    let mut stream = follow(&world, &world.host, Some(0)).await;
    for number in 1..=3 {
        world.tell(&granted("u", &format!("a{number}"), 1)).await;
    }
    assert_eq!(next(&mut stream).await, Some(1));
    drop(stream);
    // While nobody follows.
    for number in 1..=150 {
        world.tell(&granted("u", &format!("b{number}"), 1)).await;
    }
    let mut resumed = follow(&world, &second, Some(1)).await;
    let feed = async {
        for number in 1..=20 {
            world.tell(&granted("u", &format!("c{number}"), 1)).await;
        }
    };
    let read = async {
        for wanted in 2..=173 {
            assert_eq!(next(&mut resumed).await, Some(wanted));
        }
    };
    tokio::join!(feed, read);
}

#[tokio::test]
async fn a_process_that_stops_ends_its_streams_and_another_goes_on_without_a_gap() {
    let world = World::start().await;
    let second = world.another().await;
    world.prefer("u", &["in-app"]).await;
    let mut stream = follow(&world, &world.host, Some(0)).await;
    world.tell(&granted("u", "a", 1)).await;
    assert_eq!(next(&mut stream).await, Some(1));
    world.host.phases.stop();
    world.tell(&granted("u", "b", 1)).await;
    let mut last = 1;
    while let Some(number) = next(&mut stream).await {
        last = number;
    }
    let mut resumed = follow(&world, &second, Some(last)).await;
    world.tell(&granted("u", "c", 1)).await;
    for wanted in last + 1..=3 {
        assert_eq!(next(&mut resumed).await, Some(wanted));
    }
}

#[tokio::test]
async fn a_stream_ends_after_its_time_and_is_resumed_without_a_gap() {
    let world = World::with(|config| {
        config
            .with_value("notification.live-stream.lifetime", "1s")
            .unwrap()
    })
    .await;
    world.prefer("u", &["in-app"]).await;
    world.tell(&granted("u", "a", 1)).await;
    let shown = "SELECT count(*) FROM notification.notifications_sent";
    world.counts(1, shown).await;
    let mut stream = follow(&world, &world.host, Some(0)).await;
    assert_eq!(next(&mut stream).await, Some(1));
    assert_eq!(next(&mut stream).await, None, "its time is over");
    world.tell(&granted("u", "b", 1)).await;
    let mut resumed = follow(&world, &world.host, Some(1)).await;
    assert_eq!(next(&mut resumed).await, Some(2));
}

#[tokio::test]
async fn more_streams_than_allowed_are_refused_until_one_is_closed() {
    let world = World::with(|config| {
        config
            .with_value("notification.live-stream.per-user", 1)
            .unwrap()
            .with_value("notification.live-stream.per-process", 2)
            .unwrap()
    })
    .await;
    let ask = async |user: &str| {
        let api = world.host.api;
        let url = format!("http://{api}/v1/users/{user}/notifications/stream");
        let request = reqwest::Client::new().get(url).bearer_auth(&world.key);
        request.send().await.unwrap()
    };
    world.prefer("u", &["in-app"]).await;
    let first = ask("u").await;
    assert_eq!(first.status(), 200);
    let refused = ask("u").await;
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers()["retry-after"], "10");
    let body: serde_json::Value = refused.json().await.unwrap();
    assert_eq!(body["code"], "TOO_MANY_REQUESTS");

    let _other = ask("v").await;
    let full = ask("w").await;
    assert_eq!(full.status(), 503);
    assert_eq!(full.headers()["retry-after"], "10");
    let body: serde_json::Value = full.json().await.unwrap();
    assert_eq!(body["code"], "UNAVAILABLE");

    drop(first);
    // That somebody has left is heard at the second write.
    let mut told = 0;
    eventually("there is room again", async || {
        told += 1;
        world.tell(&granted("u", &format!("s{told}"), 1)).await;
        (ask("u").await.status() == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_last_event_id_that_is_none_is_refused() {
    let world = World::start().await;
    for bad in ["x", "-1", ""] {
        let client = reqwest::Client::new();
        let url = format!("http://{}/v1/users/u/notifications/stream", world.host.api);
        let request = client
            .get(url)
            .bearer_auth(&world.key)
            .header("Last-Event-ID", bad);
        assert_eq!(request.send().await.unwrap().status(), 400, "{bad:?}");
    }
}

#[tokio::test]
async fn a_number_above_the_end_of_the_inbox_is_not_waited_for() {
    let world = World::start().await;
    world.prefer("u", &["in-app"]).await;
    let mut stream = follow(&world, &world.host, Some(1000)).await;
    world.tell(&granted("u", "a", 1)).await;
    assert_eq!(next(&mut stream).await, Some(1));
}

#[tokio::test]
async fn a_client_that_was_away_for_longer_than_notifications_are_kept_goes_on_with_what_is_new() {
    let world = World::start().await;
    world.prefer("u", &["in-app"]).await;
    for number in 1..=5 {
        world.tell(&granted("u", &format!("s{number}"), 1)).await;
    }
    let shown = "SELECT count(*) FROM notification.notifications_sent";
    world.counts(5, shown).await;
    world
        .execute("DELETE FROM notification.notifications_sent")
        .await;
    let mut stream = follow(&world, &world.host, Some(2)).await;
    world.tell(&granted("u", "new", 1)).await;
    assert_eq!(next(&mut stream).await, Some(6));
}
