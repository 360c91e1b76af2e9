//! What people say: labels by hand, labels taken back, rules. Each with a name and a reason, written down
//! in the transaction that does it.

use std::sync::Arc;

use serde_json::json;
use sqlx::PgConnection;
use tasuki_contract::events::community::EventType;
use time::OffsetDateTime;
use uuid::Uuid;

use super::definition::{check_policy, check_text, check_words};
use super::label::{MOST, withdrawal};
use super::rule::Rule;
use super::tell::News;
use super::{Definition, Error, Invalid, Label, Moderator, Origin, Seen};
use crate::config::{TopicMode, Topics};
use crate::ingest::Arrival;
use crate::node::{self, Voice};
use crate::nostr::{Event, Id, Key, Target};
use crate::relay::is_topic;
use crate::store::find;
use crate::store::moderation::audit::{self, Action};
use crate::store::moderation::labels::Kept;
use crate::store::moderation::{events, labels, members, rules};

/// Rules that are open at a time: each is asked about every event.
const RULES: i64 = 200;
/// Bytes of a name, and of a reason.
const ACTOR: usize = 255;
const REASON: usize = 1000;
/// Topics of a label.
const TOPICS: usize = 20;

/// Why nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// A field is not what it should be.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The target has as many labels as there may be.
    #[error("the target has five labels already")]
    Full,
    /// A person has said so already.
    #[error("the target has this label already")]
    Said,
    /// There is no such label.
    #[error("there is no such label")]
    NoLabel,
    /// Somebody was faster.
    #[error("the label was withdrawn before")]
    Withdrawn,
    /// There is nothing to take back.
    #[error("the label has lapsed")]
    Lapsed,
    /// There is no such rule, or it is closed.
    #[error("there is no such rule that is open")]
    NoRule,
    /// Nobody has linked it.
    #[error("the key is linked to nobody")]
    NoMember,
    /// There are as many rules as there may be.
    #[error("there are 200 rules already")]
    Rules,
}

/// Who changes something, and why.
#[derive(Clone, Copy, Debug)]
pub struct By<'a> {
    /// Who.
    pub actor: &'a str,
    /// Why.
    pub reason: &'a str,
}

impl By<'_> {
    fn check(&self) -> Result<(), Refused> {
        check_text("actor", self.actor, ACTOR)?;
        check_text("reason", self.reason, REASON)?;
        Ok(())
    }
}

/// What a person says of a target.
#[derive(Clone, Debug)]
pub struct Saying {
    /// `event:<id>`, `pubkey:<key>`, `address:<kind:pubkey:d>` or `identifier:<NIP-73>`.
    pub target: String,
    /// One word.
    pub label: String,
    /// From 0 to 1.
    pub confidence: f64,
    /// How long it holds.
    pub expires_in_seconds: i64,
    /// Its policy.
    pub policy_url: Option<String>,
    /// The place in it.
    pub policy_ref: Option<String>,
    /// Where it is published; nothing for where its target is.
    pub topics: Vec<String>,
}

/// What is known of a target.
struct Known {
    event: Option<Arc<Event>>,
    topics: Vec<String>,
    is_before: bool,
}

impl Moderator {
    /// Labels a target.
    pub(crate) async fn label(
        &self,
        tx: &mut PgConnection,
        saying: &Saying,
        topics: &Topics,
        by: By<'_>,
    ) -> Result<Kept, Error> {
        let target = check(saying, by)?;
        let known = self.look(tx, &target).await?;
        let author = match &target {
            Target::Event(_) => known.event.as_ref().map(|event| event.author),
            Target::Author(key) => Some(*key),
            Target::Version(coordinate) => Some(coordinate.author),
            Target::Identifier(_) => None,
        };
        if author.is_some_and(|author| self.keys.is_own(&author)) {
            let own = Invalid::new("target", "is the node's own");
            return Err(Refused::from(own).into());
        }
        let topics = published_in(&saying.topics, topics, known.topics)?;
        let text = target.to_string();
        let standing = labels::standing(tx, &text, &saying.label).await?;
        if standing.is_said {
            return Err(Refused::Said.into());
        }
        if standing.active >= i64::try_from(MOST).unwrap_or(i64::MAX) {
            return Err(Refused::Full.into());
        }
        let label = Label {
            target,
            label: saying.label.clone(),
            origin: Origin::Operator,
            round: standing.rounds + 1,
            rule: None,
            author,
            confidence: saying.confidence,
            issued_at: standing.now,
            seconds: saying.expires_in_seconds,
            policy_url: saying.policy_url.clone(),
            policy_ref: saying.policy_ref.clone(),
            topics,
            is_before_target: known.is_before,
            actor: Some(by.actor.to_owned()),
            reason: Some(by.reason.to_owned()),
        };
        let id = label.id();
        self.say(tx, std::slice::from_ref(&label)).await?;
        let detail = json!({
            "label_id": id,
            "label": label.label,
            "confidence": label.confidence,
            "expires_in_seconds": label.seconds,
        });
        let (action, detail) = (Action::LabelAdded, detail.to_string());
        audit::write(tx, action, &text, &detail, by.actor, by.reason).await?;
        labels::held(tx, id).await?.ok_or(Refused::NoLabel.into())
    }

