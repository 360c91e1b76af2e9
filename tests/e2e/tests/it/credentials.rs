//! `tasuki apikey` and `tasuki token` against a running platform.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "helpers of tests"
)]

use std::process::Command;

use serde_json::Value;
use tasuki_testkit::eventually;

use crate::support::{Up, World};

/// `tasuki apikey <words…> --service entitlement --json`.
fn apikey(world: &World, words: &[&str]) -> Command {
    let mut command = world.joined(&["apikey"]);
    command
        .args(words)
        .args(["--service", "entitlement", "--json"]);
    command
}

#[tokio::test]
async fn credentials_work_as_far_as_they_allow_until_they_are_revoked() {
    let world = World::new();
    let up = world.up().await;
    let url = format!("{}/v1/users/u/entitlements", up.env.get("ENTITLEMENT_URL"));
    let create = ["create", "--name", "on-call", "--operator"];
    let operator = world.run(apikey(&world, &create)).await.json();
    let create = ["create", "--name", "shop", "--scope", "entitlement:grant"];
    let key = world.run(apikey(&world, &create)).await.json();
    let secret = |made: &Value| made["credential"].as_str().unwrap().to_owned();
    let (operator_token, key_secret) = (secret(&operator), secret(&key));

    let refused = world.get(&url, &key_secret).await;
    assert_eq!(refused.status, 403);
    assert_eq!(refused.body["code"], "FORBIDDEN");
    assert_eq!(world.get(&url, "").await.status, 401);
    assert_eq!(world.get(&url, "tso_made-up").await.status, 401);
    assert_eq!(world.get(&url, &operator_token).await.status, 200);

    the_list_has_no_secrets(&world, &[&operator_token, &key_secret, up.token()]).await;

    let id = operator["id"].as_str().unwrap();
    world.run(apikey(&world, &["revoke", id])).await.json();
    world.answers(&url, &operator_token, 401).await;
    assert_eq!(world.get(&url, up.token()).await.status, 200);
    let listed = world.run(apikey(&world, &["list"])).await.json();
    let state = listed
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["id"] == id);
    assert_eq!(state.unwrap()["state"], "revoked");
    let wrong = world.run(apikey(&world, &["revoke", "nobody"])).await;
    wrong.is_refused(1, &["nobody", "tasuki apikey list"]);
}

async fn the_list_has_no_secrets(world: &World, credentials: &[&str]) {
    let json = world.run(apikey(world, &["list"])).await.ok();
    let list = ["apikey", "list", "--service", "entitlement"];
    let table = world.run(world.joined(&list)).await.ok();
    for listed in [&json, &table] {
        assert!(listed.contains("on-call") && listed.contains("shop"));
        for credential in credentials {
            // Kind, id and secret are joined by underscores; the secret may hold some too.
            let secret = credential.splitn(3, '_').nth(2).unwrap();
            assert!(secret.len() > 20, "{credential}");
            assert!(!listed.contains(secret), "{listed}");
        }
    }
}

#[tokio::test]
async fn a_scope_that_the_service_does_not_know_is_refused_with_those_that_it_knows() {
    let world = World::new();
    let known = "entitlement:grant, entitlement:revoke, entitlement:consume, entitlement:read";
    for (service, scope, culprits) in [
        (
            "entitlement",
            "entitlement:nonsense",
            &["entitlement:nonsense", known][..],
        ),
        (
            "entitlement",
            "notification:read",
            &["notification:read", known],
        ),
        ("system", "system:read", &["system:read", "--operator"]),
    ] {
        let create = ["apikey", "create", "--name", "shop", "--service", service];
        let mut command = world.command(&create);
        command.args(["--scope", scope]);
        world.run(command).await.is_refused(1, culprits);
    }
}

/// The ids of the keys that the system service publishes.
async fn published(world: &World, up: &Up) -> Vec<String> {
    let url = up.internal("/.well-known/jwks.json");
    let keys = world.get(&url, "").await.body;
    let keys = keys["keys"].as_array().unwrap().iter();
    keys.map(|key| key["kid"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn service_tokens_outlive_the_rotation_of_their_key() {
    let world = World::new();
    let up = world.up().await;
    let url = up.url("/v1/status");
    let sign = ["token", "sign", "--from", "system", "--to", "system"];
    let first = world.run(world.joined(&sign)).await.ok();
    let old = published(&world, &up).await;
    assert_eq!(old.len(), 1);

    let rotate = ["token", "rotate", "--service", "system", "--json"];
    let rotated = world.run(world.joined(&rotate)).await.json();

    let new = rotated["key"].as_str().unwrap().to_owned();
    let both = eventually("the new key is published", async || {
        let keys = published(&world, &up).await;
        keys.contains(&new).then_some(keys)
    })
    .await;
    assert!(both.contains(&old[0]), "{both:?}");
    let second = world.run(world.joined(&sign)).await.ok();
    for token in [first.trim(), second.trim()] {
        // Known, but not an operator: 403 says that the signature was believed.
        let reply = world.get(&url, token).await;
        assert_eq!(reply.status, 403, "{reply:?}");
    }
    let forged = format!("{}AAAA", second.trim().rsplit_once('.').unwrap().0);
    assert_eq!(world.get(&url, &forged).await.status, 401);
}
