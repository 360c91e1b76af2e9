//! The bus in one process: for unit tests, with the same semantics as the real one and knobs
//! that break it on purpose.

mod state;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use self::state::{Refusal, State};
use super::confirm::confirm;
use super::delivery::{Delivery, Settle, Settlement, Settling};
use super::{
    ConsumerSpec, Message, Position, Progress, PublishError, Publisher, Stored, StreamError,
    StreamSpec, StreamState, Streams, Subscriber, Subscription, metrics,
};

/// The bus in one process. Clones share everything.
#[derive(Clone)]
pub struct MemoryBus {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

/// An open durable of a [`MemoryBus`].
#[derive(Debug)]
pub struct MemorySubscription {
    bus: MemoryBus,
    stream: StreamState,
    durable: Arc<str>,
}

impl Default for MemoryBus {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryBus {
    /// A bus without streams.
    #[must_use]
    pub fn new() -> Self {
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(State::new()),
                changed: Notify::new(),
            }),
        }
    }

    /// The same, creating the stream of `spec` when something is published to it and it is
    /// missing.
    #[must_use]
    pub fn with_stream(self, spec: StreamSpec) -> Self {
        self.change(|state| state.own.push(spec));
        self
    }

    /// From now on nobody can be reached.
    pub fn disconnect(&self) {
        self.change(|state| state.unreachable = true);
    }

    /// The end of [`disconnect`](Self::disconnect).
    pub fn reconnect(&self) {
        self.change(|state| {
            state.unreachable = false;
            state.connects += 1;
        });
    }

    /// Refuses the messages that `predicate` is true of, besides those refused already.
    pub fn refuse(&self, predicate: impl Fn(&Message) -> bool + Send + 'static) {
        self.change(|state| state.refusals.push(Refusal(Box::new(predicate))));
    }

    /// Refuses nothing any more.
    pub fn refuse_nothing(&self) {
        self.change(|state| state.refusals.clear());
    }

    /// From now on delivers every message twice.
    pub fn deliver_twice(&self) {
        self.change(|state| state.delivers_twice = true);
    }

    /// The end of [`deliver_twice`](Self::deliver_twice).
    pub fn deliver_once(&self) {
        self.change(|state| state.delivers_twice = false);
    }

    /// Loses what `stream` stored after `last_sequence`, with its ids and numbers, as a broker
    /// that loses power before it syncs: the next messages get those numbers again. Durables
    /// stay where they were.
    pub fn truncate(&self, stream: &str, last_sequence: u64) {
        self.change(|state| state.truncate(stream, last_sequence));
    }

    /// Deletes `stream` with its messages and durables.
    pub fn delete_stream(&self, stream: &str) {
        self.change(|state| drop(state.streams.remove(stream)));
    }

    /// Deletes `stream` and makes it again, empty.
    pub fn recreate_stream(&self, stream: &str) {
        self.change(|state| {
            if let Some(old) = state.streams.remove(stream) {
                state.create(&old.spec);
            }
        });
    }

    /// Deletes one message.
    pub fn delete_message(&self, stream: &str, sequence: u64) {
        self.change(|state| {
            if let Some(stream) = state.streams.get_mut(stream) {
                stream.messages.remove(&sequence);
            }
        });
    }

    /// Everything that `stream` holds, in order, as it was published.
    #[must_use]
    pub fn messages(&self, stream: &str) -> Vec<(u64, Message)> {
        let state = self.state();
        let messages = state.streams.get(stream).map(|stream| &stream.messages);
        let messages = messages.into_iter().flatten();
        messages
            .map(|(sequence, stored)| (*sequence, stored.message.clone()))
            .collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let state = self.shared.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let done = change(&mut self.state());
        self.shared.changed.notify_waiters();
        done
    }

    /// What a reachable broker answers.
    fn ask<T>(
        &self,
        question: impl FnOnce(&mut State) -> Result<T, StreamError>,
    ) -> Result<T, StreamError> {
        self.change(|state| {
            if state.unreachable {
                return Err(StreamError::unreachable("disconnected by the test"));
            }
            state.expire();
            question(state)
        })
    }
}

impl Publisher for MemoryBus {
    async fn publish(&self, batch: Vec<Message>) -> Vec<Result<Position, PublishError>> {
        let ids: Vec<Uuid> = batch.iter().map(|message| message.id).collect();
        let results = self.change(|state| state.publish(batch));
        let results = confirm(self, &ids, results).await;
        metrics::count_results(&results);
        results
    }
}

impl Streams for MemoryBus {
    async fn ensure_stream(&self, spec: &StreamSpec) -> Result<StreamState, StreamError> {
        self.ask(|state| state.ensure(spec))
    }