    /// Takes the target's lock, and sees what it is. What the rules have to say of an event comes first:
    /// that there was no room for it must not depend on who was faster.
    async fn look(&self, tx: &mut PgConnection, target: &Target) -> Result<Known, Error> {
        rules::share(tx).await?;
        labels::lock(tx, &[target.to_string()]).await?;
        let seen = self.seen(tx, target).await?;
        let is_event = matches!(target, Target::Event(_));
        if is_event && let Some(seen) = &seen {
            self.apply(tx, std::slice::from_ref(seen)).await?;
        }
        Ok(Known {
            is_before: is_event && seen.is_none(),
            event: seen.as_ref().map(|it| Arc::clone(&it.event)),
            topics: seen.map(|it| it.topics).unwrap_or_default(),
        })
    }

    /// The event that a target is, if anybody sees it.
    pub(super) async fn seen(
        &self,
        tx: &mut PgConnection,
        target: &Target,
    ) -> sqlx::Result<Option<Seen>> {
        let id = match target {
            Target::Event(id) => Some(*id),
            Target::Version(coordinate) => find::current(tx, coordinate).await?,
            Target::Author(_) | Target::Identifier(_) => None,
        };
        let seen = events::seen(tx, &Vec::from_iter(id)).await?;
        Ok(seen.into_iter().next())
    }

    /// Takes a label back.
    pub(crate) async fn withdraw(
        &self,
        tx: &mut PgConnection,
        id: Uuid,
        by: By<'_>,
    ) -> Result<Kept, Error> {
        by.check()?;
        let target = labels::target(tx, id).await?.ok_or(Refused::NoLabel)?;
        labels::lock(tx, &[target]).await?;
        let mut label = labels::held(tx, id).await?.ok_or(Refused::NoLabel)?;
        if label.withdrawn_at.is_some() {
            return Err(Refused::Withdrawn.into());
        }
        if !label.is_active {
            return Err(Refused::Lapsed.into());
        }
        let at = labels::withdraw(tx, id).await?;
        (label.withdrawn_at, label.is_active) = (Some(at), false);
        let signer = self.keys.of(Voice::Moderation);
        let event = Id::from_slice(&label.node_event_id).ok_or(Refused::NoLabel)?;
        let arrival = Arrival {
            event: Arc::new(withdrawal(signer, event, &label.topics, at, by.reason)),
            topics: label.topics.clone(),
        };
        let by_event = arrival.event.id;
        node::publish(tx, &[arrival], self.ahead).await?;
        self.tell(tx, Vec::from_iter(news_of(&label, by_event, at, by)))
            .await?;
        let detail = json!({"label_id": id, "label": label.label}).to_string();
        let action = Action::LabelWithdrawn;
        audit::write(tx, action, &label.target, &detail, by.actor, by.reason).await?;
        Ok(label)
    }
}

/// What the author is told of a label that was taken back.
fn news_of(label: &Kept, by: Id, at: OffsetDateTime, why: By<'_>) -> Option<News> {
    Some(News {
        what: EventType::LabelWithdrawn,
        by,
        label_id: label.label_id,
        author: Key(label.author.clone()?.try_into().ok()?),
        target: label.target.clone(),
        label: label.label.clone(),
        confidence: label.confidence,
        at,
        expires_at: label.expires_at,
        policy_url: label.policy_url.clone(),
        policy_ref: label.policy_ref.clone(),
        reason: Some(why.reason.to_owned()),
    })
}

fn check(saying: &Saying, by: By<'_>) -> Result<Target, Refused> {
    by.check()?;
    let target = saying.target.parse();
    let target = target.map_err(|problem: String| Invalid::new("target", problem))?;
    check_words(&saying.label, saying.confidence, saying.expires_in_seconds)?;
    check_policy(saying.policy_url.as_deref(), saying.policy_ref.as_deref())?;
    Ok(target)
}

