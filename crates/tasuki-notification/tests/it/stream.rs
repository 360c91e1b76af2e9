//! The live stream: no gap and no repeat, wherever the client reconnects.

use std::time::Duration;

use futures_util::{Stream, StreamExt};
use tasuki_testkit::TestHost;
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
