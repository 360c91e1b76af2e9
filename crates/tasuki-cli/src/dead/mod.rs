//! `tasuki dlq`: one list over everything that will not be retried by itself. Rows that died in a
//! service's tables, and messages that the broker gave up.
//!
//! What a preview says is meant is what the same words without it act on: all of it is counted, also
//! what is too much to be shown.

mod act;
mod list;

use std::process::ExitCode;

use anyhow::{anyhow, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tasuki::dlq::{Filter, Letter, LetterId, Letters};
use tasuki_notification::{Aside, SetAside};
use tasuki_service::service::Tables;

use crate::args::{Dead, Dlq, Source};
use crate::outbox::time;
use crate::output::{say, say_json, table};
use crate::platform::{self, Name, Platform};

/// How messages that the broker gave up are called as a source.
const BROKER: &str = "broker";
/// Entries of the broker's list that are read at a time.
const PAGE: u32 = 1000;
/// What a list is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// To see what there is.
    List,
    /// To see what would be redriven.
    BeforeRedrive,
    /// To see what would be discarded.
    BeforeDiscard,
}

impl Asked {
    const fn before(discard: Option<&String>) -> Self {
        match discard {
            None => Self::BeforeRedrive,
            Some(_) => Self::BeforeDiscard,
        }
    }
}

pub(crate) async fn run(source: &Source, command: &Dlq, json: bool) -> anyhow::Result<ExitCode> {
    let platform = platform::of_running(source)?;
    if let Dlq::List(dead) | Dlq::Redrive { dead, .. } | Dlq::Discard { dead, .. } = command {
        check(&platform, dead)?;
    }
    match command {
        Dlq::List(dead) => list::all(&platform, dead, Asked::List, json).await,
        Dlq::Show { id } => show(&platform, id, json).await,
        Dlq::Redrive { dead, which } => act::act(&platform, dead, which, None, json).await,
        Dlq::Discard {
            dead,
            which,
            reason,
        } => act::act(&platform, dead, which, Some(reason), json).await,
    }
}

/// Refuses a source that there is not: a list without it would say that nothing is dead.
fn check(platform: &Platform, dead: &Dead) -> anyhow::Result<()> {
    let Some(wanted) = &dead.source else {
        return Ok(());
    };
    let mut known = vec![BROKER];
    for name in Name::ALL {
        if let Some((_, letters)) = platform.letters_of(name)? {
            known.extend(letters.sources());
        }
    }
    known.sort_unstable();
    known.dedup();
    if !known.contains(&wanted.as_str()) {
        let known = known.join(", ");
        bail!("there is no source of dead letters called {wanted:?}: it is one of {known}");
    }
    Ok(())
}

/// A service that has letters.
type Service = (Name, Tables, Letters);

/// The services that are meant, with their letters.
async fn services(platform: &Platform, dead: &Dead) -> anyhow::Result<Vec<Service>> {
    let mut found = Vec::new();
    for name in Name::ALL {
        if dead.service.is_some_and(|wanted| wanted != name) {
            continue;
        }
        if let Some((tables, letters)) = platform.letters_of(name)? {
            tables
                .database
                .wait(platform.common.database.connect_timeout)
                .await?;
            found.push((name, tables, letters));
        }
    }
    Ok(found)
}

/// Whether messages that the broker gave up are meant, too.
fn means_broker(dead: &Dead) -> bool {
    dead.service
        .is_none_or(|service| service == Name::Notification)
        && dead.source.as_deref().is_none_or(|source| source == BROKER)
}

fn filter(dead: &Dead) -> Filter {
    Filter {
        source: dead.source.clone(),
        kind: dead.kind.clone(),
        error: dead.error.clone(),
        ..Filter::default()
    }
}

fn fits(dead: &Dead, entry: &SetAside) -> bool {
    let error = entry.reason.as_deref().unwrap_or_default().to_lowercase();
    dead.kind.as_ref().is_none_or(|kind| *kind == entry.kind)
        && dead
            .error
            .as_ref()
            .is_none_or(|part| error.contains(&part.to_lowercase()))
}

