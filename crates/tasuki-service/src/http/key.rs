//! The header `Idempotency-Key`.

use axum::extract::FromRequestParts;
use http::request::Parts;
use serde::Serialize;
use tasuki::idempotency::{Request, RequestHash};

use super::error::ApiError;
use crate::auth::Caller;

/// What a key must be.
const WELL_FORMED: &str = "Idempotency-Key has 1 to 255 visible ASCII characters";

/// The one key of a request. Whether it is well formed, the library says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey(pub String);

impl IdempotencyKey {
    /// The `POST` to `path` under this key. It is the same as another when its canonical form is: the
    /// body as we understood it, so that neither the order of its fields nor their spelling counts.
    ///
    /// # Errors
    /// When the key is malformed.
    pub fn request<T: Serialize>(
        &self,
        caller: &Caller,
        path: &str,
        body: &T,
    ) -> Result<Request, ApiError> {
        let body = serde_json::to_vec(body).map_err(|error| ApiError::internal(&error))?;
        let hash = RequestHash::of("POST", path, &body);
        let request = Request::new(caller.identity(), self.0.as_str(), hash);
        request.map_err(|_invalid| ApiError::bad_request(WELL_FORMED))
    }
}

impl<St: Send + Sync> FromRequestParts<St> for IdempotencyKey {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &St) -> Result<Self, ApiError> {
        let mut keys = parts.headers.get_all("idempotency-key").iter();
        let key = keys.next().filter(|key| !key.is_empty());
        let key = key.ok_or_else(|| ApiError::bad_request("Idempotency-Key is required"))?;
        if keys.next().is_some() {
            return Err(ApiError::bad_request("Idempotency-Key was sent twice"));
        }
        match key.to_str() {
            Ok(key) => Ok(Self(key.to_owned())),
            Err(_bytes) => Err(ApiError::bad_request(WELL_FORMED)),
        }
    }
}
