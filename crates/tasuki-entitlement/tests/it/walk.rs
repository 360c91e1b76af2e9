//! The whole way of a grant, and every field of every answer on it.

use http::StatusCode;
use serde_json::json;
use tasuki_contract::events::entitlement::EventType;

use crate::support::{World, body, send};

#[tokio::test]
async fn a_grant_is_answered_stored_audited_and_told_as_one() {
    let world = World::start().await;
    let traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let request = world
        .raw(http::Method::POST, "/v1/entitlements/grants")
        .bearer_auth(&world.key)
        .header("Idempotency-Key", "k1")
        .header("traceparent", traceparent)
        .json(&body("user-1", "sword"));
    let granted = send(request).await;

    assert_eq!(granted.status, StatusCode::OK, "{}", granted.text);
    let json = granted.json();
    let keys: Vec<_> = json.as_object().unwrap().keys().cloned().collect();
    let wanted = [
        "status",
        "stock_keeping_unit",
        "updated_at",
        "user_id",
        "version",
    ];
    assert_eq!(keys, wanted, "nothing that was not asked for");
    assert_eq!(json["user_id"], "user-1");
    assert_eq!(json["stock_keeping_unit"], "sword");
    assert_eq!(
        (&json["status"], &json["version"]),
        (&json!("ACTIVE"), &json!(1))
    );
    let at = json["updated_at"].as_str().unwrap();
    assert!(at.len() == 27 && at.ends_with('Z'), "{at}");

    let list = world.get("/v1/users/user-1/entitlements").await.json();
    let item = json!({
        "stock_keeping_unit": "sword", "status": "ACTIVE", "version": 1, "updated_at": at,
    });
    assert_eq!(list, json!({ "user_id": "user-1", "entitlements": [item] }));

    let published = world.published(1).await;
    let (event, headers) = (&published[0].event, &published[0].headers);
    assert_eq!(event.event_type(), EventType::EntitlementGranted);
    assert_eq!(
        (&*event.user_id, &*event.stock_keeping_unit),
        ("user-1", "sword")
    );
    assert_eq!(
        (&*event.source, &*event.source_id),
        ("purchase", "order-17")
    );
    assert_eq!((event.version, &*event.occurred_at), (1, at));
    let header = |name: &str| headers.get(name).unwrap().as_str().to_owned();
    assert_eq!(header("Nats-Msg-Id"), event.event_id);
    assert_eq!(header("event_type"), "EntitlementGranted");
    assert_eq!(header("aggregate_key"), "user-1:sword");
    assert_eq!(header("occurred_at"), at);

    let audited = world.count(
        "SELECT count(*) FROM entitlement.entitlement_audit
         WHERE action = 'GRANT' AND version = 1 AND request_id = 'k1' AND source = 'purchase'
             AND source_id = 'order-17' AND caller LIKE 'api-key:%'",
    );
    assert_eq!(audited.await, 1);
}

#[tokio::test]
async fn undoing_one_purchase_takes_nothing_away_that_another_gave() {
    let world = World::start().await;
    let ask = body("u", "shield");
    let undo = |purchase: &str| {
        let mut undo = ask.clone();
        undo["if_purchase_id"] = json!(purchase);
        undo
    };
    world.grant("k1", &ask).await;
    let refused = world.revoke("k2", &undo("order-16")).await;
    assert_eq!(refused.status, StatusCode::CONFLICT, "{}", refused.text);
    assert_eq!(refused.code(), "ENTITLEMENT_PURCHASE_CONFLICT");
    let revoked = world.revoke("k3", &undo("order-17")).await;
    assert_eq!(revoked.json()["version"], 2, "{}", revoked.text);

    // The key of a grant that has not come is taken: it never will.
    let closed = world.revoke("late", &undo("order-17")).await;
    assert_eq!(closed.code(), "ENTITLEMENT_STATE_CONFLICT");
    let late = world.grant("late", &ask).await;
    assert_eq!(late.code(), "IDEMPOTENCY_KEY_CONFLICT", "{}", late.text);
    // And of one that has come, it tells so.
    let decided = world.revoke("k1", &undo("order-17")).await;
    assert_eq!(decided.code(), "IDEMPOTENCY_KEY_CONFLICT");
    let audited = "SELECT count(*) FROM entitlement.entitlement_audit";
    assert_eq!(world.count(audited).await, 2);
}

