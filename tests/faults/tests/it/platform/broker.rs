//! The broker killed, paused, cut off, away for long, and with its data lost.

use std::time::Duration;

use tasuki_testkit::eventually_within;

use super::processes::answered_more;
use super::{LEASE, Platform};
use crate::broker::copy_folder;
use crate::site::stretched;

#[tokio::test]
async fn a_broker_that_dies_pauses_or_stays_away_delays_events_and_loses_none() {
    let platform = Platform::start("broker").await;
    let nodes = platform.pairs().await;
    let calling = platform.callers(&nodes).call();
    for _ in 0..stretched(1, 2) {
        answered_more(&calling, 30).await;
        platform.stack.nats.kill().await.unwrap();
        platform.stack.nats.start().await.unwrap();
        answered_more(&calling, 30).await;
        platform.stack.nats.pause().await.unwrap();
        // sleep: it has to be away for longer than a lease.
        tokio::time::sleep(LEASE + LEASE / 2).await;
        platform.stack.nats.resume().await.unwrap();
        answered_more(&calling, 30).await;
        platform.stack.nats.stop().await.unwrap();
        // sleep: it has to stay away; grants go on meanwhile.
        tokio::time::sleep(stretched(Duration::from_secs(5), Duration::from_secs(300))).await;
        platform.stack.nats.start().await.unwrap();
        answered_more(&calling, 30).await;
    }
    let decided = calling.stop().await;
    platform.keeps_its_promises(&decided, &nodes).await;
}

#[tokio::test]
async fn a_broker_that_is_cut_off_from_the_processes_delays_events_and_loses_none() {
    let platform = Platform::start("cut-off").await;
    let nodes = platform.pairs().await;
    let calling = platform.callers(&nodes).call();
    for _ in 0..stretched(1, 8) {
        // Whatever is under way when a connection ends was taken by the broker, or was not.
        for _ in 0..5 {
            answered_more(&calling, 20).await;
            platform.broker.reset().await.unwrap();
        }
        answered_more(&calling, 20).await;
        platform.broker.refuse().await.unwrap();
        platform.broker.reset().await.unwrap();
        // sleep: it has to stay away for longer than a lease; grants go on meanwhile.
        tokio::time::sleep(stretched(LEASE + LEASE / 2, Duration::from_secs(60))).await;
        answered_more(&calling, 20).await;
        platform.broker.heal().await.unwrap();
        answered_more(&calling, 20).await;
    }
    let decided = calling.stop().await;
    platform.keeps_its_promises(&decided, &nodes).await;
}

#[tokio::test]
async fn a_broker_that_lost_everything_gets_it_again_from_the_outbox() {
    let platform = Platform::start("lost").await;
    let nodes = platform.pairs().await;
    let calling = platform.callers(&nodes).call();
    for _ in 0..stretched(1, 6) {
        answered_more(&calling, 40).await;
        lose_everything(&platform).await;
    }
    answered_more(&calling, 40).await;
    let decided = calling.stop().await;
    platform.keeps_its_promises(&decided, &nodes).await;
}

#[tokio::test]
async fn a_broker_that_is_rolled_back_to_an_older_copy_gets_from_the_outbox_what_it_lost() {
    let platform = Platform::start("rolled-back").await;
    let nodes = platform.pairs().await;
    let calling = platform.callers(&nodes).call();
    for _ in 0..stretched(1, 6) {
        answered_more(&calling, 40).await;
        let nats = &platform.stack.nats;
        nats.stop().await.unwrap();
        let store = nats.store();
        let copy = store.with_extension("copy");
        copy_folder(&store, &copy);
        nats.start().await.unwrap();
        // Some of these are told, and then the broker knows nothing of them. Others get their numbers.
        answered_more(&calling, 40).await;
        is_told_more(&platform, 20).await;
        nats.kill().await.unwrap();
        std::fs::remove_dir_all(&store).unwrap();
        std::fs::rename(&copy, &store).unwrap();
        nats.start().await.unwrap();
    }
    answered_more(&calling, 40).await;
    let decided = calling.stop().await;
    platform.keeps_its_promises(&decided, &nodes).await;
}

/// Waits until so many more events were taken in.
async fn is_told_more(platform: &Platform, more: i64) {
    let taken = async || {
        let sql = "SELECT count(*) FROM notification.processed_events";
        let taken = sqlx::query_scalar::<_, i64>(sql).fetch_one(&platform.pool);
        taken.await.unwrap()
    };
    let wanted = taken().await + more;
    eventually_within(Duration::from_secs(60), "more is told", async || {
        (taken().await >= wanted).then_some(())
    })
    .await;
}

/// Kills the broker, removes what it has stored, though not the folder, and starts it again.
pub(super) async fn lose_everything(platform: &Platform) {
    platform.stack.nats.kill().await.unwrap();
    for entry in std::fs::read_dir(platform.stack.nats.store()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            std::fs::remove_dir_all(path).unwrap();
        }
    }
    platform.stack.nats.start().await.unwrap();
}
