//! Relays that die while clients publish: what was answered OK is stored, once, and whoever listens
//! elsewhere hears it once.

#![expect(clippy::indexing_slicing, reason = "helpers of tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use nostr::{Event, EventBuilder, JsonUtil as _, Keys};
use serde_json::{Value, json};
use tasuki_testkit::eventually_within;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use super::{Node, Platform};

/// Where a relay dies: taking events in, and numbering what it took in.
const POINTS: [&str; 6] = [
    "community.before_commit",
    "community.committed",
    "seqlog.numbering",
    "seqlog.looked",
    "seqlog.numbered",
    "seqlog.told",
];

/// How long an answer may take before a publisher goes elsewhere.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long it takes until everything is where it belongs.
const SETTLED: Duration = Duration::from_secs(60);

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// The relays that serve at the moment.
#[derive(Clone, Default)]
pub(super) struct Known(Arc<Mutex<Vec<String>>>, Arc<AtomicU64>);

impl Known {
    pub(super) fn are(&self, nodes: &[&Node]) {
        let urls = nodes.iter().filter_map(|node| node.api);
        let urls = urls.map(|api| format!("ws://{api}/")).collect();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = urls;
        self.1.fetch_add(1, Ordering::SeqCst);
    }

    /// Others have come: whoever is connected looks again where to.
    fn news(&self) -> u64 {
        self.1.load(Ordering::SeqCst)
    }

    async fn connect(&self) -> Option<Socket> {
        let urls = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let url = fastrand::choice(&urls)?;
        let connected = timeout(PATIENCE, connect_async(url)).await.ok()?.ok()?;
        Some(connected.0)
    }
}

/// Publishes one note after the other until told to stop, each until somebody says OK: the ids.
pub(super) async fn publish(known: Known, stop: Arc<AtomicBool>) -> BTreeSet<String> {
    let keys = Keys::generate();
    let note = move |number: usize| {
        let note = EventBuilder::text_note(number.to_string());
        note.sign_with_keys(&keys).unwrap()
    };
    publish_each(known, stop, note).await
}

