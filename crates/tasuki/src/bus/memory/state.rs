//! The streams and durables of a bus in memory. Nothing here waits.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;
use uuid::Uuid;

use crate::Clock;
use crate::bus::delivery::{Delivered, Settlement};
use crate::bus::spec::to_micros;
use crate::bus::{
    ConsumerSpec, Message, Position, Progress, PublishError, StreamError, StreamSpec, StreamState,
    subject,
};

/// As a NATS server has it by default.
const MAX_PAYLOAD: usize = 1024 * 1024;

pub(super) struct State {
    pub(super) own: Vec<StreamSpec>,
    pub(super) streams: BTreeMap<Arc<str>, Stream>,
    pub(super) unreachable: bool,
    /// Grows with every reconnect.
    pub(super) connects: u64,
    pub(super) refusals: Vec<Refusal>,
    pub(super) delivers_twice: bool,
    clock: Clock,
    last_created: OffsetDateTime,
}

/// Says which messages a test wants refused.
pub(super) struct Refusal(pub(super) Box<dyn Fn(&Message) -> bool + Send>);

pub(super) struct Stream {
    pub(super) spec: StreamSpec,
    pub(super) messages: BTreeMap<u64, Stored>,
    pub(super) durables: HashMap<Arc<str>, Durable>,
    created_at: OffsetDateTime,
    last_sequence: u64,
    /// Where an id was stored, and when.
    seen: HashMap<Uuid, (u64, Instant)>,
}

pub(super) struct Stored {
    pub(super) message: Message,
    stored_at: Instant,
    published_at: OffsetDateTime,
}

pub(super) struct Durable {
    spec: ConsumerSpec,
    next: u64,
    open: BTreeMap<u64, Open>,
}

struct Open {
    deliveries: u64,
    due: Instant,
}

impl State {
    pub(super) fn new() -> Self {
        Self {
            own: Vec::new(),
            streams: BTreeMap::new(),
            unreachable: false,
            connects: 0,
            refusals: Vec::new(),
            delivers_twice: false,
            clock: Clock::system(),
            last_created: OffsetDateTime::UNIX_EPOCH,
        }
    }

    pub(super) fn stream(&mut self, name: &str) -> Result<&mut Stream, StreamError> {
        let stream = self.streams.get_mut(name);
        stream.ok_or_else(|| StreamError::not_found(name))
    }

    pub(super) fn ensure(&mut self, spec: &StreamSpec) -> Result<StreamState, StreamError> {
        if let Some(state) = self.compare_stream(spec)? {
            return Ok(state);
        }
        if !subject::is_name(&spec.name) {
            let why = format!("{:?} can't be a name", spec.name);
            return Err(StreamError::refused(why));
        }
        Ok(self.create(spec))
    }

    pub(super) fn compare_stream(
        &self,
        spec: &StreamSpec,
    ) -> Result<Option<StreamState>, StreamError> {
        let Some(stream) = self.streams.get(&spec.name) else {
            return Ok(None);
        };
        let differences = spec.differences(&stream.spec);
        if differences.is_empty() {
            return Ok(Some(stream.state()));
        }
        Err(StreamError::Mismatch {
            name: spec.name.to_string(),
            differences,
        })
    }

    pub(super) fn create(&mut self, spec: &StreamSpec) -> StreamState {
        // Two streams of one name must differ in this, however fast a test is.
        let tick = Duration::from_micros(1);
        self.last_created = to_micros(self.clock.now()).max(self.last_created + tick);
        let stream = Stream {
            spec: spec.clone(),
            messages: BTreeMap::new(),
            durables: HashMap::new(),
            created_at: self.last_created,
            last_sequence: 0,
            seen: HashMap::new(),
        };
        let state = stream.state();
        self.streams.insert(Arc::clone(&spec.name), stream);
        state
    }

    /// Removes what is older than its stream keeps it.
    pub(super) fn expire(&mut self) {
        for stream in self.streams.values_mut() {
            let (age, window) = (stream.spec.max_age, stream.spec.duplicate_window);
            stream
                .messages
                .retain(|_, stored| stored.stored_at.elapsed() < age);
            stream.seen.retain(|_, (_, at)| at.elapsed() < window);
        }
    }

    pub(super) fn truncate(&mut self, stream: &str, last_sequence: u64) {
        if let Some(stream) = self.streams.get_mut(stream) {
            stream
                .messages
                .retain(|sequence, _| *sequence <= last_sequence);
            stream.seen.retain(|_, (at, _)| *at <= last_sequence);
            stream.last_sequence = stream.last_sequence.min(last_sequence);
        }
    }

