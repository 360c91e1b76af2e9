//! What is dead or set aside, shown: for people as much as fits, for scripts all of it.

use std::process::ExitCode;

use serde_json::Value;
use tasuki::dlq::Page;

use super::{
    Asked, BROKER, PAGE, Service, aside_json, filter, fits, letter_json, means_broker, services,
    set_aside,
};
use crate::args::Dead;
use crate::output::{JsonList, say, say_json, table};
use crate::platform::Platform;
use crate::sum::Sum;

/// The most that a person is shown of each service, and of the broker.
const MOST: u32 = 200;

/// Everything that is open and fits, the latest first.
pub(super) async fn all(
    platform: &Platform,
    dead: &Dead,
    asked: Asked,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let services = match dead.source.as_deref() {
        Some(BROKER) => Vec::new(),
        _ => services(platform, dead).await?,
    };
    if json {
        whole(platform, dead, &services).await?;
    } else {
        shown(platform, dead, &services, asked).await?;
    }
    Ok(ExitCode::SUCCESS)
}

/// All of it, page by page: a script that counts must not be told less than there is.
async fn whole(platform: &Platform, dead: &Dead, services: &[Service]) -> anyhow::Result<()> {
    let mut list = JsonList::default();
    for (name, tables, letters) in services {
        let mut connection = tables.database.workers.acquire().await?;
        let mut next = Some(Page::first(PAGE));
        while let Some(page) = next {
            let listed = letters.list(&mut connection, &filter(dead), &page).await?;
            for letter in &listed.letters {
                list.push(&letter_json(name.as_str(), letter))?;
            }
            next = listed.next.map(|cursor| Page::first(PAGE).after(cursor));
        }
    }
    if means_broker(dead) {
        let aside = platform.aside().await?;
        let mut last = None;
        loop {
            let page = aside.page(true, last.as_ref(), PAGE).await?;
            for entry in page.iter().filter(|entry| fits(dead, entry)) {
                list.push(&aside_json(entry))?;
            }
            last = page.last().cloned();
            if last.is_none() {
                break;
            }
        }
    }
    list.end();
    Ok(())
}

/// The latest of it, and how much it is in all.
async fn shown(
    platform: &Platform,
    dead: &Dead,
    services: &[Service],
    asked: Asked,
) -> anyhow::Result<()> {
    let (mut rows, mut total, mut stuck) = (Vec::new(), 0, 0);
    for (name, tables, letters) in services {
        let (mut connection, filter) = (tables.database.workers.acquire().await?, filter(dead));
        let page = Page::first(MOST);
        let listed = letters.list(&mut connection, &filter, &page).await?.letters;
        rows.extend(listed.iter().map(|it| letter_json(name.as_str(), it)));
        let all = letters.preview(&mut connection, &filter).await?;
        total += all.count;
        stuck += all.stuck;
    }
    if means_broker(dead) {
        let aside = platform.aside().await?;
        let entries = set_aside(&aside, true, usize::MAX, |entry| fits(dead, entry)).await?;
        total += u64::try_from(entries.len())?;
        rows.extend(entries.iter().take(usize::try_from(MOST)?).map(aside_json));
    }
    if rows.is_empty() {
        say(if *dead == Dead::default() {
            "nothing is dead"
        } else {
            "nothing that is dead fits"
        });
        return Ok(());
    }
    print(&rows);
    if asked != Asked::List {
        say(format_args!("{total} in all are meant"));
    }
    if asked == Asked::BeforeRedrive && stuck > 0 {
        say(format_args!(
            "{stuck} of them can't be put back: their rows are not dead any more, and only \
             discarding ends them"
        ));
    }
    if total > u64::try_from(rows.len())? {
        say(format_args!(
            "{total} in all; the latest {MOST} of each service and of the broker are shown, \
             --json has all"
        ));
    }
    Ok(())
}

/// Those that were named and are meant, and why the others are not.
pub(super) fn named(rows: &[Value], sum: &Sum, json: bool) -> anyhow::Result<ExitCode> {
    if json {
        say_json(&rows)?;
        sum.note();
        return Ok(sum.code());
    }
    if !rows.is_empty() {
        print(rows);
    }
    sum.report("meant", "are meant", json)
}

fn print(rows: &[Value]) {
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
}
