//! The API: once per key, and every refusal in one clear sentence.

use reqwest::Method;
use serde_json::{Value, json};
use tasuki_service::auth::credentials::{Credentials, NewCredential};

use crate::support::{World, basket};

async fn key_for(world: &World, name: &str, scope: &str) -> String {
    let wanted = NewCredential::api_key(name, vec![scope.parse().unwrap()]).unwrap();
    let mut connection = world.env.db.pool.acquire().await.unwrap();
    let made = Credentials::new(&world.tables.schema)
        .create(&mut connection, &world.env.clock, &wanted)
        .await
        .unwrap();
    made.expose().to_owned()
}

#[tokio::test]
async fn an_order_that_is_sent_twice_is_taken_once() {
    let world = World::start().await;
    world.sell("sword", 100, 5).await;
    let body = basket("ada", &["sword"], "card", "orchestrated");
    let first = world.post("/v1/orders", "k", &body).await;
    assert_eq!(first.status, 202, "{}", first.text);
    assert_eq!(first.json()["state"], "STARTED");
    let again = world.post("/v1/orders", "k", &body).await;
    assert_eq!((again.status, &again.text), (first.status, &first.text));
    assert_eq!(again.headers["idempotency-replayed"], "true");
    let bobs = basket("bob", &["sword"], "card", "orchestrated");
    let other = world.post("/v1/orders", "k", &bobs).await;
    assert_eq!(
        (other.status.as_u16(), &*other.code()),
        (409, "IDEMPOTENCY_KEY_CONFLICT")
    );
    world
        .ended(first.json()["order_id"].as_str().unwrap())
        .await;
    assert_eq!(world.count("SELECT count(*) FROM shop.orders").await, 1);
    assert_eq!(
        world
            .count("SELECT count(*) FROM shop.simulated_charges")
            .await,
        1
    );
}

fn one(sku: &str, quantity: i64) -> Value {
    json!({ "stock_keeping_unit": sku, "quantity": quantity })
}

fn order(items: &[Value]) -> Value {
    json!({ "user_id": "ada", "items": items, "payment_method": "card" })
}

/// Orders that can't be meant, and words of the answer.
fn malformed() -> Vec<(Value, &'static str)> {
    let with = |field: &str, value: &str| {
        let mut body = order(&[one("sword", 1)]);
        body[field] = json!(value);
        body
    };
    vec![
        (order(&[]), "items has 1 to 50 entries"),
        (
            order(&[one("sword", 0)]),
            "items[0].quantity is from 1 to 1000",
        ),
        (order(&[one("sword", 1001)]), "items[0].quantity"),
        (
            order(&[one("", 1)]),
            "items[0].stock_keeping_unit is required",
        ),
        (order(&[one(&"x".repeat(129), 1)]), "longer than 128"),
        (order(&[one("sword", 1), one("sword", 2)]), "sword twice"),
        (order(&[one("gift", 1)]), "cost nothing"),
        (json!({ "user_id": "ada" }), "items"),
        (with("payment_method", ""), "payment_method is required"),
        (with("user_id", " "), "user_id is required"),
        (with("flow", "x"), "flow"),
        (with("more", "x"), "more"),
    ]
}

#[tokio::test]
async fn what_can_not_be_ordered_is_refused_with_its_reason_and_changes_nothing() {
    let world = World::start().await;
    world.sell("sword", 100, 5).await;
    world.sell("gift", 0, 5).await;
    let dollar = json!({ "price": 1, "currency": "USD" });
    world.product("dollar", &dollar).await;
    let malformed = malformed().into_iter();
    let malformed = malformed.map(|(body, words)| (body, 400, "BAD_REQUEST", words));
    let unsellable = [
        (
            order(&[one("axe", 1)]),
            "PRODUCT_NOT_FOUND",
            "does not sell axe",
        ),
        (
            order(&[one("sword", 1), one("dollar", 1)]),
            "CURRENCY_CONFLICT",
            "in EUR and in USD",
        ),
        (
            order(&[one("sword", 2)]),
            "QUANTITY_CONFLICT",
            "sword can be owned only once",
        ),
    ];
    let unsellable = unsellable.map(|(body, code, words)| (body, 409, code, words));
    for (body, status, code, words) in malformed.chain(unsellable) {
        // What can't be meant is no decision, and leaves the key free.
        let key = if status == 400 { "same" } else { code };
        let refused = world.post("/v1/orders", key, &body).await;
        assert_eq!(refused.status.as_u16(), status, "{body}: {}", refused.text);
        assert_eq!(refused.code(), code, "{body}");
        let message = refused.json()["message"].to_string();
        assert!(message.contains(words), "{body}: {message}");
    }
    assert_eq!(world.count("SELECT count(*) FROM shop.orders").await, 0);
    let body = basket("ada", &["sword"], "card", "orchestrated");
    assert_eq!(world.post("/v1/orders", "same", &body).await.status, 202);
}

