//! Definitions that change.

use tasuki::saga::define;

use super::forward::Paid;
use super::*;

#[tokio::test]
async fn a_saga_whose_steps_have_changed_under_its_version_is_left_to_who_has_the_old_ones() {
    let bench = Bench::new().await;
    let world = &bench.world;
    world.tell("b:act", [Answer::Abort]);
    let old = define::<u32>("order", 1)
        .local(l::<0>(world), |saga| Ok(*saga.input()))
        .wait::<Paid>(HOUR)
        .local(l::<1>(world), |saga| Ok(*saga.input()))
        .build()
        .unwrap();
    let renamed = define::<u32>("order", 1)
        .local(l::<2>(world), |saga| Ok(*saga.input()))
        .wait::<Paid>(HOUR)
        .local(l::<1>(world), |saga| Ok(*saga.input()))
        .build()
        .unwrap();
    let before = bench.process(&Registry::new().with(&old));
    let id = before.engine.begin(&old, &1).await.unwrap();
    bench.until(id, &State::Step("paid".to_owned())).await;
    before.stop().await;

    let wrong = bench.process_of(&Registry::new().with(&renamed), bench.settings("two"));
    assert!(bench.pay(id, "yes").await);
    let refused = "SELECT count(*) FROM app.sagas WHERE last_error LIKE '%next version%'";
    eventually("it was looked at, and put back", async || {
        (bench.scalar(refused).await == 1).then_some(())
    })
    .await;
    wrong.stop().await;
    assert_eq!(bench.effects().await, words("a:act"));

    let right = bench.process_of(&Registry::new().with(&old), bench.settings("three"));
    bench.hour_passes().await;
    bench.until(id, &State::Compensated).await;
    right.stop().await;
    assert_eq!(bench.effects().await, words("a:act a:undo"));
}
