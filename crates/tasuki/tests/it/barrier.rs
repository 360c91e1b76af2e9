//! Actions and compensations that come twice, late, at once and in the wrong order; and the locks
//! that sagas hold on what they are at work on.

use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection, PgPool};
use tasuki::barrier::{Barrier, Error, Hold, Key, LockError, Locks, Passage, Phase, Release, Take};
use tasuki::retry::{Backoff, Executor, Judged as _, Policy, Verdict};
use tasuki::upkeep::{Partitioned, Upkeep};
use tasuki::{Clock, Schema, uuid_v7, worker};
use tasuki_testkit::TestDb;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::dropped;

use Passage::{Empty, Fresh, Refused, Repeated};
use Phase::{Action, Compensation};

fn schema() -> Schema {
    Schema::new("app").unwrap()
}

async fn database() -> TestDb {
    TestDb::new(&[tasuki::migrate::library(&schema())]).await
}

fn saga() -> Uuid {
    uuid_v7(&Clock::system())
}

/// Passes the barrier in a transaction of its own.
async fn pass(pool: &PgPool, key: &Key, phase: Phase) -> Passage {
    let mut tx = tasuki::begin(pool).await.unwrap();
    let passage = Barrier::new(&schema()).act(&mut tx, key, phase).await;
    tx.commit().await.unwrap();
    passage.unwrap()
}

#[tokio::test]
async fn every_order_of_a_step_and_its_undoing_has_the_effect_of_one_that_makes_sense() {
    let db = database().await;
    for (order, expected) in [
        (vec![Action, Action], vec![Fresh, Repeated]),
        (
            vec![Action, Compensation, Compensation, Action],
            vec![Fresh, Fresh, Repeated, Refused],
        ),
        (
            vec![Compensation, Action, Compensation, Action],
            vec![Empty, Refused, Repeated, Refused],
        ),
    ] {
        let key = Key::new(saga(), "charge");
        let mut passages = Vec::new();
        for phase in &order {
            passages.push(pass(&db.pool, &key, *phase).await);
        }
        assert_eq!(passages, expected, "{order:?}");
    }
}

#[tokio::test]
async fn steps_and_sagas_are_none_of_each_others_business() {
    let db = database().await;
    let (saga, other) = (saga(), saga());
    let undone = pass(&db.pool, &Key::new(saga, "charge"), Compensation).await;
    assert_eq!(undone, Empty);
    for key in [Key::new(saga, "reserve"), Key::new(other, "charge")] {
        assert_eq!(pass(&db.pool, &key, Action).await, Fresh);
    }
    // An id of another make is as good.
    let key = Key::new(Uuid::new_v4(), "charge");
    assert_eq!(pass(&db.pool, &key, Action).await, Fresh);
    assert_eq!(pass(&db.pool, &key, Action).await, Repeated);
}

/// One is in the middle of its transaction when the other comes.
async fn meet(first: Phase, second: Phase, commits: bool) -> Passage {
    let db = database().await;
    let (barrier, key) = (Barrier::new(&schema()), Key::new(saga(), "charge"));
    let mut one = tasuki::begin(&db.pool).await.unwrap();
    let mut other = tasuki::begin(&db.pool).await.unwrap();
    let passage = barrier.act(&mut one, &key, first).await.unwrap();
    assert!(matches!(passage, Fresh | Empty), "{passage:?}");

    let ends = async {
        dropped::until_waiting_for_locks(&db.pool, 1).await;
        match commits {
            true => one.commit().await.unwrap(),
            false => one.rollback().await.unwrap(),
        }
    };
    let (passage, ()) = tokio::join!(barrier.act(&mut other, &key, second), ends);
    other.commit().await.unwrap();
    passage.unwrap()
}

#[tokio::test]
async fn a_compensation_that_meets_its_action_waits_and_undoes_it_if_it_was() {
    assert_eq!(meet(Action, Compensation, true).await, Fresh);
    assert_eq!(meet(Action, Compensation, false).await, Empty);
}

