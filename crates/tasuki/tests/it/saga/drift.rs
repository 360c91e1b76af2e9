//! Definitions that change.

use metrics_exporter_prometheus::PrometheusBuilder;
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

#[tokio::test]
async fn a_version_that_this_process_does_not_know_is_named_by_a_gauge() {
    let bench = Bench::new().await;
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let _here = metrics::set_default_local_recorder(&recorder);
    let version = |version| {
        define::<u32>("order", version)
            .local(l::<0>(&bench.world), |saga| Ok(*saga.input()))
            .build()
            .unwrap()
    };
    let (old, new) = (version(1), version(2));
    let mut connection = bench.pool().acquire().await.unwrap();
    for _ in 0..2 {
        bench.sagas.start(&mut connection, &old, &7).await.unwrap();
    }
    let shows = async |version: u32, sagas: u32| {
        let line = format!(
            "tasuki_saga_unknown_rows{{worker=\"test.sagas\",saga=\"order\",version=\"{version}\"}} {sagas}"
        );
        eventually(&line, async || {
            handle.render().lines().any(|it| it == line).then_some(())
        })
        .await;
    };
    let upgraded = bench.process(&Registry::new().with(&new));
    shows(1, 2).await;
    shows(2, 0).await;
    let old = Registry::new().with(&old);
    // Under another name: its zeroes must not hide those of the first.
    let settings = Settings::new("test.others", bench.pool().clone());
    let others = bench.process_of(&old, settings);
    shows(1, 0).await;
    others.stop().await;
    upgraded.stop().await;
}
