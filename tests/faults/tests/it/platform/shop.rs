//! The shop as processes that die: orders of every kind in both flows, goods that move between two
//! databases, and afterwards money and goods match to the unit.

#![expect(clippy::indexing_slicing, reason = "helpers of tests")]

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use reqwest::StatusCode;
use serde_json::{Value, json};
use sqlx::PgPool;
use tasuki::Clock;
use tasuki_service::auth::credentials::{Credentials, NewCredential, ScopeName};
use tasuki_service::auth::tokens::{KeyRing, jwks_routes};
use tasuki_shop::verify::Reconciler;
use tasuki_testkit::eventually_within;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::RwLock;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{Node, Platform};
use crate::site::stretched;

/// How payments go.
const METHODS: [&str; 7] = [
    "card",
    "test-decline",
    "card",
    "test-late",
    "test-timeout",
    "test-duplicate",
    "test-late-gone",
];
const FLOWS: [&str; 2] = ["orchestrated", "choreographed"];
const SKUS: usize = 5;
/// Every so often goods arrive, and fewer than are wanted.
const RECEIPT: usize = 40;
/// How long everything may take to come to rest.
const REST: Duration = Duration::from_secs(120);

/// What there is none of when it is quiet again.
const NEVER: [&str; 7] = [
    // Each step of each order had its effect once.
    "SELECT count(*) FROM (
        SELECT FROM entitlement.entitlement_audit
        GROUP BY source_id, stock_keeping_unit, action HAVING count(*) > 1
     ) AS twice",
    "SELECT count(*) FROM (
        SELECT FROM shop.stock_moves WHERE kind = 'SALE'
        GROUP BY cause, stock_keeping_unit HAVING count(*) > 1
     ) AS twice",
    // And was told once.
    "SELECT count(*) FROM (
        SELECT FROM shop.stories WHERE consumer IS NULL
        GROUP BY correlation_id, event_type HAVING count(*) > 1
     ) AS twice",
    // Who owns something has paid for it.
    "SELECT count(*) FROM entitlement.entitlements AS held
     LEFT JOIN shop.orders AS orders ON orders.order_id::text = held.source_id
     WHERE held.status = 'ACTIVE' AND orders.state IS DISTINCT FROM 'COMPLETED'",
    // Who has paid for something owns it.
    "SELECT count(*) FROM shop.orders AS orders
     JOIN shop.order_items AS item USING (order_id)
     WHERE orders.state = 'COMPLETED' AND NOT EXISTS (
        SELECT FROM entitlement.entitlements AS held
        WHERE held.user_id = orders.user_id
            AND held.stock_keeping_unit = item.stock_keeping_unit
            AND held.status = 'ACTIVE' AND held.source_id = orders.order_id::text
     )",
    // An order that a saga moves has one, and no other has.
    "SELECT count(*) FROM shop.orders AS orders
     WHERE (SELECT count(*) FROM shop.sagas_done AS ended WHERE ended.saga_id = orders.order_id)
        <> CASE orders.flow WHEN 'orchestrated' THEN 1 ELSE 0 END",
    // It ended as its order did.
    "SELECT count(*) FROM shop.sagas_done AS ended
     LEFT JOIN shop.orders AS orders ON orders.order_id = ended.saga_id
     WHERE orders.state IS DISTINCT FROM ended.state",
];

/// Entitlement, the shop's servers, and somebody who buys.
struct Market {
    platform: Platform,
    _entitlement: Node,
    overflow: PgPool,
    key: String,
    client: reqwest::Client,
    /// Where to ask.
    shops: RwLock<Vec<String>>,
    /// Pieces that have arrived.
    received: AtomicI64,
    /// Messages that nobody can read.
    noise: AtomicI64,
    /// The most orders that were seen under way.
    peak: AtomicI64,
    _keys: TempDir,
    _serving: JoinSet<()>,
}