#[tokio::test]
async fn an_action_that_meets_its_compensation_waits_and_is_refused_if_that_was() {
    assert_eq!(meet(Compensation, Action, true).await, Refused);
    assert_eq!(meet(Compensation, Action, false).await, Fresh);
}

#[tokio::test]
async fn twins_that_meet_wait_and_one_has_the_effect() {
    assert_eq!(meet(Action, Action, true).await, Repeated);
    assert_eq!(meet(Action, Action, false).await, Fresh);
    assert_eq!(meet(Compensation, Compensation, true).await, Repeated);
    assert_eq!(meet(Compensation, Compensation, false).await, Empty);
}

#[tokio::test]
async fn two_compensations_of_one_action_that_meet_undo_it_once() {
    let db = database().await;
    let (barrier, key) = (Barrier::new(&schema()), Key::new(saga(), "charge"));
    assert_eq!(pass(&db.pool, &key, Action).await, Fresh);
    let mut one = tasuki::begin(&db.pool).await.unwrap();
    let mut other = tasuki::begin(&db.pool).await.unwrap();
    let first = barrier.act(&mut one, &key, Compensation).await.unwrap();
    assert_eq!(first, Fresh);
    let ends = async {
        dropped::until_waiting_for_locks(&db.pool, 1).await;
        one.commit().await.unwrap();
    };
    let (second, ()) = tokio::join!(barrier.act(&mut other, &key, Compensation), ends);
    assert_eq!(second.unwrap(), Repeated);
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_comes_at_once_the_books_are_even() {
    let db = database().await;
    let mut tasks = JoinSet::new();
    let sagas: Vec<Uuid> = (0..20).map(|_| saga()).collect();
    for saga in &sagas {
        for phase in [Action, Compensation, Action, Compensation] {
            let (pool, key) = (db.pool.clone(), Key::new(*saga, "charge"));
            tasks.spawn(async move {
                let passage = pass(&pool, &key, phase).await;
                (key, phase, passage)
            });
        }
    }
    let passed = tasks.join_all().await;
    for saga in sagas {
        let key = Key::new(saga, "charge");
        let count = |phase: Phase, passage: Passage| {
            let all = passed.iter();
            all.filter(|it| it.0 == key && (it.1, it.2) == (phase, passage))
                .count()
        };
        // Done and undone, or never done.
        assert_eq!(count(Action, Fresh), count(Compensation, Fresh), "{key:?}");
        assert_eq!(
            count(Compensation, Fresh) + count(Compensation, Empty),
            1,
            "{key:?}"
        );
        assert_eq!(pass(&db.pool, &key, Action).await, Refused);
    }
}

#[tokio::test]
async fn a_step_that_can_not_be_named_is_refused_before_the_database() {
    let db = database().await;
    let mut connection = db.pool.acquire().await.unwrap();
    let barrier = Barrier::new(&schema());
    for step in ["", "a\0b", "a\nb", &"x".repeat(256)] {
        let key = Key::new(saga(), step);
        let refused = barrier.act(&mut connection, &key, Action).await;
        assert!(matches!(refused, Err(Error::InvalidStep)), "{step:?}");
    }
    let longest = Key::new(saga(), "x".repeat(255));
    let passage = barrier.act(&mut connection, &longest, Action).await;
    assert_eq!(passage.unwrap(), Fresh);
}

#[tokio::test]
async fn old_steps_go_after_the_time_that_upkeep_is_told_and_not_before_their_last_change() {
    let db = database().await;
    let day = Duration::from_secs(24 * 3600);
    let old = Key::new(Uuid::new_v4(), "charge");
    let undone = Key::new(Uuid::new_v4(), "charge");
    for key in [&old, &undone] {
        assert_eq!(pass(&db.pool, key, Action).await, Fresh);
    }
    let age = "UPDATE app.barriers SET changed_at = now() - interval '8 days'";
    sqlx::query(age).execute(&db.pool).await.unwrap();
    assert_eq!(pass(&db.pool, &undone, Compensation).await, Fresh);

    let rule = Partitioned::by_uuid_v7("barriers", "saga_id", "changed_at").keep(7 * day);
    let upkeep = Upkeep::new(db.pool.clone(), &schema());
    worker::drain(&upkeep.partitioned(rule).unwrap())
        .await
        .unwrap();

    assert_eq!(pass(&db.pool, &old, Action).await, Fresh, "it is forgotten");
    assert_eq!(pass(&db.pool, &undone, Action).await, Refused);
}

#[tokio::test]
async fn an_action_can_be_undone_for_as_long_as_a_saga_may_live() {
    let db = database().await;
    let key = Key::new(Uuid::new_v4(), "charge");
    assert_eq!(pass(&db.pool, &key, Action).await, Fresh);
    let age = "UPDATE app.barriers SET changed_at = now() - interval '365 days'";
    sqlx::query(age).execute(&db.pool).await.unwrap();
    let upkeep = Upkeep::new(db.pool.clone(), &schema());
    worker::drain(&upkeep).await.unwrap();
    assert_eq!(pass(&db.pool, &key, Compensation).await, Fresh);
}

#[tokio::test]
async fn every_statement_of_the_barrier_and_its_locks_can_be_prepared() {
    let db = database().await;
    let (barrier, locks) = (Barrier::new(&schema()), Locks::new(&schema()));
    let mut connection = db.pool.acquire().await.unwrap();
    let statements = barrier.statements().chain(locks.statements());
    for (n, statement) in statements.enumerate() {
        let prepare = AssertSqlSafe(format!("PREPARE s{n} AS {statement}"));
        let prepared = sqlx::raw_sql(prepare).execute(&mut *connection).await;
        assert!(prepared.is_ok(), "{prepared:?}\n{statement}");
    }
}

async fn take(pool: &PgPool, owner: Uuid) -> Result<Take, LockError> {
    let mut tx = tasuki::begin(pool).await?;
    let taken = Locks::new(&schema())
        .take(&mut tx, "order:17", owner)
        .await?;
    tx.commit().await?;
    Ok(taken)
}

async fn release(connection: &mut PgConnection, owner: Uuid) -> Release {
    let locks = Locks::new(&schema());
    locks.release(connection, "order:17", owner).await.unwrap()
}

#[tokio::test]
async fn a_lock_is_its_owners_however_often_it_is_taken_and_nobody_elses() {
    let db = database().await;
    let locks = Locks::new(&schema());
    let (one, other) = (saga(), saga());
    assert_eq!(take(&db.pool, one).await.unwrap(), Take::Taken);
    assert_eq!(take(&db.pool, one).await.unwrap(), Take::Yours);
    let refused = take(&db.pool, other).await.unwrap_err();
    assert!(matches!(&refused, LockError::Held(hold) if hold.owner == one));
    assert_eq!(refused.verdict(), Verdict::Retry);
    let told = refused.to_string();
    assert!(
        told.starts_with(&format!("order:17 is held by {one} since ")),
        "{told}"
    );

    let mut connection = db.pool.acquire().await.unwrap();
    let holder = locks.holder(&mut connection, "order:17").await.unwrap();
    assert_eq!(holder.map(|hold| hold.owner), Some(one));
    assert_eq!(release(&mut connection, other).await, Release::NotYours);
    assert_eq!(release(&mut connection, one).await, Release::Released);
    assert_eq!(release(&mut connection, one).await, Release::NotYours);
    let holder = locks.holder(&mut connection, "order:17").await.unwrap();
    assert_eq!(holder, None);
    assert_eq!(take(&db.pool, other).await.unwrap(), Take::Taken);
}

/// Somebody takes the lock while the transaction of another is about to end.
async fn taken_beside(commits: bool, released: bool) -> Result<Take, LockError> {
    let db = database().await;
    let (one, other) = (saga(), saga());
    if released {
        take(&db.pool, one).await.unwrap();
    }
    let mut tx = tasuki::begin(&db.pool).await.unwrap();
    if released {
        assert_eq!(release(&mut tx, one).await, Release::Released);
    } else {
        let locks = Locks::new(&schema());
        locks.take(&mut tx, "order:17", one).await.unwrap();
    }
    let ends = async {
        dropped::until_waiting_for_locks(&db.pool, 1).await;
        match commits {
            true => tx.commit().await.unwrap(),
            false => tx.rollback().await.unwrap(),
        }
    };
    tokio::join!(take(&db.pool, other), ends).0
}

#[tokio::test]
async fn who_meets_a_lock_that_is_being_taken_or_released_waits_and_sees_what_became_of_it() {
    let held = taken_beside(true, false).await;
    assert!(matches!(held, Err(LockError::Held(_))), "{held:?}");
    assert_eq!(taken_beside(false, false).await.unwrap(), Take::Taken);
    assert_eq!(taken_beside(true, true).await.unwrap(), Take::Taken);
    let held = taken_beside(false, true).await;
    assert!(matches!(held, Err(LockError::Held(_))), "{held:?}");
}

#[tokio::test]
async fn a_retry_around_the_transaction_waits_until_the_lock_is_free() {
    let db = database().await;
    let (one, other) = (saga(), saga());
    take(&db.pool, one).await.unwrap();
    let policy = Policy::new(1000, Backoff::list([Duration::from_millis(5)]));
    let executor = Executor::new("test.lock").policy(policy);
    let attempts = std::cell::Cell::new(0);
    let waits = executor.run(|| {
        attempts.set(attempts.get() + 1);
        take(&db.pool, other)
    });
    let frees = async {
        tasuki_testkit::eventually("it was refused", async || {
            (attempts.get() > 2).then_some(())
        })
        .await;
        let mut connection = db.pool.acquire().await.unwrap();
        release(&mut connection, one).await
    };
    let (taken, released) = tokio::join!(waits, frees);
    assert_eq!((taken.unwrap(), released), (Take::Taken, Release::Released));
}

#[tokio::test]
async fn what_is_held_for_long_is_listed_and_let_go_with_its_saga() {
    let db = database().await;
    let locks = Locks::new(&schema());
    let (one, other) = (saga(), saga());
    let mut connection = db.pool.acquire().await.unwrap();
    for (resource, owner) in [("a", one), ("b", other), ("c", one)] {
        locks.take(&mut connection, resource, owner).await.unwrap();
    }
    let age = "UPDATE app.semantic_locks SET taken_at = now() - interval '2 hours'
               WHERE resource <> 'b'";
    sqlx::query(age).execute(&mut *connection).await.unwrap();

    let hour = Duration::from_secs(3600);
    let stale = locks.held(&mut connection, hour, 10).await.unwrap();
    assert_eq!(resources(&stale), ["a", "c"]);
    assert!(stale.iter().all(|hold| hold.owner == one));
    let first = locks.held(&mut connection, Duration::ZERO, 1).await;
    assert_eq!(resources(&first.unwrap()), ["a"]);
    let none = locks.held(&mut connection, Duration::MAX, 10).await;
    assert!(none.unwrap().is_empty());

    assert_eq!(locks.release_all(&mut connection, one).await.unwrap(), 2);
    let left = locks.held(&mut connection, Duration::ZERO, 10).await;
    assert_eq!(resources(&left.unwrap()), ["b"]);
}

fn resources(holds: &[Hold]) -> Vec<&str> {
    holds.iter().map(|hold| hold.resource.as_str()).collect()
}

#[tokio::test]
async fn a_resource_that_can_not_be_named_is_refused_before_the_database() {
    let db = database().await;
    let locks = Locks::new(&schema());
    let mut connection = db.pool.acquire().await.unwrap();
    for resource in ["", "a\0b", &"x".repeat(513)] {
        let refused = locks.take(&mut connection, resource, saga()).await;
        let refused = refused.unwrap_err();
        assert!(
            matches!(refused, LockError::InvalidResource),
            "{resource:?}"
        );
        assert_eq!(refused.verdict(), Verdict::Reject);
    }
}
