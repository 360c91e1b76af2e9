//! Attempts: how they end, and what becomes of the job.

use tasuki::jobs::State;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::counted::Counts;

/// A handler that fails as a test says, and whose hook leaves a trace in the database.
struct Hooked {
    hook: fn(&str) -> Result<(), BoxError>,
}

impl Handler<Task> for Hooked {
    async fn run(&self, _: Task, _: Context) -> Result<(), Failure> {
        Err(Failure::reject("refused"))
    }

    async fn failed(
        &self,
        connection: &mut sqlx::PgConnection,
        job: &Task,
        error: &str,
    ) -> Result<(), BoxError> {
        // Nobody else can see the death yet: this is its transaction.
        sqlx::query(
            "INSERT INTO app.told
             SELECT $1 || ': ' || $2 || ' ' || jobs.status
             FROM app.jobs INNER JOIN app.dead_letters ON source_id = job_id
             WHERE jobs.payload ->> 'name' = $1",
        )
        .bind(&job.name)
        .bind(error)
        .execute(connection)
        .await?;
        (self.hook)(&job.name)
    }
}

async fn hooked(hook: fn(&str) -> Result<(), BoxError>) -> (Bench, Runner<Work>) {
    let bench = Bench::new().await;
    bench.execute("CREATE TABLE app.told (what text)").await;
    let registry = Registry::new().on::<Task, _>(Hooked { hook });
    let worker = bench.worker_of(&default_queue(), &registry);
    (bench, worker)
}

#[tokio::test]
async fn a_failing_job_is_tried_as_often_as_it_says_and_then_dead_with_a_letter() {
    let bench = Bench::new().await;
    let ran = Ran::default();
    let seen = ran.clone();
    let worker = bench.worker(move |_, context| {
        let last = context.is_last_attempt();
        seen.add(&format!("{} {last}", context.attempt()));
        std::future::ready(Err(std::io::Error::other("no luck").into()))
    });
    bench.push(&task("a")).await;
    for attempt in 1..=2 {
        assert_eq!(worker.drain().await.unwrap(), 1);
        assert_eq!(bench.only().await, ("PENDING".to_owned(), attempt));
        assert_eq!(worker.drain().await.unwrap(), 0, "it waits for its backoff");
        bench.make_due().await;
    }
    assert_eq!(worker.drain().await.unwrap(), 1);

    assert_eq!(ran.names(), ["1 false", "2 false", "3 true"]);
    assert_eq!(bench.only().await, ("FAILED".to_owned(), 3));
    let letter: (String, String, String, String, i32, Vec<u8>) = sqlx::query_as(
        "SELECT source, queue, kind, error, attempt_count, payload FROM app.dead_letters",
    )
    .fetch_one(bench.pool())
    .await
    .unwrap();
    assert_eq!(
        (letter.0.as_str(), letter.1.as_str(), letter.2.as_str()),
        ("jobs", "default", "task")
    );
    assert_eq!((letter.3.as_str(), letter.4), ("no luck", 3));
    assert_eq!(
        serde_json::from_slice::<Task>(&letter.5).unwrap(),
        task("a")
    );
}

#[tokio::test]
async fn the_backoff_is_a_list_by_the_databases_clock() {
    struct Defaults;
    #[derive(Serialize, Deserialize)]
    struct Plain;
    impl Job for Plain {
        const KIND: &'static str = "plain";
    }
    impl Handler<Plain> for Defaults {
        async fn run(&self, _: Plain, _: Context) -> Result<(), Failure> {
            Err(Failure::retry("again"))
        }
    }
    let bench = Bench::new().await;
    let registry = Registry::new().on::<Plain, _>(Defaults);
    let worker = bench.worker_of(&default_queue(), &registry);
    bench.jobs.push(bench.pool(), &Plain).await.unwrap();
    for wait in [1.0, 5.0] {
        bench.make_due().await;
        worker.drain().await.unwrap();
        let left: f64 = sqlx::query_scalar(
            "SELECT extract(epoch FROM next_retry_at - clock_timestamp())::float8 FROM app.jobs",
        )
        .fetch_one(bench.pool())
        .await
        .unwrap();
        assert!(left > wait - 1.0 && left <= wait, "{left}");
    }
    bench.make_due().await;
    worker.drain().await.unwrap();
    assert_eq!(bench.only().await, ("FAILED".to_owned(), 3));
}

