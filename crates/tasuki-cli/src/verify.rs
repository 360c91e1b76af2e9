//! `tasuki verify`: is everything that was answered where it belongs, once?
//!
//! Walks entitlement's audit in windows of time. Every change must have exactly one event in the
//! outbox; once that is published and has had time to settle, it must be processed, and as many
//! notifications as were made of it must be sent, waiting, given up, or dead with exactly one letter
//! each. Published events are kept for
//! `entitlement.outbox.published-ttl`: that is as far back as it goes. Then the shop's books are
//! compared, all of them: no money without goods or refund, no order that nobody moves, stock to the
//! unit in both warehouses, nothing left prepared.

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use tasuki_entitlement::verify::{self as entitlement, Change};
use tasuki_notification::verify::{self as notification, Told};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::args::{self, Source};
use crate::outbox::time;
use crate::output::{BAD, GOOD, note, say, say_json, styled, table};
use crate::platform::{self, Name};

/// The window that is read at once, at first; it grows and shrinks with what is found in it.
const WINDOW: Duration = Duration::from_secs(60);
/// More changes than this make the next window smaller, a tenth of it makes it larger.
const ENOUGH: usize = 20_000;
const WIDEST: Duration = Duration::from_secs(24 * 60 * 60);
/// Problems that are listed; all are counted.
const LISTED: usize = 100;

/// Something that is not as it must be.
struct Problem {
    what: &'static str,
    event: Option<Uuid>,
    about: String,
}

/// Every change is in exactly one of the columns, unless there is a problem with it.
#[derive(Default)]
struct Found {
    changes: u64,
    sent: u64,
    /// Whoever it names asked not to be told.
    not_wanted: u64,
    /// Young, or waiting: not wrong yet.
    under_way: u64,
    dead: u64,
    /// Discarded by somebody, or withdrawn: nobody can be sent it any more.
    given_up: u64,
    count: u64,
    problems: Vec<Problem>,
}

impl Found {
    fn report(&mut self, what: &'static str, event: Option<Uuid>, about: String) {
        self.count += 1;
        if self.problems.len() < LISTED {
            self.problems.push(Problem { what, event, about });
        }
    }
}

pub(crate) async fn run(
    source: &Source,
    options: &args::Verify,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let platform = platform::of_running(source)?;
    let answered = platform.tables_of(Name::Entitlement)?;
    let told = platform.tables_of(Name::Notification)?;
    let sold = platform.tables_of(Name::Shop)?;
    for tables in [&answered, &told, &sold] {
        tables
            .database
            .wait(platform.common.database.connect_timeout)
            .await?;
    }
    let answered = entitlement::Ledger::new(answered.database.workers);
    let told = notification::Ledger::new(told.database.workers);

    let until = platform.clock.now();
    let settled = until - options.settle;
    // Published events that are older are gone, and with them what could be compared.
    let kept_from = until - platform.published_ttl();
    let from = options
        .since
        .map_or(kept_from, |since| kept_from.max(until - since));
    let mut found = walk(&answered, &told, from, until, settled).await?;
    let overflow = platform.warehouse_tables()?;
    let books = tasuki_shop::verify::Reconciler::new(sold.database.workers)
        .with_overflow(overflow.map(|tables| tables.database.workers))
        .quiet(options.settle);
    let books = books.look().await?;
    for wrong in &books.found {
        let about = format!("{}: {}", wrong.check, wrong.subject);
        found.report("money and goods do not match", None, about);
    }
    // All are counted, also those that are too many to be listed.
    let listed = i64::try_from(books.found.len())?;
    found.count += u64::try_from(books.total - listed)?;
    show(&found, from, until, json)?;
    Ok(ExitCode::from(u8::from(found.count > 0)))
}

