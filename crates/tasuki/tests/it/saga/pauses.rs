//! Pauses: each step has its own.

use tasuki::saga::define;

use super::*;

#[tokio::test]
async fn each_of_a_group_is_called_again_when_its_own_pause_is_over() {
    let bench = Bench::new().await;
    let world = &bench.world;
    let pause = Backoff::list([Duration::from_millis(50)]);
    *world.retries.lock().unwrap() = Some(Policy::new(9, pause));
    world.tell("a:act", [Answer::Later]);
    world.tell("b:act", [Answer::Retry, Answer::Retry, Answer::Retry]);
    let definition = define::<u32>("group", 1)
        .parallel(|group| {
            group
                .remote(r::<0>(world), |saga| Ok(*saga.input()))
                .remote(r::<1>(world), |saga| Ok(*saga.input()))
        })
        .build()
        .unwrap();
    let process = bench.process(&Registry::new().with(&definition));
    let id = process.engine.begin(&definition, &7).await.unwrap();
    eventually("the one is done, and the other waits", async || {
        bench.view(id).await.due_at.map(|_| ())
    })
    .await;
    let calls = words("a:act b:act b:act b:act b:act");
    assert_eq!(world.log(), calls, "the first was told to come in an hour");
    bench.is_claimed_early(id).await;
    assert_eq!(world.log(), calls);
    bench.hour_passes().await;
    bench.until(id, &State::Completed).await;
    assert_eq!(world.log(), [calls, words("a:act")].concat());
    process.stop().await;
}
