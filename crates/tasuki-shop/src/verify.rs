//! Money and goods, compared: `charged but neither granted nor refunded` and its siblings.
//!
//! An order that is on its way owes something to somebody by its nature. So those that have ended are
//! judged, and of the others those that nobody moves any more. At rest every count is zero; what is
//! found stays until a person has put it right.
//!
//! It is compared all the time (`Reconciler::pass`), and there are books of years: what has ended
//! since the last time is read, with some overlap, and what did not match then. What matched is read
//! again only by who asks for all of it ([`Reconciler::look`]).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sqlx::{Connection, PgConnection, PgPool};
use tasuki_contract::ids::OrderId;
use tasuki_contract::shop as wire;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::store::reconcile::{self as store, Place, Standing, Wrong};

/// What is looked for.
pub const CHECKS: [&str; 15] = [
    "charged_but_neither_granted_nor_refunded",
    "granted_but_not_paid",
    "undone_but_still_charged",
    "charged_another_amount",
    "sold_but_not_taken_from_stock",
    "sold_other_goods_than_ordered",
    "undone_but_still_reserved",
    "provider_differs_from_payments",
    STRAY,
    "charged_but_parked",
    "unfinished_and_nobody_moves_it",
    "stock_differs_from_its_moves",
    "reserved_differs_from_reservations",
    UNEVEN,
    "prepared_and_left_behind",
];

/// The provider has money that no payment knows of.
const STRAY: &str = "charged_for_no_payment";
/// What left one warehouse is not what came to the other.
const UNEVEN: &str = "transferred_unevenly";

/// How many of each kind are shown.
const SHOWN: usize = 100;
/// Rows that are read at once.
const PAGE: i64 = 1000;
/// Pages of orders that are new, at the most, in one pass: the rest is for the next.
const PAGES: usize = 100;
/// What ended so long before the last comparison is read once more: it may have been committed after
/// it, or changed.
const OVERLAP: Duration = Duration::from_secs(5 * 60);
/// After this time an order that nobody moves has been forgotten, and a transfer is over: far more than
/// a recovery takes.
const QUIET: Duration = Duration::from_secs(5 * 60);
/// Moves so old are added up for good: whatever wrote them has committed, or never will, unless it is
/// prepared.
const SETTLED: Duration = Duration::from_secs(60 * 60);
/// SKUs whose moves are added up at a time.
const FOLDED: i64 = 100;
/// How long one statement of a comparison may take, and how long one database may wait for the other:
/// nobody waits for it, and there are moves of years.
const UNHURRIED: Duration = Duration::from_secs(60 * 60);

/// Compares.
#[derive(Clone, Debug)]
pub struct Reconciler {
    pool: PgPool,
    overflow: Option<PgPool>,
    quiet: Duration,
}

/// What is compared.
struct Scope {
    /// What ended since then; `None`: everything.
    since: Option<OffsetDateTime>,
    /// What did not match the last time.
    open: Vec<Wrong>,
    /// Where a pass that has enough may stop; `None`: nowhere.
    enough: Option<Option<OffsetDateTime>>,
    now: OffsetDateTime,
    /// Whether what has settled in the other warehouse is added up, too.
    folds: bool,
}

/// What a comparison came to.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    /// What was not known before.
    pub(crate) new: Vec<Wrong>,
    /// Why the other warehouse could not be looked at.
    pub(crate) failed: Option<sqlx::Error>,
}

/// What is known without comparing.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) open: Vec<Wrong>,
    pub(crate) unfinished: i64,
    pub(crate) compared_at: Option<OffsetDateTime>,
}

impl Scope {
    /// What has changed, and what did not match.
    async fn recent(tx: &mut PgConnection, standing: Standing) -> sqlx::Result<Self> {
        Ok(Self {
            since: standing.up_to.map(|up_to| up_to - OVERLAP),
            open: store::open(tx).await?,
            enough: Some(standing.up_to),
            now: standing.now,
            folds: false,
        })
    }

    const fn is_all(&self) -> bool {
        self.enough.is_none()
    }

