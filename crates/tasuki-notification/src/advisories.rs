//! What the broker says of messages that it gave up, kept where a person can see it.
//!
//! An advisory names stream, consumer and number, and nothing of the message itself; so its id is
//! looked up, and when the stream was created, because numbers come back when a stream is made
//! again or rolled back. What is younger than the advisory is not what it is about. Advisories are
//! read from a stream of their own and acknowledged after the commit: those that arrive while the
//! database is away are stored when it is back. A message whose last delivery was not acknowledged, but
//! took it in, is not lost: the inbox knows its event, and nothing is recorded.

use std::sync::Arc;

use serde::Deserialize;
use sqlx::{PgConnection, PgPool};
use tasuki::begin;
use tasuki::bus::{Delivery, Handler, NatsBus, Stored, StreamState, Streams, Verdict};
use tasuki::inbox::Inbox;
use tasuki::worker::Error;
use tasuki_contract::timestamp;
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

use crate::NAME;
use crate::events::Reader;
use crate::lost::set_aside;
use crate::store;
use crate::store::broker::Lost;

/// Messages that the broker gave up, by kind. Alert `broker-dlq`: above 0.
const LOST_TOTAL: &str = "tasuki_notification_lost_messages_total";
/// What the kind of those is called that were delivered too often.
const MAX_DELIVERIES: &str = "MAX_DELIVERIES";
/// So much may the clocks of a cluster's servers differ.
const SKEW: Duration = Duration::seconds(5);
/// What is said of a message whose stream is another one now, or none.
const MADE_AGAIN: &str = "its stream is gone or was made again, this is when the broker told";
/// What is said of a message whose number is another one's now.
const ROLLED_BACK: &str = "the broker has lost it since";

/// `io.nats.jetstream.advisory.v1.max_deliver` and `…terminated`, as far as it concerns us.
#[derive(Debug, Deserialize)]
struct Advisory {
    #[serde(rename = "type")]
    kind: String,
    stream: String,
    consumer: String,
    stream_seq: u64,
    deliveries: Option<u64>,
    reason: Option<String>,
    /// When the broker gave the message up.
    #[serde(default, with = "timestamp::option")]
    timestamp: Option<OffsetDateTime>,
}

impl Advisory {
    /// Whether it can be about something that exists since then.
    fn is_about(&self, since: OffsetDateTime) -> bool {
        self.timestamp.is_none_or(|at| since - at <= SKEW)
    }

    fn kind(&self) -> &'static str {
        match self.kind.ends_with("terminated") {
            true => "TERMINATED",
            false => MAX_DELIVERIES,
        }
    }

    /// Why the message was given up, and what became of it since.
    fn reason(&self, since: Option<&str>) -> Option<String> {
        let told = self.reason.as_deref().map(plain);
        match (told, since) {
            (Some(told), Some(since)) => Some(format!("{told}; {since}")),
            (told, since) => told.or(since.map(str::to_owned)),
        }
    }
}

/// Stores advisories.
#[derive(Clone, Debug)]
pub(crate) struct Advisories {
    pub(crate) pool: PgPool,
    pub(crate) bus: Arc<NatsBus>,
    pub(crate) inbox: Inbox,
    pub(crate) read: Reader,
}

