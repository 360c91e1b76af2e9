//! Messages of other services, and what they mean here.
//!
//! A message that can't be read is poison: it is refused for good, and what the broker says of
//! that is kept (`advisories`).

use serde_json::json;
use tasuki_contract::events::community::{CommunityEvent, EventType as CommunityEventType};
use tasuki_contract::events::entitlement::EntitlementEvent;
use tasuki_contract::events::matchmaking::MatchmakingEvent;
use tasuki_contract::events::shop::{EventType as ShopEventType, ShopEvent};
use tasuki_contract::events::{DecodeError, Message};
use tasuki_contract::names::{InvalidName, Sku, UserId};
use tasuki_contract::timestamp;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::domain::Incoming;

/// Why a message can't be read, now or later.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Poison {
    #[error("not the message that belongs on this subject: {0}")]
    Undecodable(DecodeError),
    #[error("event_id is not a UUID")]
    EventId,
    #[error("event_type is none that is known here")]
    EventType,
    #[error("occurred_at is not a time")]
    OccurredAt,
    #[error("{field} {why}")]
    Name {
        field: &'static str,
        why: InvalidName,
    },
    #[error("version is below 1")]
    Version,
    #[error("nobody is named who could be told")]
    Nobody,
}

/// Reads messages of one subject.
pub(crate) type Reader = fn(&[u8], Option<&str>) -> Result<Incoming, Poison>;

/// Entitlement's.
pub(crate) fn entitlement(payload: &[u8], trace: Option<&str>) -> Result<Incoming, Poison> {
    let event = EntitlementEvent::decode(payload).map_err(Poison::Undecodable)?;
    let kind = event.event_type().name().ok_or(Poison::EventType)?;
    if event.version < 1 {
        return Err(Poison::Version);
    }
    let named = |field| move |why| Poison::Name { field, why };
    UserId::try_from(event.user_id.clone()).map_err(named("user_id"))?;
    Sku::try_from(event.stock_keeping_unit.clone()).map_err(named("stock_keeping_unit"))?;
    let mut payload = json!({
        "event_id": event.event_id,
        "event_type": kind,
        "occurred_at": event.occurred_at,
        "user_id": event.user_id,
        "stock_keeping_unit": event.stock_keeping_unit,
        "source": event.source,
        "source_id": event.source_id,
        "version": event.version,
        "trace_id": event.trace_id,
    });
    if let Some(fields) = payload.as_object_mut() {
        if let Some(quantity) = event.quantity {
            fields.insert("quantity".to_owned(), json!(quantity));
        }
        if let Some(end) = &event.expires_at {
            fields.insert("expires_at".to_owned(), json!(end));
        }
    }
    Ok(Incoming {
        event_id: id(&event.event_id)?,
        kind,
        aggregate_key: format!("{}:{}", event.user_id, event.stock_keeping_unit),
        recipients: vec![event.user_id],
        version: event.version,
        occurred_at: time(&event.occurred_at)?,
        payload: without_nul(payload)?,
        traceparent: trace_of(trace),
    })
}

/// Matchmaking's.
pub(crate) fn matchmaking(payload: &[u8], trace: Option<&str>) -> Result<Incoming, Poison> {
    let event = MatchmakingEvent::decode(payload).map_err(Poison::Undecodable)?;
    let kind = event.event_type().name().ok_or(Poison::EventType)?;
    if event.user_ids.is_empty() {
        return Err(Poison::Nobody);
    }
    let named = |field| move |why| Poison::Name { field, why };
    for user in &event.user_ids {
        UserId::try_from(user.clone()).map_err(named("user_ids"))?;
    }
    Sku::try_from(event.match_id.clone()).map_err(named("match_id"))?;
    let payload = json!({
        "event_id": event.event_id,
        "event_type": kind,
        "occurred_at": event.occurred_at,
        "match_id": event.match_id,
        "mode": event.mode,
        "user_ids": event.user_ids,
        "trace_id": event.trace_id,
    });
    Ok(Incoming {
        event_id: id(&event.event_id)?,
        kind,
        aggregate_key: format!("match:{}", event.match_id),
        recipients: distinct(event.user_ids),
        version: 1,
        occurred_at: time(&event.occurred_at)?,
        payload: without_nul(payload)?,
        traceparent: trace_of(trace),
    })
}

