//! Is this service token valid, and what does it say?
//!
//! The signature is the library's work, everything else is checked here: the library would
//! take the time from the system, and accepts lists where we accept one name.

use std::sync::Arc;
use std::time::Duration;

use jsonwebtoken::{Algorithm, Validation};
use serde::Deserialize;
use tasuki::Clock;

use super::Issuers;
use super::claims::Claims;
use crate::auth::{Caller, Refusal};

/// Verifies tokens for one service.
#[derive(Debug)]
pub(in crate::auth) struct Verifier {
    service: &'static str,
    issuers: Issuers,
    skew: Duration,
    clock: Clock,
    validation: Validation,
}

/// Read before the signature is checked, only to know whose key to check it with.
#[derive(Deserialize)]
struct Unverified {
    iss: String,
}

impl Verifier {
    pub(in crate::auth) fn new(
        service: &'static str,
        issuers: Issuers,
        skew: Duration,
        clock: &Clock,
    ) -> Self {
        // The algorithm is pinned: the token's own header can't choose another.
        let mut validation = Validation::new(Algorithm::EdDSA);
        validation.required_spec_claims.clear();
        validation.validate_exp = false;
        validation.validate_nbf = false;
        validation.validate_aud = false;
        Self {
            service,
            issuers,
            skew,
            clock: clock.clone(),
            validation,
        }
    }

    /// The service that signed `token`, and for whom it calls.
    pub(in crate::auth) async fn verify(&self, token: &str) -> Result<Caller, Refusal> {
        let header = jsonwebtoken::decode_header(token).map_err(|_bad| Refusal::Malformed)?;
        let claimed: Unverified = jsonwebtoken::dangerous::insecure_decode_claims(token)
            .map_err(|_bad| Refusal::Malformed)?;
        if header.alg != Algorithm::EdDSA || header.typ.as_deref() != Some("JWT") {
            return Err(refused("not an EdDSA JWT"));
        }
        // What we don't understand and must: refused, as the standard asks.
        if header.crit.is_some() || header.enc.is_some() || header.zip.is_some() {
            return Err(refused("critical header"));
        }
        let kid = header.kid.ok_or_else(|| refused("no kid"))?;
        let key = self.issuers.key(&claimed.iss, &kid).await?;
        let claims = jsonwebtoken::decode::<Claims>(token, &key, &self.validation)
            .map_err(|_bad| refused("signature or claims"))?
            .claims;
        self.accept(claims, &claimed.iss)
    }

    fn accept(&self, claims: Claims, issuer: &str) -> Result<Caller, Refusal> {
        if claims.iss != issuer {
            return Err(refused("issuer"));
        }
        if claims.aud != self.service {
            return Err(refused("audience"));
        }
        let now = self.clock.now().unix_timestamp();
        claims.check_time(now, self.skew).map_err(refused)?;
        let plain = claims.check_subject();
        plain.map_err(|_bad| refused("user or roles"))?;
        // Those are for the service itself: no user gets them by calling through it.
        let scopes = match claims.user {
            None => self.issuers.scopes(issuer),
            Some(_) => Arc::default(),
        };
        Ok(Caller::Service {
            service: claims.iss.into(),
            user: claims.user.map(Arc::from),
            roles: claims.roles.into(),
            scopes,
        })
    }
}

/// The caller hears only that it is not valid; the reason is for whoever runs this service.
fn refused(reason: &'static str) -> Refusal {
    tracing::debug!(reason, "service token refused");
    Refusal::Invalid
}
