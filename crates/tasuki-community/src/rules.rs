//! What operators allow: which topics, how much of each, and who is banned.
//!
//! The rules are rows, changed with a name and a reason; every process reads them again every other
//! second, so a change holds everywhere that soon, and a database that is away leaves those that are known.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use sqlx::{PgConnection, PgPool};
use tasuki::worker::{Error, Tick, Worker};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::nostr::Key;
use crate::relay::Bucket;
use crate::store::rules as store;

/// How soon a change holds.
const POLL: Duration = Duration::from_secs(2);

/// Who said something, why and when.
#[derive(Clone, Debug)]
pub struct Said {
    /// Who.
    pub actor: String,
    /// Why.
    pub reason: String,
    /// When.
    pub at: OffsetDateTime,
}

/// A topic of which something was said.
#[derive(Clone, Debug)]
pub struct Topic {
    /// The topic.
    pub topic: String,
    /// Whether events and subscriptions with it are taken.
    pub is_enabled: bool,
    /// How much of it is taken.
    pub policy: IngestPolicy,
    /// By whom.
    pub said: Said,
}

/// Which topics go first when consumers are behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// As most.
    Normal,
    /// After all others.
    Low,
}

impl Priority {
    /// As it is stored and shown.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Low => "low",
        }
    }
}

impl std::str::FromStr for Priority {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "normal" => Ok(Self::Normal),
            "low" => Ok(Self::Low),
            _ => Err("neither normal nor low".to_owned()),
        }
    }
}

/// How much of a topic is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IngestPolicy {
    /// Whether it goes first or last.
    pub priority: Priority,
    /// Whether events of long ago are taken.
    pub takes_backfill: bool,
    /// Events a minute, in each process; 0 is no limit.
    pub events_per_minute: u32,
    /// Rows of the log that the slowest consumer may have before it of this topic; 0 is no limit.
    pub capacity: u32,
}

/// What is to be changed about it; the rest stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyChange {
    /// See [`IngestPolicy`].
    pub priority: Option<Priority>,
    /// See [`IngestPolicy`].
    pub takes_backfill: Option<bool>,
    /// See [`IngestPolicy`].
    pub events_per_minute: Option<u32>,
    /// See [`IngestPolicy`].
    pub capacity: Option<u32>,
}

impl PolicyChange {
    /// In words, for whoever asks later what was changed.
    pub(crate) fn told(&self) -> String {
        let all = [
            self.priority.map(|it| format!("priority={}", it.as_str())),
            self.takes_backfill.map(|it| format!("backfill={it}")),
            self.events_per_minute.map(|it| format!("rate={it}")),
            self.capacity.map(|it| format!("capacity={it}")),
        ];
        all.into_iter().flatten().collect::<Vec<_>>().join(" ")
    }
}

/// Somebody who is banned.
#[derive(Clone, Debug)]
pub struct Banned {
    /// A key; otherwise an address.
    pub is_key: bool,
    /// Which.
    pub subject: String,
    /// Until when; nothing for good.
    pub until: Option<OffsetDateTime>,
    /// By whom.
    pub said: Said,
}

/// A key, or an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject(Who);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Who {
    Key(Key),
    Address(IpAddr),
}

impl std::str::FromStr for Subject {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(key) = Key::parse(text) {
            return Ok(Self(Who::Key(key)));
        }
        let address = text
            .parse()
            .map(|address: IpAddr| Self(Who::Address(address.to_canonical())));
        address.map_err(|_error| {
            "neither a key (64 digits of lower-case hexadecimal) nor an IP address".to_owned()
        })
    }
}

impl Subject {
    pub(crate) const fn kind(&self) -> &'static str {
        match self.0 {
            Who::Key(_) => "key",
            Who::Address(_) => "address",
        }
    }

    pub(crate) fn text(&self) -> String {
        match &self.0 {
            Who::Key(key) => key.to_string(),
            Who::Address(address) => address.to_string(),
        }
    }
}

/// What an operator changes.
#[derive(Clone, Debug)]
pub enum Change {
    /// Takes events and subscriptions of this topic again.
    Enable(String),
    /// Takes no more of them.
    Disable(String),
    /// Takes so much of them.
    Policy(String, PolicyChange),
    /// Takes nothing of them; for so many seconds, or for good.
    Ban(Subject, Option<f64>),
    /// Lets them in again.
    Unban(Subject),
}