/// The same of events that `make` makes, by their number.
pub(super) async fn publish_each(
    known: Known,
    stop: Arc<AtomicBool>,
    mut make: impl FnMut(usize) -> Event,
) -> BTreeSet<String> {
    let mut answered = BTreeSet::new();
    let (mut socket, mut news) = (None, 0);
    while !stop.load(Ordering::SeqCst) {
        if std::mem::replace(&mut news, known.news()) != known.news() {
            socket = None;
        }
        let event = make(answered.len());
        let message = format!(r#"["EVENT",{}]"#, event.as_json());
        loop {
            let Some(mut connected) = socket.take() else {
                socket = known.connect().await;
                continue;
            };
            let said = async {
                connected.send(Message::text(message.clone())).await.ok()?;
                told(&mut connected).await
            };
            match timeout(PATIENCE, said).await {
                Ok(Some(answer)) if answer[2] == json!(true) => {
                    socket = Some(connected);
                    break;
                }
                // Dead, silent, or on its way down: the same event goes to another.
                _ => {}
            }
        }
        answered.insert(event.id.to_hex());
    }
    answered
}

async fn told(socket: &mut Socket) -> Option<Value> {
    loop {
        match socket.next().await?.ok()? {
            Message::Text(text) => return serde_json::from_str(&text).ok(),
            Message::Close(_) => return None,
            _ => {}
        }
    }
}

/// Listens on one relay that lives, and counts how often each event comes.
async fn listen(url: String, heard: Arc<Mutex<BTreeMap<String, u32>>>) {
    let (mut socket, _) = connect_async(url).await.unwrap();
    socket
        .send(Message::text(r#"["REQ","all",{"limit":0}]"#))
        .await
        .unwrap();
    while let Some(message) = told(&mut socket).await {
        if message[0] == json!("EVENT") {
            let id = message[2]["id"].as_str().unwrap_or_default().to_owned();
            let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
            *heard.entry(id).or_default() += 1;
        }
    }
}

#[tokio::test]
async fn a_relay_that_dies_at_any_point_loses_and_doubles_no_event() {
    let platform = Platform::with(
        "relay",
        &[
            ("TASUKI_COMMUNITY__TOPICS__MODE", "default"),
            ("TASUKI_COMMUNITY__LIMITS__EVENTS_PER_MINUTE", "0"),
            ("TASUKI_COMMUNITY__LIMITS__CONNECTIONS_PER_MINUTE", "0"),
        ],
    )
    .await;
    let survivor = platform.node("community").await;
    let (known, stop, heard) = (Known::default(), Arc::default(), Arc::default());
    known.are(&[&survivor]);
    let url = format!("ws://{}/", survivor.api.unwrap());
    let publishers: Vec<_> = (0..4)
        .map(|_| spawn(publish(known.clone(), Arc::clone(&stop))))
        .collect();
    let listener = spawn(listen(url, Arc::clone(&heard)));
    for point in POINTS {
        let mut doomed = platform.doomed("community", point, 5).await;
        if point.starts_with("seqlog") {
            // It numbers only if nobody else does: the survivor, and its lease, are out of the way.
            survivor.pause();
        }
        known.are(&[&doomed]);
        doomed.is_killed().await;
        survivor.resume();
        known.are(&[&survivor]);
    }
    stop.store(true, Ordering::SeqCst);
    let mut answered = BTreeSet::new();
    for publisher in publishers {
        answered.append(&mut publisher.await.unwrap());
    }
    all_is_there(&platform, &answered).await;
    let is_heard = || heard.lock().unwrap_or_else(PoisonError::into_inner).len() >= answered.len();
    eventually_within(SETTLED, "everything was told", async || {
        is_heard().then_some(())
    })
    .await;
    let heard = heard.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let missing: Vec<_> = answered
        .iter()
        .filter(|id| !heard.contains_key(*id))
        .collect();
    let twice: Vec<_> = heard.iter().filter(|(_, times)| **times > 1).collect();
    assert!(
        missing.is_empty() && twice.is_empty(),
        "missing {missing:?}, twice {twice:?}"
    );
    listener.abort();
    survivor.stop().await;
}

/// Every event that was answered is stored once, and is in the log once, under a number without gaps.
async fn all_is_there(platform: &Platform, answered: &BTreeSet<String>) {
    eventually_within(SETTLED, "everything has its number", async || {
        let left = "SELECT count(*) FROM cn_relay.events_outbox_pending";
        let left: i64 = sqlx::query_scalar(left)
            .fetch_one(&platform.pool)
            .await
            .unwrap();
        (left == 0).then_some(())
    })
    .await;
    let stored: Vec<String> =
        sqlx::query_scalar("SELECT encode(event_id, 'hex') FROM cn_relay.events")
            .fetch_all(&platform.pool)
            .await
            .unwrap();
    let logged: Vec<(i64, String)> =
        sqlx::query_as("SELECT seq, event_id FROM cn_relay.events_outbox ORDER BY seq")
            .fetch_all(&platform.pool)
            .await
            .unwrap();
    assert!(!answered.is_empty());
    assert!(
        logged
            .iter()
            .zip(1..)
            .all(|((seq, _), number)| *seq == number),
        "the numbers have a gap"
    );
    let logged: Vec<_> = logged.into_iter().map(|(_, id)| id).collect();
    for (what, ids) in [("stored", stored), ("logged", logged)] {
        let once: BTreeSet<_> = ids.iter().cloned().collect();
        assert_eq!(once.len(), ids.len(), "{what} twice");
        let missing: Vec<_> = answered.difference(&once).collect();
        assert!(missing.is_empty(), "answered and not {what}: {missing:?}");
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the test awaits it, or aborts it"
)]
pub(super) fn spawn<F>(work: F) -> tokio::task::JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    tokio::spawn(work)
}
