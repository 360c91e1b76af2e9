//! The one shape of an error, and the codes that every service shares.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The body of every answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// For programs: stable, upper case. A service's own codes are in its API description.
    #[schema(example = "BAD_REQUEST")]
    pub code: Cow<'static, str>,
    /// For people: says what is wrong. It may change; never match on it.
    #[schema(example = "user_id is required")]
    pub message: String,
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident;)+) => {$(
        $(#[$doc])*
        pub const $name: &str = stringify!($name);
    )+};
}

codes! {
    /// 400: the request is malformed, or a field is missing or invalid.
    BAD_REQUEST;
    /// 401: no credential, or one that is not valid.
    UNAUTHORIZED;
    /// 403: the credential is valid and does not allow this.
    FORBIDDEN;
    /// 404: nothing lives at this path, or no such thing exists.
    NOT_FOUND;
    /// 405: the path exists; `Allow` names its methods.
    METHOD_NOT_ALLOWED;
    /// 406: none of the types that the client accepts can be made.
    NOT_ACCEPTABLE;
    /// 408: the request did not arrive in time.
    REQUEST_TIMEOUT;
    /// 409: the request contradicts the present state.
    CONFLICT;
    /// 411: a body needs a length.
    LENGTH_REQUIRED;
    /// 413: the body is larger than the limit.
    PAYLOAD_TOO_LARGE;
    /// 414: the request line is longer than the limit.
    URI_TOO_LONG;
    /// 415: the body has another type than `application/json`.
    UNSUPPORTED_MEDIA_TYPE;
    /// 417: an `Expect` that can't be met.
    EXPECTATION_FAILED;
    /// 429: too many requests; `Retry-After` says when to come back.
    TOO_MANY_REQUESTS;
    /// 431: the headers are larger than the limit.
    HEADERS_TOO_LARGE;
    /// 500: our fault. The message carries the trace id and nothing else.
    INTERNAL;
    /// 501: the method or transfer coding is not supported.
    NOT_IMPLEMENTED;
    /// 503: something we need is away; safe to retry after `Retry-After`.
    UNAVAILABLE;
    /// 504: the answer did not come in time; the request may have had its effect.
    TIMEOUT;
    /// 505: an HTTP version that is not spoken here.
    HTTP_VERSION_NOT_SUPPORTED;
}