impl Change {
    pub(crate) const fn action(&self) -> &'static str {
        match self {
            Self::Enable(_) => "ENABLE",
            Self::Disable(_) => "DISABLE",
            Self::Policy(..) => "POLICY",
            Self::Ban(..) => "BAN",
            Self::Unban(_) => "UNBAN",
        }
    }

    /// What is to be changed, where that is more than one thing.
    pub(crate) fn detail(&self) -> Option<String> {
        match self {
            Self::Policy(_, policy) => Some(policy.told()),
            _ => None,
        }
    }

    pub(crate) fn subject(&self) -> String {
        match self {
            Self::Enable(topic) | Self::Disable(topic) | Self::Policy(topic, _) => topic.clone(),
            Self::Ban(subject, _) | Self::Unban(subject) => subject.text(),
        }
    }

    /// Makes the change in the caller's transaction, with a name and a reason; answers whether there was
    /// anything to change.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn make(
        &self,
        tx: &mut PgConnection,
        actor: &str,
        reason: &str,
    ) -> sqlx::Result<bool> {
        store::change(tx, Uuid::now_v7(), self, actor, reason).await
    }
}

/// All topics of which something was said.
///
/// # Errors
/// When the database can't be asked.
pub async fn topics(connection: &mut PgConnection) -> sqlx::Result<Vec<Topic>> {
    store::topics(connection).await
}

/// Everybody who is banned now.
///
/// # Errors
/// When the database can't be asked.
pub async fn bans(connection: &mut PgConnection) -> sqlx::Result<Vec<Banned>> {
    store::bans(connection).await
}

/// The rules as this process knows them. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules(Arc<RwLock<Arc<Known>>>);

#[derive(Debug, Default)]
struct Known {
    topics: HashMap<String, Arc<Ruled>>,
    keys: HashSet<Key>,
    addresses: HashSet<IpAddr>,
}

/// A topic of which something was said, and what it has used up.
#[derive(Debug)]
pub(crate) struct Ruled {
    pub(crate) is_enabled: bool,
    pub(crate) policy: IngestPolicy,
    bucket: Mutex<Bucket>,
}

impl Ruled {
    fn new(is_enabled: bool, policy: IngestPolicy) -> Self {
        Self {
            is_enabled,
            policy,
            bucket: Mutex::new(Bucket::new(policy.events_per_minute)),
        }
    }

    /// Uses up one event of this minute, if there is one.
    pub(crate) fn take(&self) -> bool {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.take()
    }

    /// Puts it back.
    pub(crate) fn give(&self) {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.give();
    }
}

impl Rules {
    pub(crate) fn is_disabled(&self, topic: &str) -> bool {
        self.topic(topic).is_some_and(|topic| !topic.is_enabled)
    }

    /// A topic of which something was said.
    pub(crate) fn topic(&self, topic: &str) -> Option<Arc<Ruled>> {
        self.known().topics.get(topic).cloned()
    }

    /// Topics that have a capacity.
    pub(crate) fn capped(&self) -> Vec<String> {
        let known = self.known();
        let capped = known.topics.iter().filter(|(_, it)| it.policy.capacity > 0);
        capped.map(|(topic, _)| topic.clone()).collect()
    }

    pub(crate) fn bans_key(&self, key: &Key) -> bool {
        self.known().keys.contains(key)
    }

    pub(crate) fn bans_address(&self, address: &IpAddr) -> bool {
        self.known().addresses.contains(address)
    }

    fn known(&self) -> Arc<Known> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn learn(&self, topics: Vec<Topic>, bans: Vec<Banned>) {
        let before = self.known();
        let topics = topics.into_iter().map(|topic| {
            let same = before.topics.get(&topic.topic).filter(|ruled| {
                ruled.policy == topic.policy && ruled.is_enabled == topic.is_enabled
            });
            // What it has used up is not forgotten at every look.
            let ruled = same.cloned();
            let ruled =
                ruled.unwrap_or_else(|| Arc::new(Ruled::new(topic.is_enabled, topic.policy)));
            (topic.topic, ruled)
        });
        let (keys, addresses): (Vec<_>, Vec<_>) = bans.into_iter().partition(|it| it.is_key);
        let known = Known {
            topics: topics.collect(),
            keys: keys
                .iter()
                .filter_map(|it| Key::parse(&it.subject))
                .collect(),
            addresses: addresses
                .iter()
                .filter_map(|it| it.subject.parse().ok())
                .collect(),
        };
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(known);
    }
}

/// Reads the rules, over and over.
pub(crate) struct Read {
    pub(crate) pool: PgPool,
    pub(crate) rules: Rules,
}

impl Worker for Read {
    fn name(&self) -> &str {
        "community.rules"
    }

    fn poll_interval(&self) -> Duration {
        POLL
    }

    async fn tick(&self) -> Result<Tick, Error> {
        let mut connection = self.pool.acquire().await?;
        let topics = store::topics(&mut connection).await?;
        let bans = store::bans(&mut connection).await?;
        self.rules.learn(topics, bans);
        Ok(Tick::Idle)
    }
}
