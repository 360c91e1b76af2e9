//! Where people want to be told over HTTP, and how each attempt went.

pub(crate) mod owed;
pub(crate) mod secrets;
pub(crate) mod trouble;

use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

/// A registered endpoint.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    pub(crate) endpoint_id: Uuid,
    pub(crate) url: String,
    pub(crate) description: String,
    pub(crate) types: Vec<String>,
    pub(crate) status: String,
    pub(crate) disabled_reason: Option<String>,
    pub(crate) created_at: OffsetDateTime,
    pub(crate) updated_at: OffsetDateTime,
}

/// What is needed to send to an endpoint.
#[derive(Clone)]
pub(crate) struct Door {
    pub(crate) url: String,
    pub(crate) status: String,
    pub(crate) secret: String,
    /// Those that still sign, the latest first.
    pub(crate) previous: Vec<String>,
    /// The last attempt failed.
    pub(crate) is_troubled: bool,
    /// Nothing is sent now.
    pub(crate) is_held: bool,
    /// For how long it has been paused or disabled, in seconds, if it is.
    pub(crate) closed_for: Option<f64>,
    pub(crate) now: OffsetDateTime,
}

/// The door to an endpoint.
pub(crate) async fn door(
    connection: &mut PgConnection,
    endpoint: Uuid,
) -> sqlx::Result<Option<Door>> {
    sqlx::query_as!(
        Door,
        r#"
        SELECT
            url, status, secret,
            ARRAY(
                SELECT older.secret
                FROM (
                    SELECT known.previous_secret AS secret, known.previous_until AS signs_until
                    UNION ALL
                    SELECT old.secret, old.signs_until
                    FROM notification.webhook_secrets AS old
                    WHERE old.endpoint_id = known.endpoint_id
                ) AS older
                WHERE older.signs_until > now()
                ORDER BY older.signs_until DESC
            ) AS "previous!",
            failures > 0 OR held_until IS NOT NULL AS "is_troubled!",
            COALESCE(held_until > now(), false) AS "is_held!",
            extract(
                EPOCH FROM now() - CASE status
                    WHEN 'PAUSED' THEN COALESCE(paused_at, updated_at)
                    WHEN 'DISABLED' THEN disabled_at
                END
            )::float8 AS closed_for,
            clock_timestamp() AS "now!"
        FROM notification.webhook_endpoints AS known
        WHERE endpoint_id = $1
        "#,
        endpoint,
    )
    .fetch_optional(connection)
    .await
}

/// An endpoint that is to be registered.
pub(crate) struct New<'a> {
    pub(crate) id: Uuid,
    pub(crate) user: &'a str,
    pub(crate) url: &'a str,
    pub(crate) description: &'a str,
    pub(crate) types: &'a [String],
    pub(crate) secret: &'a str,
}

