//! What became of grants: the notifications that were sent.
//!
//! An event keeps the time at which its grant was made, in its transaction and before the caller
//! was answered; so "from the grant" is a little longer than "from the answer". Both times are of
//! the server's clock.

use anyhow::Context as _;
use sqlx::PgConnection;

/// Notifications of grants since some time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) count: u32,
    /// From the first grant until the last notification was sent.
    pub(super) seconds: f64,
    /// From the grant until its notification was sent.
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
}

/// The server's time.
pub(super) async fn clock(connection: &mut PgConnection) -> sqlx::Result<String> {
    sqlx::query_scalar("SELECT clock_timestamp()::text")
        .fetch_one(connection)
        .await
}

/// How many notifications of grants since `since` were sent.
pub(super) async fn count(connection: &mut PgConnection, since: &str) -> anyhow::Result<u32> {
    let count: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM notification.notifications_sent
         WHERE occurred_at >= $1::text::timestamptz",
    )
    .bind(since)
    .fetch_one(connection)
    .await?;
    u32::try_from(count).context("more rows than can be")
}

/// How they were sent. There is at least one.
pub(super) async fn sent(connection: &mut PgConnection, since: &str) -> anyhow::Result<Sent> {
    let (count, seconds, p50_ms, p99_ms): (i64, f64, f64, f64) = sqlx::query_as(
        "SELECT
             count(*),
             extract(EPOCH FROM max(sent_at) - min(occurred_at))::float8,
             extract(EPOCH FROM percentile_disc(0.5)
                 WITHIN GROUP (ORDER BY sent_at - occurred_at))::float8 * 1000,
             extract(EPOCH FROM percentile_disc(0.99)
                 WITHIN GROUP (ORDER BY sent_at - occurred_at))::float8 * 1000
         FROM notification.notifications_sent
         WHERE occurred_at >= $1::text::timestamptz",
    )
    .bind(since)
    .fetch_one(connection)
    .await?;
    Ok(Sent {
        count: u32::try_from(count).context("more rows than can be")?,
        seconds,
        p50_ms,
        p99_ms,
    })
}
