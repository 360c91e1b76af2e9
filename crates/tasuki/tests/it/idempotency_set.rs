//! Idempotency keys of many requests in one transaction, and their end.

use std::collections::HashSet;
use std::time::Duration;

use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tasuki::Schema;
use tasuki::idempotency::{
    Answer, Error, Keys, LockNumber, Opened, Outcome, Reply, Request, RequestHash, try_lock_all,
};
use tasuki_testkit::TestDb;
use tokio::task::JoinSet;

use crate::dropped;

async fn database() -> TestDb {
    TestDb::new(&[tasuki::migrate::library(&schema())]).await
}

fn schema() -> Schema {
    Schema::new("app").unwrap()
}

fn request(key: &str, body: &str) -> Request {
    let hash = RequestHash::of("POST", "/", body.as_bytes());
    Request::new("shop", key, hash).unwrap()
}

fn reply(body: &str) -> Reply {
    Reply::new(200, body.to_owned())
}

async fn keep(keys: &Keys, pool: &PgPool, requests: &[&Request]) {
    let mut connection = pool.acquire().await.unwrap();
    let replies: Vec<Reply> = requests
        .iter()
        .map(|request| reply(request.key()))
        .collect();
    let answered: Vec<_> = requests.iter().copied().zip(&replies).collect();
    keys.store_all(&mut connection, &answered).await.unwrap();
}

async fn kept(pool: &PgPool) -> Vec<String> {
    let names = sqlx::query_scalar("SELECT idem_key FROM app.idempotency_keys ORDER BY idem_key");
    names.fetch_all(pool).await.unwrap()
}

async fn expire(pool: &PgPool, key: &str) {
    sqlx::query(
        "UPDATE app.idempotency_keys SET expires_at = now() - interval '1 hour' WHERE idem_key = $1",
    )
    .bind(key)
    .execute(pool)
    .await
    .unwrap();
}

#[tokio::test]
async fn a_batch_finds_what_is_kept_and_its_own_twins() {
    let db = database().await;
    let keys = Keys::new(&schema());
    keep(
        &keys,
        &db.pool,
        &[&request("old", "a"), &request("gone", "a")],
    )
    .await;
    expire(&db.pool, "gone").await;
    let batch = [
        request("new", "a"),
        request("old", "a"),
        request("old", "b"),
        request("new", "a"),
        request("gone", "b"),
        request("new", "b"),
        request("old", "a"),
    ];

    let mut tx = db.pool.begin().await.unwrap();
    let opened = keys.open_all(&mut tx, &batch).await.unwrap();

    assert_eq!(
        opened,
        [
            Opened::Fresh,
            Opened::Stored(reply("old")),
            Opened::Conflict,
            Opened::Twin(0),
            Opened::Fresh,
            Opened::Conflict,
            Opened::Stored(reply("old")),
        ]
    );
    let (first, second) = (reply("new"), reply("again"));
    let answered = [(&batch[0], &first), (&batch[4], &second)];
    keys.store_all(&mut tx, &answered).await.unwrap();
    tx.commit().await.unwrap();
    for (request, reply) in answered {
        let outcome = keys
            .once(&db.pool, request, async |_| {
                Ok::<_, Error>(Answer::Undecided(Reply::new(500, "")))
            })
            .await;
        assert_eq!(outcome.unwrap(), Outcome::Replayed(reply.clone()));
    }
}

#[tokio::test]
async fn a_batch_without_requests_asks_nothing() {
    let db = database().await;
    let keys = Keys::new(&schema());
    let mut connection = db.pool.acquire().await.unwrap();
    assert_eq!(keys.open_all(&mut connection, &[]).await.unwrap(), []);
    keys.store_all(&mut connection, &[]).await.unwrap();
}

