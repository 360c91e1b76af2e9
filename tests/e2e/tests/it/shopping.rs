//! An order from the request to the notification, through the executable, in both flows; and goods
//! that move between two databases.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "helpers of tests"
)]

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tasuki_testkit::eventually_within;

use crate::support::{Up, World};

/// Generous: everything has just started.
const LIMIT: Duration = Duration::from_secs(60);

/// Asks the shop as a machine that may, until it does not say that it is busy.
pub(crate) async fn ask(
    up: &Up,
    method: Method,
    path: &str,
    key: &str,
    body: &Value,
) -> (u16, Value) {
    let url = format!("{}{path}", up.env.get("SHOP_URL"));
    eventually_within(LIMIT, "the shop answers", async || {
        let request = reqwest::Client::new()
            .request(method.clone(), &url)
            .bearer_auth(up.env.get("API_KEY"))
            .header("Idempotency-Key", key)
            .json(body);
        let answer = request.send().await.unwrap();
        let status = answer.status();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            return None;
        }
        Some((status.as_u16(), answer.json().await.unwrap()))
    })
    .await
}

pub(crate) async fn ended(up: &Up, order: &str) -> Value {
    let url = format!("{}/v1/orders/{order}", up.env.get("SHOP_URL"));
    eventually_within(LIMIT, "the order has ended", async || {
        let request = reqwest::Client::new()
            .get(&url)
            .bearer_auth(up.env.get("API_KEY"));
        let seen: Value = request.send().await.unwrap().json().await.unwrap();
        let state = seen["state"].as_str().unwrap_or_default();
        matches!(state, "COMPLETED" | "COMPENSATED").then_some(seen)
    })
    .await
}

/// An order of a piece of the sword, which this puts on sale; answers its id when it is completed.
pub(crate) async fn bought(up: &Up, user: &str) -> String {
    let price = json!({ "price": 700, "currency": "EUR" });
    ask(up, Method::PUT, "/v1/products/sword", "-", &price).await;
    let goods = json!({ "stock_keeping_unit": "sword", "quantity": 1 });
    let key = format!("goods-{user}");
    ask(up, Method::POST, "/v1/stock/receipts", &key, &goods).await;
    let body = json!({
        "user_id": user,
        "items": [{ "stock_keeping_unit": "sword", "quantity": 1 }],
        "payment_method": "card",
    });
    let (status, taken) = ask(up, Method::POST, "/v1/orders", user, &body).await;
    assert_eq!(status, 202, "{taken}");
    let order = taken["order_id"].as_str().unwrap().to_owned();
    assert_eq!(ended(up, &order).await["state"], "COMPLETED");
    order
}

#[tokio::test]
async fn an_order_is_paid_granted_and_told_in_both_flows_and_the_books_are_right() {
    let world = World::new();
    let up = world.up().await;
    let price = json!({ "price": 700, "currency": "EUR" });
    let (status, _) = ask(&up, Method::PUT, "/v1/products/sword", "-", &price).await;
    assert_eq!(status, 200);
    let goods = json!({ "stock_keeping_unit": "sword", "quantity": 5 });
    ask(&up, Method::POST, "/v1/stock/receipts", "r", &goods).await;
    for (flow, method, state) in [
        ("orchestrated", "card", "COMPLETED"),
        ("choreographed", "card", "COMPLETED"),
        ("orchestrated", "test-decline", "COMPENSATED"),
    ] {
        let user = format!("{flow}-{method}");
        let body = json!({
            "user_id": user,
            "items": [{ "stock_keeping_unit": "sword", "quantity": 1 }],
            "payment_method": method,
            "flow": flow,
        });
        let (status, taken) = ask(&up, Method::POST, "/v1/orders", &user, &body).await;
        assert_eq!(status, 202, "{taken}");
        let seen = ended(&up, taken["order_id"].as_str().unwrap()).await;
        assert_eq!(seen["state"], state, "{seen}");
        let told = format!(
            "{}/debug/notification/inbox/{user}",
            up.env.get("NOTIFICATION_URL")
        );
        let wanted = if state == "COMPLETED" {
            "OrderCompleted"
        } else {
            "OrderCancelled"
        };
        eventually_within(LIMIT, "the buyer is told", async || {
            let request = reqwest::Client::new()
                .get(&told)
                .bearer_auth(up.env.get("OPERATOR_TOKEN"));
            let inbox: Value = request.send().await.unwrap().json().await.unwrap();
            let all = inbox["notifications"].as_array()?;
            all.iter().any(|it| it["type"] == wanted).then_some(())
        })
        .await;
    }
    let transfer = json!({
        "stock_keeping_unit": "sword", "quantity": 2, "from": "main", "to": "overflow",
    });
    let (status, moved) = ask(&up, Method::POST, "/v1/stock/transfers", "t", &transfer).await;
    assert_eq!(status, 200, "{moved}");
    let verified = world.run(world.joined(&["verify", "--json"])).await;
    let verified: Value = serde_json::from_str(&verified.out).unwrap();
    assert_eq!(verified["problem_count"], 0, "{verified}");
}
