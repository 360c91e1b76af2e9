//! Questions that clients ask a relay all day, about what is stored.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, ensure};
use fastrand::Rng;
use futures_util::future::try_join_all;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    Load, Told,
    socket::{self, Socket},
};
use crate::relay::deck::Event;

const SEED: u64 = 7;
/// Events that are wanted at most.
const LIMIT: u32 = 20;
/// Questions of each connection that don't count: connections are opened and plans are made then.
const WARM_UP: usize = 50;

/// Asks on every connection until the time is over.
pub(super) async fn run(
    address: SocketAddr,
    load: Load,
    events: &[(String, Event)],
) -> anyhow::Result<Told> {
    let opened = (0..load.connections).map(|_| socket::open(address));
    let sockets = try_join_all(opened).await?;
    let mut clients: Vec<_> = (0_u64..)
        .zip(sockets)
        .map(|(number, socket)| Client {
            socket,
            random: Rng::with_seed(SEED + number),
            turn: usize::try_from(number).unwrap_or_default(),
            events,
            found: 0,
            times: Vec::new(),
        })
        .collect();
    try_join_all(clients.iter_mut().map(|client| client.ask_many(WARM_UP))).await?;
    let began = Instant::now();
    let until = began + Duration::from_secs(load.seconds.into());
    try_join_all(clients.iter_mut().map(|client| client.ask_until(until))).await?;
    let all = began.elapsed();
    let found = clients.iter().map(|client| client.found).sum();
    let times = clients
        .into_iter()
        .map(|client| client.times)
        .collect::<Vec<_>>()
        .concat();
    ensure!(found > 0, "no question found anything");
    Ok(Told {
        found,
        ..Told::of(times, all)?
    })
}

struct Client<'a> {
    socket: Socket,
    random: Rng,
    turn: usize,
    events: &'a [(String, Event)],
    found: u32,
    times: Vec<Duration>,
}

impl Client<'_> {
    async fn ask_many(&mut self, count: usize) -> anyhow::Result<()> {
        for _ in 0..count {
            self.ask().await?;
        }
        (self.found, self.times) = (0, Vec::new());
        Ok(())
    }

    async fn ask_until(&mut self, until: Instant) -> anyhow::Result<()> {
        while Instant::now() < until {
            self.ask().await?;
        }
        Ok(())
    }

    /// One question, until the relay says that that was all.
    async fn ask(&mut self) -> anyhow::Result<()> {
        let filter = self.filter()?;
        let at = Instant::now();
        socket::send(&mut self.socket, json!(["REQ", "q", filter]).to_string()).await?;
        loop {
            let text = socket::text(&mut self.socket).await?;
            if text.starts_with("[\"EVENT\"") {
                self.found += 1;
                continue;
            }
            ensure!(
                text.starts_with("[\"EOSE\""),
                "a question was answered with {text}"
            );
            break;
        }
        self.times.push(at.elapsed());
        socket::send(&mut self.socket, json!(["CLOSE", "q"]).to_string()).await
    }

    /// By id; by author and kind; by kind; by topic; by event or person. Each in turn.
    fn filter(&mut self) -> anyhow::Result<Value> {
        self.turn += 1;
        Ok(match self.turn % 5 {
            0 => json!({"ids": [self.any(|event| Some(event.id.clone()))?]}),
            1 => {
                let author = self.any(|event| (event.kind == 1).then(|| event.pubkey.clone()))?;
                json!({"authors": [author], "kinds": [1], "limit": LIMIT})
            }
            2 => {
                let kind = self.any(|event| Some(event.kind))?;
                json!({"kinds": [kind], "limit": LIMIT})
            }
            3 => {
                let topic = self.any(|event| event.tag("t").map(str::to_owned))?;
                json!({"#t": [topic], "limit": LIMIT})
            }
            _ => {
                let name = if self.random.bool() { "e" } else { "p" };
                let value = self.any(|event| event.tag(name).map(str::to_owned))?;
                json!({format!("#{name}"): [value], "limit": LIMIT})
            }
        })
    }

    /// Something of one of the events that has it.
    fn any<T>(&mut self, of: impl Fn(&Event) -> Option<T>) -> anyhow::Result<T> {
        let start = self.random.usize(..self.events.len());
        let mut events = self
            .events
            .iter()
            .cycle()
            .skip(start)
            .take(self.events.len());
        let found = events.find_map(|(_, event)| of(event));
        found.context("no event of the deck has it")
    }
}
