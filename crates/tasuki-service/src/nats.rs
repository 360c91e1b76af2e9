//! How a service connects to NATS.
//!
//! The client keeps connecting in the background, so that a service starts and serves while
//! the broker is away.

use async_nats::{ConnectOptions, ServerAddr};
use secrecy::ExposeSecret;

use crate::config;

/// An address and how to log in there.
#[derive(Clone, Debug)]
pub struct Nats {
    address: ServerAddr,
}

/// Why there is nothing to connect to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No address.
    #[error("nats.url is not set: set TASUKI_NATS__URL, or use `tasuki up` for a private server")]
    NoUrl,
    /// An address that is not one.
    #[error("nats.url is not a NATS address: {0}")]
    BadUrl(String),
}

impl Nats {
    /// The server of `settings`.
    ///
    /// # Errors
    /// When its address is missing or malformed.
    pub fn new(settings: &config::Nats) -> Result<Self, Error> {
        let url = settings.url.expose_secret();
        if url.is_empty() {
            return Err(Error::NoUrl);
        }
        let address = url.parse();
        let address = address.map_err(|error: std::io::Error| Error::BadUrl(error.to_string()))?;
        Ok(Self { address })
    }

    /// A client that goes on trying until it is connected. `name` is what the server shows.
    ///
    /// # Errors
    /// When the client can't be set up at all.
    pub async fn connect(
        &self,
        name: &str,
    ) -> Result<async_nats::Client, async_nats::ConnectError> {
        // The client does not take user and password from the address by itself.
        let options = match (self.address.username(), self.address.password()) {
            (Some(user), Some(password)) => {
                ConnectOptions::with_user_and_password(user.to_owned(), password.to_owned())
            }
            (Some(token), None) => ConnectOptions::with_token(token.to_owned()),
            (None, _) => ConnectOptions::new(),
        };
        options
            .name(name)
            .retry_on_initial_connect()
            .connect(self.address.clone())
            .await
    }
}
