//! What an operator sees of sagas and does about those that can't go on: of an order, and of a saga of
//! the test's own, which runs beside the shop's in the same tables.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "helpers of tests"
)]

use std::io::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use sqlx::PgPool;
use tasuki::jobs::BoxError;
use tasuki::saga::{
    Again, At, Definition, Engine, Fail, Registry, Remote, RemoteUndo, Sagas, Seen, Settings, Step,
    define,
};
use tasuki::worker::{Stopped, Supervisor};
use tasuki::{Clock, Schema};
use tasuki_testkit::eventually_within;

use crate::shopping::ask;
use crate::support::{Answer, Up, World};

/// Generous: everything has just started.
const LIMIT: Duration = Duration::from_secs(60);
const GRACE: Duration = Duration::from_secs(10);
const NOBODY: &str = "01930000-0000-7000-8000-00000000000a";

/// `tasuki saga …`, by Ann.
async fn saga(world: &World, line: &str) -> Answer {
    let words: Vec<&str> = ["saga"].into_iter().chain(line.split(' ')).collect();
    let mut command = world.joined(&words);
    command.env("USER", "ann");
    world.run(command).await
}

async fn show(world: &World, id: &str) -> Value {
    saga(world, &format!("show {id} --json")).await.json()
}

async fn until(world: &World, id: &str, state: &str) -> Value {
    let what = format!("saga {id} is {state}");
    eventually_within(LIMIT, &what, async || {
        let shown = show(world, id).await;
        (shown["state"] == state).then_some(shown)
    })
    .await
}

/// The states of all steps, by name and in order.
fn steps(shown: &Value) -> Vec<(&str, &str)> {
    let steps = shown["steps"].as_array().unwrap().iter();
    steps
        .map(|step| {
            (
                step["name"].as_str().unwrap(),
                step["state"].as_str().unwrap(),
            )
        })
        .collect()
}

