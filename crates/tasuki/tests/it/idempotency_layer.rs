//! Idempotency keys around a real axum router.

#![expect(
    clippy::indexing_slicing,
    reason = "helpers of tests may fail the test"
)]

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Json, Router};
use http::{HeaderMap, Method, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use sqlx::PgPool;
use tasuki::Schema;
use tasuki::idempotency::layer::{InProgress, KeySource, Mismatch};
use tasuki::idempotency::{Keys, Layer, Request, Tx};
use tasuki_testkit::{TestDb, eventually};
use tokio::sync::Mutex;
use tower::ServiceExt;

use crate::dropped;

struct Env {
    db: TestDb,
    router: Router,
}

#[derive(Debug, PartialEq, Eq)]
struct Answered {
    status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
}

/// Keeps what a handler should give back.
#[derive(Clone, Default)]
struct Leak(Arc<Mutex<Option<Tx>>>);

async fn env(change: impl FnOnce(Layer) -> Layer) -> Env {
    let schema = Schema::new("app").unwrap();
    let db = TestDb::new(&[tasuki::migrate::library(&schema)]).await;
    sqlx::query(
        "CREATE TABLE app.effects (effect_id bigint GENERATED ALWAYS AS IDENTITY, name text)",
    )
    .execute(&db.pool)
    .await
    .unwrap();
    let router = router(&db.pool, change(layer(&db.pool)));
    Env { db, router }
}

fn layer(pool: &PgPool) -> Layer {
    let schema = Schema::new("app").unwrap();
    Layer::new(Keys::new(&schema), pool.clone(), |parts| {
        let caller = parts.headers.get("x-caller")?;
        Some(caller.to_str().ok()?.to_owned())
    })
}

fn router(pool: &PgPool, layer: Layer) -> Router {
    let inner = Router::new()
        .route("/grants", post(grant).get(list))
        .route("/revokes", post(grant))
        .route("/answers", post(answer))
        .route("/slow", post(slow))
        .route("/leaks", post(leak))
        .route_layer(layer)
        .with_state(pool.clone());
    Router::new()
        .nest("/v1", inner)
        .route("/bare", post(async |_tx: Tx| "unreachable"))
}

/// Has an effect, and answers with its number.
async fn grant(mut tx: Tx, key: Option<Extension<Request>>, Json(body): Json<Value>) -> Response {
    let number = effect(&mut tx, "grant").await;
    let key = key.map(|Extension(request)| request.key().to_owned());
    let mut response = (
        StatusCode::CREATED,
        Json(json!({"number": number, "key": key, "echo": body})),
    )
        .into_response();
    for (name, value) in [
        ("location", "/v1/grants/1"),
        ("x-once", "1"),
        ("set-cookie", "a=b"),
    ] {
        response.headers_mut().insert(name, value.parse().unwrap());
    }
    response
}

/// Has an effect, and answers with the status that was asked for.
async fn answer(mut tx: Tx, Json(body): Json<Value>) -> Response {
    effect(&mut tx, "answer").await;
    let status = u16::try_from(body["status"].as_u64().unwrap()).unwrap();
    let length = usize::try_from(body["length"].as_u64().unwrap_or(2)).unwrap();
    (StatusCode::from_u16(status).unwrap(), "x".repeat(length)).into_response()
}

/// Has an effect, then waits until somebody has put a row called `go`.
async fn slow(State(pool): State<PgPool>, mut tx: Tx) -> String {
    let number = effect(&mut tx, "slow").await;
    loop {
        let go = sqlx::query_scalar("SELECT EXISTS (SELECT FROM app.effects WHERE name = 'go')");
        if go.fetch_one(&pool).await.unwrap() {
            break;
        }
        // sleep: between two looks at a condition; a handler can't use `eventually`.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    number.to_string()
}

async fn leak(Extension(leak): Extension<Leak>, mut tx: Tx) -> &'static str {
    effect(&mut tx, "leak").await;
    *leak.0.lock().await = Some(tx);
    "leaked"
}

async fn list(State(pool): State<PgPool>) -> String {
    effects(&pool).await.len().to_string()
}

async fn effect(tx: &mut Tx, name: &str) -> i64 {
    let insert = "INSERT INTO app.effects (name) VALUES ($1) RETURNING effect_id";
    let insert = sqlx::query_scalar(insert).bind(name);
    insert.fetch_one(&mut **tx).await.unwrap()
}

async fn effects(pool: &PgPool) -> Vec<String> {
    let names = sqlx::query_scalar("SELECT name FROM app.effects ORDER BY effect_id");
    names.fetch_all(pool).await.unwrap()
}

async fn let_go(pool: &PgPool) {
    let insert = sqlx::query("INSERT INTO app.effects (name) VALUES ('go')");
    insert.execute(pool).await.unwrap();
}

fn ask(path: &str, key: Option<&str>, body: &str) -> http::Request<Body> {
    let mut request = http::Request::builder()
        .method(Method::POST)
        .uri(path)
        .header("content-type", "application/json")
        .header("x-caller", "shop");
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    request.body(Body::from(body.to_owned())).unwrap()
}

impl Env {
    async fn send(&self, request: http::Request<Body>) -> Answered {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        Answered {
            status: parts.status,
            headers: parts.headers,
            body: body.collect().await.unwrap().to_bytes().to_vec(),
        }
    }

    async fn post(&self, path: &str, key: &str, body: &str) -> Answered {
        self.send(ask(path, Some(key), body)).await
    }

    async fn effects(&self) -> Vec<String> {
        effects(&self.db.pool).await
    }
}

impl Answered {
    fn is_replay(&self) -> bool {
        self.headers
            .get("idempotency-replayed")
            .is_some_and(|it| it == "true")
    }

    fn error(&self) -> (u16, String) {
        let body: Value = serde_json::from_slice(&self.body).unwrap();
        assert!(body["message"].is_string(), "{body}");
        (
            self.status.as_u16(),
            body["code"].as_str().unwrap().to_owned(),
        )
    }
}

fn code(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}

#[tokio::test]
async fn a_repeated_request_gets_the_same_bytes_and_says_so() {
    let env = env(|layer| layer).await;
    let first = env.post("/v1/grants", "k", r#"{"a": 1, "b": 2}"#).await;
    let again = env.post("/v1/grants", "k", "{\"b\":2,\n\"a\":1}").await;

    assert_eq!(first.status, StatusCode::CREATED);
    assert!(!first.is_replay() && again.is_replay());
    assert_eq!((again.status, &again.body), (first.status, &first.body));
    for (name, kept) in [
        ("content-type", true),
        ("location", true),
        ("x-once", false),
        ("set-cookie", false),
    ] {
        assert!(first.headers.contains_key(name), "{name}");
        assert_eq!(again.headers.contains_key(name), kept, "{name}");
    }
    assert_eq!(env.effects().await, ["grant"]);
    let body: Value = serde_json::from_slice(&first.body).unwrap();
    assert_eq!(body["key"], "k");
}

#[tokio::test]
async fn sixty_four_requests_at_once_are_one_effect_and_one_answer() {
    let env = env(|layer| layer.keep_header("x-once".parse().unwrap())).await;
    let twins = (0..64).map(|_| env.post("/v1/grants", "k", "{}"));
    let answers = futures_util::future::join_all(twins).await;

    assert_eq!(
        answers.iter().filter(|answer| !answer.is_replay()).count(),
        1
    );
    for answer in &answers {
        assert_eq!(
            (answer.status, &answer.body),
            (StatusCode::CREATED, &answers[0].body)
        );
        assert_eq!(answer.headers["x-once"], "1");
    }
    assert_eq!(env.effects().await, ["grant"]);
}

#[tokio::test]
async fn another_method_path_query_or_body_under_the_same_key_is_another_request() {
    let env = env(|layer| layer).await;
    env.post("/v1/grants", "k", "{}").await;
    for (path, body) in [
        ("/v1/revokes", "{}"),
        ("/v1/grants?dry", "{}"),
        ("/v1/grants", "{\"a\":1}"),
        ("/v1/grants", "[]"),
    ] {
        let refused = env.post(path, "k", body).await;
        assert_eq!(
            refused.error(),
            code(409, "IDEMPOTENCY_KEY_CONFLICT"),
            "{path} {body}"
        );
    }
    let mut other = ask("/v1/grants", Some("k"), "{}");
    other
        .headers_mut()
        .insert("x-caller", "other".parse().unwrap());
    assert_eq!(env.send(other).await.status, StatusCode::CREATED);
    assert_eq!(env.effects().await.len(), 2);
}

#[tokio::test]
async fn a_mismatch_may_be_told_as_unprocessable() {
    let env = env(|layer| layer.on_mismatch(Mismatch::Unprocessable)).await;
    env.post("/v1/grants", "k", "{}").await;
    let refused = env.post("/v1/grants", "k", "[]").await;
    assert_eq!(refused.error(), code(422, "IDEMPOTENCY_KEY_CONFLICT"));
}

#[tokio::test]
async fn a_request_without_a_proper_key_does_not_reach_the_handler() {
    let env = env(|layer| layer).await;
    let missing = env.send(ask("/v1/grants", None, "{}")).await;
    assert_eq!(missing.error(), code(400, "BAD_REQUEST"));
    let body: Value = serde_json::from_slice(&missing.body).unwrap();
    assert_eq!(body["message"], "Idempotency-Key is required");

    let long = "k".repeat(256);
    for key in ["", "a b", &long] {
        let refused = env.post("/v1/grants", key, "{}").await;
        assert_eq!(refused.error(), code(400, "BAD_REQUEST"), "{key:?}");
    }
    let mut twice = ask("/v1/grants", Some("a"), "{}");
    twice
        .headers_mut()
        .append("idempotency-key", "b".parse().unwrap());
    let mut opaque = ask("/v1/grants", None, "{}");
    let value = http::HeaderValue::from_bytes(b"\xff\xfe").unwrap();
    opaque.headers_mut().insert("idempotency-key", value);
    for request in [twice, opaque] {
        assert_eq!(env.send(request).await.error(), code(400, "BAD_REQUEST"));
    }
    assert!(env.effects().await.is_empty());
}

#[tokio::test]
async fn the_key_may_be_in_the_body() {
    for (field, body) in [
        ("idempotency_key", r#"{"idempotency_key": "k"}"#),
        ("/meta/key", r#"{"meta": {"key": "k"}}"#),
    ] {
        let env = env(|layer| layer.key_source(KeySource::BodyField(field.to_owned()))).await;
        let first = env.send(ask("/v1/grants", None, body)).await;
        let again = env.send(ask("/v1/grants", None, body)).await;
        assert_eq!((first.status, &first.body), (again.status, &again.body));
        assert!(again.is_replay());
        for bad in [
            "{}",
            "[]",
            "",
            "{",
            r#"{"idempotency_key": 7, "meta": {"key": 7}}"#,
            r#"{"idempotency_key": "a\u0000b", "meta": {"key": "a\u0000b"}}"#,
        ] {
            let refused = env.send(ask("/v1/grants", None, bad)).await;
            assert_eq!(refused.error(), code(400, "BAD_REQUEST"), "{bad}");
        }
        assert_eq!(env.effects().await, ["grant"]);
    }
}

#[tokio::test]
async fn where_the_key_is_optional_a_request_without_one_has_a_transaction_too() {
    let env = env(Layer::optional).await;
    for _ in 0..2 {
        let done = env.send(ask("/v1/grants", None, "{}")).await;
        assert_eq!(done.status, StatusCode::CREATED);
        let failed = env
            .send(ask("/v1/answers", None, r#"{"status": 500}"#))
            .await;
        assert_eq!(failed.status, StatusCode::INTERNAL_SERVER_ERROR);
    }
    assert_eq!(env.effects().await, ["grant", "grant"]);
}

#[tokio::test]
async fn only_what_was_decided_is_kept() {
    let env = env(|layer| layer).await;
    for (status, kept) in [
        (200, true),
        (204, true),
        (303, true),
        (400, false),
        (401, false),
        (403, false),
        (404, false),
        (408, false),
        (409, true),
        (410, true),
        (412, true),
        (422, false),
        (429, false),
        (500, false),
        (503, false),
    ] {
        let before = env.effects().await.len();
        let (key, body) = (format!("k{status}"), format!(r#"{{"status": {status}}}"#));
        for turn in 0..2 {
            let answer = env.post("/v1/answers", &key, &body).await;
            assert_eq!(answer.status.as_u16(), status);
            assert_eq!(answer.is_replay(), kept && turn == 1, "{status}");
        }
        let effects = env.effects().await.len() - before;
        assert_eq!(effects, usize::from(kept), "{status}");
        // A client that corrects its request may use its key again.
        let corrected = env
            .post("/v1/answers", &key, r#"{"status": 200, "a": 1}"#)
            .await;
        assert_eq!(corrected.status.as_u16() == 200, !kept, "{status}");
    }
}

#[tokio::test]
async fn a_service_may_decide_what_is_decided_but_never_its_own_failures() {
    let env = env(|layer| layer.decided(|_| true)).await;
    for (status, kept) in [(404, true), (500, false)] {
        let (key, body) = (format!("k{status}"), format!(r#"{{"status": {status}}}"#));
        env.post("/v1/answers", &key, &body).await;
        let again = env.post("/v1/answers", &key, &body).await;
        assert_eq!(again.is_replay(), kept, "{status}");
    }
}

#[tokio::test]
async fn while_a_request_runs_its_twin_waits_or_is_refused_as_told() {
    let wait = Duration::from_millis(100);
    for mode in [InProgress::Wait, InProgress::Refuse] {
        let env = env(|layer| layer).await;
        let keys = Keys::new(&Schema::new("app").unwrap()).wait(wait);
        let layer = Layer::new(keys, env.db.pool.clone(), |_| Some("shop".to_owned()));
        let router = router(&env.db.pool, layer.on_progress(mode));
        let env = Env { db: env.db, router };

        let first = env.post("/v1/slow", "k", "{}");
        let twin = async {
            until_open(&env.db.pool).await;
            let began = std::time::Instant::now();
            let refused = env.post("/v1/slow", "k", "{}").await;
            let waited = began.elapsed();
            let_go(&env.db.pool).await;
            (refused, waited)
        };
        let (first, (refused, waited)) = tokio::join!(first, twin);

        assert_eq!(refused.error(), code(409, "IDEMPOTENCY_KEY_IN_PROGRESS"));
        assert_eq!(refused.headers["retry-after"], "1");
        assert!(mode == InProgress::Refuse || waited >= wait);
        let again = env.post("/v1/slow", "k", "{}").await;
        assert!(again.is_replay());
        assert_eq!(again.body, first.body);
    }
}

/// Waits until a handler is in its transaction.
async fn until_open(pool: &PgPool) {
    eventually("a transaction is open", async || {
        let open: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT FROM pg_stat_activity
             WHERE datname = current_database() AND state = 'idle in transaction')",
        )
        .fetch_one(pool)
        .await
        .unwrap();
        open.then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_client_that_hangs_up_leaves_nothing_and_may_ask_again() {
    let env = env(|layer| layer).await;
    tokio::select! {
        _ = env.post("/v1/slow", "k", "{}") => panic!("nobody has let it go"),
        () = until_open(&env.db.pool) => {}
    }
    dropped::no_transaction_is_left(&env.db.pool).await;
    assert!(env.effects().await.is_empty());

    let_go(&env.db.pool).await;
    let answer = env.post("/v1/slow", "k", "{}").await;
    assert!(answer.status.is_success() && !answer.is_replay());
    assert_eq!(env.effects().await, ["go", "slow"]);
}

#[tokio::test]
async fn a_request_that_is_dropped_at_any_await_is_done_wholly_or_not_at_all() {
    let env = env(|layer| layer).await;
    let (mut polls, mut drops) = (1, 0);
    loop {
        let key = format!("k{polls}");
        let before = env.effects().await.len();
        let first = dropped::after(polls, env.post("/v1/grants", &key, "{}")).await;
        dropped::no_transaction_is_left(&env.db.pool).await;
        let committed = env.effects().await.len() > before;

        let again = env.post("/v1/grants", &key, "{}").await;

        // The answer that got lost after the commit is there for the retry.
        assert_eq!(again.status, StatusCode::CREATED);
        assert_eq!(again.is_replay(), committed, "dropped after {polls} polls");
        assert_eq!(env.effects().await.len(), before + 1);
        drops += usize::from(first.is_none());
        if first.is_some() && polls >= dropped::ROUNDS {
            break;
        }
        polls += 1;
    }
    assert!(drops > 0, "it was never dropped");
}

#[tokio::test]
async fn a_handler_that_keeps_its_transaction_commits_nothing() {
    let env = env(|layer| layer).await;
    let leak = Leak::default();
    let mut request = ask("/v1/leaks", Some("k"), "{}");
    request.extensions_mut().insert(leak.clone());

    let answer = env.send(request).await;

    assert_eq!(answer.error(), code(500, "INTERNAL"));
    drop(leak.0.lock().await.take());
    drop(leak);
    dropped::no_transaction_is_left(&env.db.pool).await;
    assert!(env.effects().await.is_empty());
    let answer = env.post("/v1/grants", "k", "{}").await;
    assert_eq!(answer.status, StatusCode::CREATED);
}

#[tokio::test]
async fn bodies_are_bounded_on_both_ways() {
    let env = env(|layer| layer.body_limit(100).answer_limit(100)).await;
    let large = format!(r#"{{"a": "{}"}}"#, "x".repeat(100));
    let refused = env.post("/v1/grants", "k", &large).await;
    assert_eq!(refused.error(), code(413, "PAYLOAD_TOO_LARGE"));

    let body = r#"{"status": 200, "length": 101}"#;
    let failed = env.post("/v1/answers", "k", body).await;
    assert_eq!(failed.error(), code(500, "INTERNAL"));
    let done = env
        .post("/v1/answers", "k", r#"{"status": 200, "length": 100}"#)
        .await;
    assert_eq!(done.status, StatusCode::OK);
    assert_eq!(env.effects().await, ["answer"]);
}

#[tokio::test]
async fn safe_methods_pass_and_nobodys_requests_do_not() {
    let env = env(|layer| layer).await;
    let list = http::Request::get("/v1/grants")
        .body(Body::empty())
        .unwrap();
    assert_eq!(env.send(list).await.body, b"0");

    let mut nobody = ask("/v1/grants", Some("k"), "{}");
    nobody.headers_mut().remove("x-caller");
    assert_eq!(env.send(nobody).await.error(), code(401, "UNAUTHORIZED"));

    let bare = env.send(ask("/bare", Some("k"), "{}")).await;
    assert_eq!(bare.error(), code(500, "INTERNAL"));
}

#[tokio::test]
async fn a_database_that_is_away_is_told_as_such() {
    let env = env(|layer| layer).await;
    env.db.pool.close().await;
    let answer = env.post("/v1/grants", "k", "{}").await;
    assert_eq!(answer.error(), code(503, "UNAVAILABLE"));
    assert_eq!(answer.headers["retry-after"], "1");
}
