//! Grants, revocations and consumptions: everything that a caller can ask for, in one
//! transaction with everything that must hold when it is answered.
//!
//! Locks on the keys and on the entitlements, in one sorted list → what is kept under the keys →
//! the entitlements → the rules, in the order of arrival → entitlements, audit, events, answers →
//! commit. Only then is anybody answered. Requests that wait at the same time share the
//! transaction ([`tasuki::batch`]); a request with many items is a batch of its own.
//!
//! Running a command twice is safe: the second time its key is taken.

use std::collections::{BTreeSet, HashMap};

use sqlx::PgPool;
use tasuki::batch::{Group, Ran};
use tasuki::idempotency::{Keys, LockNumber, Opened, Reply, Request};
use tasuki::outbox::Outbox;
use tasuki::testing::crash_point;
use tasuki::{Clock, begin};
use tasuki_contract::error::ErrorBody;
use tasuki_contract::ids::EventId;
use time::OffsetDateTime;

use crate::domain::{Change, Decision, Holding, Order, Refusal, decide};
use crate::error::Error;
use crate::store::{self, Pair, Written};
use crate::{NAME, events, views};

/// One request: its key, and what it asks for.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub(crate) request: Request,
    pub(crate) orders: Vec<Order>,
    pub(crate) form: Form,
    pub(crate) traceparent: Option<String>,
}

/// How a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// With the entitlement, or the refusal.
    One,
    /// With one result per order.
    Many,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    /// Done or refused now, and kept for whoever asks again.
    Answered(Reply),
    /// It had been answered before.
    Replayed(Reply),
    /// Malformed in a way that only the database's clock could tell. Nothing is kept.
    Malformed(String),
    /// The key belongs to another request.
    KeyConflict,
}

/// Does commands.
#[derive(Clone, Debug)]
pub(crate) struct Commands {
    pub(crate) pool: PgPool,
    pub(crate) keys: Keys,
    pub(crate) outbox: Outbox,
    pub(crate) clock: Clock,
}

/// What a batch has come to so far.
struct Ledger<'a> {
    now: OffsetDateTime,
    /// How each entitlement was found: the version that the last one is made from.
    found: HashMap<Pair<'a>, Holding>,
    /// How each is now.
    held: HashMap<Pair<'a>, Holding>,
    changes: Vec<Made<'a>>,
}

/// A change that a command made.
struct Made<'a> {
    event_id: EventId,
    pair: Pair<'a>,
    change: Change,
    by: &'a Command,
}

impl Group for Commands {
    type Command = Command;
    type Reply = Served;
    type Error = Error;

    async fn run(&self, commands: &[Command]) -> Ran<Served, Error> {
        let served = self.serve(commands).await?;
        Ok(served.into_iter().map(Ok).collect())
    }

    fn is_everyones(&self, error: &Error) -> bool {
        error.is_away()
    }
}

impl Commands {
    /// Does `commands` in one transaction, in their order.
    pub(crate) async fn serve(&self, commands: &[Command]) -> Result<Vec<Served>, Error> {
        let requests: Vec<_> = commands.iter().map(|it| it.request.clone()).collect();
        let mut tx = begin(&self.pool).await?;
        let locks = locks(commands.iter().flat_map(|it| &it.orders));
        let opened = self.keys.open_all_with(&mut tx, &requests, &locks).await?;
        let fresh: Vec<_> = commands
            .iter()
            .zip(&opened)
            .filter(|(_, opened)| **opened == Opened::Fresh)
            .map(|(command, _)| command)
            .collect();
        let mut answers = HashMap::new();
        if !fresh.is_empty() {
            let pairs: BTreeSet<_> = fresh.iter().flat_map(|it| &it.orders).map(pair).collect();
            let pairs: Vec<_> = pairs.into_iter().collect();
            let mut ledger = Ledger::new(store::read(&mut tx, &pairs).await?);
            for command in &fresh {
                let answer = self.answer(&mut ledger, command)?;
                answers.insert(key(command), answer);
            }
            self.write(&mut tx, &ledger).await?;
            let kept: Vec<_> = fresh
                .iter()
                .filter_map(|command| match answers.get(&key(command)) {
                    Some(Served::Answered(reply)) => Some((&command.request, reply)),
                    _ => None,
                })
                .collect();
            self.keys.store_all(&mut tx, &kept).await?;
        }
        crash_point("entitlement.before_commit");
        tx.commit().await?;
        crash_point("entitlement.committed");
        if !answers.is_empty() {
            self.outbox.ring();
        }
        Ok(served(commands, opened, &answers))
    }

    /// Revokes what has run out, the longest ago first; answers how many of at most `limit`.
    pub(crate) async fn expire(&self, limit: u16) -> Result<usize, Error> {
        let mut connection = self.pool.acquire().await?;
        let due = store::run_out(&mut connection, limit.into()).await?;
        drop(connection);
        if due.is_empty() {
            return Ok(0);
        }
        let command = events::expiry(&due)?;
        let mut tx = begin(&self.pool).await?;
        let locks = locks(command.orders.iter());
        self.keys.open_all_with(&mut tx, &[], &locks).await?;
        let pairs: BTreeSet<_> = command.orders.iter().map(pair).collect();
        let pairs: Vec<_> = pairs.into_iter().collect();
        let mut ledger = Ledger::new(store::read(&mut tx, &pairs).await?);
        for order in &command.orders {
            // An error is fine: somebody has granted it anew meanwhile, or revoked it.
            ledger.apply(&command, order, &self.clock).ok();
        }
        self.write(&mut tx, &ledger).await?;
        tx.commit().await?;
        self.outbox.ring();
        Ok(due.len())
    }

