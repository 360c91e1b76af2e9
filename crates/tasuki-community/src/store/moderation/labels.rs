//! Labels.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};
use sqlx::PgConnection;
use tasuki::idempotency::LockNumber;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::NAME;
use crate::moderation::{Error, Label};
use crate::nostr::Id;

/// Nobody else labels these targets before the end of this transaction. In the order of the numbers, so
/// that two who label never wait for each other.
pub(crate) async fn lock(tx: &mut PgConnection, targets: &[String]) -> sqlx::Result<()> {
    let of = |target: &String| LockNumber::of(&[NAME, "label", target]).get();
    let mut locks: Vec<_> = targets.iter().map(of).collect();
    locks.sort_unstable();
    locks.dedup();
    sqlx::query!(
        r#"SELECT pg_advisory_xact_lock(number) AS "nothing!: ()" FROM unnest($1::bigint[]) AS number"#,
        &locks,
    )
    .fetch_all(tx)
    .await?;
    Ok(())
}

/// How many labels each of these had before it came; whatever has become of them.
pub(crate) async fn before_targets(
    tx: &mut PgConnection,
    targets: &[String],
) -> sqlx::Result<HashMap<String, usize>> {
    let rows = sqlx::query!(
        r#"SELECT target, count(*) AS "count!" FROM cn_relay.labels
           WHERE target = ANY($1) AND is_before_target
           GROUP BY target"#,
        targets,
    )
    .fetch_all(tx)
    .await?;
    let counts = rows
        .into_iter()
        .map(|row| (row.target, usize::try_from(row.count).unwrap_or(usize::MAX)));
    Ok(counts.collect())
}

/// Writes labels as they are said by the events `ids`; answers the events of those that were not there
/// before, or not as they should be. What has become of a label since stays.
pub(crate) async fn put(
    tx: &mut PgConnection,
    labels: &[Label],
    ids: &[Id],
) -> Result<HashSet<Id>, Error> {
    let rows: Vec<_> = labels
        .iter()
        .zip(ids)
        .map(|(label, id)| row(label, id))
        .collect();
    let written = sqlx::query_file_scalar!(
        "src/store/moderation/put_labels.sql",
        serde_json::to_string(&rows)?,
        &labels.iter().map(|it| it.issued_at).collect::<Vec<_>>(),
        &labels.iter().map(Label::expires_at).collect::<Vec<_>>(),
    )
    .fetch_all(tx)
    .await?;
    Ok(written.iter().filter_map(|id| Id::from_slice(id)).collect())
}

fn row(label: &Label, id: &Id) -> Value {
    json!({
        "label_id": label.id(),
        "target": label.target.to_string(),
        "label": label.label,
        "origin": label.origin.as_str(),
        "round": label.round,
        "rule_id": label.rule.map(|(id, _)| id),
        "rule_version": label.rule.map(|(_, version)| version),
        "author": label.author.map(|key| key.to_string()),
        "confidence": label.confidence,
        "policy_url": label.policy_url,
        "policy_ref": label.policy_ref,
        "topics": label.topics,
        "node_event_id": id.to_string(),
        "is_before_target": label.is_before_target,
        "actor": label.actor,
        "reason": label.reason,
    })
}

/// What of a target's labels decides about another one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    /// Labels that hold.
    pub(crate) active: i64,
    /// Whether a person has said the word, and it holds.
    pub(crate) is_said: bool,
    /// How often a person has said it.
    pub(crate) rounds: i32,
    /// By the database's clock.
    pub(crate) now: OffsetDateTime,
}

/// How a target stands, for a person who wants to say `label` of it.
pub(crate) async fn standing(
    tx: &mut PgConnection,
    target: &str,
    label: &str,
) -> sqlx::Result<Standing> {
    sqlx::query_as!(
        Standing,
        r#"
        SELECT
            count(*) FILTER (
                WHERE withdrawn_at IS NULL AND expires_at > clock_timestamp()
            ) AS "active!",
            coalesce(bool_or(
                label = $2 AND origin = 'operator'
                AND withdrawn_at IS NULL AND expires_at > clock_timestamp()
            ), FALSE) AS "is_said!",
            coalesce(max(round) FILTER (WHERE label = $2 AND origin = 'operator'), 0) AS "rounds!",
            clock_timestamp() AS "now!"
        FROM cn_relay.labels
        WHERE target = $1
        "#,
        target,
        label,
    )
    .fetch_one(tx)
    .await
}

