//! Makes tokens for calls to other services.

use std::time::Duration;

use jsonwebtoken::{Algorithm, Header};
use secrecy::SecretString;
use tasuki::Clock;
use uuid::Uuid;

use super::claims::{Claims, MAX_LIFETIME};
use super::{Error, KeyRing};

/// Signs tokens as one service. A clone shares the ring.
#[derive(Clone, Debug)]
pub struct Signer {
    ring: KeyRing,
    lifetime: i64,
    clock: Clock,
}

impl Signer {
    /// Signs with `ring`; tokens live for `auth.token-lifetime`, in whole seconds, 1 to 60.
    #[must_use]
    pub fn new(ring: KeyRing, lifetime: Duration, clock: &Clock) -> Self {
        let lifetime = i64::try_from(lifetime.as_secs()).unwrap_or(MAX_LIFETIME);
        Self {
            ring,
            lifetime: lifetime.clamp(1, MAX_LIFETIME),
            clock: clock.clone(),
        }
    }

    /// A token for one call to `audience`, for `user` (`None`: for the service itself), who
    /// has `roles`. Send it as `Authorization: Bearer`.
    ///
    /// # Errors
    /// When user or roles are not fit for a token, or there is no key.
    pub fn sign(
        &self,
        audience: &str,
        user: Option<&str>,
        roles: &[&str],
    ) -> Result<SecretString, Error> {
        let now = self.clock.now().unix_timestamp();
        let claims = Claims {
            iss: self.ring.service().to_owned(),
            aud: audience.to_owned(),
            iat: now,
            nbf: now,
            exp: now.saturating_add(self.lifetime),
            jti: Uuid::new_v4().to_string(),
            user: user.map(str::to_owned),
            roles: roles.iter().map(|&role| role.to_owned()).collect(),
        };
        claims.check_subject()?;
        let key = self.ring.signing()?;
        let mut header = Header::new(Algorithm::EdDSA);
        header.kid = Some(key.kid.to_string());
        let token = jsonwebtoken::encode(&header, &claims, &key.private);
        // The library's error could only repeat our own input.
        Ok(token.map_err(|_failed| Error::Crypto)?.into())
    }
}
