//! Requests to the broker: every one has a deadline, and every failure a kind.

use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::client::RequestErrorKind;
use async_nats::connection::State;
use async_nats::jetstream::response::Response;
use async_nats::jetstream::{self, ErrorCode};
use async_nats::{Client, HeaderMap, Request, Subject};
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout};

use crate::bus::StreamError;
use crate::worker;

/// How often to look whether the client is connected again.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The connection and how long to wait on it.
#[derive(Clone, Debug)]
pub(super) struct Api {
    client: Client,
    timeout: Duration,
}

/// Why a request got no good answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// Not connected, no answer in time, an answer that makes no sense.
    #[error("no answer")]
    Silence(#[source] worker::Error),
    /// The broker is there, but nobody in it listens to the subject.
    #[error("nobody listens to {0}")]
    NobodyListens(Subject),
    /// JetStream says no.
    #[error("JetStream says no")]
    No(#[source] jetstream::Error),
}

#[derive(Debug, thiserror::Error)]
#[error("the client is not connected")]
struct NotConnected;

#[derive(Debug, thiserror::Error)]
#[error("no answer within {0:?}")]
struct TimedOut(Duration);

impl Api {
    pub(super) fn new(client: Client, timeout: Duration) -> Self {
        Self { client, timeout }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Which connection this is: the number grows with every reconnect.
    pub(super) fn connects(&self) -> u64 {
        let statistics = self.client.statistics();
        statistics.connects.load(Ordering::Relaxed)
    }

    /// Waits for the connection: what is sent without one would stay in the client's buffer,
    /// and go out long after its sender has given up.
    pub(super) async fn connected(&self) -> Result<(), Failure> {
        let deadline = Instant::now() + self.timeout;
        while self.client.connection_state() != State::Connected {
            if Instant::now() >= deadline {
                return Err(Failure::Silence(NotConnected.into()));
            }
            sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    /// `work` on a connection, but no longer than the deadline: also a send waits, when the
    /// client's buffer is full.
    pub(super) async fn in_time<T>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        self.connected().await?;
        match timeout(self.timeout, work).await {
            Ok(done) => done,
            Err(_elapsed) => Err(Failure::Silence(TimedOut(self.timeout).into())),
        }
    }

    /// Sends `payload` to `subject` and waits for the answer.
    pub(super) async fn request(
        &self,
        subject: Subject,
        headers: Option<HeaderMap>,
        payload: Bytes,
    ) -> Result<async_nats::Message, Failure> {
        let mut request = Request::new().payload(payload).timeout(Some(self.timeout));
        if let Some(headers) = headers {
            request = request.headers(headers);
        }
        let asked = self.client.send_request(subject.clone(), request);
        self.in_time(async {
            asked.await.map_err(|error| match error.kind() {
                RequestErrorKind::NoResponders => Failure::NobodyListens(subject),
                _ => Failure::Silence(error.into()),
            })
        })
        .await
    }

    /// Asks the JetStream API a question that has parameters.
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        path: String,
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        let body = serde_json::to_vec(body).map_err(|error| Failure::Silence(error.into()))?;
        self.call(&path, body.into()).await
    }

    /// Asks the JetStream API a question that is all in its path.
    pub(super) async fn look<T: DeserializeOwned>(&self, path: String) -> Result<T, Failure> {
        self.call(&path, Bytes::new()).await
    }

    async fn call<T: DeserializeOwned>(&self, path: &str, body: Bytes) -> Result<T, Failure> {
        let reply = self.request(api_subject(path), None, body).await?;
        match serde_json::from_slice(&reply.payload) {
            Ok(Response::Ok(answer)) => Ok(answer),
            Ok(Response::Err { error }) => Err(Failure::No(error)),
            Err(error) => Err(Failure::Silence(error.into())),
        }
    }
}

/// The subject of `path` in the JetStream API.
pub(super) fn api_subject(path: &str) -> Subject {
    format!("$JS.API.{path}").into()
}

impl Failure {
    /// Whether the broker says that what was asked about is not there.
    pub(super) fn is_not_found(&self) -> bool {
        matches!(self, Self::No(error) if error.code() == 404)
    }

    /// Whether the broker gives this reason.
    pub(super) fn is(&self, code: ErrorCode) -> bool {
        matches!(self, Self::No(error) if error.error_code() == code)
    }

    /// What it means for a question about `stream`.
    pub(super) fn about(self, stream: &str) -> StreamError {
        match self {
            Self::No(error) if error.code() == 404 => StreamError::not_found(stream),
            Self::No(error) if is_passing(&error) => StreamError::unreachable(error),
            Self::No(error) => StreamError::refused(error),
            Self::Silence(_) | Self::NobodyListens(_) => StreamError::unreachable(self),
        }
    }
}

/// Whether what JetStream says can be otherwise in a moment, through no merit of ours: no
/// leader, no space, the same message in process.
pub(super) fn is_passing(error: &jetstream::Error) -> bool {
    const SEALED: ErrorCode = ErrorCode::STREAM_SEALED;
    error.code() >= 500 || matches!(error.code(), 404 | 409) || error.error_code() == SEALED
}
