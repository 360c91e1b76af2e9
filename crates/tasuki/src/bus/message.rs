//! What is published, where it went, and why it did not.

use std::sync::Arc;

use bytes::Bytes;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::worker;

/// A message on its way to the broker.
#[derive(Clone, Debug)]
pub struct Message {
    /// Its identity, the same at every attempt to publish it: what the broker's dedupe window
    /// and every inbox compare.
    pub id: Uuid,
    /// The subject, which decides the stream.
    pub subject: Arc<str>,
    /// Messages of one key in one [`publish`](super::Publisher::publish) are stored in their
    /// order, and never one after an earlier one that failed.
    pub ordering_key: Option<Arc<str>>,
    /// Headers, such as `event_type` and `traceparent`. A value must not contain a line break.
    pub headers: Vec<(&'static str, String)>,
    /// The content.
    pub payload: Bytes,
}

impl Message {
    /// A message without headers and ordering key.
    pub fn new(id: Uuid, subject: impl Into<Arc<str>>, payload: impl Into<Bytes>) -> Self {
        Self {
            id,
            subject: subject.into(),
            ordering_key: None,
            headers: Vec::new(),
            payload: payload.into(),
        }
    }

    /// The same message with an ordering key.
    #[must_use]
    pub fn in_order_of(mut self, key: impl Into<Arc<str>>) -> Self {
        self.ordering_key = Some(key.into());
        self
    }

    /// The same message with one header more.
    #[must_use]
    pub fn with_header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// A message as a stream holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stored {
    /// The id it was published with, if that was a UUID.
    pub id: Option<Uuid>,
    /// Its subject.
    pub subject: Arc<str>,
    /// Its headers, by name.
    pub headers: Vec<(String, String)>,
    /// Its content.
    pub payload: Bytes,
    /// When it was stored, by the broker's clock.
    pub published_at: OffsetDateTime,
}

impl Stored {
    /// A message, as a bus of your own reports it.
    #[must_use]
    pub fn new(
        id: Option<Uuid>,
        subject: impl Into<Arc<str>>,
        headers: Vec<(String, String)>,
        payload: Bytes,
        published_at: OffsetDateTime,
    ) -> Self {
        Self {
            id,
            subject: subject.into(),
            headers,
            payload,
            published_at,
        }
    }

    /// The value of the header `name`; names are compared without regard to case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        headers
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }
}

/// Where the broker says that it stored a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The stream.
    pub stream: Arc<str>,
    /// When that stream was created, in microseconds: a stream that was lost and made again
    /// has the same name and numbers, and only this tells the two apart.
    ///
    /// Never later than the true one: it was read before the message was sent.
    pub stream_created_at: OffsetDateTime,
    /// The number of the message in the stream.
    pub sequence: u64,
    /// Whether the message was there already, from an earlier attempt.
    pub duplicate: bool,
}

/// Why a message was not stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// Nobody answered in time, there is no leader, the stream is missing: not the fault of
    /// the message, which may or may not have been stored.
    #[error("the broker can't be reached")]
    Unreachable(#[source] worker::Error),
    /// The broker answered, and did not take the message. It may, when somebody has changed its
    /// settings.
    #[error("the broker refuses the message")]
    Refused(#[source] worker::Error),
    /// This is no message that a broker could take, however often it is asked: its subject is none,
    /// a header can't be written, or it is too large.
    #[error("the message can't be sent")]
    Invalid(#[source] worker::Error),
    /// Not tried: an earlier message with the same ordering key failed.
    #[error("held back behind an earlier message with the same ordering key")]
    Held,
}

impl PublishError {
    pub(super) fn unreachable(why: impl Into<worker::Error>) -> Self {
        Self::Unreachable(why.into())
    }

    pub(super) fn refused(why: impl Into<worker::Error>) -> Self {
        Self::Refused(why.into())
    }

    pub(super) fn invalid(why: impl Into<worker::Error>) -> Self {
        Self::Invalid(why.into())
    }
}
