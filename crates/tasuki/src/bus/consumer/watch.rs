//! The open subscription of a consumer, and whether its stream is still the same.

use std::sync::Arc;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;
use uuid::Uuid;

use super::store::{Place, Places};
use crate::bus::metrics::{PENDING_MESSAGES, RESTARTS_TOTAL};
use crate::bus::{ConsumerSpec, Delivery, StreamError, Streams, Subscriber, Subscription};
use crate::worker::Error;

/// How often the stream is compared with what is remembered of it.
const CHECK_EVERY: Duration = Duration::from_secs(5);

/// The subscription of a consumer, and what it remembers of the stream.
pub(super) struct Open<S> {
    subscription: Option<Arc<S>>,
    connection: u64,
    checked_at: Instant,
    created_at: Option<OffsetDateTime>,
    /// The message with the highest number that was read.
    last: Option<(u64, Uuid)>,
}

impl<S> Default for Open<S> {
    fn default() -> Self {
        Self {
            subscription: None,
            connection: 0,
            checked_at: Instant::now(),
            created_at: None,
            last: None,
        }
    }
}

impl<S: Subscription> Open<S> {
    /// The subscription: opened if there is none, and compared with the stream when that is
    /// due.
    pub(super) async fn subscription<B>(
        &mut self,
        bus: &B,
        spec: &ConsumerSpec,
        places: Option<&Places>,
    ) -> Result<Arc<S>, Error>
    where
        B: Subscriber<Subscription = S> + Streams,
    {
        if let Some(open) = self.subscription.take() {
            let is_checked =
                open.connection() == self.connection && self.checked_at.elapsed() < CHECK_EVERY;
            if is_checked || self.is_same(bus, spec, &*open).await? {
                self.subscription = Some(Arc::clone(&open));
                return Ok(open);
            }
        }
        let opened = self.open(bus, spec, places).await?;
        self.subscription = Some(Arc::clone(&opened));
        Ok(opened)
    }

    /// Opens anew at the next tick.
    pub(super) fn close(&mut self) {
        self.subscription = None;
    }

    /// Remembers the message with the highest number; a batch may begin with older ones that
    /// come again.
    pub(super) fn has_read(&mut self, batch: &[Delivery]) {
        self.last = furthest(batch).max(self.last);
    }

    /// Whether the stream of an open subscription is the one that it was opened on.
    async fn is_same<B: Streams>(
        &mut self,
        bus: &B,
        spec: &ConsumerSpec,
        open: &S,
    ) -> Result<bool, StreamError> {
        // Before the questions: a reconnect in between calls for another check.
        let connection = open.connection();
        let now = bus.stream(&spec.stream.name).await?;
        let is_same = now.is_some_and(|now| now.created_at == open.opened_on().created_at)
            && !self.has_lost(bus, spec).await?;
        if is_same {
            report_pending(spec, open.progress().await?.pending);
            self.connection = connection;
            self.checked_at = Instant::now();
        }
        Ok(is_same)
    }

    async fn open<B>(
        &mut self,
        bus: &B,
        spec: &ConsumerSpec,
        places: Option<&Places>,
    ) -> Result<Arc<S>, Error>
    where
        B: Subscriber<Subscription = S> + Streams,
    {
        if let (None, Some(places)) = (self.created_at, places)
            && let Some(place) = places.load(spec).await?
        {
            self.created_at = Some(place.created_at);
            self.last = Some((place.sequence, place.id));
        }
        let mut opened = bus.subscribe(spec).await?;
        let created_at = opened.opened_on().created_at;
        if self.created_at.is_some_and(|known| known != created_at) {
            // The durable went with the old stream, and its new self starts at the first
            // message.
            tracing::warn!(
                consumer = &*spec.durable,
                stream = &*spec.stream.name,
                "the stream was made again, reading it from its beginning",
            );
            self.last = None;
            count_restarts(spec, 1);
        } else if self.has_lost(bus, spec).await? {
            tracing::warn!(
                consumer = &*spec.durable,
                stream = &*spec.stream.name,
                "the stream has lost messages that were read, reading it from its beginning",
            );
            opened = bus.restart(spec).await?;
            // Only now: whoever dies in between leaves behind what tells the next one.
            if let (Some(places), Some((sequence, id))) = (places, self.last) {
                let place = Place {
                    created_at,
                    sequence,
                    id,
                };
                places.forget(spec, &place).await?;
            }
            self.last = None;
            count_restarts(spec, 1);
        }
        self.created_at = Some(opened.opened_on().created_at);
        self.connection = opened.connection();
        self.checked_at = Instant::now();
        report_pending(spec, opened.progress().await?.pending);
        Ok(Arc::new(opened))
    }

    /// Whether the stream has another message where the last one was read, or has not got
    /// that far: its end was lost, and its numbers are used again.
    async fn has_lost<B: Streams>(
        &self,
        bus: &B,
        spec: &ConsumerSpec,
    ) -> Result<bool, StreamError> {
        let Some((sequence, id)) = self.last else {
            return Ok(false);
        };
        let stream = &*spec.stream.name;
        let found = bus.ids_at(stream, &[sequence]).await?;
        match found.first().copied().flatten() {
            Some(found) => Ok(found != id),
            // Too old or deleted, which is nothing; unless the stream ends before it.
            None => {
                let state = bus.stream(stream).await?;
                Ok(state.is_none_or(|state| state.last_sequence < sequence))
            }
        }
    }
}

/// The message with the highest number.
pub(super) fn furthest(batch: &[Delivery]) -> Option<(u64, Uuid)> {
    let read = batch.iter();
    read.filter_map(|delivery| Some((delivery.position.sequence, delivery.id?)))
        .max()
}

fn report_pending(spec: &ConsumerSpec, pending: u64) {
    let pending = u32::try_from(pending).map_or(f64::from(u32::MAX), f64::from);
    metrics::gauge!(PENDING_MESSAGES, "consumer" => spec.durable.to_string()).set(pending);
    // There from the beginning: an increase from nothing is no increase to whoever watches.
    count_restarts(spec, 0);
}

fn count_restarts(spec: &ConsumerSpec, restarts: u64) {
    metrics::counter!(RESTARTS_TOTAL, "consumer" => spec.durable.to_string()).increment(restarts);
}