    fn answer<'a>(&self, ledger: &mut Ledger<'a>, command: &'a Command) -> Result<Served, Error> {
        let mut results = Vec::with_capacity(command.orders.len());
        for order in &command.orders {
            let answer = ledger.apply(command, order, &self.clock);
            if answer == Err(Refusal::ExpiresInThePast) && command.form == Form::One {
                return Ok(Served::Malformed(Refusal::ExpiresInThePast.to_string()));
            }
            results.push(views::result(order, answer));
        }
        let reply = match command.form {
            Form::One => views::one(results)?,
            Form::Many => views::many(results)?,
        };
        Ok(Served::Answered(reply))
    }

    async fn write(&self, tx: &mut sqlx::PgConnection, ledger: &Ledger<'_>) -> Result<(), Error> {
        if ledger.changes.is_empty() {
            return Ok(());
        }
        let changed: BTreeSet<_> = ledger.changes.iter().map(|made| made.pair).collect();
        let last: Vec<_> = changed
            .iter()
            .filter_map(|pair| {
                let from = ledger.found.get(pair).map_or(0, |found| found.version);
                Some((*pair, ledger.held.get(pair)?, from))
            })
            .collect();
        let merged = store::write(tx, &last).await?;
        if usize::try_from(merged) != Ok(changed.len()) {
            return Err(Error::ChangedUnlocked);
        }
        let written: Vec<_> = ledger.changes.iter().map(Made::written).collect();
        store::audit(tx, &written).await?;
        let events = ledger.changes.iter().map(|made| {
            let trace = made.by.traceparent.as_deref();
            events::event(made.event_id, made.pair, &made.change, trace)
        });
        let events = events.collect::<Result<Vec<_>, _>>()?;
        self.outbox.enqueue_all(tx, &events).await?;
        Ok(())
    }
}

impl<'a> Ledger<'a> {
    fn new(read: store::Read<'a>) -> Self {
        Self {
            now: read.now,
            held: read.holdings.clone(),
            found: read.holdings,
            changes: Vec::new(),
        }
    }

    fn apply(
        &mut self,
        command: &'a Command,
        order: &'a Order,
        clock: &Clock,
    ) -> Result<Holding, Refusal> {
        let pair = pair(order);
        let Decision { changes, answer } = decide(self.held.get(&pair), order, self.now);
        for change in changes {
            self.held.insert(pair, change.holding.clone());
            self.changes.push(Made {
                event_id: EventId::new(clock),
                pair,
                change,
                by: command,
            });
        }
        answer
    }
}

impl Made<'_> {
    fn written(&self) -> Written<'_> {
        let by_itself = self.change.action == crate::domain::Action::Expire;
        Written {
            event_id: self.event_id.as_uuid(),
            pair: self.pair,
            change: &self.change,
            caller: if by_itself {
                NAME
            } else {
                self.by.request.caller()
            },
            request_id: (!by_itself).then(|| self.by.request.key()),
        }
    }
}

/// A refusal on the wire: a decision of the business, and kept.
pub(crate) fn refused(refusal: Refusal) -> ErrorBody {
    let code = match refusal {
        Refusal::AlreadyActive
        | Refusal::AlreadyRevoked
        | Refusal::NothingToConsume
        | Refusal::NotConsumable
        | Refusal::TooMany => tasuki_contract::entitlement::ENTITLEMENT_STATE_CONFLICT,
        Refusal::Insufficient { .. } => {
            tasuki_contract::entitlement::ENTITLEMENT_INSUFFICIENT_QUANTITY
        }
        Refusal::ExpiresInThePast => tasuki_contract::error::BAD_REQUEST,
    };
    ErrorBody {
        code: code.into(),
        message: refusal.to_string(),
    }
}

fn served(
    commands: &[Command],
    opened: Vec<Opened>,
    answers: &HashMap<(&str, &str), Served>,
) -> Vec<Served> {
    let answer = |command: &Command| answers.get(&key(command)).cloned();
    let each = commands.iter().zip(opened);
    each.map(|(command, opened)| match opened {
        Opened::Stored(reply) => Served::Replayed(reply),
        // The twin has the same key, so it finds the same answer.
        Opened::Twin(_) => match answer(command) {
            Some(Served::Answered(reply)) => Served::Replayed(reply),
            other => other.unwrap_or(Served::KeyConflict),
        },
        Opened::Fresh => answer(command).unwrap_or(Served::KeyConflict),
        _ => Served::KeyConflict,
    })
    .collect()
}

fn key(command: &Command) -> (&str, &str) {
    (command.request.caller(), command.request.key())
}

fn pair(order: &Order) -> Pair<'_> {
    (order.user.as_str(), order.sku.as_str())
}

/// A missing row can't be locked, so entitlements have locks of their own.
fn locks<'a>(orders: impl Iterator<Item = &'a Order>) -> Vec<LockNumber> {
    orders
        .map(|order| {
            LockNumber::of(&[NAME, "entitlement", order.user.as_str(), order.sku.as_str()])
        })
        .collect()
}
