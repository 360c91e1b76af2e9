//! Entitlements as they go over the wire, and the bytes that are kept for a repetition.

use tasuki::idempotency::Reply;
use tasuki_contract::entitlement as wire;

use crate::commands::refused;
use crate::domain::{Holding, Order, Refusal, Status};
use crate::store::Listed;

/// What an order has come to.
pub(crate) fn result(order: &Order, answer: Result<Holding, Refusal>) -> wire::BulkResult {
    match answer {
        Ok(holding) => wire::BulkResult::Done(entitlement(
            order.user.as_str(),
            order.sku.as_str(),
            &holding,
        )),
        Err(refusal) => wire::BulkResult::Refused {
            error: refused(refusal),
        },
    }
}

/// The answer to a request for one.
pub(crate) fn one(results: Vec<wire::BulkResult>) -> Result<Reply, serde_json::Error> {
    match results.into_iter().next() {
        Some(wire::BulkResult::Done(done)) => Ok(Reply::new(200, serde_json::to_vec(&done)?)),
        Some(wire::BulkResult::Refused { error }) => {
            Ok(Reply::new(409, serde_json::to_vec(&error)?))
        }
        None => many(Vec::new()),
    }
}

/// The answer to a request for many.
pub(crate) fn many(results: Vec<wire::BulkResult>) -> Result<Reply, serde_json::Error> {
    let body = serde_json::to_vec(&wire::BulkResults { results })?;
    Ok(Reply::new(200, body))
}

/// An entitlement.
pub(crate) fn entitlement(user: &str, sku: &str, holding: &Holding) -> wire::Entitlement {
    wire::Entitlement {
        user_id: user.to_owned(),
        item: wire::Item {
            stock_keeping_unit: sku.to_owned(),
            status: status(holding.status),
            version: holding.version,
            updated_at: holding.updated_at,
            quantity: holding.quantity,
            expires_at: holding.expires_at,
        },
    }
}

/// An entitlement in a list.
pub(crate) fn item(listed: Listed) -> wire::Item {
    wire::Item {
        status: Status::parse(&listed.status).map_or(wire::Status::Revoked, status),
        stock_keeping_unit: listed.stock_keeping_unit,
        version: listed.version,
        updated_at: listed.updated_at,
        quantity: listed.quantity,
        expires_at: listed.expires_at,
    }
}

const fn status(status: Status) -> wire::Status {
    match status {
        Status::Active => wire::Status::Active,
        Status::Revoked => wire::Status::Revoked,
    }
}
