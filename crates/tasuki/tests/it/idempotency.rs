//! A request that is sent twice is answered twice and done once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Acquire, PgConnection, PgPool};
use tasuki::Schema;
use tasuki::idempotency::{Answer, Error, Keys, LockNumber, Outcome, Reply, Request, RequestHash};
use tasuki_testkit::TestDb;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::counted::Counts;
use crate::dropped;

async fn database() -> TestDb {
    let db = TestDb::new(&[tasuki::migrate::library(&schema())]).await;
    sqlx::query("CREATE TABLE app.effects (name text NOT NULL)")
        .execute(&db.pool)
        .await
        .unwrap();
    db
}

fn schema() -> Schema {
    Schema::new("app").unwrap()
}

fn keys() -> Keys {
    Keys::new(&schema())
}

fn request(key: &str) -> Request {
    Request::new("shop", key, RequestHash::of("POST", "/", b"{}")).unwrap()
}

/// A pool of another process, as it were.
fn pool(db: &TestDb, connections: u32, settings: &[(&str, &str)]) -> PgPool {
    let options: PgConnectOptions = db.url().parse().unwrap();
    PgPoolOptions::new()
        .max_connections(connections)
        .connect_lazy_with(options.options(settings.iter().copied()))
}

async fn effect(tx: &mut PgConnection, name: &str) -> Result<(), Error> {
    sqlx::query("INSERT INTO app.effects VALUES ($1)")
        .bind(name)
        .execute(tx)
        .await?;
    Ok(())
}

async fn effects(db: &TestDb) -> Vec<String> {
    let names = sqlx::query_scalar("SELECT name FROM app.effects ORDER BY name");
    names.fetch_all(&db.pool).await.unwrap()
}

async fn rows(db: &TestDb) -> i64 {
    let count = sqlx::query_scalar("SELECT count(*) FROM app.idempotency_keys");
    count.fetch_one(&db.pool).await.unwrap()
}

async fn expire_all(db: &TestDb) {
    sqlx::query("UPDATE app.idempotency_keys SET expires_at = now() - interval '1 second'")
        .execute(&db.pool)
        .await
        .unwrap();
}

