//! What operators see, and what they may do.

use metrics_exporter_prometheus::PrometheusBuilder;
use tasuki::seqlog::{ConsumerError, State};
use tasuki_testkit::eventually;

use super::*;

fn consumers() -> Consumers {
    Consumers::new(&schema())
}

#[tokio::test]
async fn the_list_shows_how_far_each_consumer_is_and_who_is_at_it() {
    let bench = Bench::new().await;
    bench.write("a b c").await;
    let world = World::default();
    world.tell("b", Answer::Fail);
    let follower = bench.follower(&world).attempts(5, Backoff::list([HOUR]));
    for _ in 0..5 {
        follower.tick().await.unwrap();
    }
    let mut db = bench.pool().acquire().await.unwrap();
    let list = consumers().list(&mut db).await.unwrap();
    let [consumer] = &list[..] else {
        panic!("{list:?}");
    };
    assert_eq!(consumer.name, CONSUMER);
    assert_eq!(consumer.log, "seqlog_entries");
    assert_eq!(consumer.state, State::Following);
    assert_eq!((consumer.last_seq, consumer.backlog()), (1, 2));
    assert!(consumer.owner.is_some());
    let trouble = consumer.trouble.as_ref().unwrap();
    assert_eq!((trouble.seq, trouble.attempts), (Some(2), 1));
    assert_eq!(trouble.error.as_deref(), Some("it does not fit"));
    assert!(trouble.retry_at.is_some());

    let logs = consumers().logs(&mut db).await.unwrap();
    let [log] = &logs[..] else {
        panic!("{logs:?}");
    };
    assert_eq!((log.last_seq, log.floor_seq), (3, 0));
}

#[tokio::test]
async fn nobody_moves_a_consumer_without_a_name_and_a_reason_or_to_where_it_can_not_be() {
    let bench = Bench::new().await;
    bench.write("a b c").await;
    let follower = bench.follower(&World::default());
    drain(&follower).await.unwrap();
    let mut db = bench.pool().acquire().await.unwrap();
    let people = consumers();
    for (actor, reason) in [
        ("", "why"),
        ("ann", ""),
        ("a\u{0}n", "why"),
        ("ann", "a\u{7}b"),
    ] {
        let refused = people.replay(&mut db, CONSUMER, 0, actor, reason).await;
        assert!(
            matches!(refused, Err(ConsumerError::Invalid { .. })),
            "{actor:?} {reason:?}"
        );
    }
    let unknown = people.replay(&mut db, "nobody", 0, "ann", "why").await;
    assert!(matches!(unknown, Err(ConsumerError::Unknown(_))));
    let beyond = people.replay(&mut db, CONSUMER, 4, "ann", "why").await;
    assert!(matches!(
        beyond,
        Err(ConsumerError::OutOfRange { floor: 0, head: 3 })
    ));
    let held = people.forget(&mut db, CONSUMER, "ann", "why").await;
    assert!(matches!(held, Err(ConsumerError::Held { .. })));
    assert_eq!(people.show(&mut db, "nobody").await.unwrap(), None);
    let beyond = people.begin_at(&mut db, "seqlog_entries", "words-v2", 4);
    assert!(matches!(
        beyond.await,
        Err(ConsumerError::OutOfRange { floor: 0, head: 3 })
    ));
    assert_eq!(bench.consumer().await.last_seq, 3);
}

