//! Search through the API: how soon what was stored is found, and how long a search takes.

use std::{collections::HashMap, fmt::Write as _, net::SocketAddr, time::Duration};

use anyhow::{Context as _, ensure};
use fastrand::Rng;
use futures_util::{
    SinkExt as _, StreamExt as _,
    future::{try_join, try_join_all},
};
use tokio::{
    sync::mpsc::{self, UnboundedReceiver, UnboundedSender},
    time::{Instant, sleep, sleep_until},
};
use tokio_tungstenite::tungstenite::Message;

use super::{Options, Told, socket};
use crate::{
    load::http::Connection,
    relay::{
        deck::{self, Event},
        words,
    },
};

const SEED: u64 = 11;
/// How often somebody looks whether an event is found.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Who does not find it by then has found a fault.
const LATEST: Duration = Duration::from_secs(20);
/// Searches of each connection that don't count.
const WARM_UP: usize = 20;

/// An event that was accepted, and when.
struct Stored {
    id: String,
    mark: String,
    at: Instant,
}

/// From when an event was accepted until a search finds it, for those that have a word of their own.
pub(super) async fn visible(options: &Options, events: &[(String, Event)]) -> anyhow::Result<Told> {
    let load = options.load;
    let opened = (0..load.connections).map(|_| Searcher::open(options));
    let searchers = try_join_all(opened).await?;
    let (handed, waiting): (Vec<_>, Vec<_>) =
        searchers.iter().map(|_| mpsc::unbounded_channel()).unzip();
    let all = searchers.into_iter().zip(waiting);
    let looking = try_join_all(all.map(|(searcher, stored)| look(searcher, stored)));
    let began = Instant::now();
    let publishing = publish(options, events, handed);
    let (times, ()) = try_join(looking, publishing).await?;
    Told::of(times.concat(), began.elapsed())
}

/// Publishes at the rate, and hands on what was accepted.
async fn publish(
    options: &Options,
    events: &[(String, Event)],
    handed: Vec<UnboundedSender<Stored>>,
) -> anyhow::Result<()> {
    let (mut publisher, mut answers) = socket::open(options.address).await?.split();
    let began = Instant::now();
    let send = async {
        for (place, (json, _)) in (0_u32..).zip(events) {
            let after = f64::from(place) / f64::from(options.load.rate);
            sleep_until(began + Duration::from_secs_f64(after)).await;
            publisher.send(Message::Text(socket::event(json))).await?;
        }
        anyhow::Ok(())
    };
    let accept = async {
        let mut marks = marks(options.load.from, events);
        let mut turns = handed.iter().cycle();
        for _ in events {
            let id = socket::accepted(&mut answers).await?;
            let at = Instant::now();
            if let Some(mark) = marks.remove(&id) {
                let turn = turns.next().context("somebody searches")?;
                turn.send(Stored { id, mark, at })?;
            }
        }
        anyhow::Ok(())
    };
    try_join(send, accept).await.map(drop)
}

/// The words of their own of events that have one, by id. The first of them is at `from` in the deck.
fn marks(from: usize, events: &[(String, Event)]) -> HashMap<String, String> {
    let places = (from..).zip(events);
    let marks = places.filter_map(|(place, (_, event))| {
        let mark = deck::mark(place);
        let is_marked = event.content.ends_with(&mark);
        is_marked.then(|| (event.id.clone(), mark))
    });
    marks.collect()
}

/// Searches for each event until it is found; answers how long that took.
async fn look(
    mut searcher: Searcher,
    mut stored: UnboundedReceiver<Stored>,
) -> anyhow::Result<Vec<Duration>> {
    let mut times = Vec::new();
    while let Some(Stored { id, mark, at }) = stored.recv().await {
        while !searcher.finds(&mark, &id).await? {
            ensure!(at.elapsed() < LATEST, "{id} is not found after {LATEST:?}");
            sleep(LOOK_AGAIN).await;
        }
        times.push(at.elapsed());
    }
    Ok(times)
}

/// Questions on every connection, one at a time, until the time is over.
pub(super) async fn questions(options: &Options) -> anyhow::Result<Told> {
    let load = options.load;
    let opened = (0..load.connections).map(|_| Searcher::open(options));
    let mut searchers = try_join_all(opened).await?;
    let mut hands: Vec<_> = (0..load.connections)
        .map(|number| Rng::with_seed(SEED + u64::from(number)))
        .collect();
    let warming = searchers.iter_mut().zip(&mut hands);
    try_join_all(warming.map(|(searcher, random)| searcher.ask_many(random))).await?;
    let began = Instant::now();
    let until = began + Duration::from_secs(load.seconds.into());
    let asking = searchers.iter_mut().zip(&mut hands);
    let times = try_join_all(asking.map(|(searcher, random)| searcher.ask_until(random, until)));
    let times = times.await?.concat();
    let found: u32 = searchers.iter().map(|searcher| searcher.found).sum();
    ensure!(
        usize::try_from(found)? * 2 > times.len(),
        "{found} of {} searches found something",
        times.len()
    );
    Ok(Told {
        found,
        ..Told::of(times, began.elapsed())?
    })
}

struct Searcher {
    connection: Connection,
    headers: String,
    /// Searches that counted, and found something.
    found: u32,
}

impl Searcher {
    async fn open(options: &Options) -> anyhow::Result<Self> {
        let (address, key) = (options.address, &options.api_key);
        Ok(Self {
            connection: Connection::open(address).await?,
            headers: headers(address, key),
            found: 0,
        })
    }

    async fn finds(&mut self, question: &str, id: &str) -> anyhow::Result<bool> {
        Ok(self.ask(question).await?.contains(id))
    }

    async fn ask_many(&mut self, random: &mut Rng) -> anyhow::Result<()> {
        for _ in 0..WARM_UP {
            self.ask(&words::question(random)).await?;
        }
        Ok(())
    }

    async fn ask_until(
        &mut self,
        random: &mut Rng,
        until: Instant,
    ) -> anyhow::Result<Vec<Duration>> {
        let mut times = Vec::new();
        while Instant::now() < until {
            let question = words::question(random);
            let at = Instant::now();
            let body = self.ask(&question).await?;
            times.push(at.elapsed());
            self.found += u32::from(body.contains("\"sig\""));
        }
        Ok(times)
    }

    async fn ask(&mut self, question: &str) -> anyhow::Result<String> {
        let (question, headers) = (encoded(question), &self.headers);
        let request = format!("GET /v1/search?q={question} HTTP/1.1\r\n{headers}\r\n");
        let answer = self.connection.ask(request.as_bytes()).await?;
        let body = String::from_utf8_lossy(answer.body).into_owned();
        ensure!(
            answer.status == 200,
            "a search was answered with {}: {body}",
            answer.status
        );
        Ok(body)
    }
}

fn headers(address: SocketAddr, key: &str) -> String {
    format!("Host: {address}\r\nAuthorization: Bearer {key}\r\n")
}

/// As it stands in an address.
fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() {
            encoded.push(char::from(byte));
        } else {
            let written = write!(encoded, "%{byte:02X}");
            debug_assert!(written.is_ok(), "writing to a string does not fail");
        }
        encoded
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_fits_into_an_address() {
        assert_eq!(encoded("run 駅"), "run%20%E9%A7%85");
    }
}
