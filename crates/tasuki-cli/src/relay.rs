//! `tasuki relay`: which topics are taken, who is banned, what the limits are.
//!
//! A change is a row with a name and a reason; every relay knows it two seconds later.

use std::process::ExitCode;

use serde_json::{Value, json};
use sqlx::Connection as _;
use tasuki_community::rules::{self, Change, Said};

use crate::args::{Relay, Source};
use crate::moderation;
use crate::outbox::{actor, time};
use crate::output::{say, say_json, table};
use crate::platform::{self, Name, Platform};
use crate::sum::Sum;

pub(crate) async fn run(source: &Source, args: &Relay, json: bool) -> anyhow::Result<ExitCode> {
    let platform = platform::of_running(source)?;
    let (change, why, told) = match args {
        Relay::Topics => return topics(&platform, json).await,
        Relay::Bans => return bans(&platform, json).await,
        Relay::Limits => return limits(&platform, json),
        Relay::Keys { make } => return moderation::keys(&platform, *make, json),
        Relay::Label(label) => return moderation::label(&platform, label, json).await,
        Relay::Rule(rule) => return moderation::rule(&platform, rule, json).await,
        Relay::Enable { topic, why } => (Change::Enable(topic.to_lowercase()), why, "enabled"),
        Relay::Disable { topic, why } => (Change::Disable(topic.to_lowercase()), why, "disabled"),
        Relay::Policy { topic, policy, why } => {
            let change = Change::Policy(topic.to_lowercase(), policy.change());
            (change, why, "changed")
        }
        Relay::Ban { subject, time, why } => {
            let seconds = time.map(|time| time.as_secs_f64());
            (Change::Ban(subject.clone(), seconds), why, "banned")
        }
        Relay::Unban { subject, why } => (Change::Unban(subject.clone()), why, "let in again"),
    };
    let mut connection = connect(&platform).await?;
    let mut tx = connection.begin().await?;
    let mut sum = Sum::default();
    if change.make(&mut tx, &actor(), &why.reason).await? {
        sum.done += 1;
    } else {
        sum.already(told, "there was nothing to change");
    }
    tx.commit().await?;
    sum.report("changed", told, json)
}

pub(crate) async fn connect(
    platform: &Platform,
) -> anyhow::Result<sqlx::pool::PoolConnection<sqlx::Postgres>> {
    let tables = platform.tables_of(Name::Community)?;
    let limit = platform.common.database.connect_timeout;
    tables.database.wait(limit).await?;
    Ok(tables.database.workers.acquire().await?)
}

fn said_json(said: &Said) -> Value {
    json!({"actor": said.actor, "reason": said.reason, "at": time(said.at)})
}

async fn topics(platform: &Platform, json: bool) -> anyhow::Result<ExitCode> {
    let topics = rules::topics(&mut *connect(platform).await?).await?;
    if json {
        let topics = topics.iter().map(|it| {
            json!({
                "topic": it.topic, "enabled": it.is_enabled,
                "priority": it.policy.priority.as_str(), "backfill": it.policy.takes_backfill,
                "events_per_minute": it.policy.events_per_minute, "capacity": it.policy.capacity,
                "said": said_json(&it.said),
            })
        });
        say_json(&json!({"topics": topics.collect::<Vec<_>>()}))?;
    } else if topics.is_empty() {
        say("nothing was said of any topic: all are enabled");
    } else {
        let rows = topics.into_iter().map(|it| {
            let state = if it.is_enabled { "enabled" } else { "disabled" };
            let backfill = if it.policy.takes_backfill {
                "on"
            } else {
                "off"
            };
            let most = |limit: u32| match limit {
                0 => "-".to_owned(),
                limit => limit.to_string(),
            };
            let Said { actor, reason, at } = it.said;
            let policy = it.policy;
            vec![
                it.topic,
                state.to_owned(),
                policy.priority.as_str().to_owned(),
                backfill.to_owned(),
                most(policy.events_per_minute),
                most(policy.capacity),
                time(at),
                actor,
                reason,
            ]
        });
        let columns = [
            "TOPIC", "STATE", "PRIORITY", "BACKFILL", "RATE", "CAPACITY", "SINCE", "BY", "REASON",
        ];
        say(table(&columns, rows));
    }
    Ok(ExitCode::SUCCESS)
}

async fn bans(platform: &Platform, json: bool) -> anyhow::Result<ExitCode> {
    let bans = rules::bans(&mut *connect(platform).await?).await?;
    if json {
        let bans = bans.iter().map(|it| {
            json!({
                "kind": if it.is_key { "key" } else { "address" }, "subject": it.subject,
                "until": it.until.map(time), "said": said_json(&it.said),
            })
        });
        say_json(&json!({"bans": bans.collect::<Vec<_>>()}))?;
    } else if bans.is_empty() {
        say("nobody is banned");
    } else {
        let rows = bans.into_iter().map(|it| {
            let until = it.until.map_or_else(|| "for good".to_owned(), time);
            let Said { actor, reason, at } = it.said;
            vec![it.subject, until, time(at), actor, reason]
        });
        say(table(&["SUBJECT", "UNTIL", "SINCE", "BY", "REASON"], rows));
    }
    Ok(ExitCode::SUCCESS)
}

fn limits(platform: &Platform, json: bool) -> anyhow::Result<ExitCode> {
    let limits = platform.relay_limits();
    if json {
        let limits = limits
            .iter()
            .map(|(name, value)| ((*name).to_owned(), json!(value)));
        say_json(&Value::Object(limits.collect()))?;
    } else {
        let rows = limits
            .iter()
            .map(|(name, value)| vec![(*name).to_owned(), value.clone()]);
        say(table(&["LIMIT", "VALUE"], rows));
    }
    Ok(ExitCode::SUCCESS)
}
