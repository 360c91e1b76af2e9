//! Why a caller is turned away, and what it is told.

#![warn(clippy::wildcard_enum_match_arm)]

use std::sync::Arc;

use crate::http::ApiError;

/// Why a request has no caller, or the wrong one. The messages are for the caller; none of
/// them repeats anything that was sent.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("a credential is required: send Authorization: Bearer <credential>")]
    Missing,
    #[error("more than one Authorization header")]
    Repeated,
    #[error("the credential is malformed")]
    Malformed,
    /// Unknown, wrong secret or signature, expired, revoked: which one is not told.
    #[error("the credential is not valid")]
    Invalid,
    #[error("this needs an API key with the scope {0}")]
    NeedsScope(&'static str),
    #[error("this service needs the scope {0} in auth.callers")]
    NeedsCaller(&'static str),
    #[error("this needs an operator token")]
    NeedsOperator,
    #[error("this needs a service token")]
    NeedsService,
    #[error("this needs the role {0}")]
    NeedsRole(&'static str),
    #[error("this needs a service token for a user")]
    NeedsUser,
    #[error("this is another user's")]
    AnothersOwn,
    #[error("nobody may do this for a user")]
    NotForUsers,
    #[error("too many credentials are being checked, try again")]
    Busy,
    #[error("the keys of the calling service can't be fetched, try again")]
    IssuerAway,
    #[error("the credential could not be looked up")]
    Store(#[source] Arc<sqlx::Error>),
    #[error("no Authenticator in the request's extensions")]
    NoAuthenticator,
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let told = refusal.to_string();
        match &refusal {
            Refusal::Missing | Refusal::Malformed | Refusal::Invalid => Self::unauthorized(told),
            Refusal::Repeated => Self::bad_request(told),
            Refusal::NeedsScope(_)
            | Refusal::NeedsCaller(_)
            | Refusal::NeedsOperator
            | Refusal::NeedsService
            | Refusal::NeedsRole(_)
            | Refusal::NeedsUser
            | Refusal::AnothersOwn
            | Refusal::NotForUsers => Self::forbidden(told),
            Refusal::Busy | Refusal::IssuerAway => Self::unavailable(told),
            Refusal::Store(error) => Self::database(error),
            Refusal::NoAuthenticator => Self::internal(&refusal),
        }
    }
}
