//! Another service, as the service under test sees it: it signs tokens, and publishes its keys.

use std::time::Duration;

use secrecy::ExposeSecret;
use tasuki::Clock;
use tasuki_service::auth::tokens::{KeyRing, Signer, jwks_routes};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// Long enough for a test's requests.
const LIFETIME: Duration = Duration::from_secs(60);

/// A service that calls. Its keys are published until it is dropped.
#[derive(Debug)]
pub struct Issuer {
    /// Where its keys are, for `auth.issuers.<service>`.
    pub url: String,
    signer: Signer,
    _home: TempDir,
    _serving: JoinSet<()>,
}

impl Issuer {
    /// The service of this name, with keys of its own.
    ///
    /// # Errors
    /// When the keys can't be made or served.
    pub async fn start(service: &str) -> Result<Self, Box<dyn std::error::Error>> {
        let (home, clock) = (tempfile::tempdir()?, Clock::system());
        let ring = KeyRing::open_or_create(home.path(), service, &clock)?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let routes = jwks_routes(ring.clone());
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            // Whoever needs the keys and does not get them says so.
            axum::serve(listener, routes).await.unwrap_or_default();
        });
        Ok(Self {
            url,
            signer: Signer::new(ring, LIFETIME, &clock),
            _home: home,
            _serving: serving,
        })
    }

    /// A token for calls to `audience`, for a user or for the service itself.
    ///
    /// # Errors
    /// When it can't be signed.
    pub fn token(
        &self,
        audience: &str,
        user: Option<&str>,
    ) -> Result<String, Box<dyn std::error::Error>> {
        let token = self.signer.sign(audience, user, &[])?;
        Ok(token.expose_secret().to_owned())
    }
}
