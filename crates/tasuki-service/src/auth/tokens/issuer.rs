//! The public keys of one other service: fetched, remembered, looked up.
//!
//! Fetching is bounded whatever callers send: one fetch at a time, at most one per second for
//! unknown keys. The last good answer is kept while the issuer is away. Without an answer that
//! could decide, the caller hears 503, never 401.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jsonwebtoken::DecodingKey;
use reqwest::{Client, StatusCode, Url};
use tasuki::Clock;
use time::OffsetDateTime;

use super::jwks::{self, PublicKeys};
use crate::auth::Refusal;

/// How often unknown keys may make us fetch.
const FETCH_EVERY: Duration = Duration::from_secs(1);
/// How often an issuer that did not answer is asked again while its old keys still do: the one
/// request that asks waits for it.
const RETRY_EVERY: Duration = Duration::from_secs(10);
/// A set of keys is a few hundred bytes.
const MAX_BODY: usize = 64 * 1024;

pub(super) struct Issuer {
    name: String,
    url: Url,
    client: Client,
    believed_for: Duration,
    clock: Clock,
    /// Held by the one who fetches.
    turn: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    keys: Option<PublicKeys>,
    fetched_at: Option<OffsetDateTime>,
    tried_at: Option<OffsetDateTime>,
    away: bool,
}

enum Seen {
    Fresh(Arc<DecodingKey>),
    Old(Arc<DecodingKey>),
    Nothing,
}

/// Why a fetch brought no keys.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("the request failed")]
    Http(#[from] reqwest::Error),
    #[error("the answer was {0}")]
    Status(StatusCode),
    #[error("the answer is longer than {MAX_BODY} bytes")]
    TooLong,
    #[error("the answer is not a set of keys")]
    NotKeys(#[from] serde_json::Error),
}

impl Issuer {
    pub(super) fn new(
        name: &str,
        url: Url,
        client: Client,
        believed_for: Duration,
        clock: &Clock,
    ) -> Self {
        Self {
            name: name.to_owned(),
            url,
            client,
            believed_for,
            clock: clock.clone(),
            turn: tokio::sync::Mutex::default(),
            state: Mutex::default(),
        }
    }

    /// The key `kid`: from memory, or fetched.
    pub(super) async fn key(&self, kid: &str) -> Result<Arc<DecodingKey>, Refusal> {
        match self.look(kid) {
            Seen::Fresh(key) => return Ok(key),
            // One request asks again; the others go on with what we have.
            Seen::Old(key) => match self.turn.try_lock() {
                Ok(_turn) => self.fetch_if_due(self.patience()).await,
                Err(_taken) => return Ok(key),
            },
            Seen::Nothing => {
                let _turn = self.turn.lock().await;
                // Whoever had the turn before may have brought it.
                if matches!(self.look(kid), Seen::Nothing) {
                    self.fetch_if_due(FETCH_EVERY).await;
                }
            }
        }
        match self.look(kid) {
            Seen::Fresh(key) | Seen::Old(key) => Ok(key),
            Seen::Nothing if self.state().away => Err(Refusal::IssuerAway),
            Seen::Nothing => Err(Refusal::Invalid),
        }
    }

    fn look(&self, kid: &str) -> Seen {
        let state = self.state();
        let Some(key) = state.keys.as_ref().and_then(|keys| keys.get(kid)) else {
            return Seen::Nothing;
        };
        if self.is_past(state.fetched_at, self.believed_for) {
            Seen::Old(Arc::clone(key))
        } else {
            Seen::Fresh(Arc::clone(key))
        }
    }

    fn patience(&self) -> Duration {
        if self.state().away {
            RETRY_EVERY
        } else {
            FETCH_EVERY
        }
    }

    /// Fetches unless it was tried less than `pause` ago. Hold the turn.
    async fn fetch_if_due(&self, pause: Duration) {
        {
            let mut state = self.state();
            if !self.is_past(state.tried_at, pause) {
                return;
            }
            // Now, and not only afterwards: a caller who hangs up does not count as "not yet".
            state.tried_at = Some(self.clock.now());
            state.away = true;
        }
        let fetched = self.fetch().await;
        let mut state = self.state();
        state.tried_at = Some(self.clock.now());
        match fetched {
            Ok(keys) => {
                state.fetched_at = state.tried_at;
                state.keys = Some(keys);
                state.away = false;
            }
            Err(error) => tracing::warn!(
                issuer = %self.name,
                error = &error as &(dyn std::error::Error + 'static),
                "public keys of a service could not be fetched",
            ),
        }
    }

    async fn fetch(&self) -> Result<PublicKeys, FetchError> {
        let mut response = self.client.get(self.url.clone()).send().await?;
        if response.status() != StatusCode::OK {
            return Err(FetchError::Status(response.status()));
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            if body.len() + chunk.len() > MAX_BODY {
                return Err(FetchError::TooLong);
            }
            body.extend_from_slice(&chunk);
        }
        Ok(jwks::parse(&body)?)
    }

    /// Whether `limit` has passed since `instant`. "Never" is past, and so is the future: then
    /// the clock was set back.
    fn is_past(&self, instant: Option<OffsetDateTime>, limit: Duration) -> bool {
        let now = self.clock.now();
        instant.is_none_or(|instant| now < instant || now - instant >= limit)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Issuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issuer")
            .field("name", &self.name)
            .field("url", &self.url.as_str())
            .finish_non_exhaustive()
    }
}
