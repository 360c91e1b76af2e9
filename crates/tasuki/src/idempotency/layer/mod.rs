//! Idempotency keys for any axum service (feature `axum`).
//!
//! The layer reads the request, opens the transaction, hands it to the handler, keeps the
//! handler's answer, commits, and only then answers. A handler extracts [`Tx`] and does all
//! it does in it:
//!
//! ```no_run
//! # use axum::{Router, routing::post};
//! # use tasuki::idempotency::{Keys, Layer, Tx};
//! # async fn insert(_: &mut sqlx::PgConnection) {}
//! # fn example(keys: Keys, pool: sqlx::PgPool) -> Router {
//! async fn grant(mut tx: Tx) -> &'static str {
//!     insert(&mut tx).await;
//!     "granted"
//! }
//! let caller = |parts: &http::request::Parts| Some("whoever the credential names".to_owned());
//! Router::new().route("/grants", post(grant)).route_layer(Layer::new(keys, pool, caller))
//! # }
//! ```
//!
//! Which answers are kept, unless [`Layer::decided`] says otherwise: 2xx and 3xx, and the
//! refusals that speak of the state of things, 409, 410 and 412. Not kept, and rolled back
//! with whatever the handler wrote: other 4xx, because a client that corrects its request, its
//! credential or its pace must be able to use its key again, and 404, because what is missing
//! may come; and every 5xx, because it is nobody's decision.
//!
//! A client that hangs up while its request runs leaves nothing behind: the transaction is
//! rolled back. One that hangs up later finds its answer when it asks again.
//!
//! Safe methods (`GET`, `HEAD`, `OPTIONS`, `TRACE`) pass untouched.

mod refusal;
mod service;
mod tx;

use std::fmt;
use std::sync::Arc;

use http::StatusCode;
use http::header::{self, HeaderName};
use http::request::Parts;
use sqlx::PgPool;

pub use service::Service;
pub use tx::{Tx, TxRejection};

use super::Keys;

/// How large a request or an answer may be.
const BODY_LIMIT: usize = 1024 * 1024;

/// The headers of an answer that are kept: those that say what the body is and where to go.
/// The others belong to one exchange, or, as cookies, to nobody's table.
const KEPT_HEADERS: [HeaderName; 9] = [
    header::CACHE_CONTROL,
    header::CONTENT_DISPOSITION,
    header::CONTENT_ENCODING,
    header::CONTENT_LANGUAGE,
    header::CONTENT_TYPE,
    header::ETAG,
    header::LAST_MODIFIED,
    header::LINK,
    header::LOCATION,
];

/// Makes a service idempotent. See the [module](self).
#[derive(Clone)]
pub struct Layer(Settings);

/// Where the key is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeySource {
    /// In the header `Idempotency-Key`.
    Header,
    /// In a field of the JSON body: a name, or a JSON pointer that starts with `/`.
    BodyField(String),
}

/// What another request with a used key is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mismatch {
    /// 409 `IDEMPOTENCY_KEY_CONFLICT`.
    Conflict,
    /// 422 `IDEMPOTENCY_KEY_CONFLICT`.
    Unprocessable,
}

/// What a request is told while another one with its key runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InProgress {
    /// Nothing for as long as [`Keys::wait`] says; then 409 `IDEMPOTENCY_KEY_IN_PROGRESS`.
    Wait,
    /// 409 `IDEMPOTENCY_KEY_IN_PROGRESS` at once.
    Refuse,
}

type FindCaller = dyn Fn(&Parts) -> Option<String> + Send + Sync;
type IsDecided = dyn Fn(StatusCode) -> bool + Send + Sync;

#[derive(Clone)]
struct Settings {
    keys: Keys,
    pool: PgPool,
    caller: Arc<FindCaller>,
    source: KeySource,
    required: bool,
    mismatch: Mismatch,
    in_progress: InProgress,
    body_limit: usize,
    answer_limit: usize,
    decided: Arc<IsDecided>,
    kept: Vec<HeaderName>,
}

impl Layer {
    /// A layer that requires a key in the header. `caller` says whose request it is, by what
    /// a layer outside of this one has put into the request; keys of two callers never meet.
    /// A request of nobody is answered 401.
    #[must_use]
    pub fn new(
        keys: Keys,
        pool: PgPool,
        caller: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self(Settings {
            keys,
            pool,
            caller: Arc::new(caller),
            source: KeySource::Header,
            required: true,
            mismatch: Mismatch::Conflict,
            in_progress: InProgress::Wait,
            body_limit: BODY_LIMIT,
            answer_limit: BODY_LIMIT,
            decided: Arc::new(decided),
            kept: KEPT_HEADERS.to_vec(),
        })
    }

    /// Where the key is.
    #[must_use]
    pub fn key_source(mut self, source: KeySource) -> Self {
        self.0.source = source;
        self
    }

    /// Lets requests without a key pass. They have a transaction too, and no protection.
    #[must_use]
    pub fn optional(mut self) -> Self {
        self.0.required = false;
        self
    }

    /// What another request with a used key is told.
    #[must_use]
    pub fn on_mismatch(mut self, mismatch: Mismatch) -> Self {
        self.0.mismatch = mismatch;
        self
    }

    /// What a request is told while another one with its key runs.
    #[must_use]
    pub fn on_progress(mut self, in_progress: InProgress) -> Self {
        self.0.in_progress = in_progress;
        self
    }

    /// The largest body of a request, 1 MiB by default. A larger one is answered 413.
    #[must_use]
    pub fn body_limit(mut self, bytes: usize) -> Self {
        self.0.body_limit = bytes;
        self
    }

    /// The largest body of an answer that can be kept, 1 MiB by default. A larger one is an
    /// error of the service: rolled back, and answered 500.
    #[must_use]
    pub fn answer_limit(mut self, bytes: usize) -> Self {
        self.0.answer_limit = bytes;
        self
    }

    /// Which answers are kept, and commit what the handler did. The others are rolled back.
    /// A status of 500 and above never counts as decided.
    #[must_use]
    pub fn decided(mut self, decided: impl Fn(StatusCode) -> bool + Send + Sync + 'static) -> Self {
        self.0.decided = Arc::new(decided);
        self
    }

    /// Keeps this header of an answer, too.
    #[must_use]
    pub fn keep_header(mut self, name: HeaderName) -> Self {
        self.0.kept.push(name);
        self
    }
}

impl<S> tower::Layer<S> for Layer {
    type Service = Service<S>;

    fn layer(&self, inner: S) -> Service<S> {
        Service::new(inner, Arc::new(self.0.clone()))
    }
}

impl fmt::Debug for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Layer").field(&self.0).finish()
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("source", &self.source)
            .field("required", &self.required)
            .field("mismatch", &self.mismatch)
            .field("in_progress", &self.in_progress)
            .field("body_limit", &self.body_limit)
            .field("answer_limit", &self.answer_limit)
            .field("kept", &self.kept)
            .finish_non_exhaustive()
    }
}

impl Settings {
    fn is_decided(&self, status: StatusCode) -> bool {
        !status.is_server_error() && (self.decided)(status)
    }
}

/// See the [module](self).
fn decided(status: StatusCode) -> bool {
    let speaks_of_state = [
        StatusCode::CONFLICT,
        StatusCode::GONE,
        StatusCode::PRECONDITION_FAILED,
    ];
    status.is_success() || status.is_redirection() || speaks_of_state.contains(&status)
}