impl Market {
    async fn open(name: &str, pieces: i64) -> Self {
        let (keys, clock) = (tempfile::tempdir().unwrap(), Clock::system());
        KeyRing::open_or_create(keys.path(), "entitlement", &clock).unwrap();
        KeyRing::open_or_create(keys.path(), "notification", &clock).unwrap();
        let ring = KeyRing::open_or_create(keys.path(), "shop", &clock).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let issuer = format!("http://{}", listener.local_addr().unwrap());
        let mut serving = JoinSet::new();
        let routes = jwks_routes(ring);
        serving.spawn(async move { axum::serve(listener, routes).await.unwrap() });
        let key_dir = keys.path().display().to_string();
        let scopes = tasuki_shop::NEEDED_SCOPES.join(",");
        let settings = [
            ("TASUKI_AUTH__KEY_DIR", key_dir.as_str()),
            ("TASUKI_AUTH__ISSUERS__SHOP", &issuer),
            ("TASUKI_AUTH__CALLERS__SHOP", &scopes),
            ("TASUKI_SHOP__OUTBOX__LEASE", "2s"),
            ("TASUKI_SHOP__NATS__ACK_WAIT", "2s"),
            ("TASUKI_SHOP__PAYMENT__TIMEOUT", "1s"),
            ("TASUKI_SHOP__PAYMENT__MAX_ATTEMPTS", "2"),
            ("TASUKI_SHOP__PAYMENT__KEEP_TRYING", "0s"),
            ("TASUKI_SHOP__PAYMENT__UNDO_ATTEMPTS", "1000"),
            ("TASUKI_SHOP__PAYMENT__BACKOFF_BASE", "20ms"),
            ("TASUKI_SHOP__PAYMENT__BACKOFF_MAX", "500ms"),
        ];
        let mut platform = Platform::with(name, &settings).await;
        let entitlement = platform.node("entitlement").await;
        let url = format!("http://{}", entitlement.api.unwrap());
        let postgres = &platform.stack.postgres;
        postgres.ensure_database("overflow").await.unwrap();
        let overflow = postgres.url("overflow");
        for (name, value) in [
            ("TASUKI_SHOP__ENTITLEMENT__URL", url),
            ("TASUKI_SHOP__WAREHOUSE__URL", overflow.clone()),
        ] {
            platform.settings.push((name.to_owned(), value));
        }
        // Whoever comes first migrates.
        let first = platform.node("shop").await;
        let market = Self {
            overflow: PgPool::connect_lazy(&overflow).unwrap(),
            key: credential(&platform.pool).await,
            client: reqwest::Client::new(),
            shops: RwLock::default(),
            received: AtomicI64::new(0),
            noise: AtomicI64::new(0),
            peak: AtomicI64::new(0),
            platform,
            _entitlement: entitlement,
            _keys: keys,
            _serving: serving,
        };
        market.knows(&[&first]).await;
        for number in 0..SKUS {
            market.sell(&format!("sku-{number}"), pieces).await;
        }
        first.stop().await;
        market
    }

    async fn knows(&self, nodes: &[&Node]) {
        let addresses = nodes.iter().filter_map(|node| node.api);
        let addresses = addresses.map(|api| format!("http://{api}"));
        *self.shops.write().await = addresses.collect();
    }

    /// Asks whoever serves, until there is a decision.
    async fn ask(&self, path: &str, key: &str, body: &Value) -> Value {
        eventually_within(REST, "there is a decision", async || {
            let shops = self.shops.read().await.clone();
            let shop = fastrand::choice(&shops)?;
            let request = self
                .client
                .post(format!("{shop}{path}"))
                .bearer_auth(&self.key)
                .header("Idempotency-Key", key)
                .timeout(Duration::from_secs(10))
                .json(body);
            let answer = request.send().await.ok()?;
            let is_decided = matches!(
                answer.status(),
                StatusCode::OK | StatusCode::ACCEPTED | StatusCode::CONFLICT
            );
            let body: Value = answer.json().await.ok()?;
            let is_busy = body["code"] == "IDEMPOTENCY_KEY_IN_PROGRESS";
            (is_decided && !is_busy).then_some(body)
        })
        .await
    }

    async fn sell(&self, sku: &str, pieces: i64) {
        // A process that has just started may be busy with itself, and says so.
        eventually_within(REST, "it is for sale", async || {
            let shop = self.shops.read().await.first()?.clone();
            let put = self
                .client
                .put(format!("{shop}/v1/products/{sku}"))
                .bearer_auth(&self.key)
                .json(&json!({ "price": 100, "currency": "EUR" }));
            let status = put.send().await.ok()?.status();
            status.is_success().then_some(())
        })
        .await;
        self.receive(sku, sku, pieces).await;
    }