/// An order that was paid, can't be served, and whose refund is refused.
async fn stuck_order(up: &Up) -> String {
    let price = json!({ "price": 700, "currency": "EUR" });
    ask(up, Method::PUT, "/v1/products/sword", "-", &price).await;
    let body = json!({
        "user_id": "ada",
        "items": [{ "stock_keeping_unit": "sword", "quantity": 1 }],
        "payment_method": "test-refund-refused",
        "flow": "orchestrated",
    });
    let (status, taken) = ask(up, Method::POST, "/v1/orders", "o", &body).await;
    assert_eq!(status, 202, "{taken}");
    taken["order_id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn an_order_whose_refund_is_refused_is_listed_shown_and_resumed_when_the_fault_is_gone() {
    let world = World::new();
    let mut command = world.command(&["up"]);
    command.env("TASUKI_SHOP__PAYMENT__UNDO_ATTEMPTS", "1");
    let up = world.ready(world.start(command)).await;
    let pool = PgPool::connect(up.env.get("DATABASE_URL")).await.unwrap();
    let order = stuck_order(&up).await;
    let shown = until(&world, &order, "NEEDS_ATTENTION").await;
    assert_eq!(
        steps(&shown),
        [
            ("create_order", "DONE"),
            ("charge_payment", "DONE"),
            ("reserve_stock", "UNDONE"),
            ("grant_entitlement", "FAILED"),
            ("confirm", "NOT_BEGUN"),
        ]
    );
    assert_eq!(shown["stuck"]["step"], "charge_payment");
    let why = shown["stuck"]["reason"].as_str().unwrap();
    assert!(why.contains("refuses to refund"), "{why}");
    assert_eq!(shown["input"]["order_id"], order.as_str());
    assert_eq!(shown["notes"], json!([]));

    let listed = saga(&world, "list --json").await.json();
    assert_eq!(listed["needs_attention"], 1, "{listed}");
    assert_eq!(listed["sagas"][0]["id"], order.as_str());

    // The fault is still there: it comes back, and what was done about it is kept.
    let resume = format!("resume {order} --reason again --json");
    let resumed = saga(&world, &resume).await.json();
    assert_eq!(resumed, json!({ "resumed": 1, "already": [], "not": [] }));
    eventually_within(LIMIT, "it is stuck again", async || {
        let shown = show(&world, &order).await;
        let again = shown["state"] == "NEEDS_ATTENTION" && shown["notes"][0]["by"] == "cli:ann";
        again.then_some(())
    })
    .await;

    let mend = "UPDATE shop.simulated_charges SET refuses_refund = FALSE";
    sqlx::query(mend).execute(&pool).await.unwrap();
    let all = "resume --all --saga order --reason mended";
    assert_eq!(saga(&world, all).await.ok(), "1 resumed\n");
    let shown = until(&world, &order, "COMPENSATED").await;
    assert_eq!(shown["notes"][1]["reason"], "mended");
    let kept = "SELECT sum(amount - refunded)::bigint FROM shop.simulated_charges";
    let kept: i64 = sqlx::query_scalar(kept).fetch_one(&pool).await.unwrap();
    assert_eq!(kept, 0, "the money is back");
    assert_eq!(saga(&world, all).await.ok(), "0 resumed\n");
    let again = saga(&world, &resume).await.json();
    assert_eq!(again["not"], json!([]), "{again}");
    let already = again["already"][0].as_str().unwrap();
    assert!(
        already.contains("already COMPENSATED: resume by cli:ann"),
        "{already}"
    );
}

#[tokio::test]
async fn the_story_of_an_order_that_no_saga_moves_is_shown_under_its_id() {
    let world = World::new();
    let up = world.up().await;
    let price = json!({ "price": 700, "currency": "EUR" });
    ask(&up, Method::PUT, "/v1/products/sword", "-", &price).await;
    let body = json!({
        "user_id": "ada",
        "items": [{ "stock_keeping_unit": "sword", "quantity": 1 }],
        "payment_method": "test-decline",
        "flow": "choreographed",
    });
    let (status, taken) = ask(&up, Method::POST, "/v1/orders", "o", &body).await;
    assert_eq!(status, 202, "{taken}");
    let order = taken["order_id"].as_str().unwrap();
    let shown = eventually_within(LIMIT, "the story is over", async || {
        let shown = show(&world, order).await;
        let events = shown["events"].as_array()?;
        let is_over = events.last()?["event_type"] == "OrderCancelled";
        is_over.then_some(shown)
    })
    .await;
    assert_eq!(shown["correlation_id"], order);
    let events = shown["events"].as_array().unwrap().iter();
    let events: Vec<_> = events
        .map(|it| (&it["event_type"], &it["depth"], &it["heard"][0]["consumer"]))
        .collect();
    assert_eq!(
        events,
        [
            (&json!("OrderCreated"), &json!(0), &json!("payment")),
            (&json!("PaymentFailed"), &json!(0), &json!("orders")),
            (&json!("OrderCancelled"), &json!(1), &Value::Null),
        ]
    );
    let printed = saga(&world, &format!("show {order}")).await.ok();
    for word in [order, "OrderCreated", "  OrderCancelled", "payment at "] {
        assert!(printed.contains(word), "{word}: {printed}");
    }
    // Nothing of that can be resumed.
    let resume = format!("resume {order} --preview --reason no");
    let resume = saga(&world, &resume).await;
    assert!(resume.err.contains("there is no saga"), "{}", resume.err);
}

/// What the saga of the test meets.
#[derive(Clone, Debug, Default)]
struct Depot {
    /// No lorry leaves, and nothing can be brought back.
    is_closed: Arc<AtomicBool>,
    /// Nobody can be told.
    is_mute: Arc<AtomicBool>,
}

struct Take(Depot);
struct Pack;
struct Ship(Depot);
struct Tell(Depot);

macro_rules! step {
    ($($step:ident $name:literal $failure:ty;)*) => {$(
        impl Step for $step {
            const NAME: &'static str = $name;
            type Input = u32;
            type Output = String;
            type Failure = $failure;
        }
    )*};
}

step! {
    Take "take" Fail<Error>;
    Pack "pack" Fail<Error>;
    Ship "ship" Fail<Error>;
    Tell "tell" Again<Error>;
}

impl Remote for Take {
    async fn act(&self, pieces: &u32, _: &At) -> Result<String, Fail<Error>> {
        Ok(format!("{pieces} taken"))
    }
}

impl RemoteUndo for Take {
    async fn undo(&self, _: &u32, _: Option<&String>, _: &At) -> Result<(), Again> {
        match self.0.is_closed.load(Ordering::SeqCst) {
            true => Err(Again::stuck("the depot is closed")),
            false => Ok(()),
        }
    }
}

impl Remote for Pack {
    async fn act(&self, _: &u32, at: &At) -> Result<String, Fail<Error>> {
        Ok(at.key())
    }
}

impl RemoteUndo for Pack {
    async fn undo(&self, _: &u32, _: Option<&String>, _: &At) -> Result<(), Again> {
        Ok(())
    }
}

impl Remote for Ship {
    async fn act(&self, _: &u32, _: &At) -> Result<String, Fail<Error>> {
        match self.0.is_closed.load(Ordering::SeqCst) {
            true => Err(Fail::abort(Error::other("no lorry leaves"))),
            false => Ok("lorry 7".to_owned()),
        }
    }
}

impl Remote for Tell {
    async fn act(&self, _: &u32, _: &At) -> Result<String, Again<Error>> {
        match self.0.is_mute.load(Ordering::SeqCst) {
            true => Err(Again::stuck(Error::other("nobody answers"))),
            false => Ok("told".to_owned()),
        }
    }
}

fn delivery(depot: &Depot) -> Definition<u32> {
    fn pieces(saga: &Seen<'_, u32>) -> Result<u32, BoxError> {
        Ok(*saga.input())
    }
    define::<u32>("delivery", 3)
        .remote(Take(depot.clone()), pieces)
        .remote(Pack, pieces)
        .pivot_remote(Ship(depot.clone()), pieces)
        .remote(Tell(depot.clone()), pieces)
        .build()
        .unwrap()
}

/// A process that delivers.
struct Deliveries {
    depot: Depot,
    definition: Definition<u32>,
    engine: Engine,
    supervisor: Supervisor,
}

impl Deliveries {
    async fn start(up: &Up) -> Self {
        let pool = PgPool::connect(up.env.get("DATABASE_URL")).await.unwrap();
        let depot = Depot::default();
        let definition = delivery(&depot);
        let sagas = Sagas::new(&Schema::new("shop").unwrap());
        let settings = Settings::new("shop.deliveries", pool);
        let registry = Registry::new().with(&definition);
        let engine = Engine::new(&sagas, registry, settings).unwrap();
        let supervisor = Supervisor::new(Clock::system());
        engine.start(&supervisor);
        Self {
            depot,
            definition,
            engine,
            supervisor,
        }
    }

    /// A delivery that comes to its end, or needs attention.
    async fn run(&self) -> String {
        let ended = self.engine.run(&self.definition, &5).await.unwrap();
        ended.id.to_string()
    }
}

#[tokio::test]
async fn a_saga_that_is_stuck_is_retried_skipped_or_closed_and_says_by_whom() {
    let world = World::new();
    let up = world.up().await;
    let deliveries = Deliveries::start(&up).await;
    let Depot { is_closed, is_mute } = &deliveries.depot;
    is_closed.store(true, Ordering::SeqCst);
    let ids = [
        deliveries.run().await,
        deliveries.run().await,
        deliveries.run().await,
    ];
    let [retried, skipped, closed] = &ids;
    they_are_listed(&world, &ids).await;
    everything_is_shown(&world, retried).await;
    what_can_not_be_is_refused(&world, retried).await;
    what_can_not_be_meant_is_refused(&world, retried).await;

    let close = format!("close {closed} --compensated --reason by-hand");
    assert_eq!(saga(&world, &close).await.ok(), "1 closed\n");
    let again = saga(&world, &close).await.ok();
    let who = "already COMPENSATED: close as COMPENSATED by cli:ann";
    assert!(again.contains(who), "{again}");
    let other = saga(&world, &format!("close {closed} --completed --reason no")).await;
    assert_eq!(other.code, Some(1), "{other:?}");
    assert!(other.out.contains("it is COMPENSATED"), "{other:?}");

    let skip = format!("skip {skipped} --step take --reason brought-back");
    assert_eq!(saga(&world, &skip).await.ok(), "1 skipped\n");
    until(&world, skipped, "COMPENSATED").await;

    is_closed.store(false, Ordering::SeqCst);
    let retry = format!("retry {retried} --from pack --reason open");
    assert_eq!(saga(&world, &retry).await.ok(), "1 retried\n");
    let shown = until(&world, retried, "COMPLETED").await;
    assert_eq!(steps(&shown).last(), Some(&("tell", "DONE")));
    let key = shown["steps"][1]["key"].as_str().unwrap();
    assert_eq!(key, format!("{retried}:pack:act.1"));
    let again = saga(&world, &retry).await.ok();
    assert!(again.starts_with("0 retried\n"), "{again}");
    assert!(again.contains("retry from pack by cli:ann"), "{again}");

    // Behind the pivot: it can only go forward, and somebody says what the step would have given.
    is_mute.store(true, Ordering::SeqCst);
    let mute = deliveries.run().await;
    let skip = format!("skip {mute} --step tell --output \"phone\" --reason called");
    assert_eq!(saga(&world, &skip).await.ok(), "1 skipped\n");
    let shown = until(&world, &mute, "COMPLETED").await;
    assert_eq!(shown["steps"][3]["output"], "phone");
    assert_eq!(deliveries.supervisor.stop(GRACE).await, Stopped::Finished);
}

async fn they_are_listed(world: &World, ids: &[String; 3]) {
    let listed = saga(world, "list --saga delivery --json").await.json();
    assert_eq!(listed["service"], "shop");
    assert_eq!(listed["needs_attention"], 3);
    let found = listed["sagas"].as_array().unwrap();
    let newest: Vec<_> = ids.iter().rev().collect();
    assert_eq!(found.iter().map(|it| &it["id"]).collect::<Vec<_>>(), newest);
    assert_eq!(found[0]["reason"], "the depot is closed");
    let one = "list --state NEEDS_ATTENTION --limit 1";
    let text = saga(world, one).await.ok();
    let counts = "3 need attention, 0 go forward, 0 go back";
    assert!(text.starts_with(counts), "{text}");
    assert!(text.contains(&ids[2]) && !text.contains(&ids[1]), "{text}");
    let none = saga(world, "list --state COMPLETED").await.ok();
    assert!(none.ends_with("none fits\n"), "{none}");
}

async fn everything_is_shown(world: &World, id: &str) {
    let shown = show(world, id).await;
    let seen = [
        ("take", "DONE"),
        ("pack", "UNDONE"),
        ("ship", "FAILED"),
        ("tell", "NOT_BEGUN"),
    ];
    assert_eq!(steps(&shown), seen);
    assert_eq!(shown["definition"], "delivery");
    assert_eq!(shown["version"], 3);
    let stuck = json!({ "step": "take", "reason": "the depot is closed" });
    let failure = json!({ "step": "ship", "reason": "no lorry leaves" });
    assert_eq!((&shown["stuck"], &shown["failure"]), (&stuck, &failure));
    let take = &shown["steps"][0];
    assert_eq!(
        (&take["input"], &take["kind"]),
        (&json!(5), &json!("remote"))
    );
    assert_eq!(take["output"], "5 taken");
    assert_eq!(
        (&take["failed_attempts"], &take["failed_undos"]),
        (&json!(0), &json!(1))
    );
    assert_eq!(shown["steps"][2]["role"], "pivot");
    let text = saga(world, &format!("show {id}")).await.ok();
    for part in [
        "stuck at",
        "the depot is closed",
        "remote pivot",
        "NOT_BEGUN",
        "5 taken",
        &format!("{id}:take:act"),
        &format!("tasuki saga resume {id}"),
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// With this saga, as it is.
async fn what_can_not_be_is_refused(world: &World, id: &str) {
    let before = show(world, id).await;
    for (line, why) in [
        ("retry {} --from take", "`take` is done, and not undone"),
        ("retry {} --from ship", "`pack`, which is before `ship`"),
        (
            "retry {} --from sail",
            "its steps are take, pack, ship, tell",
        ),
        ("skip {} --step ship", "not stuck at `ship`, but at `take`"),
        ("skip {} --step take --output 1", "gives no output"),
        ("resume nobody", "there is no such saga"),
        ("close nobody --completed", "there is no such saga"),
    ] {
        let line = line.replace("{}", id).replace("nobody", NOBODY);
        let refused = saga(world, &format!("{line} --reason x")).await;
        assert_eq!(refused.code, Some(1), "{line}: {refused:?}");
        assert!(refused.out.starts_with("0 "), "{line}: {refused:?}");
        assert!(refused.out.contains(why), "{line}: {refused:?}");
    }
    assert_eq!(show(world, id).await, before);
}

/// With any.
async fn what_can_not_be_meant_is_refused(world: &World, id: &str) {
    let before = show(world, id).await;
    for (line, culprits) in [
        ("show nobody", &["there is no saga", NOBODY][..]),
        ("resume {} --reason ", &["`reason`", "1 to 1000"]),
        ("list --state ASLEEP", &["ASLEEP", "NEEDS_ATTENTION"]),
        ("list --saga nothing", &["nothing", "delivery", "order"]),
        ("resume --all --saga nothing --reason x", &["delivery"]),
        ("list --service system", &["system"]),
    ] {
        let line = line.replace("{}", id).replace("nobody", NOBODY);
        saga(world, &line).await.is_refused(1, culprits);
    }
    let preview = "resume --all --preview --reason x --json";
    let meant = saga(world, preview).await.json();
    assert_eq!(meant["sagas"].as_array().unwrap().len(), 3);
    assert_eq!(show(world, id).await, before);
}

#[tokio::test]
async fn a_saga_that_can_not_be_read_or_is_held_keeps_no_other_from_being_resumed() {
    let world = World::new();
    let up = world.up().await;
    let deliveries = Deliveries::start(&up).await;
    deliveries.depot.is_closed.store(true, Ordering::SeqCst);
    let waits = deliveries.run().await;
    // Those that were begun last come first.
    let (held, unread) = (deliveries.run().await, deliveries.run().await);
    deliveries.depot.is_closed.store(false, Ordering::SeqCst);
    let pool = PgPool::connect(up.env.get("DATABASE_URL")).await.unwrap();
    let mangle = "UPDATE shop.sagas SET story = '{}' WHERE saga_id = $1::uuid";
    let done = sqlx::query(mangle).bind(&unread).execute(&pool).await;
    assert_eq!(done.unwrap().rows_affected(), 1);
    let mut tx = pool.begin().await.unwrap();
    let hold = "SELECT FROM shop.sagas WHERE saga_id = $1::uuid FOR UPDATE";
    sqlx::query(hold)
        .bind(&held)
        .execute(&mut *tx)
        .await
        .unwrap();

    let all = ["saga", "resume", "--all", "--reason", "open", "--json"];
    let mut command = world.joined(&all);
    command.env("TASUKI_DATABASE__LOCK_TIMEOUT", "200ms");
    let answer = world.run(command).await;
    assert_eq!(answer.code, Some(1), "{answer:?}");
    let told: Value = serde_json::from_str(&answer.out).unwrap();
    assert_eq!(told["resumed"], 1, "{told}");
    let [first, second] = told["not"].as_array().unwrap().as_slice() else {
        panic!("two could not be resumed: {told}");
    };
    let says = |line: &Value, id: &str, why: &str| {
        let line = line.as_str().unwrap();
        line.starts_with(id) && line.contains(why)
    };
    assert!(says(first, &unread, "can't be read"), "{told}");
    assert!(says(second, &held, "lock timeout"), "{told}");
    until(&world, &waits, "COMPENSATED").await;

    tx.rollback().await.unwrap();
    let again = saga(&world, "resume --all --reason open --json").await;
    let told: Value = serde_json::from_str(&again.out).unwrap();
    assert_eq!(told["resumed"], 1, "{told}");
    until(&world, &held, "COMPENSATED").await;
    assert_eq!(deliveries.supervisor.stop(GRACE).await, Stopped::Finished);
}
