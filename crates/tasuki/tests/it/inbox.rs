//! An event that arrives twice has one effect.

use std::collections::HashSet;

use sqlx::{Acquire, PgConnection};
use tasuki::inbox::{Arrival, Error, Event, Inbox};
use tasuki::{Clock, Schema, uuid_v7};
use tasuki_testkit::TestDb;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::dropped;

struct Env {
    db: TestDb,
    inbox: Inbox,
}

async fn env() -> Env {
    let schema = Schema::new("app").unwrap();
    let db = TestDb::new(&[tasuki::migrate::library(&schema)]).await;
    sqlx::query("CREATE TABLE app.effects (event_id uuid NOT NULL)")
        .execute(&db.pool)
        .await
        .unwrap();
    Env {
        db,
        inbox: Inbox::new(&schema),
    }
}

fn id() -> Uuid {
    uuid_v7(&Clock::system())
}

async fn effect(tx: &mut PgConnection, id: Uuid) -> Result<(), Error> {
    sqlx::query("INSERT INTO app.effects VALUES ($1)")
        .bind(id)
        .execute(tx)
        .await?;
    Ok(())
}

async fn effects(db: &TestDb) -> i64 {
    let count = sqlx::query_scalar("SELECT count(*) FROM app.effects");
    count.fetch_one(&db.pool).await.unwrap()
}

#[tokio::test]
async fn an_event_is_new_once_to_each_consumer() {
    let Env { db, inbox } = env().await;
    let mut connection = db.pool.acquire().await.unwrap();
    let event = id();

    for expected in [Arrival::New, Arrival::Duplicate, Arrival::Duplicate] {
        for consumer in ["billing", "search"] {
            let arrival = inbox.record(&mut connection, consumer, event).await;
            assert_eq!(arrival.unwrap(), expected);
        }
    }
}

#[tokio::test]
async fn a_batch_says_of_each_event_in_order_whether_it_is_new() {
    let Env { db, inbox } = env().await;
    let mut connection = db.pool.acquire().await.unwrap();
    let (old, first, second) = (id(), id(), Uuid::new_v4());
    inbox.record(&mut connection, "c", old).await.unwrap();

    let batch = [second, old, first, second, first];
    let arrivals = inbox.record_all(&mut connection, "c", &batch).await;

    use Arrival::{Duplicate, New};
    assert_eq!(
        arrivals.unwrap(),
        [New, Duplicate, New, Duplicate, Duplicate]
    );
    let nothing: [Uuid; 0] = [];
    let arrivals = inbox.record_all(&mut connection, "c", &nothing).await;
    assert_eq!(arrivals.unwrap(), []);
    let unseen = id();
    let seen = inbox
        .seen(&mut connection, "c", &[old, unseen, first])
        .await;
    assert_eq!(seen.unwrap(), HashSet::from([old, first]));
    let seen = inbox.seen(&mut connection, "other", &[old]).await;
    assert_eq!(seen.unwrap(), HashSet::new());
}

#[tokio::test]
async fn the_trace_of_an_event_is_kept_and_nonsense_in_its_place_is_not() {
    let Env { db, inbox } = env().await;
    let mut connection = db.pool.acquire().await.unwrap();
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let events = [
        Event::new(id()).traceparent(traceparent),
        Event::new(id()).traceparent("a\0b"),
        Event::new(id()),
    ];

    inbox
        .record_all(&mut connection, "c", &events)
        .await
        .unwrap();

    let kept: Vec<Option<String>> =
        sqlx::query_scalar("SELECT traceparent FROM app.processed_events ORDER BY event_id")
            .fetch_all(&mut *connection)
            .await
            .unwrap();
    assert_eq!(kept, [Some(traceparent.to_owned()), None, None]);
}

#[tokio::test]
async fn how_much_is_made_of_an_event_is_kept_beside_it_where_it_is_said() {
    let Env { db, inbox } = env().await;
    let mut connection = db.pool.acquire().await.unwrap();
    let events = [Event::new(id()).effects(3), Event::new(id())];

    inbox
        .record_all(&mut connection, "c", &events)
        .await
        .unwrap();
    let alone = Event::new(id()).effects(0);
    inbox.record(&mut connection, "c", alone).await.unwrap();

    let kept: Vec<Option<i32>> =
        sqlx::query_scalar("SELECT effects FROM app.processed_events ORDER BY event_id")
            .fetch_all(&mut *connection)
            .await
            .unwrap();
    assert_eq!(kept, [Some(3), None, Some(0)]);
}

