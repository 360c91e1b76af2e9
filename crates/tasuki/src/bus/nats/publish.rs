//! Publishing a batch: checked, sorted by stream, sent as one where the broker can, else
//! pipelined.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream;

use super::atomic::{self, Outcome, Reason};
use super::routes::{Known, Route};
use super::wire::{self, Ack, Shared};
use super::{NatsBus, api::Failure};
use crate::bus::metrics::{BATCH_MESSAGES, FALLBACKS_TOTAL};
use crate::bus::{Message, Position, PublishError};

/// What the server takes in one batch.
const MAX_BATCH: usize = 1000;
/// The server holds a batch in memory until its commit.
const MAX_BATCH_BYTES: usize = 8 * 1024 * 1024;
/// Acknowledgements awaited at once.
const PIPELINE: usize = 512;

/// A message on its way, and its place in the caller's batch.
#[derive(Debug)]
pub(super) struct Item {
    index: usize,
    pub(super) message: Message,
    pub(super) route: Route,
}

type Outcomes = Vec<(usize, Result<Position, PublishError>)>;

/// The ordering keys that must not go on, because one of their messages failed.
#[derive(Debug, Default)]
struct Stopped(HashSet<Arc<str>>);

impl Stopped {
    fn holds(&self, message: &Message) -> bool {
        let key = message.ordering_key.as_ref();
        key.is_some_and(|key| self.0.contains(key))
    }

    fn stop(&mut self, message: &Message) {
        self.0.extend(message.ordering_key.clone());
    }
}

pub(super) async fn publish(
    bus: &NatsBus,
    batch: Vec<Message>,
) -> Vec<Result<Position, PublishError>> {
    let mut results: Vec<_> = std::iter::repeat_with(|| None).take(batch.len()).collect();
    let mut place = |(index, result): (usize, Result<Position, PublishError>)| {
        if let Some(slot) = results.get_mut(index) {
            *slot = Some(result);
        }
    };
    let (groups, failed) = admit(bus, batch).await;
    failed.into_iter().for_each(&mut place);
    if shares_a_key(&groups) {
        let all = groups.into_iter().flat_map(|group| group.items).collect();
        pipelined(bus, all).await.into_iter().for_each(&mut place);
    } else {
        let published = join_all(groups.into_iter().map(|group| send(bus, group))).await;
        published.into_iter().flatten().for_each(&mut place);
    }
    let never = || Err(PublishError::unreachable("the message was not tried"));
    results
        .into_iter()
        .map(|result| result.unwrap_or_else(never))
        .collect()
}

/// Messages of one stream, in order.
struct Group {
    stream: Arc<Known>,
    items: Vec<Item>,
}

/// Sorts out what can't be sent at all, and the rest by stream.
async fn admit(bus: &NatsBus, batch: Vec<Message>) -> (Vec<Group>, Outcomes) {
    let mut failed = Outcomes::new();
    if let Err(failure) = bus.api.connected().await {
        let cause = Shared::from(failure);
        failed.extend((0..batch.len()).map(|index| (index, Err(cause.for_message()))));
        return (Vec::new(), failed);
    }
    let max_payload = bus.api.client().max_payload();
    let mut routes: HashMap<Arc<str>, Result<Route, Shared>> = HashMap::new();
    let mut groups: Vec<Group> = Vec::new();
    let mut stopped = Stopped::default();
    for (index, message) in batch.into_iter().enumerate() {
        if stopped.holds(&message) {
            failed.push((index, Err(PublishError::Held)));
            continue;
        }
        if let Err(error) = wire::check(&message, max_payload) {
            stopped.stop(&message);
            failed.push((index, Err(error)));
            continue;
        }
        let route = match routes.get(&message.subject) {
            Some(route) => route.clone(),
            None => {
                let route = bus.route(&message.subject).await.map_err(Shared::from);
                routes.insert(Arc::clone(&message.subject), route.clone());
                route
            }
        };
        match route {
            Ok(route) => place(&mut groups, index, message, route),
            Err(cause) => {
                stopped.stop(&message);
                failed.push((index, Err(cause.for_message())));
            }
        }
    }
    (groups, failed)
}

fn place(groups: &mut Vec<Group>, index: usize, message: Message, route: Route) {
    let stream = Arc::clone(&route.stream);
    let item = Item {
        index,
        message,
        route,
    };
    match groups
        .iter_mut()
        .find(|group| group.stream.name == stream.name)
    {
        Some(group) => group.items.push(item),
        None => groups.push(Group {
            stream,
            items: vec![item],
        }),
    }
}

/// Whether a key has messages for two streams: these can't be sent as two batches, of which
/// the earlier might fail.
fn shares_a_key(groups: &[Group]) -> bool {
    let mut owners: HashMap<&Arc<str>, usize> = HashMap::new();
    groups.len() > 1
        && groups.iter().enumerate().any(|(number, group)| {
            let mut keys = group
                .items
                .iter()
                .filter_map(|item| item.message.ordering_key.as_ref());
            keys.any(|key| *owners.entry(key).or_insert(number) != number)
        })
}

