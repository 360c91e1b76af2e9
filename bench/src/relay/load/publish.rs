//! Events as fast as they are accepted, so many on their way at a time.

use std::{collections::VecDeque, net::SocketAddr, time::Duration};

use futures_util::{SinkExt as _, future::try_join_all};
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

use super::{
    Load, Told,
    socket::{self, Socket},
};
use crate::relay::deck::Event;

/// Publishes all events, or what can be in time. Every connection has every so many-th of them.
pub(super) async fn run(
    address: SocketAddr,
    load: Load,
    events: &[(String, Event)],
) -> anyhow::Result<Told> {
    let step = usize::try_from(load.connections)?;
    let opened = (0..step).map(|_| socket::open(address));
    let sockets = try_join_all(opened).await?;
    let hands = (0..step).map(|first| {
        let own = events.iter().skip(first).step_by(step);
        own.map(|(json, _)| socket::event(json)).collect()
    });
    let hands: Vec<VecDeque<Utf8Bytes>> = hands.collect();
    let began = Instant::now();
    let until = began + Duration::from_secs(load.seconds.into());
    let all = sockets.into_iter().zip(hands);
    let publishing = all.map(|(socket, hand)| publish(socket, hand, load.in_flight, until));
    let times = try_join_all(publishing).await?;
    Told::of(times.concat(), began.elapsed())
}

/// Publishes what is in `hand`; answers how long each took until it was accepted.
async fn publish(
    mut socket: Socket,
    mut hand: VecDeque<Utf8Bytes>,
    in_flight: usize,
    until: Instant,
) -> anyhow::Result<Vec<Duration>> {
    let mut times = Vec::with_capacity(hand.len());
    let mut sent = VecDeque::with_capacity(in_flight);
    loop {
        let now = Instant::now();
        while sent.len() < in_flight && now < until {
            let Some(event) = hand.pop_front() else { break };
            socket.feed(Message::Text(event)).await?;
            sent.push_back(now);
        }
        socket.flush().await?;
        // Relays answer in their order, nearly; who is swapped with a neighbour changes no median.
        let Some(at) = sent.pop_front() else {
            return Ok(times);
        };
        socket::accepted(&mut socket).await?;
        times.push(at.elapsed());
    }
}
