//! A running relay, clients that speak to it word by word, and events that another implementation signs.

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use nostr::{EventBuilder, JsonUtil as _, Keys, Kind, Tag, Timestamp};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgTransaction};
use tasuki_service::auth::credentials::{Credentials, NewCredential, ScopeName};
use tasuki_service::auth::tokens::KeyRing;
use tasuki_service::config::Config;
use tasuki_service::service::Tables;
use tasuki_testkit::{TestEnv, TestHost, eventually};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

/// What the relay is called.
pub(crate) const RELAY: &str = "ws://relay.example";
/// How long an answer may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long nothing may come until we believe that nothing will.
const SILENCE: Duration = Duration::from_millis(300);

pub(crate) struct World {
    pub(crate) env: TestEnv,
    pub(crate) host: TestHost,
    pub(crate) tables: Tables,
    /// Of the node.
    pub(crate) keys: tempfile::TempDir,
}

impl World {
    /// A relay for ordinary clients, without limits on how often.
    pub(crate) async fn start() -> Self {
        Self::with(|config| config).await
    }

    /// With other settings.
    pub(crate) async fn with(change: impl FnOnce(Config) -> Config) -> Self {
        let mut env = TestEnv::start(&[tasuki_community::DEFAULTS], |config, common| {
            let own = tasuki_community::config(config)?;
            Ok::<_, tasuki_service::config::Error>(vec![tasuki_community::tables(common, &own)?])
        })
        .await
        .unwrap();
        let mut config = env.config.clone();
        let keys = tempfile::tempdir().unwrap();
        tasuki_community::make_keys(keys.path()).unwrap();
        KeyRing::open_or_create(keys.path(), tasuki_community::NAME, &env.clock).unwrap();
        let folder = keys.path().display().to_string();
        config = config.with_value("auth.key-dir", folder).unwrap();
        for (key, value) in [
            ("relay.url", RELAY),
            ("topics.mode", "default"),
            ("limits.events-per-minute", "0"),
            ("limits.reqs-per-minute", "0"),
            ("limits.connections-per-minute", "0"),
        ] {
            let key = format!("community.{key}");
            config = match value.parse::<i64>() {
                Ok(number) => config.with_value(&key, number).unwrap(),
                Err(_text) => config.with_value(&key, value).unwrap(),
            };
        }
        let prefix = env.prefix().to_owned();
        for (key, value) in [
            ("stream", format!("{prefix}-community")),
            ("subject", format!("{prefix}.community")),
        ] {
            let key = format!("community.nats.{key}");
            config = config.with_value(&key, value).unwrap();
        }
        env.config = change(config);
        let (host, tables) = serve(&env).await;
        Self {
            env,
            host,
            tables,
            keys,
        }
    }

    /// One whose statements wait for locks for longer than a test takes.
    pub(crate) async fn patient() -> Self {
        Self::with(|config| {
            let config = config.with_value("database.lock-timeout", "60s").unwrap();
            config
                .with_value("database.statement-timeout", "60s")
                .unwrap()
        })
        .await
    }

    /// A second process of the same service.
    pub(crate) async fn another(&self) -> TestHost {
        serve(&self.env).await.0
    }

    pub(crate) async fn client(&self) -> Client {
        Client::of(&self.host).await
    }

    /// An API key that may do everything.
    pub(crate) async fn key(&self) -> String {
        let scopes = tasuki_community::SCOPES
            .iter()
            .map(|it| it.parse::<ScopeName>().unwrap());
        let wanted = NewCredential::api_key("test", scopes.collect::<Vec<_>>()).unwrap();
        let mut connection = self.env.db.pool.acquire().await.unwrap();
        let credentials = Credentials::new(&self.tables.schema);
        let made = credentials.create(&mut connection, &self.env.clock, &wanted);
        made.await.unwrap().expose().to_owned()
    }

    /// Waits until a consumer has heard of everything.
    pub(crate) async fn caught_up(&self, consumer: &str) {
        eventually("the consumer has caught up", async || {
            let behind = "SELECT (SELECT count(*) FROM cn_relay.events_outbox_pending)
                + (SELECT last_seq FROM cn_relay.seqlogs WHERE log = 'events_outbox')
                - (SELECT last_seq FROM cn_relay.consumer_offsets WHERE consumer = $1 AND state = 'FOLLOWING')";
            let behind: Option<i64> = sqlx::query_scalar(behind)
                .bind(consumer)
                .fetch_one(&self.env.db.pool)
                .await
                .unwrap();
            (behind == Some(0)).then_some(())
        })
        .await;
    }

    /// Whoever needs this table waits until what is returned is dropped.
    pub(crate) async fn hold(&self, table: &'static str) -> PgTransaction<'static> {
        let mut held = self.env.db.pool.begin().await.unwrap();
        let lock = AssertSqlSafe(format!("LOCK TABLE cn_relay.{table}"));
        sqlx::query(lock).execute(&mut *held).await.unwrap();
        held
    }

    pub(crate) async fn count(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql)
            .fetch_one(&self.env.db.pool)
            .await
            .unwrap()
    }
}

async fn serve(env: &TestEnv) -> (TestHost, Tables) {
    let common = env.common().unwrap();
    let own = tasuki_community::config(&env.config).unwrap();
    let tables = tasuki_community::tables(&common, &own).unwrap();
    let service = tasuki_community::service(&common, &own, &tables, &env.clock)
        .await
        .unwrap();
    (env.host(vec![service]).await.unwrap(), tables)
}

/// A client that says exactly what it is told to.
pub(crate) struct Client {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
}

