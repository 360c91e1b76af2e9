//! What operators have said of topics, keys and addresses.

use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::rules::{Banned, Change, Said, Topic};

/// All topics of which something was said.
pub(crate) async fn topics(connection: &mut PgConnection) -> sqlx::Result<Vec<Topic>> {
    let rows = sqlx::query!(
        "SELECT topic_id, is_enabled, actor, reason, changed_at FROM cn_relay.topics
         ORDER BY topic_id",
    )
    .fetch_all(connection)
    .await?;
    let topics = rows.into_iter().map(|row| Topic {
        topic: row.topic_id,
        is_enabled: row.is_enabled,
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
    sqlx::query!(
        "INSERT INTO cn_relay.rules_audit (audit_id, action, subject, actor, reason)
         VALUES ($1, $2, $3, $4, $5)",
        audit_id,
        change.action(),
        change.subject(),
        actor,
        reason,
    )
    .execute(tx)
    .await?;
    Ok(true)
}
