//! Service tokens: what a service may do for itself, and what for a user.

use http::{Method, StatusCode};
use tasuki_testkit::{Issuer, Reply};

use crate::support::{World, body, send};

async fn issuer(service: &str) -> Issuer {
    Issuer::start(service).await.unwrap()
}

fn token(issuer: &Issuer, user: Option<&str>) -> String {
    issuer.token("entitlement", user).unwrap()
}

/// The shop may grant and read for itself; the game may do nothing for itself.
async fn world(shop: &Issuer, game: &Issuer) -> World {
    World::with(|config| {
        config
            .with_value("auth.issuers.shop", shop.url.as_str())
            .unwrap()
            .with_value("auth.issuers.game", game.url.as_str())
            .unwrap()
            .with_value("auth.callers.shop", "entitlement:grant,entitlement:read")
            .unwrap()
    })
    .await
}

/// Asks for a change as whoever has `token`.
async fn change(world: &World, token: &str, what: &str) -> Reply {
    let request = world
        .raw(Method::POST, &format!("/v1/entitlements/{what}"))
        .bearer_auth(token)
        .header("Idempotency-Key", what)
        .json(&body("u1", "s"));
    send(request).await
}

#[tokio::test]
async fn a_service_does_for_itself_only_what_it_is_allowed_to() {
    let (shop, game) = (issuer("shop").await, issuer("game").await);
    let world = world(&shop, &game).await;
    let (allowed, not) = (token(&shop, None), token(&game, None));

    let granted = change(&world, &allowed, "grants").await;
    assert_eq!(granted.status, StatusCode::OK, "{}", granted.text);
    let caller = world
        .count("SELECT count(*) FROM entitlement.entitlement_audit WHERE caller = 'service:shop'");
    assert_eq!(caller.await, 1);
    let list = world
        .host
        .get_as(&allowed, "/v1/users/u1/entitlements")
        .await;
    assert_eq!(list.status, StatusCode::OK, "{}", list.text);

    for (token, what, scope) in [
        (&allowed, "revokes", "entitlement:revoke"),
        (&not, "grants", "entitlement:grant"),
        (&not, "revokes", "entitlement:revoke"),
        (&not, "consumes", "entitlement:consume"),
    ] {
        let refused = change(&world, token, what).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{what}");
        let told = format!("this service needs the scope {scope} in auth.callers");
        assert_eq!(refused.json()["message"], told);
    }
    for path in [
        "/v1/users/u1/entitlements",
        "/v1/users/u1/entitlements/s",
        "/v1/users/u1/entitlements/s/history",
    ] {
        let refused = world.host.get_as(&not, path).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{path}");
    }
}

#[tokio::test]
async fn a_service_that_calls_for_a_user_reads_what_is_theirs_and_changes_nothing() {
    let (shop, game) = (issuer("shop").await, issuer("game").await);
    let world = world(&shop, &game).await;
    world.grant("k", &body("u1", "s")).await;
    for issuer in [&shop, &game] {
        let token = token(issuer, Some("u1"));
        for (path, status) in [
            ("/v1/users/u1/entitlements", StatusCode::OK),
            ("/v1/users/u1/entitlements/s", StatusCode::OK),
            ("/v1/users/u1/entitlements/s/history", StatusCode::OK),
            ("/v1/users/u2/entitlements", StatusCode::FORBIDDEN),
            ("/v1/users/u2/entitlements/s", StatusCode::FORBIDDEN),
            ("/v1/users/u2/entitlements/s/history", StatusCode::FORBIDDEN),
        ] {
            let answer = world.host.get_as(&token, path).await;
            assert_eq!(answer.status, status, "{path}: {}", answer.text);
        }
        for what in ["grants", "revokes", "consumes"] {
            let refused = change(&world, &token, what).await;
            assert_eq!(refused.status, StatusCode::FORBIDDEN, "{what}");
        }
    }
    let changes = world.count("SELECT count(*) FROM entitlement.entitlement_audit");
    assert_eq!(changes.await, 1);
}

#[tokio::test]
async fn a_token_for_another_service_or_from_nobody_we_know_opens_nothing() {
    let (shop, game) = (issuer("shop").await, issuer("game").await);
    let world = world(&shop, &game).await;
    let stranger = issuer("stranger").await;
    for token in [
        shop.token("notification", None).unwrap(),
        shop.token("notification", Some("u1")).unwrap(),
        token(&stranger, None),
        token(&stranger, Some("u1")),
    ] {
        let changed = change(&world, &token, "grants").await;
        assert_eq!(changed.status, StatusCode::UNAUTHORIZED);
        let read = world.host.get_as(&token, "/v1/users/u1/entitlements").await;
        assert_eq!(read.status, StatusCode::UNAUTHORIZED);
    }
}
