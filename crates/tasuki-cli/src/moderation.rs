//! `tasuki relay keys`, `label` and `rule`: what the node says of content, by an operator.
//!
//! Each change is a row with a name and a reason; a label is signed here, with the node's keys.

use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::{Value, json};
use sqlx::Connection as _;
use tasuki_community::moderation::{
    By, Definition, Given, Office, Ruled, Saying, Which, add_rule, close_rule, given, ruled,
};

use crate::args::{Label, NewRule, Rule, Words};
use crate::outbox::{actor, time};
use crate::output::{say, say_json, table};
use crate::platform::{Name, Platform};
use crate::relay::connect;

/// The public keys with which the node speaks.
pub(crate) fn keys(platform: &Platform, make: bool, json: bool) -> anyhow::Result<ExitCode> {
    if make {
        let dir = platform.common.auth.key_dir.as_deref();
        let dir = dir.context("keys are made in auth.key-dir, which is not set")?;
        tasuki_community::make_keys(dir)?;
    }
    let keys = tasuki_community::public_keys(&platform.common)?;
    if json {
        let keys = keys
            .into_iter()
            .map(|(name, key)| (name.to_owned(), json!(key)));
        say_json(&Value::Object(keys.collect()))?;
    } else if keys.is_empty() {
        say("the node has no keys: it labels nothing (--make makes them)");
    } else {
        let rows = keys
            .into_iter()
            .map(|(name, key)| vec![name.to_owned(), key]);
        say(table(&["VOICE", "PUBLIC KEY"], rows));
    }
    Ok(ExitCode::SUCCESS)
}

/// Labels: listed, given, taken back.
pub(crate) async fn label(
    platform: &Platform,
    label: &Label,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let mut connection = connect(platform).await?;
    let actor = actor();
    let office = || {
        let tables = platform.tables_of(Name::Community)?;
        let office = Office::open(&platform.common, platform.community(), &tables.schema)?;
        Ok::<_, anyhow::Error>(office)
    };
    let labels = match label {
        Label::List {
            target,
            author,
            label,
            all,
            limit,
        } => {
            let which = Which {
                target: target.clone(),
                author: author.clone(),
                label: label.clone(),
                all: *all,
                limit: *limit,
            };
            given(&mut connection, which).await?
        }
        Label::Add {
            target,
            words,
            topics,
            why,
        } => {
            let saying = saying(target, words, topics);
            let by = By {
                actor: &actor,
                reason: &why.reason,
            };
            let mut tx = connection.begin().await?;
            let given = office()?.label(&mut tx, &saying, by).await?;
            tx.commit().await?;
            vec![given]
        }
        Label::Withdraw { label, why } => {
            let by = By {
                actor: &actor,
                reason: &why.reason,
            };
            let mut tx = connection.begin().await?;
            let taken = office()?.withdraw(&mut tx, *label, by).await?;
            tx.commit().await?;
            vec![taken]
        }
    };
    show_labels(labels, json)
}

fn saying(target: &str, words: &Words, topics: &[String]) -> Saying {
    Saying {
        target: target.to_owned(),
        label: words.label.clone(),
        confidence: words.confidence,
        expires_in_seconds: seconds(words),
        policy_url: words.policy_url.clone(),
        policy_ref: words.policy_ref.clone(),
        topics: topics.to_vec(),
    }
}

fn seconds(words: &Words) -> i64 {
    i64::try_from(words.time.as_secs()).unwrap_or(i64::MAX)
}

fn show_labels(labels: Vec<Given>, json: bool) -> anyhow::Result<ExitCode> {
    if json {
        let labels = labels.iter().map(|it| {
            json!({
                "label_id": it.label_id, "target": it.target, "label": it.label,
                "origin": it.origin, "author": it.author, "confidence": it.confidence,
                "issued_at": time(it.issued_at), "expires_at": time(it.expires_at),
                "active": it.is_active, "withdrawn_at": it.withdrawn_at.map(time),
                "event_id": it.event_id, "actor": it.actor, "reason": it.reason,
            })
        });
        say_json(&json!({"labels": labels.collect::<Vec<_>>()}))?;
    } else if labels.is_empty() {
        say("no labels");
    } else {
        let rows = labels.into_iter().map(|it| {
            let state = match (it.withdrawn_at, it.is_active) {
                (Some(_), _) => "withdrawn",
                (None, true) => "holds",
                (None, false) => "lapsed",
            };
            let (id, by) = (it.label_id.to_string(), it.actor.unwrap_or(it.origin));
            let until = time(it.expires_at);
            vec![id, it.label, it.target, state.to_owned(), until, by]
        });
        let head = ["ID", "LABEL", "TARGET", "STATE", "UNTIL", "BY"];
        say(table(&head, rows));
    }
    Ok(ExitCode::SUCCESS)
}

/// Rules: listed, opened, closed.
pub(crate) async fn rule(platform: &Platform, rule: &Rule, json: bool) -> anyhow::Result<ExitCode> {
    let mut connection = connect(platform).await?;
    let actor = actor();
    match rule {
        Rule::List { all } => show_rules(ruled(&mut connection, *all).await?, json),
        Rule::Add(new) => {
            let by = By {
                actor: &actor,
                reason: &new.why.reason,
            };
            let mut tx = connection.begin().await?;
            let id = add_rule(&mut tx, &definition(new), by).await?;
            tx.commit().await?;
            let mut open = ruled(&mut connection, false).await?;
            open.retain(|it| it.rule_id == id);
            show_rules(open, json)
        }
        Rule::Close { rule, why } => {
            let by = By {
                actor: &actor,
                reason: &why.reason,
            };
            let mut tx = connection.begin().await?;
            close_rule(&mut tx, *rule, by).await?;
            tx.commit().await?;
            let mut all = ruled(&mut connection, true).await?;
            all.retain(|it| it.rule_id == *rule);
            show_rules(all, json)
        }
    }
}

fn definition(rule: &NewRule) -> Definition {
    let tags = rule.tags.iter().map(|tag| {
        let parts = tag.splitn(2, '=');
        parts.map(str::to_owned).collect()
    });
    let words = &rule.words;
    Definition {
        kinds: rule.kinds.clone(),
        keywords: rule.keywords.clone(),
        pattern: rule.pattern.clone(),
        tags: tags.collect(),
        authors: rule.authors.clone(),
        topics: rule.topics.clone(),
        label: words.label.clone(),
        confidence: words.confidence,
        expires_in_seconds: seconds(words),
        policy_url: words.policy_url.clone(),
        policy_ref: words.policy_ref.clone(),
    }
}

fn show_rules(rules: Vec<Ruled>, json: bool) -> anyhow::Result<ExitCode> {
    if json {
        let rules = rules.iter().map(|it| {
            json!({
                "rule_id": it.rule_id, "version": it.version, "rule": it.definition,
                "active_from": time(it.active_from), "active_until": it.active_until.map(time),
            })
        });
        say_json(&json!({"rules": rules.collect::<Vec<_>>()}))?;
    } else if rules.is_empty() {
        say("no rules: nothing is labelled by itself");
    } else {
        let rows = rules.into_iter().map(|it| {
            let until = it.active_until.map_or_else(|| "open".to_owned(), time);
            let (id, version) = (it.rule_id.to_string(), it.version.to_string());
            vec![
                id,
                version,
                it.definition.label,
                time(it.active_from),
                until,
            ]
        });
        let head = ["ID", "VERSION", "LABEL", "FROM", "UNTIL"];
        say(table(&head, rows));
    }
    Ok(ExitCode::SUCCESS)
}
