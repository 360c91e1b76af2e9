//! What the rules say of events, in the caller's transaction.
//!
//! Doing it again changes nothing: the same rows are written, and an event that was published is known.

use std::collections::HashMap;
use std::sync::Arc;

use sqlx::PgConnection;
use tasuki_contract::events::community::EventType;
use time::OffsetDateTime;

use super::label::MOST;
use super::rule::{Rule, Subject, folded};
use super::tell::News;
use super::{Error, Label, Life, Moderator, Origin};
use crate::domain::Verdict;
use crate::ingest::Arrival;
use crate::node::{self, Voice};
use crate::nostr::{Event, Id, Report, Target};
use crate::store::moderation::{labels, reports, rules};

/// An event, and when it was accepted.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) event: Arc<Event>,
    pub(crate) topics: Vec<String>,
    pub(crate) ingested_at: OffsetDateTime,
}

/// Rules, and for which events they are.
type Rules = Vec<(Life, Arc<Rule>)>;

impl Moderator {
    /// Labels `events` as the rules of their time say, and takes down what they report.
    pub(crate) async fn apply(&self, tx: &mut PgConnection, events: &[Seen]) -> Result<(), Error> {
        let times = events.iter().map(|it| it.ingested_at);
        let (Some(first), Some(last)) = (times.clone().min(), times.max()) else {
            return Ok(());
        };
        self.collect(tx, events).await?;
        rules::share(tx).await?;
        let rules = self.rules(tx, first, last).await?;
        let labelled = events
            .iter()
            .filter(|it| !self.keys.is_own(&it.event.author));
        let labels: Vec<_> = labelled.map(|it| labels_of(it, &rules)).collect();
        let targets: Vec<_> = labels
            .iter()
            .filter_map(|labels| labels.first())
            .map(|label| label.target.to_string())
            .collect();
        if targets.is_empty() {
            return Ok(());
        }
        labels::lock(tx, &targets).await?;
        let taken: HashMap<_, _> = labels::before_targets(tx, &targets).await?;
        let labels = labels.into_iter().flat_map(|labels| {
            let target = labels.first().map(|label| label.target.to_string());
            let taken = target.and_then(|it| taken.get(&it)).copied().unwrap_or(0);
            labels.into_iter().take(MOST.saturating_sub(taken))
        });
        self.say(tx, &labels.collect::<Vec<_>>()).await
    }

    async fn rules(
        &self,
        tx: &mut PgConnection,
        first: OffsetDateTime,
        last: OffsetDateTime,
    ) -> Result<Rules, Error> {
        let stored = rules::between(tx, first, last).await?;
        let ready = stored.into_iter().map(|it| {
            let rule = self.rule(it.rule_id, it.version, &it.definition)?;
            Ok((it.life, rule))
        });
        ready.collect()
    }

    async fn collect(&self, tx: &mut PgConnection, events: &[Seen]) -> Result<(), Error> {
        let found = events.iter().filter_map(|it| {
            let report = Report::of(&it.event)?;
            let is_own = it.event.author == self.keys.of(Voice::Moderation).key();
            let mut tags = it.event.tags.iter();
            // Whom the node reports for, it says itself; nobody else is believed.
            let named = tags.find(|tag| is_own && tag.first().is_some_and(|it| it == "reporter"));
            let reporter = named.and_then(|tag| tag.get(1)).cloned();
            Some(reports::Collected {
                event: it.event.id,
                reporter: reporter.unwrap_or_else(|| it.event.author.to_string()),
                report,
                ingested_at: it.ingested_at,
            })
        });
        let found: Vec<_> = found.collect();
        if !found.is_empty() {
            let new = reports::put(tx, &found).await?;
            metrics::counter!(super::REPORTS).increment(new);
        }
        Ok(())
    }

    /// Writes labels, and publishes those that are new.
    pub(super) async fn say(&self, tx: &mut PgConnection, labels: &[Label]) -> Result<(), Error> {
        if labels.is_empty() {
            return Ok(());
        }
        let signer = self.keys.of(Voice::Moderation);
        let events: Vec<_> = labels.iter().map(|it| Arc::new(it.event(signer))).collect();
        let ids: Vec<_> = events.iter().map(|event| event.id).collect();
        let written = labels::put(tx, labels, &ids).await?;
        let written = labels
            .iter()
            .zip(events)
            .filter(|(_, event)| written.contains(&event.id));
        let (labels, arrivals): (Vec<_>, Vec<_>) = written
            .map(|(label, event)| {
                let topics = label.topics.clone();
                (label, Arrival { event, topics })
            })
            .unzip();
        let verdicts = node::publish(tx, &arrivals, self.ahead).await?;
        let mut news = Vec::new();
        for ((label, arrival), verdict) in labels.iter().zip(&arrivals).zip(verdicts) {
            // What was said before, or has lapsed by now, is no news.
            if verdict == Verdict::Stored {
                let origin = label.origin.as_str();
                metrics::counter!(super::LABELS, "origin" => origin).increment(1);
                news.extend(news_of(label, arrival.event.id));
            }
        }
        self.tell(tx, news).await
    }
}

/// What the rules say of one event: the first five of them, each word once.
fn labels_of(seen: &Seen, rules: &Rules) -> Vec<Label> {
    let event = &seen.event;
    let (author, text) = (event.author.to_string(), folded(&event.content));
    let subject = Subject {
        kind: event.kind,
        author: &author,
        content: &event.content,
        folded: &text,
        tags: &event.tags,
        topics: &seen.topics,
    };
    let mut labels: Vec<Label> = Vec::new();
    for (life, rule) in rules {
        let word = &rule.definition.label;
        if labels.len() < MOST
            && life.covers(seen.ingested_at)
            && labels.iter().all(|label| label.label != *word)
            && rule.matches(subject)
        {
            labels.push(by_rule(seen, rule));
        }
    }
    labels
}

/// What the author is told.
fn news_of(label: &Label, by: Id) -> Option<News> {
    Some(News {
        what: EventType::ContentLabelled,
        by,
        label_id: label.id(),
        author: label.author?,
        target: label.target.to_string(),
        label: label.label.clone(),
        confidence: label.confidence,
        at: label.issued_at,
        expires_at: label.expires_at(),
        policy_url: label.policy_url.clone(),
        policy_ref: label.policy_ref.clone(),
        reason: label.reason.clone(),
    })
}

fn by_rule(seen: &Seen, rule: &Rule) -> Label {
    let said = &rule.definition;
    Label {
        target: Target::Event(seen.event.id),
        label: said.label.clone(),
        origin: Origin::Rule,
        round: 1,
        rule: Some((rule.id, rule.version)),
        author: Some(seen.event.author),
        confidence: said.confidence,
        issued_at: seen.ingested_at,
        seconds: said.expires_in_seconds,
        policy_url: said.policy_url.clone(),
        policy_ref: said.policy_ref.clone(),
        topics: seen.topics.clone(),
        is_before_target: false,
        actor: None,
        reason: None,
    }
}
