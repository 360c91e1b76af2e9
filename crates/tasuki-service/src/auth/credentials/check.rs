//! Is this credential valid? One lookup, then believed for a short while.
//!
//! A flood of made-up credentials can't hurt: malformed ones never come here, "no" is
//! remembered too (shortly, and in a cache of bounded size that prefers what is asked for
//! often), and lookups use at most half of the pool at once, so that the rest stays with
//! requests that are known already.

use std::sync::Arc;
use std::time::{Duration, Instant};

use moka::Expiry;
use moka::future::Cache;
use sqlx::PgPool;
use subtle::ConstantTimeEq;
use tasuki_contract::ids::CredentialId;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::text::Hash;
use super::{Credential, Credentials, Kind};
use crate::auth::Refusal;

/// Credentials that are remembered, valid and invalid together.
const MAX_REMEMBERED: u64 = 10_000;
/// How long "not valid" is remembered, at most.
const REMEMBER_INVALID: Duration = Duration::from_secs(1);

/// Checks credentials against the database, through a cache.
#[derive(Debug)]
pub(in crate::auth) struct Checker {
    credentials: Credentials,
    pool: PgPool,
    lookups: Semaphore,
    /// By the hash of the whole text: a secret is never kept. `None`: not valid.
    remembered: Option<Cache<Hash, Option<Arc<Known>>>>,
}

/// A valid credential.
#[derive(Debug)]
pub(in crate::auth) struct Known {
    pub(in crate::auth) id: CredentialId,
    pub(in crate::auth) kind: Kind,
    pub(in crate::auth) name: Arc<str>,
    pub(in crate::auth) scopes: Arc<[String]>,
    expires_in: Option<Duration>,
}

impl Checker {
    /// Believes an answer for `remember`; zero asks the database every time.
    pub(in crate::auth) fn new(credentials: Credentials, pool: PgPool, remember: Duration) -> Self {
        let connections = pool.options().get_max_connections();
        let lookups = usize::try_from(connections.div_ceil(2)).unwrap_or(1);
        let remembered = (!remember.is_zero()).then(|| {
            Cache::builder()
                .max_capacity(MAX_REMEMBERED)
                .expire_after(Remember(remember))
                .build()
        });
        Self {
            credentials,
            pool,
            lookups: Semaphore::new(lookups),
            remembered,
        }
    }

    /// Who `credential` is.
    pub(in crate::auth) async fn check(
        &self,
        credential: &Credential,
    ) -> Result<Arc<Known>, Refusal> {
        let looked_up = self.look_up(credential);
        let known = match &self.remembered {
            // Requests with the same credential share one lookup. Failures are not remembered.
            Some(cache) => cache
                .try_get_with(credential.text_hash(), looked_up)
                .await
                .map_err(|refusal| Refusal::clone(&refusal))?,
            None => looked_up.await?,
        };
        known.ok_or(Refusal::Invalid)
    }

    async fn look_up(&self, credential: &Credential) -> Result<Option<Arc<Known>>, Refusal> {
        let wait = self.pool.options().get_acquire_timeout();
        let Ok(Ok(_turn)) = timeout(wait, self.lookups.acquire()).await else {
            return Err(Refusal::Busy);
        };
        let found = self.credentials.0.find(&self.pool, credential.id()).await;
        let found = found.map_err(|error| Refusal::Store(Arc::new(error)))?;

        // The same comparison whether or not there is such a credential.
        let no_hash = [0; 32];
        let stored = found
            .as_ref()
            .map_or(no_hash.as_slice(), |found| &found.secret_hash);
        let same_secret = bool::from(stored.ct_eq(credential.secret_hash()));
        let known = found
            .filter(|found| same_secret && found.active && found.kind == credential.kind().as_str())
            .map(|found| Known {
                id: credential.id(),
                kind: credential.kind(),
                name: found.name.into(),
                scopes: found.scopes.into(),
                expires_in: found
                    .expires_in_us
                    .map(|us| Duration::from_micros(u64::try_from(us).unwrap_or(0))),
            });
        Ok(known.map(Arc::new))
    }
}

/// How long an answer is believed: a valid credential never beyond its own end.
struct Remember(Duration);

impl Expiry<Hash, Option<Arc<Known>>> for Remember {
    fn expire_after_create(
        &self,
        _key: &Hash,
        known: &Option<Arc<Known>>,
        _created_at: Instant,
    ) -> Option<Duration> {
        let limit = match known {
            Some(known) => known.expires_in.unwrap_or(Duration::MAX),
            None => REMEMBER_INVALID,
        };
        Some(limit.min(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(expires_in: Option<Duration>) -> Option<Arc<Known>> {
        Some(Arc::new(Known {
            id: CredentialId::new(&tasuki::Clock::system()),
            kind: Kind::Operator,
            name: "x".into(),
            scopes: Arc::new([]),
            expires_in,
        }))
    }

    #[test]
    fn an_answer_is_believed_neither_longer_than_configured_nor_beyond_the_end_of_the_key() {
        let second = Duration::from_secs(1);
        let believed = |limit: u32, value| {
            Remember(second * limit).expire_after_create(&[0; 32], &value, Instant::now())
        };
        assert_eq!(believed(60, known(None)), Some(second * 60));
        assert_eq!(believed(60, known(Some(second * 5))), Some(second * 5));
        assert_eq!(believed(2, known(Some(second * 5))), Some(second * 2));
        assert_eq!(believed(60, None), Some(REMEMBER_INVALID));
    }
}
