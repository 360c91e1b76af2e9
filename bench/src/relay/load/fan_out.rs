//! Many listen, one publishes at a rate. What an event takes counts from when it was due until a
//! listener has it, for each of them: from when the timer rang, which is up to two milliseconds later, and
//! no later than that if the publisher could not write.

use std::{cell::Cell, collections::HashMap, net::SocketAddr, time::Duration};

use futures_util::{SinkExt as _, StreamExt as _, future::join_all, future::try_join_all};
use serde_json::json;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_tungstenite::tungstenite::Message;

use super::{
    Load, Told,
    socket::{self, Socket},
};
use crate::relay::deck::{Event, KINDS};

/// How long the last event may take.
const LATEST: Duration = Duration::from_secs(10);
/// How late a timer may ring.
const TIMER: Duration = Duration::from_millis(2);
/// How long after everybody listens the first event is due.
const BREATH: Duration = Duration::from_millis(500);

/// All events, to all listeners.
pub(super) async fn run(
    address: SocketAddr,
    load: Load,
    events: &[(String, Event)],
) -> anyhow::Result<Told> {
    let listeners = try_join_all((0..load.connections).map(|_| listen(address))).await?;
    let (publisher, answers) = socket::open(address).await?.split();
    let first = Instant::now() + BREATH;
    let due = |place: usize| {
        let after = f64::from(u32::try_from(place).unwrap_or(u32::MAX)) / f64::from(load.rate);
        first + Duration::from_secs_f64(after)
    };
    let starts: Vec<_> = (0..events.len())
        .map(|place| Cell::new(due(place)))
        .collect();
    let by_id = events.iter().zip(&starts);
    let by_id = by_id.filter_map(|((json, _), start)| Some((socket::short_id(json)?, start)));
    let by_id: HashMap<u64, &Cell<Instant>> = by_id.collect();
    let until = due(events.len()) + LATEST;
    let heard = listeners
        .into_iter()
        .map(|socket| hear(socket, &by_id, until));
    let publish = async {
        let mut publisher = publisher;
        for ((json, _), start) in events.iter().zip(&starts) {
            sleep_until(start.get()).await;
            start.set(Instant::now().min(start.get() + TIMER));
            publisher.send(Message::Text(socket::event(json))).await?;
        }
        anyhow::Ok(())
    };
    let accept = async {
        let mut answers = answers;
        for _ in events {
            // Who does not keep up loses events, and that is counted.
            match timeout_at(until, socket::accepted(&mut answers)).await {
                Ok(accepted) => drop(accepted?),
                Err(_late) => break,
            }
        }
        anyhow::Ok(())
    };
    let (published, accepted, heard) = tokio::join!(publish, accept, join_all(heard));
    published?;
    accepted?;
    let wanted = events.len() * heard.len();
    let times = heard.concat();
    let lost = u32::try_from(wanted.saturating_sub(times.len()))?;
    Ok(Told {
        lost,
        ..Told::of(times, first.elapsed())?
    })
}

/// A listener who has been told all that is stored and that he wants.
async fn listen(address: SocketAddr) -> anyhow::Result<Socket> {
    let mut socket = socket::open(address).await?;
    let filter = json!({"kinds": KINDS, "limit": 1});
    socket::send(&mut socket, json!(["REQ", "s", filter]).to_string()).await?;
    while !socket::text(&mut socket).await?.starts_with("[\"EOSE\"") {}
    Ok(socket)
}

/// How long each event took. One that comes twice is an error of the relay that hides another that is
/// lost, so each counts once.
async fn hear(
    mut socket: Socket,
    events: &HashMap<u64, &Cell<Instant>>,
    until: Instant,
) -> Vec<Duration> {
    let mut left = events.clone();
    let mut times = Vec::with_capacity(events.len());
    while !left.is_empty() {
        let Ok(Ok(text)) = timeout_at(until, socket::text(&mut socket)).await else {
            break;
        };
        let now = Instant::now();
        if let Some(start) = socket::short_id(&text).and_then(|id| left.remove(&id)) {
            times.push(now.saturating_duration_since(start.get()));
        }
    }
    times
}