/// The shop's. Of what moves an order inside the shop nobody is told.
pub(crate) fn shop(payload: &[u8], trace: Option<&str>) -> Result<Incoming, Poison> {
    let event = ShopEvent::decode(payload).map_err(Poison::Undecodable)?;
    let kind = event.event_type().name().ok_or(Poison::EventType)?;
    if event.version < 1 {
        return Err(Poison::Version);
    }
    let named = |field| move |why| Poison::Name { field, why };
    UserId::try_from(event.user_id.clone()).map_err(named("user_id"))?;
    Sku::try_from(event.order_id.clone()).map_err(named("order_id"))?;
    let items = event.items.iter().map(|item| {
        json!({
            "stock_keeping_unit": item.stock_keeping_unit,
            "quantity": item.quantity,
            "price": item.price,
        })
    });
    let items: Vec<_> = items.collect();
    let mut payload = json!({
        "event_id": event.event_id,
        "event_type": kind,
        "occurred_at": event.occurred_at,
        "order_id": event.order_id,
        "user_id": event.user_id,
        "amount": event.amount,
        "currency": event.currency,
        "payment_id": event.payment_id,
        "version": event.version,
        "trace_id": event.trace_id,
    });
    if let Some(fields) = payload.as_object_mut() {
        if !event.reason.is_empty() {
            fields.insert("reason".to_owned(), json!(event.reason));
        }
        let has_nul = |item: &serde_json::Value| item.to_string().contains("\\u0000");
        if items.iter().any(has_nul) {
            return Err(Poison::Name {
                field: "items",
                why: InvalidName::Control,
            });
        }
        fields.insert("items".to_owned(), json!(items));
    }
    Ok(Incoming {
        event_id: id(&event.event_id)?,
        kind,
        aggregate_key: format!("order:{}", event.order_id),
        recipients: if is_told(event.event_type()) {
            vec![event.user_id]
        } else {
            Vec::new()
        },
        version: event.version,
        occurred_at: time(&event.occurred_at)?,
        payload: without_nul(payload)?,
        traceparent: trace_of(trace),
    })
}

/// The community node's: who made what was labelled is told.
pub(crate) fn community(payload: &[u8], trace: Option<&str>) -> Result<Incoming, Poison> {
    let event = CommunityEvent::decode(payload).map_err(Poison::Undecodable)?;
    let kind = event.event_type().name().ok_or(Poison::EventType)?;
    let named = |field| move |why| Poison::Name { field, why };
    UserId::try_from(event.user_id.clone()).map_err(named("user_id"))?;
    Sku::try_from(event.correlation_id.clone()).map_err(named("correlation_id"))?;
    Sku::try_from(event.label.clone()).map_err(named("label"))?;
    let mut payload = json!({
        "event_id": event.event_id,
        "event_type": kind,
        "occurred_at": event.occurred_at,
        "user_id": event.user_id,
        "pubkey": event.pubkey,
        "target": event.target,
        "label": event.label,
        "confidence": event.confidence,
        "expires_at": event.expires_at,
        "trace_id": event.trace_id,
    });
    if let Some(fields) = payload.as_object_mut() {
        for (name, text) in [
            ("policy_url", &event.policy_url),
            ("policy_ref", &event.policy_ref),
            ("reason", &event.reason),
        ] {
            if !text.is_empty() {
                fields.insert(name.to_owned(), json!(text));
            }
        }
    }
    Ok(Incoming {
        event_id: id(&event.event_id)?,
        kind,
        aggregate_key: format!("label:{}", event.correlation_id),
        version: match event.event_type() {
            // A label is given, and then perhaps taken back.
            CommunityEventType::LabelWithdrawn => 2,
            CommunityEventType::Unspecified | CommunityEventType::ContentLabelled => 1,
        },
        recipients: vec![event.user_id],
        occurred_at: time(&event.occurred_at)?,
        payload: without_nul(payload)?,
        traceparent: trace_of(trace),
    })
}

/// Whether somebody who buys wants to know.
const fn is_told(what: ShopEventType) -> bool {
    match what {
        ShopEventType::OrderCreated
        | ShopEventType::PaymentCompleted
        | ShopEventType::PaymentFailed
        | ShopEventType::PaymentRefunded
        | ShopEventType::OrderCompleted
        | ShopEventType::OrderCancelled => true,
        ShopEventType::Unspecified
        | ShopEventType::StockReserved
        | ShopEventType::StockFailed
        | ShopEventType::StockReleased
        | ShopEventType::EntitlementsGranted
        | ShopEventType::EntitlementsRevoked
        | ShopEventType::ConfirmationFailed => false,
    }
}

/// Everybody once.
fn distinct(mut users: Vec<String>) -> Vec<String> {
    users.sort_unstable();
    users.dedup();
    users
}

/// A trace context that can be stored; a sender's mistake there must not keep the event from its
/// effect.
fn trace_of(text: Option<&str>) -> Option<String> {
    let plain = |text: &&str| text.len() <= 256 && text.bytes().all(|byte| byte.is_ascii_graphic());
    text.filter(plain).map(str::to_owned)
}

fn id(text: &str) -> Result<Uuid, Poison> {
    Uuid::try_parse(text).map_err(|_error| Poison::EventId)
}

fn time(text: &str) -> Result<OffsetDateTime, Poison> {
    timestamp::parse(text).map_err(|_error| Poison::OccurredAt)
}

/// PostgreSQL stores no NUL in a text, also not in JSON.
fn without_nul(payload: serde_json::Value) -> Result<serde_json::Value, Poison> {
    let has_nul = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => text.contains('\0'),
        serde_json::Value::Array(items) => items
            .iter()
            .any(|item| item.as_str().is_some_and(|text| text.contains('\0'))),
        _ => false,
    };
    let fields = payload.as_object();
    if fields.is_some_and(|fields| fields.values().any(has_nul)) {
        return Err(Poison::Name {
            field: "a field",
            why: InvalidName::Control,
        });
    }
    Ok(payload)
}

