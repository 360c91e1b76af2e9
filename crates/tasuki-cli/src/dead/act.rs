//! What is done about dead letters, and what would be done about those that somebody names.

use std::process::ExitCode;

use anyhow::{Context, bail};
use serde_json::Value;
use tasuki::dlq::{Acted, Filter, Letter, LetterId, Page, State};
use tasuki_notification::{Aside, Redriven, SetAside};
use time::OffsetDateTime;

use super::{
    Asked, BROKER, Service, aside_json, filter, fits, letter_json, list, means_broker, services,
    set_aside,
};
use crate::args::{Dead, Which};
use crate::outbox::{actor, time};
use crate::platform::Platform;
use crate::sum::Sum;

/// Letters that are looked up at a time.
const CHUNK: usize = 1000;
/// Why nothing was done about an id.
const UNKNOWN: &str = "there is no such dead letter, or it was closed long ago";
const STILL_OPEN: &str = "still open: it does not fit, or its row is not dead any more";
const DOES_NOT_FIT: &str = "it does not fit";
const STUCK: &str = "its row is not dead any more: only discarding ends it";

pub(super) async fn act(
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
    let asked = Asked::before(discard);
    match (which.preview, which.all) {
        (true, true) => return list::all(platform, dead, asked, json).await,
        (true, false) => return preview(platform, dead, letters, &asides, asked, json).await,
        (false, _) => {}
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

/// The letters of these ids that `filter` means.
async fn looked_up(
    (_, tables, letters): &Service,
    filter: &Filter,
    ids: &[LetterId],
) -> anyhow::Result<Vec<Letter>> {
    let mut connection = tables.database.workers.acquire().await?;
    let mut found = Vec::with_capacity(ids.len());
    for chunk in ids.chunks(CHUNK) {
        let filter = Filter {
            ids: Some(chunk.to_vec()),
            ..filter.clone()
        };
        let page = Page::first(u32::try_from(chunk.len())?);
        found.extend(letters.list(&mut connection, &filter, &page).await?.letters);
    }
    Ok(found)
}

/// The letters of these ids, whatever has been done about them.
async fn known(service: &Service, ids: &[LetterId]) -> anyhow::Result<Vec<Letter>> {
    looked_up(service, &Filter::ids([]), ids).await
}

/// The open ones of these ids, which are taken out of `ids` as all are that are known here; says of the
/// others what was done about them.
async fn open(
    service: &Service,
    ids: &mut Vec<LetterId>,
    wanted: State,
    sum: &mut Sum,
) -> anyhow::Result<Vec<LetterId>> {
    let known = known(service, ids).await?;
    ids.retain(|id| known.iter().all(|letter| letter.id != *id));
    let (open, over): (Vec<_>, Vec<_>) = known
        .into_iter()
        .partition(|letter| letter.state() == State::Open);
    for letter in over {
        let at = letter.discarded_at.or(letter.redriven_at);
        let id = letter.id.to_string();
        closed(sum, &id, letter.state(), at, wanted);
    }
    Ok(open.iter().map(|letter| letter.id).collect())
}

async fn act_on_named_letters(
    platform: &Platform,
    dead: &Dead,
    mut ids: Vec<LetterId>,
    discard: Option<&String>,
    sum: &mut Sum,
) -> anyhow::Result<()> {
    for service in services(platform, dead).await? {
        let open = open(&service, &mut ids, done(discard), sum).await?;
        if open.is_empty() {
            continue;
        }
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
    for entry in open_asides(&aside, dead, ids, done(discard), sum).await? {
        act_on_aside(&aside, &entry, discard, sum).await?;
    }
    Ok(())
}

/// The open entries of these ids that fit; says of the others why nothing is done about them.
async fn open_asides(
    aside: &Aside,
    dead: &Dead,
    ids: &[&String],
    wanted: State,
    sum: &mut Sum,
) -> anyhow::Result<Vec<SetAside>> {
    let named = |entry: &SetAside| ids.contains(&&entry.id());
    let entries = set_aside(aside, false, ids.len(), named).await?;
    let mut open = Vec::new();
    for id in ids {
        let Some(entry) = entries.iter().find(|entry| entry.id() == **id) else {
            sum.not(id, UNKNOWN);
            continue;
        };
        if entry.discarded_at.is_some() {
            closed(sum, id, State::Discarded, entry.discarded_at, wanted);
        } else if entry.redriven_at.is_some() {
            closed(sum, id, State::Redriven, entry.redriven_at, wanted);
        } else if fits(dead, entry) && means_broker(dead) {
            open.push(entry.clone());
        } else {
            sum.not(id, DOES_NOT_FIT);
        }
    }
    Ok(open)
}

/// Acts on the open letters of a service that are meant; says how many could not be put back.
async fn act_on_letters(
    (name, tables, letters): &Service,
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

/// Says of what was named which of it is meant, and why the rest is not.
async fn preview(
    platform: &Platform,
    dead: &Dead,
    mut ids: Vec<LetterId>,
    asides: &[&String],
    asked: Asked,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let wanted = match asked {
        Asked::BeforeDiscard => State::Discarded,
        Asked::BeforeRedrive | Asked::List => State::Redriven,
    };
    let (mut sum, mut rows) = (Sum::default(), Vec::<Value>::new());
    if !ids.is_empty() {
        for service in services(platform, dead).await? {
            let open = open(&service, &mut ids, wanted, &mut sum).await?;
            let meant = looked_up(&service, &filter(dead), &open).await?;
            for id in open {
                match meant.iter().find(|letter| letter.id == id) {
                    None => sum.not(id, DOES_NOT_FIT),
                    Some(_) if asked == Asked::BeforeRedrive && is_stuck(&service, id).await? => {
                        sum.not(id, STUCK);
                    }
                    Some(letter) => rows.push(letter_json(service.0.as_str(), letter)),
                }
            }
        }
        for id in ids {
            sum.not(id, UNKNOWN);
        }
    }
    if !asides.is_empty() {
        let aside = platform.aside().await?;
        let open = open_asides(&aside, dead, asides, wanted, &mut sum).await?;
        rows.extend(open.iter().map(aside_json));
    }
    sum.done = u64::try_from(rows.len())?;
    list::named(&rows, &sum, json)
}

/// Whether the row of an open letter can't be put back.
async fn is_stuck((_, tables, letters): &Service, id: LetterId) -> anyhow::Result<bool> {
    let mut connection = tables.database.workers.acquire().await?;
    let one = Filter {
        ids: Some(vec![id]),
        ..Filter::open()
    };
    Ok(letters.preview(&mut connection, &one).await?.stuck > 0)
}
