//! Endpoints in trouble: left alone for a while by all processes, and disabled in the end.
//!
//! After some failures in a row an endpoint is held: no claim takes what it is owed. The hold
//! doubles with each failure that follows it. When it is over, one message at a time is tried, and
//! the first that arrives ends the trouble. When half of the time is over after which it is
//! disabled, its owner is told.
//!
//! What comes of an attempt is about the address that was called. The endpoint may have another by then:
//! nothing of it is said of that one.

use std::time::Duration;

use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

/// When an endpoint is left alone, and when it is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Failures in a row that hold it.
    pub(crate) failures: i32,
    /// For how long the first time.
    pub(crate) first_hold: Duration,
    /// What that doubles up to.
    pub(crate) longest_hold: Duration,
    /// Nothing but failures for so long disables it.
    pub(crate) disable_after: Duration,
}

/// An attempt that failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure<'a> {
    pub(crate) endpoint: Uuid,
    /// The address that was called.
    pub(crate) url: &'a str,
    pub(crate) began: OffsetDateTime,
    /// For how long the receiver has asked to be left alone, in seconds.
    pub(crate) asked: Option<f64>,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// It may be over soon.
    Passing,
    /// Half of the time is over after which the endpoint is disabled, and its owner was not told.
    Lasting,
    /// It is to be disabled.
    Hopeless,
}

/// Notes a failure, and holds the endpoint if it is time for that; says how bad it is, unless the
/// endpoint has another address by now, or is gone.
pub(crate) async fn failed(
    connection: &mut PgConnection,
    failure: &Failure<'_>,
    limits: &Limits,
) -> sqlx::Result<Option<Trouble>> {
    // What began before the hold says nothing about how the endpoint is after it: only what was
    // asked for counts then.
    let found = sqlx::query!(
        r#"
        UPDATE notification.webhook_endpoints
        SET
            failures = CASE WHEN held_until > $2 THEN failures ELSE failures + 1 END,
            failing_since = COALESCE(failing_since, $2),
            held_until = GREATEST(
                held_until,
                now() + make_interval(secs => $3),
                CASE
                    WHEN failures + 1 >= $4 AND COALESCE(held_until <= $2, true)
                        THEN now() + make_interval(
                            secs => LEAST($6, $5 * power(2, LEAST(failures + 1 - $4, 30)))
                        )
                END
            )
        WHERE endpoint_id = $1 AND url = $8
        RETURNING
            status = 'ENABLED' AND failures >= $4
            AND failing_since <= now() - make_interval(secs => $7) AS "is_hopeless!",
            status = 'ENABLED' AND failures >= $4 AND warned_at IS NULL
            AND failing_since <= now() - make_interval(secs => $7 / 2) AS "is_lasting!"
        "#,
        failure.endpoint,
        failure.began,
        failure.asked,
        limits.failures,
        limits.first_hold.as_secs_f64(),
        limits.longest_hold.as_secs_f64(),
        limits.disable_after.as_secs_f64(),
        failure.url,
    )
    .fetch_optional(connection)
    .await?;
    Ok(
        found.map(|found| match (found.is_hopeless, found.is_lasting) {
            (true, _) => Trouble::Hopeless,
            (false, true) => Trouble::Lasting,
            (false, false) => Trouble::Passing,
        }),
    )
}

/// An attempt at `url` succeeded: the trouble is over. Unless it began before the hold, which is then
/// about something newer; `None` means that it did not.
pub(crate) async fn succeeded(
    connection: &mut PgConnection,
    endpoint: Uuid,
    url: &str,
    began: Option<OffsetDateTime>,
) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        UPDATE notification.webhook_endpoints
        SET failures = 0, failing_since = NULL, held_until = NULL, warned_at = NULL
        WHERE endpoint_id = $1
            AND ($2::timestamptz IS NULL OR held_until IS NULL OR held_until <= $2)
            AND url = $3
        "#,
        endpoint,
        began,
        url,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// The trouble is over because its owner says so.
pub(crate) async fn forgotten(connection: &mut PgConnection, endpoint: Uuid) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        UPDATE notification.webhook_endpoints
        SET failures = 0, failing_since = NULL, held_until = NULL, warned_at = NULL
        WHERE endpoint_id = $1
        "#,
        endpoint,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Whose endpoint fails, since when, and when it will be disabled.
#[derive(Clone, Debug)]
pub(crate) struct Warned {
    pub(crate) user_id: String,
    pub(crate) warned_at: OffsetDateTime,
    pub(crate) failing_since: OffsetDateTime,
    pub(crate) disabled_at: OffsetDateTime,
}

/// Notes that the owner of an endpoint that fails at `url` is told; nothing if they were before, or the
/// trouble is over meanwhile.
pub(crate) async fn warn(
    tx: &mut PgConnection,
    endpoint: Uuid,
    url: &str,
    limits: &Limits,
) -> sqlx::Result<Option<Warned>> {
    sqlx::query_as!(
        Warned,
        r#"
        UPDATE notification.webhook_endpoints
        SET warned_at = now()
        WHERE endpoint_id = $1 AND status = 'ENABLED' AND failures >= $2
            AND warned_at IS NULL AND failing_since IS NOT NULL AND url = $4
        RETURNING
            user_id, warned_at AS "warned_at!", failing_since AS "failing_since!",
            failing_since + make_interval(secs => $3) AS "disabled_at!"
        "#,
        endpoint,
        limits.failures,
        limits.disable_after.as_secs_f64(),
        url,
    )
    .fetch_optional(tx)
    .await
}

/// Whose endpoint was disabled, and when.
#[derive(Clone, Debug)]
pub(crate) struct Disabled {
    pub(crate) user_id: String,
    pub(crate) disabled_at: OffsetDateTime,
}

/// Disables an endpoint at `url`; answers whose it is, unless it was disabled before. With `failures`, only
/// while it is enabled and has so many in a row: its owner may have resumed or paused it since they
/// were counted.
pub(crate) async fn disable(
    tx: &mut PgConnection,
    endpoint: Uuid,
    url: &str,
    reason: &str,
    failures: Option<i32>,
) -> sqlx::Result<Option<Disabled>> {
    sqlx::query_as!(
        Disabled,
        r#"
        UPDATE notification.webhook_endpoints
        SET status = 'DISABLED', disabled_reason = $2, disabled_at = now(), updated_at = now()
        WHERE endpoint_id = $1 AND status <> 'DISABLED'
            AND ($3::integer IS NULL OR (status = 'ENABLED' AND failures >= $3))
            AND url = $4
        RETURNING user_id, disabled_at AS "disabled_at!"
        "#,
        endpoint,
        reason,
        failures,
        url,
    )
    .fetch_optional(tx)
    .await
}
