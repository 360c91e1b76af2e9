//! Queues: order, limits, fairness, and what they cost.

use std::collections::HashMap;

use sqlx::{Connection, Executor};
use tasuki::jobs::{Error, JobId};
use tasuki::worker::{Stopped, Worker};
use tasuki_testkit::eventually;

use super::*;

/// A job of another queue.
#[derive(Serialize, Deserialize)]
struct Mail;

impl Job for Mail {
    const KIND: &'static str = "mail";
    const QUEUE: &'static str = "mail";
}

/// Waiting rows of the default queue, by priority.
async fn backlog(bench: &Bench, rows: u32) {
    let sql = format!(
        "INSERT INTO app.jobs (job_id, queue, priority, kind, payload)
         SELECT gen_random_uuid(), CASE WHEN n % 10 = 0 THEN 'other' ELSE 'default' END, n % 4, 'task', '{{}}'
         FROM generate_series(1, {rows}) AS n"
    );
    bench.execute(&sql).await;
}

#[tokio::test]
async fn the_highest_priority_goes_first_and_then_what_is_due_longest() {
    let bench = Bench::new().await;
    let ran = Ran::default();
    let expected = ["urgent", "urgent2", "high", "normal", "normal2", "low"];
    for (name, priority) in [
        ("normal", 0),
        ("low", 3),
        ("urgent", 1),
        ("high", 2),
        ("normal2", 0),
        ("urgent2", 1),
    ] {
        let job = Task {
            priority,
            ..task(name)
        };
        bench.push(&job).await;
    }
    let registry = || Registry::new().on::<Task, _>(ran.handler());
    let queue = default_queue().concurrency(1);
    bench.worker_of(&queue, &registry()).drain().await.unwrap();
    assert_eq!(ran.names(), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_of_many_is_started_in_its_order_on_any_runtime() {
    let bench = Bench::new().await;
    let ran = Ran::default();
    let registry = Registry::new().on::<Task, _>(ran.handler());
    let worker = bench.worker_of(&default_queue().concurrency(1), &registry);
    let mut connection = bench.pool().acquire().await.unwrap();
    // Enough quick jobs teach the worker to claim many at a time.
    let jobs: Vec<_> = (0..500).map(|n| task(&format!("{n:03}"))).collect();
    bench
        .jobs
        .enqueue_all(&mut connection, &jobs)
        .await
        .unwrap();
    // In a transaction of many rows all are due at nearly the same time: make it plain.
    bench
        .execute("UPDATE app.jobs SET next_retry_at = now() - interval '1 s' * (1000 - (payload ->> 'name')::int)")
        .await;
    worker.drain().await.unwrap();
    assert_eq!(ran.names().len(), 500);
    assert!(ran.names().is_sorted(), "{:?}", ran.names());
}

#[tokio::test]
async fn never_more_jobs_run_side_by_side_than_the_queue_allows() {
    let bench = Bench::new().await;
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (running, peak) = (Arc::clone(&now), Arc::clone(&most));
    let registry = Registry::new().on::<Task, _>(move |_, _| {
        let (running, peak) = (Arc::clone(&running), Arc::clone(&peak));
        async move {
            peak.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            for _ in 0..5 {
                tokio::task::yield_now().await;
            }
            running.fetch_sub(1, Ordering::SeqCst);
            Ok::<(), Failure>(())
        }
    });
    let jobs: Vec<_> = (0..200).map(|n| task(&n.to_string())).collect();
    let mut connection = bench.pool().acquire().await.unwrap();
    bench
        .jobs
        .enqueue_all(&mut connection, &jobs)
        .await
        .unwrap();
    let worker = bench.worker_of(&default_queue().concurrency(3), &registry);
    assert_eq!(worker.drain().await.unwrap(), 200);
    assert_eq!(most.load(Ordering::SeqCst), 3);
    assert_eq!(now.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_busy_queue_does_not_starve_another() {
    let bench = Bench::new().await;
    let ran = Ran::default();
    let seen = ran.clone();
    let registry = Registry::new()
        .on::<Task, _>(|_, _| std::future::pending::<Result<(), Failure>>())
        .on::<Mail, _>(move |_, _| {
            seen.add("mail");
            std::future::ready(Ok::<(), Failure>(()))
        });
    for n in 0..50 {
        bench.push(&task(&n.to_string())).await;
    }
    let busy = start(bench.worker_of(&default_queue(), &registry));
    let claimed = "SELECT count(*) FROM app.jobs WHERE status = 'PROCESSING'";
    eventually("every slot is taken", async || {
        (bench.number(claimed).await == 10).then_some(())
    })
    .await;
    bench.jobs.push(bench.pool(), &Mail).await.unwrap();
    let mail = start(bench.worker_of(&Queue::new("mail"), &registry));
    eventually("the mail is sent", async || {
        (ran.names() == ["mail"]).then_some(())
    })
    .await;
    assert_eq!(mail.stop(GRACE).await, Stopped::Finished);
    assert_eq!(busy.stop(Duration::ZERO).await, Stopped::Cut);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_jobs_by_four_workers_run_once_each() {
    let bench = Bench::new().await;
    let runs = Arc::new(Mutex::new(HashMap::<JobId, u32>::new()));
    let jobs: Vec<_> = (0..10_000).map(|n| task(&n.to_string())).collect();
    let mut connection = bench.pool().acquire().await.unwrap();
    let told = bench
        .jobs
        .enqueue_all(&mut connection, &jobs)
        .await
        .unwrap();
    drop(connection);
    let workers = [0; 4].map(|_| {
        let runs = Arc::clone(&runs);
        bench.worker(move |_, context: Context| {
            *runs.lock().unwrap().entry(context.id()).or_default() += 1;
            std::future::ready(Ok(()))
        })
    });
    let claimed = futures_util::future::join_all(workers.iter().map(Runner::drain)).await;

    let claimed: usize = claimed.into_iter().map(Result::unwrap).sum();
    assert_eq!((claimed, bench.left().await), (10_000, 0));
    let runs = runs.lock().unwrap();
    assert!(told.iter().all(|told| runs.get(&told.id()) == Some(&1)));
}

#[tokio::test]
async fn a_ring_starts_a_job_long_before_the_poll() {
    let bench = Bench::new().await;
    let ran = Ran::default();
    let registry = Registry::new().on::<Task, _>(ran.handler());
    let supervisor = start(bench.worker_of(&Queue::new("default").poll(HOUR), &registry));
    for n in 1..=3 {
        eventually("the worker waits", async || {
            let health = supervisor.health().pop().unwrap();
            (health.ticks > 0 && health.state == tasuki::worker::State::Waiting).then_some(())
        })
        .await;
        bench.push(&task("a")).await;
        eventually("it has run", async || {
            (ran.names().len() == n).then_some(())
        })
        .await;
    }
    assert_eq!(supervisor.stop(GRACE).await, Stopped::Finished);
}

#[tokio::test]
async fn a_ring_reaches_the_workers_of_other_processes() {
    let bench = Bench::new().await;
    let ran = Ran::default();
    // Its own handle and its own bell, as in another process.
    let elsewhere = Jobs::new(&Schema::new("app").unwrap());
    let registry = Registry::new().on::<Task, _>(ran.handler());
    let queue = Queue::new("default").poll(HOUR).lease(HOUR * 6);
    let worker = queue.worker(&elsewhere, bench.pool(), &registry).unwrap();
    let supervisor = start(worker);
    supervisor.start(elsewhere.listener(bench.pool()));
    supervisor.start(bench.jobs.ringer(bench.pool()));
    eventually("the listener woke the worker", async || {
        (supervisor.health()[0].ticks >= 2).then_some(())
    })
    .await;
    bench.push(&task("a")).await;
    eventually("it has run", async || (ran.names() == ["a"]).then_some(())).await;
    assert_eq!(supervisor.stop(GRACE).await, Stopped::Finished);
}

#[tokio::test]
async fn an_idle_worker_asks_once_per_tick() {
    let bench = Bench::new().await;
    let worker = bench.worker(Ran::default().handler());
    worker.tick().await.unwrap();
    let heard = Heard::listen();
    for _ in 0..10 {
        worker.tick().await.unwrap();
    }
    assert_eq!(heard.statements(), 10);
}

#[tokio::test]
async fn a_queue_without_a_name_and_a_kind_with_two_handlers_are_refused() {
    let bench = Bench::new().await;
    let one = Registry::new().on::<Task, _>(Ran::default().handler());
    let two = one.clone().on::<Task, _>(Ran::default().handler());
    let nameless = Queue::new("a queue").worker(&bench.jobs, bench.pool(), &one);
    assert!(matches!(nameless, Err(Error::Name { .. })));
    let twice = default_queue().worker(&bench.jobs, bench.pool(), &two);
    assert!(matches!(twice, Err(Error::Twice { .. })));
}

#[tokio::test]
async fn every_statement_prepares() {
    let bench = Bench::new().await;
    let mut connection = bench.pool().acquire().await.unwrap();
    let mut statements = 0;
    for sql in bench.jobs.statements() {
        use sqlx::SqlSafeStr;
        let prepared = connection
            .prepare(AssertSqlSafe(sql.to_owned()).into_sql_str())
            .await;
        assert!(prepared.is_ok(), "{sql}\n{prepared:?}");
        statements += 1;
    }
    assert_eq!(statements, 17);
}

/// Runs the claim of `limit` rows under `prefix`, and answers its lines.
async fn claim(
    connection: &mut sqlx::PgConnection,
    prefix: &str,
    jobs: &Jobs,
    limit: i64,
) -> Vec<String> {
    let sql = format!("{prefix} {}", jobs.statements().next().unwrap());
    let query = sqlx::query_scalar(AssertSqlSafe(sql))
        .bind(limit)
        .bind("somebody")
        .bind(60.0_f64)
        .bind(sqlx::types::Uuid::nil())
        .bind("default")
        .bind([time::OffsetDateTime::UNIX_EPOCH; 4].as_slice());
    query.fetch_all(connection).await.unwrap()
}

/// Claims everything that waits, and leaves it claimed.
async fn claim_all(bench: &Bench, connection: &mut sqlx::PgConnection) -> usize {
    let owner = tasuki::lease::Owner::on("ip-10-0-127-201.eu-central-1.compute.internal");
    let claim = tasuki::lease::Claim {
        owner: &owner,
        lease: Duration::from_secs(60),
        limit: 10_000,
    };
    let worker = bench.worker(|_, _| async { Ok(()) });
    let rows = tasuki::lease::Work::claim(worker.work(), connection, &claim).await;
    rows.unwrap().len()
}

#[tokio::test]
async fn a_claim_leaves_every_row_on_its_page_where_no_index_need_know_of_it() {
    let bench = Bench::new().await;
    let mut connection = bench.pool().acquire().await.unwrap();
    let tasks: Vec<Task> = (0..2_000).map(|n| task(&n.to_string())).collect();
    bench
        .jobs
        .enqueue_all(&mut connection, &tasks)
        .await
        .unwrap();
    bench
        .execute(
            "CREATE TABLE app.places AS SELECT job_id, ctid::text::point AS place FROM app.jobs",
        )
        .await;

    assert_eq!(claim_all(&bench, &mut connection).await, 2_000);

    let moved = "SELECT count(*)
                 FROM app.jobs AS j
                 INNER JOIN app.places AS p ON p.job_id = j.job_id
                 WHERE (j.ctid::text::point) [0] <> p.place [0]";
    assert_eq!(bench.number(moved).await, 0);
}

#[tokio::test]
async fn a_claim_does_not_wait_for_the_disk_and_leaves_its_connection_as_it_was() {
    let bench = Bench::new().await;
    bench.push(&task("a")).await;
    let mut connection = bench.pool().acquire().await.unwrap();
    connection
        .execute("SET synchronous_commit = on")
        .await
        .unwrap();
    let waits = "SELECT current_setting('synchronous_commit')";
    let mut told = Vec::<String>::new();
    let mut tx = connection.begin().await.unwrap();
    assert_eq!(claim_all(&bench, &mut tx).await, 1);
    told.push(sqlx::query_scalar(waits).fetch_one(&mut *tx).await.unwrap());
    tx.commit().await.unwrap();
    told.push(
        sqlx::query_scalar(waits)
            .fetch_one(&mut *connection)
            .await
            .unwrap(),
    );
    assert_eq!(told, ["off", "on"]);
}

#[tokio::test]
async fn a_claim_walks_the_index_in_order_and_stops_at_the_first_lane_that_fills_it() {
    let bench = Bench::new().await;
    backlog(&bench, 20_000).await;
    let explain = "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF)";
    for setting in [
        "",
        "ANALYZE app.jobs",
        "SET plan_cache_mode = force_generic_plan",
    ] {
        let mut tx = bench.pool().begin().await.unwrap();
        if !setting.is_empty() {
            sqlx::query(setting).execute(&mut *tx).await.unwrap();
        }
        let plan = claim(&mut tx, explain, &bench.jobs, 10).await.join("\n");
        let index = plan
            .lines()
            .find(|line| line.contains("Index Scan using jobs_live_idx"))
            .unwrap_or_else(|| panic!("no index scan:\n{plan}"));
        assert!(
            index.contains("rows=10 loops=1"),
            "one lane, ten rows:\n{plan}"
        );
        let condition = plan
            .lines()
            .find(|line| line.contains("Index Cond"))
            .unwrap();
        for part in [
            "queue =",
            "priority =",
            "next_retry_at >=",
            "next_retry_at <=",
        ] {
            assert!(
                condition.contains(part),
                "{part} is not in the index condition:\n{plan}"
            );
        }
        assert!(plan.contains("Tid Scan on jobs t"), "{plan}");
        assert!(
            !plan.contains("Sort") && !plan.contains("Seq Scan"),
            "{plan}"
        );
        tx.rollback().await.unwrap();
    }
}

#[tokio::test]
async fn a_claim_locks_no_row_beyond_its_limit() {
    let bench = Bench::new().await;
    backlog(&bench, 40).await;
    let mut tx = bench.pool().begin().await.unwrap();
    claim_ids(&mut tx, &bench.jobs, 12).await;
    let free = "SELECT count(*) FROM (SELECT FROM app.jobs FOR UPDATE SKIP LOCKED) AS free";
    assert_eq!(bench.number(free).await, 40 - 12);
    tx.rollback().await.unwrap();
}

/// Claims `limit` rows, in the caller's transaction.
async fn claim_ids(connection: &mut sqlx::PgConnection, jobs: &Jobs, limit: i64) {
    let sql = jobs.statements().next().unwrap().to_owned();
    let rows = sqlx::query(AssertSqlSafe(sql))
        .bind(limit)
        .bind("somebody")
        .bind(60.0_f64)
        .bind(sqlx::types::Uuid::nil())
        .bind("default")
        .bind([time::OffsetDateTime::UNIX_EPOCH; 4].as_slice())
        .fetch_all(connection)
        .await
        .unwrap();
    assert_eq!(i64::try_from(rows.len()).unwrap(), limit);
}

/// Whatever is found behind the others was found by a sweep, or a look.
#[tokio::test]
async fn what_comes_up_behind_the_watermark_is_found() {
    let bench = Bench::new().await;
    let ran = Ran::default();
    let supervisor = start(bench.worker(ran.handler()));
    let has_run = async |name: &str| {
        eventually("it has run", async || {
            ran.names().contains(&name.to_owned()).then_some(())
        })
        .await;
    };
    let mut late = bench.pool().begin().await.unwrap();
    bench.jobs.enqueue(&mut late, &task("late")).await.unwrap();
    let long_ago = "UPDATE app.jobs SET next_retry_at = now() - interval '1 h'";
    late.execute(long_ago).await.unwrap();
    bench.push(&task("first")).await;
    has_run("first").await;

    late.commit().await.unwrap();
    has_run("late").await;

    let mut lost = bench.pool().begin().await.unwrap();
    bench.jobs.enqueue(&mut lost, &task("lost")).await.unwrap();
    let by_a_dead_process = "UPDATE app.jobs SET status = 'PROCESSING', claim_token = job_id,
        next_retry_at = now() - interval '1 h', lease_until = now() - interval '1 s'";
    lost.execute(by_a_dead_process).await.unwrap();
    lost.commit().await.unwrap();
    has_run("lost").await;

    let mut torn = bench.pool().begin().await.unwrap();
    bench.jobs.enqueue(&mut torn, &task("torn")).await.unwrap();
    let without_a_lease = "UPDATE app.jobs SET status = 'PROCESSING', claim_token = job_id,
        next_retry_at = now() - interval '1 h', lease_until = NULL";
    torn.execute(without_a_lease).await.unwrap();
    torn.commit().await.unwrap();
    has_run("torn").await;
    assert_eq!(supervisor.stop(GRACE).await, Stopped::Finished);
}
