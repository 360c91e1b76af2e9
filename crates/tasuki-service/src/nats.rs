//! How a service connects to NATS.
//!
//! The client keeps connecting in the background, so that a service starts and serves while
//! the broker is away.

use async_nats::{ConnectOptions, ServerAddr};

use crate::config;

/// An address and how to log in there.
#[derive(Clone, Debug)]
pub struct Nats {
    address: ServerAddr,
}

impl Nats {
    /// The server of `settings`.
    ///
    /// # Errors
    /// When its address is missing.
    pub fn new(settings: &config::Nats) -> Result<Self, config::Error> {
        let address = settings.url.parse("nats.url", "TASUKI_NATS__URL")?;
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
