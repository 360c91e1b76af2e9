//! Callers: grants and revocations, each repeated with its key until it is decided.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{Node, UNREACHABLE};

/// Callers at the same time.
const CALLERS: usize = 8;
const USERS: usize = 12;
/// Of those, who can't be told.
const CANT_BE_TOLD: usize = 2;
const SKUS: usize = 4;
/// How long one answer is waited for.
const PATIENCE: Duration = Duration::from_secs(3);
/// The pause before a request is repeated.
const PAUSE: Duration = Duration::from_millis(50);
/// The pause between two requests of a caller: as many as go would leave nothing of a small
/// machine for what is to be seen.
const BREATH: Duration = Duration::from_millis(20);

/// A request that was decided.
#[derive(Clone, Debug)]
pub(crate) struct Decided {
    pub(crate) path: &'static str,
    pub(crate) key: String,
    pub(crate) body: Value,
    pub(crate) status: u16,
    pub(crate) text: String,
}

/// Callers who don't give up.
pub(crate) struct Callers {
    inner: Arc<Inner>,
}

/// Callers at work.
pub(crate) struct Calling {
    inner: Arc<Inner>,
    tasks: JoinSet<()>,
}

struct Inner {
    client: reqwest::Client,
    key: String,
    known: Mutex<Vec<SocketAddr>>,
    stop: AtomicBool,
    number: AtomicU64,
    decided: Mutex<Vec<Decided>>,
    /// How often somebody was told to come back, since nothing could be done.
    sent_away: AtomicU64,
    /// Answers that no client could act on.
    odd: Mutex<Vec<String>>,
}

impl Callers {
    pub(crate) fn new(key: &str) -> Self {
        Self {
            inner: Arc::new(Inner {
                client: reqwest::Client::builder()
                    .timeout(PATIENCE)
                    .build()
                    .unwrap(),
                key: key.to_owned(),
                known: Mutex::default(),
                stop: AtomicBool::new(false),
                number: AtomicU64::new(0),
                decided: Mutex::default(),
                sent_away: AtomicU64::new(0),
                odd: Mutex::default(),
            }),
        }
    }

    /// Where entitlement serves from now on.
    pub(crate) fn knows(&self, nodes: &[Node]) {
        self.inner.knows(nodes);
    }

    /// Lets them call until they are told to stop.
    pub(crate) fn call(self) -> Calling {
        let mut tasks = JoinSet::new();
        for _ in 0..CALLERS {
            let inner = Arc::clone(&self.inner);
            tasks.spawn(async move {
                while !inner.stop.load(Ordering::Relaxed) {
                    inner.ask().await;
                    // sleep: it is the pace of the load.
                    tokio::time::sleep(BREATH).await;
                }
            });
        }
        Calling {
            inner: self.inner,
            tasks,
        }
    }
}

impl Calling {
    /// Where entitlement serves from now on.
    pub(crate) fn knows(&self, nodes: &[Node]) {
        self.inner.knows(nodes);
    }

    /// The same, and one more.
    pub(crate) fn knows_also(&self, nodes: &[Node], one: &Node) {
        self.inner.knows(nodes);
        let api = one.api.filter(|_| one.service == "entitlement");
        self.inner.known.lock().unwrap().extend(api);
    }

    /// How many requests were decided so far.
    pub(crate) fn decided(&self) -> usize {
        self.inner.decided.lock().unwrap().len()
    }

    /// How often somebody was told to come back with 503, so far.
    pub(crate) fn sent_away(&self) -> u64 {
        self.inner.sent_away.load(Ordering::Relaxed)
    }

    /// Lets everybody bring their last request to its end, and tells what was decided.
    pub(crate) async fn stop(mut self) -> Vec<Decided> {
        self.inner.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
        let odd = self.inner.odd.lock().unwrap().clone();
        assert!(odd.is_empty(), "answers that no client can act on: {odd:?}");
        self.inner.decided.lock().unwrap().clone()
    }
}

impl Inner {
    fn knows(&self, nodes: &[Node]) {
        let serving = nodes.iter().filter(|node| node.service == "entitlement");
        *self.known.lock().unwrap() = serving.filter_map(|node| node.api).collect();
    }

    async fn ask(&self) {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let path = match fastrand::bool() {
            true => "/v1/entitlements/grants",
            false => "/v1/entitlements/revokes",
        };
        let body = json!({
            "user_id": user(fastrand::usize(..USERS)),
            "stock_keeping_unit": format!("sku-{}", fastrand::usize(..SKUS)),
            "reason": "faults",
            "purchase_id": number.to_string(),
        });
        let key = format!("request-{number}");
        let decided = loop {
            if let Some((status, text)) = self.try_once(path, &key, &body).await {
                break Decided {
                    path,
                    key,
                    body,
                    status,
                    text,
                };
            }
            // sleep: as a client does before it repeats a request.
            tokio::time::sleep(PAUSE).await;
        };
        // Now and then somebody did not hear the answer, and asks again.
        if fastrand::u8(..10) == 0
            && let Some((status, text)) = self.try_once(path, &decided.key, &decided.body).await
        {
            assert_eq!(
                (status, &text),
                (decided.status, &decided.text),
                "{}",
                decided.key
            );
        }
        self.decided.lock().unwrap().push(decided);
    }

    /// One try; nothing when it is to be repeated.
    async fn try_once(&self, path: &str, key: &str, body: &Value) -> Option<(u16, String)> {
        let address = {
            let known = self.known.lock().unwrap();
            *known.get(fastrand::usize(..known.len().max(1)))?
        };
        let request = self
            .client
            .post(format!("http://{address}{path}"))
            .bearer_auth(&self.key)
            .header("Idempotency-Key", key)
            .json(body);
        let response = request.send().await.ok()?;
        let (status, again) = (
            response.status().as_u16(),
            response.headers().contains_key("retry-after"),
        );
        let text = response.text().await.ok()?;
        match status {
            200 => Some((status, text)),
            409 if text.contains("ENTITLEMENT_STATE_CONFLICT") => Some((status, text)),
            // Says when to come back, or that the answer did not come in time.
            409 if again => None,
            503 if again => {
                self.sent_away.fetch_add(1, Ordering::Relaxed);
                None
            }
            504 => None,
            _ => {
                self.odd.lock().unwrap().push(format!("{status} {text}"));
                None
            }
        }
    }
}

fn user(number: usize) -> String {
    if number < CANT_BE_TOLD {
        format!("{UNREACHABLE}{number}")
    } else {
        format!("user-{number}")
    }
}
