//! A broker that goes away, comes back, and has forgotten.

use std::path::Path;
use std::time::Duration;

use async_nats::jetstream::stream::ClusterInfo;
use tasuki_stack::{Nats, NatsCluster};
use tasuki_testkit::{breakable, eventually};

use crate::site::{Site, stretched};

const WAITING: &str = "SELECT count(*) FROM app.outbox_events";
const ATTEMPTS: &str = "SELECT coalesce(sum(attempt_count), 0) FROM app.outbox_events";
const PUBLISHED: &str = "SELECT count(*) FROM app.outbox_published";

async fn published(site: &Site, events: i64) {
    eventually("they are published", async || {
        (site.count(PUBLISHED).await == events).then_some(())
    })
    .await;
}

#[tokio::test]
async fn while_the_broker_is_away_nothing_fails_and_it_resumes_within_seconds_of_its_return() {
    let nats = Nats::start(&breakable("faults-away")).await.unwrap();
    let site = Site::on(&nats.url()).await;
    let node = site.node(&[]).await;
    site.enqueue(100, 0).await;
    site.comes_to_rest(100, 0).await;

    nats.kill().await.unwrap();
    site.enqueue(500, 10).await;
    // sleep: the outage itself
    tokio::time::sleep(Duration::from_secs(stretched(4, 240))).await;
    assert_eq!(site.count(WAITING).await, 500);
    assert_eq!(site.count(ATTEMPTS).await, 0, "attempts of innocent events");

    nats.start().await.unwrap();
    site.rests_within(Duration::from_secs(15), 600, 10).await;
    node.stop().await;
}

#[tokio::test]
async fn a_stream_that_is_deleted_loses_no_event() {
    let nats = Nats::start(&breakable("faults-deleted")).await.unwrap();
    let site = Site::on(&nats.url()).await;
    let mut node = site.node(&[]).await;
    site.enqueue(300, 0).await;
    published(&site, 300).await;
    // Whatever the consumer has not seen yet goes with the stream.
    node.kill().await;
    let client = nats.connect_options().connect(nats.url()).await.unwrap();
    let jetstream = async_nats::jetstream::new(client);
    jetstream.delete_stream(&site.stream).await.unwrap();
    site.enqueue(50, 0).await;
    // The first that finds out dies over it.
    let mut dies = site.node(&["--crash-at", "outbox.sent_again"]).await;
    dies.is_killed().await;
    let node = site.node(&[]).await;
    site.comes_to_rest(350, 0).await;
    node.stop().await;
}

#[tokio::test]
async fn a_store_that_is_rolled_back_to_an_older_copy_loses_no_event() {
    let nats = Nats::start(&breakable("faults-rolled-back")).await.unwrap();
    let site = Site::on(&nats.url()).await;
    let mut node = site.node(&[]).await;
    site.enqueue(200, 0).await;
    site.comes_to_rest(200, 0).await;
    node.kill().await;
    nats.stop().await.unwrap();
    let store = nats.store();
    let copy = store.with_extension("copy");
    copy_folder(&store, &copy);

    // These are acknowledged, and some of them consumed, before the machine loses its power.
    nats.start().await.unwrap();
    let mut node = site.node(&[]).await;
    site.enqueue(200, 0).await;
    published(&site, 400).await;
    node.kill().await;
    nats.kill().await.unwrap();
    std::fs::remove_dir_all(&store).unwrap();
    std::fs::rename(&copy, &store).unwrap();

    nats.start().await.unwrap();
    site.enqueue(300, 0).await; // Over the sequences of the lost ones.
    // The first that finds out dies over it.
    let mut dies = site.node(&["--crash-at", "outbox.compared"]).await;
    dies.is_killed().await;
    let node = site.node(&[]).await;
    site.comes_to_rest(700, 0).await;
    node.stop().await;
}

#[tokio::test]
async fn when_the_leader_of_a_replicated_stream_is_killed_the_others_go_on() {
    let cluster = NatsCluster::start(&breakable("faults-leader"))
        .await
        .unwrap();
    let site = Site::on(&cluster.urls().join(",")).await;
    let arguments = ["--replicas", "3"];
    let nodes = [site.node(&arguments).await, site.node(&arguments).await];
    let mut events = 0;
    for _ in 0..stretched(1, 10) {
        // A group that is still being made has nobody yet who could take over.
        site.enqueue(100, 0).await;
        events += 100;
        site.comes_to_rest(events, 0).await;
        is_whole(&cluster, &site.stream).await;
        site.enqueue(300, 0).await;
        events += 300;
        let leader = eventually("the stream has a leader", async || {
            cluster.leader_of(&site.stream).await.unwrap_or_default()
        })
        .await;
        leader.kill().await.unwrap();
        site.enqueue(300, 0).await;
        events += 300;
        site.comes_to_rest(events, 0).await;
        leader.start().await.unwrap();
    }
    site.no_attempt_failed().await;
    site.is_in_order().await;
    for node in nodes {
        node.stop().await;
    }
}

/// Waits until every replica of the stream, and of its durable, has all that its leader has.
async fn is_whole(cluster: &NatsCluster, stream: &str) {
    let node = cluster.nodes().first().unwrap();
    let connecting = node.connect_options().connect(cluster.urls()).await;
    let jetstream = async_nats::jetstream::new(connecting.unwrap());
    let is_current = |cluster: Option<&ClusterInfo>| {
        let replicas = cluster.map(|cluster| cluster.replicas.as_slice());
        replicas.is_some_and(|all| all.len() == 2 && all.iter().all(|it| it.current && !it.offline))
    };
    eventually("every replica is current", async || {
        let stream = jetstream.get_stream(stream).await.ok()?;
        let durable = stream.consumer_info("effects").await.ok()?;
        let whole = is_current(stream.cached_info().cluster.as_ref())
            && is_current(durable.cluster.as_ref());
        whole.then_some(())
    })
    .await;
}

pub(crate) fn copy_folder(from: &Path, to: &Path) {
    let status = std::process::Command::new("cp")
        .arg("-a")
        .args([from, to])
        .status();
    assert!(status.unwrap().success());
}