#[tokio::test]
async fn a_snooze_costs_no_attempt_and_a_retry_after_does() {
    let bench = Bench::new().await;
    let worker = bench.worker(|job: Task, _| async move {
        match job.name.as_str() {
            "snooze" => Err(Failure::snooze(HOUR, "not yet")),
            _ => Err(Failure::retry_after(Duration::MAX, "come back later")),
        }
    });
    for (name, attempts) in [("snooze", 0), ("after", 1)] {
        bench.push(&task(name)).await;
        assert_eq!(worker.drain().await.unwrap(), 1);
        assert_eq!(bench.only().await, ("PENDING".to_owned(), attempts));
        let due = bench.number(
            "SELECT count(*) FROM app.jobs WHERE next_retry_at > now() + interval '59 min'",
        );
        assert_eq!(due.await, 1);
        bench.execute("DELETE FROM app.jobs").await;
    }
}

#[tokio::test]
async fn a_rejected_job_is_dead_at_once() {
    let bench = Bench::new().await;
    let worker = bench.worker(|_, _| async { Err(Failure::reject("never")) });
    bench.push(&task("a")).await;
    worker.drain().await.unwrap();
    assert_eq!(bench.only().await, ("FAILED".to_owned(), 1));
    assert_eq!(
        bench.number("SELECT count(*) FROM app.dead_letters").await,
        1
    );
}

#[tokio::test]
async fn a_panic_is_a_failed_attempt_and_the_worker_goes_on() {
    let bench = Bench::new().await;
    let worker = bench.worker(|job: Task, _| {
        assert!(job.name != "at once", "on purpose");
        async move {
            assert!(job.name != "later", "on purpose");
            Ok(())
        }
    });
    for name in ["at once", "later", "fine"] {
        bench.push(&task(name)).await;
    }
    worker.drain().await.unwrap();
    assert_eq!(bench.left().await, 2);
    let failed = "SELECT count(*) FROM app.jobs WHERE attempt_count = 1 AND status = 'PENDING'
        AND last_error = 'panicked: on purpose'";
    assert_eq!(bench.number(failed).await, 2);
}

#[tokio::test]
async fn a_timeout_drops_the_work_fires_its_token_and_costs_an_attempt() {
    let counts = Counts::default();
    let _here = metrics::set_default_local_recorder(&counts);
    let bench = Bench::new().await;
    let token = Arc::new(Mutex::new(None::<CancellationToken>));
    let (given, ended) = (Arc::clone(&token), Ran::default());
    let seen = ended.clone();
    let worker = bench.worker(move |_, context: Context| {
        *given.lock().unwrap() = Some(context.cancelled().clone());
        let seen = seen.clone();
        async move {
            std::future::pending::<()>().await;
            seen.add("ended");
            Ok(())
        }
    });
    let slow = Task {
        timeout_ms: Some(30),
        ..task("slow")
    };
    bench.push(&slow).await;
    worker.drain().await.unwrap();

    assert_eq!(bench.only().await, ("PENDING".to_owned(), 1));
    let error = bench.text("SELECT last_error FROM app.jobs").await;
    assert_eq!(error.as_deref(), Some("timed out after 30ms"));
    for counter in ["tasuki_jobs_timeouts_total", "tasuki_jobs_failed_total"] {
        assert_eq!(counts.get(counter, "task"), 1, "{counter}");
    }
    assert!(token.lock().unwrap().as_ref().unwrap().is_cancelled());
    assert_eq!(ended.names(), [""; 0]);
}

#[tokio::test]
async fn the_failed_hook_writes_in_the_transaction_in_which_the_job_dies() {
    let (bench, worker) = hooked(|_| Ok(())).await;
    bench.push(&task("a")).await;
    worker.drain().await.unwrap();
    let told = bench.text("SELECT what FROM app.told").await;
    assert_eq!(told.as_deref(), Some("a: refused FAILED"));
}

