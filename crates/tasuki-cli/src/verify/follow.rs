//! Follows events in windows of time: from what a service has written down, over its outbox, to the
//! notifications.

use std::collections::HashMap;
use std::time::Duration;

use tasuki_entitlement::verify as entitlement;
use tasuki_notification::verify::{self as notification, Told};
use tasuki_shop::told as shop;
use time::OffsetDateTime;
use uuid::Uuid;

use super::{Counts, Found};
use crate::outbox::time;

/// The window that is read at once, at first; it grows and shrinks with what is found in it.
const WINDOW: Duration = Duration::from_secs(60);
/// More events than this make the next window smaller, a tenth of it makes it larger.
const ENOUGH: usize = 20_000;
const WIDEST: Duration = Duration::from_secs(24 * 60 * 60);

/// An event that must have come somewhere.
struct Event {
    id: Uuid,
    at: OffsetDateTime,
    about: String,
    waiting: bool,
    dead: bool,
    /// Its rows in the outbox.
    rows: i64,
}

/// The time, cut into windows that hold about as much each.
struct Windows {
    at: OffsetDateTime,
    until: OffsetDateTime,
    width: Duration,
}

impl Windows {
    const fn new(from: OffsetDateTime, until: OffsetDateTime) -> Self {
        Self {
            at: from,
            until,
            width: WINDOW,
        }
    }

    /// The next one, if there is any left.
    fn next(&self) -> anyhow::Result<Option<(OffsetDateTime, OffsetDateTime)>> {
        let width = time::Duration::try_from(self.width)?;
        let end = self.until.min(self.at.saturating_add(width));
        Ok((self.at < self.until).then_some((self.at, end)))
    }

    /// That one, up to `end`, had so many events.
    fn had(&mut self, end: OffsetDateTime, events: usize) {
        self.at = end;
        self.width = match events {
            many if many > ENOUGH => (self.width / 2).max(Duration::from_secs(1)),
            few if few < ENOUGH / 10 => (self.width * 2).min(WIDEST),
            _ => self.width,
        };
    }
}

/// Goes the way of events, and says what is not as it must be.
pub(super) struct Walk<'a> {
    pub(super) told: &'a notification::Ledger,
    pub(super) until: OffsetDateTime,
    /// What is younger may still be on its way.
    pub(super) settled: OffsetDateTime,
    pub(super) found: &'a mut Found,
}

impl Walk<'_> {
    /// Of every change of an entitlement since `from`.
    pub(super) async fn changes(
        &mut self,
        answered: &entitlement::Ledger,
        from: OffsetDateTime,
    ) -> anyhow::Result<()> {
        let mut windows = Windows::new(from, self.until);
        while let Some((at, end)) = windows.next()? {
            let changes = answered.changes(at, end).await?;
            let events: Vec<_> = changes.into_iter().map(Event::from).collect();
            self.compare(&events, |found| &mut found.changes).await?;
            windows.had(end, events.len());
        }
        Ok(())
    }

    /// Of every order that has ended since `from`.
    pub(super) async fn orders(
        &mut self,
        orders: &shop::Ledger,
        from: OffsetDateTime,
    ) -> anyhow::Result<()> {
        let mut windows = Windows::new(from, self.until);
        while let Some((at, end)) = windows.next()? {
            for silent in orders.silent(at, end).await? {
                let about = format!("order {}, {}", silent.order_id, time(silent.ended_at));
                let what = "an order that has ended and told nobody";
                self.found.report(what, None, about);
            }
            let told = orders.told(at, end, from).await?;
            let events: Vec<_> = told.into_iter().map(Event::from).collect();
            self.compare(&events, |found| &mut found.orders).await?;
            windows.had(end, events.len());
        }
        Ok(())
    }

    async fn compare(
        &mut self,
        events: &[Event],
        counts: fn(&mut Found) -> &mut Counts,
    ) -> anyhow::Result<()> {
        let ids: Vec<Uuid> = events.iter().map(|it| it.id).collect();
        let told = self.told.told(&ids).await?;
        let told: HashMap<Uuid, Told> = told.into_iter().map(|it| (it.event_id, it)).collect();
        for event in events {
            counts(self.found).all += 1;
            if let Some(column) = self.judge(event, told.get(&event.id)) {
                *column(counts(self.found)) += 1;
            }
        }
        Ok(())
    }

    /// In which column an event is; none, if something is wrong with it.
    fn judge(&mut self, event: &Event, told: Option<&Told>) -> Option<fn(&mut Counts) -> &mut u64> {
        let (id, about) = (Some(event.id), || event.about.clone());
        match event.rows {
            0 => {
                self.found.report("a change without an event", id, about());
                return None;
            }
            1 => {}
            _ => (self.found).report("a change with several events", id, about()),
        }
        let is_young = event.at > self.settled;
        let Some(told) = told.filter(|told| told.processed > 0) else {
            if event.dead {
                return Some(|it| &mut it.dead);
            }
            if event.waiting || is_young {
                return Some(|it| &mut it.under_way);
            }
            (self.found).report("published, and never processed", id, about());
            return None;
        };
        if told.is_double() {
            self.found.report("told more than once", id, about());
        }
        if told.failed != told.letters {
            (self.found).report("dead without exactly one letter", id, about());
        }
        if told.is_short() {
            (self.found).report("a notification is missing", id, about());
            return None;
        }
        Some(if told.waiting > 0 {
            |it| &mut it.under_way
        } else if told.failed > 0 {
            |it| &mut it.dead
        } else if told.sent > 0 {
            |it| &mut it.sent
        } else if told.given_up > 0 {
            |it| &mut it.given_up
        } else {
            |it| &mut it.not_wanted
        })
    }
}

impl From<entitlement::Change> for Event {
    fn from(change: entitlement::Change) -> Self {
        let (user, sku, version) = (&change.user_id, &change.stock_keeping_unit, change.version);
        let at = time(change.occurred_at);
        Self {
            id: change.event_id,
            at: change.occurred_at,
            about: format!("{user} {sku} version {version}, {at}"),
            waiting: change.waiting,
            dead: change.dead,
            rows: change.events,
        }
    }
}

impl From<shop::Told> for Event {
    fn from(told: shop::Told) -> Self {
        let (kind, order, at) = (&told.kind, &told.order_id, time(told.told_at));
        Self {
            id: told.event_id,
            at: told.told_at,
            about: format!("{kind} of order {order}, {at}"),
            waiting: told.waiting,
            dead: told.dead,
            rows: told.events,
        }
    }
}
