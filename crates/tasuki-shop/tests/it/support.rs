//! A running shop beside a running entitlement service, and somebody who buys.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Postgres, Transaction};
use tasuki::dlq::{Filter, Letters};
use tasuki::idempotency::LockNumber;
use tasuki::saga::{By, Sagas};
use tasuki_service::auth::credentials::{Credentials, NewCredential, ScopeName};
use tasuki_service::auth::tokens::{KeyRing, jwks_routes};
use tasuki_service::config::Config;
use tasuki_service::host::{Host, Role};
use tasuki_service::service::Tables;
use tasuki_service::telemetry::Meter;
use tasuki_testkit::{Reply, TestDb, TestEnv, TestHost, eventually_within};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use uuid::Uuid;

/// Some payments take their time to fail, on purpose.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Both ways in which an order moves.
pub(crate) const FLOWS: [&str; 2] = ["orchestrated", "choreographed"];

pub(crate) struct World {
    pub(crate) env: TestEnv,
    pub(crate) host: TestHost,
    pub(crate) tables: Tables,
    /// The database of the other warehouse.
    pub(crate) overflow: TestDb,
    /// An API key that may do everything at the shop.
    pub(crate) key: String,
    pub(crate) operator: String,
    pub(crate) entitlement: TestHost,
    /// And one at entitlement.
    pub(crate) entitlement_key: String,
    client: reqwest::Client,
    _keys: TempDir,
    _serving: JoinSet<()>,
}

impl World {
    pub(crate) async fn start() -> Self {
        Self::with(|config| config).await
    }

    /// With other settings.
    pub(crate) async fn with(change: impl FnOnce(Config) -> Config) -> Self {
        Self::as_role(Role::Everything, change).await
    }

    /// A shop that takes orders, and has nobody who works on them.
    pub(crate) async fn taking_orders_only() -> Self {
        Self::as_role(Role::Http, |config| config).await
    }

    async fn as_role(role: Role, change: impl FnOnce(Config) -> Config) -> Self {
        let keys = tempfile::tempdir().unwrap();
        let (env, serving) = prepared(&keys, change).await;
        let (entitlement, entitlement_tables) = serve_entitlement(&env).await;
        let overflow = TestDb::new(&shop_tables(&env).plans).await;
        let mut env = env;
        env.config = env
            .config
            .with_value(
                "shop.entitlement.url",
                format!("http://{}", entitlement.api),
            )
            .unwrap()
            .with_value("shop.warehouse.url", overflow.url())
            .unwrap();
        let host = serve(&env, role).await;
        let tables = shop_tables(&env);
        let key = key_with(&env, &tables, &tasuki_shop::SCOPES).await;
        let all = tasuki_entitlement::SCOPES;
        let entitlement_key = key_with(&env, &entitlement_tables, &all).await;
        let operator = operator(&env, &tables).await;
        Self {
            env,
            host,
            tables,
            overflow,
            key,
            operator,
            entitlement,
            entitlement_key,
            client: reqwest::Client::new(),
            _keys: keys,
            _serving: serving,
        }
    }

    /// Another process of the shop.
    pub(crate) async fn another(&self) -> TestHost {
        serve(&self.env, Role::Everything).await
    }

    /// Sells `sku` at `price`, and puts `pieces` of it on the shelf.
    pub(crate) async fn sell(&self, sku: &str, price: i64, pieces: i64) {
        self.product(sku, &json!({ "price": price, "currency": "EUR" }))
            .await;
        if pieces > 0 {
            self.receive(sku, pieces).await;
        }
    }

    pub(crate) async fn product(&self, sku: &str, body: &Value) {
        let path = format!("/v1/products/{sku}");
        let key = Some(self.key.as_str());
        let put = self.host.send(Method::PUT, &path, key, Some(body)).await;
        assert_eq!(put.status, 200, "{}", put.text);
    }

    pub(crate) async fn receive(&self, sku: &str, pieces: i64) {
        let body = json!({ "stock_keeping_unit": sku, "quantity": pieces });
        let key = format!("r-{sku}-{pieces}");
        let received = self.post("/v1/stock/receipts", &key, &body).await;
        assert_eq!(received.status, 200, "{}", received.text);
    }

    /// `POST` with a key, as somebody who may.
    pub(crate) async fn post(&self, path: &str, key: &str, body: &Value) -> Reply {
        self.post_as(&self.key, path, key, body).await
    }

