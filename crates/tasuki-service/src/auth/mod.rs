//! Who calls: the three kinds of callers that any service accepts, as axum extractors.
//!
//! | caller | sends `Authorization: Bearer` | extractor |
//! | --- | --- | --- |
//! | a machine outside, e.g. a payment provider | an API key `tsk_…` with scopes | [`Allowed<S>`](Allowed) |
//! | a person who runs the platform | an operator token `tso_…` | [`Operator`], [`Allowed<S>`](Allowed) |
//! | another service, mostly for a user | a signed token of at most 60 s | [`FromService`] |
//! | any of them, with the scope or for the user | any | [`Permitted<S>`](Permitted), [`Unattended<S>`](Unattended) |
//!
//! A handler that takes none of these extractors (or [`Caller`], any of the three) is open to
//! everyone: there is no layer that guards by path. The extractors find the service's
//! [`Authenticator`] in the request's extensions.
//!
//! Refused means 401 (nobody we know) or 403 (somebody, and it names what is missing). When we
//! can't know, because the database or the issuer of a token is away, the answer is 503.
//!
//! Invariant: nothing of a credential gets into a log line, an error message or the database;
//! unknown, wrong, expired and revoked ones are refused with the same words.

pub mod credentials;
pub mod tokens;

mod authenticator;
mod extract;
mod refusal;

use tasuki::migrate::Step;

pub use authenticator::Authenticator;
pub use extract::{Allowed, Caller, FromService, Operator, Permitted, Scope, Unattended};
use refusal::Refusal;

/// The table of [`credentials`], for the plan of the schema that accepts them.
pub const STEP: Step = Step {
    version: 1,
    description: "credentials",
    sql: include_str!("../../migrations/0001_credentials.sql"),
};
