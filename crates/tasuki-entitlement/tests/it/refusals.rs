//! Bad input gets one clear error with its documented code, and changes nothing.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{World, body, send};

/// A body with one field changed, or removed.
fn with(field: &str, value: Option<Value>) -> Value {
    let mut body = body("u", "s");
    let fields = body.as_object_mut().unwrap();
    match value {
        Some(value) => fields.insert(field.to_owned(), value),
        None => fields.remove(field),
    };
    body
}

/// Bodies that are wrong, and what is said of them.
fn wrong() -> Vec<(Value, String)> {
    let long = "x".repeat(129);
    let mut cases = vec![
        (
            with("nonsense", Some(json!(1))),
            "unknown field `nonsense`".to_owned(),
        ),
        (
            with("quantity", Some(json!(0))),
            "quantity is at least 1".to_owned(),
        ),
        (
            with("quantity", Some(json!("3"))),
            "quantity must be a whole number".to_owned(),
        ),
        (
            with("expires_at", Some(json!("soon"))),
            "expires_at is invalid".to_owned(),
        ),
        (
            with("expires_at", Some(json!("2001-01-01T00:00:00Z"))),
            "expires_at must be in the future".to_owned(),
        ),
        (
            json!(["u", "sword", "purchase", "order-1", null, null]),
            "request body must be a JSON object".to_owned(),
        ),
    ];
    for field in ["user_id", "stock_keeping_unit", "reason", "purchase_id"] {
        cases.extend([
            (with(field, None), format!("{field} is required")),
            (
                with(field, Some(json!("  "))),
                format!("{field} is required"),
            ),
            (
                with(field, Some(json!(long))),
                format!("{field} is longer than 128 characters"),
            ),
            (
                with(field, Some(json!("a\nb"))),
                format!("{field} has a control character"),
            ),
            (
                with(field, Some(json!("a\0b"))),
                format!(r"{field} must not hold \u0000"),
            ),
            (with(field, Some(json!(5))), format!("{field} must be text")),
        ]);
    }
    cases
}

#[tokio::test]
async fn every_bad_field_is_named_and_nothing_changes() {
    let world = World::start().await;
    let cases = wrong();
    for (index, (body, message)) in cases.iter().enumerate() {
        let refused = world.grant(&format!("k{index}"), body).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{body}");
        assert_eq!(refused.code(), "BAD_REQUEST");
        assert!(
            refused.text.contains(&message.replace('\\', r"\\")),
            "{body}: {}",
            refused.text
        );
        let keys = refused.json().as_object().unwrap().len();
        assert_eq!(keys, 2, "code and message, nothing else");
    }
    for table in [
        "entitlements",
        "entitlement_audit",
        "outbox_events",
        "idempotency_keys",
    ] {
        let sql = format!("SELECT count(*) FROM entitlement.{table}");
        let rows: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
            .fetch_one(&world.env.db.pool)
            .await
            .unwrap();
        assert_eq!(rows, 0, "{table}");
    }
}

#[tokio::test]
async fn a_missing_or_malformed_key_is_named() {
    let world = World::start().await;
    let ask = |key: Option<&[u8]>| {
        let request = world
            .raw(Method::POST, "/v1/entitlements/grants")
            .bearer_auth(&world.key)
            .json(&body("u", "s"));
        match key {
            Some(key) => request.header("Idempotency-Key", key),
            None => request,
        }
    };
    let long = "k".repeat(256);
    for (key, message) in [
        (None, "Idempotency-Key is required"),
        (Some(&b""[..]), "Idempotency-Key is required"),
        (
            Some(b"a b"),
            "Idempotency-Key has 1 to 255 visible ASCII characters",
        ),
        (
            Some(b"\xffa"),
            "Idempotency-Key has 1 to 255 visible ASCII characters",
        ),
        (
            Some(long.as_bytes()),
            "Idempotency-Key has 1 to 255 visible ASCII characters",
        ),
    ] {
        let refused = send(ask(key)).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST);
        assert_eq!(refused.json()["message"], message);
    }
    let twice = send(ask(Some(b"a")).header("Idempotency-Key", "b")).await;
    assert_eq!(twice.json()["message"], "Idempotency-Key was sent twice");
    let longest = send(ask(Some("k".repeat(255).as_bytes()))).await;
    assert_eq!(longest.status, StatusCode::OK);
}

