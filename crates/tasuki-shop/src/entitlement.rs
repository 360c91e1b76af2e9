//! Entitlement's API, as the shop uses it: with a token of its own, and keys that never change.
//!
//! The key of a grant is `<purchase>:<sku>:grant`, of what undoes it `<purchase>:<sku>:revoke`. A
//! repetition is answered as the first time, by entitlement itself, for as long as it remembers the key:
//! an hour at least, a day unless it is told otherwise. Nothing here relies on that alone:
//!
//! - A revocation names the purchase that it undoes, and is refused when the entitlement is another's.
//! - What is used up belongs to nobody in particular; what this order was given of it, and whether that
//!   was taken back, is in entitlement's history.
//! - Whether a grant without an answer is still on its way nobody can know. So its *key* is taken, by a
//!   revocation: a grant that has happened has it already, and one that comes later is refused.

use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};
use secrecy::ExposeSecret;
use serde::Serialize;
use tasuki_contract::entitlement::{
    ConsumeBody, ENTITLEMENT_INSUFFICIENT_QUANTITY, ENTITLEMENT_PURCHASE_CONFLICT,
    ENTITLEMENT_STATE_CONFLICT, GrantBody, History, RevokeBody,
};
use tasuki_contract::error::ErrorBody;
use tasuki_service::auth::tokens::Signer;
use tasuki_service::telemetry::trace;
use tracing::Span;

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
    /// It is there, and not by this order.
    NotOurs(String),
    /// Another request has the key.
    KeyTaken(String),
    /// It will never be done: the request itself is at fault.
    Refused(String),
}

/// What has happened to an item because of an order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Past {
    pub(crate) granted: bool,
    pub(crate) taken_back: bool,
}

impl Past {
    /// Granted, and not taken back.
    pub(crate) const fn is_held(self) -> bool {
        self.granted && !self.taken_back
    }
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

    /// Undoes a grant that is this order's, and nobody else's. What is used up is taken back by as
    /// much as was granted, and no more: there may be more of it than this order's.
    pub(crate) async fn take_back(
        &self,
        dossier: &Dossier,
        item: &Item,
    ) -> Result<Answer, Unanswered> {
        let key = key(dossier, item, "revoke");
        if item.consumable {
            let body = ConsumeBody {
                user_id: dossier.user.clone(),
                stock_keeping_unit: item.sku.clone(),
                reason: UNDONE.to_owned(),
                purchase_id: dossier.order.to_string(),
                quantity: item.quantity,
            };
            return self.post("/v1/entitlements/consumes", &key, &body).await;
        }
        let body = revocation(dossier, item);
        self.post("/v1/entitlements/revokes", &key, &body).await
    }

    /// Takes the key of a grant that nobody has heard of, so that it never comes; and undoes it, if it
    /// was and its key is forgotten.
    pub(crate) async fn close(&self, dossier: &Dossier, item: &Item) -> Result<Answer, Unanswered> {
        let key = key(dossier, item, "grant");
        let body = revocation(dossier, item);
        self.post("/v1/entitlements/revokes", &key, &body).await
    }

    /// What has happened to an item because of an order, as entitlement's history tells.
    pub(crate) async fn past(&self, dossier: &Dossier, item: &Item) -> Result<Past, Unanswered> {
        let (granted, taken_back) = (key(dossier, item, "grant"), key(dossier, item, "revoke"));
        let purchase = dossier.order.to_string();
        let (mut past, mut cursor) = (Past::default(), None);
        loop {
            let page = self.history(&dossier.user, &item.sku, cursor.as_deref());
            let page = page.await?;
            for entry in page.history.iter().filter(|it| it.source_id == purchase) {
                let id = entry.request_id.as_deref();
                past.granted |= entry.action == "GRANT" && id == Some(&*granted);
                past.taken_back |= id == Some(&*taken_back);
            }
            // The last change comes first: nothing before the grant is about this order.
            cursor = page.next_cursor.filter(|_| !past.granted);
            if cursor.is_none() {
                return Ok(past);
            }
        }
    }

    async fn history(
        &self,
        user: &str,
        sku: &str,
        cursor: Option<&str>,
    ) -> Result<History, Unanswered> {
        let unspeakable = || Unanswered("its address is none".to_owned());
        let mut url = Url::parse(&self.base).map_err(|_error| unspeakable())?;
        let mut path = url.path_segments_mut().map_err(|()| unspeakable())?;
        let names = ["v1", "users", user, "entitlements", sku, "history"];
        path.pop_if_empty().extend(names);
        drop(path);
        if let Some(cursor) = cursor {
            url.query_pairs_mut().append_pair("cursor", cursor);
        }
        let response = self.send(self.client.get(url)).await?;
        let status = response.status();
        if !status.is_success() {
            return Err(Unanswered(format!(
                "its history is not to be had: {status}"
            )));
        }
        response.json().await.map_err(unanswered)
    }