/// The entries of the broker's list that are `wanted`, the latest first; as many as there are, or
/// `most`.
async fn set_aside(
    aside: &Aside,
    open_only: bool,
    most: usize,
    wanted: impl Fn(&SetAside) -> bool,
) -> anyhow::Result<Vec<SetAside>> {
    let mut found = Vec::new();
    let mut last: Option<SetAside> = None;
    while found.len() < most {
        let page = aside.page(open_only, last.as_ref(), PAGE).await?;
        let Some(end) = page.last() else { break };
        last = Some(end.clone());
        found.extend(page.into_iter().filter(|entry| wanted(entry)));
    }
    found.truncate(most);
    Ok(found)
}

fn letter_json(service: &str, letter: &Letter) -> Value {
    json!({
        "id": letter.id, "service": service, "source": letter.source,
        "source_id": letter.source_id, "queue": letter.queue, "kind": letter.kind,
        "failed_at": time(letter.failed_at), "attempts": letter.attempts, "error": letter.error,
        "redriven_at": letter.redriven_at.map(time),
        "discarded_at": letter.discarded_at.map(time),
    })
}

fn aside_json(entry: &SetAside) -> Value {
    json!({
        "id": entry.id(), "service": "notification", "source": BROKER,
        "source_id": entry.message_id, "queue": entry.consumer, "kind": entry.kind,
        "failed_at": time(entry.created_at), "attempts": entry.deliveries,
        "error": entry.reason, "redriven_at": entry.redriven_at.map(time),
        "discarded_at": entry.discarded_at.map(time), "discard_reason": entry.discard_reason,
        "closed_by": entry.closed_by, "last_error": entry.last_error,
        "stream_created_at": time(entry.stream_created_at),
    })
}

async fn show(platform: &Platform, id: &str, json: bool) -> anyhow::Result<ExitCode> {
    let shown = match id.parse::<LetterId>() {
        Ok(id) => show_letter(platform, id).await?,
        Err(_not_a_letter) => {
            let aside = platform.aside().await?;
            let entries = set_aside(&aside, false, 1, |entry| entry.id() == id).await?;
            match entries.first() {
                Some(entry) => Some(show_aside(&aside, entry).await?),
                None => None,
            }
        }
    };
    let Some(shown) = shown else {
        bail!("there is no dead letter {id}: `tasuki dlq list` shows them");
    };
    if json {
        return say_json(&shown).map(|()| ExitCode::SUCCESS);
    }
    let rows = shown
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, value)| {
            let text = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            vec![name.clone(), text]
        });
    say(table(&["", ""], rows));
    Ok(ExitCode::SUCCESS)
}

async fn show_aside(aside: &Aside, entry: &SetAside) -> anyhow::Result<Value> {
    let mut shown = aside_json(entry);
    let message = aside.payload(entry).await.map_err(|why| anyhow!(why))?;
    if let Some(fields) = shown.as_object_mut() {
        let payload = message.as_deref().map(readable);
        fields.insert("payload".to_owned(), json!(payload));
    }
    Ok(shown)
}

/// What is text as it is, anything else in base64.
fn readable(payload: &[u8]) -> String {
    std::str::from_utf8(payload).map_or_else(|_binary| STANDARD.encode(payload), str::to_owned)
}

async fn show_letter(platform: &Platform, id: LetterId) -> anyhow::Result<Option<Value>> {
    for (name, tables, letters) in services(platform, &Dead::default()).await? {
        let mut connection = tables.database.workers.acquire().await?;
        let Some(story) = letters.show(&mut connection, id).await? else {
            continue;
        };
        let mut shown = letter_json(name.as_str(), &story.letter);
        let trail: Vec<_> = story
            .trail
            .iter()
            .map(|it| {
                format!(
                    "{} {} by {}",
                    time(it.acted_at),
                    it.action.as_str(),
                    it.actor
                )
            })
            .collect();
        if let Some(fields) = shown.as_object_mut() {
            let payload = readable(&story.letter.payload);
            fields.insert("payload".to_owned(), json!(payload));
            fields.insert("trail".to_owned(), json!(trail));
            fields.insert("traceparent".to_owned(), json!(story.letter.traceparent));
        }
        return Ok(Some(shown));
    }
    Ok(None)
}