    async fn compare_stream(&self, spec: &StreamSpec) -> Result<Option<StreamState>, StreamError> {
        self.ask(|state| state.compare_stream(spec))
    }

    async fn stream(&self, name: &str) -> Result<Option<StreamState>, StreamError> {
        self.ask(|state| Ok(state.streams.get(name).map(state::Stream::state)))
    }

    async fn ids_at(
        &self,
        stream: &str,
        sequences: &[u64],
    ) -> Result<Vec<Option<Uuid>>, StreamError> {
        self.ask(|state| {
            let messages = &state.stream(stream)?.messages;
            let ids = sequences.iter().map(|sequence| messages.get(sequence));
            Ok(ids.map(|stored| Some(stored?.message.id)).collect())
        })
    }

    async fn message_at(&self, stream: &str, sequence: u64) -> Result<Option<Stored>, StreamError> {
        self.ask(|state| {
            let stream = state.stream(stream)?;
            let at = stream.state();
            let stored = stream.messages.get(&sequence);
            Ok(stored.map(|stored| {
                let told = stored.told(&at, sequence, 0);
                Stored::new(
                    told.id,
                    told.subject,
                    told.headers,
                    told.payload,
                    told.published_at,
                )
            }))
        })
    }

    async fn ids_between(
        &self,
        stream: &str,
        from: u64,
        to: u64,
    ) -> Result<Vec<(u64, Uuid)>, StreamError> {
        self.ask(|state| {
            let messages = &state.stream(stream)?.messages;
            if from > to {
                return Ok(Vec::new());
            }
            let ids = messages.range(from..=to);
            Ok(ids
                .map(|(sequence, stored)| (*sequence, stored.message.id))
                .collect())
        })
    }
}

impl Subscriber for MemoryBus {
    type Subscription = MemorySubscription;

    async fn subscribe(&self, spec: &ConsumerSpec) -> Result<MemorySubscription, StreamError> {
        let stream = self.ask(|state| state.subscribe(spec))?;
        Ok(MemorySubscription {
            bus: self.clone(),
            stream,
            durable: Arc::clone(&spec.durable),
        })
    }

    async fn compare(&self, spec: &ConsumerSpec) -> Result<bool, StreamError> {
        self.ask(|state| state.compare(spec))
    }

    async fn restart(&self, spec: &ConsumerSpec) -> Result<MemorySubscription, StreamError> {
        self.ask(|state| {
            if let Some(stream) = state.streams.get_mut(&spec.stream.name) {
                stream.durables.remove(&spec.durable);
            }
            Ok(())
        })?;
        self.subscribe(spec).await
    }
}

impl Subscription for MemorySubscription {
    fn opened_on(&self) -> &StreamState {
        &self.stream
    }

    async fn fetch(&self, max: usize, wait: Duration) -> Result<Vec<Delivery>, StreamError> {
        let deadline = Instant::now() + wait;
        loop {
            // Before looking: what changes between the look and the wait still wakes.
            let changed = self.bus.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let (delivered, next_due) = {
                let mut state = self.bus.state();
                if state.unreachable {
                    return Err(StreamError::unreachable("disconnected by the test"));
                }
                state.expire();
                state.fetch(&self.stream.name, &self.durable, max)?
            };
            if !delivered.is_empty() || Instant::now() >= deadline {
                return Ok(delivered
                    .into_iter()
                    .map(|told| {
                        let settle = Answer {
                            bus: self.bus.clone(),
                            stream: self.stream.clone(),
                            durable: Arc::clone(&self.durable),
                            sequence: told.position.sequence,
                        };
                        Delivery::new(told, settle)
                    })
                    .collect());
            }
            let until = next_due.map_or(deadline, |due| due.min(deadline));
            // Woken or not, the next round looks.
            timeout_at(until, changed).await.unwrap_or_default();
        }
    }

    fn connection(&self) -> u64 {
        self.bus.state().connects
    }

    async fn progress(&self) -> Result<Progress, StreamError> {
        self.bus
            .ask(|state| state.progress(&self.stream.name, &self.durable))
    }
}

/// Settles one delivery.
struct Answer {
    bus: MemoryBus,
    stream: StreamState,
    durable: Arc<str>,
    sequence: u64,
}

impl Settle for Answer {
    fn settle<'a>(&'a self, settlement: Settlement<'a>) -> Settling<'a> {
        Box::pin(async move {
            self.bus
                .ask(|state| state.settle(&self.stream, &self.durable, self.sequence, settlement))
        })
    }
}

impl fmt::Debug for MemoryBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        let streams: Vec<_> = state.streams.values().map(state::Stream::state).collect();
        f.debug_struct("MemoryBus")
            .field("streams", &streams)
            .finish_non_exhaustive()
    }
}
