//! Everything at once, in a random order.

use std::time::Duration;

use super::processes::answered_more;
use super::{LEASE, Platform};
use crate::site::stretched;

#[tokio::test]
async fn faults_of_every_kind_in_a_random_order_break_no_promise() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut dice = fastrand::Rng::with_seed(seed);
    let platform = Platform::start("combined").await;
    let mut nodes = platform.pairs().await;
    let calling = platform.callers(&nodes).call();
    for _ in 0..stretched(4, 60) {
        answered_more(&calling, 15).await;
        match dice.u8(..7) {
            0 | 1 => {
                let victim = dice.usize(..nodes.len());
                nodes[victim].replace(&platform).await;
                calling.knows(&nodes);
            }
            2 => {
                let sleeper = &nodes[dice.usize(..nodes.len())];
                sleeper.pause();
                platform.proxy.reset().await.unwrap();
                // sleep: it has to be gone for longer than its lease.
                tokio::time::sleep(LEASE + LEASE / 2).await;
                sleeper.resume();
            }
            3 => {
                platform.stack.postgres.kill().await.unwrap();
                platform.stack.postgres.start().await.unwrap();
            }
            4 => {
                platform.stack.nats.kill().await.unwrap();
                platform.proxy.reset().await.unwrap();
                platform.stack.nats.start().await.unwrap();
            }
            5 => {
                platform.stack.nats.pause().await.unwrap();
                let victim = dice.usize(..nodes.len());
                nodes[victim].kill().await;
                // sleep: the broker has to be away while the other one starts.
                tokio::time::sleep(Duration::from_secs(1)).await;
                platform.stack.nats.resume().await.unwrap();
                let service = nodes[victim].service;
                nodes[victim] = platform.node(service).await;
                calling.knows(&nodes);
            }
            _ => platform.proxy.reset().await.unwrap(),
        }
    }
    let decided = calling.stop().await;
    platform.keeps_its_promises(&decided, &nodes).await;
}
