//! Who has changed what, and why.

use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    RuleAdded,
    RuleChanged,
    RuleClosed,
    LabelAdded,
    LabelWithdrawn,
    MemberLinked,
    MemberUnlinked,
}

impl Action {
    const fn as_str(self) -> &'static str {
        match self {
            Self::RuleAdded => "RULE_ADDED",
            Self::RuleChanged => "RULE_CHANGED",
            Self::RuleClosed => "RULE_CLOSED",
            Self::LabelAdded => "LABEL_ADDED",
            Self::LabelWithdrawn => "LABEL_WITHDRAWN",
            Self::MemberLinked => "MEMBER_LINKED",
            Self::MemberUnlinked => "MEMBER_UNLINKED",
        }
    }
}

/// Writes it down, in the transaction that does it.
pub(crate) async fn write(
    tx: &mut PgConnection,
    action: Action,
    subject: &str,
    detail: &str,
    actor: &str,
    reason: &str,
) -> sqlx::Result<()> {
    sqlx::query!(
        "INSERT INTO cn_relay.moderation_audit (audit_id, action, subject, detail, actor, reason)
         VALUES ($1, $2, $3, $4, $5, $6)",
        Uuid::now_v7(),
        action.as_str(),
        subject,
        detail,
        actor,
        reason,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// A change.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) audit_id: Uuid,
    pub(crate) action: String,
    pub(crate) subject: String,
    pub(crate) detail: String,
    pub(crate) actor: String,
    pub(crate) reason: String,
    pub(crate) changed_at: OffsetDateTime,
}

/// Changes, the last first; behind `before`, if that is said.
pub(crate) async fn list(
    connection: &mut PgConnection,
    before: Option<(OffsetDateTime, Uuid)>,
    limit: i64,
) -> sqlx::Result<Vec<Entry>> {
    let (at, id) = before.unzip();
    sqlx::query_as!(
        Entry,
        "SELECT audit_id, action, subject, detail, actor, reason, changed_at
         FROM cn_relay.moderation_audit
         WHERE $1::timestamptz IS NULL OR (changed_at, audit_id) < ($1, $2)
         ORDER BY changed_at DESC, audit_id DESC
         LIMIT $3",
        at,
        id,
        limit,
    )
    .fetch_all(connection)
    .await
}
