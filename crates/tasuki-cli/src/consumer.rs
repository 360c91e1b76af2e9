//! `tasuki consumer`: who follows a sequenced log, how far behind, and how to set one back or have its
//! store made anew.

use std::process::ExitCode;

use anyhow::bail;
use serde_json::{Value, json};
use sqlx::Connection as _;
use sqlx::pool::PoolConnection;
use tasuki::seqlog::{Consumer, Consumers, Story, Trouble};

use crate::args::{self, Source};
use crate::outbox::{actor, time};
use crate::output::{say, say_json, table};
use crate::platform;

/// The consumers of one service.
struct Desk {
    consumers: Consumers,
    connection: PoolConnection<sqlx::Postgres>,
}

pub(crate) async fn run(
    source: &Source,
    args: &args::Consumers,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let platform = platform::of_running(source)?;
    let tables = platform.conducting(args.service)?;
    let limit = platform.common.database.connect_timeout;
    tables.database.wait(limit).await?;
    let desk = Desk {
        consumers: Consumers::new(&tables.schema),
        connection: tables.database.workers.acquire().await?,
    };
    match &args.command {
        args::Consumer::List => desk.list(json).await,
        args::Consumer::Show { name } => desk.show(name, json).await,
        args::Consumer::Replay {
            name,
            to,
            preview: true,
            ..
        } => desk.preview(name, *to, json).await,
        args::Consumer::Replay { name, to, why, .. } => {
            desk.replay(name, *to, &why.reason, json).await
        }
        args::Consumer::Rebuild { name, why } => desk.rebuild(name, &why.reason, json).await,
    }
}