    pub(crate) async fn post_as(
        &self,
        credential: &str,
        path: &str,
        key: &str,
        body: &Value,
    ) -> Reply {
        let request = self
            .client
            .post(format!("http://{}{path}", self.host.api))
            .bearer_auth(credential)
            .header("Idempotency-Key", key)
            .json(body);
        let response = request.send().await.unwrap();
        Reply {
            status: response.status(),
            headers: response.headers().clone(),
            text: response.text().await.unwrap(),
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.host.get_as(&self.key, path).await
    }

    /// Places an order, and answers its id.
    pub(crate) async fn order(&self, body: &Value) -> String {
        let key = format!("{}", Uuid::now_v7());
        let taken = self.post("/v1/orders", &key, body).await;
        assert_eq!(taken.status, 202, "{}", taken.text);
        assert_eq!(taken.json()["order_id"], taken.json()["saga_id"]);
        taken.json()["order_id"].as_str().unwrap().to_owned()
    }

    /// An API key that may do this alone.
    pub(crate) async fn key_with(&self, scope: &str) -> String {
        key_with(&self.env, &self.tables, &[scope]).await
    }

    /// Places an order in the trace with this id.
    pub(crate) async fn order_in(&self, trace: &str, body: &Value) -> String {
        let request = self
            .client
            .post(format!("http://{}/v1/orders", self.host.api))
            .bearer_auth(&self.key)
            .header("Idempotency-Key", trace)
            .header("traceparent", format!("00-{trace}-00f067aa0ba902b7-01"))
            .json(body);
        let taken: Value = request.send().await.unwrap().json().await.unwrap();
        taken["order_id"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn cancel(&self, order: &str) -> Reply {
        let path = format!("/v1/orders/{order}:cancel");
        self.post(&path, "unused", &json!({})).await
    }

    pub(crate) async fn look(&self, order: &str) -> Value {
        let shown = self.get(&format!("/v1/orders/{order}")).await;
        assert_eq!(shown.status, 200, "{}", shown.text);
        shown.json()
    }

    /// Waits until an order is in one of `states`.
    pub(crate) async fn until(&self, order: &str, states: &[&str]) -> Value {
        let what = format!("order {order} is {}", states.join(" or "));
        eventually_within(LIMIT, &what, async || {
            let seen = self.look(order).await;
            let state = seen["state"].as_str().unwrap();
            states.contains(&state).then_some(seen)
        })
        .await
    }

    /// Waits until an order has ended.
    pub(crate) async fn ended(&self, order: &str) -> Value {
        self.until(order, &["COMPLETED", "COMPENSATED"]).await
    }

    pub(crate) async fn count(&self, sql: impl Into<String>) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(sql.into()))
            .fetch_one(&self.env.db.pool)
            .await
            .unwrap()
    }

    pub(crate) async fn execute(&self, sql: impl Into<String>) {
        sqlx::raw_sql(AssertSqlSafe(sql.into()))
            .execute(&self.env.db.pool)
            .await
            .unwrap();
    }

    /// What is on hand and what is set aside of `sku`.
    pub(crate) async fn stock(&self, sku: &str) -> (i64, i64) {
        let of = |column: &str| {
            format!(
                "SELECT coalesce(sum({column}), 0)::bigint FROM shop.stock WHERE stock_keeping_unit = '{sku}'"
            )
        };
        (
            self.count(of("on_hand")).await,
            self.count(of("reserved")).await,
        )
    }

    /// Whether `user` may use `sku`.
    pub(crate) async fn owns(&self, user: &str, sku: &str) -> bool {
        let path = format!("/v1/users/{user}/entitlements/{sku}");
        let check = self.entitlement.get_as(&self.entitlement_key, &path).await;
        assert_eq!(check.status, 200, "{}", check.text);
        check.json()["allowed"] == true
    }

    /// How many pieces of `sku` a user has left.
    pub(crate) async fn left(&self, user: &str, sku: &str) -> i64 {
        let path = format!("/v1/users/{user}/entitlements/{sku}");
        let check = self.entitlement.get_as(&self.entitlement_key, &path).await;
        let quantity = &check.json()["entitlement"]["quantity"];
        quantity.as_i64().unwrap_or_default()
    }

    /// Takes `sku` from `user` by another way than an order.
    pub(crate) async fn take(&self, user: &str, sku: &str) {
        let body = json!({
            "user_id": user,
            "stock_keeping_unit": sku,
            "reason": "fraud",
            "purchase_id": "case-1",
        });
        let request = self
            .client
            .post(format!(
                "http://{}/v1/entitlements/revokes",
                self.entitlement.api
            ))
            .bearer_auth(&self.entitlement_key)
            .header("Idempotency-Key", format!("case-{user}-{sku}"))
            .json(&body);
        assert_eq!(request.send().await.unwrap().status(), 200);
    }

    /// Grants `sku` to `user` by another way than an order.
    pub(crate) async fn give(&self, user: &str, sku: &str, quantity: Option<i64>) {
        let mut body = json!({
            "user_id": user,
            "stock_keeping_unit": sku,
            "reason": "gift",
            "purchase_id": "gift-1",
        });
        if let Some(quantity) = quantity {
            body["quantity"] = quantity.into();
        }
        let request = self
            .client
            .post(format!(
                "http://{}/v1/entitlements/grants",
                self.entitlement.api
            ))
            .bearer_auth(&self.entitlement_key)
            .header("Idempotency-Key", format!("gift-{user}-{sku}"))
            .json(&body);
        assert_eq!(request.send().await.unwrap().status(), 200);
    }

    /// Makes entitlement answer 503 to everything about this entitlement, until it is dropped.
    pub(crate) async fn hold(&self, user: &str, sku: &str) -> Transaction<'static, Postgres> {
        let lock = LockNumber::of(&["entitlement", "entitlement", user, sku]);
        let mut tx = self.env.db.pool.begin().await.unwrap();
        sqlx::query("SELECT pg_advisory_xact_lock($1)")
            .bind(lock.get())
            .execute(&mut *tx)
            .await
            .unwrap();
        tx
    }

