//! Claims: lost, renewed, given back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tasuki::worker::{Stopped, Worker};
use tasuki_testkit::eventually;
use tokio::sync::Notify;

use super::*;
use crate::counted::Counts;

/// A handler that says that it has begun, and then waits to be let on.
#[derive(Clone, Debug, Default)]
struct Gate {
    begun: Arc<Notify>,
    open: Arc<Notify>,
}

impl Gate {
    async fn pass(&self) {
        self.begun.notify_one();
        self.open.notified().await;
    }
}

#[tokio::test]
async fn a_worker_that_was_away_for_longer_than_its_lease_settles_nothing() {
    let counts = Counts::default();
    let _here = metrics::set_default_local_recorder(&counts);
    let bench = Bench::new().await;
    let (gate, heard) = (Gate::default(), Heard::listen());
    let inside = gate.clone();
    let slow = bench.worker(move |_, _| {
        let gate = inside.clone();
        async move {
            gate.pass().await;
            Ok(())
        }
    });
    let quick = bench.worker(|_, _| async { Err(Failure::retry("by the second worker")) });
    bench.push(&unique("a")).await;

    let (claimed, ()) = tokio::join!(slow.drain(), async {
        gate.begun.notified().await;
        bench.expire().await;
        assert_eq!(quick.drain().await.unwrap(), 1);
        gate.open.notify_one();
    });

    assert_eq!(claimed.unwrap(), 1);
    assert_eq!(heard.lost(), 1);
    let lost = counts.get("tasuki_lease_lock_lost_total", "jobs.default");
    assert_eq!(lost, 1);
    // Only the failed attempt counts; the late success changed nothing.
    assert_eq!(bench.only().await, ("PENDING".to_owned(), 1));
    let error = bench.text("SELECT last_error FROM app.jobs").await;
    assert_eq!(error.as_deref(), Some("by the second worker"));
    assert_eq!(
        bench.number("SELECT count(*) FROM app.job_uniques").await,
        1
    );
}

#[tokio::test]
async fn a_worker_that_reclaims_its_own_job_is_fenced_from_its_own_past() {
    let bench = Bench::new().await;
    let (gate, heard) = (Gate::default(), Heard::listen());
    let inside = gate.clone();
    let runs = Arc::new(AtomicUsize::new(0));
    let worker = bench.worker(move |_, _| {
        let gate = inside.clone();
        let first = runs.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            if first {
                gate.pass().await;
                return Ok(());
            }
            Err(Failure::retry("the second attempt"))
        }
    });
    bench.push(&task("a")).await;
    let supervisor = start(worker);
    gate.begun.notified().await;
    bench.expire().await;
    eventually("the second attempt has failed", async || {
        (bench.only().await == ("PENDING".to_owned(), 1)).then_some(())
    })
    .await;

    gate.open.notify_one();
    eventually("the first one's success is refused", async || {
        (heard.lost() == 1).then_some(())
    })
    .await;

    assert_eq!(bench.only().await, ("PENDING".to_owned(), 1));
    assert_eq!(supervisor.stop(GRACE).await, Stopped::Finished);
}

/// A pool with one connection to the database of `bench`.
async fn one_connection(bench: &Bench) -> PgPool {
    let options = sqlx::postgres::PgPoolOptions::new().max_connections(1);
    let one = options.connect(&bench.db.url()).await;
    one.unwrap()
}

#[tokio::test]
async fn a_connection_that_a_handler_left_in_a_transaction_is_none_of_the_workers() {
    let bench = Bench::new().await;
    let pool = one_connection(&bench).await;
    let shared = pool.clone();
    let registry = Registry::new().on::<Task, _>(move |_, _| {
        let pool = shared.clone();
        async move {
            // As a begin does that is dropped before it is answered.
            let mut connection = pool.acquire().await?;
            sqlx::query("BEGIN").execute(&mut *connection).await?;
            Ok::<(), Failure>(())
        }
    });
    let worker = default_queue()
        .concurrency(1)
        .worker(&bench.jobs, &pool, &registry)
        .unwrap();
    for name in ["a", "b", "c"] {
        bench.push(&task(name)).await;
    }
    worker.drain().await.unwrap();
    assert_eq!(bench.left().await, 0, "what is settled is committed");
}

