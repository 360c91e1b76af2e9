//! A running notification service with streams of its own, and somebody who sends it events.

use std::time::Duration;

use async_nats::jetstream;
use reqwest::Method;
use serde_json::Value;
use tasuki::Clock;
use tasuki_contract::events::Message;
use tasuki_contract::events::entitlement::{EntitlementEvent, EventType};
use tasuki_service::auth::credentials::{Credentials, NewCredential, ScopeName};
use tasuki_service::config::Config;
use tasuki_service::service::Tables;
use tasuki_testkit::{Reply, Servers, TestEnv, TestHost, eventually};
use uuid::Uuid;

pub(crate) struct World {
    pub(crate) env: TestEnv,
    pub(crate) host: TestHost,
    pub(crate) tables: Tables,
    /// An API key that may do everything.
    pub(crate) key: String,
    pub(crate) jetstream: jetstream::Context,
}

impl World {
    pub(crate) async fn start() -> Self {
        Self::with(|config| config).await
    }

    /// With other settings.
    pub(crate) async fn with(change: impl FnOnce(Config) -> Config) -> Self {
        Self::at(Clock::system(), change).await
    }

    /// In a process whose clock shows another time than the database's.
    pub(crate) async fn at(clock: Clock, change: impl FnOnce(Config) -> Config) -> Self {
        let mut env = prepared(change).await;
        env.clock = clock;
        let nats = env.config.text("nats.url").to_owned();
        let client = async_nats::ConnectOptions::new()
            .retry_on_initial_connect()
            .connect(nats)
            .await
            .unwrap();
        let (host, tables) = serve(&env).await;
        let key = key_with(&env, &tables, &tasuki_notification::SCOPES).await;
        Self {
            env,
            host,
            tables,
            key,
            jetstream: jetstream::new(client),
        }
    }

    /// A second process of the same service.
    pub(crate) async fn another(&self) -> TestHost {
        serve(&self.env).await.0
    }

    pub(crate) fn stream(&self) -> String {
        format!("{}-events", self.env.prefix())
    }

    pub(crate) fn durable(&self) -> String {
        format!("{}-consumer", self.env.prefix())
    }

    /// Publishes `payload` under `id`, once the stream is there.
    pub(crate) async fn publish(&self, id: &str, payload: Vec<u8>) -> u64 {
        let subject = format!("{}.events", self.env.prefix());
        eventually("the event is published", async || {
            let mut headers = async_nats::HeaderMap::new();
            headers.insert("Nats-Msg-Id", id);
            let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
            headers.insert("traceparent", trace);
            let sent = self
                .jetstream
                .publish_with_headers(subject.clone(), headers, payload.clone().into())
                .await
                .ok()?;
            Some(sent.await.ok()?.sequence)
        })
        .await
    }

    /// Publishes an event as entitlement would.
    pub(crate) async fn tell(&self, event: &EntitlementEvent) -> u64 {
        self.publish(&event.event_id, event.encode_to_vec()).await
    }