#[cfg(test)]
mod tests {
    use tasuki_contract::events::entitlement::EventType;

    use super::*;

    fn event() -> EntitlementEvent {
        EntitlementEvent {
            event_id: "01930000-0000-7000-8000-000000000001".to_owned(),
            event_type: EventType::EntitlementGranted.into(),
            occurred_at: "2026-11-16T09:00:00.000000Z".to_owned(),
            user_id: "u".to_owned(),
            stock_keeping_unit: "s".to_owned(),
            version: 1,
            ..EntitlementEvent::default()
        }
    }

    #[test]
    fn a_grant_is_read_with_all_its_fields() {
        let read = entitlement(&event().encode_to_vec(), Some("00-a-b-01")).unwrap();
        assert_eq!(
            (read.kind, &*read.aggregate_key),
            ("EntitlementGranted", "u:s")
        );
        assert_eq!(read.recipients, ["u"]);
        assert_eq!(read.payload.as_object().unwrap().len(), 9);
        assert_eq!(read.traceparent.as_deref(), Some("00-a-b-01"));
    }

    #[test]
    fn who_buys_is_told_of_the_order_and_not_of_what_moves_it() {
        let mut event = ShopEvent {
            event_id: "01930000-0000-7000-8000-000000000001".to_owned(),
            event_type: ShopEventType::OrderCompleted.into(),
            occurred_at: "2026-11-16T09:00:00.000000Z".to_owned(),
            order_id: "01930000-0000-7000-8000-000000000002".to_owned(),
            user_id: "u".to_owned(),
            amount: 700,
            version: 7,
            ..ShopEvent::default()
        };
        let read = shop(&event.encode_to_vec(), None).unwrap();
        assert_eq!((read.kind, read.version), ("OrderCompleted", 7));
        assert_eq!(read.recipients, ["u"]);
        assert_eq!(read.payload["amount"], 700);
        event.event_type = ShopEventType::StockReserved.into();
        let read = shop(&event.encode_to_vec(), None).unwrap();
        assert_eq!(read.recipients, [""; 0]);
        event.event_type = 0;
        assert_eq!(shop(&event.encode_to_vec(), None), Err(Poison::EventType));
    }

    #[test]
    fn who_is_labelled_is_told_why_and_until_when() {
        let mut event = CommunityEvent {
            event_id: "9f930000-0000-1000-8000-000000000001".to_owned(),
            event_type: CommunityEventType::ContentLabelled.into(),
            occurred_at: "2026-11-16T09:00:00.000000Z".to_owned(),
            user_id: "u".to_owned(),
            label: "spam".to_owned(),
            confidence: 0.8,
            policy_ref: "3.1".to_owned(),
            correlation_id: "l".to_owned(),
            ..CommunityEvent::default()
        };
        let read = community(&event.encode_to_vec(), None).unwrap();
        assert_eq!((read.kind, read.version), ("ContentLabelled", 1));
        assert_eq!(
            (&*read.aggregate_key, &read.recipients[..]),
            ("label:l", &["u".to_owned()][..])
        );
        assert_eq!(
            (&read.payload["label"], &read.payload["confidence"]),
            (&json!("spam"), &json!(0.8))
        );
        assert_eq!(read.payload.get("policy_url"), None);
        event.event_type = CommunityEventType::LabelWithdrawn.into();
        assert_eq!(community(&event.encode_to_vec(), None).unwrap().version, 2);
        event.event_type = 0;
        assert_eq!(
            community(&event.encode_to_vec(), None),
            Err(Poison::EventType)
        );
        event.event_type = 1;
        event.user_id = String::new();
        let poison = community(&event.encode_to_vec(), None).unwrap_err();
        assert_eq!(poison.to_string(), "user_id is required");
    }

    #[test]
    fn every_kind_of_poison_is_told_apart() {
        type Break = fn(&mut EntitlementEvent);
        let cases: [(Break, &str); 7] = [
            (|it| it.event_id = "x".to_owned(), "event_id is not a UUID"),
            (
                |it| it.event_type = 0,
                "event_type is none that is known here",
            ),
            (
                |it| it.event_type = 99,
                "event_type is none that is known here",
            ),
            (
                |it| it.occurred_at = "soon".to_owned(),
                "occurred_at is not a time",
            ),
            (|it| it.user_id = String::new(), "user_id is required"),
            (|it| it.version = 0, "version is below 1"),
            (
                |it| it.source = "a\0".to_owned(),
                "a field has a control character",
            ),
        ];
        for (change, words) in cases {
            let mut event = event();
            change(&mut event);
            let poison = entitlement(&event.encode_to_vec(), None).unwrap_err();
            assert_eq!(poison.to_string(), words);
        }
        assert_eq!(
            entitlement(b"", None),
            Err(Poison::EventType),
            "an empty message"
        );
        let noise = entitlement(b"\xff\xff\xff", None).unwrap_err();
        assert!(matches!(noise, Poison::Undecodable(_)));
    }
}
