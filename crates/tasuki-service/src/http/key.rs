//! The header `Idempotency-Key`.

use axum::extract::FromRequestParts;
use http::request::Parts;

use super::error::ApiError;

/// The one key of a request. Whether it is well formed, the library says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey(pub String);

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
            Err(_bytes) => Err(ApiError::bad_request(
                "Idempotency-Key has 1 to 255 visible ASCII characters",
            )),
        }
    }
}