impl Client {
    /// One that a proxy calls for; the relay must trust it.
    pub(crate) async fn from(host: &TestHost, address: &str) -> Self {
        let mut request = format!("ws://{}/", host.api).into_client_request().unwrap();
        let address = address.parse().unwrap();
        request.headers_mut().insert("x-forwarded-for", address);
        let (socket, _) = connect_async(request).await.unwrap();
        Self { socket }
    }

    pub(crate) async fn of(host: &TestHost) -> Self {
        let (socket, _) = connect_async(format!("ws://{}/", host.api)).await.unwrap();
        Self { socket }
    }

    pub(crate) async fn say(&mut self, message: &Value) {
        self.say_raw(&message.to_string()).await;
    }

    pub(crate) async fn say_raw(&mut self, text: &str) {
        self.send(Message::text(text)).await;
    }

    pub(crate) async fn send(&mut self, message: Message) {
        self.socket.send(message).await.unwrap();
    }

    /// The next message.
    pub(crate) async fn hear(&mut self) -> Value {
        self.heard().await.unwrap()
    }

    /// The next message, or how the relay has closed the connection.
    pub(crate) async fn heard(&mut self) -> Result<Value, Option<CloseFrame>> {
        loop {
            let message = timeout(PATIENCE, self.socket.next())
                .await
                .expect("an answer");
            match message {
                Some(Ok(Message::Text(text))) => return Ok(serde_json::from_str(&text).unwrap()),
                Some(Ok(Message::Close(frame))) => return Err(frame),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Err(None),
            }
        }
    }

    /// Fails if anything comes within a while.
    pub(crate) async fn hears_nothing(&mut self) {
        let heard = timeout(SILENCE, self.heard()).await;
        assert!(heard.is_err(), "heard {heard:?}");
    }

    /// Publishes, and returns what is said about it.
    pub(crate) async fn publish(&mut self, event: &Value) -> (bool, String) {
        self.say(&json!(["EVENT", event])).await;
        let answer = self.hear().await;
        assert_eq!(
            (&answer[0], &answer[1]),
            (&json!("OK"), &event["id"]),
            "{answer}"
        );
        let words = answer[3].as_str().unwrap().to_owned();
        let taken = answer[2].as_bool().unwrap();
        assert!(
            (taken && words.is_empty()) || has_prefix(&words),
            "{answer}"
        );
        (taken, words)
    }

    /// Publishes what must be taken.
    pub(crate) async fn store(&mut self, event: &Value) {
        let (taken, words) = self.publish(event).await;
        assert!(taken, "{words}");
    }

    /// What is stored, as it comes, and the subscription stays open.
    pub(crate) async fn subscribe(&mut self, name: &str, filters: &[Value]) -> Vec<Value> {
        let mut message = vec![json!("REQ"), json!(name)];
        message.extend(filters.iter().cloned());
        self.say(&Value::Array(message)).await;
        let mut stored = Vec::new();
        loop {
            let answer = self.hear().await;
            assert_eq!(answer[1], json!(name), "{answer}");
            match answer[0].as_str().unwrap() {
                "EVENT" => stored.push(answer[2].clone()),
                "EOSE" => return stored,
                _ => panic!("{answer}"),
            }
        }
    }

    /// The ids of what is stored, in the order in which it comes.
    pub(crate) async fn find(&mut self, filters: &[Value]) -> Vec<String> {
        let stored = self.subscribe("find", filters).await;
        self.say(&json!(["CLOSE", "find"])).await;
        stored
            .iter()
            .map(|event| event["id"].as_str().unwrap().to_owned())
            .collect()
    }

    /// How the subscription that never began was refused.
    pub(crate) async fn refused(&mut self, message: &Value) -> String {
        self.say(message).await;
        let answer = self.hear().await;
        assert_eq!(
            (&answer[0], &answer[1]),
            (&json!("CLOSED"), &message[1]),
            "{answer}"
        );
        let words = answer[2].as_str().unwrap().to_owned();
        assert!(has_prefix(&words), "{answer}");
        words
    }

    /// The event of a subscription that comes next.
    pub(crate) async fn news(&mut self, name: &str) -> Value {
        let answer = self.hear().await;
        assert_eq!(
            (&answer[0], &answer[1]),
            (&json!("EVENT"), &json!(name)),
            "{answer}"
        );
        answer[2].clone()
    }
}

/// Whether programs can make something of it: a word that NIP-01 or NIP-42 knows, a colon, and more.
fn has_prefix(words: &str) -> bool {
    let known = [
        "auth-required",
        "blocked",
        "duplicate",
        "error",
        "invalid",
        "rate-limited",
        "restricted",
        "unsupported",
    ];
    let parts = words.split_once(": ");
    parts.is_some_and(|(prefix, more)| known.contains(&prefix) && !more.is_empty())
}

/// An event that another implementation has made and signed.
pub(crate) fn event(by: &Keys, kind: u16, at: i64, tags: &[&[&str]], content: &str) -> Value {
    let tags = tags
        .iter()
        .map(|tag| Tag::parse(tag.iter().copied()).unwrap());
    let made = EventBuilder::new(Kind::from(kind), content)
        .tags(tags)
        .allow_self_tagging()
        .custom_created_at(Timestamp::from(u64::try_from(at).unwrap()))
        .sign_with_keys(by)
        .unwrap();
    serde_json::from_str(&made.as_json()).unwrap()
}

/// A note.
pub(crate) fn note(by: &Keys, at: i64) -> Value {
    event(by, 1, at, &[], "a note")
}

pub(crate) fn id(event: &Value) -> String {
    event["id"].as_str().unwrap().to_owned()
}

/// Now, in seconds, by the clock of this machine, which is the servers' too.
pub(crate) fn now() -> i64 {
    i64::try_from(Timestamp::now().as_secs()).unwrap()
}

/// Memory of this process, in KiB: relay and clients are in it.
pub(crate) fn memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.unwrap().parse().unwrap()
}
