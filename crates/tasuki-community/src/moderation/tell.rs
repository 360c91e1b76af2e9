//! Who made what is labelled is told: an event in the transaction of the label.
//!
//! Its id depends on the event by which the node says it. Only what the relay did not know is told, so a
//! replay and a rebuild tell nobody again.

use sqlx::PgConnection;
use tasuki::outbox::Event;
use tasuki_contract::events::Message as _;
use tasuki_contract::events::community::{CommunityEvent, EventType};
use tasuki_contract::timestamp;
use tasuki_service::telemetry::trace;
use time::OffsetDateTime;
use tracing::Span;
use uuid::Uuid;

use super::{Error, Moderator};
use crate::nostr::{Id, Key, short_hash};
use crate::store::moderation::members;

/// What is told.
#[derive(Clone, Debug)]
pub(super) struct News {
    pub(super) what: EventType,
    /// The event by which the node says it.
    pub(super) by: Id,
    pub(super) label_id: Uuid,
    pub(super) author: Key,
    pub(super) target: String,
    pub(super) label: String,
    pub(super) confidence: f64,
    pub(super) at: OffsetDateTime,
    pub(super) expires_at: OffsetDateTime,
    pub(super) policy_url: Option<String>,
    pub(super) policy_ref: Option<String>,
    pub(super) reason: Option<String>,
}

impl Moderator {
    /// Tells the authors.
    pub(super) async fn tell(&self, tx: &mut PgConnection, news: Vec<News>) -> Result<(), Error> {
        if news.is_empty() {
            return Ok(());
        }
        let keys: Vec<_> = news.iter().map(|it| it.author).collect();
        let users = members::of(tx, &keys).await?;
        let traceparent = trace::traceparent(&Span::current());
        let events = news.into_iter().map(|it| {
            let pubkey = it.author.to_string();
            let user = users.get(&it.author).cloned();
            event(
                it,
                user.unwrap_or_else(|| pubkey.clone()),
                pubkey,
                traceparent.clone(),
            )
        });
        let events = events.collect::<Result<Vec<_>, Error>>()?;
        self.outbox.enqueue_all(tx, &events).await?;
        Ok(())
    }
}

fn event(
    news: News,
    user_id: String,
    pubkey: String,
    traceparent: Option<String>,
) -> Result<Event, Error> {
    let id = short_hash(&[b"told", &news.by.0]);
    let trace_id = traceparent.as_deref().and_then(|it| it.split('-').nth(1));
    let label_id = news.label_id.to_string();
    let payload = CommunityEvent {
        event_id: id.to_string(),
        event_type: news.what.into(),
        occurred_at: timestamp::format(news.at)?,
        user_id,
        pubkey,
        target: news.target,
        label: news.label,
        confidence: news.confidence,
        expires_at: timestamp::format(news.expires_at)?,
        policy_url: news.policy_url.unwrap_or_default(),
        policy_ref: news.policy_ref.unwrap_or_default(),
        reason: news.reason.unwrap_or_default(),
        trace_id: trace_id.unwrap_or_default().to_owned(),
        correlation_id: label_id.clone(),
    };
    let (name, key) = (
        news.what.name().unwrap_or_default(),
        format!("label:{label_id}"),
    );
    Ok(Event::new(id, name, key.clone(), payload.encode_to_vec())
        .ordered_by(key)
        .correlation_id(label_id)
        .occurred_at(news.at)
        .traceparent(traceparent))
}
