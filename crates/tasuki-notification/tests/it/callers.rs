//! Who may do what: every route, for the user it is about and for everybody else.

use reqwest::{Client, Method};
use serde_json::{Value, json};
use tasuki_service::Config;
use tasuki_testkit::Issuer;
use uuid::Uuid;

use crate::support::{World, granted, key_with};
use crate::webhooks::{Receiver, lenient_with, register};

const READ: &str = "notification:read";
const WRITE: &str = "notification:write";

/// A request to a route of a user, and what the user gets for it.
struct Ask {
    method: Method,
    /// Behind `/v1/users/<user>`.
    rest: String,
    body: Option<Value>,
    scope: &'static str,
    status: u16,
    /// Whether it names something that one user has and another has not.
    names: bool,
}

fn ask(method: Method, rest: impl Into<String>, scope: &'static str, status: u16) -> Ask {
    let rest = rest.into();
    Ask {
        names: rest.contains('-') && !rest.ends_with("preferences"),
        method,
        rest,
        body: None,
        scope,
        status,
    }
}

impl Ask {
    fn with(mut self, body: Value) -> Self {
        self.body = Some(body);
        self
    }

    /// The status of the answer; a stream is not read to its end.
    async fn sent(&self, world: &World, user: &str, credential: Option<&str>) -> u16 {
        let url = format!("http://{}/v1/users/{user}{}", world.host.api, self.rest);
        let mut request = Client::new().request(self.method.clone(), url);
        if let Some(credential) = credential {
            request = request.bearer_auth(credential);
        }
        if let Some(body) = &self.body {
            request = request.json(body);
        }
        request.send().await.unwrap().status().as_u16()
    }
}

/// All routes about a user who has this endpoint, this entry of the inbox, and this message to the
/// endpoint; in an order in which each of them can be done.
fn asks(endpoint: &str, entry: Uuid, message: Uuid) -> Vec<Ask> {
    let (get, post) = (|| Method::GET, || Method::POST);
    let hook = format!("/webhooks/{endpoint}");
    let channels = json!({ "channels": { "*": ["in-app"] } });
    let another = json!({ "url": "https://example.com/hook" });
    let changed = json!({ "description": "changed" });
    vec![
        ask(get(), "/notifications", READ, 200),
        ask(get(), "/notifications/stream", READ, 200),
        ask(post(), format!("/notifications/{entry}/read"), WRITE, 200),
        ask(get(), "/notification-preferences", READ, 200),
        ask(Method::PUT, "/notification-preferences", WRITE, 200).with(channels),
        ask(get(), "/webhooks", READ, 200),
        ask(post(), "/webhooks", WRITE, 201).with(another),
        ask(Method::PATCH, &*hook, WRITE, 200).with(changed),
        ask(post(), format!("{hook}/pause"), WRITE, 200),
        ask(post(), format!("{hook}/resume"), WRITE, 200),
        ask(post(), format!("{hook}/rotate"), WRITE, 200),
        ask(post(), format!("{hook}/test"), WRITE, 200),
        ask(get(), format!("{hook}/attempts"), READ, 200),
        ask(post(), format!("{hook}/replay/{message}"), WRITE, 202),
        ask(Method::DELETE, &*hook, WRITE, 204),
    ]
}

/// Everything that a request could have changed.
async fn state(world: &World) -> String {
    sqlx::query_scalar(
        "SELECT jsonb_build_array(
            (SELECT jsonb_agg(it ORDER BY endpoint_id) FROM notification.webhook_endpoints AS it),
            (SELECT jsonb_agg(it ORDER BY secret) FROM notification.webhook_secrets AS it),
            (SELECT jsonb_agg(it ORDER BY user_id, type) FROM notification.preferences AS it),
            (SELECT jsonb_agg(it ORDER BY notification_id)
                FROM notification.notifications_live AS it),
            (SELECT jsonb_agg(it ORDER BY notification_id)
                FROM notification.notifications_sent AS it),
            (SELECT jsonb_agg(it ORDER BY attempt_id) FROM notification.webhook_attempts AS it)
        )::text",
    )
    .fetch_one(&world.env.db.pool)
    .await
    .unwrap()
}

