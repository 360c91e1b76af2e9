//! A grant from the request to the notification, through the executable: what operators see of it,
//! and what they can do when it does not arrive.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "helpers of tests"
)]

use std::time::Duration;

use reqwest::{RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use sqlx::PgPool;
use tasuki_contract::events::Message;
use tasuki_contract::events::entitlement::EntitlementEvent;
use tasuki_testkit::{eventually, eventually_within};

use crate::support::{Up, World};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

pub(crate) async fn grant(up: &Up, user: &str) -> Value {
    let traceparent = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let answer = grant_under(up, user, ("traceparent", &traceparent)).await;
    assert_eq!(answer.status(), 200);
    answer.json().await.unwrap()
}

/// Asks for a grant with one more header.
async fn grant_under(up: &Up, user: &str, header: (&str, &str)) -> Response {
    let url = format!("{}/v1/entitlements/grants", up.env.get("ENTITLEMENT_URL"));
    let body = json!({
        "user_id": user, "stock_keeping_unit": "sword", "reason": "purchase",
        "purchase_id": "order-1",
    });
    // With the same key it is safe to ask again.
    let request = reqwest::Client::new()
        .post(&url)
        .bearer_auth(up.env.get("API_KEY"))
        .header("Idempotency-Key", user)
        .header(header.0, header.1)
        .json(&body);
    answered(request).await
}

/// Sends it, and again as long as the platform, which has just started, is busy with itself and says so.
async fn answered(request: RequestBuilder) -> Response {
    eventually_within(Duration::from_secs(30), "it is answered", async || {
        let again = request.try_clone().unwrap();
        let answer = again.send().await.unwrap();
        (answer.status() != StatusCode::SERVICE_UNAVAILABLE).then_some(answer)
    })
    .await
}

/// Lets `user` be told over `channels` of everything.
async fn prefer(up: &Up, user: &str, channels: &[&str]) {
    let url = up.env.get("NOTIFICATION_URL");
    let request = reqwest::Client::new()
        .put(format!("{url}/v1/users/{user}/notification-preferences"))
        .bearer_auth(up.env.get("API_KEY"))
        .json(&json!({ "channels": { "*": channels } }));
    assert_eq!(answered(request).await.status(), 200);
}

#[tokio::test]
async fn a_grant_is_shown_on_its_way_verified_and_found_where_it_is() {
    let world = World::new();
    let up = world.up().await;
    let stages = world.run(world.joined(&["demo", "--json"])).await.json();
    let whats: Vec<_> = stages
        .as_array()
        .unwrap()
        .iter()
        .map(|stage| stage["what"].as_str().unwrap())
        .collect();
    assert_eq!(
        whats,
        [
            "granted, and answered",
            "published",
            "taken in, once",
            "told",
            "asked again"
        ]
    );
    grant(&up, "ann").await;
    both_are_verified(&world).await;
    let event = stages[2]["detail"].as_str().unwrap().replace("event ", "");
    the_outbox_says_where(&world, &event).await;
}

async fn both_are_verified(world: &World) {
    let verified = eventually("both are told", async || {
        let verified = world
            .run(world.joined(&["verify", "--json", "--settle", "0s"]))
            .await;
        let told: Value = serde_json::from_str(&verified.out).unwrap();
        (told["sent"] == 2).then_some(told)
    })
    .await;
    assert_eq!(verified["problem_count"], 0, "{verified}");
    assert_eq!(verified["changes"], 2);
}

async fn the_outbox_says_where(world: &World, event: &str) {
    let outbox = world
        .run(world.joined(&["outbox", "list", "--json"]))
        .await
        .json();
    assert_eq!(outbox[0]["service"], "entitlement");
    assert_eq!(
        (&outbox[0]["pending"], &outbox[0]["dead"]),
        (&json!(0), &json!(0))
    );
    let shown = world
        .run(world.joined(&["outbox", "show", event, "--json"]))
        .await
        .json();
    assert_eq!(
        (&shown["place"], &shown["type"]),
        (&json!("published"), &json!("EntitlementGranted"))
    );
    let nobody = "01930000-0000-7000-8000-000000000001";
    let unknown = world.run(world.joined(&["outbox", "show", nobody])).await;
    unknown.is_refused(1, &["no outbox knows event"]);
    assert_eq!(
        world
            .run(world.joined(&["dlq", "list", "--json"]))
            .await
            .json(),
        json!([])
    );
}

#[tokio::test]
async fn one_trace_leads_from_the_request_to_the_delivery() {
    let world = World::new();
    let up = world.up().await;
    let pool = PgPool::connect(up.env.get("DATABASE_URL")).await.unwrap();
    grant(&up, "ann").await;
    for table in [
        "entitlement.outbox_published",
        "notification.processed_events",
        "notification.notifications_sent",
    ] {
        let sql = format!("SELECT split_part(traceparent, '-', 2) FROM {table}");
        let traces = eventually(&format!("it came to {table}"), async || {
            let traces: Vec<Option<String>> = sqlx::query_scalar(sqlx::AssertSqlSafe(&*sql))
                .fetch_all(&pool)
                .await
                .unwrap();
            (!traces.is_empty()).then_some(traces)
        })
        .await;
        assert_eq!(traces, [Some(TRACE.to_owned())], "{table}");
    }
    let debug = format!(
        "{}/debug/notification/inbox/ann",
        up.env.get("NOTIFICATION_URL")
    );
    let told = world.get(&debug, up.token()).await.body;
    let told = &told["notifications"][0];
    assert_eq!(
        (&told["status"], &told["trace_id"]),
        (&json!("SENT"), &json!(TRACE))
    );
    eventually("the log has it, too", async || {
        let log = std::fs::read_to_string(world.path("run/tasuki.log")).unwrap();
        let mut delivered = log
            .lines()
            .filter(|line| line.contains("notification delivered"));
        delivered.any(|line| line.contains(TRACE)).then_some(())
    })
    .await;
    the_message_carries_the_trace(&up).await;
    a_failure_names_the_trace(&up, &pool).await;
}

async fn the_message_carries_the_trace(up: &Up) {
    let stream = up.jetstream().await;
    let stream = stream.get_stream("entitlement-events").await.unwrap();
    let message = stream.get_raw_message(1).await.unwrap();
    let header = |name| message.headers.get(name).unwrap().as_str();
    let traceparent = header("traceparent").split('-').nth(1);
    assert_eq!((traceparent, header("trace_id")), (Some(TRACE), TRACE));
    let event = EntitlementEvent::decode(&*message.payload).unwrap();
    assert_eq!((&*event.user_id, &*event.trace_id), ("ann", TRACE));
}

async fn a_failure_names_the_trace(up: &Up, pool: &PgPool) {
    let sql = "ALTER TABLE entitlement.entitlement_audit RENAME TO elsewhere";
    sqlx::query(sql).execute(pool).await.unwrap();
    let traceparent = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let failed = grant_under(up, "bob", ("traceparent", &traceparent)).await;
    assert_eq!(failed.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let failed: Value = failed.json().await.unwrap();
    let message = format!("internal error, trace id {TRACE}");
    assert_eq!(failed, json!({ "code": "INTERNAL", "message": message }));
}

#[tokio::test]
async fn a_caller_without_a_traceparent_names_the_trace_by_its_id() {
    let world = World::new();
    let up = world.up().await;
    let pool = PgPool::connect(up.env.get("DATABASE_URL")).await.unwrap();
    let id = "4bf92f35-77b3-4da6-a3ce-929d0e0e4736";
    assert_eq!(
        grant_under(&up, "ann", ("X-Trace-Id", id)).await.status(),
        200
    );
    let trace = eventually("it is published", async || {
        let sql = "SELECT split_part(traceparent, '-', 2) FROM entitlement.outbox_published";
        let trace = sqlx::query_scalar::<_, String>(sql).fetch_optional(&pool);
        trace.await.unwrap()
    })
    .await;
    assert_eq!(trace, TRACE);
}

#[tokio::test]
async fn what_is_dead_is_listed_shown_and_sent_again_once() {
    let world = World::new();
    let mut command = world.command(&["up"]);
    for (name, value) in [
        ("FAILURE_INJECTION__ENABLED", "true"),
        ("FAILURE_INJECTION__USER_ID_PREFIX", "fail-"),
        ("MAX_ATTEMPTS", "1"),
    ] {
        command.env(format!("TASUKI_NOTIFICATION__DELIVERY__{name}"), value);
    }
    let up = world.ready(world.start(command)).await;
    grant(&up, "fail-1").await;
    let dead = eventually("it is dead", async || {
        let listed = world
            .run(world.joined(&["dlq", "list", "--json"]))
            .await
            .json();
        listed.as_array().unwrap().first().cloned()
    })
    .await;
    assert_eq!(dead["source"], "notifications_live");
    assert_eq!(dead["error"], "failure injected");
    let id = dead["id"].as_str().unwrap();
    let shown = world
        .run(world.joined(&["dlq", "show", id, "--json"]))
        .await
        .json();
    assert!(shown["payload"].as_str().unwrap().contains("fail-1"));
    let redriven = world
        .run(world.joined(&["dlq", "redrive", id, "--json"]))
        .await
        .json();
    assert_eq!(redriven["redriven"], 1);
    acting_again_says_why_nothing_is_done(&world, id).await;
    // It fails again, and somebody gives it up.
    eventually("it is dead again", async || {
        let all = ["dlq", "discard", "--all", "--reason", "a test", "--json"];
        let discarded = world.run(world.joined(&all)).await.json();
        (discarded["discarded"] == 1).then_some(())
    })
    .await;
    let verify = ["verify", "--json", "--settle", "0s"];
    let found = world.run(world.joined(&verify)).await.json();
    assert_eq!(
        (&found["problem_count"], &found["given_up"]),
        (&json!(0), &json!(1)),
        "what somebody gave up is not missing"
    );
    let wrong = world
        .run(world.joined(&["dlq", "redrive", "nonsense"]))
        .await;
    wrong.is_refused(1, &["tasuki dlq list"]);
    let nowhere = ["dlq", "list", "--source", "nowhere"];
    let nowhere = world.run(world.joined(&nowhere)).await;
    nowhere.is_refused(1, &["nowhere", "outbox_events", "broker"]);
    let fits = ["dlq", "list", "--kind", "Nothing"];
    let fits = world.run(world.joined(&fits)).await.ok();
    assert_eq!(fits.trim(), "nothing that is dead fits");
}

async fn acting_again_says_why_nothing_is_done(world: &World, redriven: &str) {
    let nobody = "01930000-0000-7000-8000-00000000000a";
    let nothing = "entitlement-events@42@1";
    let discard = ["dlq", "discard", redriven, "--reason", "a test"];
    for (words, code, why) in [
        (&["dlq", "redrive", redriven][..], 0, "already redriven at"),
        (&discard, 1, "already redriven at"),
        (&["dlq", "redrive", nobody], 1, "no such dead letter"),
        (&["dlq", "redrive", nothing], 1, "no such dead letter"),
        (&["outbox", "retry", nobody], 1, "never enqueued"),
    ] {
        let answer = world.run(world.joined(words)).await;
        assert_eq!(answer.code, Some(code), "{words:?}: {answer:?}");
        assert!(answer.out.starts_with("0 "), "{words:?}: {answer:?}");
        assert!(answer.out.contains(why), "{words:?}: {answer:?}");
    }
}

#[tokio::test]
async fn a_change_whose_user_wants_no_word_is_counted_as_such() {
    let world = World::new();
    let up = world.up().await;
    prefer(&up, "quiet", &[]).await;
    grant(&up, "quiet").await;
    grant(&up, "loud").await;
    let found = eventually("nothing is under way", async || {
        let verify = ["verify", "--json", "--settle", "30s"];
        let found = world.run(world.joined(&verify)).await.json();
        (found["under_way"] == 0 && found["changes"] == 2).then_some(found)
    })
    .await;
    assert_eq!(
        (&found["sent"], &found["not_wanted"], &found["dead"]),
        (&json!(1), &json!(1), &json!(0))
    );
    let text = world.run(world.joined(&["verify"])).await.ok();
    assert!(text.contains("2 changes: 1 told, 0 under way, 1 not wanted, 0 dead"));
}

#[tokio::test]
async fn whatever_is_not_where_it_belongs_is_found() {
    let world = World::new();
    let up = world.up().await;
    let pool = PgPool::connect(up.env.get("DATABASE_URL")).await.unwrap();
    prefer(&up, "fine", &["log", "in-app"]).await;
    grant(&up, "fine").await;
    eventually("it is told", async || {
        let sent: i64 = sqlx::query_scalar("SELECT count(*) FROM notification.notifications_sent")
            .fetch_one(&pool)
            .await
            .unwrap();
        (sent == 2).then_some(())
    })
    .await;
    for (sql, what) in [
        (
            // One of two that this user wants, as a user with preferences may.
            "DELETE FROM notification.notifications_sent WHERE channel = 'in-app'",
            "a notification is missing",
        ),
        (
            "DELETE FROM notification.processed_events",
            "published, and never processed",
        ),
        (
            "DELETE FROM entitlement.outbox_published",
            "a change without an event",
        ),
        (
            "UPDATE entitlement.entitlements SET version = version + 1",
            "versions have a gap or a repeat",
        ),
    ] {
        sqlx::raw_sql(sql).execute(&pool).await.unwrap();
        let found = world
            .run(world.joined(&["verify", "--json", "--settle", "0s"]))
            .await;
        assert_eq!(found.code, Some(1), "{found:?}");
        assert!(found.out.contains(what), "{what}: {}", found.out);
    }
}