#[tokio::test]
async fn storing_over_an_answer_that_lives_is_a_broken_invariant() {
    let db = database().await;
    let keys = Keys::new(&schema());
    let (old, new) = (request("old", "a"), request("new", "a"));
    keep(&keys, &db.pool, &[&old]).await;

    let mut tx = db.pool.begin().await.unwrap();
    let reply = reply("x");
    let broken = keys
        .store_all(&mut tx, &[(&old, &reply), (&new, &reply)])
        .await;

    assert!(matches!(broken, Err(Error::Broken)), "{broken:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_with_the_same_keys_in_other_orders_never_deadlock() {
    let db = database().await;
    let mut tasks = JoinSet::new();
    for process in 0..3 {
        let (pool, keys) = (db.pool.clone(), Keys::new(&schema()));
        tasks.spawn(async move {
            let mut fresh = 0;
            for round in 0..20 {
                let name = |n| format!("{round}-{n}");
                let mut batch: Vec<_> = (0..30).map(|n| request(&name(n), "a")).collect();
                batch.rotate_left(process * 11);
                // Locks of rows that do not exist yet are in the same order.
                let rows = [LockNumber::of(&["row", "b"]), LockNumber::of(&["row", "a"])];
                let mut tx = pool.begin().await.unwrap();
                let opened = keys.open_all_with(&mut tx, &batch, &rows).await.unwrap();
                let is_fresh = |at: &usize| opened[*at] == Opened::Fresh;
                let reply = reply("x");
                let answered: Vec<_> = (0..30)
                    .filter(is_fresh)
                    .map(|at| (&batch[at], &reply))
                    .collect();
                keys.store_all(&mut tx, &answered).await.unwrap();
                tx.commit().await.unwrap();
                fresh += answered.len();
            }
            fresh
        });
    }
    let fresh: usize = tasks.join_all().await.into_iter().sum();
    assert_eq!(fresh, 20 * 30);
}

#[tokio::test]
async fn a_batch_waits_for_a_request_with_one_of_its_keys() {
    let db = database().await;
    let (keys, batcher) = (Keys::new(&schema()), Keys::new(&schema()));
    let asked = request("k", "a");
    let (started, start) = tokio::sync::oneshot::channel();
    let working = keys.once(&db.pool, &asked, async |_| {
        started.send(()).unwrap();
        dropped::until_waiting_for_locks(&db.pool, 1).await;
        Ok::<_, Error>(Answer::Decided(reply("first")))
    });
    let opening = async {
        start.await.unwrap();
        let mut tx = db.pool.begin().await.unwrap();
        let batch = [request("other", "a"), asked.clone()];
        batcher.open_all(&mut tx, &batch).await
    };
    let (worked, opened) = tokio::join!(working, opening);

    assert_eq!(worked.unwrap(), Outcome::Executed(reply("first")));
    let opened = opened.unwrap();
    assert_eq!(opened, [Opened::Fresh, Opened::Stored(reply("first"))]);
}

#[tokio::test]
async fn opening_without_waiting_tells_a_key_in_use_from_a_row_that_is_held_and_from_an_answer() {
    let db = database().await;
    let keys = Keys::new(&schema());
    keep(&keys, &db.pool, &[&request("old", "a")]).await;
    let (free, taken) = (LockNumber::of(&["row", "a"]), LockNumber::of(&["row", "b"]));
    let used = request("used", "a");
    let mut stalled = db.pool.begin().await.unwrap();
    let theirs = [keys.lock_number(&used), taken];
    let none = try_lock_all(&mut stalled, &theirs).await.unwrap();
    assert_eq!(none, HashSet::new());
    let batch = ["new", "held", "used", "old", "held", "new"].map(|key| request(key, "a"));
    let rows = [free, taken, taken, taken, taken, free];
    let asked: Vec<_> = batch.iter().zip(rows.map(|row| vec![row])).collect();

    let (tx, opened) = keys.begin_all(&db.pool, &asked).await.unwrap();

    let wanted = [
        Opened::Fresh,
        Opened::Held,
        Opened::InProgress,
        Opened::Stored(reply("old")),
        Opened::Held,
        Opened::Twin(0),
    ];
    assert_eq!(opened, wanted);
    let mut other = db.pool.begin().await.unwrap();
    let held = try_lock_all(&mut other, &[free, taken]).await.unwrap();
    assert_eq!(held, HashSet::from([free, taken]), "what was free is ours");

    for ended in [stalled, other] {
        ended.rollback().await.unwrap();
    }
    tx.rollback().await.unwrap();
    let (_tx, opened) = keys.begin_all(&db.pool, &asked).await.unwrap();
    assert_eq!(opened[1..3], [Opened::Fresh, Opened::Fresh]);
}

#[tokio::test]
async fn a_row_that_is_held_for_too_long_is_not_taken_for_a_key_in_use() {
    let db = database().await;
    let keys = Keys::new(&schema()).wait(Duration::from_millis(50));
    let (asked, row) = ([request("k", "a")], LockNumber::of(&["row", "a"]));
    for (held, in_progress) in [(row, false), (keys.lock_number(&asked[0]), true)] {
        let mut stalled = db.pool.begin().await.unwrap();
        try_lock_all(&mut stalled, &[held]).await.unwrap();
        let mut tx = db.pool.begin().await.unwrap();
        let refused = keys.open_all_with(&mut tx, &asked, &[row]).await;
        match refused {
            Err(Error::InProgress) => assert!(in_progress),
            Err(Error::Held) => assert!(!in_progress),
            other => panic!("{other:?}"),
        }
        tx.rollback().await.unwrap();
        stalled.rollback().await.unwrap();
    }
}

#[tokio::test]
async fn purging_removes_a_bounded_number_of_expired_answers_and_nothing_else() {
    let db = database().await;
    let keys = Keys::new(&schema());
    let names = ["a", "b", "c", "d", "e"];
    let requests = names.map(|name| request(name, ""));
    keep(&keys, &db.pool, &requests.each_ref()).await;
    for name in ["a", "b", "d"] {
        expire(&db.pool, name).await;
    }

    let mut connection = db.pool.acquire().await.unwrap();
    assert_eq!(keys.purge_expired(&mut connection, 2).await.unwrap(), 2);
    assert_eq!(keys.purge_expired(&mut connection, 2).await.unwrap(), 1);
    assert_eq!(keys.purge_expired(&mut connection, 2).await.unwrap(), 0);
    assert_eq!(kept(&db.pool).await, ["c", "e"]);
}

#[tokio::test]
async fn purging_leaves_a_key_that_is_being_used_again() {
    let db = database().await;
    let keys = Keys::new(&schema());
    let asked = request("k", "a");
    keep(&keys, &db.pool, &[&asked]).await;
    expire(&db.pool, "k").await;

    let mut tx = db.pool.begin().await.unwrap();
    let requests = [asked.clone()];
    let opened = keys.open_all(&mut tx, &requests).await.unwrap();
    assert_eq!(opened, [Opened::Fresh]);
    let again = reply("again");
    keys.store_all(&mut tx, &[(&asked, &again)]).await.unwrap();
    let mut purging = db.pool.acquire().await.unwrap();
    assert_eq!(keys.purge_expired(&mut purging, 10).await.unwrap(), 0);
    tx.commit().await.unwrap();

    assert_eq!(keys.purge_expired(&mut purging, 10).await.unwrap(), 0);
    assert_eq!(kept(&db.pool).await, ["k"]);
}

#[tokio::test]
async fn a_key_that_is_purged_while_it_is_used_is_used_all_the_same() {
    let db = database().await;
    let keys = Keys::new(&schema());
    let asked = request("k", "a");
    keep(&keys, &db.pool, &[&asked]).await;
    expire(&db.pool, "k").await;

    let outcome = keys
        .once(&db.pool, &asked, async |_| {
            let mut purging = db.pool.acquire().await?;
            assert_eq!(keys.purge_expired(&mut purging, 10).await?, 1);
            Ok::<_, Error>(Answer::Decided(reply("again")))
        })
        .await;

    assert_eq!(outcome.unwrap(), Outcome::Executed(reply("again")));
    assert_eq!(kept(&db.pool).await, ["k"]);
}

#[tokio::test]
async fn a_plan_that_was_made_on_an_empty_table_does_not_read_all_of_a_full_one() {
    let db = database().await;
    let keys = Keys::new(&schema());
    let pool = pool_of_one(
        &db.pool,
        &[
            ("enable_seqscan", "off"),
            ("plan_cache_mode", "force_generic_plan"),
        ],
    );
    let none = "VACUUM (ANALYZE) app.idempotency_keys";
    sqlx::query(none).execute(&db.pool).await.unwrap();
    let batch = ["a", "b", "old-7"].map(|key| request(key, "a"));
    let asked: Vec<_> = batch.iter().map(|request| (request, Vec::new())).collect();
    let (tx, _) = keys.begin_all(&pool, &asked).await.unwrap();
    tx.rollback().await.unwrap();
    let many = "INSERT INTO app.idempotency_keys (
            caller, idem_key, request_hash, status, response_code, response_body, expires_at
        )
        SELECT 'shop', 'old-' || n, sha256('a'), 'completed', 200, '', now() + interval '1 day'
        FROM generate_series(1, 5000) AS n";
    sqlx::query(many).execute(&db.pool).await.unwrap();

    let (mut tx, opened) = keys.begin_all(&pool, &asked).await.unwrap();

    assert_eq!(opened.last(), Some(&Opened::Conflict), "it was found");
    let read: i64 = sqlx::query_scalar(
        "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables
         WHERE schemaname = 'app' AND relname = 'idempotency_keys'",
    )
    .fetch_one(&mut *tx)
    .await
    .unwrap();
    assert_eq!(read, 1, "rows were looked at");
}