#[tokio::test]
async fn handlers_that_hold_every_connection_do_not_hold_up_the_worker() {
    let bench = Bench::new().await;
    let pool = one_connection(&bench).await;
    let (gate, shared) = (Gate::default(), pool.clone());
    let inside = gate.clone();
    let registry = Registry::new().on::<Task, _>(move |job: Task, _| {
        let (gate, pool) = (inside.clone(), shared.clone());
        async move {
            if job.name == "greedy" {
                let _held = pool.acquire().await?;
                gate.pass().await;
            }
            Ok::<(), Failure>(())
        }
    });
    let supervisor = start(
        default_queue()
            .worker(&bench.jobs, &pool, &registry)
            .unwrap(),
    );
    bench.push(&task("greedy")).await;
    gate.begun.notified().await;
    bench.push(&task("modest")).await;
    eventually("the other one is done", async || {
        (bench.left().await == 1).then_some(())
    })
    .await;
    gate.open.notify_one();
    assert_eq!(supervisor.stop(GRACE).await, Stopped::Finished);
    assert_eq!(bench.left().await, 0);
}

#[tokio::test]
async fn a_job_that_outlives_its_lease_is_renewed_and_runs_once() {
    let bench = Bench::new().await;
    let ran = Ran::default();
    let lease = Duration::from_millis(600);
    let workers = [0, 1].map(|_| {
        let seen = ran.clone();
        let registry = Registry::new().on::<Task, _>(move |_, _| {
            let seen = seen.clone();
            async move {
                seen.add("begun");
                // sleep: the subject is time itself, three leases of it.
                tokio::time::sleep(lease * 3).await;
                Ok::<(), Failure>(())
            }
        });
        // The poll is longer than the lease: renewals must not depend on it.
        let queue = Queue::new("default").lease(lease).poll(HOUR);
        start(bench.worker_of(&queue, &registry))
    });
    bench.push(&task("long")).await;
    eventually("it has finished", async || {
        bench.jobs.ring(); // Whoever may claim it again, does.
        (bench.left().await == 0).then_some(())
    })
    .await;

    assert_eq!(ran.names(), ["begun"]);
    for supervisor in workers {
        assert_eq!(supervisor.stop(GRACE).await, Stopped::Finished);
    }
}

#[tokio::test]
async fn a_claim_that_hangs_holds_up_no_renewal() {
    let bench = Bench::new().await;
    let (gate, heard) = (Gate::default(), Heard::listen());
    let inside = gate.clone();
    let registry = Registry::new().on::<Task, _>(move |_, _| {
        let gate = inside.clone();
        async move {
            gate.pass().await;
            Ok::<(), Failure>(())
        }
    });
    bench.push(&task("a")).await;
    // Long enough for the second, whose lease begins when its claim does.
    let lease = Duration::from_secs(4);
    let queue = default_queue().lease(lease).concurrency(2);
    let supervisor = start(bench.worker_of(&queue, &registry));
    gate.begun.notified().await;
    let lock = hang_claims(&bench).await;
    bench.push(&task("hangs")).await;
    a_claim_hangs(&bench).await;

    bench
        .execute("CREATE TABLE app.hung AS SELECT max(lease_until) AS lease FROM app.jobs")
        .await;
    let renewed = "SELECT count(*) FROM app.jobs, app.hung WHERE lease_until > hung.lease";
    eventually("the lease of the first is renewed", async || {
        (bench.number(renewed).await == 1).then_some(())
    })
    .await;
    lock.commit().await.unwrap();
    gate.begun.notified().await;
    gate.open.notify_one();
    eventually("one is done", async || {
        (bench.left().await == 1).then_some(())
    })
    .await;
    gate.open.notify_one();
    assert_eq!(supervisor.stop(GRACE).await, Stopped::Finished);
    assert_eq!(bench.left().await, 0);
    assert_eq!(heard.lost(), 0);
}

