//! Webhooks: signed, tried again, kept while they are paused, and never led inside.

mod change;
mod clock;
mod trouble;
mod turns;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use tasuki::Clock;
use tasuki::dlq::Filter;
use tasuki_service::config::Config;
use tasuki_testkit::eventually;

use crate::support::{A_WHILE, World, granted};

/// Somebody else's server: keeps what it gets, and answers as it is told.
#[derive(Clone, Default)]
pub(crate) struct Receiver(Arc<Mutex<Inside>>);

#[derive(Default)]
struct Inside {
    got: Vec<(HashMap<String, String>, String)>,
    answers: Vec<(u16, Option<(&'static str, String)>)>,
}

impl Receiver {
    /// Answers with these in turn, and with 200 afterwards.
    pub(crate) async fn start(
        answers: &[(u16, Option<(&'static str, String)>)],
    ) -> (Self, SocketAddr) {
        let receiver = Self::default();
        receiver.0.lock().unwrap().answers = answers.iter().rev().cloned().collect();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes = Router::new().fallback(hook).with_state(receiver.clone());
        #[expect(clippy::disallowed_methods, reason = "it ends with the test's runtime")]
        tokio::spawn(async move { axum::serve(listener, routes).await });
        (receiver, address)
    }

    fn got(&self) -> Vec<(HashMap<String, String>, String)> {
        self.0.lock().unwrap().got.clone()
    }

    pub(crate) async fn got_at_least(
        &self,
        wanted: usize,
    ) -> Vec<(HashMap<String, String>, String)> {
        eventually("the webhook was called often enough", async || {
            let got = self.got();
            (got.len() >= wanted).then_some(got)
        })
        .await
    }
}

async fn hook(State(receiver): State<Receiver>, headers: HeaderMap, body: String) -> Response {
    let headers = headers.iter();
    let headers = headers
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
        .collect();
    let mut inside = receiver.0.lock().unwrap();
    inside.got.push((headers, body));
    match inside.answers.pop() {
        None => StatusCode::OK.into_response(),
        Some((status, header)) => {
            let mut response = StatusCode::from_u16(status).unwrap().into_response();
            if let Some((name, value)) = header {
                response.headers_mut().insert(name, value.parse().unwrap());
            }
            response
        }
    }
}

/// A world in which webhooks may go to this machine, and are tried again soon.
pub(crate) async fn lenient() -> World {
    lenient_with(|config| config).await
}

/// With other settings, too.
pub(crate) async fn lenient_with(change: impl FnOnce(Config) -> Config) -> World {
    lenient_at(Clock::system(), change).await
}

/// In a process whose clock shows another time, too.
async fn lenient_at(clock: Clock, change: impl FnOnce(Config) -> Config) -> World {
    World::at(clock, |config| {
        let config = change(config);
        [
            ("webhook.backoff-base", "10ms"),
            ("webhook.backoff-max", "20ms"),
        ]
        .into_iter()
        .fold(config, |config, (key, value)| {
            config
                .with_value(&format!("notification.{key}"), value)
                .unwrap()
        })
        .with_value("notification.webhook.allow-private-addresses", true)
        .unwrap()
    })
    .await
}

/// Registers a webhook of the user `u` at `address`.
pub(crate) async fn register(world: &World, address: SocketAddr) -> Value {
    register_for(world, "u", address).await
}

async fn register_for(world: &World, user: &str, address: SocketAddr) -> Value {
    world.prefer(user, &["webhook"]).await;
    let body = json!({ "url": format!("http://{address}/hook?token=swordfish") });
    let made = world
        .post(&format!("/v1/users/{user}/webhooks"), &body)
        .await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
    made.json()
}

fn path(webhook: &Value, rest: &str) -> String {
    let id = webhook["endpoint_id"].as_str().unwrap();
    format!("/v1/users/u/webhooks/{id}{rest}")
}

/// Whether `secret` made one of the signatures.
fn is_signed(headers: &HashMap<String, String>, body: &str, secret: &str) -> bool {
    let key = STANDARD
        .decode(secret.strip_prefix("whsec_").unwrap())
        .unwrap();
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &key);
    let (id, at) = (&headers["webhook-id"], &headers["webhook-timestamp"]);
    let tag = aws_lc_rs::hmac::sign(&key, format!("{id}.{at}.{body}").as_bytes());
    let wanted = format!("v1,{}", STANDARD.encode(tag));
    headers["webhook-signature"]
        .split(' ')
        .any(|it| it == wanted)
}

const SENT: &str = "SELECT count(*) FROM notification.notifications WHERE status = 'SENT'";

#[tokio::test]
async fn a_webhook_gets_a_signed_message_with_the_events_content() {
    let world = lenient().await;
    let (receiver, address) = Receiver::start(&[]).await;
    let webhook = register(&world, address).await;
    let event = granted("u", "s", 1);
    world.tell(&event).await;
    let (headers, body) = receiver.got_at_least(1).await.remove(0);
    assert!(is_signed(
        &headers,
        &body,
        webhook["secret"].as_str().unwrap()
    ));
    let told: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(told["type"], "EntitlementGranted");
    assert_eq!(told["data"]["event_id"], event.event_id);
    let id = told["notification_id"].as_str().unwrap().replace('-', "");
    assert_eq!(headers["webhook-id"], format!("msg_{id}"));
    world.counts(1, SENT).await;

    let listed = world.get("/v1/users/u/webhooks").await.json();
    assert_eq!(listed["webhooks"][0].get("secret"), None, "told once");
    let attempts = world.get(&path(&webhook, "/attempts")).await.json();
    assert_eq!(attempts["attempts"][0]["outcome"], "delivered");
    assert_eq!(attempts["attempts"][0]["response_code"], 200);
}

#[tokio::test]
async fn a_failed_attempt_is_repeated_under_the_same_id_until_it_succeeds() {
    let world = lenient().await;
    let (receiver, address) = Receiver::start(&[(500, None), (302, None), (404, None)]).await;
    let webhook = register(&world, address).await;
    world.tell(&granted("u", "s", 1)).await;
    world.counts(1, SENT).await;
    let got = receiver.got();
    assert_eq!(got.len(), 4);
    assert!(got.iter().all(|(headers, body)| {
        headers["webhook-id"] == got[0].0["webhook-id"] && *body == got[0].1
    }));
    let attempts = world.get(&path(&webhook, "/attempts")).await.json();
    let outcomes: Vec<_> = attempts["attempts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["response_code"].clone())
        .collect();
    assert_eq!(outcomes, [json!(200), json!(404), json!(302), json!(500)]);
    assert!(
        !attempts.to_string().contains("swordfish"),
        "what is in the query is a secret"
    );
}

#[tokio::test]
async fn a_webhook_is_tried_as_often_as_configured_then_dead_and_a_redrive_sends_it_once() {
    let world = lenient_with(|config| {
        config
            .with_value("notification.webhook.max-attempts", 3)
            .unwrap()
    })
    .await;
    let (receiver, address) = Receiver::start(&[(500, None), (500, None), (500, None)]).await;
    register(&world, address).await;
    world.tell(&granted("u", "s", 1)).await;
    let failed = "SELECT count(*) FROM notification.notifications
        WHERE status = 'FAILED' AND attempt_count = 3";
    world.counts(1, failed).await;
    // sleep: another attempt would come within a few polls.
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(receiver.got().len(), 3);
    let letters = "SELECT count(*) FROM notification.notification_dlq";
    assert_eq!(world.count(letters).await, 1);

    let dead = tasuki_notification::letters(&world.tables);
    let all = Filter::default();
    let redrive = || dead.redrive_all(&world.env.db.pool, &all, "ann", None);
    assert_eq!(redrive().await.unwrap().letters, 1);
    world.counts(1, SENT).await;
    assert_eq!(redrive().await.unwrap().letters, 0);
    // sleep: another attempt would come within a few polls.
    tokio::time::sleep(A_WHILE).await;
    let got = receiver.got();
    assert_eq!(got.len(), 4);
    let id = |(headers, _): &(HashMap<String, String>, String)| headers["webhook-id"].clone();
    assert!(got.iter().all(|it| id(it) == id(&got[0])));
    assert_eq!(
        (world.count(SENT).await, world.count(letters).await),
        (1, 0)
    );
}

#[tokio::test]
async fn both_secrets_sign_while_a_rotation_is_under_way() {
    let world = lenient().await;
    let (receiver, address) = Receiver::start(&[]).await;
    let webhook = register(&world, address).await;
    let rotated = world
        .post(&path(&webhook, "/rotate"), &json!({}))
        .await
        .json();
    assert_ne!(rotated["secret"], webhook["secret"]);
    let tested = world
        .post(&path(&webhook, "/test"), &json!({}))
        .await
        .json();
    assert_eq!(tested["outcome"], "delivered");
    let (headers, body) = receiver.got_at_least(1).await.remove(0);
    for secret in [&webhook["secret"], &rotated["secret"]] {
        assert!(is_signed(&headers, &body, secret.as_str().unwrap()));
    }
    world
        .execute("UPDATE notification.webhook_endpoints SET previous_until = now()")
        .await;
    world.post(&path(&webhook, "/test"), &json!({})).await;
    let (headers, body) = receiver.got_at_least(2).await.remove(1);
    assert!(!is_signed(
        &headers,
        &body,
        webhook["secret"].as_str().unwrap()
    ));
    assert!(is_signed(
        &headers,
        &body,
        rotated["secret"].as_str().unwrap()
    ));
}

#[tokio::test]
async fn every_secret_signs_until_its_time_is_over_however_many_came_after() {
    let world = lenient().await;
    let (receiver, address) = Receiver::start(&[]).await;
    let webhook = register(&world, address).await;
    let mut secrets = vec![webhook["secret"].clone()];
    for _ in 0..10 {
        let rotated = world.post(&path(&webhook, "/rotate"), &json!({})).await;
        assert_eq!(rotated.status, StatusCode::OK, "{}", rotated.text);
        secrets.push(rotated.json()["secret"].clone());
    }
    let refused = world.post(&path(&webhook, "/rotate"), &json!({})).await;
    assert_eq!(
        (refused.status, &*refused.code()),
        (StatusCode::CONFLICT, "WEBHOOK_SECRETS")
    );
    world.post(&path(&webhook, "/test"), &json!({})).await;
    let (headers, body) = receiver.got_at_least(1).await.remove(0);
    for secret in &secrets {
        assert!(is_signed(&headers, &body, secret.as_str().unwrap()));
    }
    world
        .execute("UPDATE notification.webhook_secrets SET signs_until = now()")
        .await;
    world.post(&path(&webhook, "/test"), &json!({})).await;
    let (headers, body) = receiver.got_at_least(2).await.remove(1);
    let signing = secrets
        .iter()
        .filter(|it| is_signed(&headers, &body, it.as_str().unwrap()));
    assert_eq!(signing.count(), 2, "the present one and the one before");
    let again = world.post(&path(&webhook, "/rotate"), &json!({})).await;
    assert_eq!(again.status, StatusCode::OK, "{}", again.text);
}

#[tokio::test]
async fn a_webhook_is_tested_five_times_a_minute_and_no_more() {
    let world = lenient().await;
    let (receiver, address) = Receiver::start(&[]).await;
    let webhook = register(&world, address).await;
    for _ in 0..5 {
        let tested = world.post(&path(&webhook, "/test"), &json!({})).await;
        assert_eq!(tested.status, StatusCode::OK, "{}", tested.text);
    }
    let refused = world.post(&path(&webhook, "/test"), &json!({})).await;
    assert_eq!(
        (refused.status, &*refused.code()),
        (StatusCode::TOO_MANY_REQUESTS, "TOO_MANY_REQUESTS")
    );
    assert_eq!(refused.headers["retry-after"], "60");
    assert_eq!(receiver.got().len(), 5);
    world
        .execute(
            "UPDATE notification.webhook_endpoints
             SET tests_since = tests_since - interval '1 minute'",
        )
        .await;
    let later = world.post(&path(&webhook, "/test"), &json!({})).await;
    assert_eq!(later.status, StatusCode::OK, "{}", later.text);
}

#[tokio::test]
async fn a_paused_endpoint_keeps_what_it_is_owed_and_a_replay_sends_it_again() {
    let world = lenient().await;
    let (receiver, address) = Receiver::start(&[]).await;
    let webhook = register(&world, address).await;
    world.post(&path(&webhook, "/pause"), &json!({})).await;
    world.tell(&granted("u", "s", 1)).await;
    let waits = "SELECT count(*) FROM notification.notifications
        WHERE status = 'PENDING' AND attempt_count = 0";
    world.counts(1, waits).await;
    // It waits for another attempt: a resume does not wait for that.
    world
        .execute(
            "UPDATE notification.notifications_live SET next_retry_at = now() + interval '1 hour'",
        )
        .await;
    assert!(receiver.got().is_empty());
    world.post(&path(&webhook, "/resume"), &json!({})).await;
    let (first, body) = receiver.got_at_least(1).await.remove(0);
    world.counts(1, SENT).await;

    let told: Value = serde_json::from_str(&body).unwrap();
    let id = told["notification_id"].as_str().unwrap();
    let replay = world
        .post(&path(&webhook, &format!("/replay/{id}")), &json!({}))
        .await;
    assert_eq!(replay.status, StatusCode::ACCEPTED, "{}", replay.text);
    let (again, _) = receiver.got_at_least(2).await.remove(1);
    assert_eq!(again["webhook-id"], first["webhook-id"]);
    world.counts(1, SENT).await;
    let never = path(&webhook, "/replay/01930000-0000-7000-8000-000000000001");
    assert_eq!(
        world.post(&never, &json!({})).await.status,
        StatusCode::NOT_FOUND
    );
}

#[tokio::test]
async fn an_address_inside_is_refused_when_it_is_registered() {
    let world = World::start().await;
    for url in [
        "http://example.com/",
        "https://127.0.0.1/",
        "https://10.1.2.3/",
        "https://[::1]/",
        "https://[::ffff:10.0.0.1]/",
        "https://169.254.169.254/latest/meta-data/",
        "https://0/",
        "https://0x7f.1/",
        "https://2130706433/",
        "https://localhost/",
        "https://metadata.google.internal/",
        "ftp://example.com/",
        "https://user:pass@example.com/",
        "nonsense",
    ] {
        let refused = world
            .post("/v1/users/u/webhooks", &json!({ "url": url }))
            .await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{url}");
        let message = refused.json()["message"].as_str().unwrap().to_owned();
        let one_sentence = ["url is ", "url must ", "url holds ", "url leads "];
        let begins = |begin: &&str| message.starts_with(*begin);
        assert!(one_sentence.iter().any(begins), "{url}: {message}");
    }
    let fine = json!({ "url": "https://example.com/hook" });
    assert_eq!(
        world.post("/v1/users/u/webhooks", &fine).await.status,
        StatusCode::CREATED
    );
}

#[tokio::test]
async fn a_name_or_a_redirect_that_leads_inside_is_refused_when_it_is_used() {
    let world = World::start().await;
    let (receiver, address) = Receiver::start(&[]).await;
    world.prefer("u", &["webhook"]).await;
    let made = world
        .post(
            "/v1/users/u/webhooks",
            &json!({ "url": "https://example.com/hook" }),
        )
        .await
        .json();
    // The name now means this machine: what was checked at registration proves nothing.
    for url in [
        format!("https://localhost.:{}/", address.port()),
        format!("https://127.0.0.1:{}/", address.port()),
    ] {
        sqlx::query("UPDATE notification.webhook_endpoints SET url = $1")
            .bind(&url)
            .execute(&world.env.db.pool)
            .await
            .unwrap();
        let tested = world.post(&path(&made, "/test"), &json!({})).await.json();
        // Not that it could not be reached: TLS would fail here, too, and guard nothing.
        assert_eq!(
            (&tested["outcome"], &tested["response_code"]),
            (&json!("refused"), &json!(null)),
            "{url}: {tested}"
        );
        let why = tested["error"].as_str().unwrap();
        assert!(
            why.contains("leads to a private or reserved network"),
            "{url}: {why}"
        );
    }
    assert!(receiver.got().is_empty());

    let lenient = lenient().await;
    let location = format!("http://{address}/inside");
    let (door, outside) = Receiver::start(&[(302, Some(("location", location)))]).await;
    let webhook = register(&lenient, outside).await;
    let tested = lenient
        .post(&path(&webhook, "/test"), &json!({}))
        .await
        .json();
    assert_eq!(
        (&tested["outcome"], &tested["response_code"]),
        (&json!("failed"), &json!(302))
    );
    assert_eq!(
        (door.got().len(), receiver.got().len()),
        (1, 0),
        "redirects are not followed"
    );
}

#[tokio::test]
async fn a_user_has_a_bounded_number_of_webhooks_and_can_remove_them() {
    let world = World::with(|config| {
        config
            .with_value("notification.webhook.endpoints-per-user", 2)
            .unwrap()
    })
    .await;
    let body = json!({ "url": "https://example.com/hook", "types": ["EntitlementGranted"] });
    let first = world.post("/v1/users/u/webhooks", &body).await.json();
    assert_eq!(
        world.post("/v1/users/u/webhooks", &body).await.status,
        StatusCode::CREATED
    );
    let third = world.post("/v1/users/u/webhooks", &body).await;
    assert_eq!(
        (third.status, &*third.code()),
        (StatusCode::CONFLICT, "WEBHOOK_LIMIT")
    );
    let key = Some(world.key.as_str());
    let gone = world
        .host
        .send(reqwest::Method::DELETE, &path(&first, ""), key, None)
        .await;
    assert_eq!(gone.status, StatusCode::NO_CONTENT);
    let again = world
        .host
        .send(reqwest::Method::DELETE, &path(&first, ""), key, None)
        .await;
    assert_eq!(again.status, StatusCode::NOT_FOUND);
    assert_eq!(
        world.post("/v1/users/u/webhooks", &body).await.status,
        StatusCode::CREATED
    );
}

#[tokio::test]
async fn a_webhook_by_default_reaches_users_who_have_no_preferences() {
    let world = World::with(|config| {
        config
            .with_value("notification.webhook.allow-private-addresses", true)
            .unwrap()
            .with_value(
                "notification.delivery.default-channels",
                vec!["webhook".to_owned()],
            )
            .unwrap()
    })
    .await;
    let (receiver, address) = Receiver::start(&[]).await;
    let body = json!({ "url": format!("http://{address}/hook") });
    world.post("/v1/users/u/webhooks", &body).await;
    world.tell(&granted("u", "s", 1)).await;
    receiver.got_at_least(1).await;
}