#[tokio::test]
async fn revoke_and_grant_again_make_the_next_versions_with_an_event_each() {
    let world = World::start().await;
    let ask = body("u", "shield");
    world.grant("k1", &ask).await;
    let revoked = world.revoke("k2", &ask).await;
    assert_eq!(revoked.json()["status"], "REVOKED");
    assert_eq!(revoked.json()["version"], 2);
    assert_eq!(world.grant("k3", &ask).await.json()["version"], 3);
    let never = world.revoke("k4", &body("u", "never-had")).await.json();
    assert_eq!(
        (&never["status"], &never["version"]),
        (&json!("REVOKED"), &json!(1))
    );

    let told: Vec<_> = world
        .published(4)
        .await
        .into_iter()
        .map(|it| it.event)
        .collect();
    let of = |sku: &str| -> Vec<_> {
        let told = told.iter().filter(|it| it.stock_keeping_unit == sku);
        told.map(|it| (it.event_type(), it.version)).collect()
    };
    assert_eq!(
        of("shield"),
        [
            (EventType::EntitlementGranted, 1),
            (EventType::EntitlementRevoked, 2),
            (EventType::EntitlementGranted, 3),
        ],
        "in order",
    );
    assert_eq!(of("never-had"), [(EventType::EntitlementRevoked, 1)]);
    world.drained().await;
}

#[tokio::test]
async fn the_list_has_the_last_change_first_in_pages_and_by_filter() {
    let world = World::start().await;
    for (index, sku) in ["a", "b", "c", "d"].into_iter().enumerate() {
        world.grant(&format!("g{index}"), &body("u", sku)).await;
    }
    world.revoke("r", &body("u", "a")).await;
    let skus = |list: serde_json::Value| -> Vec<String> {
        let items = list["entitlements"].as_array().unwrap().iter();
        items
            .map(|it| it["stock_keeping_unit"].as_str().unwrap().to_owned())
            .collect()
    };

    let all = world.get("/v1/users/u/entitlements").await.json();
    assert_eq!(all.get("next_cursor"), None);
    assert_eq!(skus(all), ["a", "d", "c", "b"]);
    let active = world
        .get("/v1/users/u/entitlements?status=ACTIVE")
        .await
        .json();
    assert_eq!(skus(active), ["d", "c", "b"]);

    let first = world.get("/v1/users/u/entitlements?limit=3").await.json();
    let cursor = first["next_cursor"].as_str().unwrap().to_owned();
    assert_eq!(skus(first), ["a", "d", "c"]);
    let second = world
        .get(&format!("/v1/users/u/entitlements?limit=3&cursor={cursor}"))
        .await;
    assert_eq!(skus(second.json()), ["b"]);

    let nobody = world.get("/v1/users/nobody/entitlements").await.json();
    assert_eq!(nobody, json!({ "user_id": "nobody", "entitlements": [] }));
}

