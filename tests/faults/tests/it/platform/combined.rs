//! Everything at once, in a random order.

#![expect(clippy::indexing_slicing, reason = "helpers of tests")]

use std::time::Duration;

use fastrand::Rng;

use super::broker::lose_everything;
use super::database::{fill_the_disk, hold};
use super::load::Calling;
use super::processes::answered_more;
use super::{LEASE, Node, Platform};
use crate::site::stretched;

/// Longer than a lease.
const AWAY: Duration = Duration::from_secs(3);
/// Long enough to be felt.
const A_MOMENT: Duration = Duration::from_secs(1);

#[tokio::test]
async fn faults_of_every_kind_in_a_random_order_break_no_promise() {
    assert!(AWAY > LEASE);
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut dice = Rng::with_seed(seed);
    let platform = Platform::start("combined").await;
    let mut nodes = platform.pairs().await;
    let calling = platform.callers(&nodes).call();
    for _ in 0..stretched(4, 60) {
        answered_more(&calling, 15).await;
        match dice.bool() {
            true => break_processes(&mut dice, &platform, &mut nodes, &calling).await,
            false => break_servers(&mut dice, &platform).await,
        }
    }
    let decided = calling.stop().await;
    platform.keeps_its_promises(&decided, &nodes).await;
}

async fn break_processes(
    dice: &mut Rng,
    platform: &Platform,
    nodes: &mut [Node],
    calling: &Calling,
) {
    let one = dice.usize(..nodes.len());
    match dice.u8(..4) {
        0 | 1 => nodes[one].replace(platform).await,
        2 => {
            nodes[one].pause();
            platform.proxy.reset().await.unwrap();
            // sleep: it has to be gone for longer than its lease.
            tokio::time::sleep(AWAY).await;
            nodes[one].resume();
        }
        _ => {
            platform.stack.nats.pause().await.unwrap();
            nodes[one].kill().await;
            // sleep: the broker has to be away while the other one starts.
            tokio::time::sleep(A_MOMENT).await;
            platform.stack.nats.resume().await.unwrap();
            nodes[one] = platform.node(nodes[one].service).await;
        }
    }
    calling.knows(nodes);
}

async fn break_servers(dice: &mut Rng, platform: &Platform) {
    let (postgres, nats) = (&platform.stack.postgres, &platform.stack.nats);
    match dice.u8(..8) {
        0 => {
            postgres.kill().await.unwrap();
            postgres.start().await.unwrap();
        }
        1 => {
            postgres.pause().await.unwrap();
            // sleep: it has to be away for longer than a lease.
            tokio::time::sleep(AWAY).await;
            postgres.resume().await.unwrap();
        }
        2 => {
            nats.kill().await.unwrap();
            platform.proxy.reset().await.unwrap();
            nats.start().await.unwrap();
        }
        3 => lose_everything(platform).await,
        4 => platform.proxy.reset().await.unwrap(),
        5 => {
            platform.proxy.refuse().await.unwrap();
            platform.proxy.reset().await.unwrap();
            // sleep: it has to stay away for a while.
            tokio::time::sleep(A_MOMENT).await;
            platform.proxy.heal().await.unwrap();
        }
        6 => {
            let held = hold(platform).await;
            // sleep: connections have to run out.
            tokio::time::sleep(AWAY).await;
            held.rollback().await.unwrap();
        }
        _ => fill_the_disk(platform).await,
    }
}
