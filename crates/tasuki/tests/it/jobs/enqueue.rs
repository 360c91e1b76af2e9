//! Enqueueing: transactions, twins, times, and what can't be stored.

use futures_util::future::join_all;
use sqlx::postgres::PgPoolOptions;
use tasuki::jobs::{Enqueued, Error, JobId, Schedule, State};
use tasuki_testkit::eventually;
use time::macros::datetime;

use super::*;

#[tokio::test]
async fn a_job_runs_if_and_only_if_its_transaction_commits() {
    let bench = Bench::new().await;
    let ran = Ran::default();
    let mut kept = bench.pool().begin().await.unwrap();
    let mut dropped = bench.pool().begin().await.unwrap();
    bench.jobs.enqueue(&mut kept, &task("kept")).await.unwrap();
    bench
        .jobs
        .enqueue(&mut dropped, &task("dropped"))
        .await
        .unwrap();
    let worker = bench.worker(ran.handler());
    assert_eq!(worker.drain().await.unwrap(), 0);

    kept.commit().await.unwrap();
    dropped.rollback().await.unwrap();
    assert_eq!(worker.drain().await.unwrap(), 1);

    assert_eq!(ran.names(), ["kept"]);
    assert_eq!(bench.left().await, 0);
}

#[tokio::test]
async fn an_enqueue_is_one_statement() {
    let bench = Bench::new().await;
    let mut tx = bench.pool().begin().await.unwrap();
    let heard = Heard::listen();

    bench.jobs.enqueue(&mut tx, &task("plain")).await.unwrap();
    assert_eq!(heard.statements(), 1);
    bench
        .jobs
        .enqueue(&mut tx, &unique("unique"))
        .await
        .unwrap();
    assert_eq!(heard.statements(), 2);
    let many: Vec<_> = (0..500).map(|n| task(&n.to_string())).collect();
    assert_eq!(
        bench.jobs.enqueue_all(&mut tx, &many).await.unwrap().len(),
        500
    );
    assert_eq!(heard.statements(), 3);
}

#[tokio::test]
async fn of_32_twins_at_once_one_is_enqueued_and_the_others_are_told_which() {
    let bench = Bench::new().await;
    let pool = PgPoolOptions::new()
        .max_connections(32)
        .connect(&bench.db.url())
        .await
        .unwrap();
    for _ in 0..6 {
        // From the second round on, they find an id whose time has passed.
        bench
            .execute("UPDATE app.job_uniques SET unique_until = now()")
            .await;
        let job = unique("a");
        let told = join_all((0..32).map(|_| async {
            let mut tx = pool.begin().await.unwrap();
            let told = bench.jobs.enqueue(&mut tx, &job).await.unwrap();
            tx.commit().await.unwrap();
            told
        }))
        .await;

        let new: Vec<JobId> = told
            .iter()
            .filter(|told| matches!(told, Enqueued::New(_)))
            .map(|told| told.id())
            .collect();
        assert_eq!(new.len(), 1);
        assert!(told.iter().all(|told| told.id() == new[0]));
    }
    assert_eq!(bench.left().await, 6);
    pool.close().await;
}

#[tokio::test]
async fn a_twin_waits_for_the_open_transaction_and_takes_its_place_if_that_rolls_back() {
    let bench = Bench::new().await;
    let mut first = bench.pool().begin().await.unwrap();
    bench.jobs.enqueue(&mut first, &unique("a")).await.unwrap();

    let second = async { bench.jobs.push(bench.pool(), &unique("a")).await.unwrap() };
    let roll_back = async {
        eventually("the twin waits", async || {
            let waiting = "SELECT count(*) FROM pg_stat_activity
                WHERE datname = current_database() AND wait_event_type = 'Lock'";
            (bench.number(waiting).await == 1).then_some(())
        })
        .await;
        first.rollback().await.unwrap();
    };
    let (told, ()) = tokio::join!(second, roll_back);

    assert!(matches!(told, Enqueued::New(_)), "{told:?}");
    assert_eq!(bench.left().await, 1);
}