    /// Keeps a copy of every job from now on, for [`run_again`](Self::run_again).
    pub(crate) async fn keep_jobs(&self) {
        self.execute(
            "CREATE TABLE shop.kept (LIKE shop.jobs);
             CREATE FUNCTION shop.keep() RETURNS trigger LANGUAGE plpgsql AS
             'BEGIN INSERT INTO shop.kept SELECT NEW.*; RETURN NEW; END';
             CREATE TRIGGER keep AFTER INSERT ON shop.jobs
             FOR EACH ROW EXECUTE FUNCTION shop.keep()",
        )
        .await;
    }

    /// Runs a job of an order once more, with one attempt, as after a process that died before it
    /// could say that the job has ended. Returns when that is over.
    pub(crate) async fn run_again(&self, kind: &str, order: &str) {
        let of = format!("kind = '{kind}' AND payload ->> 'order' = '{order}'");
        let again = "gen_random_uuid(), queue, priority, kind";
        self.execute(format!(
            "INSERT INTO shop.jobs (job_id, queue, priority, kind, payload)
             SELECT {again}, jsonb_set(payload, '{{pace, tries}}', '1')
             FROM shop.kept WHERE {of} LIMIT 1"
        ))
        .await;
        let left = format!("SELECT count(*) FROM shop.jobs WHERE {of} AND status <> 'FAILED'");
        eventually_within(LIMIT, "it has run", async || {
            (self.count(&left).await == 0).then_some(())
        })
        .await;
    }

    /// Waits until nothing is left to be done by jobs.
    pub(crate) async fn idle(&self) {
        let left = "SELECT count(*) FROM shop.jobs WHERE status <> 'FAILED'";
        eventually_within(LIMIT, "all jobs have run", async || {
            (self.count(left).await == 0).then_some(())
        })
        .await;
    }

    /// Says of orders that need attention that their fault is gone.
    pub(crate) async fn resume(&self, orders: &[String]) {
        let schema = &self.tables.schema;
        let (by, why) = ("ada", "the fault is gone");
        let sagas = Sagas::new(schema);
        let mut tx = self.env.db.pool.begin().await.unwrap();
        for order in orders {
            let saga: Uuid = order.parse().unwrap();
            let known = sagas.get(&mut tx, saga.into()).await.unwrap();
            if known.is_some() {
                let by = By::new(by, why);
                sagas.resume(&mut tx, saga.into(), &by).await.unwrap();
            }
        }
        let _redriven = Letters::new(schema, &[])
            .redrive(&mut tx, &Filter::default(), by, Some(why))
            .await
            .unwrap();
        tx.commit().await.unwrap();
    }

    /// What does not match, as the operator's check shows it.
    pub(crate) async fn mismatches(&self) -> Value {
        let seen = self.host.get_as(&self.operator, "/v1/reconciliation").await;
        assert_eq!(seen.status, 200, "{}", seen.text);
        seen.json()
    }

    /// Money and goods match to the unit.
    pub(crate) async fn matches(&self) {
        let seen = self.mismatches().await;
        assert_eq!(seen["total"], 0, "{seen}");
    }

    /// What operators were told, of the kind that the query says.
    pub(crate) async fn notices(&self, query: &str) -> Vec<Value> {
        let path = format!("/v1/notices{query}");
        let seen = self.host.get_as(&self.operator, &path).await;
        assert_eq!(seen.status, 200, "{}", seen.text);
        seen.json()["notices"].as_array().unwrap().clone()
    }
}

