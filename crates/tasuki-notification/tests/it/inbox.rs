//! What people see: their inbox, their wishes, and nothing of others.

use http::StatusCode;
use serde_json::json;
use tasuki_testkit::eventually;

use crate::support::{World, granted, serve};

#[tokio::test]
async fn an_inbox_lists_what_is_new_counts_what_is_unread_and_remembers_what_was_read() {
    let world = World::start().await;
    world.prefer("u", &["in-app"]).await;
    for sku in ["a", "b", "c"] {
        world.tell(&granted("u", sku, 1)).await;
    }
    let inbox = eventually("all three are there", async || {
        let inbox = world.get("/v1/users/u/notifications").await.json();
        (inbox["unread_count"] == 3).then_some(inbox)
    })
    .await;
    assert_eq!(inbox["last_sequence"], 3);
    let first = &inbox["notifications"][0];
    assert_eq!(
        (&first["sequence"], &first["read_at"]),
        (&json!(3), &json!(null))
    );
    let id = first["notification_id"].as_str().unwrap();

    let path = format!("/v1/users/u/notifications/{id}/read");
    let read = world.post(&path, &json!({})).await;
    assert_eq!(read.status, StatusCode::OK, "{}", read.text);
    let again = world.post(&path, &json!({})).await;
    assert_eq!(again.json(), read.json(), "the first time counts");
    let inbox = world
        .get("/v1/users/u/notifications?unread=true&limit=1")
        .await
        .json();
    assert_eq!(
        (&inbox["unread_count"], &inbox["next_cursor"]),
        (&json!(2), &json!("2"))
    );
    let next = world
        .get("/v1/users/u/notifications?unread=true&cursor=2")
        .await
        .json();
    assert_eq!(next["notifications"].as_array().unwrap().len(), 1);

    let others = format!("/v1/users/v/notifications/{id}/read");
    assert_eq!(
        world.post(&others, &json!({})).await.status,
        StatusCode::NOT_FOUND
    );
}

#[tokio::test]
async fn the_newest_version_wins_in_what_a_person_is_shown() {
    let world = World::start().await;
    world.prefer("u", &["in-app"]).await;
    let versions = [1, 3, 2];
    for version in versions {
        world.tell(&granted("u", "s", version)).await;
        let sql = "SELECT count(*) FROM notification.notifications WHERE status = 'SENT'";
        eventually("it is shown", async || {
            (world.count(sql).await
                >= versions
                    .iter()
                    .position(|it| *it == version)
                    .map(|it| i64::try_from(it).unwrap() + 1)
                    .unwrap())
            .then_some(())
        })
        .await;
    }
    let inbox = world.get("/v1/users/u/notifications").await.json();
    let shown: Vec<_> = inbox["notifications"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (it["payload"]["version"].clone(), it["superseded"].clone()))
        .collect();
    assert_eq!(
        shown,
        [
            (json!(2), json!(true)),
            (json!(3), json!(false)),
            (json!(1), json!(false)),
        ],
        "the late one is there, and says that it is late",
    );
    assert_eq!(inbox["unread_count"], 2);
    let unread = world
        .get("/v1/users/u/notifications?unread=true")
        .await
        .json();
    assert_eq!(unread["notifications"][0]["payload"]["version"], 3);
}

#[tokio::test]
async fn a_cursor_that_no_page_gave_is_refused() {
    let world = World::start().await;
    for cursor in ["-1", "0", "x", "", "99999999999999999999"] {
        let refused = world
            .get(&format!("/v1/users/u/notifications?cursor={cursor}"))
            .await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{cursor}");
        let message = &refused.json()["message"];
        assert_eq!(message, "cursor is not a next_cursor of this list");
    }
    let fine = world.get("/v1/users/u/notifications?cursor=1").await;
    assert_eq!(fine.status, StatusCode::OK);
}

#[tokio::test]
async fn preferences_decide_by_type_and_bad_ones_are_refused() {
    let world = World::start().await;
    let path = "/v1/users/u/notification-preferences";
    let wanted = json!({ "channels": {
        "*": ["log", "in-app"], "EntitlementRevoked": [],
    }});
    assert_eq!(world.put(path, &wanted).await.status, StatusCode::OK);
    let back = world.get(path).await.json();
    assert_eq!(
        back,
        json!({ "channels": {
            "*": ["in-app", "log"], "EntitlementRevoked": [],
        }})
    );
    let mut revoked = granted("u", "s", 2);
    revoked.event_type = 2;
    world.tell(&revoked).await;
    world.tell(&granted("u", "s", 1)).await;
    let sent = "SELECT count(*) FROM notification.notifications WHERE status = 'SENT'";
    world.counts(2, sent).await;
    world.settled().await;
    assert_eq!(
        world
            .count("SELECT count(*) FROM notification.notifications")
            .await,
        2
    );

    for bad in [
        json!({ "channels": { "*": ["pigeon"] } }),
        json!({ "channels": { "": ["log"] } }),
        json!({ "channels": 1 }),
        json!({ "other": {} }),
    ] {
        assert_eq!(
            world.put(path, &bad).await.status,
            StatusCode::BAD_REQUEST,
            "{bad}"
        );
    }
    assert_eq!(world.get(path).await.json(), back, "nothing has changed");
}

#[tokio::test]
async fn of_two_who_set_preferences_at_once_one_is_obeyed_as_a_whole() {
    let world = World::start().await;
    let path = "/v1/users/u/notification-preferences";
    let one = json!({ "channels": { "A": ["log"], "B": ["log"], "C": ["log"] } });
    let other = json!({ "channels": { "B": ["in-app"], "C": ["in-app"], "D": ["in-app"] } });
    for round in 0..20 {
        let (first, second) = match round % 2 {
            0 => (&one, &other),
            _ => (&other, &one),
        };
        let set = tokio::join!(world.put(path, first), world.put(path, second));
        assert_eq!(
            (set.0.status, set.1.status),
            (StatusCode::OK, StatusCode::OK)
        );
        let now = world.get(path).await.json();
        assert!(now == one || now == other, "a mixture: {now}");
    }
}

#[tokio::test]
async fn nobody_without_a_credential_sees_anything_and_operators_alone_see_everything() {
    let world = World::start().await;
    let operator = world.operator().await;
    for path in [
        "/v1/users/u/notifications",
        "/v1/users/u/notifications/stream",
        "/v1/users/u/notification-preferences",
        "/v1/users/u/webhooks",
        "/debug/notification/inbox/u",
    ] {
        assert_eq!(
            world.host.get(path).await.status,
            StatusCode::UNAUTHORIZED,
            "{path}"
        );
    }
    let debug = "/debug/notification/inbox/u";
    assert_eq!(
        world.get(debug).await.status,
        StatusCode::FORBIDDEN,
        "an API key"
    );
    assert_eq!(
        world.host.get_as(&operator, debug).await.status,
        StatusCode::OK
    );
}

#[tokio::test]
async fn the_debug_inbox_is_off_in_production_unless_it_is_asked_for() {
    for (setting, status) in [("development", 404), ("on", 401), ("off", 404)] {
        let env = crate::support::prepared(|config| {
            let config = config.with_value("platform.mode", "production").unwrap();
            config
                .with_value("notification.debug.inbox", setting)
                .unwrap()
        })
        .await;
        let (host, _tables) = serve(&env).await;
        let answer = host.get("/debug/notification/inbox/u").await;
        assert_eq!(answer.status.as_u16(), status, "{setting}");
    }
}
