//! From an `Authorization` header to a caller.

use std::sync::Arc;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use sqlx::PgPool;
use tasuki::{Clock, Schema};

use super::credentials::{Checker, Credential, Credentials, Kind};
use super::tokens::{self, Issuers, Verifier};
use super::{Caller, Refusal};
use crate::config;

/// Longer ones are not credentials of ours, and not worth decoding.
const MAX_CREDENTIAL: usize = 8 * 1024;

/// Tells who calls a service. One per service, in the extensions of its requests; a clone
/// shares everything.
#[derive(Clone, Debug)]
pub struct Authenticator(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    checker: Checker,
    verifier: Verifier,
}

impl Authenticator {
    /// Accepts the credentials in `schema` and tokens for `service` from `auth.issuers`.
    ///
    /// # Errors
    /// When an issuer's name or address is not one.
    pub fn new(
        service: &'static str,
        schema: &Schema,
        pool: PgPool,
        settings: &config::Auth,
        clock: &Clock,
    ) -> Result<Self, tokens::Error> {
        let credentials = Credentials::new(schema);
        let issuers = Issuers::new(settings, clock)?;
        Ok(Self(Arc::new(Inner {
            checker: Checker::new(credentials, pool, settings.credential_cache),
            verifier: Verifier::new(service, issuers, settings.clock_skew, clock),
        })))
    }

    /// Who sent these headers.
    pub(super) async fn caller(&self, headers: &HeaderMap) -> Result<Caller, Refusal> {
        let text = bearer(headers)?;
        if !Credential::is_meant(text) {
            return self.0.verifier.verify(text).await;
        }
        let credential: Credential = text.parse().map_err(|_malformed| Refusal::Malformed)?;
        let known = self.0.checker.check(&credential).await?;
        let (id, name) = (known.id, Arc::clone(&known.name));
        Ok(match known.kind {
            Kind::Operator => Caller::Operator { id, name },
            Kind::ApiKey => Caller::ApiKey {
                id,
                name,
                scopes: Arc::clone(&known.scopes),
            },
        })
    }
}

/// The one credential in `headers`.
fn bearer(headers: &HeaderMap) -> Result<&str, Refusal> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next().ok_or(Refusal::Missing)?;
    if values.next().is_some() {
        return Err(Refusal::Repeated);
    }
    let text = value.to_str().map_err(|_not_text| Refusal::Malformed)?;
    let (scheme, credential) = text.split_once(' ').ok_or(Refusal::Malformed)?;
    let credential = credential.trim_start_matches(' ');
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(Refusal::Missing);
    }
    if credential.is_empty() || credential.len() > MAX_CREDENTIAL {
        return Err(Refusal::Malformed);
    }
    Ok(credential)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(values: &[&[u8]]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, HeaderValue::from_bytes(value).unwrap());
        }
        headers
    }

    #[test]
    fn one_bearer_credential_is_found_whatever_the_case_of_its_scheme() {
        for value in ["Bearer abc", "bearer abc", "BEARER  abc"] {
            assert_eq!(bearer(&headers(&[value.as_bytes()])).unwrap(), "abc");
        }
    }

    #[test]
    fn everything_else_is_refused_without_repeating_it() {
        let long = format!("Bearer {}", "a".repeat(MAX_CREDENTIAL + 1));
        let told = |values: &[&[u8]]| bearer(&headers(values)).unwrap_err().to_string();
        let missing = Refusal::Missing.to_string();
        let malformed = Refusal::Malformed.to_string();
        assert_eq!(told(&[]), missing);
        assert_eq!(told(&[b"Basic abc"]), missing);
        for bad in [
            &b""[..],
            b"Bearer",
            b"Bearer ",
            b"abc",
            b"Bearer \xff",
            long.as_bytes(),
        ] {
            assert_eq!(told(&[bad]), malformed);
        }
        let twice = told(&[b"Bearer abc", b"Bearer abc"]);
        assert_eq!(twice, Refusal::Repeated.to_string());
    }
}
