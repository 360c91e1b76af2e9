//! The events of entitlement, as they enter the outbox.

use tasuki::idempotency::{Request, RequestHash};
use tasuki::outbox::Event;
use tasuki_contract::events::Message;
use tasuki_contract::events::entitlement::{EntitlementEvent, EventType};
use tasuki_contract::ids::EventId;
use tasuki_contract::timestamp;

use crate::NAME;
use crate::commands::{Command, Form};
use crate::domain::{Action, Change, EXPIRED, Operation, Order};
use crate::error::Error;
use crate::store::{Due, Pair};

/// The event that tells of `change`.
pub(crate) fn event(
    id: EventId,
    (user, sku): Pair<'_>,
    change: &Change,
    traceparent: Option<&str>,
) -> Result<Event, Error> {
    let (event_type, name) = match change.action {
        Action::Grant => (EventType::EntitlementGranted, "EntitlementGranted"),
        Action::Revoke | Action::Expire => (EventType::EntitlementRevoked, "EntitlementRevoked"),
        Action::Consume => (EventType::EntitlementConsumed, "EntitlementConsumed"),
    };
    let holding = &change.holding;
    let payload = EntitlementEvent {
        event_id: id.to_string(),
        event_type: event_type.into(),
        occurred_at: timestamp::format(holding.updated_at)?,
        user_id: user.to_owned(),
        stock_keeping_unit: sku.to_owned(),
        source: holding.source.clone(),
        source_id: holding.source_id.clone(),
        version: holding.version,
        trace_id: traceparent
            .and_then(trace_id)
            .unwrap_or_default()
            .to_owned(),
        correlation_id: holding.source_id.clone(),
        quantity: holding.quantity,
        expires_at: holding.expires_at.map(timestamp::format).transpose()?,
    };
    // Names end in headers, which end at a line break; a colon in a user id is no harm, because
    // nobody takes the key apart.
    let key = format!("{user}:{sku}");
    Ok(
        Event::new(id.as_uuid(), name, key.clone(), payload.encode_to_vec())
            .ordered_by(key)
            .occurred_at(holding.updated_at)
            .traceparent(traceparent.map(str::to_owned)),
    )
}

/// The 32 hex digits in the middle of a `traceparent`.
fn trace_id(traceparent: &str) -> Option<&str> {
    traceparent.split('-').nth(1)
}

/// The command that nobody sends: `due` have run out.
pub(crate) fn expiry(due: &[Due]) -> Result<Command, Error> {
    let invalid =
        |why: tasuki_contract::names::InvalidName| Error::Store(sqlx::Error::Decode(Box::new(why)));
    let orders = due.iter().map(|due| {
        Ok(Order {
            user: due.user_id.clone().try_into().map_err(invalid)?,
            sku: due.stock_keeping_unit.clone().try_into().map_err(invalid)?,
            operation: Operation::Expire,
            reason: EXPIRED.to_owned().try_into().map_err(invalid)?,
            purchase: due.source_id.clone().try_into().map_err(invalid)?,
        })
    });
    Ok(Command {
        // Never opened: what happens by itself happens under no key.
        request: Request::new(NAME, EXPIRED, RequestHash::of("", "", b""))?,
        orders: orders.collect::<Result<_, Error>>()?,
        form: Form::Many,
        traceparent: None,
        insists: false,
    })
}
