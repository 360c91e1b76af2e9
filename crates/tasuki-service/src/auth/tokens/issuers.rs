//! Whose tokens are accepted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jsonwebtoken::DecodingKey;
use reqwest::redirect::Policy;
use reqwest::{Client, Url};
use tasuki::Clock;

use super::Error;
use super::issuer::Issuer;
use crate::auth::Refusal;
use crate::auth::credentials::is_word;
use crate::config;

/// For the whole of a fetch, connecting included.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The services in `auth.issuers`, with their public keys as far as they are known, and what they
/// may do for themselves (`auth.callers`).
#[derive(Debug)]
pub(in crate::auth) struct Issuers {
    known: BTreeMap<String, Issuer>,
    scopes: BTreeMap<String, Arc<[String]>>,
}

impl Issuers {
    pub(in crate::auth) fn new(settings: &config::Auth, clock: &Clock) -> Result<Self, Error> {
        let scopes = settings.callers.iter();
        let scopes: BTreeMap<_, Arc<[String]>> = scopes
            .map(|(name, scopes)| (name.clone(), Arc::from(scopes.as_slice())))
            .collect();
        if settings.issuers.is_empty() {
            let known = BTreeMap::new();
            return Ok(Self { known, scopes });
        }
        let client = Client::builder()
            .timeout(TIMEOUT)
            .redirect(Policy::none())
            .no_proxy()
            .build()
            .map_err(Error::Client)?;
        let issuers = settings.issuers.iter().map(|(name, base)| {
            let url = address(base).filter(|_| is_word(name));
            let url = url.ok_or_else(|| Error::BadIssuer {
                issuer: name.clone(),
            })?;
            let issuer = Issuer::new(name, url, client.clone(), settings.jwks_cache, clock);
            Ok((name.clone(), issuer))
        });
        let known = issuers.collect::<Result<_, _>>()?;
        Ok(Self { known, scopes })
    }

    /// What the service `issuer` may do for itself.
    pub(super) fn scopes(&self, issuer: &str) -> Arc<[String]> {
        self.scopes.get(issuer).cloned().unwrap_or_default()
    }

    /// The key `kid` of the service `issuer`, which may well be made up.
    pub(super) async fn key(&self, issuer: &str, kid: &str) -> Result<Arc<DecodingKey>, Refusal> {
        match self.known.get(issuer) {
            Some(issuer) => issuer.key(kid).await,
            None => Err(Refusal::Invalid),
        }
    }
}

/// Where the keys are, below the address of an internal listener.
fn address(base: &str) -> Option<Url> {
    let mut url = Url::parse(base).ok()?;
    let plain = matches!(url.scheme(), "http" | "https")
        && url.has_host()
        && url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none();
    let path = format!("{}{}", url.path().trim_end_matches('/'), super::jwks::PATH);
    url.set_path(&path);
    plain.then_some(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_plain_http_url() {
        for (base, url) in [
            ("http://gw:8081", "http://gw:8081/.well-known/jwks.json"),
            ("https://gw/a/", "https://gw/a/.well-known/jwks.json"),
        ] {
            assert_eq!(address(base).unwrap().as_str(), url);
        }
        for bad in [
            "",
            "gw:8081",
            "file:///etc",
            "http://",
            "http://u:p@gw",
            "http://gw?x",
            "gw",
        ] {
            assert_eq!(address(bad), None, "{bad}");
        }
    }
}
