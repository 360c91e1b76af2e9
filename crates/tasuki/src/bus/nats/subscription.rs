//! Durable pull consumers on JetStream.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::consumer::{AckPolicy, Config, DeliverPolicy, Info};
use async_nats::{Message, Subject};
use bytes::Bytes;
use serde_json::json;

use super::NatsBus;
use super::api::{Api, Failure};
use super::pull::Pull;
use super::streams::check_name;
use super::wire::{self, Told};
use crate::bus::delivery::{Delivered, Delivery, Settle, Settlement, Settling};
use crate::bus::{
    ConsumerSpec, Position, Progress, StreamError, StreamState, Streams, Subscriber, Subscription,
};

/// An open durable on JetStream.
#[derive(Debug)]
pub struct NatsSubscription {
    api: Api,
    stream: StreamState,
    durable: Arc<str>,
}

impl Subscriber for NatsBus {
    type Subscription = NatsSubscription;

    async fn subscribe(&self, spec: &ConsumerSpec) -> Result<NatsSubscription, StreamError> {
        let (subscription, durable) = self.open(spec).await?;
        if self.is_ahead(&subscription, &durable).await? {
            tracing::warn!(
                stream = &*spec.stream.name,
                consumer = &*spec.durable,
                delivered = durable.delivered.stream_sequence,
                "the stream has lost messages that were delivered, reading it from its beginning",
            );
            return self.restart(spec).await;
        }
        Ok(subscription)
    }

    async fn compare(&self, spec: &ConsumerSpec) -> Result<bool, StreamError> {
        check_name(&spec.durable)?;
        if self.compare_stream(&spec.stream).await?.is_none() {
            return Ok(false);
        }
        let Some(durable) = self.durable(spec).await? else {
            return Ok(false);
        };
        compared(spec, &durable)?;
        Ok(true)
    }

    async fn restart(&self, spec: &ConsumerSpec) -> Result<NatsSubscription, StreamError> {
        check_name(&spec.stream.name)?;
        check_name(&spec.durable)?;
        let path = format!("CONSUMER.DELETE.{}.{}", spec.stream.name, spec.durable);
        match self.api.look::<serde_json::Value>(path).await {
            Ok(_) => {}
            Err(failure) if failure.is_not_found() => {}
            Err(failure) => return Err(failure.about(&spec.stream.name)),
        }
        let (subscription, _) = self.open(spec).await?;
        Ok(subscription)
    }
}

impl NatsBus {
    /// Makes what is missing, and compares what is there.
    async fn open(&self, spec: &ConsumerSpec) -> Result<(NatsSubscription, Info), StreamError> {
        check_name(&spec.durable)?;
        let stream = self.ensure_stream(&spec.stream).await?;
        let durable = match self.durable(spec).await? {
            Some(info) => info,
            None => self.create_durable(spec).await?,
        };
        compared(spec, &durable)?;
        let subscription = NatsSubscription {
            api: self.api.clone(),
            stream,
            durable: Arc::clone(&spec.durable),
        };
        Ok((subscription, durable))
    }

    async fn durable(&self, spec: &ConsumerSpec) -> Result<Option<Info>, StreamError> {
        let path = format!("CONSUMER.INFO.{}.{}", spec.stream.name, spec.durable);
        match self.api.look(path).await {
            Ok(info) => Ok(Some(info)),
            Err(failure) if failure.is_not_found() => Ok(None),
            Err(failure) => Err(failure.about(&spec.stream.name)),
        }
    }

    /// Makes the durable, or finds the one that somebody else made at the same moment.
    async fn create_durable(&self, spec: &ConsumerSpec) -> Result<Info, StreamError> {
        let stream = &*spec.stream.name;
        let path = format!("CONSUMER.CREATE.{stream}.{}", spec.durable);
        let body = json!({ "stream_name": stream, "config": config(spec), "action": "create" });
        match self.api.ask(path, &body).await {
            Ok(info) => Ok(info),
            Err(failure) if failure.is(ErrorCode::CONSUMER_ALREADY_EXISTS) => {
                let info = self.durable(spec).await?;
                info.ok_or_else(|| StreamError::not_found(stream))
            }
            Err(failure) => Err(failure.about(stream)),
        }
    }

    /// Whether the durable has delivered numbers that the stream has not given yet.
    async fn is_ahead(
        &self,
        subscription: &NatsSubscription,
        durable: &Info,
    ) -> Result<bool, StreamError> {
        let delivered = durable.delivered.stream_sequence;
        if delivered <= subscription.stream.last_sequence {
            return Ok(false);
        }
        // The stream was read before the durable, and has gone on since.
        let stream = self.stream(&subscription.stream.name).await?;
        Ok(stream.is_none_or(|stream| delivered > stream.last_sequence))
    }
}