/// Registers an endpoint, unless the user has `most` already.
pub(crate) async fn create(tx: &mut PgConnection, new: &New<'_>, most: i64) -> sqlx::Result<bool> {
    // Two at the same moment must not both be the last.
    sqlx::query!(
        "SELECT pg_advisory_xact_lock(hashtextextended('notification.endpoints:' || $1, 0))",
        new.user,
    )
    .execute(&mut *tx)
    .await?;
    let done = sqlx::query!(
        r#"
        INSERT INTO notification.webhook_endpoints (
            endpoint_id, user_id, url, description, types, secret
        )
        SELECT $1, $2, $3, $4, $5, $6
        WHERE (SELECT count(*) FROM notification.webhook_endpoints WHERE user_id = $2) < $7
        "#,
        new.id,
        new.user,
        new.url,
        new.description,
        new.types,
        new.secret,
        most,
    )
    .execute(tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// The endpoints of a user.
pub(crate) async fn list(connection: &mut PgConnection, user: &str) -> sqlx::Result<Vec<Endpoint>> {
    sqlx::query_as!(
        Endpoint,
        r#"
        SELECT
            endpoint_id, url, description, types, status, disabled_reason, created_at,
            updated_at
        FROM notification.webhook_endpoints
        WHERE user_id = $1
        ORDER BY created_at, endpoint_id
        "#,
        user,
    )
    .fetch_all(connection)
    .await
}

/// One endpoint of a user.
pub(crate) async fn find(
    connection: &mut PgConnection,
    user: &str,
    id: Uuid,
) -> sqlx::Result<Option<Endpoint>> {
    sqlx::query_as!(
        Endpoint,
        r#"
        SELECT
            endpoint_id, url, description, types, status, disabled_reason, created_at,
            updated_at
        FROM notification.webhook_endpoints
        WHERE user_id = $1 AND endpoint_id = $2
        "#,
        user,
        id,
    )
    .fetch_optional(connection)
    .await
}

/// What is changed of an endpoint: what is none stays as it is.
pub(crate) struct Changed<'a> {
    pub(crate) url: Option<&'a str>,
    pub(crate) description: Option<&'a str>,
    pub(crate) types: Option<&'a [String]>,
}

/// Changes an endpoint.
pub(crate) async fn change(
    connection: &mut PgConnection,
    id: Uuid,
    changed: &Changed<'_>,
) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        UPDATE notification.webhook_endpoints
        SET url = COALESCE($2, url),
            description = COALESCE($3, description),
            types = COALESCE($4, types),
            updated_at = now()
        WHERE endpoint_id = $1
        "#,
        id,
        changed.url,
        changed.description,
        changed.types,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Pauses or enables an endpoint; says whether it did. One that is disabled is not paused: it would
/// be owed new events again.
pub(crate) async fn set_status(
    connection: &mut PgConnection,
    id: Uuid,
    status: &str,
) -> sqlx::Result<bool> {
    let done = sqlx::query!(
        r#"
        UPDATE notification.webhook_endpoints
        SET status = $2, disabled_reason = NULL, disabled_at = NULL,
            paused_at = CASE WHEN $2 = 'PAUSED' THEN COALESCE(paused_at, now()) END,
            updated_at = now()
        WHERE endpoint_id = $1 AND (status <> 'DISABLED' OR $2 <> 'PAUSED')
        "#,
        id,
        status,
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Counts a test of an endpoint, unless there were `most` within a minute; says whether it did.
pub(crate) async fn count_test(
    connection: &mut PgConnection,
    id: Uuid,
    most: i32,
) -> sqlx::Result<bool> {
    let done = sqlx::query!(
        r#"
        UPDATE notification.webhook_endpoints
        SET
            tests = CASE WHEN tests_since > now() - interval '1 minute' THEN tests + 1 ELSE 1 END,
            tests_since = CASE
                WHEN tests_since > now() - interval '1 minute' THEN tests_since
                ELSE now()
            END
        WHERE endpoint_id = $1
            AND (
                tests < $2 OR tests_since IS NULL OR tests_since <= now() - interval '1 minute'
            )
        "#,
        id,
        most,
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Removes an endpoint of a user; says whether there was one.
pub(crate) async fn delete(
    connection: &mut PgConnection,
    user: &str,
    id: Uuid,
) -> sqlx::Result<bool> {
    let done = sqlx::query!(
        "DELETE FROM notification.webhook_endpoints WHERE user_id = $1 AND endpoint_id = $2",
        user,
        id,
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// How an attempt went.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) attempt_id: Uuid,
    pub(crate) endpoint_id: Uuid,
    pub(crate) notification_id: Uuid,
    pub(crate) attempted_at: OffsetDateTime,
    pub(crate) outcome: String,
    pub(crate) response_code: Option<i32>,
    pub(crate) took_ms: i32,
    pub(crate) error: Option<String>,
    pub(crate) excerpt: Option<String>,
}

/// Writes attempts down.
pub(crate) async fn log(connection: &mut PgConnection, attempt: &Attempt) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        INSERT INTO notification.webhook_attempts (
            attempt_id, endpoint_id, notification_id, outcome, response_code, took_ms, error,
            excerpt
        )
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
        "#,
        attempt.attempt_id,
        attempt.endpoint_id,
        attempt.notification_id,
        attempt.outcome,
        attempt.response_code,
        attempt.took_ms,
        attempt.error,
        attempt.excerpt,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// The latest attempts at an endpoint.
pub(crate) async fn attempts(
    connection: &mut PgConnection,
    id: Uuid,
    limit: i64,
) -> sqlx::Result<Vec<Attempt>> {
    sqlx::query_as!(
        Attempt,
        r#"
        SELECT
            attempt_id, endpoint_id, notification_id, attempted_at, outcome, response_code,
            took_ms, error, excerpt
        FROM notification.webhook_attempts
        WHERE endpoint_id = $1
        ORDER BY attempted_at DESC
        LIMIT $2
        "#,
        id,
        limit,
    )
    .fetch_all(connection)
    .await
}
