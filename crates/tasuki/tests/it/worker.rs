//! Workers under a supervisor: panics, failures, wakes, stops.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tasuki::Clock;
use tasuki::worker::{
    Bell, Error, Health, Listener, Ringer, State, Stopped, Supervisor, Tick, Wake, Worker, drain,
};
use tasuki_stack::Postgres;
use tasuki_testkit::{TestDb, breakable, eventually};
use tokio::sync::Notify;

const FOREVER: Duration = Duration::from_secs(3600);
const GRACE: Duration = Duration::from_secs(10);

/// A worker whose ticks do what a test says.
struct Scripted<F> {
    tick: F,
    poll: Duration,
    released: Arc<AtomicBool>,
}

impl<F> Scripted<F> {
    fn new(tick: F) -> Self {
        Self {
            tick,
            poll: FOREVER,
            released: Arc::default(),
        }
    }
}

impl<F, R> Worker for Scripted<F>
where
    F: Fn() -> R + Send + Sync + 'static,
    R: Future<Output = Result<Tick, Error>> + Send,
{
    fn name(&self) -> &str {
        "test.scripted"
    }

    fn poll_interval(&self) -> Duration {
        self.poll
    }

    fn stall_after(&self) -> Duration {
        Duration::from_millis(50)
    }

    async fn tick(&self) -> Result<Tick, Error> {
        (self.tick)().await
    }

    async fn release(&self) {
        self.released.store(true, Ordering::SeqCst);
    }
}

fn supervisor() -> Supervisor {
    Supervisor::new(Clock::system())
}

fn only(supervisor: &Supervisor) -> Health {
    supervisor.health().pop().unwrap()
}

fn count(counter: &AtomicUsize) -> usize {
    counter.load(Ordering::SeqCst)
}

#[tokio::test]
async fn a_worker_that_panics_is_restarted_and_goes_on() {
    let runs = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&runs);
    let supervisor = supervisor();
    supervisor.start(Scripted::new(move || {
        let run = seen.fetch_add(1, Ordering::SeqCst);
        async move {
            assert!(run >= 2, "on purpose");
            Ok(Tick::Idle)
        }
    }));

    let health = eventually("the third tick succeeds", async || {
        Some(only(&supervisor)).filter(|health| health.ticks == 3)
    })
    .await;

    assert_eq!(health.panics, 2);
    assert_eq!(health.state, State::Waiting);
    assert_eq!(health.last_error, None);
    assert_eq!(supervisor.stop(GRACE).await, Stopped::Finished);
}

#[tokio::test]
async fn one_worker_that_panics_does_not_disturb_another() {
    let runs = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&runs);
    let supervisor = supervisor();
    supervisor.start(Scripted::new(|| async { panic!("on purpose") }));
    let wake = supervisor.start(Scripted::new(move || {
        seen.fetch_add(1, Ordering::SeqCst);
        async { Ok(Tick::Idle) }
    }));

    for expected in 1..=20 {
        eventually("the other worker ticks", async || {
            (count(&runs) >= expected).then_some(())
        })
        .await;
        wake.wake();
    }
    assert_eq!(supervisor.stop(GRACE).await, Stopped::Finished);
}

