//! Users who follow their inbox live, and go on with whoever lives when a stream ends.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tasuki_testkit::eventually_within;
use tokio::task::JoinSet;

use super::promises::REST;
use super::{FOLLOWED, Node, Platform};

/// The pause before a stream is opened again.
const PAUSE: Duration = Duration::from_millis(50);
/// A stream says more often than this that it lives.
const QUIET: Duration = Duration::from_secs(20);

/// Followers at work, one for each user.
pub(crate) struct Following {
    users: Vec<Arc<Follower>>,
    tasks: JoinSet<()>,
}

struct Follower {
    client: reqwest::Client,
    user: &'static str,
    key: String,
    known: Mutex<Vec<SocketAddr>>,
    stop: AtomicBool,
    /// The numbers that were told, as they came.
    told: Mutex<Vec<i64>>,
}

impl Platform {
    /// Follows everybody who has an inbox, from its beginning.
    pub(crate) async fn followers(&self, nodes: &[Node]) -> Following {
        let scopes = &tasuki_notification::SCOPES;
        let key = self.credential("notification", scopes).await;
        let client = reqwest::Client::builder().read_timeout(QUIET);
        let client = client.build().unwrap();
        let users = FOLLOWED.map(|user| {
            Arc::new(Follower {
                client: client.clone(),
                user,
                key: key.clone(),
                known: Mutex::default(),
                stop: AtomicBool::new(false),
                told: Mutex::default(),
            })
        });
        let mut tasks = JoinSet::new();
        for user in &users {
            let user = Arc::clone(user);
            tasks.spawn(async move {
                while !user.stop.load(Ordering::Relaxed) {
                    user.read().await;
                    // sleep: as a client does before it comes back.
                    tokio::time::sleep(PAUSE).await;
                }
            });
        }
        let following = Following {
            users: users.into(),
            tasks,
        };
        following.knows(nodes);
        following
    }
}

impl Following {
    /// Where notification serves from now on.
    pub(crate) fn knows(&self, nodes: &[Node]) {
        let serving = nodes.iter().filter(|node| node.service == "notification");
        let serving: Vec<_> = serving.filter_map(|node| node.api).collect();
        for user in &self.users {
            user.known.lock().unwrap().clone_from(&serving);
        }
    }

    /// When all has come to rest: everybody was told of everything in their inbox, in its order and
    /// once.
    pub(crate) async fn missed_nothing(mut self, platform: &Platform) {
        for user in &self.users {
            let sql = "SELECT last_seq FROM notification.inboxes WHERE user_id = $1";
            let last = sqlx::query_scalar::<_, i64>(sql).bind(user.user);
            let last = last.fetch_optional(&platform.pool).await.unwrap();
            let last = last.unwrap_or(0);
            let what = format!("{} is told of number {last}", user.user);
            let told = eventually_within(REST, &what, async || {
                let told = user.told.lock().unwrap().clone();
                let came_to = told.last().copied().unwrap_or(0);
                (came_to >= last).then_some(told)
            })
            .await;
            assert_eq!(told, (1..=last).collect::<Vec<_>>(), "{}", user.user);
        }
        for user in &self.users {
            user.stop.store(true, Ordering::Relaxed);
        }
        self.tasks.shutdown().await;
    }
}

impl Follower {
    /// Reads one stream to its end, whatever ends it.
    async fn read(&self) -> Option<()> {
        let address = {
            let known = self.known.lock().unwrap();
            *known.get(fastrand::usize(..known.len().max(1)))?
        };
        let last = self.told.lock().unwrap().last().copied().unwrap_or(0);
        let url = format!(
            "http://{address}/v1/users/{}/notifications/stream",
            self.user
        );
        let request = self.client.get(url).bearer_auth(&self.key);
        let request = request.header("Last-Event-ID", last.to_string());
        let mut response = request.send().await.ok()?;
        if !response.status().is_success() {
            return None;
        }
        let mut text = Vec::new();
        while let Some(chunk) = response.chunk().await.ok()? {
            text.extend_from_slice(&chunk);
            // Of an event that was cut off nothing is known.
            while let Some(end) = text.windows(2).position(|it| it == b"\n\n") {
                let event: Vec<u8> = text.drain(..end + 2).collect();
                let number = number(&String::from_utf8_lossy(&event));
                self.told.lock().unwrap().extend(number);
            }
        }
        Some(())
    }
}

/// The number of an event that tells something.
fn number(event: &str) -> Option<i64> {
    event.lines().find(|line| line.starts_with("data:"))?;
    let mut ids = event.lines().filter_map(|line| line.strip_prefix("id:"));
    ids.find_map(|id| id.trim().parse().ok())
}
