//! Transactions that begin with locks.

use tasuki::begin_locked;
use tasuki::idempotency::LockNumber;
use tasuki_testkit::TestDb;

use crate::dropped::{no_transaction_is_left, until_waiting_for_locks};

fn numbers(names: &[&str]) -> Vec<LockNumber> {
    names.iter().map(|name| LockNumber::of(&[name])).collect()
}

#[tokio::test]
async fn a_transaction_that_begins_with_locks_waits_for_who_has_them_and_sees_what_they_wrote() {
    let db = TestDb::new(&[]).await;
    let table = "CREATE TABLE public.note (n integer)";
    sqlx::query(table).execute(&db.pool).await.unwrap();
    let mut first = begin_locked(&db.pool, numbers(&["a", "b", "a"]))
        .await
        .unwrap();

    // Another order, and one lock of two: it waits all the same.
    let second = async {
        let mut second = begin_locked(&db.pool, numbers(&["c", "b"])).await.unwrap();
        let count = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM public.note");
        count.fetch_one(&mut *second).await.unwrap()
    };
    let goes_on = async {
        until_waiting_for_locks(&db.pool, 1).await;
        let note = "INSERT INTO public.note VALUES (1)";
        sqlx::query(note).execute(&mut *first).await.unwrap();
        first.commit().await.unwrap();
    };
    let (seen, ()) = tokio::join!(second, goes_on);
    assert_eq!(seen, 1);
    no_transaction_is_left(&db.pool).await;
}

#[tokio::test]
async fn a_transaction_may_begin_with_no_lock_at_all() {
    let db = TestDb::new(&[]).await;
    let mut tx = begin_locked(&db.pool, []).await.unwrap();
    let held =
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()";
    let held: i64 = sqlx::query_scalar(held).fetch_one(&mut *tx).await.unwrap();
    assert_eq!(held, 0);
}