impl Advisories {
    async fn keep(&self, advisory: &Advisory) -> Result<(), Error> {
        let stream = self.bus.stream(&advisory.stream).await?;
        let stream = stream.filter(|stream| advisory.is_about(stream.created_at));
        let (message, since) = match &stream {
            Some(stream) => self.message(stream, advisory).await?,
            None => (None, Some(MADE_AGAIN)),
        };
        // No stream was created at the time of an advisory: it takes nobody's number.
        let created_at = stream.map(|it| it.created_at).or(advisory.timestamp);
        let Some(stream_created_at) = created_at else {
            let (stream, sequence) = (&*advisory.stream, advisory.stream_seq);
            tracing::error!(stream, sequence, "message given up, its stream is gone");
            return Ok(());
        };
        let kind = advisory.kind();
        // The event as the message tells it, as in the sweep. What was refused for good is another thing.
        let event = message.as_ref().filter(|_| kind == MAX_DELIVERIES);
        let event = event.and_then(|it| (self.read)(&it.payload, None).ok());
        let event = event.map(|event| event.event_id);
        let lost = Lost {
            stream: &advisory.stream,
            stream_created_at,
            stream_seq: i64::try_from(advisory.stream_seq)?,
            consumer: &advisory.consumer,
            message_id: message.and_then(|message| message.id),
            kind,
            reason: advisory.reason(since),
            deliveries: advisory.deliveries.and_then(|it| i64::try_from(it).ok()),
        };
        let mut tx = begin(&self.pool).await?;
        if self.is_taken_in(&mut tx, event).await? {
            let (stream, sequence) = (lost.stream, lost.stream_seq);
            tracing::info!(stream, sequence, "message given up, its event was taken in");
            return Ok(());
        }
        set_aside(&mut tx, &lost).await?;
        tx.commit().await?;
        metrics::counter!(LOST_TOTAL, "kind" => kind).increment(1);
        tracing::error!(
            stream = lost.stream,
            sequence = lost.stream_seq,
            consumer = lost.consumer,
            kind,
            reason = lost.reason,
            "message set aside",
        );
        Ok(())
    }

    async fn is_taken_in(&self, tx: &mut PgConnection, event: Option<Uuid>) -> Result<bool, Error> {
        let Some(event) = event else {
            return Ok(false);
        };
        Ok(self.inbox.seen(tx, NAME, &[event]).await?.contains(&event))
    }

    /// The message that an advisory is about, and what is to be said if there is another in its
    /// place.
    async fn message(
        &self,
        stream: &StreamState,
        advisory: &Advisory,
    ) -> Result<(Option<Stored>, Option<&'static str>), Error> {
        let sequence = advisory.stream_seq;
        let found = self.bus.message_at(&stream.name, sequence).await?;
        Ok(match found {
            Some(message) if !advisory.is_about(message.published_at) => (None, Some(ROLLED_BACK)),
            found => (found, None),
        })
    }
}

impl Handler for Advisories {
    async fn handle(&self, batch: &[Delivery]) -> Result<Vec<Verdict>, Error> {
        let mut verdicts = Vec::with_capacity(batch.len());
        for delivery in batch {
            verdicts.push(match serde_json::from_slice(&delivery.payload) {
                Ok(advisory) => {
                    self.keep(&advisory).await?;
                    Verdict::Done
                }
                Err(error) => Verdict::Reject {
                    reason: format!("no advisory: {error}"),
                },
            });
        }
        Ok(verdicts)
    }

    async fn ready(&self) -> Result<(), Error> {
        let mut connection = self.pool.acquire().await?;
        Ok(store::ping(&mut connection).await?)
    }
}

/// A reason as PostgreSQL stores it.
fn plain(text: &str) -> String {
    text.chars().filter(|c| *c != '\0').take(1000).collect()
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    fn advisory(extra: &str) -> Advisory {
        let text = format!(
            r#"{{"type": "io.nats.jetstream.advisory.v1.max_deliver", "stream": "s",
                "consumer": "c", "stream_seq": 7{extra}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn what_is_younger_than_an_advisory_is_not_what_it_is_about() {
        let told = advisory(r#", "timestamp": "2026-11-16T09:00:00.123456789Z""#);
        assert!(told.is_about(datetime!(2026-11-16 08:59:59 UTC)));
        assert!(told.is_about(datetime!(2026-11-16 09:00:01 UTC)), "skew");
        assert!(!told.is_about(datetime!(2026-11-16 09:00:06 UTC)));
        let untold = advisory("");
        assert!(untold.is_about(datetime!(2026-11-16 09:00:06 UTC)));
    }

    #[test]
    fn the_reason_says_what_became_of_the_message_since() {
        let with = advisory(r#", "reason": "by\u0000hand""#);
        assert_eq!(with.reason(None).as_deref(), Some("byhand"));
        assert_eq!(with.reason(Some("gone")).as_deref(), Some("byhand; gone"));
        assert_eq!(advisory("").reason(None), None);
        assert_eq!(advisory("").reason(Some("gone")).as_deref(), Some("gone"));
    }
}
