//! Limits, panics, ids, health: what surrounds every handler.

use std::time::Duration;

use tasuki_testkit::eventually;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::frame::{Frame, LONG};

/// Everything that the server sends until it closes.
async fn until_closed(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let read = timeout(LONG, stream.read_to_end(&mut answer)).await;
    read.expect("the connection stays open").unwrap_or_default();
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn a_client_that_sends_its_head_too_slowly_is_hung_up_on() {
    let short =
        |config: tasuki_service::Config| config.with_value("http.head-timeout", "200ms").unwrap();
    let (_env, host) = Frame::default().start(short).await;

    let mut silent = TcpStream::connect(host.api).await.unwrap();
    assert_eq!(until_closed(&mut silent).await, "");

    let mut slow = TcpStream::connect(host.api).await.unwrap();
    slow.write_all(b"GET /livez HTTP/1.1\r\nhost:")
        .await
        .unwrap();
    until_closed(&mut slow).await;

    let mut idle = TcpStream::connect(host.api).await.unwrap();
    idle.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    assert!(until_closed(&mut idle).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_body_that_does_not_arrive_in_time_is_answered_with_408() {
    let short =
        |config: tasuki_service::Config| config.with_value("http.body-timeout", "200ms").unwrap();
    let (_env, host) = Frame::default().start(short).await;
    let mut slow = TcpStream::connect(host.api).await.unwrap();
    let head = "POST /v1/echo HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    slow.write_all(head.as_bytes()).await.unwrap();
    let answer = until_closed(&mut slow).await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(answer.contains(r#""code":"REQUEST_TIMEOUT""#), "{answer}");
}

#[tokio::test]
async fn a_client_that_does_not_read_is_hung_up_on() {
    let short =
        |config: tasuki_service::Config| config.with_value("http.write-timeout", "300ms").unwrap();
    let (_env, host) = Frame::default().start(short).await;
    let mut deaf = TcpStream::connect(host.api).await.unwrap();
    // More than the buffers on the way can hold, and not a byte of it is read.
    let ask = "GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nhost: x\r\n\r\n".repeat(50);
    deaf.write_all(ask.as_bytes()).await.unwrap();
    eventually("the server has given up", async || {
        deaf.write_all(b"GET").await.is_err().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_client_that_has_said_all_still_gets_its_answer() {
    let (_env, host) = Frame::default().start(|config| config).await;
    let mut client = TcpStream::connect(host.api).await.unwrap();
    client
        .write_all(b"GET /v1/ask HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    client.shutdown().await.unwrap();
    let answer = until_closed(&mut client).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn a_handler_that_takes_too_long_is_answered_with_504() {
    let short = |config: tasuki_service::Config| {
        config.with_value("http.request-timeout", "100ms").unwrap()
    };
    let (_env, host) = Frame::default().start(short).await;
    let reply = host.get("/v1/wait").await;
    assert_eq!(
        (reply.status.as_u16(), reply.code().as_str()),
        (504, "TIMEOUT")
    );
}

#[tokio::test]
async fn a_panic_becomes_500_without_internals_and_the_service_goes_on() {
    let (_env, host) = Frame::default().start(|config| config).await;
    for _ in 0..3 {
        let reply = host.get("/v1/panic").await;
        assert_eq!(
            (reply.status.as_u16(), reply.code().as_str()),
            (500, "INTERNAL")
        );
        assert!(!reply.text.contains("secret"), "{}", reply.text);
    }
    assert_eq!(host.get("/v1/items/7").await.text, "7");
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_until_there_is_room() {
    let few =
        |config: tasuki_service::Config| config.with_value("http.max-connections", 2).unwrap();
    let (_env, host) = Frame::default().start(few).await;
    let first = TcpStream::connect(host.api).await.unwrap();
    let second = TcpStream::connect(host.api).await.unwrap();
    let mut third = TcpStream::connect(host.api).await.unwrap();
    third
        .write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut byte = [0];
    let early = timeout(Duration::from_millis(200), third.read(&mut byte)).await;
    assert!(early.is_err(), "the third connection was served at once");

    drop((first, second));
    assert!(until_closed(&mut third).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_request_id_is_echoed_when_it_is_fit_and_made_when_it_is_not() {
    let (_env, host) = Frame::default().start(|config| config).await;
    let client = reqwest::Client::new();
    let url = format!("http://{}/nowhere", host.api);
    let ask = async |id: Option<&str>| {
        let mut request = client.get(&url);
        if let Some(id) = id {
            request = request.header("x-request-id", id);
        }
        let reply = request.send().await.unwrap();
        reply.headers()["x-request-id"].to_str().unwrap().to_owned()
    };

    assert_eq!(ask(Some("order-7")).await, "order-7");
    let made = ask(None).await;
    assert_eq!(made.len(), 36);
    assert_ne!(made, ask(None).await);
    assert_ne!(ask(Some("two words")).await, "two words");
    let long = "x".repeat(200);
    assert_ne!(ask(Some(&long)).await, long);
}

#[tokio::test]
async fn health_metrics_and_the_api_description_are_served() {
    let (_env, host) = Frame::default().start(|config| config).await;
    assert_eq!(host.get("/livez").await.status, 200);
    eventually("the service is ready", async || {
        (host.get("/readyz").await.status == 200).then_some(())
    })
    .await;
    assert_eq!(host.get("/metrics").await.status, 200);
    let description = host.get("/openapi.json").await.json();
    assert!(description["paths"]["/v1/echo"]["post"].is_object());
    assert_eq!(description["info"]["title"], "Tasuki frame");
    // What the frame itself may answer is described with every call.
    let answers = |path: &str, method: &str| {
        let answers = &description["paths"][path][method]["responses"];
        let all = answers.as_object().unwrap().keys().cloned();
        all.collect::<Vec<String>>().join(" ")
    };
    assert_eq!(answers("/v1/echo", "post"), "200 400 413 415 504");
    assert_eq!(answers("/v1/items/{id}", "get"), "200 400 504");
    assert!(description["components"]["schemas"]["ErrorBody"].is_object());
    let page = host.get("/docs/").await;
    assert_eq!(page.status, 200);
    // The page and all that it loads come from us.
    let foreign: Vec<_> = page
        .text
        .split(['"', '\''])
        .filter(|part| part.contains("://"))
        .collect();
    assert!(foreign.is_empty(), "the page refers to {foreign:?}");
    let internal = format!("http://{}/livez", host.internal);
    assert_eq!(reqwest::get(internal).await.unwrap().status(), 200);
}

#[tokio::test]
async fn who_calls_is_told_by_known_proxies_and_by_nobody_else() {
    let asked = async |networks: &str| {
        let change = |config: tasuki_service::Config| {
            config.with_value("http.trusted-proxies", networks).unwrap()
        };
        let (_env, host) = Frame::default().start(change).await;
        let mut stream = TcpStream::connect(host.api).await.unwrap();
        let head = "GET /v1/caller HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-forwarded-for: 198.51.100.9, 203.0.113.7\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        let answer = until_closed(&mut stream).await;
        answer.lines().last().unwrap().to_owned()
    };
    assert_eq!(asked("").await, r#""127.0.0.1""#);
    assert_eq!(asked("10.0.0.0/8").await, r#""127.0.0.1""#);
    assert_eq!(asked("10.0.0.0/8, 127.0.0.1").await, r#""203.0.113.7""#);
}
