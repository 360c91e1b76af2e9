//! `tasuki dlq`: one list over everything that will not be retried by itself. Rows that died in a
//! service's tables, and messages that the broker gave up.

use std::process::ExitCode;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use tasuki::dlq::{Acted, Filter, Letter, LetterId, Letters, Page};
use tasuki_notification::{Aside, Redriven, SetAside};
use tasuki_service::service::Tables;

use crate::args::{Dead, Dlq, Source, Which};
use crate::outbox::{actor, time};
use crate::output::{say, say_json, table};
use crate::platform::{self, Name, Platform};

/// How messages that the broker gave up are called as a source.
const BROKER: &str = "broker";
/// The most that a list shows of each kind.
const MOST: u32 = 200;
/// Entries of the broker's list that are read at a time.
const PAGE: u32 = 1000;

pub(crate) async fn run(source: &Source, command: &Dlq, json: bool) -> anyhow::Result<ExitCode> {
    let platform = platform::of_running(source)?;
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
        say("nothing is dead");
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
        "discarded_at": entry.discarded_at.map(time), "last_error": entry.last_error,
        "stream_created_at": time(entry.stream_created_at),
    })
}

async fn show(platform: &Platform, id: &str, json: bool) -> anyhow::Result<ExitCode> {
    let shown = match id.parse::<LetterId>() {
        Ok(id) => show_letter(platform, id).await?,
        Err(_not_a_letter) => {
            let aside = platform.aside().await?;
            let entries = set_aside(&aside, false, 1, |entry| entry.id() == id).await?;
            entries.first().map(aside_json)
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
            let payload = String::from_utf8_lossy(&story.letter.payload).into_owned();
            fields.insert("payload".to_owned(), json!(payload));
            fields.insert("trail".to_owned(), json!(trail));
            fields.insert("traceparent".to_owned(), json!(story.letter.traceparent));
        }
        return Ok(Some(shown));
    }
    Ok(None)
}

/// What a redrive or a discard came to.
#[derive(Default)]
struct Sum {
    done: u64,
    not: Vec<String>,
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
    if which.all || !letters.is_empty() {
        let mut filter = filter(dead);
        if !which.all {
            filter.ids = Some(letters.clone());
        }
        act_on_letters(platform, dead, &filter, discard, &mut sum).await?;
    }
    if (which.all && means_broker(dead)) || !asides.is_empty() {
        let aside = platform.aside().await?;
        let named = |entry: &SetAside| asides.contains(&&entry.id());
        let wanted = |entry: &SetAside| fits(dead, entry) && (which.all || named(entry));
        let entries = set_aside(&aside, true, usize::MAX, wanted).await?;
        for entry in &entries {
            act_on_aside(&aside, entry, discard, &mut sum).await?;
        }
    }
    report(&sum, discard.is_some(), json)?;
    let wanted = u64::try_from(which.ids.len()).unwrap_or(u64::MAX);
    Ok(ExitCode::from(u8::from(
        !sum.not.is_empty() || sum.done < wanted,
    )))
}

async fn act_on_letters(
    platform: &Platform,
    dead: &Dead,
    filter: &Filter,
    discard: Option<&String>,
    sum: &mut Sum,
) -> anyhow::Result<()> {
    if filter.source.as_deref() == Some(BROKER) {
        return Ok(());
    }
    for (name, tables, letters) in services(platform, dead).await? {
        let mut filter = filter.clone();
        let source = filter.source.as_deref();
        if source.is_some_and(|wanted| !letters.sources().any(|it| it == wanted)) {
            continue;
        }
        if filter.ids.is_some() {
            filter.state = tasuki::dlq::State::Open;
        }
        let (pool, actor) = (&tables.database.workers, actor());
        let acted: Acted = match discard {
            None => letters.redrive_all(pool, &filter, &actor, None).await,
            Some(reason) => letters.discard_all(pool, &filter, &actor, reason).await,
        }
        .with_context(|| format!("the dead letters of {}", name.as_str()))?;
        sum.done += acted.letters;
        if acted.stuck > 0 {
            sum.not.push(format!(
                "{} of {} can't be put back",
                acted.stuck,
                name.as_str()
            ));
        }
    }
    Ok(())
}

async fn act_on_aside(
    aside: &Aside,
    entry: &SetAside,
    discard: Option<&String>,
    sum: &mut Sum,
) -> anyhow::Result<()> {
    let (id, actor) = (entry.id(), actor());
    if let Some(reason) = discard {
        if aside.discard(entry, &actor, reason).await? {
            sum.done += 1;
        }
        return Ok(());
    }
    match aside.redrive(entry, &actor).await {
        Ok(Redriven::Done) => sum.done += 1,
        Ok(Redriven::Failed(why)) => sum.not.push(format!("{id}: {why}")),
        Ok(_) => sum.not.push(format!("{id}: not open")),
        // It stays as it was, and the others are not to blame.
        Err(error) => sum
            .not
            .push(format!("{id}: {}", tasuki::lease::told(&*error))),
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

fn report(sum: &Sum, discarded: bool, json: bool) -> anyhow::Result<()> {
    let what = if discarded { "discarded" } else { "redriven" };
    if json {
        return say_json(&json!({ what: sum.done, "not": sum.not }));
    }
    say(format_args!("{} {what}", sum.done));
    for problem in &sum.not {
        say(problem);
    }
    Ok(())
}
