//! Logs and traces of a process that serves.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use bytes::Bytes;
use rustix::process::Signal;
use serde_json::Value;
use tasuki_testkit::eventually;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::serving::addresses;
use crate::support::World;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[tokio::test]
async fn counters_that_alerts_look_at_are_there_before_anything_happens() {
    let world = World::new();
    let up = world.up().await;
    eventually("all of them are there", async || {
        let metrics = reqwest::get(up.url("/metrics")).await.unwrap();
        let metrics = metrics.text().await.unwrap();
        let is_zero = |name: &&str| {
            let mut samples = metrics.lines().filter(|line| line.starts_with(*name));
            samples.any(|line| line.ends_with(" 0"))
        };
        let all = [
            "tasuki_outbox_sent_again_total{",
            "tasuki_notification_missed_messages_total{",
            "tasuki_consumer_restarts_total{",
            "tasuki_batch_splits_total{",
        ];
        all.iter().all(is_zero).then_some(())
    })
    .await;
}

#[tokio::test]
async fn logs_are_json_lines_that_carry_the_trace_and_no_secret() {
    let world = World::new();
    let up = world.up().await;
    let mut command = world.joined(&["serve", "system"]);
    command.env("TASUKI_TELEMETRY__LOG", "debug");
    let mut serve = world.start(command);
    let (api, _) = addresses(&mut serve).await;
    let url = format!("{}/v1/status", api.unwrap());

    let headers = [("traceparent", PARENT), ("x-request-id", "my-request")];
    let reply = world.get_with(&url, up.token(), &headers).await;

    assert_eq!(reply.status, 200);
    assert_eq!(reply.headers["x-request-id"], "my-request");
    let lines = || -> Vec<Value> {
        let log = serve.stderr();
        // The last one may still be on its way.
        let whole = log.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let lines = whole.lines().map(serde_json::from_str);
        lines.collect::<Result<_, _>>().expect("lines of JSON")
    };
    let line = eventually("the request is logged with its trace", async || {
        let mut lines = lines().into_iter();
        lines.find(|line| line["trace_id"] == TRACE && line["message"] == "request answered")
    })
    .await;
    assert_eq!(line["request_id"], "my-request");
    assert_eq!(line["service"], "system");
    let span = line["span_id"].as_str().unwrap();
    assert!(span.len() == 16 && !PARENT.contains(span), "{line}");

    let made_up = world.get(&url, "tso_made-up").await;
    assert_ne!(made_up.headers["x-request-id"], "");
    serve.signal(Signal::TERM);
    let answer = serve.ended().await;
    assert_eq!(answer.code, Some(0), "{answer:?}");
    let up_log = std::fs::read_to_string(world.path("run/tasuki.log")).unwrap();
    let (_, rest) = up.env.get("DATABASE_URL").split_once("//").unwrap();
    let password = rest.split(['@', ':']).nth(1).unwrap();
    assert!(password.len() > 8, "{password}");
    for secret in [up.token(), password, "tso_made-up"] {
        assert!(!answer.err.contains(secret), "{secret}: {}", answer.err);
        assert!(!up_log.contains(secret), "{secret}: {up_log}");
    }
}

/// Everything that was posted to `/v1/traces`.
#[derive(Clone, Debug, Default)]
struct Collected(Arc<Mutex<Vec<Bytes>>>);

impl Collected {
    fn holds(&self, text: &[u8]) -> bool {
        let bodies = self.0.lock().unwrap();
        bodies
            .iter()
            .any(|body| body.windows(text.len()).any(|window| window == text))
    }
}

/// Listens as an OTLP collector would; gives its address.
async fn collect(into: &Collected, tasks: &mut JoinSet<()>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let take = async |State(collected): State<Collected>, body: Bytes| {
        collected.0.lock().unwrap().push(body);
    };
    let routes = Router::new()
        .route("/v1/traces", post(take))
        .with_state(into.clone());
    tasks.spawn(async move { axum::serve(listener, routes).await.unwrap() });
    format!("http://{address}")
}

#[tokio::test]
async fn traces_reach_the_collector_by_the_end_and_one_that_is_away_holds_up_nothing() {
    let world = World::new();
    let up = world.up().await;
    let (collected, mut tasks) = (Collected::default(), JoinSet::new());
    let collector = collect(&collected, &mut tasks).await;

    let mut said = String::new();
    for endpoint in [&*collector, "http://127.0.0.1:1"] {
        let mut command = world.joined(&["serve", "system"]);
        command.env("TASUKI_TELEMETRY__OTLP_ENDPOINT", endpoint);
        let mut serve = world.start(command);
        let (api, _) = addresses(&mut serve).await;
        let url = format!("{}/v1/status", api.unwrap());
        let headers = [("traceparent", PARENT)];
        let reply = world.get_with(&url, up.token(), &headers).await;
        assert_eq!(reply.status, 200);
        serve.signal(Signal::TERM);
        let answer = serve.ended().await;
        assert_eq!(answer.code, Some(0), "{answer:?}");
        said.push_str(&answer.err);
    }

    let trace = u128::from_str_radix(TRACE, 16).unwrap().to_be_bytes();
    assert!(
        collected.holds(&trace),
        "the trace was not exported: {said}"
    );
    assert!(collected.holds(b"GET /v1/status"));
    // Credentials are no attributes.
    assert!(!collected.holds(up.token().as_bytes()));
}