    /// Open ones of this kind.
    fn open_of(&self, kind: &str) -> impl Iterator<Item = &Wrong> {
        self.open.iter().filter(move |it| it.kind == kind)
    }
}

impl Reconciler {
    /// What is in this database.
    #[must_use]
    pub const fn new(pool: PgPool) -> Self {
        Self {
            pool,
            overflow: None,
            quiet: QUIET,
        }
    }

    /// And what is in that of the other warehouse, if there is one.
    #[must_use]
    pub fn with_overflow(mut self, overflow: Option<PgPool>) -> Self {
        self.overflow = overflow;
        self
    }

    /// What has not moved for this long (5 minutes) is moved by nobody: an order, a transfer.
    #[must_use]
    pub const fn quiet(mut self, quiet: Duration) -> Self {
        self.quiet = quiet;
        self
    }

    /// What does not match, now, of all that ever was. Takes its time.
    ///
    /// # Errors
    /// When a database can't be asked.
    pub async fn look(&self) -> sqlx::Result<wire::Reconciliation> {
        let mut tx = tasuki::begin(&self.pool).await?;
        store::take_time(&mut tx, None).await?;
        let scope = Scope {
            since: None,
            open: Vec::new(),
            enough: None,
            now: store::standing(&mut tx).await?.now,
            folds: false,
        };
        self.shown(&mut tx, &scope).await
    }

    /// What does not match, now, of what has changed since it was last compared, and of what did not
    /// match then.
    pub(crate) async fn recent(&self) -> sqlx::Result<wire::Reconciliation> {
        let mut tx = tasuki::begin(&self.pool).await?;
        let standing = store::standing(&mut tx).await?;
        let scope = Scope::recent(&mut tx, standing).await?;
        self.shown(&mut tx, &scope).await
    }

    /// Compares what has changed, and writes down what does not match: unless that was done within
    /// `every`, or somebody else is at it.
    pub(crate) async fn pass(&self, every: Duration) -> sqlx::Result<Passed> {
        if !settle(&self.pool, every).await? {
            return Ok(Passed::default());
        }
        let mut tx = tasuki::begin(&self.pool).await?;
        let Some(standing) = store::hold(&mut tx, every).await? else {
            return Ok(Passed::default());
        };
        store::take_time(&mut tx, Some(UNHURRIED)).await?;
        let mut scope = Scope::recent(&mut tx, standing).await?;
        scope.folds = true;
        let (mut wrong, reached) = self.here(&mut tx, &scope).await?;
        let elsewhere = self.elsewhere(&mut tx, &scope).await;
        let failed = match elsewhere {
            Ok(more) => {
                wrong.extend(more);
                None
            }
            // What could not be looked at is as it was.
            Err(error) => {
                wrong.extend(scope.open.iter().filter(|it| is_elsewhere(it)).cloned());
                Some(error)
            }
        };
        let up_to = failed.is_none().then(|| reached.unwrap_or(standing.now));
        store::put(&mut tx, &wrong, up_to).await?;
        tx.commit().await?;
        wrong.retain(|it| !scope.open.contains(it));
        Ok(Passed { new: wrong, failed })
    }

    /// What the last pass has found.
    pub(crate) async fn known(&self) -> sqlx::Result<Known> {
        let mut connection = self.pool.acquire().await?;
        Ok(Known {
            open: store::open(&mut connection).await?,
            unfinished: store::unfinished(&mut connection).await?,
            compared_at: store::standing(&mut connection).await?.compared_at,
        })
    }

    async fn shown(
        &self,
        tx: &mut PgConnection,
        scope: &Scope,
    ) -> sqlx::Result<wire::Reconciliation> {
        let (mut wrong, _) = self.here(tx, scope).await?;
        wrong.extend(self.elsewhere(tx, scope).await?);
        let unfinished = store::unfinished(tx).await?;
        Ok(told(wrong, unfinished, scope.since))
    }