/// A label as it is kept.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) label_id: Uuid,
    pub(crate) target: String,
    pub(crate) label: String,
    pub(crate) origin: String,
    pub(crate) rule_id: Option<Uuid>,
    pub(crate) rule_version: Option<i32>,
    pub(crate) author: Option<Vec<u8>>,
    pub(crate) confidence: f64,
    pub(crate) issued_at: OffsetDateTime,
    pub(crate) expires_at: OffsetDateTime,
    pub(crate) policy_url: Option<String>,
    pub(crate) policy_ref: Option<String>,
    pub(crate) topics: Vec<String>,
    pub(crate) node_event_id: Vec<u8>,
    pub(crate) actor: Option<String>,
    pub(crate) reason: Option<String>,
    pub(crate) withdrawn_at: Option<OffsetDateTime>,
    pub(crate) is_active: bool,
}

/// Which labels.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) target: Option<String>,
    pub(crate) author: Option<Vec<u8>>,
    pub(crate) label: Option<String>,
    pub(crate) is_active: Option<bool>,
    /// Behind this one.
    pub(crate) before: Option<(OffsetDateTime, Uuid)>,
    pub(crate) limit: i64,
}

/// Labels, the last first.
pub(crate) async fn list(
    connection: &mut PgConnection,
    wanted: &Wanted,
) -> sqlx::Result<Vec<Kept>> {
    let (at, id) = wanted.before.unzip();
    sqlx::query_as!(
        Kept,
        r#"
        SELECT
            label_id, target, label, origin, rule_id, rule_version, author, confidence, issued_at,
            expires_at, policy_url, policy_ref, topics, node_event_id, actor, reason, withdrawn_at,
            (withdrawn_at IS NULL AND expires_at > clock_timestamp()) AS "is_active!"
        FROM cn_relay.labels
        WHERE ($1::text IS NULL OR target = $1)
            AND ($2::bytea IS NULL OR author = $2)
            AND ($3::text IS NULL OR label = $3)
            AND ($4::boolean IS NULL
                OR $4 = (withdrawn_at IS NULL AND expires_at > clock_timestamp()))
            AND ($5::timestamptz IS NULL OR (issued_at, label_id) < ($5, $6))
        ORDER BY issued_at DESC, label_id DESC
        LIMIT $7
        "#,
        wanted.target,
        wanted.author,
        wanted.label,
        wanted.is_active,
        at,
        id,
        wanted.limit,
    )
    .fetch_all(connection)
    .await
}

/// What a label is about.
pub(crate) async fn target(tx: &mut PgConnection, id: Uuid) -> sqlx::Result<Option<String>> {
    sqlx::query_scalar!("SELECT target FROM cn_relay.labels WHERE label_id = $1", id)
        .fetch_optional(tx)
        .await
}

/// One label; nobody else touches it before the end of the transaction.
pub(crate) async fn held(tx: &mut PgConnection, id: Uuid) -> sqlx::Result<Option<Kept>> {
    sqlx::query_as!(
        Kept,
        r#"
        SELECT
            label_id, target, label, origin, rule_id, rule_version, author, confidence, issued_at,
            expires_at, policy_url, policy_ref, topics, node_event_id, actor, reason, withdrawn_at,
            (withdrawn_at IS NULL AND expires_at > clock_timestamp()) AS "is_active!"
        FROM cn_relay.labels
        WHERE label_id = $1
        FOR UPDATE
        "#,
        id,
    )
    .fetch_optional(tx)
    .await
}

/// Takes a label back; answers when.
pub(crate) async fn withdraw(tx: &mut PgConnection, id: Uuid) -> sqlx::Result<OffsetDateTime> {
    sqlx::query_scalar!(
        r#"UPDATE cn_relay.labels SET withdrawn_at = clock_timestamp()
           WHERE label_id = $1
           RETURNING withdrawn_at AS "at!""#,
        id,
    )
    .fetch_one(tx)
    .await
}