#[tokio::test]
async fn a_unique_id_is_free_again_when_its_job_has_finished_or_died_or_was_cancelled() {
    let bench = Bench::new().await;
    let worker = bench.worker(|job: Task, _| async move {
        match job.tries {
            None => Ok(()),
            Some(_) => Err(Failure::reject("no")),
        }
    });
    let doomed = Task {
        tries: Some(1),
        ..unique("a")
    };
    for job in [unique("a"), doomed, unique("a")] {
        let told = bench.jobs.push(bench.pool(), &job).await.unwrap();
        assert!(matches!(told, Enqueued::New(_)), "{told:?}");
        let twin = bench.jobs.push(bench.pool(), &job).await.unwrap();
        assert_eq!(twin, Enqueued::Duplicate(told.id()));
        worker.drain().await.unwrap();
    }
    let id = bench.push(&unique("a")).await;
    let mut connection = bench.pool().acquire().await.unwrap();
    assert!(bench.jobs.cancel(&mut connection, id).await.unwrap());

    assert_eq!(
        bench.number("SELECT count(*) FROM app.job_uniques").await,
        0
    );
}

#[tokio::test]
async fn a_unique_id_holds_until_its_time_and_is_then_taken_over() {
    let bench = Bench::new().await;
    let first = bench.push(&unique("a")).await;
    bench
        .execute("UPDATE app.job_uniques SET unique_until = now()")
        .await;
    let second = bench.jobs.push(bench.pool(), &unique("a")).await.unwrap();
    assert!(matches!(second, Enqueued::New(id) if id != first));

    // The first one's end does not release what is the second one's by now.
    let mut connection = bench.pool().acquire().await.unwrap();
    assert!(bench.jobs.cancel(&mut connection, first).await.unwrap());
    let third = bench.jobs.push(bench.pool(), &unique("a")).await.unwrap();
    assert_eq!(third, Enqueued::Duplicate(second.id()));
}

#[tokio::test]
async fn a_duplicate_in_a_long_transaction_does_not_hold_up_its_twin() {
    let bench = Bench::new().await;
    let id = bench.push(&unique("a")).await;
    let mut long = bench.pool().begin().await.unwrap();
    let told = bench.jobs.enqueue(&mut long, &unique("a")).await.unwrap();
    assert_eq!(told, Enqueued::Duplicate(id));

    let worker = bench.worker(Ran::default().handler());
    assert_eq!(worker.drain().await.unwrap(), 1);

    assert_eq!(bench.left().await, 0);
    assert!(matches!(
        bench.jobs.push(bench.pool(), &unique("a")).await,
        Ok(Enqueued::New(_))
    ));
    long.commit().await.unwrap();
}

#[tokio::test]
async fn a_set_answers_in_its_order_and_knows_twins_inside_and_outside() {
    let bench = Bench::new().await;
    let before = bench.push(&unique("before")).await;
    let set = [
        unique("z"),
        task("plain"),
        unique("before"),
        unique("a"),
        unique("z"),
    ];
    let mut tx = bench.pool().begin().await.unwrap();
    let told = bench.jobs.enqueue_all(&mut tx, &set).await.unwrap();
    tx.commit().await.unwrap();

    assert!(matches!(told[..2], [Enqueued::New(_), Enqueued::New(_)]));
    assert_eq!(told[2], Enqueued::Duplicate(before));
    assert!(matches!(told[3], Enqueued::New(_)));
    assert_eq!(told[4], Enqueued::Duplicate(told[0].id()));
    assert_eq!(bench.left().await, 4);
    let mut connection = bench.pool().acquire().await.unwrap();
    let nothing = bench.jobs.enqueue_all::<Task>(&mut connection, &[]);
    assert_eq!(nothing.await.unwrap(), []);
}

