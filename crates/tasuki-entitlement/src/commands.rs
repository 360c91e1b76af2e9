//! Grants, revocations and consumptions: everything that a caller can ask for, in one
//! transaction with everything that must hold when it is answered.
//!
//! Locks on the keys and on the entitlements → what is kept under the keys → the entitlements → the
//! rules, in the order of arrival → entitlements, audit, events, answers → commit. Only then is
//! anybody answered. Requests that wait at the same time share the transaction
//! ([`tasuki::batch`]), which takes the locks that are free and leaves out whoever needs another
//! one ([`crate::patience`]); a request with many items has a transaction of its own.
//!
//! Running a command twice is safe: the second time its key is taken.

use std::collections::{BTreeSet, HashMap};
use std::slice;
use std::time::Duration;

use sqlx::{PgConnection, PgPool, Postgres, Transaction};
use tasuki::batch::{Group, Ran};
use tasuki::idempotency::{self, Keys, LockNumber, Opened, Reply, Request, try_lock_all};
use tasuki::outbox::Outbox;
use tasuki::testing::crash_point;
use tasuki::{Clock, begin};
use tasuki_contract::error::ErrorBody;
use tasuki_contract::ids::EventId;
use time::OffsetDateTime;

use crate::domain::{Change, Decision, Holding, Order, Refusal, decide};
use crate::error::Error;
use crate::gates::Gates;
use crate::store::{self, Due, Pair, Written};
use crate::{NAME, events, views};

/// How long a request with many items waits for each of its locks before it lets go of those that
/// it has: whoever wants one of them waits along.
const BRIEFLY: Duration = Duration::from_millis(50);
/// How long it waits for all of them: well below the patience of those who wait along.
const FOR_ALL: &str = "1s";

/// One request: its key, and what it asks for.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub(crate) request: Request,
    pub(crate) orders: Vec<Order>,
    pub(crate) form: Form,
    pub(crate) traceparent: Option<String>,
    /// Its last try: the database is asked, whoever of this process is at work on the same. What
    /// was answered is repeated, and who is in the way is told by its right name.
    pub(crate) insists: bool,
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
    pub(crate) gates: Gates,
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

    /// Waits for no other process: a command whose key or entitlement somebody else holds is not
    /// done, and told so. So is one on which another batch of this process is at work.
    async fn run(&self, commands: &[Command]) -> Ran<Served, Error> {
        let needed: Vec<_> = commands.iter().map(|it| locks(&it.orders)).collect();
        let wanted: Vec<_> = needed.iter().flatten().copied().collect();
        let work = self.gates.enter_soon(&wanted).await;
        let mut is_ours = Vec::with_capacity(commands.len());
        let (mut ours, mut asked) = (Vec::new(), Vec::new());
        for (command, locks) in commands.iter().zip(needed) {
            let is_let_in = command.insists || locks.iter().all(|lock| work.has(*lock));
            is_ours.push(is_let_in);
            if is_let_in {
                ours.push(command);
                asked.push((&command.request, locks));
            }
        }
        if ours.is_empty() {
            return Ok(commands.iter().map(|_| Err(held())).collect());
        }
        let (tx, opened) = self.keys.begin_all(&self.pool, &asked).await?;
        let mut served = self.serve(tx, &ours, opened).await?.into_iter();
        let answers = is_ours.into_iter().map(|is_ours| {
            let answer = is_ours.then(|| served.next()).flatten();
            answer.unwrap_or_else(|| Err(held()))
        });
        Ok(answers.collect())
    }

    fn is_everyones(&self, error: &Error) -> bool {
        error.is_away()
    }
}

impl Commands {
    /// Does a command with many orders, in a transaction of its own. Its locks are hardly ever all
    /// free at the same moment, so it waits a little for each, and not much for all.
    pub(crate) async fn serve_many(&self, command: &Command) -> Result<Served, Error> {
        let requests = slice::from_ref(&command.request);
        let locks = locks(&command.orders);
        let keys = self.keys.clone().wait(BRIEFLY);
        let mut tx = begin(&self.pool).await?;
        // By the server: a wait that only we give up goes on there, with all that it has locked.
        let before = store::statement_timeout(&mut tx).await?;
        store::set_statement_timeout(&mut tx, FOR_ALL).await?;
        let opened = keys.open_all_with(&mut tx, requests, &locks).await?;
        store::set_statement_timeout(&mut tx, &before).await?;
        let served = self.serve(tx, &[command], opened).await?;
        served.into_iter().next().unwrap_or(Ok(Served::KeyConflict))
    }