/// Publishes the messages of one stream, chunk after chunk.
async fn send(bus: &NatsBus, group: Group) -> Outcomes {
    let mut outcomes = Outcomes::with_capacity(group.items.len());
    let mut stopped = Stopped::default();
    let mut items = group.items.into_iter().peekable();
    while items.peek().is_some() {
        let mut chunk = Vec::new();
        let mut bytes = 0;
        while let Some(item) = items.next_if(|item| {
            let size = wire::size(&item.message);
            chunk.is_empty() || (chunk.len() < MAX_BATCH && bytes + size <= MAX_BATCH_BYTES)
        }) {
            if stopped.holds(&item.message) {
                outcomes.push((item.index, Err(PublishError::Held)));
            } else {
                bytes += wire::size(&item.message);
                chunk.push(item);
            }
        }
        let keys: Vec<_> = chunk
            .iter()
            .map(|item| (item.index, item.message.ordering_key.clone()))
            .collect();
        let sent = send_chunk(bus, &group.stream, chunk).await;
        let failed: HashSet<_> = sent
            .iter()
            .filter_map(|(index, result)| result.is_err().then_some(*index))
            .collect();
        let failed_keys = keys
            .into_iter()
            .filter(|(index, _)| failed.contains(index))
            .filter_map(|(_, key)| key);
        stopped.0.extend(failed_keys);
        outcomes.extend(sent);
    }
    outcomes
}

async fn send_chunk(bus: &NatsBus, stream: &Arc<Known>, chunk: Vec<Item>) -> Outcomes {
    let limit = bus.api.client().max_payload();
    let fits = |item: &Item| wire::size(&item.message) + wire::BATCH_HEADERS <= limit;
    if chunk.len() < 2 || !stream.takes_batches || !chunk.iter().all(fits) {
        return pipelined(bus, chunk).await;
    }
    let connects = bus.api.connects();
    match atomic::publish(bus, stream, &chunk).await {
        Outcome::Stored { first } => {
            record_size("atomic", chunk.len());
            let numbered = (first..).zip(chunk);
            let positions = numbered.map(|(sequence, item)| {
                let position = Position {
                    stream: Arc::clone(&stream.name),
                    stream_created_at: stream.created_at,
                    sequence,
                    duplicate: false,
                };
                (item.index, Ok(position))
            });
            positions.collect()
        }
        Outcome::Rejected(reason) => {
            metrics::counter!(FALLBACKS_TOTAL, "reason" => reason.as_str()).increment(1);
            tracing::debug!(
                stream = &*stream.name,
                batch.messages = chunk.len(),
                reason = reason.as_str(),
                "batch rejected as one, pipelining it",
            );
            if reason == Reason::Unsupported {
                bus.routes.pipeline_from_now_on(stream, connects);
            }
            pipelined(bus, chunk).await
        }
        Outcome::Unknown(failure) => {
            bus.routes.forget(&stream.name);
            let cause = Shared::from(failure);
            let failed = chunk.iter();
            failed
                .map(|item| (item.index, Err(cause.for_message())))
                .collect()
        }
    }
}

/// Sends every message by itself and awaits the answers together. The messages of one key go
/// one after another, and stop at the first that fails.
async fn pipelined(bus: &NatsBus, items: Vec<Item>) -> Outcomes {
    record_size("pipelined", items.len());
    let mut lanes: Vec<Vec<Item>> = Vec::new();
    let mut lane_of: HashMap<Arc<str>, usize> = HashMap::new();
    let mut in_order = items;
    in_order.sort_by_key(|item| item.index);
    for item in in_order {
        let known = item.message.ordering_key.clone().map(|key| {
            let next = lanes.len();
            *lane_of.entry(key).or_insert(next)
        });
        match known.and_then(|lane| lanes.get_mut(lane)) {
            Some(lane) => lane.push(item),
            None => lanes.push(vec![item]),
        }
    }
    let sent = stream::iter(lanes).map(|lane| send_lane(bus, lane));
    let sent: Vec<Outcomes> = sent.buffer_unordered(PIPELINE).collect().await;
    sent.into_iter().flatten().collect()
}

async fn send_lane(bus: &NatsBus, lane: Vec<Item>) -> Outcomes {
    let mut outcomes = Outcomes::with_capacity(lane.len());
    let mut failed = false;
    for item in lane {
        let index = item.index;
        let result = if failed {
            Err(PublishError::Held)
        } else {
            send_one(bus, item).await
        };
        failed = result.is_err();
        outcomes.push((index, result));
    }
    outcomes
}

async fn send_one(bus: &NatsBus, item: Item) -> Result<Position, PublishError> {
    let headers = wire::headers(&item.message);
    let Route { subject, stream } = item.route;
    let reply = bus
        .api
        .request(subject, Some(headers), item.message.payload);
    let ack = match reply.await.and_then(|reply| Ack::read(&reply)) {
        Ok(ack) => ack,
        Err(failure) => {
            bus.routes.forget(&stream.name);
            return Err(failure.into());
        }
    };
    if ack.stream != *stream.name {
        // The subject has moved. The message is stored, and the next attempt says where.
        bus.routes.forget(&stream.name);
        let why = format!("stored in {}, expected {}", ack.stream, stream.name);
        return Err(Failure::Silence(why.into()).into());
    }
    Ok(Position {
        stream: Arc::clone(&stream.name),
        stream_created_at: stream.created_at,
        sequence: ack.sequence,
        duplicate: ack.duplicate,
    })
}

fn record_size(how: &'static str, messages: usize) {
    let messages = u32::try_from(messages).map_or(f64::INFINITY, f64::from);
    metrics::histogram!(BATCH_MESSAGES, "how" => how).record(messages);
}