    async fn receive(&self, key: &str, sku: &str, pieces: i64) {
        let body = json!({ "stock_keeping_unit": sku, "quantity": pieces });
        self.ask("/v1/stock/receipts", key, &body).await;
        self.received.fetch_add(pieces, Ordering::Relaxed);
    }

    /// Buys one or two SKUs, as the number says; now and then wants it undone; now and then moves
    /// goods, or new ones come.
    async fn buy(&self, number: usize) {
        let sku = |at: usize| format!("sku-{}", at % SKUS);
        let body = wanted(number);
        let taken = self.ask("/v1/orders", &format!("o{number}"), &body).await;
        let order = taken["order_id"].as_str().unwrap();
        if number.is_multiple_of(11) {
            self.cancel(order).await;
        }
        if number.is_multiple_of(5) {
            let ways = [("main", "overflow"), ("overflow", "main")];
            let (from, to) = ways[(number / 5) % 2];
            let body = json!({
                "stock_keeping_unit": sku(number), "quantity": 1, "from": from, "to": to,
            });
            self.ask("/v1/stock/transfers", &format!("t{number}"), &body)
                .await;
        }
        if number % RECEIPT == RECEIPT - 1 {
            let key = format!("r{number}");
            self.receive(&key, &sku(number / RECEIPT), 10).await;
        }
    }

    /// Sends what nobody can read, until the process that is to die of it has got some.
    async fn make_noise(&self, doomed: &mut Node) {
        let nats = &self.platform.stack.nats;
        let client = nats.connect_options().connect(nats.url()).await;
        let jetstream = async_nats::jetstream::new(client.unwrap());
        eventually_within(REST, "it dies of noise", async || {
            let number = self.noise.fetch_add(1, Ordering::Relaxed);
            let noise = format!("noise {number}");
            let sent = jetstream.publish("shop.events", noise.into()).await;
            sent.unwrap().await.unwrap();
            doomed.is_dead().then_some(())
        })
        .await;
    }

    /// Each of them is a letter, once.
    async fn has_kept_all_noise(&self) {
        let noise = self.noise.load(Ordering::Relaxed);
        let different = "SELECT count(DISTINCT convert_from(payload, 'UTF8')::json ->> 'payload')
            FROM shop.dead_letters WHERE kind = 'shop.unread'";
        eventually_within(REST, "each is a letter", async || {
            (self.count(different).await == noise).then_some(())
        })
        .await;
        let all = "SELECT count(*) FROM shop.dead_letters WHERE kind = 'shop.unread'";
        assert_eq!(self.count(all).await, noise);
        let kept = "SELECT count(*) FROM shop.jobs WHERE kind = 'shop.unread'";
        assert_eq!(self.count(kept).await, noise, "none is still to become one");
    }

    async fn cancel(&self, order: &str) {
        let path = format!("/v1/orders/{order}:cancel");
        self.ask(&path, "unused", &json!({})).await;
    }

