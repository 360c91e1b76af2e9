//! What operators have said of topics, keys and addresses.

use sqlx::PgConnection;
use sqlx::postgres::PgQueryResult;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::rules::{Banned, Change, IngestPolicy, PolicyChange, Priority, Said, Topic};

/// All topics of which something was said.
pub(crate) async fn topics(connection: &mut PgConnection) -> sqlx::Result<Vec<Topic>> {
    let rows = sqlx::query!(
        "SELECT topic_id, is_enabled, priority, takes_backfill, events_per_minute, capacity, actor,
             reason, changed_at
         FROM cn_relay.topics
         ORDER BY topic_id",
    )
    .fetch_all(connection)
    .await?;
    let topics = rows.into_iter().map(|row| Topic {
        topic: row.topic_id,
        is_enabled: row.is_enabled,
        policy: IngestPolicy {
            // The table has a check: there is no third.
            priority: row.priority.parse().unwrap_or(Priority::Normal),
            takes_backfill: row.takes_backfill,
            events_per_minute: u32::try_from(row.events_per_minute).unwrap_or_default(),
            capacity: u32::try_from(row.capacity).unwrap_or_default(),
        },
        said: said(row.actor, row.reason, row.changed_at),
    });
    Ok(topics.collect())
}

/// Everybody who is banned now.
pub(crate) async fn bans(connection: &mut PgConnection) -> sqlx::Result<Vec<Banned>> {
    let rows = sqlx::query!(
        "SELECT kind, subject, until, actor, reason, changed_at FROM cn_relay.bans
         WHERE until IS NULL OR until > clock_timestamp()
         ORDER BY kind, subject",
    )
    .fetch_all(connection)
    .await?;
    let bans = rows.into_iter().map(|row| Banned {
        is_key: row.kind == "key",
        subject: row.subject,
        until: row.until,
        said: said(row.actor, row.reason, row.changed_at),
    });
    Ok(bans.collect())
}

fn said(actor: String, reason: String, at: OffsetDateTime) -> Said {
    Said { actor, reason, at }
}

/// Makes a change and writes down who made it; answers whether there was anything to change.
pub(crate) async fn change(
    tx: &mut PgConnection,
    audit_id: Uuid,
    change: &Change,
    actor: &str,
    reason: &str,
) -> sqlx::Result<bool> {
    let changed = match change {
        Change::Enable(topic) | Change::Disable(topic) => {
            let is_enabled = matches!(change, Change::Enable(_));
            sqlx::query!(
                "INSERT INTO cn_relay.topics (topic_id, is_enabled, actor, reason)
                 VALUES ($1, $2, $3, $4)
                 ON CONFLICT (topic_id) DO UPDATE
                 SET is_enabled = excluded.is_enabled, actor = excluded.actor,
                     reason = excluded.reason, changed_at = now()",
                topic,
                is_enabled,
                actor,
                reason,
            )
            .execute(&mut *tx)
            .await?
        }
        Change::Policy(topic, policy) => change_policy(tx, topic, policy, actor, reason).await?,
        Change::Ban(subject, seconds) => {
            sqlx::query!(
                "INSERT INTO cn_relay.bans (kind, subject, until, actor, reason)
                 VALUES ($1, $2, now() + make_interval(secs => $3), $4, $5)
                 ON CONFLICT (kind, subject) DO UPDATE
                 SET until = excluded.until, actor = excluded.actor, reason = excluded.reason,
                     changed_at = now()",
                subject.kind(),
                subject.text(),
                *seconds,
                actor,
                reason,
            )
            .execute(&mut *tx)
            .await?
        }
        Change::Unban(subject) => {
            sqlx::query!(
                "DELETE FROM cn_relay.bans WHERE kind = $1 AND subject = $2",
                subject.kind(),
                subject.text(),
            )
            .execute(&mut *tx)
            .await?
        }
    };
    if changed.rows_affected() == 0 {
        return Ok(false);
    }
    audit(tx, audit_id, change, actor, reason).await?;
    Ok(true)
}

/// Writes down who has changed what, and why.
async fn audit(
    tx: &mut PgConnection,
    audit_id: Uuid,
    change: &Change,
    actor: &str,
    reason: &str,
) -> sqlx::Result<()> {
    sqlx::query!(
        "INSERT INTO cn_relay.rules_audit (audit_id, action, subject, actor, reason, detail)
         VALUES ($1, $2, $3, $4, $5, $6)",
        audit_id,
        change.action(),
        change.subject(),
        actor,
        reason,
        change.detail(),
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Changes what is said of it, and leaves the rest.
async fn change_policy(
    tx: &mut PgConnection,
    topic: &str,
    policy: &PolicyChange,
    actor: &str,
    reason: &str,
) -> sqlx::Result<PgQueryResult> {
    let number = |it: u32| i32::try_from(it).unwrap_or(i32::MAX);
    sqlx::query!(
        "INSERT INTO cn_relay.topics AS topic (
             topic_id, is_enabled, priority, takes_backfill, events_per_minute, capacity, actor, reason
         )
         VALUES (
             $1, TRUE, coalesce($2, 'normal'), coalesce($3, TRUE), coalesce($4, 0), coalesce($5, 0), $6, $7
         )
         ON CONFLICT (topic_id) DO UPDATE
         SET priority = coalesce($2, topic.priority),
             takes_backfill = coalesce($3, topic.takes_backfill),
             events_per_minute = coalesce($4, topic.events_per_minute),
             capacity = coalesce($5, topic.capacity),
             actor = excluded.actor, reason = excluded.reason, changed_at = now()",
        topic,
        policy.priority.map(Priority::as_str),
        policy.takes_backfill,
        policy.events_per_minute.map(number),
        policy.capacity.map(number),
        actor,
        reason,
    )
    .execute(tx)
    .await
}