async fn sent_over(world: &World, channel: &str) -> Uuid {
    sqlx::query_scalar(
        "SELECT notification_id FROM notification.notifications_sent
         WHERE user_id = 'u' AND channel = $1",
    )
    .bind(channel)
    .fetch_one(&world.env.db.pool)
    .await
    .unwrap()
}

/// The user `u` with an endpoint and something in the inbox, and every route about it.
async fn world_of_u(config: impl FnOnce(Config) -> Config) -> (World, Vec<Ask>) {
    let world = lenient_with(config).await;
    let (_receiver, address) = Receiver::start(&[]).await;
    let endpoint = &register(&world, address).await;
    world.prefer("u", &["in-app", "webhook"]).await;
    world.tell(&granted("u", "s", 1)).await;
    let sent = "SELECT count(*) FROM notification.notifications_sent";
    world.counts(2, sent).await;
    let (entry, message) = (
        sent_over(&world, "in-app").await,
        sent_over(&world, "webhook").await,
    );
    let asks = asks(endpoint["endpoint_id"].as_str().unwrap(), entry, message);
    (world, asks)
}

#[tokio::test]
async fn what_is_a_users_is_for_that_user_and_for_callers_with_the_scope_alone() {
    let gateway = Issuer::start("gateway").await.unwrap();
    let shop = Issuer::start("shop").await.unwrap();
    let (world, asks) = world_of_u(|config| {
        config
            .with_value("auth.issuers.gateway", gateway.url.as_str())
            .unwrap()
            .with_value("auth.issuers.shop", shop.url.as_str())
            .unwrap()
            .with_value("auth.callers.shop", READ)
            .unwrap()
    })
    .await;
    let token = |issuer: &Issuer, user| issuer.token("notification", user).unwrap();
    let (own, anothers) = (token(&gateway, Some("u")), token(&gateway, Some("v")));
    // The shop may read for itself, and the gateway may do nothing for itself.
    let (reads, not) = (token(&shop, None), token(&gateway, None));
    let reader = key_with(&world.env, &world.tables, &[READ]).await;
    let writer = key_with(&world.env, &world.tables, &[WRITE]).await;

    let before = state(&world).await;
    for ask in &asks {
        let wrong_scope = if ask.scope == READ { &writer } else { &reader };
        let mut refused = vec![
            ("nobody", "u", None, 401),
            ("another user", "u", Some(&anothers), 403),
            ("a service without any scope", "u", Some(&not), 403),
            ("a key with the other scope", "u", Some(wrong_scope), 403),
        ];
        if ask.scope == WRITE {
            refused.push(("a service that may read", "u", Some(&reads), 403));
        }
        if ask.names {
            // Under their own name: it is not there.
            refused.push(("another user, as theirs", "v", Some(&anothers), 404));
        }
        for (who, user, credential, status) in refused {
            let got = ask.sent(&world, user, credential.map(String::as_str)).await;
            assert_eq!(got, status, "{who}: {} {}", ask.method, ask.rest);
        }
    }
    assert_eq!(state(&world).await, before, "nothing was changed");

    for ask in &asks {
        let (method, rest) = (&ask.method, &ask.rest);
        if ask.scope == READ {
            for credential in [&reads, &reader] {
                let got = ask.sent(&world, "u", Some(credential)).await;
                assert_eq!(got, ask.status, "{method} {rest}");
            }
        }
        let got = ask.sent(&world, "u", Some(&own)).await;
        assert_eq!(got, ask.status, "their own: {method} {rest}");
    }
}

#[tokio::test]
async fn the_inbox_for_operators_is_for_operators_alone() {
    let gateway = Issuer::start("gateway").await.unwrap();
    let world = World::with(|config| {
        config
            .with_value("auth.issuers.gateway", gateway.url.as_str())
            .unwrap()
    })
    .await;
    let own = gateway.token("notification", Some("u")).unwrap();
    let path = "/debug/notification/inbox/u";
    assert_eq!(world.host.get(path).await.status, 401);
    for credential in [&own, &world.key] {
        let refused = world.host.get_as(credential, path).await;
        assert!(
            matches!(refused.status.as_u16(), 401 | 403),
            "{}",
            refused.text
        );
    }
    let operator = world.operator().await;
    assert_eq!(world.host.get_as(&operator, path).await.status, 200);
}
