//! `tasuki verify`: is everything that was answered where it belongs, once?
//!
//! Walks entitlement's audit in windows of time. Every change must have exactly one event in the
//! outbox; once that is published and has had time to settle, it must be processed, and as many
//! notifications as were made of it must be sent, waiting, given up, or dead with exactly one letter
//! each. Then the same for the shop: every order that has ended must have told how, and every event
//! of it must have come as far. Published events are kept for `entitlement.outbox.published-ttl` and
//! `shop.outbox.published-ttl`: that is as far back as it goes. In the end the shop's books are
//! compared, all of them: no money without goods or refund, no order that nobody moves, stock to the
//! unit in both warehouses, nothing left prepared.

mod follow;

use std::process::ExitCode;

use serde_json::{Value, json};
use tasuki_entitlement::verify as entitlement;
use tasuki_notification::verify as notification;
use tasuki_shop::told as shop;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::args::{self, Source};
use crate::outbox::time;
use crate::output::{BAD, GOOD, note, say, say_json, styled, table};
use crate::platform::{self, Name, Publisher};
use follow::Walk;

/// Problems that are listed; all are counted.
const LISTED: usize = 100;
/// Entitlements with torn versions that are counted: each costs a look at its audit.
const TORN: u32 = 1000;

/// Something that is not as it must be.
struct Problem {
    what: &'static str,
    event: Option<Uuid>,
    about: String,
}

/// Every event is in exactly one of the columns, unless there is a problem with it.
#[derive(Default)]
struct Counts {
    all: u64,
    sent: u64,
    /// Nobody was to be told, or whoever it names asked not to be.
    not_wanted: u64,
    /// Young, or waiting: not wrong yet.
    under_way: u64,
    dead: u64,
    /// Discarded by somebody, or withdrawn: nobody can be sent it any more.
    given_up: u64,
}

#[derive(Default)]
struct Found {
    changes: Counts,
    /// Of the events of orders that have ended.
    orders: Counts,
    count: u64,
    /// There is more than was counted.
    is_more: bool,
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
    let orders = shop::Ledger::new(sold.database.workers.clone());

    let until = platform.clock.now();
    // Published events that are older are gone, and with them what could be compared.
    let from = |publisher| {
        let kept_from = until - platform.published_ttl(publisher);
        let since = options.since.map(|since| until - since);
        since.map_or(kept_from, |since| kept_from.max(since))
    };
    let mut found = Found::default();
    let mut walk = Walk {
        told: &told,
        until,
        settled: until - options.settle,
        found: &mut found,
    };
    let since = from(Publisher::Entitlement);
    walk.changes(&answered, since).await?;
    if platform.tells_of_orders() {
        walk.orders(&orders, from(Publisher::Shop)).await?;
    }
    torn(&answered, since, &mut found).await?;
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
    show(&found, since, until, json)?;
    Ok(ExitCode::from(u8::from(found.count > 0)))
}

async fn torn(
    answered: &entitlement::Ledger,
    from: OffsetDateTime,
    found: &mut Found,
) -> anyhow::Result<()> {
    // One more than is counted says that there are more.
    let mut torn = answered.torn(from, TORN + 1).await?;
    found.is_more = torn.len() > usize::try_from(TORN)?;
    torn.truncate(usize::try_from(TORN)?);
    for torn in torn {
        let about = format!(
            "{} {}: version {}, {} changes in the audit",
            torn.user_id, torn.stock_keeping_unit, torn.version, torn.audited
        );
        found.report("versions have a gap or a repeat", None, about);
    }
    Ok(())
}

fn show(
    found: &Found,
    from: OffsetDateTime,
    until: OffsetDateTime,
    json: bool,
) -> anyhow::Result<()> {
    let from = time(from);
    let (changes, orders) = (&found.changes, &found.orders);
    if json {
        let problems: Vec<Value> = found
            .problems
            .iter()
            .map(|it| json!({ "what": it.what, "event_id": it.event, "about": it.about }))
            .collect();
        return say_json(&json!({
            "from": from, "until": time(until), "changes": changes.all, "sent": changes.sent,
            "under_way": changes.under_way, "not_wanted": changes.not_wanted,
            "dead": changes.dead, "given_up": changes.given_up,
            "orders": {
                "events": orders.all, "sent": orders.sent, "under_way": orders.under_way,
                "not_wanted": orders.not_wanted, "dead": orders.dead,
                "given_up": orders.given_up,
            },
            "problem_count": found.count, "is_more": found.is_more, "problems": problems,
        }));
    }
    say(format_args!("from {from} until {}", time(until)));
    for (counts, what) in [(changes, "changes"), (orders, "events of ended orders")] {
        let Counts {
            all,
            sent,
            not_wanted,
            under_way,
            dead,
            given_up,
        } = counts;
        say(format_args!(
            "{all} {what}: {sent} told, {under_way} under way, {not_wanted} not wanted, \
             {dead} dead with a letter, {given_up} given up"
        ));
    }
    if found.count == 0 {
        say(styled(GOOD, "nothing is missing, nothing is double"));
        return Ok(());
    }
    let least = if found.is_more { "at least " } else { "" };
    let count = found.count;
    say(styled(BAD, format_args!("{least}{count} problems")));
    let rows = found.problems.iter().map(|it| {
        let event = it.event.map(|id| id.to_string()).unwrap_or_default();
        vec![it.what.to_owned(), event, it.about.clone()]
    });
    say(table(&["PROBLEM", "EVENT", "ABOUT"], rows));
    if count > u64::try_from(found.problems.len()).unwrap_or(u64::MAX) {
        note(format_args!("the first {LISTED} are listed"));
    }
    if found.is_more {
        note(format_args!(
            "of entitlements whose versions have a gap or a repeat the first {TORN} are counted"
        ));
    }
    Ok(())
}
