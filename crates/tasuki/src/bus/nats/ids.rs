//! What a stream holds: what reconciliation and redrives ask.

use std::time::Duration;

use async_nats::StatusCode;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::consumer::{AckPolicy, Config, DeliverPolicy, Info};
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::RawMessage;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

use super::api::{Api, Failure, api_subject};
use super::pull::Pull;
use super::wire::{Told, id, plain};
use crate::bus::{Stored, StreamError};

/// Questions under way at once.
const PIPELINE: usize = 64;
/// Messages per request.
const PAGE: usize = 1000;
/// How long a page may let on to be empty.
const PAGE_WAIT: Duration = Duration::from_millis(100);
/// The broker removes a scan that has died.
const ABANDONED: Duration = Duration::from_secs(30);
/// How often a scan that gets nothing, although there is more, asks again.
const EMPTY_PAGES: usize = 3;

pub(super) async fn at(
    api: &Api,
    stream: &str,
    sequences: &[u64],
) -> Result<Vec<Option<Uuid>>, StreamError> {
    let asked: Vec<_> = sequences
        .iter()
        .map(|&sequence| one(api, stream, sequence))
        .collect();
    stream::iter(asked).buffered(PIPELINE).try_collect().await
}

async fn one(api: &Api, stream: &str, sequence: u64) -> Result<Option<Uuid>, StreamError> {
    if sequence == 0 {
        return Ok(None);
    }
    let subject = api_subject(&format!("DIRECT.GET.{stream}"));
    let question = json!({ "seq": sequence }).to_string();
    match api.request(subject, None, question.into()).await {
        Ok(message) if message.status.is_none_or(|status| status == StatusCode::OK) => {
            Ok(message.headers.as_ref().and_then(id))
        }
        // Any replica may answer a direct question, also one that is behind: that a message
        // is gone is only believed of the leader. Nobody answers on a stream that does not
        // allow direct questions.
        Ok(_) | Err(Failure::NobodyListens(_)) => of_the_leader(api, stream, sequence).await,
        Err(failure) => Err(failure.about(stream)),
    }
}

#[derive(Deserialize)]
struct Raw {
    message: RawMessage,
}

async fn of_the_leader(
    api: &Api,
    stream: &str,
    sequence: u64,
) -> Result<Option<Uuid>, StreamError> {
    let message = whole(api, stream, sequence).await?;
    Ok(message.and_then(|message| message.id))
}

/// The whole message, as the leader has it.
pub(super) async fn whole(
    api: &Api,
    stream: &str,
    sequence: u64,
) -> Result<Option<Stored>, StreamError> {
    if sequence == 0 {
        return Ok(None);
    }
    let path = format!("STREAM.MSG.GET.{stream}");
    let raw: Raw = match api.ask(path, &json!({ "seq": sequence })).await {
        Ok(raw) => raw,
        Err(failure) if failure.is(ErrorCode::NO_MESSAGE_FOUND) => return Ok(None),
        Err(failure) => return Err(failure.about(stream)),
    };
    let message = StreamMessage::try_from(raw.message).map_err(StreamError::unreachable)?;
    Ok(Some(Stored::new(
        id(&message.headers),
        message.subject.as_str(),
        plain(&message.headers),
        message.payload,
        message.time,
    )))
}

/// Reads the headers of everything in `from..=to` through a consumer that is made for it.
pub(super) async fn between(
    api: &Api,
    stream: &str,
    from: u64,
    to: u64,
) -> Result<Vec<(u64, Uuid)>, StreamError> {
    let from = from.max(1);
    if from > to {
        return Ok(Vec::new());
    }
    let name = format!("tasuki-scan-{:032x}", fastrand::u128(..));
    let config = Config {
        name: Some(name.clone()),
        deliver_policy: DeliverPolicy::ByStartSequence {
            start_sequence: from,
        },
        ack_policy: AckPolicy::None,
        headers_only: true,
        inactive_threshold: ABANDONED,
        memory_storage: true,
        num_replicas: 1,
        ..Config::default()
    };
    let body = json!({ "stream_name": stream, "config": config, "action": "create" });
    let asked = api.ask(format!("CONSUMER.CREATE.{stream}.{name}"), &body);
    let info: Info = asked.await.map_err(|failure| failure.about(stream))?;
    let scanned = scan(api, stream, &info, to).await;
    // Only courtesy: the broker removes it by itself.
    let path = format!("CONSUMER.DELETE.{stream}.{name}");
    if let Err(failure) = api.look::<serde_json::Value>(path).await {
        tracing::debug!(
            stream,
            error = &failure as &(dyn std::error::Error + 'static),
            "scan left behind, the broker removes it",
        );
    }
    scanned
}

async fn scan(
    api: &Api,
    stream: &str,
    consumer: &Info,
    to: u64,
) -> Result<Vec<(u64, Uuid)>, StreamError> {
    let mut ids = Vec::new();
    let mut pull = Pull::open(api, stream, &consumer.name).await?;
    let mut expected = 1;
    let mut pending = consumer.num_pending;
    let mut empty_pages = 0;
    while pending > 0 {
        let page = pull.fetch(PAGE, PAGE_WAIT).await?;
        if page.is_empty() {
            // Messages that were deleted in the meantime were counted, and never come.
            pending = still_pending(api, stream, &consumer.name).await?;
            empty_pages += 1;
            if pending > 0 && empty_pages == EMPTY_PAGES {
                return Err(StreamError::unreachable("a scan got no further"));
            }
        }
        for message in page {
            let told = message.reply.as_ref().and_then(Told::read);
            let told = told.ok_or_else(|| StreamError::unreachable("a message without number"))?;
            if told.consumer_sequence != expected {
                // Unacknowledged messages are not sent again: one got lost on the way.
                return Err(StreamError::unreachable("a scan lost a message"));
            }
            if told.sequence > to {
                return Ok(ids);
            }
            if let Some(id) = message.headers.as_ref().and_then(id) {
                ids.push((told.sequence, id));
            }
            if told.sequence == to {
                return Ok(ids);
            }
            (expected, pending, empty_pages) = (expected + 1, told.pending, 0);
        }
    }
    Ok(ids)
}

async fn still_pending(api: &Api, stream: &str, consumer: &str) -> Result<u64, StreamError> {
    let asked = api.look(format!("CONSUMER.INFO.{stream}.{consumer}"));
    let info: Info = asked.await.map_err(|failure| failure.about(stream))?;
    Ok(info.num_pending)
}
