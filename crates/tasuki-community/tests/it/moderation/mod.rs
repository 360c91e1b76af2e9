//! Moderation: what is labelled, by whom, and what becomes of it.

mod again;
mod input;
mod labels;
mod people;
mod reports;
mod rules;
mod told;

use nostr::Keys;
use reqwest::Method;
use serde_json::{Value, json};
use tasuki_service::config::Config;
use uuid::Uuid;

use crate::support::{Client, World, event, now};

pub(crate) const MODERATION: &str = "moderation-v1";

/// An answer: status, body, and whether it was given before.
pub(crate) type Answered = (u16, Value, bool);

/// A relay, and somebody who may do everything there.
pub(crate) struct Desk {
    pub(crate) world: World,
    pub(crate) client: Client,
    pub(crate) author: Keys,
    key: String,
    http: reqwest::Client,
}

impl Desk {
    pub(crate) async fn open() -> Self {
        Self::with(|config| config).await
    }

    /// With other settings.
    pub(crate) async fn with(change: impl FnOnce(Config) -> Config) -> Self {
        let world = World::with(change).await;
        Self {
            client: world.client().await,
            author: Keys::generate(),
            key: world.key().await,
            http: reqwest::Client::new(),
            world,
        }
    }

    pub(crate) async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Answered {
        let key = Uuid::new_v4().to_string();
        self.ask_as(&key, method, path, body).await
    }

    /// The same under an idempotency key.
    pub(crate) async fn ask_as(
        &self,
        idempotency: &str,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Answered {
        let url = format!("http://{}{path}", self.world.host.api);
        let request = self.http.request(method, url).bearer_auth(&self.key);
        let mut request = request.header("Idempotency-Key", idempotency);
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = request.send().await.unwrap();
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let body = serde_json::from_str(&answer.text().await.unwrap()).unwrap_or(Value::Null);
        (status, body, headers.contains_key("idempotency-replayed"))
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answered {
        self.ask(Method::POST, path, Some(body)).await
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let (status, body, _) = self.ask(Method::GET, path, None).await;
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    /// Opens a rule that labels what has `keyword` in it.
    pub(crate) async fn rule(&self, keyword: &str, label: &str) -> String {
        let body = json!({"rule": rule(keyword, label), "reason": "a test"});
        let (status, rule, _) = self.post("/v1/moderation/rules", &body).await;
        assert_eq!(status, 201, "{rule}");
        rule["rule_id"].as_str().unwrap().to_owned()
    }

    /// Publishes a note.
    pub(crate) async fn note(&mut self, words: &str) -> Value {
        let note = event(&self.author, 1, now(), &[&["t", "a"], &["t", "b"]], words);
        self.client.store(&note).await;
        note
    }

    pub(crate) async fn caught_up(&self) {
        self.world.caught_up(MODERATION).await;
    }

    /// Labels of an event: the words, in alphabetical order.
    pub(crate) async fn words(&self, event: &Value) -> Vec<String> {
        let path = format!("/v1/labels?target={}", target(event));
        words(&self.get(&path).await)
    }

    /// Everything that moderation has written, in an order that only depends on what it says.
    pub(crate) async fn rows(&self) -> Vec<String> {
        sqlx::query_scalar(
            "SELECT to_jsonb(label)::text FROM cn_relay.labels AS label
             UNION ALL
             SELECT to_jsonb(report)::text FROM cn_relay.reports AS report
             ORDER BY 1",
        )
        .fetch_all(&self.world.env.db.pool)
        .await
        .unwrap()
    }

    pub(crate) async fn run(&self, sql: &'static str) -> u64 {
        let done = sqlx::query(sql).execute(&self.world.env.db.pool).await;
        done.unwrap().rows_affected()
    }
}

pub(crate) fn rule(keyword: &str, label: &str) -> Value {
    json!({
        "keywords": [keyword],
        "label": label,
        "confidence": 0.8,
        "expires_in_seconds": 3600,
        "policy_url": "https://example.com/policy",
        "policy_ref": "3.1",
    })
}

/// A label by hand.
pub(crate) fn saying(target: &str, label: &str) -> Value {
    json!({
        "target": target,
        "label": label,
        "confidence": 0.9,
        "expires_in_seconds": 3600,
        "reason": "seen",
    })
}

pub(crate) fn target(event: &Value) -> String {
    format!("event:{}", event["id"].as_str().unwrap())
}

pub(crate) fn words(page: &Value) -> Vec<String> {
    let labels = page["labels"].as_array().unwrap().iter();
    let mut words: Vec<_> = labels
        .map(|it| it["label"].as_str().unwrap().to_owned())
        .collect();
    words.sort();
    words
}
