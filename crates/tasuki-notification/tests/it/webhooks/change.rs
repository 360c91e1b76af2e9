//! What the owner of a webhook changes of it holds from then on, for what it is owed already too.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use http::StatusCode;
use serde_json::json;
use tokio::sync::Semaphore;

use super::{Receiver, SENT, lenient_with, path, register};
use crate::support::{World, granted};

#[tokio::test]
async fn at_a_new_address_a_webhook_gets_what_the_old_one_did_not_take() {
    let world = lenient_with(|config| {
        config
            .with_value("notification.webhook.circuit-failures", 1)
            .unwrap()
    })
    .await;
    let (_old, broken) = Receiver::start(&[(500, None), (500, None)]).await;
    let webhook = register(&world, broken).await;
    world.tell(&granted("u", "s", 1)).await;
    let held = "SELECT count(*) FROM notification.webhook_endpoints WHERE held_until IS NOT NULL";
    world.counts(1, held).await;

    let (new, well) = Receiver::start(&[]).await;
    let url = format!("http://{well}/hook");
    let changed = world
        .patch(&path(&webhook, ""), &json!({ "url": url }))
        .await;
    assert_eq!(changed.status, StatusCode::OK, "{}", changed.text);
    assert_eq!(changed.json()["url"], url);
    assert!(changed.json().get("secret").is_none(), "{}", changed.text);
    new.got_at_least(1).await;
    world.counts(1, SENT).await;
}

#[tokio::test]
async fn what_is_left_out_of_a_change_stays_as_it_is() {
    let world = World::start().await;
    let body = json!({
        "url": "https://example.com/a", "description": "first", "types": ["EntitlementGranted"],
    });
    let webhook = world.post("/v1/users/u/webhooks", &body).await.json();
    for (change, key, now) in [
        (
            json!({ "description": "second" }),
            "description",
            json!("second"),
        ),
        (json!({ "types": [] }), "types", json!([])),
        (
            json!({ "url": "https://example.com/b" }),
            "url",
            json!("https://example.com/b"),
        ),
    ] {
        let before = world.get("/v1/users/u/webhooks").await.json()["webhooks"][0].clone();
        let changed = world.patch(&path(&webhook, ""), &change).await;
        assert_eq!(changed.status, StatusCode::OK, "{}", changed.text);
        let mut wanted = before;
        wanted[key] = now;
        wanted["updated_at"] = changed.json()["updated_at"].clone();
        assert_eq!(changed.json(), wanted);
    }
}

#[tokio::test]
async fn a_change_that_is_refused_changes_nothing() {
    let world = World::start().await;
    let body = json!({ "url": "https://example.com/a" });
    let webhook = world.post("/v1/users/u/webhooks", &body).await.json();
    let before = world.get("/v1/users/u/webhooks").await.json();
    for change in [
        json!({ "url": "https://10.1.2.3/" }),
        json!({ "url": "https://example.com/b", "types": [""] }),
        json!({ "url": "https://example.com/b", "description": "a\u{0}b" }),
        json!({ "url": "https://example.com/b", "secret": "whsec_mine" }),
    ] {
        let refused = world.patch(&path(&webhook, ""), &change).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{change}");
    }
    let nobody = path(
        &json!({ "endpoint_id": "0198c5a0-0000-7000-8000-000000000000" }),
        "",
    );
    let unknown = world.patch(&nobody, &json!({ "description": "x" })).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    assert_eq!(world.get("/v1/users/u/webhooks").await.json(), before);
}

/// Somebody else's server that answers when it is let.
#[derive(Clone)]
struct Late {
    status: StatusCode,
    called: Arc<Semaphore>,
    may_answer: Arc<Semaphore>,
}

impl Late {
    async fn start(status: StatusCode) -> (Self, SocketAddr) {
        let late = Self {
            status,
            called: Arc::new(Semaphore::new(0)),
            may_answer: Arc::new(Semaphore::new(0)),
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes = Router::new().fallback(answer).with_state(late.clone());
        #[expect(clippy::disallowed_methods, reason = "it ends with the test's runtime")]
        tokio::spawn(async move { axum::serve(listener, routes).await });
        (late, address)
    }
}

async fn answer(State(late): State<Late>) -> StatusCode {
    late.called.add_permits(1);
    late.may_answer.acquire().await.unwrap().forget();
    late.status
}

#[tokio::test]
async fn what_the_old_address_answers_late_says_nothing_of_the_new_one() {
    for status in [StatusCode::GONE, StatusCode::INTERNAL_SERVER_ERROR] {
        let world = lenient_with(|config| {
            config
                .with_value("notification.webhook.circuit-failures", 1)
                .unwrap()
        })
        .await;
        let (late, old) = Late::start(status).await;
        let webhook = register(&world, old).await;
        world.tell(&granted("u", "s", 1)).await;
        late.called.acquire().await.unwrap().forget();

        let (new, well) = Receiver::start(&[]).await;
        let url = json!({ "url": format!("http://{well}/hook") });
        let changed = world.patch(&path(&webhook, ""), &url).await;
        assert_eq!(changed.status, StatusCode::OK, "{}", changed.text);
        late.may_answer.add_permits(1);
        new.got_at_least(1).await;
        world.counts(1, SENT).await;
        let well = "SELECT count(*) FROM notification.webhook_endpoints
            WHERE status = 'ENABLED' AND failures = 0 AND held_until IS NULL";
        world.counts(1, well).await;
    }
}
