//! Stopping: in order, under load, without losing what was accepted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tasuki_service::Config;
use tasuki_testkit::{TestHost, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::frame::{Frame, LONG};

fn drain(time: &'static str) -> impl FnOnce(Config) -> Config {
    move |config| config.with_value("shutdown.drain-delay", time).unwrap()
}

async fn has_stopped(host: TestHost) {
    timeout(LONG, host.stopped)
        .await
        .expect("it does not stop")
        .unwrap();
}

#[tokio::test]
async fn readiness_falls_before_the_listener_closes() {
    let (_env, host) = Frame::default().start(drain("1s")).await;
    eventually("it is ready", async || {
        (host.get("/readyz").await.status == 200).then_some(())
    })
    .await;

    host.phases.stop();

    let reply = host.get("/readyz").await;
    assert_eq!(
        (reply.status.as_u16(), reply.code().as_str()),
        (503, "NOT_READY")
    );
    assert!(reply.text.contains("shutting down"), "{}", reply.text);
    // It still serves, and asks clients to leave.
    let reply = host.get("/v1/items/7").await;
    assert_eq!(reply.text, "7");
    assert_eq!(reply.headers["connection"], "close");
    let address = host.api;
    has_stopped(host).await;
    assert!(TcpStream::connect(address).await.is_err());
}

/// Asks as a load balancer does: on one connection, until an answer says that it closes.
/// Every request gets its answer.
async fn ask_until_told_to_leave(url: String, answered: Arc<AtomicUsize>) {
    let client = reqwest::Client::builder()
        .pool_max_idle_per_host(1)
        .build()
        .unwrap();
    loop {
        let reply = client.get(&url).send().await.unwrap();
        assert_eq!(reply.status(), 200);
        let leave = reply
            .headers()
            .get("connection")
            .is_some_and(|value| value == "close");
        assert_eq!(reply.text().await.unwrap(), r#""waited""#);
        answered.fetch_add(1, Ordering::SeqCst);
        if leave {
            return;
        }
    }
}

#[tokio::test]
async fn a_stop_under_load_loses_no_request_that_was_accepted() {
    let frame = Frame::default();
    let (_env, host) = frame.start(drain("200ms")).await;
    let answered = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for _ in 0..16 {
        let url = format!("http://{}/v1/wait", host.api);
        clients.spawn(ask_until_told_to_leave(url, Arc::clone(&answered)));
    }
    // Handlers go on at the pace of the gate, so that all of them are inside when the stop
    // comes.
    let gate = Arc::clone(&frame.gate);
    let mut pacing = JoinSet::new();
    pacing.spawn(async move {
        let mut tick = tokio::time::interval(Duration::from_millis(1));
        loop {
            tick.tick().await;
            gate.0.add_permits(1);
        }
    });
    eventually("there is load", async || {
        (answered.load(Ordering::SeqCst) > 100).then_some(())
    })
    .await;

    host.phases.stop();
    has_stopped(host).await;

    clients.join_all().await;
    assert_eq!(frame.begun(), answered.load(Ordering::SeqCst));
}

#[tokio::test]
async fn a_connection_that_was_opened_before_the_stop_may_still_send_its_request() {
    let (_env, host) = Frame::default().start(|config| config).await;
    let mut connection = TcpStream::connect(host.api).await.unwrap();
    let address = host.api;
    host.phases.stop();
    eventually("the listener is closed", async || {
        TcpStream::connect(address).await.is_err().then_some(())
    })
    .await;

    connection
        .write_all(b"GET /v1/items/7 HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();

    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("connection: close"), "{answer}");
    has_stopped(host).await;
}

#[tokio::test]
async fn what_outlives_the_grace_time_is_cut() {
    let frame = Frame::default();
    let short = |config: Config| config.with_value("shutdown.grace", "100ms").unwrap();
    let (_env, host) = frame.start(short).await;
    let url = format!("http://{}/v1/wait", host.api);
    let mut client = JoinSet::new();
    client.spawn(async move { reqwest::get(url).await.is_err() });
    eventually("the request is inside", async || {
        (frame.begun() == 1).then_some(())
    })
    .await;

    host.phases.stop();
    has_stopped(host).await;

    assert_eq!(client.join_all().await, [true]);
}

#[tokio::test]
async fn a_process_that_stops_takes_itself_off_the_list_of_instances() {
    let (env, host) = Frame::default().start(|config| config).await;
    let schema = tasuki::Schema::new("frame").unwrap();
    let instances = async || {
        let list = tasuki_service::instances::list(&env.db.pool, "frame", &schema).await;
        list.unwrap()
    };
    let listed = eventually("it reports itself", async || instances().await.pop()).await;
    assert_eq!(listed.service, "frame");
    assert!(
        listed
            .workers
            .iter()
            .any(|worker| worker.name == "frame.heartbeat")
    );

    host.phases.stop();
    has_stopped(host).await;

    assert_eq!(instances().await, []);
}
