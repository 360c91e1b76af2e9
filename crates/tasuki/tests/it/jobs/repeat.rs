//! What repeats, across processes and across time.

use tasuki::jobs::{Error, Repeat, Schedules};
use tasuki::worker::Worker;
use time::format_description::well_known::Rfc3339;

use super::*;

/// One process with an hourly schedule whose jobs are named after the time that was due.
fn process(bench: &Bench, repeat: Repeat) -> Schedules {
    Schedules::new(&bench.jobs, bench.pool())
        .repeat("report", repeat, |due| task(&due.format(&Rfc3339).unwrap()))
        .unwrap()
}

async fn miss(bench: &Bench, time: &str) {
    let sql = format!("UPDATE app.job_schedules SET next_at = {time}");
    assert_eq!(bench.execute(&sql).await, 1);
}

#[tokio::test]
async fn an_occurrence_is_enqueued_once_however_many_processes_look() {
    let bench = Bench::new().await;
    let hourly = Repeat::every(HOUR);
    let processes: Vec<_> = (0..6).map(|_| process(&bench, hourly.clone())).collect();
    let tick = || futures_util::future::try_join_all(processes.iter().map(Worker::tick));
    tick().await.unwrap();
    assert_eq!(bench.left().await, 0, "the first time is an hour from now");

    for occurrence in 1..=5 {
        miss(&bench, "now()").await;
        tick().await.unwrap();
        assert_eq!(bench.left().await, occurrence);
    }
}

#[tokio::test]
async fn missed_occurrences_are_made_up_for_by_one_job_and_the_grid_stays() {
    let bench = Bench::new().await;
    let schedules = process(&bench, Repeat::every(HOUR));
    schedules.tick().await.unwrap();
    miss(&bench, "date_trunc('hour', now()) - interval '3 days'").await;
    for _ in 0..3 {
        schedules.tick().await.unwrap();
    }
    assert_eq!(bench.left().await, 1);
    let on_the_grid = "SELECT count(*) FROM app.job_schedules
        WHERE next_at = date_trunc('hour', next_at) AND next_at > now()
        AND next_at <= now() + interval '1 h' AND last_at < now() - interval '2 days'";
    assert_eq!(bench.number(on_the_grid).await, 1);
}

#[tokio::test]
async fn a_cron_schedule_is_due_at_its_times_in_utc() {
    let bench = Bench::new().await;
    let schedules = process(&bench, Repeat::cron("30 3 * * *").unwrap());
    schedules.tick().await.unwrap();
    let at = "SELECT (next_at AT TIME ZONE 'UTC')::time FROM app.job_schedules";
    assert_eq!(bench.text(at).await.as_deref(), Some("03:30:00"));
    miss(&bench, "'2026-01-05 03:30:00Z'").await;
    schedules.tick().await.unwrap();

    let ran = Ran::default();
    bench.worker(ran.handler()).drain().await.unwrap();
    assert_eq!(ran.names(), ["2026-01-05T03:30:00Z"]);
    assert_eq!(bench.text(at).await.as_deref(), Some("03:30:00"));
}

#[tokio::test]
async fn a_changed_schedule_counts_from_now_on_and_the_old_release_leaves_it_alone() {
    let bench = Bench::new().await;
    let old = process(&bench, Repeat::every(HOUR));
    old.tick().await.unwrap();
    let new = process(&bench, Repeat::every(HOUR * 24));
    new.tick().await.unwrap();
    let tomorrow = "SELECT count(*) FROM app.job_schedules WHERE next_at > now() + interval '23 h'";
    assert_eq!(bench.number(tomorrow).await, 1);

    miss(&bench, "now()").await;
    old.tick().await.unwrap();
    assert_eq!(bench.left().await, 0);
    new.tick().await.unwrap();
    assert_eq!(bench.left().await, 1);
    // A restart of the same release keeps the time.
    let before = bench.text("SELECT next_at FROM app.job_schedules").await;
    process(&bench, Repeat::every(HOUR * 24))
        .tick()
        .await
        .unwrap();
    assert_eq!(
        bench.text("SELECT next_at FROM app.job_schedules").await,
        before
    );
}

#[tokio::test]
async fn a_schedule_whose_release_was_rolled_back_goes_on_with_the_times_of_the_old_one() {
    let bench = Bench::new().await;
    let old = process(&bench, Repeat::every(HOUR));
    old.tick().await.unwrap();
    let new = process(&bench, Repeat::every(HOUR * 24));
    new.tick().await.unwrap();
    drop(new); // And it never comes back.

    miss(&bench, "now() - interval '2 min'").await;
    for _ in 0..2 {
        old.tick().await.unwrap();
    }

    assert_eq!(bench.left().await, 1);
    let within = "SELECT count(*) FROM app.job_schedules WHERE next_at < now() + interval '1 h'";
    assert_eq!(bench.number(within).await, 1);
}

#[tokio::test]
async fn a_schedule_whose_job_panics_holds_up_no_other() {
    let bench = Bench::new().await;
    let schedules = Schedules::new(&bench.jobs, bench.pool())
        .repeat("broken", Repeat::every(HOUR), |_| -> Task { panic!("no") })
        .unwrap()
        .repeat("fine", Repeat::every(HOUR), |_| task("fine"))
        .unwrap();
    schedules.tick().await.unwrap();
    bench
        .execute("UPDATE app.job_schedules SET next_at = now()")
        .await;
    assert!(schedules.tick().await.is_err());
    assert_eq!(bench.left().await, 1);
}

#[tokio::test]
async fn a_schedule_that_cannot_be_enqueued_stays_due_and_holds_up_no_other() {
    let bench = Bench::new().await;
    let schedules = Schedules::new(&bench.jobs, bench.pool())
        .repeat("broken", Repeat::every(HOUR), |_| task("\0"))
        .unwrap()
        .repeat("fine", Repeat::every(HOUR), |_| task("fine"))
        .unwrap();
    schedules.tick().await.unwrap();
    bench
        .execute("UPDATE app.job_schedules SET next_at = now()")
        .await;
    assert!(schedules.tick().await.is_err());
    assert_eq!(bench.left().await, 1);
    let due = "SELECT name FROM app.job_schedules WHERE next_at <= now()";
    assert_eq!(bench.text(due).await.as_deref(), Some("broken"));

    let twice = schedules.repeat("fine", Repeat::every(HOUR), |_| task("fine"));
    assert!(matches!(twice, Err(Error::Twice { .. })));
}