#[tokio::test]
async fn whoever_moves_a_consumer_is_written_down_with_the_reason() {
    let bench = Bench::new().await;
    bench.write("a b c").await;
    let world = World::default();
    let follower = bench.follower(&world);
    drain(&follower).await.unwrap();
    let mut db = bench.pool().acquire().await.unwrap();
    let people = consumers();
    let before = people
        .replay(&mut db, CONSUMER, 1, "ann", "once more")
        .await;
    assert_eq!(before.unwrap().last_seq, 3);
    people
        .rebuild(&mut db, CONSUMER, "bob", "anew")
        .await
        .unwrap();
    follower.release().await;
    people
        .forget(&mut db, CONSUMER, "cyd", "not needed")
        .await
        .unwrap();
    assert_eq!(people.list(&mut db).await.unwrap(), []);
    let begun = people
        .begin_at(&mut db, "seqlog_entries", CONSUMER, 2)
        .await;
    begun.unwrap();
    let twice = people
        .begin_at(&mut db, "seqlog_entries", CONSUMER, 2)
        .await;
    assert!(matches!(twice, Err(ConsumerError::Exists(_))));
    let story = people.show(&mut db, CONSUMER).await.unwrap().unwrap();
    let trail = story.trail.iter().map(|act| {
        (
            act.action.as_str(),
            act.from_seq,
            act.to_seq,
            act.actor.as_str(),
            act.reason.as_str(),
        )
    });
    let trail: Vec<_> = trail.collect();
    assert_eq!(
        trail,
        [
            ("REPLAY", 3, Some(1), "ann", "once more"),
            ("REBUILD", 1, None, "bob", "anew"),
            ("FORGET", 1, None, "cyd", "not needed"),
        ]
    );
}

#[tokio::test]
async fn a_consumer_that_was_set_aside_rows_shows_them() {
    let bench = Bench::new().await;
    bench.write("a bad").await;
    let world = World::default();
    world.tell("bad", Answer::Poison);
    drain(&bench.follower(&world)).await.unwrap();
    let mut db = bench.pool().acquire().await.unwrap();
    let story = consumers().show(&mut db, CONSUMER).await.unwrap().unwrap();
    let [set_aside] = &story.set_aside[..] else {
        panic!("{story:?}");
    };
    assert_eq!((set_aside.seq, set_aside.attempts), (2, 1));
    assert_eq!(
        (set_aside.status.as_str(), set_aside.error.as_str()),
        ("FAILED", "it never fits")
    );
    assert!(
        set_aside.entry.contains(r#""kind":"word""#),
        "{}",
        set_aside.entry
    );
}

#[tokio::test]
async fn gauges_tell_the_backlog_its_age_and_who_is_too_far_behind() {
    let bench = Bench::new().await;
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let gauges = bench
        .log
        .gauges("test.gauges", bench.pool())
        .every(Duration::ZERO);
    let world = World::default();
    bench.write("a b c").await;
    let follower = bench.follower(&world).batch(1);
    follower.tick().await.unwrap();
    bench.append("d").await;
    bench
        .run(
            "UPDATE app.seqlog_pending SET appended_at = now() - INTERVAL '100 s';
             UPDATE app.seqlog_entries SET numbered_at = now() - INTERVAL '200 s'",
        )
        .await;
    let shows = async |metric: &str, labels: &str, is_right: fn(f64) -> bool| {
        let labels = format!("{{schema=\"app\",log=\"seqlog_entries\"{labels}}} ");
        let start = format!("tasuki_seqlog_{metric}{labels}");
        // After a slow look the next one comes a little later.
        eventually(metric, async || {
            let _tick = gauges.tick().await;
            let text = handle.render();
            let value = text.lines().find_map(|line| line.strip_prefix(&start));
            value
                .is_some_and(|value| is_right(value.parse().unwrap()))
                .then_some(())
        })
        .await;
    };
    let own = ",consumer=\"words-v1\"";
    shows("backlog_rows", own, |rows| rows == 2.0).await;
    shows("oldest_unread_age_seconds", own, |age| {
        (200.0..260.0).contains(&age)
    })
    .await;
    shows("too_far_behind", own, |is| is == 0.0).await;
    shows("unnumbered_rows", "", |rows| rows == 1.0).await;
    shows("oldest_unnumbered_age_seconds", "", |age| {
        (100.0..160.0).contains(&age)
    })
    .await;
    shows("head_seq", "", |seq| seq == 3.0).await;

    // Nobody of it runs any more to say it.
    bench
        .run(
            "DELETE FROM app.seqlog_entries;
             UPDATE app.consumer_offsets SET updated_at = now() - INTERVAL '300 s'",
        )
        .await;
    shows("too_far_behind", own, |is| is == 1.0).await;
    shows("oldest_unread_age_seconds", own, |age| {
        (300.0..360.0).contains(&age)
    })
    .await;
    bench
        .run("ALTER TABLE app.seqlogs RENAME TO elsewhere")
        .await;
    shows("backlog_rows", own, f64::is_nan).await;
}