impl Desk {
    async fn list(mut self, json: bool) -> anyhow::Result<ExitCode> {
        let found = self.consumers.list(&mut self.connection).await?;
        if json {
            let consumers: Vec<_> = found.iter().map(consumer_json).collect();
            say_json(&json!({ "consumers": consumers }))?;
        } else if found.is_empty() {
            say("nobody follows a log here");
        } else {
            let rows = found.iter().map(row);
            let header = ["NAME", "LOG", "STATE", "AT", "BEHIND", "MOVED", "ACTIVE AT"];
            say(table(&header, rows));
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn find(&mut self, name: &str) -> anyhow::Result<Story> {
        match self.consumers.show(&mut self.connection, name).await? {
            Some(story) => Ok(story),
            None => bail!("there is no consumer `{name}`: `tasuki consumer list` shows them"),
        }
    }

    async fn show(mut self, name: &str, json: bool) -> anyhow::Result<ExitCode> {
        let story = self.find(name).await?;
        if json {
            say_json(&story_json(&story))?;
            return Ok(ExitCode::SUCCESS);
        }
        let header = ["NAME", "LOG", "STATE", "AT", "BEHIND", "MOVED", "ACTIVE AT"];
        say(table(&header, [row(&story.consumer)]));
        say(format_args!(
            "\nits log ends at {}; it can be moved to {} at the lowest",
            story.consumer.head_seq, story.consumer.floor_seq
        ));
        if let Some(trouble) = &story.consumer.trouble {
            say(format_args!("\n{}", told(trouble)));
        }
        if !story.set_aside.is_empty() {
            let rows = story.set_aside.iter().map(|it| {
                vec![
                    it.seq.to_string(),
                    it.status.clone(),
                    it.attempts.to_string(),
                    it.entry.clone(),
                ]
            });
            say(format_args!(
                "\n{}",
                table(&["SET ASIDE", "STATUS", "TRIES", "ROW"], rows)
            ));
        }
        if !story.trail.is_empty() {
            let rows = story.trail.iter().map(|it| {
                let to = it.to_seq.map(|seq| seq.to_string()).unwrap_or_default();
                vec![
                    it.action.clone(),
                    it.from_seq.to_string(),
                    to,
                    time(it.acted_at),
                    it.actor.clone(),
                    it.reason.clone(),
                ]
            });
            say(format_args!(
                "\n{}",
                table(&["ACTION", "FROM", "TO", "AT", "BY", "REASON"], rows)
            ));
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn preview(mut self, name: &str, to: i64, json: bool) -> anyhow::Result<ExitCode> {
        let consumer = self.find(name).await?.consumer;
        let (floor, head) = (consumer.floor_seq, consumer.head_seq);
        if to < floor {
            bail!(
                "rows up to {floor} may be gone: {name} can be set back to {floor}, and no further"
            );
        }
        if to > head {
            bail!("the log ends at {head}: {name} can't be moved beyond that");
        }
        let again = (consumer.last_seq - to).max(0);
        let skipped = (to - consumer.last_seq).max(0);
        if json {
            say_json(&json!({
                "name": name, "from_seq": consumer.last_seq, "to_seq": to, "again": again,
                "skipped": skipped,
            }))?;
        } else if skipped > 0 {
            say(format_args!(
                "{name} would skip {skipped} rows that it has not handled"
            ));
        } else {
            say(format_args!("{name} would handle {again} rows again"));
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn replay(
        mut self,
        name: &str,
        to: i64,
        reason: &str,
        json: bool,
    ) -> anyhow::Result<ExitCode> {
        let mut tx = self.connection.begin().await?;
        let moved = self
            .consumers
            .replay(&mut tx, name, to, &actor(), reason)
            .await?;
        tx.commit().await?;
        if json {
            say_json(&consumer_json(&moved))?;
        } else {
            say(format_args!("{name} goes on after {to}"));
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn rebuild(mut self, name: &str, reason: &str, json: bool) -> anyhow::Result<ExitCode> {
        let mut tx = self.connection.begin().await?;
        let moved = self
            .consumers
            .rebuild(&mut tx, name, &actor(), reason)
            .await?;
        tx.commit().await?;
        if json {
            say_json(&consumer_json(&moved))?;
        } else {
            say(format_args!(
                "{name} makes its store anew: `tasuki consumer list` says when it follows again"
            ));
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn consumer_json(it: &Consumer) -> Value {
    json!({
        "name": it.name, "log": it.log, "state": it.state.as_str(), "last_seq": it.last_seq,
        "head_seq": it.head_seq, "floor_seq": it.floor_seq, "backlog": it.backlog(),
        "updated_at": time(it.updated_at), "owner": it.owner,
        "trouble": it.trouble.as_ref().map(|trouble| json!({
            "seq": trouble.seq, "attempts": trouble.attempts,
            "retry_at": trouble.retry_at.map(time), "error": trouble.error,
        })),
    })
}

fn story_json(story: &Story) -> Value {
    let mut shown = consumer_json(&story.consumer);
    let set_aside = story.set_aside.iter().map(|it| {
        let entry: Value = serde_json::from_str(&it.entry).unwrap_or_default();
        json!({
            "id": it.id, "seq": it.seq, "entry": entry, "status": it.status,
            "attempts": it.attempts,
        })
    });
    let trail = story.trail.iter().map(|it| {
        json!({
            "action": it.action, "from_seq": it.from_seq, "to_seq": it.to_seq,
            "actor": it.actor, "reason": it.reason, "at": time(it.acted_at),
        })
    });
    if let Some(fields) = shown.as_object_mut() {
        fields.insert("set_aside".to_owned(), set_aside.collect());
        fields.insert("trail".to_owned(), trail.collect());
    }
    shown
}

fn told(trouble: &Trouble) -> String {
    let error = trouble
        .error
        .as_deref()
        .unwrap_or("it was begun and has not ended");
    match trouble.seq {
        Some(seq) => format!("row {seq} was tried {} times: {error}", trouble.attempts),
        None => error.to_owned(),
    }
}

fn row(it: &Consumer) -> Vec<String> {
    vec![
        it.name.clone(),
        it.log.clone(),
        it.state.as_str().to_owned(),
        it.last_seq.to_string(),
        it.backlog().to_string(),
        time(it.updated_at),
        it.owner.clone().unwrap_or_default(),
    ]
}
