//! Rules, and the lock that keeps the time of their changes exact.
//!
//! Whoever asks the rules shares the lock until the end of the transaction; whoever changes them waits for
//! all of those, and takes the time only then. So an event that was handled before a change is older than
//! the change, and whoever handles a later one sees it.

use sqlx::PgConnection;
use tasuki::idempotency::LockNumber;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::NAME;
use crate::moderation::Life;

/// A version of a rule, as it is stored.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) rule_id: Uuid,
    pub(crate) version: i32,
    pub(crate) definition: String,
    pub(crate) life: Life,
}

fn lock() -> i64 {
    LockNumber::of(&[NAME, "moderation", "rules"]).get()
}

/// Nobody changes a rule before the end of this transaction.
pub(crate) async fn share(tx: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query!(
        r#"SELECT pg_advisory_xact_lock_shared($1) AS "nothing!: ()""#,
        lock()
    )
    .fetch_one(tx)
    .await?;
    Ok(())
}

/// Waits for everybody who asks the rules, and answers what the time is then.
pub(crate) async fn hold(tx: &mut PgConnection) -> sqlx::Result<OffsetDateTime> {
    sqlx::query!(
        r#"SELECT pg_advisory_xact_lock($1) AS "nothing!: ()""#,
        lock()
    )
    .fetch_one(&mut *tx)
    .await?;
    sqlx::query_scalar!(r#"SELECT clock_timestamp() AS "now!""#)
        .fetch_one(tx)
        .await
}

/// All versions that were open at some time between the two, the oldest rule first.
pub(crate) async fn between(
    tx: &mut PgConnection,
    first: OffsetDateTime,
    last: OffsetDateTime,
) -> sqlx::Result<Vec<Stored>> {
    let rows = sqlx::query!(
        "SELECT rule_id, version, definition, active_from, active_until
         FROM cn_relay.moderation_rules
         WHERE active_from <= $2 AND (active_until IS NULL OR active_until > $1)
         ORDER BY rule_id, version",
        first,
        last,
    )
    .fetch_all(tx)
    .await?;
    let stored = rows.into_iter().map(|row| Stored {
        rule_id: row.rule_id,
        version: row.version,
        definition: row.definition,
        life: Life {
            from: row.active_from,
            until: row.active_until,
        },
    });
    Ok(stored.collect())
}

/// All versions of all rules, or of one; or only those that are open. The oldest rule first.
pub(crate) async fn list(
    connection: &mut PgConnection,
    rule: Option<Uuid>,
    is_open: bool,
) -> sqlx::Result<Vec<Stored>> {
    let rows = sqlx::query!(
        "SELECT rule_id, version, definition, active_from, active_until
         FROM cn_relay.moderation_rules
         WHERE ($1::uuid IS NULL OR rule_id = $1) AND (NOT $2 OR active_until IS NULL)
         ORDER BY rule_id, version",
        rule,
        is_open,
    )
    .fetch_all(connection)
    .await?;
    let stored = rows.into_iter().map(|row| Stored {
        rule_id: row.rule_id,
        version: row.version,
        definition: row.definition,
        life: Life {
            from: row.active_from,
            until: row.active_until,
        },
    });
    Ok(stored.collect())
}

/// How many are open.
pub(crate) async fn open(connection: &mut PgConnection) -> sqlx::Result<i64> {
    sqlx::query_scalar!(
        r#"SELECT count(*) AS "count!" FROM cn_relay.moderation_rules WHERE active_until IS NULL"#
    )
    .fetch_one(connection)
    .await
}

/// Opens a version.
pub(crate) async fn insert(
    tx: &mut PgConnection,
    rule: Uuid,
    version: i32,
    definition: &str,
    from: OffsetDateTime,
) -> sqlx::Result<()> {
    sqlx::query!(
        "INSERT INTO cn_relay.moderation_rules (rule_id, version, definition, active_from)
         VALUES ($1, $2, $3, $4)",
        rule,
        version,
        definition,
        from,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Closes the open version; answers which one it was.
pub(crate) async fn close(
    tx: &mut PgConnection,
    rule: Uuid,
    at: OffsetDateTime,
) -> sqlx::Result<Option<i32>> {
    sqlx::query_scalar!(
        "UPDATE cn_relay.moderation_rules SET active_until = $2
         WHERE rule_id = $1 AND active_until IS NULL
         RETURNING version",
        rule,
        at,
    )
    .fetch_optional(tx)
    .await
}