    async fn post<B: Serialize + Sync>(
        &self,
        path: &str,
        key: &str,
        body: &B,
    ) -> Result<Answer, Unanswered> {
        let request = self
            .client
            .post(format!("{}{path}", self.base))
            .header("Idempotency-Key", key)
            .json(body);
        let response = self.send(request).await?;
        let status = response.status();
        if status.is_success() {
            return Ok(Answer::Done);
        }
        let body: ErrorBody = response.json().await.map_err(unanswered)?;
        decided(status, &body)
    }

    /// Sends a request, as the shop, and as a part of whatever is going on.
    async fn send(&self, request: RequestBuilder) -> Result<Response, Unanswered> {
        let token = self.signer.sign(AUDIENCE, None, &[]);
        let token = token.map_err(|error| Unanswered(error.to_string()))?;
        let mut request = request.bearer_auth(token.expose_secret());
        if let Some(traceparent) = trace::traceparent(&Span::current()) {
            request = request.header("traceparent", traceparent);
        }
        request.send().await.map_err(unanswered)
    }
}

fn unanswered(error: reqwest::Error) -> Unanswered {
    Unanswered(error.without_url().to_string())
}

/// Takes an item away, if it is there by this order.
fn revocation(dossier: &Dossier, item: &Item) -> RevokeBody {
    let order = dossier.order.to_string();
    RevokeBody {
        user_id: dossier.user.clone(),
        stock_keeping_unit: item.sku.clone(),
        reason: UNDONE.to_owned(),
        if_purchase_id: Some(order.clone()),
        purchase_id: order,
    }
}

/// Whether an answer that is no success is a decision.
fn decided(status: StatusCode, body: &ErrorBody) -> Result<Answer, Unanswered> {
    let told = format!("{}: {}", body.code, body.message);
    match (status, &*body.code) {
        (StatusCode::CONFLICT, ENTITLEMENT_STATE_CONFLICT | ENTITLEMENT_INSUFFICIENT_QUANTITY) => {
            Ok(Answer::Conflict(told))
        }
        (StatusCode::CONFLICT, ENTITLEMENT_PURCHASE_CONFLICT) => Ok(Answer::NotOurs(told)),
        (StatusCode::CONFLICT, "IDEMPOTENCY_KEY_CONFLICT") => Ok(Answer::KeyTaken(told)),
        (StatusCode::BAD_REQUEST, _) => Ok(Answer::Refused(told)),
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
    // As a whole: of two long names that begin alike each has a key of its own.
    let hash = digest(&SHA256, item.sku.as_bytes());
    let hex: String = hash.as_ref().iter().map(|it| format!("{it:02x}")).collect();
    format!("{}:sha256-{hex}:{verb}", dossier.order)
}

#[cfg(test)]
mod tests {
    use tasuki_contract::shop::Flow;

    use super::*;
    use crate::domain::Money;

    fn told(status: u16, code: &'static str) -> Result<Answer, Unanswered> {
        let body = ErrorBody {
            code: code.into(),
            message: "m".to_owned(),
        };
        decided(StatusCode::from_u16(status).unwrap(), &body)
    }

    #[test]
    fn names_that_begin_alike_have_keys_of_their_own() {
        let dossier = Dossier {
            order: uuid::Uuid::nil().into(),
            payment: uuid::Uuid::nil().into(),
            reservation: uuid::Uuid::nil().into(),
            user: "ada".to_owned(),
            items: Vec::new(),
            money: Money {
                amount: 1,
                currency: "EUR".to_owned(),
            },
            payment_method: "card".to_owned(),
            flow: Flow::default(),
        };
        let of = |sku: &str| {
            let item = Item {
                sku: sku.to_owned(),
                quantity: 1,
                price: 1,
                consumable: false,
            };
            key(&dossier, &item, "grant")
        };
        let begins = "\u{5263}".repeat(100);
        let keys = [
            of("sword"),
            of(&begins),
            of(&format!("{begins}1")),
            of(&format!("{begins}2")),
        ];
        assert_eq!(keys[0], format!("{}:sword:grant", dossier.order));
        for (at, key) in keys.iter().enumerate() {
            assert!(
                key.len() <= 255 && key.bytes().all(|it| it.is_ascii_graphic()),
                "{key}"
            );
            assert!(!keys[..at].contains(key), "{key}");
        }
    }

    #[test]
    fn only_decisions_are_decisions() {
        let conflict = told(409, ENTITLEMENT_STATE_CONFLICT).unwrap();
        assert!(matches!(conflict, Answer::Conflict(_)));
        let other = told(409, ENTITLEMENT_PURCHASE_CONFLICT).unwrap();
        assert!(matches!(other, Answer::NotOurs(_)));
        let taken = told(409, "IDEMPOTENCY_KEY_CONFLICT").unwrap();
        assert!(matches!(taken, Answer::KeyTaken(_)));
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
