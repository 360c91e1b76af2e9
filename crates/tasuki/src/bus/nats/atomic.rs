//! A batch that is published as one.

use async_nats::header::{HeaderValue, NATS_BATCH_COMMIT_FINAL};
use async_nats::header::{NATS_BATCH_COMMIT, NATS_BATCH_ID, NATS_BATCH_SEQUENCE};
use async_nats::jetstream::ErrorCode;

use super::NatsBus;
use super::api::Failure;
use super::publish::Item;
use super::routes::Known;
use super::wire::{Ack, headers};

/// What became of a batch.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Stored, with these consecutive numbers.
    Stored {
        /// The number of its first message.
        first: u64,
    },
    /// Not stored, and the broker says why: one by one they may get further.
    Rejected(Reason),
    /// Stored or not.
    Unknown(Failure),
}

/// Why a batch was not taken as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// It holds an id that the stream knows.
    Duplicate,
    /// The server can't do this with message ids, or not on this stream.
    Unsupported,
    /// Something else: a message that the stream won't take, too many batches at once.
    Other,
}

impl Reason {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Duplicate => "duplicate",
            Self::Unsupported => "unsupported",
            Self::Other => "rejected",
        }
    }
}

/// Publishes two or more messages of one stream as one.
///
/// Only the last one asks for an answer. Should the broker have dropped one of the others, it
/// rejects the commit, because the numbers have a gap.
pub(super) async fn publish(bus: &NatsBus, stream: &Known, items: &[Item]) -> Outcome {
    let id = format!("{:032x}", fastrand::u128(..));
    let sent = bus.api.in_time(send(bus, &id, items)).await;
    let failure = match sent {
        // An older leader that ignores the headers answers as for a plain message; what has
        // been stored is found again by its ids.
        Ok(ack) if ack.batch.as_deref() != Some(&id) => {
            return Outcome::Rejected(Reason::Unsupported);
        }
        Ok(ack) => return stored(&ack, stream, items.len()),
        Err(failure) => failure,
    };
    match &failure {
        Failure::No(_) if failure.is(ErrorCode::ATOMIC_PUBLISH_CONTAINS_DUPLICATE_MESSAGE) => {
            Outcome::Rejected(Reason::Duplicate)
        }
        Failure::No(_)
            if failure.is(ErrorCode::ATOMIC_PUBLISH_UNSUPPORTED_HEADER)
                || failure.is(ErrorCode::ATOMIC_PUBLISH_DISABLED) =>
        {
            Outcome::Rejected(Reason::Unsupported)
        }
        Failure::No(_) => Outcome::Rejected(Reason::Other),
        Failure::Silence(_) | Failure::NobodyListens(_) => Outcome::Unknown(failure),
    }
}

async fn send(bus: &NatsBus, id: &str, items: &[Item]) -> Result<Ack, Failure> {
    let Some((last, others)) = items.split_last() else {
        return Err(Failure::Silence("an empty batch".into()));
    };
    let client = bus.api.client();
    let batch_headers = |item: &Item, number: usize| {
        let mut headers = headers(&item.message);
        headers.insert(NATS_BATCH_ID, id);
        headers.insert(NATS_BATCH_SEQUENCE, HeaderValue::from(number));
        headers
    };
    for (number, item) in (1..).zip(others) {
        let (subject, payload) = (item.route.subject.clone(), item.message.payload.clone());
        client
            .publish_with_headers(subject, batch_headers(item, number), payload)
            .await
            .map_err(|error| Failure::Silence(error.into()))?;
    }
    let mut commit = batch_headers(last, items.len());
    commit.insert(NATS_BATCH_COMMIT, NATS_BATCH_COMMIT_FINAL);
    let (subject, payload) = (last.route.subject.clone(), last.message.payload.clone());
    let reply = bus.api.request(subject, Some(commit), payload).await?;
    Ack::read(&reply)
}

fn stored(ack: &Ack, stream: &Known, messages: usize) -> Outcome {
    let first = u64::try_from(messages)
        .ok()
        .and_then(|messages| (ack.sequence + 1).checked_sub(messages));
    match first {
        Some(first @ 1..) if ack.count == messages && ack.stream == *stream.name => {
            Outcome::Stored { first }
        }
        // Stored, but not as it was sent: the ids find the true positions.
        _ => Outcome::Rejected(Reason::Other),
    }
}
