//! Moderation for operators, who have the database and the node's keys at hand.

use sqlx::PgConnection;
use tasuki::Schema;
use tasuki::outbox::Outbox;
use tasuki_service::config::{Common, Error as ConfigError};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{By, Definition, Error, Moderator, Saying};
use crate::config::{Community, Topics};
use crate::nostr::{Id, Key};
use crate::store::moderation::labels::{self, Kept, Wanted};
use crate::store::moderation::rules;

/// A label that was given.
#[derive(Clone, Debug)]
pub struct Given {
    /// Which.
    pub label_id: Uuid,
    /// What is labelled.
    pub target: String,
    /// The word.
    pub label: String,
    /// `rule` or `operator`.
    pub origin: String,
    /// Whose it is, if that is known.
    pub author: Option<String>,
    /// From 0 to 1.
    pub confidence: f64,
    /// From when on it holds.
    pub issued_at: OffsetDateTime,
    /// When it lapses.
    pub expires_at: OffsetDateTime,
    /// Whether it holds.
    pub is_active: bool,
    /// When it was taken back.
    pub withdrawn_at: Option<OffsetDateTime>,
    /// The event by which the node says it.
    pub event_id: String,
    /// Who gave it, if a person did.
    pub actor: Option<String>,
    /// Why, if a person did.
    pub reason: Option<String>,
}

/// A version of a rule.
#[derive(Clone, Debug)]
pub struct Ruled {
    /// Which rule.
    pub rule_id: Uuid,
    /// Which version.
    pub version: i32,
    /// What it asks for.
    pub definition: Definition,
    /// From when on.
    pub active_from: OffsetDateTime,
    /// Until when; nothing while it is open.
    pub active_until: Option<OffsetDateTime>,
}

/// Which labels.
#[derive(Clone, Debug, Default)]
pub struct Which {
    /// Of this.
    pub target: Option<String>,
    /// Of this author: 64 digits of hexadecimal.
    pub author: Option<String>,
    /// Of this word.
    pub label: Option<String>,
    /// Also those that have lapsed or were withdrawn.
    pub all: bool,
    /// At most so many.
    pub limit: u16,
}

/// Who signs labels for an operator.
#[derive(Clone, Debug)]
pub struct Office {
    moderator: Moderator,
    topics: Topics,
}

impl From<Kept> for Given {
    fn from(kept: Kept) -> Self {
        let author = kept.author.and_then(|key| key.try_into().ok());
        let event = Id::from_slice(&kept.node_event_id);
        Self {
            label_id: kept.label_id,
            target: kept.target,
            label: kept.label,
            origin: kept.origin,
            author: author.map(|key| Key(key).to_string()),
            confidence: kept.confidence,
            issued_at: kept.issued_at,
            expires_at: kept.expires_at,
            is_active: kept.is_active,
            withdrawn_at: kept.withdrawn_at,
            event_id: event.map(|id| id.to_string()).unwrap_or_default(),
            actor: kept.actor,
            reason: kept.reason,
        }
    }
}

impl Office {
    /// Opens it with the keys of the node.
    ///
    /// # Errors
    /// When there are none, or they can't be used.
    pub fn open(common: &Common, own: &Community, schema: &Schema) -> Result<Self, ConfigError> {
        let keys = crate::open_keys(common)?.ok_or_else(|| {
            let words = "the node has no keys to sign with: tasuki relay keys --make";
            ConfigError::invalid("auth.key-dir", &words)
        })?;
        Ok(Self {
            moderator: Moderator::new(keys, Outbox::new(schema), own.limits.seconds_ahead()),
            topics: own.topics.clone(),
        })
    }

    /// Labels a target, in the caller's transaction.
    ///
    /// # Errors
    /// When a field is not what it should be, the target has as many labels as there may be, or the
    /// database can't be asked.
    pub async fn label(
        &self,
        tx: &mut PgConnection,
        saying: &Saying,
        by: By<'_>,
    ) -> Result<Given, Error> {
        let kept = self.moderator.label(tx, saying, &self.topics, by).await?;
        Ok(kept.into())
    }

    /// Takes a label back, in the caller's transaction.
    ///
    /// # Errors
    /// When there is none that holds, or the database can't be asked.
    pub async fn withdraw(
        &self,
        tx: &mut PgConnection,
        label: Uuid,
        by: By<'_>,
    ) -> Result<Given, Error> {
        Ok(self.moderator.withdraw(tx, label, by).await?.into())
    }
}

/// Labels, the last first.
///
/// # Errors
/// When the database can't be asked.
pub async fn given(connection: &mut PgConnection, which: Which) -> sqlx::Result<Vec<Given>> {
    // A text that is no key is nobody's.
    let author = which.author.map(|text| {
        let key = Key::parse(&text);
        key.map(|key| key.0.to_vec()).unwrap_or_default()
    });
    let wanted = Wanted {
        target: which.target,
        author,
        label: which.label,
        is_active: (!which.all).then_some(true),
        before: None,
        limit: which.limit.into(),
    };
    let kept = labels::list(connection, &wanted).await?;
    Ok(kept.into_iter().map(Given::from).collect())
}

/// Rules that are open, or all versions of all of them; the oldest first.
///
/// # Errors
/// When the database can't be asked.
pub async fn ruled(connection: &mut PgConnection, all: bool) -> Result<Vec<Ruled>, Error> {
    let stored = rules::list(connection, None, !all).await?;
    let rules = stored.into_iter().map(|it| {
        Ok(Ruled {
            rule_id: it.rule_id,
            version: it.version,
            definition: serde_json::from_str(&it.definition)?,
            active_from: it.life.from,
            active_until: it.life.until,
        })
    });
    rules.collect()
}