    pub(crate) async fn count(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql)
            .fetch_one(&self.env.db.pool)
            .await
            .unwrap()
    }

    /// Waits until `sql` counts exactly `wanted`.
    pub(crate) async fn counts(&self, wanted: i64, sql: &'static str) {
        eventually(&format!("{sql} is {wanted}"), async || {
            (self.count(sql).await == wanted).then_some(())
        })
        .await;
    }

    /// Waits until `wanted` statements with `part` in their text wait for somebody's lock.
    pub(crate) async fn blocked(&self, wanted: i64, part: &str) {
        eventually(&format!("{wanted} wait: {part}"), async || {
            let blocked: i64 = sqlx::query_scalar(
                "SELECT count(*) FROM pg_stat_activity
                 WHERE datname = current_database() AND wait_event_type = 'Lock'
                     AND strpos(query, $1) > 0",
            )
            .bind(part)
            .fetch_one(&self.env.db.pool)
            .await
            .unwrap();
            (blocked == wanted).then_some(())
        })
        .await;
    }

    pub(crate) async fn execute(&self, sql: &'static str) {
        sqlx::raw_sql(sql).execute(&self.env.db.pool).await.unwrap();
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.host.get_as(&self.key, path).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Reply {
        let key = Some(self.key.as_str());
        self.host.send(Method::POST, path, key, Some(body)).await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Reply {
        let key = Some(self.key.as_str());
        self.host.send(Method::PUT, path, key, Some(body)).await
    }

    pub(crate) async fn patch(&self, path: &str, body: &Value) -> Reply {
        let key = Some(self.key.as_str());
        self.host.send(Method::PATCH, path, key, Some(body)).await
    }

    /// Lets `user` be told over `channels` of everything.
    pub(crate) async fn prefer(&self, user: &str, channels: &[&str]) {
        let path = format!("/v1/users/{user}/notification-preferences");
        let body = serde_json::json!({ "channels": { "*": channels } });
        let set = self.put(&path, &body).await;
        assert_eq!(set.status, 200, "{}", set.text);
    }

    /// How far the consumer of events is: not delivered yet, and delivered but not settled.
    pub(crate) async fn unsettled(&self) -> (u64, usize) {
        let stream = self.jetstream.get_stream(self.stream()).await.unwrap();
        // Whoever has just started makes it soon.
        let info = eventually("there is a consumer", async || {
            stream.consumer_info(&self.durable()).await.ok()
        });
        let info = info.await;
        (info.num_pending, info.num_ack_pending)
    }

    /// Waits until every message on the stream is settled.
    pub(crate) async fn settled(&self) {
        eventually("every message is settled", async || {
            (self.unsettled().await == (0, 0)).then_some(())
        })
        .await;
    }

    pub(crate) async fn operator(&self) -> String {
        let mut connection = self.env.db.pool.acquire().await.unwrap();
        let wanted = NewCredential::operator("test").unwrap();
        let made = Credentials::new(&self.tables.schema)
            .create(&mut connection, &self.env.clock, &wanted)
            .await
            .unwrap();
        made.expose().to_owned()
    }
}

/// A grant.
pub(crate) fn granted(user: &str, sku: &str, version: i64) -> EntitlementEvent {
    EntitlementEvent {
        event_id: Uuid::now_v7().to_string(),
        event_type: EventType::EntitlementGranted.into(),
        occurred_at: "2026-11-16T09:00:00.000000Z".to_owned(),
        user_id: user.to_owned(),
        stock_keeping_unit: sku.to_owned(),
        source: "purchase".to_owned(),
        source_id: "order-17".to_owned(),
        version,
        trace_id: "4bf92f3577b34da6a3ce929d0e0e4736".to_owned(),
        ..EntitlementEvent::default()
    }
}

/// The surroundings of one test, with streams that no other test has.
pub(crate) async fn prepared(change: impl FnOnce(Config) -> Config) -> TestEnv {
    let mut env = TestEnv::start(&[tasuki_notification::DEFAULTS], |config, common| {
        let own = tasuki_notification::config(config)?;
        Ok::<_, Box<dyn std::error::Error>>(vec![tasuki_notification::tables(common, &own)?])
    })
    .await
    .unwrap();
    let prefix = env.prefix().to_owned();
    let mut config = env.config.clone();
    for (key, value) in [
        ("nats.stream", format!("{prefix}-events")),
        ("nats.subject", format!("{prefix}.events")),
        ("nats.durable", format!("{prefix}-consumer")),
        ("nats.advisory.stream", format!("{prefix}-given-up")),
        (
            "nats.terminated-advisory.stream",
            format!("{prefix}-refused"),
        ),
        ("sweep.interval", "200ms".to_owned()),
        ("delivery.poll-interval", "200ms".to_owned()),
    ] {
        config = config
            .with_value(&format!("notification.{key}"), value)
            .unwrap();
    }
    for other in ["matchmaking-nats", "shop-nats", "community-nats"] {
        config = config
            .with_value(&format!("notification.{other}.enabled"), false)
            .unwrap();
    }
    env.config = change(config);
    env
}

pub(crate) async fn serve(env: &TestEnv) -> (TestHost, Tables) {
    let common = env.common().unwrap();
    let own = tasuki_notification::config(&env.config).unwrap();
    let tables = tasuki_notification::tables(&common, &own).unwrap();
    let service = tasuki_notification::service(&common, &own, tables.clone(), &env.clock)
        .await
        .unwrap();
    (env.host(vec![service]).await.unwrap(), tables)
}

pub(crate) async fn key_with(env: &TestEnv, tables: &Tables, scopes: &[&str]) -> String {
    let scopes: Vec<ScopeName> = scopes.iter().map(|it| it.parse().unwrap()).collect();
    let wanted = NewCredential::api_key("test", scopes).unwrap();
    let mut connection = env.db.pool.acquire().await.unwrap();
    let made = Credentials::new(&tables.schema)
        .create(&mut connection, &env.clock, &wanted)
        .await
        .unwrap();
    made.expose().to_owned()
}

/// The address of the shared database server.
pub(crate) async fn database_address() -> std::net::SocketAddr {
    let url: reqwest::Url = Servers::get().await.database.parse().unwrap();
    let port = url.port().unwrap();
    std::net::SocketAddr::from(([127, 0, 0, 1], port))
}

/// Long enough for something to happen that must not.
pub(crate) const A_WHILE: Duration = Duration::from_millis(700);