#[tokio::test]
async fn a_lost_claim_ends_its_work_at_the_next_renewal() {
    let bench = Bench::new().await;
    let gate = Gate::default();
    let token = Arc::new(Mutex::new(None));
    let (inside, given) = (gate.clone(), Arc::clone(&token));
    let registry = Registry::new().on::<Task, _>(move |_, context: Context| {
        *given.lock().unwrap() = Some(context.cancelled().clone());
        let gate = inside.clone();
        async move {
            gate.pass().await;
            Ok::<(), Failure>(())
        }
    });
    let queue = default_queue().lease(Duration::from_millis(600));
    bench.push(&task("a")).await;
    let supervisor = start(bench.worker_of(&queue, &registry));
    gate.begun.notified().await;
    // Somebody else has it.
    bench
        .execute(
            "UPDATE app.jobs SET claim_token = gen_random_uuid(), lease_until = now() + interval '1 h'",
        )
        .await;

    eventually("the token is fired", async || {
        let token = token.lock().unwrap();
        token
            .as_ref()
            .is_some_and(tokio_util::sync::CancellationToken::is_cancelled)
            .then_some(())
    })
    .await;
    assert_eq!(supervisor.stop(GRACE).await, Stopped::Finished);
    assert_eq!(bench.only().await.0, "PROCESSING");
}

#[tokio::test]
async fn a_stop_lets_the_running_finish_and_gives_the_waiting_back_at_once() {
    let bench = Bench::new().await;
    let (gate, ran) = (Gate::default(), Ran::default());
    let (inside, seen) = (gate.clone(), ran.clone());
    let registry = Registry::new().on::<Task, _>(move |job: Task, context: Context| {
        let (gate, seen) = (inside.clone(), seen.clone());
        async move {
            if job.name == "slow" {
                gate.begun.notify_one();
                context.stopping().cancelled().await;
                gate.open.notified().await;
                seen.add("slow");
            }
            Ok::<(), Failure>(())
        }
    });
    let worker = bench.worker_of(&default_queue().concurrency(1), &registry);
    // Quick jobs teach the worker to hold more than it can run.
    let mut connection = bench.pool().acquire().await.unwrap();
    let quick: Vec<_> = (0..300).map(|_| task("quick")).collect();
    bench
        .jobs
        .enqueue_all(&mut connection, &quick)
        .await
        .unwrap();
    worker.drain().await.unwrap();
    let slow: Vec<_> = (0..10).map(|_| task("slow")).collect();
    bench
        .jobs
        .enqueue_all(&mut connection, &slow)
        .await
        .unwrap();
    let supervisor = start(worker);
    gate.begun.notified().await;
    let claimed = "SELECT count(*) FROM app.jobs WHERE status = 'PROCESSING'";
    eventually("more are held than run", async || {
        (bench.number(claimed).await > 1).then_some(())
    })
    .await;

    let (stopped, ()) = tokio::join!(supervisor.stop(GRACE), async {
        eventually("only the running one is held", async || {
            (bench.number(claimed).await == 1).then_some(())
        })
        .await;
        gate.open.notify_one();
    });

    assert_eq!(stopped, Stopped::Finished);
    assert_eq!(ran.names(), ["slow"]);
    let waiting = "SELECT count(*) FROM app.jobs WHERE status = 'PENDING' AND attempt_count = 0
        AND next_retry_at <= now() AND claim_token IS NULL";
    assert_eq!(bench.number(waiting).await, 9);
}