fn config(spec: &ConsumerSpec) -> Config {
    Config {
        name: Some(spec.durable.to_string()),
        durable_name: Some(spec.durable.to_string()),
        deliver_policy: DeliverPolicy::All,
        ack_policy: AckPolicy::Explicit,
        ack_wait: spec.ack_wait,
        max_deliver: spec.max_deliver.map_or(-1, i64::from),
        filter_subjects: spec.filters.clone(),
        max_ack_pending: i64::try_from(spec.max_ack_pending).unwrap_or(i64::MAX),
        ..Config::default()
    }
}

/// Nothing, if the durable has the settings of `spec`.
fn compared(spec: &ConsumerSpec, durable: &Info) -> Result<(), StreamError> {
    let differences = spec.differences(&found(spec, &durable.config));
    if differences.is_empty() {
        return Ok(());
    }
    Err(StreamError::Mismatch {
        name: format!("{}/{}", spec.stream.name, spec.durable),
        differences,
    })
}

/// The settings of an existing durable, in our words.
fn found(spec: &ConsumerSpec, config: &Config) -> ConsumerSpec {
    let mut found = ConsumerSpec::new(spec.stream.clone(), Arc::clone(&spec.durable));
    let one = Some(&config.filter_subject).filter(|filter| !filter.is_empty());
    found.filters = one
        .into_iter()
        .chain(&config.filter_subjects)
        .cloned()
        .collect();
    found.ack_wait = config.ack_wait;
    found.max_ack_pending = usize::try_from(config.max_ack_pending).unwrap_or(usize::MAX);
    found.max_deliver = u32::try_from(config.max_deliver).ok().filter(|it| *it > 0);
    found
}

impl Subscription for NatsSubscription {
    fn opened_on(&self) -> &StreamState {
        &self.stream
    }

    async fn fetch(&self, max: usize, wait: Duration) -> Result<Vec<Delivery>, StreamError> {
        let mut pull = Pull::open(&self.api, &self.stream.name, &self.durable).await?;
        let messages = pull.fetch(max, wait).await?;
        Ok(messages
            .into_iter()
            .filter_map(|message| self.delivery(message))
            .collect())
    }

    fn connection(&self) -> u64 {
        self.api.connects()
    }

    async fn progress(&self) -> Result<Progress, StreamError> {
        let path = format!("CONSUMER.INFO.{}.{}", self.stream.name, self.durable);
        let asked = self.api.look(path);
        let info: Info = asked
            .await
            .map_err(|failure| failure.about(&self.stream.name))?;
        // The floor moves with acknowledgements alone: a message that was given up last stays above
        // it, although nothing is open any more.
        let settled = match info.num_ack_pending {
            0 => info.delivered.stream_sequence,
            _ => info.ack_floor.stream_sequence,
        };
        Ok(Progress {
            pending: info.num_pending,
            settled,
        })
    }
}

impl NatsSubscription {
    /// `None` for what is no delivery of JetStream, which nobody could settle.
    fn delivery(&self, message: Message) -> Option<Delivery> {
        let reply = message.reply?;
        let told = Told::read(&reply)?;
        let headers = message.headers.unwrap_or_default();
        let delivered = Delivered {
            id: wire::id(&headers),
            subject: message.subject.as_str().into(),
            headers: wire::plain(&headers),
            payload: message.payload,
            position: Position {
                stream: Arc::clone(&self.stream.name),
                stream_created_at: self.stream.created_at,
                sequence: told.sequence,
                duplicate: false,
            },
            published_at: told.published_at,
            deliveries: told.deliveries,
        };
        let settle = Answer {
            api: self.api.clone(),
            stream: Arc::clone(&self.stream.name),
            reply,
        };
        Some(Delivery::new(delivered, settle))
    }
}

/// Answers one delivery.
struct Answer {
    api: Api,
    stream: Arc<str>,
    reply: Subject,
}

impl Settle for Answer {
    fn settle<'a>(&'a self, settlement: Settlement<'a>) -> Settling<'a> {
        let payload = match settlement {
            Settlement::Ack => Bytes::from_static(b"+ACK"),
            Settlement::Nak(delay) => format!("-NAK {{\"delay\": {}}}", delay.as_nanos()).into(),
            Settlement::Term(reason) => format!("+TERM {reason}").into(),
            Settlement::InProgress => Bytes::from_static(b"+WPI"),
        };
        Box::pin(async move {
            let answered = if settlement == Settlement::InProgress {
                self.send(payload).await
            } else {
                let confirmed = self.api.request(self.reply.clone(), None, payload).await;
                confirmed.map(drop)
            };
            answered.map_err(|failure| failure.about(&self.stream))
        })
    }
}

impl Answer {
    async fn send(&self, payload: Bytes) -> Result<(), Failure> {
        let sent = self.api.client().publish(self.reply.clone(), payload);
        let sent = async { sent.await.map_err(|error| Failure::Silence(error.into())) };
        self.api.in_time(sent).await
    }
}