    /// Does those of `commands` that are fresh, in their order, and commits.
    async fn serve(
        &self,
        mut tx: Transaction<'static, Postgres>,
        commands: &[&Command],
        opened: Vec<Opened>,
    ) -> Ran<Served, Error> {
        let fresh: Vec<_> = commands
            .iter()
            .zip(&opened)
            .filter(|(_, opened)| **opened == Opened::Fresh)
            .map(|(command, _)| *command)
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
            let kept: Vec<_> = fresh
                .iter()
                .filter_map(|command| match answers.get(&key(command)) {
                    Some(Served::Answered(reply)) => Some((&command.request, reply)),
                    _ => None,
                })
                .collect();
            self.write(&mut tx, &ledger, &kept).await?;
        }
        crash_point("entitlement.before_commit");
        tx.commit().await?;
        crash_point("entitlement.committed");
        if !answers.is_empty() {
            self.outbox.ring();
        }
        Ok(served(commands, opened, &answers))
    }

    /// Revokes those of `due` that nobody else holds, in one transaction; answers how many are
    /// left, or nothing when another process is at it: two would find the same ones due.
    pub(crate) async fn expire(&self, due: &[Due]) -> Result<Option<usize>, Error> {
        let command = events::expiry(due)?;
        let mut tx = begin(&self.pool).await?;
        let turn = LockNumber::of(&[NAME, "expiry"]);
        if !try_lock_all(&mut tx, &[turn]).await?.is_empty() {
            return Ok(None);
        }
        let held = try_lock_all(&mut tx, &locks(&command.orders)).await?;
        let free: Vec<_> = command
            .orders
            .iter()
            .filter(|order| !held.contains(&lock(order)))
            .collect();
        if !free.is_empty() {
            let pairs: BTreeSet<_> = free.iter().copied().map(pair).collect();
            let pairs: Vec<_> = pairs.into_iter().collect();
            let mut ledger = Ledger::new(store::read(&mut tx, &pairs).await?);
            for order in &free {
                // An error is fine: somebody has granted it anew meanwhile, or revoked it.
                ledger.apply(&command, order, &self.clock).ok();
            }
            self.write(&mut tx, &ledger, &[]).await?;
        }
        tx.commit().await?;
        self.outbox.ring();
        Ok(Some(due.len() - free.len()))
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

    /// Writes what the ledger has come to, its events, and the answers.
    async fn write(
        &self,
        tx: &mut PgConnection,
        ledger: &Ledger<'_>,
        kept: &[(&Request, &Reply)],
    ) -> Result<(), Error> {
        if ledger.changes.is_empty() {
            self.keys.store_all(tx, kept).await?;
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
        let changes: Vec<_> = ledger.changes.iter().map(Made::written).collect();
        let mut together = store::write(&last, &changes)?;
        let events = ledger.changes.iter().map(|made| {
            let trace = made.by.traceparent.as_deref();
            events::event(made.event_id, made.pair, &made.change, trace)
        });
        let events = events.collect::<Result<Vec<_>, _>>()?;
        self.outbox.enqueue_with(&mut together, &events)?;
        self.keys.store_with(&mut together, kept)?;
        together.run(tx).await?;
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
        Refusal::OfAnotherPurchase => tasuki_contract::entitlement::ENTITLEMENT_PURCHASE_CONFLICT,
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
    commands: &[&Command],
    opened: Vec<Opened>,
    answers: &HashMap<(&str, &str), Served>,
) -> Vec<Result<Served, Error>> {
    let answer = |command: &Command| answers.get(&key(command)).cloned();
    let each = commands.iter().copied().zip(opened);
    each.map(|(command, opened)| match opened {
        Opened::Stored(reply) => Ok(Served::Replayed(reply)),
        // The twin has the same key, so it finds the same answer.
        Opened::Twin(_) => Ok(match answer(command) {
            Some(Served::Answered(reply)) => Served::Replayed(reply),
            other => other.unwrap_or(Served::KeyConflict),
        }),
        Opened::Fresh => Ok(answer(command).unwrap_or(Served::KeyConflict)),
        Opened::InProgress => Err(idempotency::Error::InProgress.into()),
        Opened::Held => Err(held()),
        _ => Ok(Served::KeyConflict),
    })
    .collect()
}

/// Somebody else is at work on the entitlement.
fn held() -> Error {
    idempotency::Error::Held.into()
}

fn key(command: &Command) -> (&str, &str) {
    (command.request.caller(), command.request.key())
}

fn pair(order: &Order) -> Pair<'_> {
    (order.user.as_str(), order.sku.as_str())
}

fn locks(orders: &[Order]) -> Vec<LockNumber> {
    orders.iter().map(lock).collect()
}

/// A missing row can't be locked, so entitlements have locks of their own.
pub(crate) fn lock(order: &Order) -> LockNumber {
    LockNumber::of(&[NAME, "entitlement", order.user.as_str(), order.sku.as_str()])
}