#[tokio::test]
async fn a_job_that_is_cut_by_a_stop_goes_back_at_once_and_costs_nothing() {
    let bench = Bench::new().await;
    let gate = Gate::default();
    let inside = gate.clone();
    let worker = bench.worker(move |_, _| {
        let gate = inside.clone();
        async move {
            gate.pass().await;
            Ok(())
        }
    });
    bench.push(&task("a")).await;
    let supervisor = start(worker);
    gate.begun.notified().await;

    assert_eq!(
        supervisor.stop(Duration::from_millis(1)).await,
        Stopped::Cut
    );

    assert_eq!(bench.only().await, ("PENDING".to_owned(), 0));
    let ran = Ran::default();
    assert_eq!(bench.worker(ran.handler()).drain().await.unwrap(), 1);
    assert_eq!(ran.names(), ["a"]);
}

#[tokio::test]
async fn a_claim_that_is_cut_on_its_way_keeps_nothing() {
    let bench = Bench::new().await;
    let worker = bench.worker(|_, _| std::future::pending::<Result<(), Failure>>());
    let lock = hang_claims(&bench).await;
    bench.push(&task("a")).await;
    tokio::select! {
        _ = worker.tick() => panic!("the claim does not hang"),
        () = a_claim_hangs(&bench) => {}
    }

    let (_, committed) = tokio::join!(worker.release(), lock.commit());

    committed.unwrap();
    // Who stood in line for the table before us has been served when we have it.
    let mut last = bench.pool().begin().await.unwrap();
    sqlx::query("LOCK TABLE app.jobs IN ACCESS EXCLUSIVE MODE")
        .execute(&mut *last)
        .await
        .unwrap();
    let pending: Vec<bool> = sqlx::query_scalar("SELECT status = 'PENDING' FROM app.jobs")
        .fetch_all(&mut *last)
        .await
        .unwrap();
    assert_eq!(pending, [true]);
}

#[tokio::test]
async fn a_claim_that_came_after_its_tick_was_cut_is_run_by_the_next_tick() {
    let bench = Bench::new().await;
    let ran = Ran::default();
    let registry = Registry::new().on::<Task, _>(ran.handler());
    let worker = bench.worker_of(&default_queue().concurrency(1), &registry);
    let lock = hang_claims(&bench).await;
    bench.push(&task("a")).await;
    tokio::select! {
        _ = worker.tick() => panic!("the claim does not hang"),
        () = a_claim_hangs(&bench) => {}
    }
    lock.commit().await.unwrap();
    eventually("it is claimed", async || {
        (bench.only().await.0 == "PROCESSING").then_some(())
    })
    .await;
    for _ in 0..20 {
        bench.left().await; // Meanwhile the answer arrives, too.
    }

    worker.drain().await.unwrap();

    assert_eq!(ran.names(), ["a"]);
}

#[tokio::test]
async fn a_claim_that_is_never_answered_is_given_up_and_another_is_made() {
    let bench = Bench::new().await;
    let ran = Ran::default();
    let supervisor = start(bench.worker(ran.handler()));
    let lock = hang_claims(&bench).await;
    bench.push(&task("hangs")).await;
    a_claim_hangs(&bench).await;
    bench.push(&task("b")).await;

    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(61)).await;
    tokio::time::resume();

    eventually("the next claim gets the other job", async || {
        bench.jobs.ring();
        (ran.names() == ["b"]).then_some(())
    })
    .await;
    lock.commit().await.unwrap();
    assert_eq!(supervisor.stop(GRACE).await, Stopped::Finished);
}

#[tokio::test]
async fn jobs_that_wait_for_a_slot_too_long_are_given_back_to_whoever_has_one() {
    let bench = Bench::new().await;
    let mut connection = bench.pool().acquire().await.unwrap();
    let mut tasks = vec![task("quick"); 1_000];
    tasks.extend(vec![task("slow"); 100]);
    bench
        .jobs
        .enqueue_all(&mut connection, &tasks)
        .await
        .unwrap();
    let registry = Registry::new().on::<Task, _>(|job: Task, _| async move {
        if job.name == "slow" {
            std::future::pending::<()>().await;
        }
        Ok::<(), Failure>(())
    });
    let supervisor = start(bench.worker_of(&default_queue().concurrency(2), &registry));

    let held = "SELECT count(*) FROM app.jobs WHERE status = 'PROCESSING'";
    eventually(
        "only the slow ones are left, and only two are held",
        async || (bench.left().await == 100 && bench.number(held).await == 2).then_some(()),
    )
    .await;

    assert_eq!(
        supervisor.stop(Duration::from_millis(1)).await,
        Stopped::Cut
    );
}