    /// What is wrong in the shop's own database; and where it stopped, if that was enough.
    async fn here(
        &self,
        tx: &mut PgConnection,
        scope: &Scope,
    ) -> sqlx::Result<(Vec<Wrong>, Option<OffsetDateTime>)> {
        let mut wrong = store::of_unfinished(tx, self.quiet).await?;
        wrong.extend(store::of_stock(tx, scope.is_all()).await?);
        wrong.extend(store::of_prepared(tx, self.quiet).await?);
        let reached = orders(tx, scope, &mut wrong).await?;
        charges(tx, scope, reached.unwrap_or(scope.now), &mut wrong).await?;
        Ok((wrong, reached))
    }

    /// What is wrong in the other warehouse, and between the two.
    async fn elsewhere(&self, tx: &mut PgConnection, scope: &Scope) -> sqlx::Result<Vec<Wrong>> {
        let Some(overflow) = &self.overflow else {
            return Ok(Vec::new());
        };
        if scope.folds {
            settle(overflow, Duration::ZERO).await?;
        }
        let mut there = tasuki::begin(overflow).await?;
        if scope.is_all() || scope.folds {
            let limit = scope.folds.then_some(UNHURRIED);
            store::take_time(&mut there, limit).await?;
        }
        let mut wrong = store::of_stock(&mut there, scope.is_all()).await?;
        wrong.extend(store::of_prepared(&mut there, self.quiet).await?);
        for it in &mut wrong {
            it.subject = format!("{THERE}{}", it.subject);
        }
        wrong.extend(uneven(tx, &mut there, scope, self.quiet).await?);
        there.commit().await?;
        Ok(wrong)
    }
}

/// What subjects in the other warehouse begin with.
const THERE: &str = "overflow: ";

/// Whether it takes the other warehouse to find this.
fn is_elsewhere(wrong: &Wrong) -> bool {
    wrong.kind == UNEVEN || wrong.subject.starts_with(THERE)
}

/// Adds up what has moved long ago, so that nobody has to again: some SKUs at a time, each for good.
/// False: it is not `every` since the last comparison, or somebody else is at it.
async fn settle(pool: &PgPool, every: Duration) -> sqlx::Result<bool> {
    let mut after = String::new();
    loop {
        let mut tx = tasuki::begin(pool).await?;
        if store::hold(&mut tx, every).await?.is_none() {
            return Ok(false);
        }
        store::take_time(&mut tx, Some(UNHURRIED)).await?;
        // Whoever has moved something holds its row, also while that is prepared. Nobody is made to
        // wait for us: the rows are let go at once, and whoever comes then moves what is younger. Only a
        // new statement sees what was committed before we had them.
        let mut look = tx.begin().await?;
        let skus = store::settled(&mut look, SETTLED, &after, FOLDED).await?;
        look.rollback().await?;
        let Some(last) = skus.last() else {
            // Whoever compares next finds nobody at it.
            tx.rollback().await?;
            return Ok(true);
        };
        after.clone_from(last);
        store::fold(&mut tx, SETTLED, &skus).await?;
        tx.commit().await?;
    }
}

/// Orders that have ended, page by page; and where it stopped, if that was enough.
async fn orders(
    tx: &mut PgConnection,
    scope: &Scope,
    wrong: &mut Vec<Wrong>,
) -> sqlx::Result<Option<OffsetDateTime>> {
    let open: BTreeSet<Uuid> = scope.open.iter().filter_map(|it| it.order_id).collect();
    let open: Vec<Uuid> = open.into_iter().collect();
    wrong.extend(store::of_orders(tx, &open).await?);
    let mut place = Place {
        at: scope.since,
        key: Uuid::nil(),
    };
    for page in 1.. {
        let found = store::ended(tx, &place, PAGE).await?;
        let Some(last) = found.last() else { break };
        place = last.clone();
        let orders = found.iter().map(|it| it.key);
        let orders: Vec<Uuid> = orders
            .filter(|it| open.binary_search(it).is_err())
            .collect();
        wrong.extend(store::of_orders(tx, &orders).await?);
        if page >= PAGES && scope.enough.is_some_and(|known| place.at > known) {
            return Ok(place.at);
        }
    }
    Ok(None)
}

