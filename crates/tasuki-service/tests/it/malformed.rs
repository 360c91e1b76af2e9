//! Bad HTTP: whatever arrives, the answer has the right status and the error body.

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::frame::{Frame, LONG};

/// Sends bytes as they are and reads the answer until the server closes or the body is
/// complete.
async fn raw(address: std::net::SocketAddr, request: &[u8]) -> (u16, String, Value) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The server may refuse and close before it has read everything.
    stream.write_all(request).await.unwrap_or_default();
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let read = timeout(LONG, stream.read(&mut buffer))
            .await
            .expect("no answer");
        match read {
            Ok(0) | Err(_) => break,
            Ok(read) => answer.extend(buffer.iter().take(read)),
        }
        if complete(&answer) {
            break;
        }
    }
    let text = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    let body = serde_json::from_str(body).unwrap_or(Value::String(body.to_owned()));
    (status.unwrap_or(0), head.to_owned(), body)
}

fn complete(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .and_then(|length| length.parse::<usize>().ok());
    length.is_some_and(|length| body.len() >= length)
}

fn post(body: &str) -> Vec<u8> {
    post_as("application/json", body)
}

fn post_as(kind: &str, body: &str) -> Vec<u8> {
    format!(
        "POST /v1/echo HTTP/1.1\r\nhost: x\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").into_bytes()
}

