//! Who may order, look and manage: every route, for whom it is meant and for everybody else.

use reqwest::{Client, Method};
use serde_json::{Value, json};
use tasuki_testkit::Issuer;

use crate::support::{World, basket};

/// The shop, where the gateway calls for users, and may do nothing for itself.
async fn world(gateway: &Issuer) -> World {
    let world = World::with(|config| {
        config
            .with_value("auth.issuers.gateway", gateway.url.as_str())
            .unwrap()
    });
    let world = world.await;
    world.sell("sword", 100, 5).await;
    world
}

/// The status of the answer to a request under a fresh key.
async fn status(
    world: &World,
    credential: Option<&String>,
    method: &Method,
    path: &str,
    body: Option<&Value>,
) -> u16 {
    let url = format!("http://{}{path}", world.host.api);
    let request = Client::new()
        .request(method.clone(), url)
        .header("Idempotency-Key", uuid::Uuid::now_v7().to_string());
    let request = match credential {
        Some(credential) => request.bearer_auth(credential),
        None => request,
    };
    let request = match body {
        Some(body) => request.json(body),
        None => request,
    };
    request.send().await.unwrap().status().as_u16()
}

#[tokio::test]
async fn an_order_is_placed_seen_and_cancelled_by_its_user_and_by_callers_with_the_scope_alone() {
    let gateway = Issuer::start("gateway").await.unwrap();
    let world = world(&gateway).await;
    let token = |user| gateway.token("shop", user).unwrap();
    let (ada, bob, nobodys) = (token(Some("ada")), token(Some("bob")), token(None));
    let ordering = world.key_with("shop:order").await;
    let reading = world.key_with("shop:read").await;
    let managing = world.key_with("shop:manage").await;
    let (get, post) = (Method::GET, Method::POST);

    let body = basket("ada", &["sword"], "test-refund-refused", "orchestrated");
    for (who, credential, expected) in [
        ("nobody", None, 401),
        ("another user", Some(&bob), 403),
        ("a service for itself", Some(&nobodys), 403),
        ("a key that reads", Some(&reading), 403),
        ("a key that manages", Some(&managing), 403),
    ] {
        let got = status(&world, credential, &post, "/v1/orders", Some(&body)).await;
        assert_eq!(got, expected, "ordered by {who}");
    }
    assert_eq!(world.count("SELECT count(*) FROM shop.orders").await, 0);

    let taken = world.post_as(&ada, "/v1/orders", "k", &body).await;
    assert_eq!(taken.status, 202, "{}", taken.text);
    let order = taken.json()["order_id"].as_str().unwrap().to_owned();
    let (path, cancel) = (
        format!("/v1/orders/{order}"),
        format!("/v1/orders/{order}:cancel"),
    );
    let ended = world.ended(&order).await;
    assert_eq!(ended["state"], "COMPLETED");
    for (who, credential, seen, cancelled) in [
        ("nobody", None, 401, 401),
        // Whose orders there are is nobody else's business.
        ("another user", Some(&bob), 404, 404),
        ("a service for itself", Some(&nobodys), 403, 403),
        ("a key that orders", Some(&ordering), 403, 409),
        ("a key that reads", Some(&reading), 200, 403),
        ("a key that manages", Some(&managing), 403, 403),
        // Theirs, and too late.
        ("its user", Some(&ada), 200, 409),
    ] {
        let got = status(&world, credential, &get, &path, None).await;
        assert_eq!(got, seen, "seen by {who}");
        let got = status(&world, credential, &post, &cancel, None).await;
        assert_eq!(got, cancelled, "cancelled by {who}");
    }
    let cancelled = "SELECT count(*) FROM shop.orders WHERE cancel_requested_by IS NOT NULL";
    assert_eq!(world.count(cancelled).await, 0);
    assert_eq!(world.look(&order).await, ended, "nothing was changed");
}

/// Everything that managing could have changed.
async fn shelves(world: &World) -> String {
    sqlx::query_scalar(
        "SELECT jsonb_build_array(
            (SELECT jsonb_agg(it ORDER BY stock_keeping_unit) FROM shop.products AS it),
            (SELECT jsonb_agg(it ORDER BY stock_keeping_unit) FROM shop.stock AS it),
            (SELECT count(*) FROM shop.stock_moves)
        )::text",
    )
    .fetch_one(&world.env.db.pool)
    .await
    .unwrap()
}

#[tokio::test]
async fn the_shop_is_managed_with_the_scope_alone_and_for_no_user() {
    let gateway = Issuer::start("gateway").await.unwrap();
    let world = world(&gateway).await;
    let ada = gateway.token("shop", Some("ada")).unwrap();
    let nobodys = gateway.token("shop", None).unwrap();
    let ordering = world.key_with("shop:order").await;
    let reading = world.key_with("shop:read").await;
    let managing = world.key_with("shop:manage").await;
    let price = json!({ "price": 1, "currency": "EUR" });
    let goods = json!({ "stock_keeping_unit": "sword", "quantity": 1 });
    let transfer = json!({
        "stock_keeping_unit": "sword", "quantity": 1, "from": "main", "to": "overflow",
    });
    let managed = [
        (Method::PUT, "/v1/products/sword", Some(&price)),
        (Method::POST, "/v1/stock/receipts", Some(&goods)),
        (Method::GET, "/v1/stock/sword", None),
        (Method::POST, "/v1/stock/transfers", Some(&transfer)),
    ];
    let operated = [
        (Method::GET, "/v1/reconciliation", None),
        (Method::GET, "/v1/notices", None),
    ];
    let before = shelves(&world).await;
    for (method, path, body) in managed.iter().chain(&operated) {
        for (who, credential, expected) in [
            ("nobody", None, 401),
            ("a user", Some(&ada), 403),
            ("a service for itself", Some(&nobodys), 403),
            ("a key that orders", Some(&ordering), 403),
            ("a key that reads", Some(&reading), 403),
        ] {
            let got = status(&world, credential, method, path, *body).await;
            assert_eq!(got, expected, "{method} {path} by {who}");
        }
    }
    for (method, path, body) in &operated {
        let got = status(&world, Some(&managing), method, path, *body).await;
        assert_eq!(got, 403, "{path} is for operators");
        let got = status(&world, Some(&world.operator), method, path, *body).await;
        assert_eq!(got, 200, "{path}");
    }
    assert_eq!(shelves(&world).await, before, "nothing was changed");
    for (method, path, body) in &managed {
        let got = status(&world, Some(&managing), method, path, *body).await;
        assert_eq!(got, 200, "{method} {path}");
    }
    assert_ne!(shelves(&world).await, before);
}