#[tokio::test]
async fn the_credential_comes_first_and_must_have_the_scope_of_the_call() {
    let world = World::start().await;
    let reader = world.key_with("reader", &["entitlement:read"]).await;
    let granter = world.key_with("granter", &["entitlement:grant"]).await;
    // The body is nonsense: who may not ask is told so first.
    for (path, key, scope) in [
        ("/v1/entitlements/grants", &reader, "entitlement:grant"),
        ("/v1/entitlements/grants/bulk", &reader, "entitlement:grant"),
        ("/v1/entitlements/revokes", &granter, "entitlement:revoke"),
        (
            "/v1/entitlements/revokes/bulk",
            &granter,
            "entitlement:revoke",
        ),
        ("/v1/entitlements/consumes", &granter, "entitlement:consume"),
    ] {
        let nobody = send(world.raw(Method::POST, path).json(&json!(0))).await;
        assert_eq!(nobody.status, StatusCode::UNAUTHORIZED, "{path}");
        assert_eq!(nobody.code(), "UNAUTHORIZED");
        let other = send(
            world
                .raw(Method::POST, path)
                .bearer_auth(key)
                .json(&json!(0)),
        )
        .await;
        assert_eq!(other.status, StatusCode::FORBIDDEN, "{path}");
        assert!(other.text.contains(scope), "{}", other.text);
    }
    for path in ["/v1/users/u/entitlements", "/v1/users/u/entitlements/s"] {
        let refused = world.host.get_as(&granter, path).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{path}");
        assert_eq!(
            world.host.get_as(&reader, path).await.status,
            StatusCode::OK
        );
        assert_eq!(world.host.get(path).await.status, StatusCode::UNAUTHORIZED);
    }
}

#[tokio::test]
async fn other_types_sizes_paths_and_methods_are_refused_with_their_codes() {
    let world = World::start().await;
    let grants = || {
        world
            .raw(Method::POST, "/v1/entitlements/grants")
            .bearer_auth(&world.key)
            .header("Idempotency-Key", "k")
    };
    let large = "x".repeat(2 << 20);
    for (request, status, code) in [
        (grants().body("{}"), 415, "UNSUPPORTED_MEDIA_TYPE"),
        (
            grants()
                .header("Content-Type", "application/json")
                .body(large),
            413,
            "PAYLOAD_TOO_LARGE",
        ),
        (
            grants()
                .header("Content-Type", "application/json")
                .body("{"),
            400,
            "BAD_REQUEST",
        ),
        (
            grants().header("Content-Type", "application/json"),
            400,
            "BAD_REQUEST",
        ),
        (
            world.raw(Method::PUT, "/v1/entitlements/grants"),
            405,
            "METHOD_NOT_ALLOWED",
        ),
        (world.raw(Method::GET, "/v1/nothing"), 404, "NOT_FOUND"),
    ] {
        let refused = send(request).await;
        assert_eq!((refused.status.as_u16(), &*refused.code()), (status, code));
    }
}

#[tokio::test]
async fn a_failure_of_ours_tells_nothing_of_the_inside_and_is_not_kept() {
    let world = World::start().await;
    let pool = &world.env.db.pool;
    sqlx::query("ALTER TABLE entitlement.entitlement_audit RENAME TO elsewhere")
        .execute(pool)
        .await
        .unwrap();
    let failed = world.grant("k", &body("u", "s")).await;
    assert_eq!(failed.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(failed.code(), "INTERNAL");
    // Where traces are recorded, their id follows.
    let message = failed.json()["message"].as_str().unwrap().to_owned();
    let id = message.strip_prefix("internal error").unwrap();
    let id = id.strip_prefix(", trace id ").unwrap_or(id);
    assert!(id.chars().all(|c| c.is_ascii_hexdigit()), "{message}");

    sqlx::query("ALTER TABLE entitlement.elsewhere RENAME TO entitlement_audit")
        .execute(pool)
        .await
        .unwrap();
    let done = world.grant("k", &body("u", "s")).await;
    assert_eq!(done.status, StatusCode::OK, "{}", done.text);
}

#[tokio::test]
async fn bad_queries_are_refused() {
    let world = World::start().await;
    for (query, message) in [
        ("status=GONE", "status is ACTIVE or REVOKED"),
        ("limit=0", "limit is from 1 to 1000"),
        ("limit=1001", "limit is from 1 to 1000"),
        ("cursor=!!", "cursor is not a next_cursor of this list"),
    ] {
        let refused = world
            .get(&format!("/v1/users/u/entitlements?{query}"))
            .await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{query}");
        assert_eq!(refused.json()["message"], message);
    }
    let unknown = world.get("/v1/users/u/entitlements?foo=1").await;
    assert_eq!(unknown.status, StatusCode::BAD_REQUEST);
    let user = world.get("/v1/users/%20/entitlements").await;
    assert_eq!(user.json()["message"], "user_id is required");
}

#[tokio::test]
async fn a_bulk_request_with_one_bad_item_does_nothing_at_all() {
    let world = World::start().await;
    let bulk = |items: Vec<Value>| json!({ "items": items });
    for (items, message) in [
        (vec![], "items has 1 to 1000 entries"),
        (vec![body("u", "s"); 1001], "items has 1 to 1000 entries"),
        (
            vec![body("u", "s"), body("u", " ")],
            "items[1].stock_keeping_unit is required",
        ),
    ] {
        let refused = world
            .post("/v1/entitlements/grants/bulk", "k", &bulk(items))
            .await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST);
        assert_eq!(refused.json()["message"], message);
    }
    assert_eq!(
        world
            .count("SELECT count(*) FROM entitlement.entitlements")
            .await,
        0
    );
}