    pub(super) fn publish(&mut self, batch: Vec<Message>) -> Vec<Result<Position, PublishError>> {
        self.expire();
        let mut stopped: HashSet<Arc<str>> = HashSet::new();
        let publish_one = |message: Message| {
            let key = message.ordering_key.clone();
            if key.as_ref().is_some_and(|key| stopped.contains(key)) {
                return Err(PublishError::Held);
            }
            let result = self.publish_one(message);
            if result.is_err() {
                stopped.extend(key);
            }
            result
        };
        batch.into_iter().map(publish_one).collect()
    }

    fn publish_one(&mut self, message: Message) -> Result<Position, PublishError> {
        if self.unreachable {
            return Err(PublishError::unreachable("disconnected by the test"));
        }
        if self.refusals.iter().any(|refusal| refusal.0(&message)) {
            return Err(PublishError::refused("refused by the test"));
        }
        if !subject::is_publishable(&message.subject) {
            let why = format!("{:?} is not a subject to publish to", message.subject);
            return Err(PublishError::invalid(why));
        }
        if message.payload.len() > MAX_PAYLOAD {
            return Err(PublishError::invalid("more bytes than a message may have"));
        }
        let mut streams = self.streams.values();
        let name = match streams.find(|stream| stream.spec.takes(&message.subject)) {
            Some(stream) => Arc::clone(&stream.spec.name),
            None => self.create_for(&message.subject)?,
        };
        let published_at = to_micros(self.clock.now());
        let stream = self.stream(&name).map_err(PublishError::unreachable)?;
        Ok(stream.store(message, published_at))
    }

    fn create_for(&mut self, subject: &str) -> Result<Arc<str>, PublishError> {
        let own = self.own.iter().find(|spec| spec.takes(subject)).cloned();
        let Some(spec) = own else {
            let why = format!("no stream takes the subject {subject:?}");
            return Err(PublishError::unreachable(why));
        };
        self.ensure(&spec).map_err(PublishError::unreachable)?;
        Ok(spec.name)
    }

    pub(super) fn subscribe(&mut self, spec: &ConsumerSpec) -> Result<StreamState, StreamError> {
        if !subject::is_name(&spec.durable) {
            let why = format!("{:?} can't be a name", spec.durable);
            return Err(StreamError::refused(why));
        }
        let state = self.ensure(&spec.stream)?;
        let stream = self.stream(&spec.stream.name)?;
        let durable = stream
            .durables
            .entry(Arc::clone(&spec.durable))
            .or_insert_with(|| Durable::new(spec));
        durable.compare(spec)?;
        if durable.next > state.last_sequence + 1 {
            *durable = Durable::new(spec);
        }
        Ok(state)
    }

    pub(super) fn compare(&self, spec: &ConsumerSpec) -> Result<bool, StreamError> {
        if self.compare_stream(&spec.stream)?.is_none() {
            return Ok(false);
        }
        let stream = self.streams.get(&spec.stream.name);
        match stream.and_then(|stream| stream.durables.get(&spec.durable)) {
            Some(durable) => durable.compare(spec).map(|()| true),
            None => Ok(false),
        }
    }

    /// What there is to deliver, or else when the next message falls due.
    pub(super) fn fetch(
        &mut self,
        stream: &str,
        durable: &str,
        max: usize,
    ) -> Result<(Vec<Delivered>, Option<Instant>), StreamError> {
        let twice = self.delivers_twice;
        let stream = self.stream(stream)?;
        let state = stream.state();
        let durable = stream
            .durables
            .get_mut(durable)
            .ok_or_else(|| StreamError::not_found(&state.name))?;
        let due = durable.take(&stream.messages, stream.last_sequence, max);
        let mut delivered = Vec::with_capacity(due.len());
        for (sequence, deliveries) in due {
            let Some(stored) = stream.messages.get(&sequence) else {
                continue;
            };
            let told = stored.told(&state, sequence, deliveries);
            if twice && delivered.len() + 1 < max {
                delivered.push(told.clone());
            }
            delivered.push(told);
        }
        Ok((delivered, durable.next_due()))
    }

    pub(super) fn progress(
        &mut self,
        stream: &str,
        durable: &str,
    ) -> Result<Progress, StreamError> {
        let stream = self.stream(stream)?;
        let durable = stream.durables.get(durable);
        let durable = durable.ok_or_else(|| StreamError::not_found(&stream.spec.name))?;
        let ahead = stream.messages.range(durable.next..);
        let count = ahead.filter(|(_, stored)| durable.wants(stored)).count();
        let lowest_open = durable.open.keys().next().copied();
        Ok(Progress {
            pending: u64::try_from(count).unwrap_or(u64::MAX),
            settled: lowest_open.unwrap_or(durable.next).saturating_sub(1),
        })
    }