#[tokio::test]
async fn the_failed_hook_continues_the_trace_of_its_job() {
    static ADOPTED: Mutex<Vec<(&str, String)>> = Mutex::new(Vec::new());
    // Somebody must listen: otherwise there are no spans.
    let _heard = Heard::listen();
    let mut bench = Bench::new().await;
    bench.execute("CREATE TABLE app.told (what text)").await;
    bench.jobs = bench
        .jobs
        .with_trace(|| Some("00-aa-bb-01".to_owned()))
        .continuing_trace(|span, traceparent| {
            let name = span.metadata().unwrap().name();
            let mut adopted = ADOPTED.lock().unwrap();
            adopted.push((name, traceparent.to_owned()));
        });
    let registry = Registry::new().on::<Task, _>(Hooked { hook: |_| Ok(()) });
    let worker = bench.worker_of(&default_queue(), &registry);
    bench.push(&task("a")).await;
    worker.drain().await.unwrap();
    let adopted = ADOPTED.lock().unwrap().clone();
    let trace = "00-aa-bb-01".to_owned();
    assert_eq!(adopted, [("job", trace.clone()), ("job_failed", trace)]);
}

#[tokio::test]
async fn a_failed_hook_that_fails_or_panics_undoes_only_itself() {
    let (bench, worker) = hooked(|name| match name {
        "error" => Err("hook failed".into()),
        "panic" => panic!("on purpose"),
        _ => Ok(()),
    })
    .await;
    for name in ["error", "first", "panic", "last"] {
        bench.push(&unique(name)).await;
    }
    worker.drain().await.unwrap();

    let told = bench
        .text("SELECT string_agg(what, ', ' ORDER BY what) FROM app.told")
        .await;
    assert_eq!(
        told.as_deref(),
        Some("first: refused FAILED, last: refused FAILED")
    );
    assert_eq!(
        bench
            .number("SELECT count(*) FROM app.jobs WHERE status = 'FAILED'")
            .await,
        4
    );
    assert_eq!(
        bench.number("SELECT count(*) FROM app.dead_letters").await,
        4
    );
    assert_eq!(
        bench.number("SELECT count(*) FROM app.job_uniques").await,
        0
    );
}

#[tokio::test]
async fn a_job_of_an_unknown_kind_waits_for_a_release_that_knows_it() {
    let bench = Bench::new().await;
    bench.push(&task("a")).await;
    let old = bench.worker_of(&default_queue(), &Registry::new());
    assert_eq!(old.drain().await.unwrap(), 1);
    assert_eq!(bench.only().await, ("PENDING".to_owned(), 0));
    let error = bench.text("SELECT last_error FROM app.jobs").await;
    assert_eq!(error.as_deref(), Some("no handler for kind task"));
    assert_eq!(
        old.drain().await.unwrap(),
        0,
        "it is left alone for a while"
    );

    bench.make_due().await;
    let ran = Ran::default();
    assert_eq!(bench.worker(ran.handler()).drain().await.unwrap(), 1);
    assert_eq!(ran.names(), ["a"]);
}

#[tokio::test]
async fn a_payload_that_cannot_be_read_is_dead_at_once_with_a_letter() {
    let bench = Bench::new().await;
    let ran = Ran::default();
    bench.push(&task("a")).await;
    bench
        .execute("UPDATE app.jobs SET payload = '{\"nonsense\": 1}'")
        .await;
    bench.worker(ran.handler()).drain().await.unwrap();
    assert_eq!(bench.only().await.0, "FAILED");
    let error = bench
        .text("SELECT error FROM app.dead_letters")
        .await
        .unwrap();
    assert!(error.starts_with("the payload can't be read"), "{error}");
    assert_eq!(ran.names(), [""; 0]);
}

#[tokio::test]
async fn a_job_whose_worker_was_lost_ten_times_in_a_row_dies_without_another_try() {
    let bench = Bench::new().await;
    let ran = Ran::default();
    bench.push(&task("a")).await;
    // Ten workers claimed it and were never heard of again; the tenth claim expires now.
    bench
        .execute(
            "UPDATE app.jobs SET status = 'PROCESSING', lost_count = 9, claim_token = gen_random_uuid(),
             lease_until = now()",
        )
        .await;
    bench.worker(ran.handler()).drain().await.unwrap();
    assert_eq!(ran.names(), [""; 0]);
    assert_eq!(bench.only().await.0, "FAILED");
    let error = bench
        .text("SELECT error FROM app.dead_letters")
        .await
        .unwrap();
    assert!(error.contains("worker was lost"), "{error}");
}

#[tokio::test]
async fn workers_that_were_lost_before_a_job_last_ran_do_not_count_against_it() {
    let bench = Bench::new().await;
    bench.push(&task("a")).await;
    let lost = "UPDATE app.jobs SET status = 'PROCESSING', claim_token = gen_random_uuid(),
                lease_until = now(), next_retry_at = now()";
    bench.execute(&format!("{lost}, lost_count = 8")).await;
    let snoozes = bench.worker(|_, _| async { Err(Failure::snooze(HOUR, "not yet")) });
    snoozes.drain().await.unwrap();
    bench.execute(lost).await;
    let ran = Ran::default();
    bench.worker(ran.handler()).drain().await.unwrap();
    assert_eq!(ran.names(), ["a"]);
}

