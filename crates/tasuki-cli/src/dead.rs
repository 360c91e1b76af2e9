//! `tasuki dlq`: one list over everything that will not be retried by itself. Rows that died in a
//! service's tables, and messages that the broker gave up.

use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tasuki::dlq::{Acted, Filter, Letter, LetterId, Letters, Page, State};
use tasuki_notification::{Aside, Redriven, SetAside};
use tasuki_service::service::Tables;
use time::OffsetDateTime;

use crate::args::{Dead, Dlq, Source, Which};
use crate::outbox::{actor, time};
use crate::output::{say, say_json, table};
use crate::platform::{self, Name, Platform};
use crate::sum::Sum;

/// How messages that the broker gave up are called as a source.
const BROKER: &str = "broker";
/// The most that a list shows of each kind.
const MOST: u32 = 200;
/// Entries of the broker's list that are read at a time.
const PAGE: u32 = 1000;
/// Letters that are looked up at a time.
const CHUNK: usize = 1000;
/// Why nothing was done about an id.
const UNKNOWN: &str = "there is no such dead letter, or it was closed long ago";
const STILL_OPEN: &str = "still open: it does not fit, or its row is not dead any more";

pub(crate) async fn run(source: &Source, command: &Dlq, json: bool) -> anyhow::Result<ExitCode> {
    let platform = platform::of_running(source)?;
    if let Dlq::List(dead) | Dlq::Redrive { dead, .. } | Dlq::Discard { dead, .. } = command {
        check(&platform, dead)?;
    }
    match command {
        Dlq::List(dead) => list(&platform, dead, json).await,
        Dlq::Show { id } => show(&platform, id, json).await,
        Dlq::Redrive { dead, which } => act(&platform, dead, which, None, json).await,
        Dlq::Discard {
            dead,
            which,
            reason,
        } => act(&platform, dead, which, Some(reason), json).await,
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

/// The services that are meant, with their letters.
async fn services(
    platform: &Platform,
    dead: &Dead,
) -> anyhow::Result<Vec<(Name, Tables, Letters)>> {
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

async fn list(platform: &Platform, dead: &Dead, json: bool) -> anyhow::Result<ExitCode> {
    let mut rows = Vec::new();
    if dead.source.as_deref() != Some(BROKER) {
        for (name, tables, letters) in services(platform, dead).await? {
            let mut connection = tables.database.workers.acquire().await?;
            let page = Page::first(MOST);
            let listed = letters.list(&mut connection, &filter(dead), &page).await?;
            rows.extend(
                listed
                    .letters
                    .iter()
                    .map(|letter| letter_json(name.as_str(), letter)),
            );
        }
    }
    if means_broker(dead) {
        let (aside, most) = (platform.aside().await?, usize::try_from(MOST)?);
        let entries = set_aside(&aside, true, most, |entry| fits(dead, entry)).await?;
        rows.extend(entries.iter().map(aside_json));
    }
    if json {
        say_json(&rows)?;
        return Ok(ExitCode::SUCCESS);
    }
    if rows.is_empty() {
        let all = Dead::default();
        say(if *dead == all {
            "nothing is dead"
        } else {
            "nothing that is dead fits"
        });
        return Ok(ExitCode::SUCCESS);
    }
    let columns = [
        "id",
        "service",
        "source",
        "kind",
        "failed_at",
        "attempts",
        "error",
    ];
    let header = ["ID", "SERVICE", "SOURCE", "KIND", "DIED", "TRIES", "ERROR"];
    let text = |row: &Value, column: &str| match row.get(column) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    };
    let rows = rows
        .iter()
        .map(|row| columns.map(|column| text(row, column)).to_vec());
    say(table(&header, rows));
    Ok(ExitCode::SUCCESS)
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

async fn act(
    platform: &Platform,
    dead: &Dead,
    which: &Which,
    discard: Option<&String>,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let letters: Vec<LetterId> = which.ids.iter().filter_map(|id| id.parse().ok()).collect();
    let asides: Vec<&String> = which.ids.iter().filter(|id| id.contains('@')).collect();
    if letters.len() + asides.len() < which.ids.len() {
        bail!("an id is a UUID, or stream@number@creation: `tasuki dlq list` shows them");
    }
    if which.preview {
        return preview(platform, dead, which, json).await;
    }
    let mut sum = Sum::default();
    if which.all {
        if dead.source.as_deref() != Some(BROKER) {
            for service in services(platform, dead).await? {
                let stuck = act_on_letters(&service, &filter(dead), discard, &mut sum).await?;
                if stuck > 0 {
                    let why = format!("{stuck} can't be put back");
                    sum.not(service.0.as_str(), &why);
                }
            }
        }
        if means_broker(dead) {
            let aside = platform.aside().await?;
            let wanted = |entry: &SetAside| fits(dead, entry);
            for entry in &set_aside(&aside, true, usize::MAX, wanted).await? {
                act_on_aside(&aside, entry, discard, &mut sum).await?;
            }
        }
    }
    if !letters.is_empty() {
        act_on_named_letters(platform, dead, letters, discard, &mut sum).await?;
    }
    if !asides.is_empty() {
        act_on_named_asides(platform, dead, &asides, discard, &mut sum).await?;
    }
    let what = done(discard).as_str();
    sum.report(what, what, json)
}

/// How what was acted on is afterwards.
fn done(discard: Option<&String>) -> State {
    discard.map_or(State::Redriven, |_reason| State::Discarded)
}

/// Says of something that was closed before whether that is what was asked for.
fn closed(sum: &mut Sum, id: &str, state: State, at: Option<OffsetDateTime>, wanted: State) {
    let at = at.map(time).unwrap_or_default();
    let why = format!("already {} at {at}", state.as_str());
    if state == wanted {
        sum.already(id, &why);
    } else {
        sum.not(id, &why);
    }
}

/// The letters of these ids, whatever has been done about them.
async fn known(
    (_, tables, letters): &(Name, Tables, Letters),
    ids: &[LetterId],
) -> anyhow::Result<Vec<Letter>> {
    let mut connection = tables.database.workers.acquire().await?;
    let mut known = Vec::with_capacity(ids.len());
    for chunk in ids.chunks(CHUNK) {
        let filter = Filter::ids(chunk.iter().copied());
        let page = Page::first(u32::try_from(chunk.len())?);
        known.extend(letters.list(&mut connection, &filter, &page).await?.letters);
    }
    Ok(known)
}

async fn act_on_named_letters(
    platform: &Platform,
    dead: &Dead,
    mut ids: Vec<LetterId>,
    discard: Option<&String>,
    sum: &mut Sum,
) -> anyhow::Result<()> {
    for service in services(platform, dead).await? {
        let before = known(&service, &ids).await?;
        ids.retain(|id| before.iter().all(|letter| letter.id != *id));
        let (open, over): (Vec<_>, Vec<_>) = before
            .into_iter()
            .partition(|letter| letter.state() == State::Open);
        for letter in over {
            let at = letter.discarded_at.or(letter.redriven_at);
            let id = letter.id.to_string();
            closed(sum, &id, letter.state(), at, done(discard));
        }
        if open.is_empty() {
            continue;
        }
        let open: Vec<LetterId> = open.iter().map(|letter| letter.id).collect();
        let mut filter = filter(dead);
        filter.ids = Some(open.clone());
        let _stuck = act_on_letters(&service, &filter, discard, sum).await?;
        for letter in known(&service, &open).await? {
            if letter.state() == State::Open {
                sum.not(letter.id, STILL_OPEN);
            }
        }
    }
    for id in ids {
        sum.not(id, UNKNOWN);
    }
    Ok(())
}

async fn act_on_named_asides(
    platform: &Platform,
    dead: &Dead,
    ids: &[&String],
    discard: Option<&String>,
    sum: &mut Sum,
) -> anyhow::Result<()> {
    let aside = platform.aside().await?;
    let named = |entry: &SetAside| ids.contains(&&entry.id());
    let entries = set_aside(&aside, false, ids.len(), named).await?;
    for id in ids {
        let Some(entry) = entries.iter().find(|entry| entry.id() == **id) else {
            sum.not(id, UNKNOWN);
            continue;
        };
        if entry.discarded_at.is_some() {
            closed(sum, id, State::Discarded, entry.discarded_at, done(discard));
        } else if entry.redriven_at.is_some() {
            closed(sum, id, State::Redriven, entry.redriven_at, done(discard));
        } else if fits(dead, entry) && means_broker(dead) {
            act_on_aside(&aside, entry, discard, sum).await?;
        } else {
            sum.not(id, STILL_OPEN);
        }
    }
    Ok(())
}

/// Acts on the open letters of a service that are meant; says how many could not be put back.
async fn act_on_letters(
    (name, tables, letters): &(Name, Tables, Letters),
    filter: &Filter,
    discard: Option<&String>,
    sum: &mut Sum,
) -> anyhow::Result<u64> {
    let source = filter.source.as_deref();
    if source.is_some_and(|wanted| !letters.sources().any(|it| it == wanted)) {
        return Ok(0);
    }
    let (pool, actor) = (&tables.database.workers, actor());
    let acted: Acted = match discard {
        None => letters.redrive_all(pool, filter, &actor, None).await,
        Some(reason) => letters.discard_all(pool, filter, &actor, reason).await,
    }
    .with_context(|| format!("the dead letters of {}", name.as_str()))?;
    sum.done += acted.letters;
    Ok(acted.stuck)
}

async fn act_on_aside(
    aside: &Aside,
    entry: &SetAside,
    discard: Option<&String>,
    sum: &mut Sum,
) -> anyhow::Result<()> {
    let (id, actor) = (entry.id(), actor());
    if let Some(reason) = discard {
        match aside.discard(entry, &actor, reason).await? {
            true => sum.done += 1,
            false => sum.already(id, "somebody else was faster"),
        }
        return Ok(());
    }
    match aside.redrive(entry, &actor).await {
        Ok(Redriven::Done) => sum.done += 1,
        Ok(Redriven::Failed(why)) => sum.not(id, &why),
        Ok(_) => sum.already(id, "somebody else was faster"),
        // It stays as it was, and the others are not to blame.
        Err(error) => sum.not(id, &tasuki::lease::told(&*error)),
    }
    Ok(())
}

async fn preview(
    platform: &Platform,
    dead: &Dead,
    which: &Which,
    json: bool,
) -> anyhow::Result<ExitCode> {
    if which.all {
        return list(platform, dead, json).await;
    }
    for id in &which.ids {
        show(platform, id, json).await?;
    }
    Ok(ExitCode::SUCCESS)
}