/// The topics that are asked for, or those where the target is, or the topic of what has none.
pub(super) fn published_in(
    asked: &[String],
    topics: &Topics,
    of_target: Vec<String>,
) -> Result<Vec<String>, Refused> {
    if asked.len() > TOPICS {
        let problem = format!("has more than {TOPICS} values");
        return Err(Invalid::new("topics", problem).into());
    }
    let mut named: Vec<_> = asked.iter().map(|it| it.to_lowercase()).collect();
    if named.iter().any(|topic| !is_topic(topics, topic)) {
        return Err(Invalid::new("topics", "has what is no topic here").into());
    }
    if named.is_empty() {
        named = of_target;
    }
    if named.is_empty() && topics.mode == TopicMode::Default {
        named.push(topics.default.clone());
    }
    if named.is_empty() {
        let problem = "is empty, and the target is in none that is known";
        return Err(Invalid::new("topics", problem).into());
    }
    named.sort_unstable();
    named.dedup();
    Ok(named)
}

/// Opens a new rule, for what is accepted from now on; in the caller's transaction.
///
/// # Errors
/// When a field is not what it should be, there are too many rules, or the database can't be asked.
pub async fn add_rule(
    tx: &mut PgConnection,
    definition: &Definition,
    by: By<'_>,
) -> Result<Uuid, Error> {
    by.check()?;
    let rule = Uuid::now_v7();
    let text = checked(rule, definition)?;
    let now = rules::hold(tx).await?;
    if rules::open(tx).await? >= RULES {
        return Err(Refused::Rules.into());
    }
    rules::insert(tx, rule, 1, &text, now).await?;
    let subject = rule.to_string();
    audit::write(tx, Action::RuleAdded, &subject, &text, by.actor, by.reason).await?;
    Ok(rule)
}

/// Closes the version that is open, and opens another one in its place.
pub(crate) async fn change_rule(
    tx: &mut PgConnection,
    rule: Uuid,
    definition: &Definition,
    by: By<'_>,
) -> Result<(), Error> {
    by.check()?;
    let text = checked(rule, definition)?;
    let now = rules::hold(tx).await?;
    let version = rules::close(tx, rule, now).await?.ok_or(Refused::NoRule)?;
    rules::insert(tx, rule, version + 1, &text, now).await?;
    let subject = rule.to_string();
    audit::write(
        tx,
        Action::RuleChanged,
        &subject,
        &text,
        by.actor,
        by.reason,
    )
    .await?;
    Ok(())
}

/// Closes a rule: what is accepted from now on it does not label. In the caller's transaction.
///
/// # Errors
/// When there is none that is open, or the database can't be asked.
pub async fn close_rule(
    tx: &mut PgConnection,
    rule: Uuid,
    by: By<'_>,
) -> Result<OffsetDateTime, Error> {
    by.check()?;
    let now = rules::hold(tx).await?;
    rules::close(tx, rule, now).await?.ok_or(Refused::NoRule)?;
    let subject = rule.to_string();
    audit::write(tx, Action::RuleClosed, &subject, "{}", by.actor, by.reason).await?;
    Ok(now)
}

/// Links a key to a user of the platform.
pub(crate) async fn link(
    tx: &mut PgConnection,
    key: Key,
    user: &str,
    by: By<'_>,
) -> Result<(), Error> {
    by.check()?;
    members::link(tx, key, user, by.actor).await?;
    let (subject, detail) = (key.to_string(), json!({"user_id": user}).to_string());
    let action = Action::MemberLinked;
    audit::write(tx, action, &subject, &detail, by.actor, by.reason).await?;
    Ok(())
}

/// Takes the link away; answers whose the key was.
pub(crate) async fn unlink(tx: &mut PgConnection, key: Key, by: By<'_>) -> Result<String, Error> {
    by.check()?;
    let user = members::unlink(tx, key).await?.ok_or(Refused::NoMember)?;
    let (subject, detail) = (key.to_string(), json!({"user_id": user}).to_string());
    let action = Action::MemberUnlinked;
    audit::write(tx, action, &subject, &detail, by.actor, by.reason).await?;
    Ok(user)
}

/// The text of a definition that can be used.
fn checked(rule: Uuid, definition: &Definition) -> Result<String, Error> {
    let usable = Rule::new(rule, 1, definition.clone());
    let usable = usable.map_err(Refused::Invalid)?;
    Ok(serde_json::to_string(&usable.definition)?)
}