/// An order of one piece of each of `skus`.
pub(crate) fn basket(user: &str, skus: &[&str], method: &str, flow: &str) -> Value {
    let items: Vec<_> = skus
        .iter()
        .map(|sku| json!({ "stock_keeping_unit": sku, "quantity": 1 }))
        .collect();
    json!({ "user_id": user, "items": items, "payment_method": method, "flow": flow })
}

/// The surroundings of one test, with streams that no other test has, and the shop's keys published.
async fn prepared(keys: &TempDir, change: impl FnOnce(Config) -> Config) -> (TestEnv, JoinSet<()>) {
    let parts = [tasuki_entitlement::DEFAULTS, tasuki_shop::DEFAULTS];
    let mut env = TestEnv::start(&parts, |config, common| {
        let entitlement = tasuki_entitlement::config(config)?;
        let shop = tasuki_shop::config(config)?;
        Ok::<_, Box<dyn std::error::Error>>(vec![
            tasuki_entitlement::tables(common, &entitlement)?,
            tasuki_shop::tables(common, &shop)?,
        ])
    })
    .await
    .unwrap();
    KeyRing::open_or_create(keys.path(), "entitlement", &env.clock).unwrap();
    let ring = KeyRing::open_or_create(keys.path(), "shop", &env.clock).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let issuer = format!("http://{}", listener.local_addr().unwrap());
    let mut serving = JoinSet::new();
    let routes = jwks_routes(ring);
    serving.spawn(async move { axum::serve(listener, routes).await.unwrap() });
    let prefix = env.prefix().to_owned();
    let mut config = env.config.clone();
    for (key, value) in [
        ("auth.key-dir", keys.path().display().to_string()),
        ("auth.issuers.shop", issuer),
        ("auth.callers.shop", tasuki_shop::NEEDED_SCOPES.join(",")),
        ("entitlement.nats.stream", format!("{prefix}-entitlement")),
        ("entitlement.nats.subject", format!("{prefix}.entitlement")),
        ("entitlement.idempotency.wait", "0s".to_owned()),
        ("shop.nats.stream", format!("{prefix}-shop")),
        ("shop.nats.subject", format!("{prefix}.shop")),
        ("shop.nats.durable", prefix),
        ("shop.idempotency.wait", "10s".to_owned()),
        // Patient enough for a busy machine, and not for long.
        ("shop.payment.timeout", "3s".to_owned()),
        ("shop.payment.keep-trying", "0s".to_owned()),
        ("shop.payment.backoff-base", "10ms".to_owned()),
        ("shop.payment.backoff-max", "100ms".to_owned()),
    ] {
        config = config.with_value(key, value).unwrap();
    }
    config = config
        .with_value("shop.payment.max-attempts", 2)
        .unwrap()
        .with_value("shop.payment.undo-attempts", 3)
        .unwrap();
    env.config = change(config);
    (env, serving)
}

fn shop_tables(env: &TestEnv) -> Tables {
    let own = tasuki_shop::config(&env.config).unwrap();
    tasuki_shop::tables(&env.common().unwrap(), &own).unwrap()
}

async fn serve(env: &TestEnv, role: Role) -> TestHost {
    let common = env.common().unwrap();
    let own = tasuki_shop::config(&env.config).unwrap();
    let tables = tasuki_shop::tables(&common, &own).unwrap();
    let service = tasuki_shop::service(&common, &own, tables, &env.clock)
        .await
        .unwrap();
    let host = Host::new(common, env.clock.clone(), Meter::detached(), role);
    TestHost::of(host.start(vec![service]).await.unwrap()).unwrap()
}

async fn serve_entitlement(env: &TestEnv) -> (TestHost, Tables) {
    let common = env.common().unwrap();
    let own = tasuki_entitlement::config(&env.config).unwrap();
    let tables = tasuki_entitlement::tables(&common, &own).unwrap();
    let service = tasuki_entitlement::service(&common, &own, tables.clone(), &env.clock)
        .await
        .unwrap();
    (env.host(vec![service]).await.unwrap(), tables)
}

async fn key_with(env: &TestEnv, tables: &Tables, scopes: &[&str]) -> String {
    let scopes: Vec<ScopeName> = scopes.iter().map(|it| it.parse().unwrap()).collect();
    make(
        env,
        tables,
        &NewCredential::api_key("test", scopes).unwrap(),
    )
    .await
}

async fn operator(env: &TestEnv, tables: &Tables) -> String {
    make(env, tables, &NewCredential::operator("test").unwrap()).await
}

async fn make(env: &TestEnv, tables: &Tables, wanted: &NewCredential) -> String {
    let mut connection = env.db.pool.acquire().await.unwrap();
    let made = Credentials::new(&tables.schema)
        .create(&mut connection, &env.clock, wanted)
        .await
        .unwrap();
    made.expose().to_owned()
}
