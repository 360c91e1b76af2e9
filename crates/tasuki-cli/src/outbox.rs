//! `tasuki outbox`: what waits, what is dead, what the broker lost.

use std::process::ExitCode;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use tasuki::admin::{Admin, Found, OutboxStats, Place};
use tasuki::dlq::{Filter, LetterId};
use tasuki_contract::timestamp;
use tasuki_service::service::Tables;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::args::{Outbox, Source};
use crate::output::{say, say_json, table};
use crate::platform::{self, Platform, Publisher};
use crate::sum::Sum;

/// The table of events that wait or are dead.
const EVENTS: &str = "outbox_events";

pub(crate) async fn run(source: &Source, command: &Outbox, json: bool) -> anyhow::Result<ExitCode> {
    let platform = platform::of_running(source)?;
    match command {
        Outbox::List {
            waiting: true,
            limit,
        } => waiting(&platform, *limit, json).await,
        Outbox::List { .. } => list(&platform, json).await,
        Outbox::Show { event } => show(&platform, *event, json).await,
        Outbox::Retry { events, .. } => retry(&platform, events, json).await,
        Outbox::Cleanup { older_than } => cleanup(&platform, *older_than, json).await,
        Outbox::Reconcile => reconcile(&platform, json).await,
    }
}

/// Removes what was published and is old, service by service.
async fn cleanup(
    platform: &Platform,
    older_than: std::time::Duration,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let mut told = Vec::new();
    for publisher in Publisher::ALL {
        let service = publisher.as_str();
        let (tables, upkeep) = platform.upkeep(publisher)?;
        reached(platform, &tables).await?;
        let cleaned = upkeep.cleanup("outbox_published", older_than).await;
        let cleaned = cleaned.with_context(|| format!("the outbox of {service}"))?;
        let (partitions, rows) = (cleaned.partitions, cleaned.rows);
        if json {
            told.push(json!({
                "service": service, "partitions": partitions, "rows": rows,
                "postponed": cleaned.postponed,
            }));
            continue;
        }
        say(format_args!(
            "{service}: removed {rows} rows and {partitions} whole partitions"
        ));
        if cleaned.postponed {
            say(format_args!(
                "{service}: some are in use at the moment: ask again later"
            ));
        }
    }
    if json {
        say_json(&told)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Sends again what the broker lost, service by service.
async fn reconcile(platform: &Platform, json: bool) -> anyhow::Result<ExitCode> {
    let mut told = Vec::new();
    for publisher in Publisher::ALL {
        let service = publisher.as_str();
        let sent = platform.reconcile(publisher).await;
        let sent = sent.with_context(|| format!("the outbox of {service}"))?;
        if json {
            told.push(json!({ "service": service, "sent_again": sent }));
        } else {
            say(format_args!(
                "{service}: the broker had lost {sent} events; they wait to be published again"
            ));
        }
    }
    if json {
        say_json(&told)?;
    } else {
        say("what running services have found by themselves is not counted");
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits until the database of these tables answers.
async fn reached(platform: &Platform, tables: &Tables) -> anyhow::Result<()> {
    let patience = platform.common.database.connect_timeout;
    Ok(tables.database.wait(patience).await?)
}

async fn list(platform: &Platform, json: bool) -> anyhow::Result<ExitCode> {
    let mut rows = Vec::new();
    for publisher in Publisher::ALL {
        let tables = platform.tables_of(publisher.name())?;
        reached(platform, &tables).await?;
        let mut connection = tables.database.workers.acquire().await?;
        let stats = Admin::new(&tables.schema).outbox(&mut connection).await?;
        rows.push((publisher.as_str(), stats));
    }
    if json {
        let rows: Vec<_> = rows
            .iter()
            .map(|(name, stats)| stats_json(name, stats))
            .collect();
        say_json(&rows)?;
        return Ok(ExitCode::SUCCESS);
    }
    let header = [
        "SERVICE",
        "OLDEST",
        "PENDING",
        "IN FLIGHT",
        "DEAD",
        "LAST PUBLISHED",
    ];
    let rows = rows.into_iter().map(|(name, stats)| {
        let oldest = stats.oldest_undelivered;
        let oldest = oldest.map(|age| humantime::format_duration(whole(age)).to_string());
        vec![
            name.to_owned(),
            oldest.unwrap_or_else(|| "-".to_owned()),
            stats.pending.rows.to_string(),
            stats.in_flight.to_string(),
            stats.failed.to_string(),
            stats
                .published_last_at
                .map(time)
                .unwrap_or_else(|| "never".to_owned()),
        ]
    });
    say(table(&header, rows));
    Ok(ExitCode::SUCCESS)
}

/// The events that wait, one by one.
async fn waiting(platform: &Platform, limit: u32, json: bool) -> anyhow::Result<ExitCode> {
    let mut rows = Vec::new();
    for publisher in Publisher::ALL {
        let tables = platform.tables_of(publisher.name())?;
        reached(platform, &tables).await?;
        let mut connection = tables.database.workers.acquire().await?;
        let admin = Admin::new(&tables.schema);
        let waiting = admin.waiting(&mut connection, limit).await?;
        rows.extend(waiting.into_iter().map(|found| (publisher.as_str(), found)));
    }
    if json {
        let rows = rows.iter().map(|(service, found)| {
            let (place, detail) = place(&found.place);
            found_json(service, found, place, &detail)
        });
        say_json(&rows.collect::<Vec<_>>())?;
        return Ok(ExitCode::SUCCESS);
    }
    if rows.is_empty() {
        say("nothing waits");
        return Ok(ExitCode::SUCCESS);
    }
    let header = [
        "EVENT",
        "SERVICE",
        "TYPE",
        "ABOUT",
        "ENQUEUED",
        "FAILED",
        "WHERE",
        "LAST ERROR",
    ];
    let rows = rows.into_iter().map(|(service, found)| {
        let (place, detail) = place(&found.place);
        vec![
            found.id.to_string(),
            service.to_owned(),
            found.kind.unwrap_or_default(),
            found.queue.unwrap_or_default(),
            found.created_at.map(time).unwrap_or_default(),
            found.attempts.unwrap_or(0).to_string(),
            format!("{place} {detail}"),
            found.last_error.unwrap_or_default(),
        ]
    });
    say(table(&header, rows));
    Ok(ExitCode::SUCCESS)
}

fn stats_json(name: &str, stats: &OutboxStats) -> Value {
    json!({
        "service": name,
        "oldest_undelivered_seconds": stats.oldest_undelivered.map(|age| age.as_secs_f64()),
        "pending": stats.pending.rows,
        "due": stats.due,
        "in_flight": stats.in_flight,
        "expired": stats.expired,
        "dead": stats.failed,
        "enqueued": stats.enqueued,
        "enqueued_last_at": stats.enqueued_last_at.map(time),
        "published_last_at": stats.published_last_at.map(time),
    })
}

async fn show(platform: &Platform, event: Uuid, json: bool) -> anyhow::Result<ExitCode> {
    for publisher in Publisher::ALL {
        let tables = platform.tables_of(publisher.name())?;
        reached(platform, &tables).await?;
        let mut connection = tables.database.workers.acquire().await?;
        let found = Admin::new(&tables.schema)
            .event(&mut connection, event)
            .await?;
        let Some(found) = found else { continue };
        let (place, detail) = place(&found.place);
        if json {
            say_json(&found_json(publisher.as_str(), &found, place, &detail))?;
        } else {
            let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
            let rows = [
                ("event", event.to_string()),
                ("service", publisher.as_str().to_owned()),
                ("type", text(&found.kind)),
                ("about", text(&found.queue)),
                ("enqueued", found.created_at.map(time).unwrap_or_default()),
                ("failed attempts", found.attempts.unwrap_or(0).to_string()),
                ("last error", text(&found.last_error)),
                ("where", format!("{place} {detail}")),
            ];
            let rows = rows.map(|(name, value)| vec![name.to_owned(), value]);
            say(table(&["", ""], rows));
        }
        return Ok(ExitCode::SUCCESS);
    }
    bail!(
        "no outbox knows event {event}: it was never enqueued, or published longer ago than published events are kept"
    );
}

fn found_json(service: &str, found: &Found, place: &str, detail: &str) -> Value {
    json!({
        "event_id": found.id, "service": service, "type": found.kind, "about": found.queue,
        "enqueued_at": found.created_at.map(time), "failed_attempts": found.attempts,
        "last_error": found.last_error, "place": place, "detail": detail,
    })
}

/// Where an event is, in one word and in more.
pub(crate) fn place(place: &Place) -> (&'static str, String) {
    match place {
        Place::Waiting { due_at } => ("waiting", format!("due {}", time(*due_at))),
        Place::Claimed { by, until, .. } => {
            let by = by.clone().unwrap_or_default();
            (
                "claimed",
                format!("by {by} until {}", until.map(time).unwrap_or_default()),
            )
        }
        Place::Published {
            at,
            stream,
            stream_seq,
            ..
        } => (
            "published",
            format!("at {} as {stream_seq} of {stream}", time(*at)),
        ),
        Place::Finished { at } => ("finished", format!("at {}", time(*at))),
        Place::Dead { letter } => {
            let letter = letter.map(|id| id.to_string()).unwrap_or_default();
            ("dead", format!("letter {letter}"))
        }
        Place::Discarded { at, by, .. } => ("discarded", format!("at {} by {by}", time(*at))),
        _ => ("elsewhere", String::new()),
    }
}

async fn retry(platform: &Platform, events: &[Uuid], json: bool) -> anyhow::Result<ExitCode> {
    let mut sum = Sum::default();
    let mut unknown = events.to_vec();
    for publisher in Publisher::ALL {
        let Some((tables, letters)) = platform.letters_of(publisher.name())? else {
            continue;
        };
        reached(platform, &tables).await?;
        let mut filter = Filter {
            source: Some(EVENTS.to_owned()),
            ..Filter::default()
        };
        if !events.is_empty() {
            filter.ids = Some(letters_of_events(&tables, &mut unknown, &mut sum).await?);
        }
        let pool = &tables.database.workers;
        let acted = letters.redrive_all(pool, &filter, &actor(), None).await?;
        sum.done += acted.letters;
    }
    for event in unknown {
        let why = "never enqueued, or published longer ago than published events are kept";
        sum.not(event, why);
    }
    sum.report("retried", "dead events will be sent again", json)
}

/// The letters of those events that are dead here; says of the others that are known here where
/// they are. What is left in `events` is not known here.
async fn letters_of_events(
    tables: &Tables,
    events: &mut Vec<Uuid>,
    sum: &mut Sum,
) -> anyhow::Result<Vec<LetterId>> {
    let mut connection = tables.database.workers.acquire().await?;
    let admin = Admin::new(&tables.schema);
    let mut letters = Vec::new();
    for event in std::mem::take(events) {
        let Some(found) = admin.event(&mut connection, event).await? else {
            events.push(event);
            continue;
        };
        let (word, detail) = place(&found.place);
        let why = format!("{word} {detail}");
        match found.place {
            Place::Dead {
                letter: Some(letter),
            } => letters.push(letter),
            Place::Dead { .. } | Place::Discarded { .. } => sum.not(event, &why),
            _ => sum.already(event, &why),
        }
    }
    Ok(letters)
}

/// Who acts: the person at this terminal.
pub(crate) fn actor() -> String {
    let user = std::env::var_os("USER").and_then(|user| user.into_string().ok());
    let user = user.filter(|user| !user.is_empty());
    format!("cli:{}", user.unwrap_or_else(|| "operator".to_owned()))
}

pub(crate) fn time(at: OffsetDateTime) -> String {
    timestamp::format(at).unwrap_or_default()
}

/// Fractions of a second are of no use to a person who looks at ages.
pub(crate) fn whole(age: std::time::Duration) -> std::time::Duration {
    std::time::Duration::from_secs(age.as_secs())
}