#[tokio::test]
async fn a_twin_waits_for_the_first_and_is_new_only_if_that_rolled_back() {
    for (commits, expected) in [(true, Arrival::Duplicate), (false, Arrival::New)] {
        for in_batch in [false, true] {
            let Env { db, inbox } = env().await;
            let event = id();
            let mut first = db.pool.begin().await.unwrap();
            let arrival = inbox.record(&mut first, "c", event).await.unwrap();
            assert_eq!(arrival, Arrival::New);

            let mut second = db.pool.begin().await.unwrap();
            let twin = async {
                match in_batch {
                    true => inbox.record_all(&mut second, "c", &[event]).await.unwrap()[0],
                    false => inbox.record(&mut second, "c", event).await.unwrap(),
                }
            };
            let ending = async {
                dropped::until_waiting_for_locks(&db.pool, 1).await;
                match commits {
                    true => first.commit().await.unwrap(),
                    false => first.rollback().await.unwrap(),
                }
            };
            let (arrival, ()) = tokio::join!(twin, ending);

            assert_eq!(arrival, expected);
            second.rollback().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_that_overlap_in_opposite_order_never_deadlock() {
    let Env { db, inbox } = env().await;
    let mut tasks = JoinSet::new();
    for round in 0..30 {
        let ids: Vec<Uuid> = (0..40).map(|_| id()).collect();
        for turn in 0..3 {
            let (pool, inbox, mut ids) = (db.pool.clone(), inbox.clone(), ids.clone());
            ids.rotate_left(turn * 13);
            if turn == 1 {
                ids.reverse();
            }
            tasks.spawn(async move {
                let mut tx = pool.begin().await.unwrap();
                let arrivals = inbox.record_all(&mut tx, "c", &ids).await.unwrap();
                tx.commit().await.unwrap();
                let new = arrivals.iter().filter(|it| **it == Arrival::New).count();
                (round, new)
            });
        }
    }
    let mut new = [0; 30];
    for (round, found) in tasks.join_all().await {
        new[round] += found;
    }
    assert_eq!(new, [40; 30]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_is_delivered_many_times_at_once_has_one_effect() {
    let Env { db, inbox } = env().await;
    let event = id();
    let mut deliveries = JoinSet::new();
    for _ in 0..16 {
        let (pool, inbox) = (db.pool.clone(), inbox.clone());
        deliveries.spawn(async move {
            inbox
                .once(&pool, "c", event, async |tx| effect(tx, event).await)
                .await
                .unwrap()
        });
    }
    let done = deliveries.join_all().await;

    assert_eq!(done.iter().flatten().count(), 1);
    assert_eq!(effects(&db).await, 1);
}

#[tokio::test]
async fn an_event_whose_work_failed_is_new_again() {
    let Env { db, inbox } = env().await;
    let event = id();
    let failed: Result<Option<()>, _> = inbox
        .once(&db.pool, "c", event, async |tx| {
            effect(tx, event).await?;
            Err(Error::InvalidConsumer)
        })
        .await;
    assert!(matches!(failed, Err(Error::InvalidConsumer)));
    assert_eq!(effects(&db).await, 0);

    let done = inbox.once(&db.pool, "c", event, async |tx| effect(tx, event).await);
    assert_eq!(done.await.unwrap(), Some(()));
    assert_eq!(effects(&db).await, 1);
}

#[tokio::test]
async fn work_that_swallows_a_failed_statement_is_not_called_done() {
    let Env { db, inbox } = env().await;
    let event = id();
    let done: Result<Option<()>, Error> = inbox
        .once(&db.pool, "c", event, async |tx| {
            effect(tx, event).await?;
            let failed = sqlx::query("SELECT 1 / 0").execute(tx).await;
            assert!(failed.is_err());
            Ok(())
        })
        .await;

    assert!(matches!(done, Err(Error::Store(_))), "{done:?}");
    let mut connection = db.pool.acquire().await.unwrap();
    let seen = inbox.seen(&mut connection, "c", &[event]).await.unwrap();
    assert!(seen.is_empty());
}

#[tokio::test]
async fn a_transaction_inside_the_work_is_a_savepoint() {
    let Env { db, inbox } = env().await;
    let event = id();
    let failed: Result<Option<()>, _> = inbox
        .once(&db.pool, "c", event, async |tx| {
            let mut inner = tx.begin().await?;
            effect(&mut inner, event).await?;
            inner.commit().await?;
            Err(Error::InvalidConsumer)
        })
        .await;

    assert!(failed.is_err());
    assert_eq!(effects(&db).await, 0);
}

#[tokio::test]
async fn a_delivery_that_is_dropped_at_any_await_leaves_nothing_and_can_be_repeated() {
    let Env { db, inbox } = env().await;
    let mut deliveries = 0;
    let (mut polls, mut drops) = (1, 0);
    loop {
        let event = id();
        let work = async |tx: &mut PgConnection| effect(tx, event).await;
        let first = dropped::after(polls, inbox.once(&db.pool, "c", event, work)).await;
        dropped::no_transaction_is_left(&db.pool).await;
        inbox
            .once(&db.pool, "c", event, async |tx| effect(tx, event).await)
            .await
            .unwrap();
        deliveries += 1;
        assert_eq!(
            effects(&db).await,
            deliveries,
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

#[tokio::test]
async fn a_consumer_that_can_not_be_named_is_refused_before_the_database() {
    let Env { db, inbox } = env().await;
    let mut connection = db.pool.acquire().await.unwrap();
    for consumer in ["", "a\0b", "a\nb", &"x".repeat(129)] {
        let refused = inbox.record(&mut connection, consumer, id()).await;
        assert!(
            matches!(refused, Err(Error::InvalidConsumer)),
            "{consumer:?}"
        );
    }
    let longest = "é".repeat(128);
    inbox.record(&mut connection, &longest, id()).await.unwrap();
}