/// What the provider has charged that nobody here knows of.
async fn charges(
    tx: &mut PgConnection,
    scope: &Scope,
    until: OffsetDateTime,
    wrong: &mut Vec<Wrong>,
) -> sqlx::Result<()> {
    let known = scope.open_of(STRAY).map(|it| it.subject.clone());
    let known: Vec<String> = known.collect();
    let mut stray: BTreeSet<String> = store::still_stray(tx, &known).await?.into_iter().collect();
    let mut place = Place {
        at: scope.since,
        key: String::new(),
    };
    loop {
        let found = store::charges(tx, &place, until, PAGE).await?;
        let Some(last) = found.last() else { break };
        place = Place {
            at: Some(last.created_at),
            key: last.key.clone(),
        };
        let more = found.into_iter().filter(|it| it.is_stray);
        stray.extend(more.map(|it| it.key));
    }
    wrong.extend(stray.into_iter().map(|key| Wrong {
        kind: STRAY.to_owned(),
        order_id: None,
        subject: key,
    }));
    Ok(())
}

/// Transfers of which one database has something else than the other.
async fn uneven(
    here: &mut PgConnection,
    there: &mut PgConnection,
    scope: &Scope,
    quiet: Duration,
) -> sqlx::Result<Vec<Wrong>> {
    // A transfer is looked at when it is over: so what was too young the last time is not yet.
    let since = scope.since.map(|since| since - quiet);
    let known = scope.open_of(UNEVEN).filter_map(|it| {
        let (transfer, _) = it.subject.split_once(' ')?;
        transfer.parse::<Uuid>().ok()
    });
    let mut transfers: BTreeSet<Uuid> = known.collect();
    for warehouse in [&mut *here, &mut *there] {
        transfers.extend(store::transfers(warehouse, since, quiet).await?);
    }
    let transfers: Vec<Uuid> = transfers.into_iter().collect();
    let mut wrong = Vec::new();
    for some in transfers.chunks(1000) {
        // First who is at it, and then what there is: the other way round, one that ends in between
        // would look uneven.
        let busy = store::under_way(here, some).await?;
        let mut sums: BTreeMap<(Uuid, String), i64> = BTreeMap::new();
        for warehouse in [&mut *here, &mut *there] {
            for half in store::halves(warehouse, some).await? {
                *sums.entry((half.transfer, half.sku)).or_default() += half.quantity;
            }
        }
        let uneven = sums.into_iter().filter(|(_, sum)| *sum != 0);
        let uneven = uneven.filter(|((transfer, _), _)| !busy.contains(transfer));
        wrong.extend(uneven.map(|((transfer, sku), _)| Wrong {
            kind: UNEVEN.to_owned(),
            order_id: None,
            subject: format!("{transfer} {sku}"),
        }));
    }
    Ok(wrong)
}

/// All are counted, and the first of each kind are shown.
fn told(wrong: Vec<Wrong>, unfinished: i64, since: Option<OffsetDateTime>) -> wire::Reconciliation {
    let mut kinds: BTreeMap<String, Vec<Wrong>> = BTreeMap::new();
    for it in wrong {
        kinds.entry(it.kind.clone()).or_default().push(it);
    }
    let checks = CHECKS.map(|check| wire::CheckCount {
        check: check.to_owned(),
        count: count(kinds.get(check).map_or(0, Vec::len)),
    });
    let found = kinds.into_values().flat_map(|mut all| {
        all.sort_by(|a, b| a.subject.cmp(&b.subject));
        all.truncate(SHOWN);
        all
    });
    let found = found.map(|wrong| wire::Mismatch {
        check: wrong.kind,
        order_id: wrong.order_id.map(OrderId::from),
        subject: wrong.subject,
    });
    wire::Reconciliation {
        total: checks.iter().map(|check| check.count).sum(),
        found: found.collect(),
        checks: checks.into(),
        unfinished,
        since,
    }
}

fn count(many: usize) -> i64 {
    i64::try_from(many).unwrap_or(i64::MAX)
}