/// Has the effect `name` and answers with it.
async fn grant(
    keys: &Keys,
    pool: &PgPool,
    request: &Request,
    name: &str,
) -> Result<Outcome, Error> {
    keys.once(pool, request, async |tx| {
        effect(tx, name).await?;
        Ok(Answer::Decided(Reply::new(200, name.to_owned())))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_twins_have_one_effect_and_one_answer_through_five_connections() {
    let db = database().await;
    let (keys, pool) = (keys(), pool(&db, 5, &[]));
    let runs = Arc::new(AtomicUsize::new(0));
    let mut twins = JoinSet::new();
    for _ in 0..64 {
        let (keys, pool, runs) = (keys.clone(), pool.clone(), Arc::clone(&runs));
        twins.spawn(async move {
            keys.once(&pool, &request("k"), async |tx| {
                let run = runs.fetch_add(1, Ordering::SeqCst);
                effect(tx, "granted").await?;
                let reply = Reply::new(201, format!("run {run}")).header("location", "/x");
                Ok::<_, Error>(Answer::Decided(reply))
            })
            .await
            .unwrap()
        });
    }
    let outcomes = twins.join_all().await;

    let first = outcomes[0].reply();
    assert!(outcomes.iter().all(|outcome| outcome.reply() == first));
    let executed = |outcome: &&Outcome| matches!(outcome, Outcome::Executed(_));
    assert_eq!(outcomes.iter().filter(executed).count(), 1);
    assert_eq!(effects(&db).await, ["granted"]);
    assert_eq!(rows(&db).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn twins_in_other_processes_see_what_was_committed_while_they_waited() {
    let db = database().await;
    // Also where the database's default would show them an older state.
    let strict = [("default_transaction_isolation", "repeatable read")];
    let mut tasks = JoinSet::new();
    for process in 0..4 {
        let (keys, pool) = (keys(), pool(&db, 2, &strict));
        tasks.spawn(async move {
            let mut answers = Vec::new();
            for round in 0..25 {
                let request = request(&format!("k{round}"));
                let name = format!("{round} by {process}");
                let outcome = grant(&keys, &pool, &request, &name).await.unwrap();
                answers.push(outcome.into_reply());
            }
            answers
        });
    }
    let answers = tasks.join_all().await;

    assert!(answers.iter().all(|process| *process == answers[0]));
    assert_eq!(effects(&db).await.len(), 25);
}

#[tokio::test]
async fn a_twin_that_waited_for_the_lock_in_the_database_replays_what_its_holder_stored() {
    let db = database().await;
    let (first, second) = (keys(), keys());
    let (started, start) = oneshot::channel();
    let (go, going) = oneshot::channel::<()>();
    let asked = request("k");
    let working = first.once(&db.pool, &asked, async |tx| {
        effect(tx, "first").await?;
        started.send(()).unwrap();
        going.await.unwrap();
        Ok::<_, Error>(Answer::Decided(Reply::new(200, "first")))
    });
    let twin = async {
        start.await.unwrap();
        grant(&second, &db.pool, &asked, "second").await
    };
    let letting_go = async {
        dropped::until_waiting_for_locks(&db.pool, 1).await;
        go.send(()).unwrap();
    };
    let (worked, waited, ()) = tokio::join!(working, twin, letting_go);

    assert_eq!(worked.unwrap(), Outcome::Executed(Reply::new(200, "first")));
    assert_eq!(waited.unwrap(), Outcome::Replayed(Reply::new(200, "first")));
    assert_eq!(effects(&db).await, ["first"]);
}

#[tokio::test]
async fn another_request_under_a_used_key_is_refused_and_changes_nothing() {
    let db = database().await;
    let keys = keys();
    grant(&keys, &db.pool, &request("k"), "first")
        .await
        .unwrap();

    let other = Request::new("shop", "k", RequestHash::of("POST", "/", b"{\"a\":1}")).unwrap();
    let refused = grant(&keys, &db.pool, &other, "other").await;
    assert!(matches!(refused, Err(Error::Conflict)), "{refused:?}");

    let again = grant(&keys, &db.pool, &request("k"), "again")
        .await
        .unwrap();
    assert_eq!(again, Outcome::Replayed(Reply::new(200, "first")));
    assert_eq!(effects(&db).await, ["first"]);
}

#[tokio::test]
async fn callers_do_not_share_keys() {
    let db = database().await;
    let keys = keys();
    let hash = RequestHash::of("POST", "/", b"");
    for caller in ["alice", "bob"] {
        let request = Request::new(caller, "k", hash).unwrap();
        let outcome = grant(&keys, &db.pool, &request, caller).await.unwrap();
        assert_eq!(outcome, Outcome::Executed(Reply::new(200, caller)));
    }
    assert_eq!(effects(&db).await, ["alice", "bob"]);
}

#[tokio::test]
async fn a_decision_against_is_repeated_byte_for_byte_too() {
    let db = database().await;
    let body: Vec<u8> = (0..=255).collect();
    let reply = Reply::new(409, body)
        .header("x-b", b"\xff\xe9 \t.".as_slice())
        .header("x-a", "1")
        .header("x-b", "2");
    let (asked, stored) = (request("k"), reply.clone());
    let outcome = keys()
        .once(&db.pool, &asked, async |_| {
            Ok::<_, Error>(Answer::Decided(stored))
        })
        .await;
    assert_eq!(outcome.unwrap(), Outcome::Executed(reply.clone()));

    let again = grant(&keys(), &db.pool, &asked, "again").await.unwrap();
    assert_eq!(again, Outcome::Replayed(reply));
    let status: String = sqlx::query_scalar("SELECT status FROM app.idempotency_keys")
        .fetch_one(&db.pool)
        .await
        .unwrap();
    assert_eq!(status, "failed");
}

#[tokio::test]
async fn what_nobody_decided_is_rolled_back_and_a_retry_succeeds() {
    let db = database().await;
    let (keys, asked) = (keys(), request("k"));
    let undecided = keys
        .once(&db.pool, &asked, async |tx| {
            effect(tx, "half").await?;
            Ok::<_, Error>(Answer::Undecided(Reply::new(503, "later")))
        })
        .await;
    assert_eq!(
        undecided.unwrap(),
        Outcome::Undecided(Reply::new(503, "later"))
    );
    let failed = keys
        .once(&db.pool, &asked, async |tx| {
            effect(tx, "half").await?;
            Err::<Answer, _>(Error::InvalidKey)
        })
        .await;
    assert!(matches!(failed, Err(Error::InvalidKey)));
    assert_eq!((effects(&db).await.len(), rows(&db).await), (0, 0));

    let outcome = grant(&keys, &db.pool, &asked, "done").await.unwrap();
    assert_eq!(outcome, Outcome::Executed(Reply::new(200, "done")));
}

#[tokio::test]
async fn an_answer_whose_time_is_over_makes_room_for_a_new_one() {
    let db = database().await;
    let keys = keys();
    grant(&keys, &db.pool, &request("k"), "first")
        .await
        .unwrap();
    expire_all(&db).await;

    let other = Request::new("shop", "k", RequestHash::of("PUT", "/", b"")).unwrap();
    let outcome = grant(&keys, &db.pool, &other, "second").await.unwrap();
    assert_eq!(outcome, Outcome::Executed(Reply::new(200, "second")));
    let again = grant(&keys, &db.pool, &other, "third").await.unwrap();
    assert_eq!(again, Outcome::Replayed(Reply::new(200, "second")));

    assert_eq!(effects(&db).await, ["first", "second"]);
    let hours: f64 = sqlx::query_scalar(
        "SELECT (extract(epoch FROM expires_at - now()) / 3600)::float8 FROM app.idempotency_keys",
    )
    .fetch_one(&db.pool)
    .await
    .unwrap();
    assert!((23.9..24.1).contains(&hours), "{hours}");
}

#[tokio::test]
async fn two_keys_with_one_lock_number_wait_for_each_other_and_never_mix() {
    let db = database().await;
    let keys = keys().colliding(LockNumber::from_raw(7));
    let (started, start) = oneshot::channel();
    let (go, going) = oneshot::channel::<()>();
    let (left, right) = (request("left"), request("right"));
    let working = keys.once(&db.pool, &left, async |tx| {
        effect(tx, "left").await?;
        started.send(()).unwrap();
        going.await.unwrap();
        Ok::<_, Error>(Answer::Decided(Reply::new(200, "left")))
    });
    let colliding = async {
        start.await.unwrap();
        grant(&keys, &db.pool, &right, "right").await
    };
    let letting_go = async {
        dropped::until_waiting_for_locks(&db.pool, 1).await;
        go.send(()).unwrap();
    };
    let (first, second, ()) = tokio::join!(working, colliding, letting_go);

    assert_eq!(first.unwrap(), Outcome::Executed(Reply::new(200, "left")));
    assert_eq!(second.unwrap(), Outcome::Executed(Reply::new(200, "right")));
    for (request, body) in [(left, "left"), (right, "right")] {
        let again = grant(&keys, &db.pool, &request, "again").await.unwrap();
        assert_eq!(again, Outcome::Replayed(Reply::new(200, body)));
    }
    assert_eq!(effects(&db).await, ["left", "right"]);
}

#[tokio::test]
async fn a_twin_waits_no_longer_than_it_may_and_the_key_is_free_afterwards() {
    let db = database().await;
    let patient = Duration::from_millis(150);
    let one = keys().wait(patient);
    // The second twin is in the same process as the first; the third is not.
    for (twin, wait) in [
        (one.clone(), patient),
        (one.clone().wait(Duration::ZERO), Duration::ZERO),
        (keys().wait(patient), patient),
        (keys().wait(Duration::ZERO), Duration::ZERO),
    ] {
        let asked = request("k");
        let (started, start) = oneshot::channel();
        let (go, going) = oneshot::channel::<()>();
        let working = one.once(&db.pool, &asked, async |_| {
            started.send(()).unwrap();
            going.await.unwrap();
            Ok::<_, Error>(Answer::Undecided(Reply::new(503, "")))
        });
        let refused = async {
            start.await.unwrap();
            let began = Instant::now();
            let refused = grant(&twin, &db.pool, &asked, "twin").await;
            assert!(matches!(refused, Err(Error::InProgress)), "{refused:?}");
            assert!(began.elapsed() >= wait);
            go.send(()).unwrap();
        };
        let (worked, ()) = tokio::join!(working, refused);
        worked.unwrap();
    }
    dropped::no_transaction_is_left(&db.pool).await;
    assert!(grant(&one, &db.pool, &request("k"), "done").await.is_ok());
    assert_eq!(effects(&db).await, ["done"]);
}

#[tokio::test]
async fn the_wait_for_a_key_leaves_the_lock_timeout_of_the_session_as_it_was() {
    let db = database().await;
    let pool = pool(&db, 2, &[("lock_timeout", "1234")]);
    let (first, second) = (keys(), keys());
    let (started, start) = oneshot::channel();
    let asked = request("k");
    let shown = async |tx: &mut PgConnection| -> String {
        let shown = sqlx::query_scalar("SHOW lock_timeout");
        shown.fetch_one(tx).await.unwrap()
    };
    let working = first.once(&pool, &asked, async |tx| {
        assert_eq!(shown(tx).await, "1234ms");
        started.send(()).unwrap();
        dropped::until_waiting_for_locks(&db.pool, 1).await;
        Ok::<_, Error>(Answer::Undecided(Reply::new(503, "")))
    });
    let waiting = async {
        start.await.unwrap();
        let work = second.once(&pool, &asked, async |tx| {
            let body = shown(tx).await;
            Ok::<_, Error>(Answer::Decided(Reply::new(200, body)))
        });
        work.await
    };
    let (_, outcome) = tokio::join!(working, waiting);

    assert_eq!(
        outcome.unwrap(),
        Outcome::Executed(Reply::new(200, "1234ms"))
    );
}

#[tokio::test]
async fn a_request_that_is_dropped_at_any_await_is_done_wholly_or_not_at_all() {
    let db = database().await;
    let keys = keys();
    let (mut polls, mut drops) = (1, 0);
    loop {
        let (name, asked) = (format!("{polls:03}"), request(&format!("k{polls}")));
        let first = dropped::after(polls, grant(&keys, &db.pool, &asked, &name)).await;
        dropped::no_transaction_is_left(&db.pool).await;
        let committed = effects(&db).await.contains(&name);

        let again = grant(&keys, &db.pool, &asked, &name).await.unwrap();

        // Dropped between commit and answer, the retry gets the stored answer.
        assert_eq!(matches!(again, Outcome::Replayed(_)), committed);
        assert_eq!(again.into_reply(), Reply::new(200, name));
        assert_eq!(
            effects(&db).await.len(),
            polls,
            "dropped after {polls} polls"
        );
        drops += usize::from(first.is_none());
        if first.is_some() && polls >= dropped::ROUNDS {
            break;
        }
        polls += 1;
    }
    assert!(drops > 0, "it was never dropped");
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_panics_is_rolled_back_and_the_key_is_free() {
    let db = database().await;
    let (keys, pool) = (keys(), db.pool.clone());
    let mut tasks = JoinSet::new();
    let panicking = keys.clone();
    tasks.spawn(async move {
        let asked = request("k");
        let work = panicking.once(&pool, &asked, async |tx| {
            effect(tx, "half").await?;
            panic!("on purpose");
            #[expect(unreachable_code, reason = "says the type")]
            Ok::<_, Error>(Answer::Decided(Reply::new(200, "")))
        });
        work.await.map(drop)
    });
    assert!(tasks.join_next().await.unwrap().unwrap_err().is_panic());

    let outcome = grant(&keys, &db.pool, &request("k"), "done").await.unwrap();
    assert_eq!(outcome, Outcome::Executed(Reply::new(200, "done")));
    assert_eq!(effects(&db).await, ["done"]);
}

#[tokio::test]
async fn work_can_neither_commit_on_its_own_nor_hide_a_failed_statement() {
    let db = database().await;
    let (keys, asked) = (keys(), request("k"));
    let failed = keys
        .once(&db.pool, &asked, async |tx| {
            let mut inner = tx.begin().await?;
            effect(&mut inner, "inner").await?;
            inner.commit().await?;
            Err::<Answer, _>(Error::InvalidKey)
        })
        .await;
    assert!(failed.is_err());
    let doomed = keys
        .once(&db.pool, &asked, async |tx| {
            let failed = sqlx::query("SELECT 1 / 0").execute(tx).await;
            assert!(failed.is_err());
            Ok::<_, Error>(Answer::Decided(Reply::new(200, "")))
        })
        .await;
    assert!(matches!(doomed, Err(Error::Store(_))), "{doomed:?}");
    assert_eq!((effects(&db).await.len(), rows(&db).await), (0, 0));
}

#[tokio::test]
async fn an_answer_that_appears_without_the_lock_is_a_broken_invariant() {
    let db = database().await;
    let asked = request("k");
    let broken = keys()
        .once(&db.pool, &asked, async |tx| {
            effect(tx, "half").await?;
            sqlx::query(
                "INSERT INTO app.idempotency_keys
                     (caller, idem_key, request_hash, status, response_code, response_body, expires_at)
                 VALUES ('shop', 'k', '', 'completed', 200, '', now() + interval '1 hour')",
            )
            .execute(&db.pool)
            .await?;
            Ok::<_, Error>(Answer::Decided(Reply::new(200, "")))
        })
        .await;

    assert!(matches!(broken, Err(Error::Broken)), "{broken:?}");
    assert_eq!(effects(&db).await.len(), 0);
}

#[tokio::test]
async fn an_answer_that_can_not_be_stored_is_rolled_back() {
    let db = database().await;
    for reply in [
        Reply::new(200, "").header("a", "b\0"),
        Reply::new(7, ""),
        Reply::new(503, "later"),
    ] {
        let asked = request("k");
        let refused = keys()
            .once(&db.pool, &asked, async |tx| {
                effect(tx, "half").await?;
                Ok::<_, Error>(Answer::Decided(reply))
            })
            .await;
        assert!(
            matches!(refused, Err(Error::InvalidAnswer(_))),
            "{refused:?}"
        );
    }
    assert_eq!((effects(&db).await.len(), rows(&db).await), (0, 0));
}

#[tokio::test]
async fn every_way_to_end_is_counted_once() {
    let counts = Counts::default();
    let _recording = metrics::set_default_local_recorder(&counts);
    let db = database().await;
    let keys = keys();
    let asked = request("k");
    let other = Request::new("shop", "k", RequestHash::of("PUT", "/", b"")).unwrap();

    // The work never ends; its caller hangs up.
    let endless = keys.once(&db.pool, &asked, async |_| {
        std::future::pending::<Result<Answer, Error>>().await
    });
    let hung_up = tokio::time::timeout(Duration::from_millis(100), endless).await;
    assert!(hung_up.is_err());
    let undecided = keys.once(&db.pool, &asked, async |_| {
        Err::<Answer, _>(Error::InvalidKey)
    });
    assert!(undecided.await.is_err());
    let executed = keys.once(&db.pool, &asked, async |_| {
        let twin = self::keys().wait(Duration::ZERO);
        let refused = grant(&twin, &db.pool, &asked, "twin").await;
        assert!(matches!(refused, Err(Error::InProgress)), "{refused:?}");
        Ok::<_, Error>(Answer::Decided(Reply::new(200, "done")))
    });
    executed.await.unwrap();
    for _ in 0..3 {
        grant(&keys, &db.pool, &asked, "again").await.unwrap();
    }
    assert!(grant(&keys, &db.pool, &other, "other").await.is_err());
    db.pool.close().await;
    assert!(grant(&keys, &db.pool, &asked, "away").await.is_err());

    for (outcome, times) in [
        ("dropped", 1),
        ("undecided", 1),
        ("in_progress", 1),
        ("executed", 1),
        ("replayed", 3),
        ("conflict", 1),
        ("failed", 1),
    ] {
        let counted = counts.get("tasuki_idempotency_requests_total", outcome);
        assert_eq!(counted, times, "{outcome}");
    }
}