    /// Now and then wants an order undone that is just being granted.
    async fn regret(&self, is_over: &AtomicBool) {
        while !is_over.load(Ordering::Relaxed) {
            let order: Option<String> = sqlx::query_scalar(
                "SELECT order_id::text FROM shop.orders
                 WHERE ended_at IS NULL AND state = 'STOCK_RESERVED'
                 ORDER BY updated_at DESC LIMIT 1",
            )
            .fetch_optional(&self.platform.pool)
            .await
            .unwrap();
            if let Some(order) = order {
                self.cancel(&order).await;
            }
            // sleep: most orders are wanted.
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Buys until `end`, with about `in_flight` orders under way. Returns how many there were.
    async fn rush(&self, in_flight: i64, end: impl Future<Output = ()>) -> usize {
        let (is_over, next) = (AtomicBool::new(false), AtomicUsize::new(0));
        // Buyers at a time: a thousand orders come together only if many buy.
        let buyers = (0..stretched(8, 64)).map(async |_| {
            while !is_over.load(Ordering::Relaxed) {
                self.until_fewer_are_open(in_flight).await;
                self.buy(next.fetch_add(1, Ordering::Relaxed)).await;
            }
        });
        let ends = async {
            end.await;
            is_over.store(true, Ordering::Relaxed);
        };
        tokio::join!(join_all(buyers), self.regret(&is_over), ends);
        next.into_inner()
    }

    async fn until_fewer_are_open(&self, wanted: i64) {
        let open = "SELECT count(*) FROM shop.orders WHERE ended_at IS NULL";
        eventually_within(REST, "orders end", async || {
            let open = self.count(open).await;
            self.peak.fetch_max(open, Ordering::Relaxed);
            (open < wanted).then_some(())
        })
        .await;
    }

    async fn count(&self, sql: &'static str) -> i64 {
        let counted = sqlx::query_scalar(sql).fetch_one(&self.platform.pool).await;
        counted.unwrap()
    }

    /// Waits until every order has ended; otherwise says which have not.
    async fn until_all_have_ended(&self) {
        let deadline = Instant::now() + REST;
        loop {
            let open: Vec<(String, String, String)> = sqlx::query_as(
                "SELECT order_id::text, flow, state FROM shop.orders WHERE ended_at IS NULL",
            )
            .fetch_all(&self.platform.pool)
            .await
            .unwrap();
            if open.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "{open:?}\n{}", self.left().await);
            // sleep: the next look.
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// What is left to be done, for who wants to know why it is.
    async fn left(&self) -> String {
        let jobs: Vec<String> = sqlx::query_scalar("SELECT to_jsonb(jobs)::text FROM shop.jobs")
            .fetch_all(&self.platform.pool)
            .await
            .unwrap();
        let sagas: Vec<String> = sqlx::query_scalar("SELECT to_jsonb(sagas)::text FROM shop.sagas")
            .fetch_all(&self.platform.pool)
            .await
            .unwrap();
        let events = self.count("SELECT count(*) FROM shop.outbox_events").await;
        format!("jobs {jobs:#?}\nsagas {sagas:#?}\n{events} events")
    }

    /// Everything that must hold when it is quiet again.
    async fn keeps_its_promises(&self, orders: usize) {
        let taken = "SELECT count(*) FROM shop.orders";
        assert_eq!(self.count(taken).await, i64::try_from(orders).unwrap());
        self.until_all_have_ended().await;
        eventually_within(REST, "nothing is prepared", async || {
            let prepared = self.count("SELECT count(*) FROM pg_prepared_xacts").await;
            (prepared == 0).then_some(())
        })
        .await;
        // It is at rest: nothing is too young to be judged.
        let seen = Reconciler::new(self.platform.pool.clone())
            .with_overflow(Some(self.overflow.clone()))
            .quiet(Duration::ZERO)
            .look()
            .await
            .unwrap();
        assert_eq!(seen.total, 0, "{seen:?}");
        // One that needs a person would have an order that has not ended.
        eventually_within(REST, "every saga has ended", async || {
            let live = "SELECT count(*) FROM shop.sagas";
            (self.count(live).await == 0).then_some(())
        })
        .await;
        for never in NEVER {
            assert_eq!(self.count(never).await, 0, "{never}");
        }
        self.has_kept_all_noise().await;
        self.has_or_sold_what_came().await;
    }

    /// Goods are here, there, or sold.
    async fn has_or_sold_what_came(&self) {
        let there: i64 =
            sqlx::query_scalar("SELECT coalesce(sum(on_hand), 0)::bigint FROM shop.stock")
                .fetch_one(&self.overflow)
                .await
                .unwrap();
        let here = self
            .count("SELECT sum(on_hand)::bigint FROM shop.stock")
            .await;
        let sold = self
            .count("SELECT coalesce(-sum(quantity), 0)::bigint FROM shop.stock_moves WHERE kind = 'SALE'")
            .await;
        let received = self.received.load(Ordering::Relaxed);
        assert_eq!(
            here + there + sold,
            received,
            "{here} here, {there} there, {sold} sold"
        );
        assert!(sold > 0);
    }
}

/// An order of one or two SKUs. Every fourth is somebody's who buys one thing, and then two others of
/// which one is that: what was granted of them is taken back.
fn wanted(number: usize) -> Value {
    let item = |at: usize| {
        let sku = format!("sku-{}", at % SKUS);
        json!({ "stock_keeping_unit": sku, "quantity": 1 })
    };
    let mut body = json!({
        "user_id": format!("u{number}"),
        "items": (0..=number % 2).map(|more| item(number + more)).collect::<Vec<_>>(),
        "payment_method": METHODS[number % METHODS.len()],
        "flow": FLOWS[(number / 2) % 2],
    });
    if number % 4 == 3 {
        let last = SKUS - 1;
        let items = [vec![item(last)], vec![item(0), item(last)]];
        body["user_id"] = json!(format!("twice-{}", number / 16));
        body["items"] = json!(items[(number / 8) % 2]);
        body["payment_method"] = json!("card");
        body["flow"] = json!(FLOWS[(number / 4) % 2]);
    }
    body
}

async fn credential(pool: &PgPool) -> String {
    let scopes = tasuki_shop::SCOPES.iter();
    let scopes: Vec<ScopeName> = scopes.map(|it| it.parse().unwrap()).collect();
    let wanted = NewCredential::api_key("faults", scopes).unwrap();
    let schema = tasuki::Schema::new("shop").unwrap();
    let mut connection = pool.acquire().await.unwrap();
    let made = Credentials::new(&schema)
        .create(&mut connection, &Clock::system(), &wanted)
        .await
        .unwrap();
    made.expose().to_owned()
}

#[tokio::test]
async fn killed_shops_end_every_order_and_money_and_goods_match() {
    let market = Market::open("shop-kills", 6).await;
    let mut nodes = [
        market.platform.node("shop").await,
        market.platform.node("shop").await,
    ];
    market.knows(&[&nodes[0], &nodes[1]]).await;
    let kills = async {
        let (since, least) = (Instant::now(), Duration::from_secs(stretched(0, 60)));
        let mut kills = 0;
        while kills < 4 || since.elapsed() < least {
            kills += 1;
            let pause = Duration::from_millis(fastrand::u64(500..4000));
            tokio::time::sleep(pause).await; // sleep: when they are killed is a matter of chance.
            nodes[fastrand::usize(..2)].replace(&market.platform).await;
            market.knows(&[&nodes[0], &nodes[1]]).await;
        }
    };
    let in_flight = stretched(100, 1000);
    let bought = market.rush(in_flight, kills).await;
    let peak = market.peak.load(Ordering::Relaxed);
    // A short run may end before so many come together.
    let wanted = stretched(20, in_flight);
    assert!(peak >= wanted, "{peak} were under way, of {bought}");
    market.keeps_its_promises(bought).await;
}

/// Kills a process at each of `points` while orders come, beside one that stays.
async fn die_at(name: &str, points: &[&str]) {
    // Enough for all of them: whoever is to die while something is granted must come to that.
    let market = Market::open(name, 100_000).await;
    let steady = market.platform.node("shop").await;
    market.knows(&[&steady]).await;
    // Whoever is to die needs something to die of, and not so much that the rest is long.
    let deaths = async {
        for point in points {
            eprintln!("a process dies at {point}");
            let mut doomed = market.platform.doomed("shop", point, 1).await;
            market.knows(&[&steady, &doomed]).await;
            if *point == "shop.kept" {
                Box::pin(market.make_noise(&mut doomed)).await;
            }
            doomed.is_killed().await;
            market.knows(&[&steady]).await;
        }
    };
    let bought = Box::pin(market.rush(50, deaths)).await;
    market.keeps_its_promises(bought).await;
}

#[tokio::test]
async fn a_shop_that_dies_at_any_point_of_an_order_is_made_good_by_another() {
    let points = [
        "shop.order_taken",
        "saga.claimed",
        "saga.begun",
        "shop.provider_charged",
        "shop.charge_answered",
        "saga.called",
        "saga.written",
        "shop.granted_one",
        "shop.grant_given_up",
        "shop.revoked_one",
        "shop.provider_refunded",
        "shop.refund_answered",
        "shop.payment_given_up",
        "shop.handed_over",
    ];
    Box::pin(die_at("shop-crash", &points)).await;
}

#[tokio::test]
async fn a_shop_that_dies_at_any_point_of_a_reaction_or_a_transfer_is_made_good_by_another() {
    let points = [
        "shop.before_commit",
        "shop.committed",
        "choreography.before_commit",
        "choreography.committed",
        "shop.kept",
        "twopc.preparing",
        "twopc.prepared",
        "twopc.decided",
    ];
    Box::pin(die_at("shop-react", &points)).await;
}
