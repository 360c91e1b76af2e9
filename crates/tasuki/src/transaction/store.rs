//! What a transaction asks the server about itself.

use sqlx::PgConnection;

/// Fails in a transaction that a failed statement has doomed.
pub(super) async fn assert_sound(connection: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query("SELECT 1").execute(connection).await?;
    Ok(())
}

/// Takes locks in this order. Goes along with a begin, which answers nothing.
pub(super) fn locking(numbers: &[i64]) -> String {
    let numbers: Vec<_> = numbers.iter().map(ToString::to_string).collect();
    let numbers = numbers.join(",");
    format!("SELECT pg_advisory_xact_lock(number) FROM unnest('{{{numbers}}}'::bigint[]) AS number")
}
