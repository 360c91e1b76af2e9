//! The events of the shop, as they enter the outbox and as its parts read them.

use tasuki::Clock;
use tasuki::outbox::Event;
use tasuki_contract::events::shop::{self as wire, EventType, ShopEvent};
use tasuki_contract::events::{DecodeError, Message};
use tasuki_contract::ids::{EventId, OrderId};
use tasuki_contract::shop::Flow;
use tasuki_contract::timestamp;
use tasuki_service::telemetry::trace;
use tracing::Span;

use crate::error::Error;
use crate::orders::Dossier;
use crate::store::orders::Moved;

/// The event that tells of a change of an order.
pub(crate) fn event(
    dossier: &Dossier,
    moved: Moved,
    what: EventType,
    reason: &str,
    clock: &Clock,
) -> Result<Event, Error> {
    let (id, order) = (EventId::new(clock), dossier.order.to_string());
    let traceparent = trace::traceparent(&Span::current());
    let trace_id = traceparent.as_deref().and_then(trace_id);
    let items = dossier.items.iter().map(|item| wire::Item {
        stock_keeping_unit: item.sku.clone(),
        quantity: item.quantity,
        price: item.price,
    });
    let payload = ShopEvent {
        event_id: id.to_string(),
        event_type: what.into(),
        occurred_at: timestamp::format(moved.at)?,
        order_id: order.clone(),
        user_id: dossier.user.clone(),
        amount: dossier.money.amount,
        currency: dossier.money.currency.clone(),
        items: items.collect(),
        payment_id: dossier.payment.to_string(),
        reservation_id: dossier.reservation.to_string(),
        reason: reason.to_owned(),
        trace_id: trace_id.unwrap_or_default().to_owned(),
        correlation_id: order.clone(),
        flow: match dossier.flow {
            Flow::Orchestrated => wire::Flow::Orchestrated,
            Flow::Choreographed => wire::Flow::Choreographed,
        }
        .into(),
        version: moved.version,
    };
    let name = what.name().unwrap_or_default();
    let key = format!("order:{order}");
    Ok(
        Event::new(id.as_uuid(), name, key.clone(), payload.encode_to_vec())
            .ordered_by(key)
            .correlation_id(order)
            .occurred_at(moved.at)
            .traceparent(traceparent),
    )
}

/// The 32 hex digits in the middle of a `traceparent`.
fn trace_id(traceparent: &str) -> Option<&str> {
    traceparent.split('-').nth(1)
}

/// What a part of the shop hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heard {
    pub(crate) what: EventType,
    pub(crate) order: OrderId,
}

/// Why a message can't be read, now or later.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Poison {
    #[error("not the message that belongs on this subject: {0}")]
    Undecodable(#[from] DecodeError),
    #[error("event_type is none that is known here")]
    EventType,
    #[error("order_id is not a UUID")]
    OrderId,
}

/// Reads an event of an order that moves by its events; nothing of one that a saga moves.
pub(crate) fn heard(payload: &[u8]) -> Result<Option<Heard>, Poison> {
    let event = ShopEvent::decode(payload)?;
    let what = event.event_type();
    if what == EventType::Unspecified {
        return Err(Poison::EventType);
    }
    if event.flow() != wire::Flow::Choreographed {
        return Ok(None);
    }
    let order = event.order_id.parse().map_err(|_error| Poison::OrderId)?;
    Ok(Some(Heard { what, order }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(event: &ShopEvent) -> Result<Option<Heard>, Poison> {
        heard(&event.encode_to_vec())
    }

    #[test]
    fn an_order_that_a_saga_moves_is_nobodys_business_here() {
        let mut event = ShopEvent {
            event_type: EventType::OrderCreated.into(),
            order_id: "01930000-0000-7000-8000-000000000001".to_owned(),
            flow: wire::Flow::Orchestrated.into(),
            ..ShopEvent::default()
        };
        assert_eq!(read(&event), Ok(None));
        event.flow = wire::Flow::Choreographed.into();
        let heard = read(&event).unwrap().unwrap();
        assert_eq!(heard.what, EventType::OrderCreated);
    }

    #[test]
    fn what_can_not_be_read_is_poison() {
        assert_eq!(heard(b""), Err(Poison::EventType), "an empty message");
        assert!(matches!(heard(b"\xff\xff"), Err(Poison::Undecodable(_))));
        let event = ShopEvent {
            event_type: EventType::OrderCreated.into(),
            flow: wire::Flow::Choreographed.into(),
            ..ShopEvent::default()
        };
        assert_eq!(read(&event), Err(Poison::OrderId));
    }
}
