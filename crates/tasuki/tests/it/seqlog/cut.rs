//! Ticks that are dropped at any await lose nothing and double nothing.

use tasuki_testkit::eventually;

use super::super::dropped::{ROUNDS, after, no_transaction_is_left};
use super::*;

#[tokio::test]
async fn a_sequencer_that_is_cut_anywhere_loses_and_doubles_nothing() {
    let bench = Bench::new().await;
    let sequencer = bench.sequencer().batch(1);
    for polls in 0..ROUNDS * 3 {
        bench.append("a b c").await;
        let _cut = after(polls % 40, sequencer.tick()).await;
    }
    eventually("all is numbered", async || {
        drain(&sequencer).await.unwrap();
        (bench.unnumbered().await == 0).then_some(())
    })
    .await;
    let words = bench.entries().await;
    assert_eq!(words.split(' ').count(), ROUNDS * 9);
    no_transaction_is_left(bench.pool()).await;
}

#[tokio::test]
async fn a_consumer_that_is_cut_anywhere_misses_and_repeats_nothing() {
    let bench = Bench::new().await;
    let world = World::default();
    let follower = bench.follower(&world).batch(2);
    for polls in 0..ROUNDS * 3 {
        bench.write("a b").await;
        let _cut = after(polls % 40, follower.tick()).await;
    }
    drain(&follower).await.unwrap();
    // What was cut at its commit may still be on its way.
    no_transaction_is_left(bench.pool()).await;
    drain(&follower).await.unwrap();
    let entries = bench.entries().await;
    assert_eq!(bench.seen().await, entries);
    assert_eq!(entries.split(' ').count(), ROUNDS * 6);
}