/// Some jobs die, with a hook that takes its time; one runs until it is told to end.
struct Slow(Arc<Notify>);

impl Handler<Task> for Slow {
    async fn run(&self, job: Task, _: Context) -> Result<(), Failure> {
        match job.name.as_str() {
            "dies" => Err(Failure::reject("no")),
            "runs" => {
                self.0.notified().await;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    async fn failed(
        &self,
        connection: &mut sqlx::PgConnection,
        _: &Task,
        _: &str,
    ) -> Result<(), BoxError> {
        sqlx::query("SELECT pg_sleep(0.2)")
            .execute(connection)
            .await?;
        Ok(())
    }
}

#[tokio::test]
async fn a_hook_that_takes_its_time_holds_up_neither_renewals_nor_settlements() {
    let bench = Bench::new().await;
    let heard = Heard::listen();
    let done = Arc::new(Notify::new());
    let registry = Registry::new().on(Slow(Arc::clone(&done)));
    let queue = default_queue()
        .lease(Duration::from_secs(2))
        .concurrency(100);
    for _ in 0..20 {
        bench.push(&task("dies")).await;
    }
    let runs = Task {
        timeout_ms: Some(60_000),
        ..task("runs")
    };
    bench.push(&runs).await;
    let supervisor = start(bench.worker_of(&queue, &registry));
    let dead = "SELECT count(*) FROM app.jobs WHERE status = 'FAILED'";
    eventually("the first are dead", async || {
        (bench.number(dead).await > 0).then_some(())
    })
    .await;

    bench.push(&task("quick")).await;
    let quick = "SELECT count(*) FROM app.jobs WHERE payload ->> 'name' = 'quick'";
    eventually("the quick one is settled", async || {
        (bench.number(quick).await == 0).then_some(())
    })
    .await;

    assert!(
        bench.number(dead).await < 20,
        "it did not wait for them all"
    );
    eventually("all of them are dead", async || {
        (bench.number(dead).await == 20).then_some(())
    })
    .await;
    done.notify_one();
    assert_eq!(supervisor.stop(GRACE).await, Stopped::Finished);
    assert_eq!(heard.lost(), 0);
    assert_eq!(bench.left().await, 20);
}

/// From now on a claim waits, inside of its statement, for the transaction that this returns; but
/// for jobs named `b` it does not.
async fn hang_claims(bench: &Bench) -> sqlx::Transaction<'static, sqlx::Postgres> {
    bench
        .execute(
            "CREATE FUNCTION app.hang() RETURNS trigger LANGUAGE plpgsql AS
             'BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NEW; END'",
        )
        .await;
    bench
        .execute(
            "CREATE TRIGGER hang BEFORE UPDATE ON app.jobs FOR EACH ROW
             WHEN (OLD.status = 'PENDING' AND OLD.payload ->> 'name' <> 'b') EXECUTE FUNCTION app.hang()",
        )
        .await;
    let mut lock = bench.pool().begin().await.unwrap();
    sqlx::query("SELECT pg_advisory_xact_lock(7)")
        .execute(&mut *lock)
        .await
        .unwrap();
    lock
}

async fn a_claim_hangs(bench: &Bench) {
    let waiting = "SELECT count(*) FROM pg_locks
                   WHERE locktype = 'advisory' AND objid = 7 AND NOT granted
                       AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    eventually("the claim hangs", async || {
        (bench.number(waiting).await == 1).then_some(())
    })
    .await;
}
