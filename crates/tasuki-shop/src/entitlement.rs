//! Entitlement's API, as the shop uses it: with a token of its own, and keys that never change.
//!
//! The key of a grant is `<purchase>:<sku>:grant`, of what undoes it `<purchase>:<sku>:revoke`. A
//! repetition is answered as the first time, by entitlement itself.

use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Client, StatusCode};
use secrecy::ExposeSecret;
use serde::Serialize;
use tasuki_contract::entitlement::{
    ConsumeBody, ENTITLEMENT_INSUFFICIENT_QUANTITY, ENTITLEMENT_STATE_CONFLICT, GrantBody,
    RevokeBody,
};
use tasuki_contract::error::ErrorBody;
use tasuki_service::auth::tokens::Signer;

use crate::domain::Item;
use crate::orders::Dossier;

/// The audience of our tokens.
const AUDIENCE: &str = "entitlement";
/// Why, as entitlement's history shows it.
const PURCHASE: &str = "purchase";
const UNDONE: &str = "purchase undone";

/// Calls entitlement. A clone shares its connections.
#[derive(Clone, Debug)]
pub(crate) struct Entitlements {
    client: Client,
    base: String,
    signer: Signer,
}

/// What entitlement decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    /// The state of the entitlement does not allow it.
    Conflict(String),
    /// It will never be done: the request itself is at fault.
    Refused(String),
}

/// There is no decision, or nobody heard of it.
#[derive(Debug, thiserror::Error)]
#[error("entitlement did not answer: {0}")]
pub(crate) struct Unanswered(String);

impl Entitlements {
    /// Calls entitlement at `base`; each call may take `limit`.
    pub(crate) fn new(base: &str, limit: Duration, signer: Signer) -> reqwest::Result<Self> {
        let client = Client::builder()
            .timeout(limit)
            .redirect(Policy::none())
            .no_proxy()
            .build()?;
        Ok(Self {
            client,
            base: base.trim_end_matches('/').to_owned(),
            signer,
        })
    }

    /// Grants an item of an order.
    pub(crate) async fn grant(&self, dossier: &Dossier, item: &Item) -> Result<Answer, Unanswered> {
        let body = GrantBody {
            user_id: dossier.user.clone(),
            stock_keeping_unit: item.sku.clone(),
            reason: PURCHASE.to_owned(),
            purchase_id: dossier.order.to_string(),
            quantity: item.consumable.then_some(item.quantity),
            expires_at: None,
        };
        let key = key(dossier, item, "grant");
        self.post("/v1/entitlements/grants", &key, &body).await
    }

    /// Undoes a grant that is this order's. What is used up is taken back by as much as was granted,
    /// and no more: there may be more of it than this order's.
    pub(crate) async fn take_back(
        &self,
        dossier: &Dossier,
        item: &Item,
    ) -> Result<Answer, Unanswered> {
        let key = key(dossier, item, "revoke");
        let (user_id, stock_keeping_unit) = (dossier.user.clone(), item.sku.clone());
        let (reason, purchase_id) = (UNDONE.to_owned(), dossier.order.to_string());
        if item.consumable {
            let body = ConsumeBody {
                user_id,
                stock_keeping_unit,
                reason,
                purchase_id,
                quantity: item.quantity,
            };
            return self.post("/v1/entitlements/consumes", &key, &body).await;
        }
        let body = RevokeBody {
            user_id,
            stock_keeping_unit,
            reason,
            purchase_id,
        };
        self.post("/v1/entitlements/revokes", &key, &body).await
    }

    async fn post<B: Serialize + Sync>(
        &self,
        path: &str,
        key: &str,
        body: &B,
    ) -> Result<Answer, Unanswered> {
        let token = self.signer.sign(AUDIENCE, None, &[]);
        let token = token.map_err(|error| Unanswered(error.to_string()))?;
        let request = self
            .client
            .post(format!("{}{path}", self.base))
            .bearer_auth(token.expose_secret())
            .header("Idempotency-Key", key)
            .json(body);
        let unanswered = |error: reqwest::Error| Unanswered(error.without_url().to_string());
        let response = request.send().await.map_err(unanswered)?;
        let status = response.status();
        if status.is_success() {
            return Ok(Answer::Done);
        }
        let body: ErrorBody = response.json().await.map_err(unanswered)?;
        decided(status, &body)
    }
}

/// Whether an answer that is no success is a decision.
fn decided(status: StatusCode, body: &ErrorBody) -> Result<Answer, Unanswered> {
    let told = format!("{}: {}", body.code, body.message);
    match (status, &*body.code) {
        (StatusCode::CONFLICT, ENTITLEMENT_STATE_CONFLICT | ENTITLEMENT_INSUFFICIENT_QUANTITY) => {
            Ok(Answer::Conflict(told))
        }
        (StatusCode::BAD_REQUEST, _) | (StatusCode::CONFLICT, "IDEMPOTENCY_KEY_CONFLICT") => {
            Ok(Answer::Refused(told))
        }
        // Also when we are not let in: that is put right, and not by the customer.
        _ => Err(Unanswered(told)),
    }
}

fn key(dossier: &Dossier, item: &Item, verb: &str) -> String {
    // A key is visible ASCII, at most 255 of it; a name need not be.
    let plain = item.sku.bytes().all(|byte| byte.is_ascii_graphic()) && item.sku.len() <= 128;
    if plain {
        return format!("{}:{}:{verb}", dossier.order, item.sku);
    }
    let hex: String = item.sku.bytes().map(|byte| format!("{byte:02x}")).collect();
    let hex = hex.get(..160).unwrap_or(&hex);
    format!("{}:hex-{hex}:{verb}", dossier.order)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(status: u16, code: &'static str) -> Result<Answer, Unanswered> {
        let body = ErrorBody {
            code: code.into(),
            message: "m".to_owned(),
        };
        decided(StatusCode::from_u16(status).unwrap(), &body)
    }

    #[test]
    fn only_decisions_are_decisions() {
        let conflict = told(409, ENTITLEMENT_STATE_CONFLICT).unwrap();
        assert!(matches!(conflict, Answer::Conflict(_)));
        assert!(matches!(told(400, "BAD_REQUEST"), Ok(Answer::Refused(_))));
        for (status, code) in [
            (409, "IDEMPOTENCY_KEY_IN_PROGRESS"),
            (401, "UNAUTHORIZED"),
            (403, "FORBIDDEN"),
            (500, "INTERNAL"),
            (503, "UNAVAILABLE"),
            (504, "TIMEOUT"),
        ] {
            assert!(told(status, code).is_err(), "{status} {code}");
        }
    }
}
