//! The SQL of notification.

pub(crate) mod broker;
pub(crate) mod delivery;
pub(crate) mod inbox;
pub(crate) mod retention;
pub(crate) mod verify;
pub(crate) mod webhooks;

use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::domain::{Channel, Target, Wishes};

/// A notification that is to be delivered.
#[derive(Clone, Debug)]
pub(crate) struct New<'a> {
    pub(crate) id: Uuid,
    pub(crate) event_id: Uuid,
    pub(crate) user: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) channel: Channel,
    pub(crate) endpoint: Option<Uuid>,
    pub(crate) aggregate_key: &'a str,
    pub(crate) version: i64,
    pub(crate) occurred_at: OffsetDateTime,
    pub(crate) payload: &'a serde_json::Value,
    pub(crate) traceparent: Option<&'a str>,
}

/// Over which channels these users want to be told.
pub(crate) async fn wishes(
    tx: &mut PgConnection,
    users: &[String],
    otherwise: &[Channel],
) -> sqlx::Result<Wishes> {
    let mut wishes = Wishes::default();
    let rows = sqlx::query!(
        r#"
        SELECT user_id, type AS kind, channels
        FROM notification.preferences
        WHERE user_id = ANY($1)
        "#,
        users,
    )
    .fetch_all(&mut *tx)
    .await?;
    // Who has said nothing about a type gets it over the default channels.
    let mut by_webhook = match otherwise.contains(&Channel::Webhook) {
        true => users.to_vec(),
        false => Vec::new(),
    };
    for row in rows {
        let channels: Vec<_> = row
            .channels
            .iter()
            .filter_map(|it| Channel::parse(it))
            .collect();
        if channels.contains(&Channel::Webhook) {
            by_webhook.push(row.user_id.clone());
        }
        wishes.channels.insert((row.user_id, row.kind), channels);
    }
    if !by_webhook.is_empty() {
        wishes.targets = targets(tx, &by_webhook).await?;
    }
    Ok(wishes)
}

/// The endpoints of these users that get anything. A paused one keeps what it is owed.
async fn targets(
    tx: &mut PgConnection,
    users: &[String],
) -> sqlx::Result<std::collections::HashMap<String, Vec<Target>>> {
    let rows = sqlx::query!(
        r#"
        SELECT user_id, endpoint_id, types
        FROM notification.webhook_endpoints
        WHERE user_id = ANY($1) AND status <> 'DISABLED'
        "#,
        users,
    )
    .fetch_all(tx)
    .await?;
    let mut targets = std::collections::HashMap::<_, Vec<_>>::new();
    for row in rows {
        targets.entry(row.user_id).or_default().push(Target {
            endpoint: row.endpoint_id,
            types: row.types,
        });
    }
    Ok(targets)
}

/// Writes notifications that are to be delivered.
pub(crate) async fn insert(tx: &mut PgConnection, new: &[New<'_>]) -> sqlx::Result<()> {
    let texts = |text: fn(&New<'_>) -> String| new.iter().map(text).collect::<Vec<_>>();
    let ids: Vec<_> = new.iter().map(|it| it.id).collect();
    let events: Vec<_> = new.iter().map(|it| it.event_id).collect();
    let users = texts(|it| it.user.to_owned());
    let kinds = texts(|it| it.kind.to_owned());
    let channels = texts(|it| it.channel.as_str().to_owned());
    let endpoints: Vec<_> = new.iter().map(|it| it.endpoint).collect();
    let keys = texts(|it| it.aggregate_key.to_owned());
    let versions: Vec<_> = new.iter().map(|it| it.version).collect();
    let occurred: Vec<_> = new.iter().map(|it| it.occurred_at).collect();
    let payloads: Vec<_> = new.iter().map(|it| it.payload.clone()).collect();
    let traces: Vec<_> = new
        .iter()
        .map(|it| it.traceparent.map(str::to_owned))
        .collect();
    sqlx::query!(
        r#"
        INSERT INTO notification.notifications_live (
            notification_id, event_id, user_id, type, channel, endpoint_id, aggregate_key,
            version, occurred_at, payload_json, traceparent
        )
        SELECT
            made.notification_id, made.event_id, made.user_id, made.kind, made.channel,
            made.endpoint_id, made.aggregate_key, made.version, made.occurred_at, made.payload,
            made.traceparent
        FROM UNNEST(
            $1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::uuid[], $7::text[],
            $8::bigint[], $9::timestamptz[], $10::jsonb[], $11::text[]
        ) AS made (
            notification_id, event_id, user_id, kind, channel, endpoint_id, aggregate_key,
            version, occurred_at, payload, traceparent
        )
        "#,
        &ids,
        &events,
        &users,
        &kinds,
        &channels,
        &endpoints as &[Option<Uuid>],
        &keys,
        &versions,
        &occurred,
        &payloads,
        &traces as &[Option<String>],
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Whether the database answers.
pub(crate) async fn ping(connection: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query!(r#"SELECT 1 AS "one!""#)
        .fetch_one(connection)
        .await?;
    Ok(())
}