#[tokio::test]
async fn what_postgresql_refuses_is_refused_before_and_leaves_the_transaction_usable() {
    let bench = Bench::new().await;
    let mut tx = bench.pool().begin().await.unwrap();
    let nul = bench.jobs.enqueue(&mut tx, &task("a\0b")).await;
    assert!(matches!(nul, Err(Error::Nul { kind: "task" })), "{nul:?}");
    for id in ["", "a\0b", &"x".repeat(513)] {
        let told = bench.jobs.enqueue(&mut tx, &unique(id)).await;
        assert!(told.is_err(), "{id:?}");
    }
    let far = Schedule::In(Duration::MAX);
    let told = bench.jobs.enqueue_with(&mut tx, &task("far"), far).await;
    assert!(matches!(told, Err(Error::TooLong { .. })), "{told:?}");
    bench
        .jobs
        .enqueue(&mut tx, &task("\\u0000 \u{1F380}"))
        .await
        .unwrap();
    tx.commit().await.unwrap();

    let ran = Ran::default();
    assert_eq!(bench.worker(ran.handler()).drain().await.unwrap(), 1);
    assert_eq!(ran.names(), ["\\u0000 \u{1F380}"]);
}

#[tokio::test]
async fn a_scheduled_job_does_not_run_before_its_time() {
    let bench = Bench::new().await;
    let ran = Ran::default();
    let worker = bench.worker(ran.handler());
    let mut connection = bench.pool().acquire().await.unwrap();
    for (name, schedule) in [
        ("later", Schedule::In(HOUR)),
        ("at", Schedule::At(datetime!(2999-01-01 0:00 UTC))),
        ("past", Schedule::At(datetime!(1999-01-01 0:00 UTC))),
    ] {
        let job = task(name);
        let told = bench.jobs.enqueue_with(&mut connection, &job, schedule);
        told.await.unwrap();
    }
    worker.drain().await.unwrap();
    assert_eq!(ran.names(), ["past"]);
    let wait = "SELECT extract(epoch FROM min(next_retry_at) - now()) FROM app.jobs";
    assert!((3500..=3600).contains(&bench.number(wait).await));

    bench.make_due().await;
    worker.drain().await.unwrap();
    assert_eq!(ran.names().len(), 3);
}

#[tokio::test]
async fn the_trace_of_the_enqueuer_reaches_the_run() {
    let mut bench = Bench::new().await;
    bench.jobs = bench.jobs.with_trace(|| Some("00-aa-bb-01".to_owned()));
    let ran = Ran::default();
    let seen = ran.clone();
    let worker = bench.worker(move |_, context| {
        seen.add(context.traceparent().unwrap_or("none"));
        std::future::ready(Ok(()))
    });
    bench.push(&task("a")).await;
    bench.push(&unique("b")).await;
    worker.drain().await.unwrap();
    assert_eq!(ran.names(), ["00-aa-bb-01", "00-aa-bb-01"]);
}

#[tokio::test]
async fn a_waiting_job_can_be_looked_at_and_taken_back_and_a_dead_one_cannot() {
    let bench = Bench::new().await;
    let worker = bench.worker(|_, _| async { Err(Failure::reject("no")) });
    let dead = bench.push(&task("dead")).await;
    worker.drain().await.unwrap();
    let waiting = bench.push(&task("waiting")).await;
    let mut connection = bench.pool().acquire().await.unwrap();

    let view = bench
        .jobs
        .get(&mut connection, waiting)
        .await
        .unwrap()
        .unwrap();
    assert_eq!((view.state, view.kind.as_str()), (State::Waiting, "task"));
    assert_eq!(view.payload["name"], "waiting");
    let view = bench
        .jobs
        .get(&mut connection, dead)
        .await
        .unwrap()
        .unwrap();
    assert_eq!((view.state, view.due_at), (State::Dead, None));
    assert_eq!(view.last_error.as_deref(), Some("no"));

    assert!(bench.jobs.cancel(&mut connection, waiting).await.unwrap());
    assert!(!bench.jobs.cancel(&mut connection, waiting).await.unwrap());
    assert!(!bench.jobs.cancel(&mut connection, dead).await.unwrap());
    assert_eq!(
        bench.jobs.get(&mut connection, waiting).await.unwrap(),
        None
    );
}
