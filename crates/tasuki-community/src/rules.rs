//! What operators allow: topics that are disabled, keys and addresses that are banned.
//!
//! The rules are rows, changed with a name and a reason; every process reads them again every other
//! second, so a change holds everywhere that soon, and a database that is away leaves those that are known.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use sqlx::{PgConnection, PgPool};
use tasuki::worker::{Error, Tick, Worker};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::nostr::Key;
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
    /// By whom.
    pub said: Said,
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
            Self::Ban(..) => "BAN",
            Self::Unban(_) => "UNBAN",
        }
    }

    pub(crate) fn subject(&self) -> String {
        match self {
            Self::Enable(topic) | Self::Disable(topic) => topic.clone(),
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
    disabled: HashSet<String>,
    keys: HashSet<Key>,
    addresses: HashSet<IpAddr>,
}

impl Rules {
    pub(crate) fn is_disabled(&self, topic: &str) -> bool {
        self.known().disabled.contains(topic)
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
        let disabled = topics.into_iter().filter(|topic| !topic.is_enabled);
        let (keys, addresses): (Vec<_>, Vec<_>) = bans.into_iter().partition(|it| it.is_key);
        let known = Known {
            disabled: disabled.map(|topic| topic.topic).collect(),
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