#[tokio::test]
async fn what_the_catalogue_does_not_allow_is_refused_the_same_way_again() {
    let world = World::start().await;
    let body = order(&[one("potion", 2)]);
    let refused = world.post("/v1/orders", "k", &body).await;
    assert_eq!(refused.code(), "PRODUCT_NOT_FOUND");
    let price = json!({ "price": 100, "currency": "EUR", "consumable": true });
    world.product("potion", &price).await;
    let again = world.post("/v1/orders", "k", &body).await;
    assert_eq!((again.status, &again.text), (refused.status, &refused.text));
    assert_eq!(again.headers["idempotency-replayed"], "true");
    let other = world
        .post("/v1/orders", "k", &order(&[one("potion", 1)]))
        .await;
    assert_eq!(other.code(), "IDEMPOTENCY_KEY_CONFLICT");
    assert_eq!(world.post("/v1/orders", "l", &body).await.status, 202);
}

fn transfer(quantity: i64, from: &str, to: &str) -> Value {
    let mut body = one("sword", quantity);
    body["from"] = json!(from);
    body["to"] = json!(to);
    body
}

#[tokio::test]
async fn only_who_may_does() {
    let world = World::start().await;
    world.sell("sword", 100, 5).await;
    let body = basket("ada", &["sword"], "card", "orchestrated");
    let order = world.order(&body).await;
    let reader = key_for(&world, "reader", "shop:read").await;
    let path = format!("/v1/orders/{order}");
    let shown = world.host.get_as(&reader, &path).await;
    assert_eq!(shown.status, 200, "{}", shown.text);
    for (path, body) in [
        ("/v1/orders", body),
        (&format!("{path}:cancel"), json!({})),
        ("/v1/stock/receipts", one("sword", 1)),
        ("/v1/stock/transfers", transfer(1, "main", "overflow")),
    ] {
        let refused = world.post_as(&reader, path, "k", &body).await;
        assert_eq!(
            (refused.status.as_u16(), &*refused.code()),
            (403, "FORBIDDEN")
        );
        let nobody = world.host.post(path, &body).await;
        assert_eq!(
            (nobody.status.as_u16(), &*nobody.code()),
            (401, "UNAUTHORIZED")
        );
    }
    for path in ["/v1/reconciliation", "/v1/notices"] {
        let refused = world.get(path).await;
        assert_eq!(
            (refused.status.as_u16(), &*refused.code()),
            (403, "FORBIDDEN")
        );
    }
}

#[tokio::test]
async fn what_is_not_there_is_not_found() {
    let world = World::start().await;
    world.sell("sword", 100, 5).await;
    let body = basket("ada", &["sword"], "card", "orchestrated");
    let order = world.order(&body).await;
    let nobodys = "/v1/orders/01930000-0000-7000-8000-000000000001";
    for (path, status, code) in [
        ("/v1/orders/x", 400, "BAD_REQUEST"),
        (nobodys, 404, "NOT_FOUND"),
    ] {
        let refused = world.get(path).await;
        assert_eq!((refused.status.as_u16(), &*refused.code()), (status, code));
        let path = format!("{path}:cancel");
        let cancelled = world.post(&path, "k", &json!({})).await;
        assert_eq!(
            (cancelled.status.as_u16(), &*cancelled.code()),
            (status, code)
        );
    }
    let path = format!("/v1/orders/{order}:ship");
    let verb = world.post(&path, "k", &json!({})).await;
    assert_eq!((verb.status.as_u16(), &*verb.code()), (404, "NOT_FOUND"));
}

