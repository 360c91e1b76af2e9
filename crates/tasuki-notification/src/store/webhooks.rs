//! Where people want to be told over HTTP, and how each attempt went.

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
    /// Only while it still signs.
    pub(crate) previous_secret: Option<String>,
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
            CASE WHEN previous_until > now() THEN previous_secret END AS previous_secret,
            clock_timestamp() AS "now!"
        FROM notification.webhook_endpoints
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

/// Pauses, resumes or disables an endpoint; says whether there is one.
pub(crate) async fn set_status(
    connection: &mut PgConnection,
    id: Uuid,
    status: &str,
    reason: Option<&str>,
) -> sqlx::Result<bool> {
    let done = sqlx::query!(
        r#"
        UPDATE notification.webhook_endpoints
        SET status = $2, disabled_reason = $3, updated_at = now(),
            disabled_at = CASE WHEN $2 = 'DISABLED' THEN now() END
        WHERE endpoint_id = $1
        "#,
        id,
        status,
        reason,
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Gives an endpoint a new secret; the old one signs for `overlap` seconds more.
pub(crate) async fn rotate(
    connection: &mut PgConnection,
    id: Uuid,
    secret: &str,
    overlap: f64,
) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        UPDATE notification.webhook_endpoints
        SET previous_secret = secret, previous_until = now() + make_interval(secs => $3),
            secret = $2, updated_at = now()
        WHERE endpoint_id = $1
        "#,
        id,
        secret,
        overlap,
    )
    .execute(connection)
    .await?;
    Ok(())
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

/// Has a notification that an endpoint was sent delivered to it again, under the same id; says
/// whether there was one.
pub(crate) async fn replay(
    connection: &mut PgConnection,
    user: &str,
    endpoint: Uuid,
    notification: Uuid,
) -> sqlx::Result<bool> {
    let done = sqlx::query!(
        r#"
        WITH again AS (
            DELETE FROM notification.notifications_sent
            WHERE user_id = $1 AND endpoint_id = $2 AND notification_id = $3
            RETURNING *
        )
        INSERT INTO notification.notifications_live (
            notification_id, event_id, user_id, type, channel, endpoint_id, aggregate_key,
            version, occurred_at, payload_json, traceparent, created_at
        )
        SELECT
            notification_id, event_id, user_id, type, channel, endpoint_id, aggregate_key,
            version, occurred_at, payload_json, traceparent, created_at
        FROM again
        "#,
        user,
        endpoint,
        notification,
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected() == 1)
}
