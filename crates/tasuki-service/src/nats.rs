//! How a service connects to NATS, and what of it makes it ready.
//!
//! The client keeps connecting in the background, so that a service starts and serves while
//! the broker is away. For the same reason that is no reason not to be ready, and neither is a
//! stream that is not there yet; one with other settings than ours is. Asking makes nothing.

use std::sync::Arc;
use std::time::Duration;

use async_nats::{ConnectOptions, ServerAddr};
use tasuki::bus::{ConsumerSpec, StreamError, StreamSpec, Streams, Subscriber};
use tokio::time::timeout;

use crate::config;
use crate::http::Check;

/// How long the broker may take to say how a stream is, before it counts as away.
const LIMIT: Duration = Duration::from_secs(1);

/// An address and how to log in there.
#[derive(Clone, Debug)]
pub struct Nats {
    address: ServerAddr,
    connection_timeout: Duration,
}

impl Nats {
    /// The server of `settings`.
    ///
    /// # Errors
    /// When its address is missing.
    pub fn new(settings: &config::Nats) -> Result<Self, config::Error> {
        let address = settings.url.parse("nats.url", "TASUKI_NATS__URL")?;
        Ok(Self {
            address,
            connection_timeout: settings.connection_timeout,
        })
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
            .connection_timeout(self.connection_timeout)
            .retry_on_initial_connect()
            .connect(self.address.clone())
            .await
    }
}

/// Not ready while the stream has other settings than `spec`.
pub fn stream_check<B: Streams>(bus: &Arc<B>, spec: &StreamSpec) -> Check {
    let (bus, spec) = (Arc::clone(bus), spec.clone());
    Check::new("stream", move || {
        let (bus, spec) = (Arc::clone(&bus), spec.clone());
        async move { settings(bus.compare_stream(&spec)).await }
    })
}

/// Not ready while the stream, or its durable, has other settings than `spec`: nothing is taken in
/// then.
pub fn consumer_check<B: Subscriber>(bus: &Arc<B>, spec: &ConsumerSpec) -> Check {
    let (bus, spec) = (Arc::clone(bus), spec.clone());
    Check::new("consumer", move || {
        let (bus, spec) = (Arc::clone(&bus), spec.clone());
        async move { settings(bus.compare(&spec)).await }
    })
}

async fn settings<T>(compared: impl Future<Output = Result<T, StreamError>>) -> Result<(), String> {
    match timeout(LIMIT, compared).await {
        Ok(Err(error @ StreamError::Mismatch { .. })) => Err(error.to_string()),
        _ => Ok(()),
    }
}