async fn walk(
    answered: &entitlement::Ledger,
    told: &notification::Ledger,
    from: OffsetDateTime,
    until: OffsetDateTime,
    settled: OffsetDateTime,
) -> anyhow::Result<Found> {
    let mut found = Found::default();
    let (mut at, mut window) = (from, WINDOW);
    while at < until {
        let end = until.min(at.saturating_add(time::Duration::try_from(window)?));
        let changes = answered.changes(at, end).await?;
        compare(&changes, told, settled, &mut found).await?;
        at = end;
        window = match changes.len() {
            many if many > ENOUGH => (window / 2).max(Duration::from_secs(1)),
            few if few < ENOUGH / 10 => (window * 2).min(WIDEST),
            _ => window,
        };
    }
    for torn in answered.torn(from, 1000).await? {
        let about = format!(
            "{} {}: version {}, {} changes in the audit",
            torn.user_id, torn.stock_keeping_unit, torn.version, torn.audited
        );
        found.report("versions have a gap or a repeat", None, about);
    }
    Ok(found)
}

async fn compare(
    changes: &[Change],
    told: &notification::Ledger,
    settled: OffsetDateTime,
    found: &mut Found,
) -> anyhow::Result<()> {
    let ids: Vec<Uuid> = changes.iter().map(|it| it.event_id).collect();
    let told = told.told(&ids).await?;
    let told: HashMap<Uuid, Told> = told.into_iter().map(|it| (it.event_id, it)).collect();
    for change in changes {
        found.changes += 1;
        judge(change, told.get(&change.event_id), settled, found);
    }
    Ok(())
}

fn judge(change: &Change, told: Option<&Told>, settled: OffsetDateTime, found: &mut Found) {
    let event = Some(change.event_id);
    let about = || {
        let (user, sku, version) = (&change.user_id, &change.stock_keeping_unit, change.version);
        format!(
            "{user} {sku} version {version}, {}",
            time(change.occurred_at)
        )
    };
    match change.events {
        0 => return found.report("a change without an event", event, about()),
        1 => {}
        _ => found.report("a change with several events", event, about()),
    }
    let is_young = change.occurred_at > settled;
    let Some(told) = told.filter(|told| told.processed > 0) else {
        if change.dead {
            found.dead += 1;
        } else if change.waiting || is_young {
            found.under_way += 1;
        } else {
            found.report("published, and never processed", event, about());
        }
        return;
    };
    if told.is_double() {
        found.report("told more than once", event, about());
    }
    if told.failed != told.letters {
        found.report("dead without exactly one letter", event, about());
    }
    if told.is_short() {
        found.report("a notification is missing", event, about());
    } else if told.waiting > 0 {
        found.under_way += 1;
    } else if told.failed > 0 {
        found.dead += 1;
    } else if told.sent > 0 {
        found.sent += 1;
    } else if told.given_up > 0 {
        found.given_up += 1;
    } else {
        found.not_wanted += 1;
    }
}

fn show(
    found: &Found,
    from: OffsetDateTime,
    until: OffsetDateTime,
    json: bool,
) -> anyhow::Result<()> {
    let from = time(from);
    if json {
        let problems: Vec<Value> = found
            .problems
            .iter()
            .map(|it| json!({ "what": it.what, "event_id": it.event, "about": it.about }))
            .collect();
        return say_json(&json!({
            "from": from, "until": time(until), "changes": found.changes, "sent": found.sent,
            "under_way": found.under_way, "not_wanted": found.not_wanted, "dead": found.dead,
            "given_up": found.given_up, "problem_count": found.count, "problems": problems,
        }));
    }
    say(format_args!("from {from} until {}", time(until)));
    let Found {
        changes,
        sent,
        under_way,
        not_wanted,
        dead,
        given_up,
        count,
        ..
    } = found;
    say(format_args!(
        "{changes} changes: {sent} told, {under_way} under way, {not_wanted} not wanted, \
         {dead} dead with a letter, {given_up} given up"
    ));
    if *count == 0 {
        say(styled(GOOD, "nothing is missing, nothing is double"));
        return Ok(());
    }
    say(styled(BAD, format_args!("{count} problems")));
    let rows = found.problems.iter().map(|it| {
        let event = it.event.map(|id| id.to_string()).unwrap_or_default();
        vec![it.what.to_owned(), event, it.about.clone()]
    });
    say(table(&["PROBLEM", "EVENT", "ABOUT"], rows));
    if *count > u64::try_from(found.problems.len()).unwrap_or(u64::MAX) {
        note(format_args!("the first {LISTED} are listed"));
    }
    Ok(())
}