    pub(super) fn settle(
        &mut self,
        opened: &StreamState,
        durable: &str,
        sequence: u64,
        settlement: Settlement<'_>,
    ) -> Result<(), StreamError> {
        let stream = self.stream(&opened.name)?;
        let durable = stream.durables.get_mut(durable);
        let durable = durable.filter(|_| stream.created_at == opened.created_at);
        let durable = durable.ok_or_else(|| StreamError::not_found(&opened.name))?;
        let ack_wait = durable.spec.ack_wait;
        let due = match settlement {
            Settlement::Ack | Settlement::Term(_) => {
                durable.open.remove(&sequence);
                return Ok(());
            }
            Settlement::Nak(delay) => Instant::now() + delay,
            Settlement::InProgress => Instant::now() + ack_wait,
        };
        if let Some(open) = durable.open.get_mut(&sequence) {
            open.due = due;
        }
        Ok(())
    }
}

impl Stream {
    pub(super) fn state(&self) -> StreamState {
        let mut state = StreamState::new(Arc::clone(&self.spec.name), self.created_at);
        let first = self.messages.first_key_value().map(|(first, _)| *first);
        state.first_sequence = first.unwrap_or(self.last_sequence + 1);
        state.last_sequence = self.last_sequence;
        state.messages = u64::try_from(self.messages.len()).unwrap_or(u64::MAX);
        state
    }

    fn store(&mut self, message: Message, published_at: OffsetDateTime) -> Position {
        let known = self.seen.get(&message.id).map(|(sequence, _)| *sequence);
        let position = Position {
            stream: Arc::clone(&self.spec.name),
            stream_created_at: self.created_at,
            sequence: known.unwrap_or(self.last_sequence + 1),
            duplicate: known.is_some(),
        };
        if known.is_none() {
            let stored_at = Instant::now();
            self.last_sequence = position.sequence;
            self.seen.insert(message.id, (position.sequence, stored_at));
            let stored = Stored {
                message,
                stored_at,
                published_at,
            };
            self.messages.insert(position.sequence, stored);
        }
        position
    }
}

impl Stored {
    pub(super) fn told(&self, stream: &StreamState, sequence: u64, deliveries: u64) -> Delivered {
        let headers = self.message.headers.iter();
        Delivered {
            id: Some(self.message.id),
            subject: Arc::clone(&self.message.subject),
            headers: headers
                .map(|(name, value)| ((*name).to_owned(), value.clone()))
                .collect(),
            payload: self.message.payload.clone(),
            position: Position {
                stream: Arc::clone(&stream.name),
                stream_created_at: stream.created_at,
                sequence,
                duplicate: false,
            },
            published_at: self.published_at,
            deliveries,
        }
    }
}

impl Durable {
    fn new(spec: &ConsumerSpec) -> Self {
        Self {
            spec: spec.clone(),
            next: 1,
            open: BTreeMap::new(),
        }
    }

    fn compare(&self, spec: &ConsumerSpec) -> Result<(), StreamError> {
        let differences = spec.differences(&self.spec);
        if differences.is_empty() {
            return Ok(());
        }
        Err(StreamError::Mismatch {
            name: format!("{}/{}", spec.stream.name, spec.durable),
            differences,
        })
    }

    fn wants(&self, stored: &Stored) -> bool {
        subject::matches_any(&self.spec.filters, &stored.message.subject)
    }

    fn next_due(&self) -> Option<Instant> {
        self.open.values().map(|open| open.due).min()
    }

    /// Opens up to `max` deliveries: what is due again, then what is new.
    fn take(
        &mut self,
        messages: &BTreeMap<u64, Stored>,
        last_sequence: u64,
        max: usize,
    ) -> Vec<(u64, u64)> {
        let now = Instant::now();
        let due = now + self.spec.ack_wait;
        let limit = self.spec.max_deliver.map_or(u64::MAX, u64::from);
        self.open.retain(|sequence, open| {
            messages.contains_key(sequence) && (open.due > now || open.deliveries < limit)
        });
        let mut taken = Vec::new();
        let again = self.open.iter_mut().filter(|(_, open)| open.due <= now);
        for (sequence, open) in again.take(max) {
            open.deliveries += 1;
            open.due = due;
            taken.push((*sequence, open.deliveries));
        }
        while taken.len() < max
            && self.open.len() < self.spec.max_ack_pending
            && self.next <= last_sequence
        {
            let sequence = self.next;
            self.next += 1;
            if messages
                .get(&sequence)
                .is_some_and(|stored| self.wants(stored))
            {
                let open = Open { deliveries: 1, due };
                self.open.insert(sequence, open);
                taken.push((sequence, 1));
            }
        }
        taken
    }
}
