//! A running entitlement service with a stream of its own, and somebody who may use it.

use http::HeaderMap;
use reqwest::Method;
use serde_json::{Value, json};
use tasuki_contract::events::Message;
use tasuki_contract::events::entitlement::EntitlementEvent;
use tasuki_service::auth::credentials::{Credentials, NewCredential, ScopeName};
use tasuki_service::config::Config;
use tasuki_service::service::Tables;
use tasuki_testkit::{Reply, Servers, TestEnv, TestHost, eventually};

pub(crate) struct World {
    pub(crate) env: TestEnv,
    pub(crate) host: TestHost,
    pub(crate) tables: Tables,
    /// An API key that may do everything.
    pub(crate) key: String,
    client: reqwest::Client,
}

/// An event as it was published.
pub(crate) struct Published {
    pub(crate) headers: async_nats::HeaderMap,
    pub(crate) event: EntitlementEvent,
}

impl World {
    pub(crate) async fn start() -> Self {
        Self::with(|config| config).await
    }

    /// With other settings.
    pub(crate) async fn with(change: impl FnOnce(Config) -> Config) -> Self {
        let mut env = TestEnv::start(&[tasuki_entitlement::DEFAULTS], |config, common| {
            let own = tasuki_entitlement::config(config)?;
            Ok::<_, Box<dyn std::error::Error>>(vec![tasuki_entitlement::tables(common, &own)?])
        })
        .await
        .unwrap();
        let (stream, subject) = (stream_of(&env), subject_of(&env));
        env.config = change(
            env.config
                .clone()
                .with_value("entitlement.nats.stream", stream)
                .unwrap()
                .with_value("entitlement.nats.subject", subject)
                .unwrap()
                // As patient as may be: how fast the machine is, is not what tests ask.
                .with_value("entitlement.idempotency.wait", "10s")
                .unwrap(),
        );
        let (host, tables) = serve(&env).await;
        let scopes = tasuki_entitlement::SCOPES;
        let key = key_with(&env, &tables, "all", &scopes).await;
        Self {
            env,
            host,
            tables,
            key,
            client: reqwest::Client::new(),
        }
    }

    /// A second process of the same service.
    pub(crate) async fn another(&self) -> TestHost {
        serve(&self.env).await.0
    }

    /// Another API key.
    pub(crate) async fn key_with(&self, name: &str, scopes: &[&str]) -> String {
        key_with(&self.env, &self.tables, name, scopes).await
    }

    pub(crate) async fn grant(&self, key: &str, body: &Value) -> Reply {
        self.post("/v1/entitlements/grants", key, body).await
    }

    pub(crate) async fn revoke(&self, key: &str, body: &Value) -> Reply {
        self.post("/v1/entitlements/revokes", key, body).await
    }

    pub(crate) async fn post(&self, path: &str, key: &str, body: &Value) -> Reply {
        self.post_to(&self.host, path, key, body).await
    }

    pub(crate) async fn post_to(
        &self,
        host: &TestHost,
        path: &str,
        key: &str,
        body: &Value,
    ) -> Reply {
        let request = self
            .client
            .post(format!("http://{}{path}", host.api))
            .bearer_auth(&self.key)
            .header("Idempotency-Key", key)
            .json(body);
        send(request).await
    }

    /// Any request, as nobody in particular.
    pub(crate) fn raw(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let url = format!("http://{}{path}", self.host.api);
        self.client.request(method, url)
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.host.get_as(&self.key, path).await
    }

    pub(crate) async fn count(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql)
            .fetch_one(&self.env.db.pool)
            .await
            .unwrap()
    }

    /// The events on the stream, once there are `wanted`.
    pub(crate) async fn published(&self, wanted: usize) -> Vec<Published> {
        let client = async_nats::connect(&Servers::get().await.nats)
            .await
            .unwrap();
        let context = async_nats::jetstream::new(client);
        let name = stream_of(&self.env);
        eventually("all events are published", async || {
            let stream = context.get_stream(&name).await.ok()?;
            let last = stream.cached_info().state.last_sequence;
            (last >= u64::try_from(wanted).unwrap()).then_some(())
        })
        .await;
        let stream = context.get_stream(&name).await.unwrap();
        let mut events = Vec::new();
        for sequence in 1..=stream.cached_info().state.last_sequence {
            let message = stream.get_raw_message(sequence).await.unwrap();
            events.push(Published {
                event: EntitlementEvent::decode(message.payload).unwrap(),
                headers: message.headers,
            });
        }
        events
    }

    /// Nothing is left in the outbox.
    pub(crate) async fn drained(&self) {
        eventually("the outbox is empty", async || {
            let left = self
                .count("SELECT count(*) FROM entitlement.outbox_events")
                .await;
            (left == 0).then_some(())
        })
        .await;
    }
}

pub(crate) async fn send(request: reqwest::RequestBuilder) -> Reply {
    let response = request.send().await.unwrap();
    let (status, headers): (_, HeaderMap) = (response.status(), response.headers().clone());
    Reply {
        status,
        headers,
        text: response.text().await.unwrap(),
    }
}

/// A well-formed body.
pub(crate) fn body(user: &str, sku: &str) -> Value {
    json!({
        "user_id": user,
        "stock_keeping_unit": sku,
        "reason": "purchase",
        "purchase_id": "order-17",
    })
}

async fn serve(env: &TestEnv) -> (TestHost, Tables) {
    let common = env.common().unwrap();
    let own = tasuki_entitlement::config(&env.config).unwrap();
    let tables = tasuki_entitlement::tables(&common, &own).unwrap();
    let service = tasuki_entitlement::service(&common, &own, tables.clone(), &env.clock)
        .await
        .unwrap();
    (env.host(vec![service]).await.unwrap(), tables)
}

async fn key_with(env: &TestEnv, tables: &Tables, name: &str, scopes: &[&str]) -> String {
    let scopes: Vec<ScopeName> = scopes.iter().map(|it| it.parse().unwrap()).collect();
    let wanted = NewCredential::api_key(name, scopes).unwrap();
    let mut connection = env.db.pool.acquire().await.unwrap();
    let made = Credentials::new(&tables.schema)
        .create(&mut connection, &env.clock, &wanted)
        .await
        .unwrap();
    made.expose().to_owned()
}

fn stream_of(env: &TestEnv) -> String {
    format!("{}-events", env.prefix())
}

fn subject_of(env: &TestEnv) -> String {
    format!("{}.events", env.prefix())
}
