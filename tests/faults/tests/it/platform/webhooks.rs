//! Webhooks of a process that dies when one has been sent, and before that is written down.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use serde_json::{Value, json};
use tasuki_testkit::eventually_within;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::promises::REST;
use super::{Node, Platform};

/// The ids of what somebody else's server got.
#[derive(Clone, Default)]
struct Got(Arc<Mutex<Vec<String>>>);

impl Got {
    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

async fn hook(State(got): State<Got>, headers: HeaderMap) {
    let id = headers.get("webhook-id").unwrap().to_str().unwrap();
    got.0.lock().unwrap().push(id.to_owned());
}

/// A server that takes everything, as long as this is held.
async fn receiver() -> (Got, SocketAddr, JoinSet<()>) {
    let got = Got::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let routes = Router::new().fallback(hook).with_state(got.clone());
    let mut serving = JoinSet::new();
    serving.spawn(async move { axum::serve(listener, routes).await.unwrap() });
    (got, address, serving)
}

impl Platform {
    /// Lets `user-1` be told at `address`, and nowhere else.
    async fn registers(&self, node: &Node, address: SocketAddr) {
        let scopes = &tasuki_notification::SCOPES;
        let key = self.credential("notification", scopes).await;
        let base = format!("http://{}/v1/users/user-1", node.api.unwrap());
        let client = reqwest::Client::new();
        let preferred = client
            .put(format!("{base}/notification-preferences"))
            .json(&json!({ "channels": { "*": ["webhook"] } }));
        let registered = client
            .post(format!("{base}/webhooks"))
            .json(&json!({ "url": format!("http://{address}/hook") }));
        for request in [preferred, registered] {
            let response = request.bearer_auth(&key).send().await.unwrap();
            let status = response.status();
            assert!(status.is_success(), "{status}: {:?}", response.text().await);
        }
    }

    async fn grants(&self, node: &Node, number: u32) {
        let body: Value = json!({
            "user_id": "user-1",
            "stock_keeping_unit": format!("sku-{number}"),
            "reason": "faults",
            "purchase_id": number.to_string(),
        });
        let address = node.api.unwrap();
        let granted = reqwest::Client::new()
            .post(format!("http://{address}/v1/entitlements/grants"))
            .bearer_auth(&self.key)
            .header("Idempotency-Key", format!("webhook-{number}"))
            .json(&body)
            .send()
            .await
            .unwrap();
        assert_eq!(granted.status(), 200);
    }
}

#[tokio::test]
async fn a_webhook_whose_sender_dies_is_sent_again_under_the_same_id_and_settled_once() {
    let allow = "TASUKI_NOTIFICATION__WEBHOOK__ALLOW_PRIVATE_ADDRESSES";
    let platform = Platform::with("webhooks", &[(allow, "true")]).await;
    let (got, address, _serving) = receiver().await;
    let first = platform.node("notification").await;
    platform.registers(&first, address).await;
    first.stop().await;
    let entitlement = platform.node("entitlement").await;
    let mut doomed = platform
        .doomed("notification", "notification.webhook_sent", 1)
        .await;
    for number in 0..3 {
        platform.grants(&entitlement, number).await;
    }
    doomed.is_killed().await;
    let before: HashSet<String> = got.all().into_iter().collect();
    assert!(!before.is_empty(), "it was sent, and then it died");

    let _next = platform.node("notification").await;
    let count = async |sql: &'static str| -> i64 {
        sqlx::query_scalar(sql)
            .fetch_one(&platform.pool)
            .await
            .unwrap()
    };
    eventually_within(REST, "all are sent", async || {
        let sent = "SELECT count(*) FROM notification.notifications WHERE status = 'SENT'";
        (count(sent).await == 3).then_some(())
    })
    .await;
    let all = got.all();
    let times = |id: &String| all.iter().filter(|other| *other == id).count();
    let ids: HashSet<String> = all.iter().cloned().collect();
    assert_eq!(ids.len(), 3, "one id for each, however often: {all:?}");
    let again = before.iter().filter(|id| times(id) > 1).count();
    assert!(again > 0, "nobody knew that it was sent: {all:?}");
    for (sql, wanted) in [
        ("SELECT count(*) FROM notification.notifications", 3),
        ("SELECT count(*) FROM notification.dead_letters", 0),
        ("SELECT count(*) FROM notification.notification_nats_dlq", 0),
    ] {
        assert_eq!(count(sql).await, wanted, "{sql}");
    }
}