#[tokio::test]
async fn a_wake_during_a_tick_is_not_lost() {
    let runs = Arc::new(AtomicUsize::new(0));
    let (entered, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (seen, inside, gate) = (Arc::clone(&runs), Arc::clone(&entered), Arc::clone(&go_on));
    let supervisor = supervisor();
    let wake = supervisor.start(Scripted::new(move || {
        let (seen, inside, gate) = (Arc::clone(&seen), Arc::clone(&inside), Arc::clone(&gate));
        async move {
            inside.notify_one();
            gate.notified().await;
            seen.fetch_add(1, Ordering::SeqCst);
            Ok(Tick::Idle)
        }
    }));

    entered.notified().await;
    wake.wake(); // While the first tick runs; its poll interval is an hour.
    go_on.notify_one();
    entered.notified().await;
    go_on.notify_one();

    eventually("the second tick ends", async || {
        (count(&runs) == 2).then_some(())
    })
    .await;
    assert_eq!(supervisor.stop(GRACE).await, Stopped::Finished);
}

#[tokio::test(start_paused = true)]
async fn wakes_do_not_shorten_the_backoff_of_a_failing_worker() {
    let runs = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&runs);
    let supervisor = supervisor();
    let wake = supervisor.start(Scripted::new(move || {
        seen.fetch_add(1, Ordering::SeqCst);
        async { Err("the database is away".into()) }
    }));

    for _ in 0..1000 {
        wake.wake();
        // sleep: time is paused, so that this passes ten virtual seconds at once.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    // 250 ms, 500 ms, 1 s, 2 s, 4 s, 8 s, each halved at the most by jitter.
    assert!((3..=7).contains(&count(&runs)), "{} ticks", count(&runs));
    assert_eq!(only(&supervisor).state, State::BackingOff);
    assert_eq!(supervisor.stop(GRACE).await, Stopped::Finished);
}

#[tokio::test]
async fn a_stop_waits_for_the_running_tick_and_begins_no_other() {
    let ended = Arc::new(AtomicUsize::new(0));
    let (entered, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (seen, inside, gate) = (Arc::clone(&ended), Arc::clone(&entered), Arc::clone(&go_on));
    let supervisor = supervisor();
    let worker = Scripted::new(move || {
        let (seen, inside, gate) = (Arc::clone(&seen), Arc::clone(&inside), Arc::clone(&gate));
        async move {
            inside.notify_one();
            gate.notified().await;
            seen.fetch_add(1, Ordering::SeqCst);
            Ok(Tick::Worked) // There is more to do, but not after a stop.
        }
    });
    let released = Arc::clone(&worker.released);
    supervisor.start(worker);
    entered.notified().await;

    let (stopped, ()) = tokio::join!(supervisor.stop(GRACE), async { go_on.notify_one() });

    assert_eq!(stopped, Stopped::Finished);
    assert_eq!(count(&ended), 1);
    assert!(released.load(Ordering::SeqCst));
    assert_eq!(only(&supervisor).state, State::Stopped);
}

#[tokio::test]
async fn a_tick_that_outlives_the_grace_time_is_cut_and_its_claims_are_given_back() {
    let worker = Scripted::new(|| async {
        std::future::pending::<()>().await;
        Ok(Tick::Idle)
    });
    let released = Arc::clone(&worker.released);
    let supervisor = supervisor();
    supervisor.start(worker);
    eventually("the tick runs for too long", async || {
        (only(&supervisor).state == State::Stalled).then_some(())
    })
    .await;

    assert_eq!(
        supervisor.stop(Duration::from_millis(1)).await,
        Stopped::Cut
    );
    assert!(released.load(Ordering::SeqCst));
}

#[tokio::test]
async fn drain_runs_the_production_tick_until_it_is_idle() {
    let left = Arc::new(AtomicUsize::new(3));
    let seen = Arc::clone(&left);
    let worker = Scripted::new(move || {
        let had_work = seen
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
            .is_ok();
        async move { Ok(if had_work { Tick::Worked } else { Tick::Idle }) }
    });
    assert_eq!(drain(&worker).await.unwrap(), 3);

    let endless = Scripted::new(|| async { Ok(Tick::Worked) });
    let error = drain(&endless).await.unwrap_err();
    assert!(error.to_string().contains("still has work"), "{error}");
}

/// A worker that counts its wakes.
fn counting(wakes: &Arc<AtomicUsize>) -> impl Worker {
    let seen = Arc::clone(wakes);
    Scripted::new(move || {
        seen.fetch_add(1, Ordering::SeqCst);
        async { Ok(Tick::Idle) }
    })
}

async fn notify(pool: &sqlx::PgPool, channel: &str) {
    sqlx::query("SELECT pg_notify($1, '')")
        .bind(channel)
        .execute(pool)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_notification_wakes_the_worker_of_its_channel_alone() {
    let db = TestDb::new(&[]).await;
    let (orders, jobs) = (Arc::default(), Arc::default());
    let supervisor = supervisor();
    let (wake_orders, wake_jobs) = (
        supervisor.start(counting(&orders)),
        supervisor.start(counting(&jobs)),
    );
    let listener = Listener::new("test.listener", db.pool.clone())
        .route("orders", &wake_orders)
        .route("jobs", &wake_jobs);
    supervisor.start(listener);
    // Each ticks at its start and once more when the listener is connected.
    eventually("both were woken by the connection", async || {
        (count(&orders) == 2 && count(&jobs) == 2).then_some(())
    })
    .await;

    notify(&db.pool, "orders").await;

    eventually("the worker of the channel ticks", async || {
        (count(&orders) == 3).then_some(())
    })
    .await;
    assert_eq!(count(&jobs), 2);
    assert_eq!(supervisor.stop(GRACE).await, Stopped::Finished);
}

#[tokio::test]
async fn a_ring_that_was_heard_here_does_not_come_back_from_the_database() {
    let db = TestDb::new(&[]).await;
    let (here, elsewhere) = (Arc::default(), Arc::default());
    let bell = Bell::new();
    let supervisor = supervisor();
    bell.wakes(&supervisor.start(counting(&here)));
    let wake_elsewhere = supervisor.start(counting(&elsewhere));
    supervisor.start(Ringer::new("test.ringer", db.pool.clone(), "orders", &bell));
    let listener = Listener::new("test.listener", db.pool.clone())
        .rings("orders", &bell)
        .route("orders", &wake_elsewhere);
    supervisor.start(listener);
    eventually("both were woken by the connection", async || {
        (count(&here) == 2 && count(&elsewhere) == 2).then_some(())
    })
    .await;

    for rings in 3..10 {
        bell.ring();
        eventually("the others have heard it", async || {
            (count(&elsewhere) == rings).then_some(())
        })
        .await;
    }

    assert_eq!(count(&here), 9);
    assert_eq!(supervisor.stop(GRACE).await, Stopped::Finished);
}

#[tokio::test]
async fn a_listener_whose_connection_was_cut_comes_back_and_wakes_everyone() {
    let postgres = Postgres::start(&breakable("listen")).await.unwrap();
    let proxy = postgres.proxy().await.unwrap();
    let through = sqlx::PgPool::connect_lazy(&postgres.url_via(&proxy, "postgres")).unwrap();
    let wakes = Arc::default();
    let supervisor = supervisor();
    let wake: Wake = supervisor.start(counting(&wakes));
    supervisor.start(Listener::new("test.listener", through).route("orders", &wake));
    eventually("the listener is connected", async || {
        (count(&wakes) == 2).then_some(())
    })
    .await;

    proxy.reset().await.unwrap();

    // Nobody notified: what may have been missed is the reason.
    eventually("the worker is woken by the new connection", async || {
        (count(&wakes) == 3).then_some(())
    })
    .await;
    assert_eq!(supervisor.stop(GRACE).await, Stopped::Finished);
}

#[tokio::test]
async fn a_listener_whose_connection_went_silent_notices_and_comes_back() {
    let postgres = Postgres::start(&breakable("silent")).await.unwrap();
    let proxy = postgres.proxy().await.unwrap();
    let through = sqlx::PgPool::connect_lazy(&postgres.url_via(&proxy, "postgres")).unwrap();
    let wakes = Arc::default();
    let supervisor = supervisor();
    let wake: Wake = supervisor.start(counting(&wakes));
    let listener = Listener::new("test.listener", through)
        .route("orders", &wake)
        .ping_after(Duration::from_millis(100));
    supervisor.start(listener);
    eventually("the listener is connected", async || {
        (count(&wakes) == 2).then_some(())
    })
    .await;

    proxy.blackhole().await.unwrap();
    eventually("the listener finds nobody there", async || {
        let mut health = supervisor.health().into_iter();
        health
            .any(|worker| worker.name == "test.listener" && worker.failures > 0)
            .then_some(())
    })
    .await;
    proxy.heal().await.unwrap();

    eventually("the worker is woken by the new connection", async || {
        (count(&wakes) >= 3).then_some(())
    })
    .await;
    assert_eq!(supervisor.stop(GRACE).await, Stopped::Finished);
}

#[tokio::test(start_paused = true)]
async fn a_tick_that_hangs_is_cut_at_its_limit_and_the_next_one_may_succeed() {
    let runs = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&runs);
    let supervisor = supervisor();
    supervisor.start(Scripted::new(move || {
        let first = seen.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            if first {
                std::future::pending::<()>().await;
            }
            Ok(Tick::Idle)
        }
    }));

    // Time is paused: the five minutes of the limit pass at once.
    let deadline = tokio::time::Instant::now() + FOREVER / 2;
    while count(&runs) < 2 && tokio::time::Instant::now() < deadline {
        tokio::task::yield_now().await;
        tokio::time::advance(Duration::from_secs(1)).await;
    }

    assert_eq!(count(&runs), 2);
    assert_eq!(only(&supervisor).failures, 1);
    assert_eq!(supervisor.stop(GRACE).await, Stopped::Finished);
}