/// What is wrong, the bytes, the status and the code that must come back.
fn kinds() -> Vec<(&'static str, Vec<u8>, u16, &'static str)> {
    let many_headers: String = (0..200).map(|n| format!("x-{n}: 1\r\n")).collect();
    let large_header = "a".repeat(64 * 1024);
    let deep = "[".repeat(500);
    vec![
        ("no such path", get("/nowhere"), 404, "NOT_FOUND"),
        ("no such method", b"DELETE /v1/echo HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(), 405, "METHOD_NOT_ALLOWED"),
        ("an invented method", b"BREW /v1/echo HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(), 405, "METHOD_NOT_ALLOWED"),
        ("no content type", b"POST /v1/echo HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}".to_vec(), 415, "UNSUPPORTED_MEDIA_TYPE"),
        ("another content type", post_as("text/plain", "{}"), 415, "UNSUPPORTED_MEDIA_TYPE"),
        ("a body that is compressed", b"POST /v1/echo HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\ncontent-length: 12\r\n\r\n{\"text\":\"a\"}".to_vec(), 415, "UNSUPPORTED_MEDIA_TYPE"),
        ("an array instead of the fields", post(r#"["a",1]"#), 400, "BAD_REQUEST"),
        ("an empty body", post(""), 400, "BAD_REQUEST"),
        ("a body that is cut", post(r#"{"text":"#), 400, "BAD_REQUEST"),
        ("a body that is not JSON", post("text=1"), 400, "BAD_REQUEST"),
        ("a body that is not UTF-8", b"POST /v1/echo HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 12\r\n\r\n{\"text\":\"\xff\"}".to_vec(), 400, "BAD_REQUEST"),
        ("a missing field", post("{}"), 400, "BAD_REQUEST"),
        ("an unknown field", post(r#"{"text":"a","more":1}"#), 400, "BAD_REQUEST"),
        ("a field twice", post(r#"{"text":"a","text":"b"}"#), 400, "BAD_REQUEST"),
        ("a field of another type", post(r#"{"text":1}"#), 400, "BAD_REQUEST"),
        ("a number out of range", post(r#"{"text":"a","number":-1}"#), 400, "BAD_REQUEST"),
        ("NUL in a text", post(r#"{"text":"a\u0000"}"#), 400, "BAD_REQUEST"),
        ("something behind the body", post(r#"{"text":"a"}{"#), 400, "BAD_REQUEST"),
        ("an array instead of an object", post("[]"), 400, "BAD_REQUEST"),
        ("JSON too deep", post(&deep), 400, "BAD_REQUEST"),
        ("a body too large", post(&format!(r#"{{"text":"{}"}}"#, "a".repeat(2 << 20))), 413, "PAYLOAD_TOO_LARGE"),
        ("a length too large", b"POST /v1/echo HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 99999999999\r\n\r\n".to_vec(), 413, "PAYLOAD_TOO_LARGE"),
        ("a path parameter that is no number", get("/v1/items/abc"), 400, "BAD_REQUEST"),
        ("NUL in the path", get("/v1/items/%00"), 400, "BAD_REQUEST"),
        ("a path that is not UTF-8", get("/v1/items/%ff"), 400, "BAD_REQUEST"),
        ("no query", get("/v1/find"), 400, "BAD_REQUEST"),
        ("a query of another type", get("/v1/find?limit=many"), 400, "BAD_REQUEST"),
        ("an unknown query parameter", get("/v1/find?limit=1&more=2"), 400, "BAD_REQUEST"),
        ("no host", b"GET /livez HTTP/1.1\r\n\r\n".to_vec(), 400, "BAD_REQUEST"),
        ("an empty host", b"GET /livez HTTP/1.1\r\nhost:\r\n\r\n".to_vec(), 400, "BAD_REQUEST"),
        ("a host that is none", b"GET /livez HTTP/1.1\r\nhost: a b/<>\r\n\r\n".to_vec(), 400, "BAD_REQUEST"),
        ("two hosts", b"GET /livez HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n".to_vec(), 400, "BAD_REQUEST"),
        ("a request line of nonsense", b"nonsense\r\n\r\n".to_vec(), 400, "BAD_REQUEST"),
        ("an unknown version", b"GET /livez HTTP/9.9\r\nhost: x\r\n\r\n".to_vec(), 400, "BAD_REQUEST"),
        ("a header without a colon", b"GET /livez HTTP/1.1\r\nhost: x\r\nbad header\r\n\r\n".to_vec(), 400, "BAD_REQUEST"),
        ("a length that is no number", b"POST /v1/echo HTTP/1.1\r\nhost: x\r\ncontent-length: many\r\n\r\n".to_vec(), 400, "BAD_REQUEST"),
        ("two lengths", b"POST /v1/echo HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n{}".to_vec(), 400, "BAD_REQUEST"),
        ("an unknown transfer coding", b"POST /v1/echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: odd\r\n\r\n".to_vec(), 400, "BAD_REQUEST"),
        ("too many headers", format!("GET /livez HTTP/1.1\r\nhost: x\r\n{many_headers}\r\n").into_bytes(), 431, "HEADERS_TOO_LARGE"),
        ("headers too large", format!("GET /livez HTTP/1.1\r\nhost: x\r\nx: {large_header}\r\n\r\n").into_bytes(), 431, "HEADERS_TOO_LARGE"),
        ("headers a little too large", format!("GET /livez HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n", "a".repeat(33 * 1024)).into_bytes(), 431, "HEADERS_TOO_LARGE"),
        ("a request line too long", get(&format!("/{}", "a".repeat(9_000))), 414, "URI_TOO_LONG"),
    ]
}

#[tokio::test]
async fn every_malformed_request_gets_the_error_body() {
    let (_env, host) = Frame::default().start(|config| config).await;
    let mut wrong = Vec::new();
    for (what, request, status, code) in kinds() {
        let (got, head, body) = raw(host.api, &request).await;
        let is_error = body["code"] == code && body["message"].is_string();
        let is_json = head.contains("content-type: application/json");
        if got != status || !is_error || !is_json {
            wrong.push(format!(
                "{what}: expected {status} {code}, got {got} {body}\n{head}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));

    // After all that it still answers.
    let (status, _, body) = raw(host.api, &post(r#"{"text":"a"}"#)).await;
    assert_eq!((status, body["text"].as_str()), (200, Some("a")));
}

#[tokio::test]
async fn a_refusal_names_what_is_wrong_and_what_to_do() {
    let (_env, host) = Frame::default().start(|config| config).await;
    let (_, head, _) = raw(host.api, b"DELETE /v1/echo HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(head.to_lowercase().contains("allow: post"), "{head}");
    for (request, message) in [
        (post("{}"), "text is required"),
        (post(r#"{"text":1}"#), "text must be text"),
        (
            post(&format!(r#"{{"text":"{}"}}"#, "a".repeat(2 << 20))),
            "the body is larger than 1 MiB",
        ),
        (get("/v1/items/%00"), "the path must not hold %00"),
        (post("[]"), "request body must be a JSON object"),
        (post(r#"["a"]"#), "request body must be a JSON object"),
        (
            post(r#"{"text":"a","number":-1}"#),
            "number is out of range",
        ),
        (get("/v1/items/abc"), "id must be a whole number"),
        (get("/v1/find"), "limit is required"),
        (get("/v1/find?limit=many"), "limit must be a whole number"),
        (get("/v1/find?limit=99999999999"), "limit is out of range"),
    ] {
        let (_, _, body) = raw(host.api, &request).await;
        assert_eq!(body["message"], message);
    }
}

#[tokio::test]
async fn nonsense_on_a_kept_connection_of_an_old_client_gets_the_error_body_too() {
    let (_env, host) = Frame::default().start(|config| config).await;
    let mut stream = TcpStream::connect(host.api).await.unwrap();
    let hello = b"GET /livez HTTP/1.0\r\nconnection: keep-alive\r\n\r\nnonsense\r\n\r\n";
    stream.write_all(hello).await.unwrap();
    let mut answer = String::new();
    let read = timeout(LONG, stream.read_to_string(&mut answer)).await;
    read.expect("the connection stays open").unwrap();
    assert!(
        answer.ends_with(r#"{"code":"BAD_REQUEST","message":"the request is malformed"}"#),
        "{answer}"
    );
}
