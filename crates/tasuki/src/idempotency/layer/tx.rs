//! The transaction of a request, on its way to the handler and back.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use sqlx::PgConnection;
use tokio::sync::{Mutex, OwnedMappedMutexGuard, OwnedMutexGuard};

use super::refusal::Refusal;
use crate::transaction::Transaction;

/// The transaction in which the answer of this request is kept. What a handler does in it is
/// committed with the answer, or not at all; it is never committed by hand.
///
/// It goes back to the layer when it is dropped. A handler that lets it outlive its answer
/// loses it: the request is rolled back and answered 500.
#[derive(Debug)]
pub struct Tx(OwnedMappedMutexGuard<Option<Transaction>, Transaction>);

/// Why a handler can't have the transaction. It is a mistake in the service, logged and
/// answered 500.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TxRejection {
    /// No idempotency layer is around this handler, or the method is a safe one.
    #[error("this request has no transaction: is the idempotency layer around the handler?")]
    Missing,
    /// Somebody else has extracted it and not dropped it yet.
    #[error("the transaction of this request is extracted twice")]
    Taken,
}

/// Where the transaction is while nobody works in it.
#[derive(Clone, Debug)]
pub(super) struct Slot(Arc<Mutex<Option<Transaction>>>);

impl Slot {
    pub(super) fn new(tx: Transaction) -> Self {
        Self(Arc::new(Mutex::new(Some(tx))))
    }

    /// Takes it back, unless somebody still has it.
    pub(super) fn take(&self) -> Option<Transaction> {
        self.0.try_lock().ok()?.take()
    }

    fn lend(self) -> Result<Tx, TxRejection> {
        let held = self.0.try_lock_owned();
        let held = held.map_err(|_busy| TxRejection::Taken)?;
        OwnedMutexGuard::try_map(held, Option::as_mut)
            .map(Tx)
            .map_err(|_empty| TxRejection::Missing)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Tx {
    type Rejection = TxRejection;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, TxRejection> {
        let slot = parts.extensions.get::<Slot>().cloned();
        slot.ok_or(TxRejection::Missing)?.lend()
    }
}

impl IntoResponse for TxRejection {
    fn into_response(self) -> Response {
        tracing::error!(
            error = &self as &(dyn std::error::Error + 'static),
            "no transaction for the handler",
        );
        Refusal::Internal.into_response()
    }
}

impl Deref for Tx {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.0
    }
}

impl DerefMut for Tx {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.0
    }
}