#[tokio::test]
async fn only_one_job_at_a_time_runs_of_those_that_lost_their_workers() {
    let bench = Bench::new().await;
    let names = ["a", "b", "c"];
    for name in names {
        bench.push(&task(name)).await;
    }
    bench
        .execute(
            "UPDATE app.jobs SET status = 'PROCESSING', lost_count = 1,
             claim_token = gen_random_uuid(), lease_until = now()",
        )
        .await;
    let (ran, gate) = (Ran::default(), Arc::new(tokio::sync::Semaphore::new(0)));
    let (begun, open) = (ran.clone(), Arc::clone(&gate));
    let supervisor = start(bench.worker(move |job: Task, _| {
        let open = Arc::clone(&open);
        begun.add(&job.name);
        async move {
            open.acquire().await.unwrap().forget();
            Ok::<(), Failure>(())
        }
    }));
    let waiting = "SELECT count(*) FROM app.jobs WHERE status = 'PENDING'";
    for round in 1..=names.len() {
        tasuki_testkit::eventually("the next one has begun", async || {
            bench.make_due().await;
            bench.jobs.ring();
            (ran.names().len() == round).then_some(())
        })
        .await;
        // Whoever else was claimed with it, or after it, has been given back.
        for _ in 0..3 {
            bench.make_due().await;
            bench.jobs.ring();
            let left = i64::try_from(names.len() - round).unwrap();
            tasuki_testkit::eventually("the others wait", async || {
                (bench.number(waiting).await == left).then_some(())
            })
            .await;
        }
        assert_eq!(ran.names().len(), round);
        gate.add_permits(1);
    }
    assert_eq!(
        supervisor.stop(GRACE).await,
        tasuki::worker::Stopped::Finished
    );
}

#[tokio::test]
async fn a_lost_worker_costs_no_attempt_and_jobs_that_lost_two_are_tried_one_at_a_time() {
    let bench = Bench::new().await;
    let ran = Ran::default();
    for name in ["a", "b", "c", "d"] {
        bench.push(&task(name)).await;
    }
    let expired = "status = 'PROCESSING', claim_token = gen_random_uuid(), lease_until = now()";
    bench
        .execute(&format!(
            "UPDATE app.jobs SET {expired}, lost_count = CASE payload ->> 'name' WHEN 'a' THEN 0 ELSE 1 END"
        ))
        .await;
    let worker = bench.worker(ran.handler());
    worker.drain().await.unwrap();
    assert_eq!(ran.names(), ["a", "b"], "and not the other suspects");
    assert_eq!(
        bench
            .number("SELECT sum(attempt_count) FROM app.jobs")
            .await,
        0
    );
    for all in [3, 4] {
        bench
            .execute("UPDATE app.jobs SET next_retry_at = now()")
            .await;
        bench.worker(ran.handler()).drain().await.unwrap();
        assert_eq!(ran.names().len(), all);
    }
}

#[tokio::test]
async fn finished_jobs_go_or_are_kept_as_their_queue_says() {
    let bench = Bench::new().await;
    let registry = || Registry::new().on::<Task, _>(Ran::default().handler());
    bench.push(&unique("gone")).await;
    bench
        .worker_of(&default_queue(), &registry())
        .drain()
        .await
        .unwrap();
    assert_eq!(bench.number("SELECT count(*) FROM app.jobs_done").await, 0);

    let keeping = default_queue().keep_finished();
    let ids = [
        bench.push(&task("kept")).await,
        bench.push(&unique("kept")).await,
    ];
    bench
        .worker_of(&keeping, &registry())
        .drain()
        .await
        .unwrap();

    assert_eq!(bench.left().await, 0);
    assert_eq!(
        bench.number("SELECT count(*) FROM app.job_uniques").await,
        0
    );
    let mut connection = bench.pool().acquire().await.unwrap();
    for id in ids {
        let view = bench.jobs.get(&mut connection, id).await.unwrap().unwrap();
        assert_eq!(view.state, State::Finished);
        assert!(view.finished_at.is_some() && view.locked_by.is_some());
    }
}
