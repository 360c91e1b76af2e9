//! The bus on NATS JetStream, server 2.10 or later.
//!
//! # Batches
//! On servers from 2.12 and streams that allow it, a batch is published as one
//! ([ADR-50](https://github.com/nats-io/nats-architecture-and-design/blob/main/adr/ADR-50.md)):
//! every message carries a batch id and its number in the batch, the last one commits, and one
//! acknowledgement answers for all. With `sync_interval: always` that is one sync for the
//! batch instead of one per message. Found out on 2.15 and held by tests:
//! - The acknowledgement names the last sequence; the others are the ones right before it, in
//!   the order of the batch, with no foreign message in between.
//! - The dedupe window applies. One `Nats-Msg-Id` that is known, or that stands twice in the
//!   batch, makes the server reject the *whole* batch (error 10201). It does not remember the
//!   ids of a rejected batch. The batch is then pipelined: every message by itself, all
//!   acknowledgements awaited together, and the known one answers `duplicate` with its first
//!   position.
//! - A message that the stream will not take makes the server reject the whole batch as well;
//!   pipelined, only that one is refused.
//! - A batch that was cut off (connection lost, process killed) stores nothing; the server
//!   forgets it after ten seconds.
//!
//! Everywhere else, batches are pipelined. Only messages that share an ordering key wait for
//! each other then.
//!
//! # When the broker is away
//! Nothing here talks to the broker before the first call. A call waits for the connection up
//! to the acknowledgement timeout, so that a short restart is not felt, and then as long at
//! most for each answer. Nothing is given to a client that is not connected: it would stay in
//! its buffer and go out long after its sender had given up.
//!
//! # Which stream
//! The streams given to [`NatsBus::with_stream`] are created when they are missing, at the
//! first publish and after a loss. Their settings are not compared on the way: an operator
//! who changes a limit must not stop events from flowing. [`Streams::ensure_stream`] compares.
//! Subjects that none of them takes are looked up in the broker.

mod api;
mod atomic;
mod ids;
mod publish;
mod pull;
mod routes;
mod streams;
mod subscription;
mod wire;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_nats::Client;
use uuid::Uuid;

use self::api::Api;
use self::routes::Routes;
pub use self::subscription::NatsSubscription;
#[cfg(doc)]
use super::Streams;
use super::confirm::confirm;
use super::{Message, Position, PublishError, Publisher, StreamSpec, metrics};

/// The bus on NATS JetStream. Clones share the connection and what is known of the streams.
#[derive(Clone)]
pub struct NatsBus {
    api: Api,
    own: Vec<StreamSpec>,
    routes: Arc<Routes>,
}

impl NatsBus {
    /// How long to wait for an answer of the broker, unless told otherwise.
    pub const ACK_TIMEOUT: Duration = Duration::from_secs(5);

    /// A bus on `client`, which may still be connecting.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self {
            api: Api::new(client, Self::ACK_TIMEOUT),
            own: Vec::new(),
            routes: Arc::default(),
        }
    }

    /// The same, creating the stream of `spec` when something is published to it and it is
    /// missing.
    #[must_use]
    pub fn with_stream(mut self, spec: StreamSpec) -> Self {
        self.own.push(spec);
        self
    }

    /// The same with another limit for every answer of the broker. It must be longer than a
    /// change of the leader takes (some seconds) for those not to be felt.
    #[must_use]
    pub fn with_ack_timeout(mut self, timeout: Duration) -> Self {
        self.api = Api::new(self.api.client().clone(), timeout);
        self
    }
}

impl Publisher for NatsBus {
    async fn publish(&self, batch: Vec<Message>) -> Vec<Result<Position, PublishError>> {
        let ids: Vec<Uuid> = batch.iter().map(|message| message.id).collect();
        let results = publish::publish(self, batch).await;
        let results = confirm(self, &ids, results).await;
        metrics::count_results(&results);
        results
    }
}

impl fmt::Debug for NatsBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsBus")
            .field("own", &self.own)
            .finish_non_exhaustive()
    }
}