#[tokio::test]
async fn the_list_can_be_asked_for_what_changed_since_a_time() {
    let world = World::start().await;
    world.grant("a", &body("u", "a")).await;
    let then = world.grant("b", &body("u", "b")).await.json()["updated_at"]
        .as_str()
        .unwrap()
        .to_owned();
    world.grant("c", &body("u", "c")).await;
    let since = async |at: &str| {
        let path = format!("/v1/users/u/entitlements?updated_since={at}");
        let list = world.get(&path).await.json();
        let items = list["entitlements"].as_array().unwrap().iter();
        items
            .map(|it| it["stock_keeping_unit"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(since(&then).await, ["c", "b"], "also at that very time");
    assert_eq!(since("2001-01-01T00:00:00Z").await, ["c", "b", "a"]);
    assert_eq!(since("2999-01-01T00:00:00Z").await, [""; 0]);
}

#[tokio::test]
async fn the_list_is_whole_unless_it_is_asked_for_in_pages_or_enormous() {
    let world = World::start().await;
    sqlx::query(
        "INSERT INTO entitlement.entitlements
             (user_id, stock_keeping_unit, status, version, source, source_id, updated_at)
         SELECT owner.name, number, 'ACTIVE', 1, 'a', 'b', now()
         FROM (VALUES ('many', 1001), ('enormous', 10001)) AS owner (name, has),
             generate_series(1, owner.has) AS number",
    )
    .execute(&world.env.db.pool)
    .await
    .unwrap();
    let length = |list: &serde_json::Value| list["entitlements"].as_array().unwrap().len();

    let many = world.get("/v1/users/many/entitlements").await.json();
    assert_eq!((length(&many), many.get("next_cursor")), (1001, None));
    let active = world
        .get("/v1/users/many/entitlements?status=ACTIVE")
        .await
        .json();
    assert_eq!(length(&active), 1001);
    let page = world
        .get("/v1/users/many/entitlements?limit=1000")
        .await
        .json();
    assert_eq!(
        (length(&page), page["next_cursor"].is_string()),
        (1000, true)
    );

    let enormous = world.get("/v1/users/enormous/entitlements").await.json();
    assert_eq!(length(&enormous), 10_000);
    let cursor = enormous["next_cursor"].as_str().unwrap();
    let path = format!("/v1/users/enormous/entitlements?cursor={cursor}");
    assert_eq!(length(&world.get(&path).await.json()), 1);
}

#[tokio::test]
async fn the_history_tells_every_change_and_who_made_it() {
    let world = World::start().await;
    world.grant("k1", &body("u", "s")).await;
    world.revoke("k2", &body("u", "s")).await;
    let history = world.get("/v1/users/u/entitlements/s/history").await.json();
    let told: Vec<_> = history["history"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| {
            (
                it["action"].clone(),
                it["version"].clone(),
                it["request_id"].clone(),
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            (json!("REVOKE"), json!(2), json!("k2")),
            (json!("GRANT"), json!(1), json!("k1")),
        ]
    );
    let page = world
        .get("/v1/users/u/entitlements/s/history?limit=1")
        .await
        .json();
    assert_eq!(page["next_cursor"], "2");
    let next = world
        .get("/v1/users/u/entitlements/s/history?cursor=2")
        .await;
    assert_eq!(next.json()["history"][0]["version"], 1, "{}", next.text);
}

#[tokio::test]
async fn names_in_any_script_are_kept_as_they_came() {
    let world = World::start().await;
    let (user, sku) = ("プレイヤー:1 %2F", "épée/de l'aube?#");
    assert_eq!(
        world.grant("k", &body(user, sku)).await.status,
        StatusCode::OK
    );
    let path = |text: &str| -> String {
        let byte = |byte: u8| format!("%{byte:02X}");
        text.bytes().map(byte).collect()
    };
    let check = world
        .get(&format!(
            "/v1/users/{}/entitlements/{}",
            path(user),
            path(sku)
        ))
        .await;
    assert_eq!(check.json()["allowed"], true, "{}", check.text);
    assert_eq!(check.json()["entitlement"]["user_id"], user);
    assert_eq!(world.published(1).await[0].event.stock_keeping_unit, sku);
}

#[tokio::test]
async fn the_api_describes_itself() {
    let world = World::start().await;
    let described = world.host.get("/openapi.json").await.json();
    let paths: Vec<_> = described["paths"]
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect();
    assert_eq!(
        paths,
        [
            "/v1/entitlements/consumes",
            "/v1/entitlements/grants",
            "/v1/entitlements/grants/bulk",
            "/v1/entitlements/revokes",
            "/v1/entitlements/revokes/bulk",
            "/v1/users/{user_id}/entitlements",
            "/v1/users/{user_id}/entitlements/{stock_keeping_unit}",
            "/v1/users/{user_id}/entitlements/{stock_keeping_unit}/history",
        ]
    );
    let bulk = &described["paths"]["/v1/entitlements/grants/bulk"]["post"]["responses"];
    for status in [
        "200", "400", "401", "403", "409", "413", "415", "503", "504",
    ] {
        assert!(bulk[status].is_object(), "{status} is not described");
    }
}