#[tokio::test]
async fn a_begin_that_fails_half_way_leaves_no_transaction_behind() {
    let db = database().await;
    let keys = Keys::new(&schema());
    let failing = "CREATE FUNCTION app.pg_try_advisory_xact_lock(bigint) RETURNS boolean
        LANGUAGE plpgsql AS $$ BEGIN RAISE out_of_memory; END $$";
    sqlx::query(failing).execute(&db.pool).await.unwrap();
    let pool = pool_of_one(&db.pool, &[("search_path", "app,pg_catalog")]);
    let wanted = request("k", "a");
    let asked = [(&wanted, Vec::new())];
    for _ in 0..2 {
        let Err(Error::Store(error)) = keys.begin_all(&pool, &asked).await else {
            panic!("the lock can't be taken");
        };
        let code = error.as_database_error().and_then(|error| error.code());
        assert_eq!(code.as_deref(), Some("53200"), "{error}");
    }
    let mended = "DROP FUNCTION app.pg_try_advisory_xact_lock";
    sqlx::query(mended).execute(&db.pool).await.unwrap();

    let (_tx, opened) = keys.begin_all(&pool, &asked).await.unwrap();

    assert_eq!(opened, [Opened::Fresh]);
}

/// One connection, kept, with settings of its own.
fn pool_of_one(pool: &PgPool, settings: &[(&str, &str)]) -> PgPool {
    let options = (*pool.connect_options()).clone();
    PgPoolOptions::new()
        .max_connections(1)
        .connect_lazy_with(options.options(settings.iter().copied()))
}
