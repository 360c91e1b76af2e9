//! Dropping futures at every await: what a hang-up does to a request.

use std::pin::pin;
use std::task::Poll;

use sqlx::PgPool;
use tasuki_testkit::eventually;

/// How often to try at least: on a busy machine every answer may be there before it is asked for,
/// and a future then comes to its end at its first poll.
pub(crate) const ROUNDS: usize = 12;

/// Polls `future` up to `polls` times, then drops it. Its value, if it had one by then.
pub(crate) async fn after<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    std::future::poll_fn(move |cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Waits until every connection of the pool's database is out of transactions.
pub(crate) async fn no_transaction_is_left(pool: &PgPool) {
    eventually("no transaction is left open", async || {
        let open: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid()
               AND xact_start IS NOT NULL",
        )
        .fetch_one(pool)
        .await
        .unwrap();
        (open == 0).then_some(())
    })
    .await;
}

/// Waits until so many sessions of this database wait for a lock.
pub(crate) async fn until_waiting_for_locks(pool: &PgPool, sessions: i64) {
    eventually("sessions wait for a lock", async || {
        let waiting: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity
             WHERE datname = current_database() AND wait_event_type = 'Lock'",
        )
        .fetch_one(pool)
        .await
        .unwrap();
        (waiting >= sessions).then_some(())
    })
    .await;
}