#[tokio::test]
async fn prices_are_checked_where_they_enter() {
    let world = World::start().await;
    let put = async |price: i64, currency: &str| {
        let (key, body) = (&world.key, json!({ "price": price, "currency": currency }));
        let path = "/v1/products/sword";
        world
            .host
            .send(Method::PUT, path, Some(key), Some(&body))
            .await
    };
    for (price, currency, words) in [
        (-1, "EUR", "price is at least 0"),
        (1, "eur", "three capital letters"),
        (1, "EURO", "three capital letters"),
    ] {
        let refused = put(price, currency).await;
        assert_eq!(refused.code(), "BAD_REQUEST");
        assert!(refused.text.contains(words), "{}", refused.text);
    }
    assert_eq!(put(1, "EUR").await.status, 200);
}

#[tokio::test]
async fn stock_is_checked_where_it_enters() {
    let world = World::start().await;
    for (path, body, words) in [
        ("receipts", one("sword", 0), "quantity is from 1"),
        ("receipts", one(" ", 1), "stock_keeping_unit is required"),
        (
            "transfers",
            transfer(0, "main", "overflow"),
            "quantity is from 1",
        ),
        (
            "transfers",
            transfer(1, "main", "main"),
            "from and to are the same",
        ),
        ("transfers", transfer(1, "main", "moon"), "to"),
    ] {
        let path = format!("/v1/stock/{path}");
        let refused = world.post(&path, "k", &body).await;
        assert_eq!(
            (refused.status.as_u16(), &*refused.code()),
            (400, "BAD_REQUEST")
        );
        assert!(refused.text.contains(words), "{}", refused.text);
    }
    let (key, body) = (&world.key, one("sword", 1));
    let path = "/v1/stock/receipts";
    let missing = world
        .host
        .send(Method::POST, path, Some(key), Some(&body))
        .await;
    let words = "Idempotency-Key is required";
    assert!(missing.text.contains(words), "{}", missing.text);
}

#[tokio::test]
async fn a_query_that_would_have_no_effect_is_refused() {
    let world = World::taking_orders_only().await;
    world.sell("sword", 100, 5).await;
    let order = basket("ada", &["sword"], "card", "orchestrated");
    let order = world.order(&order).await;
    for path in [
        "/v1/stock/sword".to_owned(),
        format!("/v1/orders/{order}"),
        "/v1/reconciliation".to_owned(),
        "/v1/notices".to_owned(),
    ] {
        let get = async |path: &str| world.host.get_as(&world.operator, path).await;
        let refused = get(&format!("{path}?warehouse=main")).await;
        assert_eq!(refused.status, 400, "{path}: {}", refused.text);
        assert_eq!(refused.code(), "BAD_REQUEST");
        assert!(refused.text.contains("warehouse"), "{}", refused.text);
        assert_eq!(get(&path).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn an_order_keeps_the_price_that_it_was_taken_at() {
    let world = World::taking_orders_only().await;
    world.sell("sword", 100, 5).await;
    let order = world
        .order(&basket("ada", &["sword"], "card", "orchestrated"))
        .await;
    world.sell("sword", 999, 0).await;
    let _working = world.another().await;
    assert_eq!(world.ended(&order).await["amount"], 100);
    let charged = "SELECT sum(amount)::bigint FROM shop.simulated_charges";
    assert_eq!(world.count(charged).await, 100);
}

#[tokio::test]
async fn the_description_has_every_path() {
    let world = World::start().await;
    let described = world.host.get("/openapi.json").await;
    for path in [
        "/v1/orders",
        "/v1/orders/{order_id}",
        "/v1/orders/{order_id}:cancel",
        "/v1/products/{stock_keeping_unit}",
        "/v1/stock/receipts",
        "/v1/stock/transfers",
        "/v1/stock/{stock_keeping_unit}",
        "/v1/reconciliation",
        "/v1/notices",
    ] {
        assert!(!described.json()["paths"][path].is_null(), "{path}");
    }
}
