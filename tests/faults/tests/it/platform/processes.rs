//! Processes that are killed, paused beyond their lease, and replaced under load, while users follow
//! their inboxes.

use super::load::Calling;
use super::{LEASE, Node, Platform};
use crate::site::stretched;

/// Waits until callers have been answered so many times more: what was broken is felt by then.
pub(super) async fn answered_more(calling: &Calling, more: usize) {
    let wanted = calling.decided() + more;
    let what = format!("{wanted} requests are decided");
    tasuki_testkit::eventually_within(std::time::Duration::from_secs(60), &what, async || {
        (calling.decided() >= wanted).then_some(())
    })
    .await;
}

#[tokio::test]
async fn killed_processes_lose_nothing_that_was_answered_and_double_nothing() {
    let platform = Platform::start("kills").await;
    let mut nodes = platform.pairs().await;
    let calling = platform.callers(&nodes).call();
    let following = platform.followers(&nodes).await;
    for round in 0..stretched(4, 60) {
        answered_more(&calling, 20).await;
        let victim = round % nodes.len();
        nodes[victim].replace(&platform).await;
        calling.knows(&nodes);
        following.knows(&nodes);
    }
    let decided = calling.stop().await;
    platform.keeps_its_promises(&decided, &nodes).await;
    following.missed_nothing(&platform).await;
}

#[tokio::test]
async fn paused_processes_lose_their_leases_and_double_nothing_when_they_go_on() {
    let platform = Platform::start("pauses").await;
    let nodes = platform.pairs().await;
    let calling = platform.callers(&nodes).call();
    for round in 0..stretched(4, 20) {
        answered_more(&calling, 20).await;
        let sleeper: &Node = &nodes[round % nodes.len()];
        sleeper.pause();
        // sleep: it has to be gone for longer than its lease.
        tokio::time::sleep(LEASE + LEASE / 2).await;
        sleeper.resume();
    }
    let decided = calling.stop().await;
    platform.keeps_its_promises(&decided, &nodes).await;
}

#[tokio::test]
async fn rolling_restarts_under_load_give_no_answer_that_a_client_cant_act_on() {
    let platform = Platform::start("rolling").await;
    let mut nodes = platform.pairs().await;
    let calling = platform.callers(&nodes).call();
    let following = platform.followers(&nodes).await;
    for round in 0..stretched(4, 20) {
        answered_more(&calling, 20).await;
        // The next one first, as an orchestrator does it.
        let service = nodes[0].service;
        let next = platform.node(service).await;
        nodes.push(next);
        let leaver = nodes.remove(0);
        // Nobody knows at once that it leaves: it is asked until it is gone.
        calling.knows_also(&nodes, &leaver);
        leaver.stop().await;
        calling.knows(&nodes);
        following.knows(&nodes);
        assert_eq!(nodes.len(), 4, "round {round}");
    }
    let decided = calling.stop().await;
    platform.keeps_its_promises(&decided, &nodes).await;
    following.missed_nothing(&platform).await;
}
