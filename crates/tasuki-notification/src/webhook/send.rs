//! One attempt at a webhook, and how it ended.
//!
//! A [`Sender`] posts the body, signed, to an address that the [`Guard`] accepts, and turns
//! whatever happens into a [`Verdict`]. It follows no redirect and uses no proxy: both would lead
//! to an address that nobody judged. The status alone decides; of the answer's body only the
//! start is read, for the log.
//!
//! Invariant: every attempt ends within its timeout, and no text it leaves behind holds a secret
//! or the query of the URL.
//!
//! Not here: trying again. The process may die while an answer is awaited, so a receiver can see
//! one id twice.

#![warn(clippy::wildcard_enum_match_arm)]

use std::error::Error;
use std::iter::successors;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc2822;
use tokio::time::Instant;

use super::address::{Guard, Refused, Resolver};
use super::sign::{self, Secret};

const USER_AGENT: &str = concat!("tasuki/", env!("CARGO_PKG_VERSION"));

/// Deliveries to one endpoint come in bursts; a connection is kept for one of them, no longer.
const KEEP_IDLE: Duration = Duration::from_secs(10);
const KEEP_PER_HOST: usize = 2;

/// Bytes of an answer's body that are read.
const EXCERPT_BYTES: usize = 1024;

/// Characters of an error that are kept: some of it, such as the names in a certificate, is
/// written by the other side.
const REASON_CHARS: usize = 300;

/// What a receiver may ask us to wait: 0 would be an invitation to hammer it.
const SHORTEST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// How long an attempt may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timeouts {
    /// For looking the name up and connecting.
    pub(crate) connect: Duration,
    /// For all of it, the start of the answer's body included.
    pub(crate) total: Duration,
}

/// What is sent. It has no `Debug`: the query of the URL may hold a token.
#[derive(Clone)]
pub(crate) struct Outgoing<'a> {
    pub(crate) url: &'a str,
    /// All that are valid now, the newest first; each signs. Without one nothing is sent.
    pub(crate) secrets: &'a [Secret],
    /// The same in every attempt, without a `.` in it.
    pub(crate) id: String,
    /// When this attempt is made.
    pub(crate) timestamp: OffsetDateTime,
    /// JSON.
    pub(crate) body: Bytes,
}

/// How one attempt went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attempt {
    /// If there was an answer.
    pub(crate) status: Option<u16>,
    pub(crate) took: Duration,
    /// The start of the answer's body: at most 1024 characters, none of them a NUL.
    pub(crate) excerpt: String,
    pub(crate) verdict: Verdict,
}

/// What an attempt means for the delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The receiver has it.
    Delivered,
    /// The receiver wants no more of them, ever.
    Gone,
    /// The receiver has asked us to come back after this long: a second to a day.
    Later(Duration),
    /// It may work another time.
    Failed(String),
    /// The text of the URL may not be called. Another attempt would not change that. (What its name
    /// means may be another thing tomorrow: a name that leads inside has just failed.)
    Refused(String),
}

/// Sends webhooks. A clone shares the connections.
#[derive(Clone, Debug)]
pub(crate) struct Sender {
    client: Client,
    guard: Guard,
}

impl Sender {
    /// Fails when TLS can't be set up, such as without any root certificate.
    pub(crate) fn new(guard: Guard, timeouts: Timeouts) -> Result<Self, reqwest::Error> {
        let client = Client::builder()
            .user_agent(USER_AGENT)
            .tls_backend_rustls()
            .https_only(!guard.allow_http)
            .redirect(Policy::none())
            .no_proxy()
            .dns_resolver(Resolver::new(guard))
            .connect_timeout(timeouts.connect)
            .timeout(timeouts.total)
            .pool_idle_timeout(KEEP_IDLE)
            .pool_max_idle_per_host(KEEP_PER_HOST)
            .build()?;
        Ok(Self { client, guard })
    }

    /// Makes one attempt. If the process dies in here, the receiver may have it all the same.
    pub(crate) async fn send(&self, request: &Outgoing<'_>) -> Attempt {
        let started = Instant::now();
        let (status, verdict, excerpt) = match self.post(request).await {
            Ok(response) => {
                let status = response.status();
                let wait = retry_after(response.headers(), request.timestamp);
                let excerpt = read_start(response).await;
                (Some(status.as_u16()), judge(status, wait), excerpt)
            }
            Err(verdict) => (None, verdict, String::new()),
        };
        Attempt {
            status,
            took: started.elapsed(),
            excerpt,
            verdict,
        }
    }

    async fn post(&self, request: &Outgoing<'_>) -> Result<Response, Verdict> {
        // Again, although it was checked when it was stored: the rules may have become stricter,
        // and an address in the URL never gets to the resolver.
        let url = self.guard.check_url(request.url);
        let url = url.map_err(|refused| Verdict::Refused(refused.to_string()))?;
        if request.secrets.is_empty() {
            let reason = "the endpoint has no secret to sign with: give it one";
            return Err(Verdict::Failed(reason.to_owned()));
        }
        let signed = sign::headers(
            request.secrets,
            &request.id,
            request.timestamp,
            &request.body,
        );
        let post = self.client.post(url);
        let mut post = post.header(CONTENT_TYPE, "application/json");
        for (name, value) in signed {
            post = post.header(name, value);
        }
        let answer = post.body(request.body.clone()).send().await;
        answer.map_err(failed)
    }
}

fn judge(status: StatusCode, wait: Option<Duration>) -> Verdict {
    match (status.as_u16(), wait) {
        (200..=299, _) => Verdict::Delivered,
        (300..=399, _) => Verdict::Failed("redirects are not followed".to_owned()),
        (410, _) => Verdict::Gone,
        (429 | 503, Some(wait)) => Verdict::Later(wait),
        (other, _) => Verdict::Failed(format!("answered {other}")),
    }
}

/// What the receiver asks for in `Retry-After`, in seconds or as a date.
fn retry_after(headers: &HeaderMap, now: OffsetDateTime) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let wait = if is_number {
        // What is too large for a number is a long time.
        Duration::from_secs(value.parse().unwrap_or(u64::MAX))
    } else {
        let date = OffsetDateTime::parse(value, &Rfc2822).ok()?;
        // What is past is no wait.
        Duration::try_from(date - now).unwrap_or_default()
    };
    Some(wait.clamp(SHORTEST_WAIT, LONGEST_WAIT))
}

/// The start of the body. The status has decided by now, so a body that breaks off or takes too
/// long is just shorter. What is not read closes the connection.
async fn read_start(mut response: Response) -> String {
    let mut bytes: Vec<u8> = Vec::with_capacity(EXCERPT_BYTES);
    while bytes.len() < EXCERPT_BYTES {
        let Ok(Some(chunk)) = response.chunk().await else {
            break;
        };
        let room = EXCERPT_BYTES - bytes.len();
        bytes.extend(chunk.iter().take(room));
    }
    printable(&bytes)
}

/// Text that a database and a terminal can take, whatever the other side sent.
fn printable(bytes: &[u8]) -> String {
    let is_fine = |c: char| !c.is_control() || matches!(c, '\n' | '\r' | '\t');
    let text = String::from_utf8_lossy(bytes);
    let shown = text.chars().map(|c| {
        if is_fine(c) {
            c
        } else {
            char::REPLACEMENT_CHARACTER
        }
    });
    shown.collect()
}

fn failed(error: reqwest::Error) -> Verdict {
    let error = error.without_url();
    let refused = causes(&error).find_map(|cause| cause.downcast_ref::<Refused>());
    if let Some(refused) = refused {
        return Verdict::Failed(refused.to_string());
    }
    if error.is_timeout() {
        return Verdict::Failed("no answer in time".to_owned());
    }
    let what = if error.is_connect() {
        "can't connect"
    } else {
        "the request failed"
    };
    // The innermost says what happened; those around it say that something did.
    let innermost = causes(&error).last().map(|cause| cause.to_string());
    let reason = format!("{what}: {}", innermost.unwrap_or_default());
    Verdict::Failed(reason.chars().take(REASON_CHARS).collect())
}

/// The error and its causes, the outermost first.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    successors(Some(error), |&error| error.source())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use time::macros::datetime;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::JoinSet;
    use tokio::time::timeout;

    use super::*;

    const OPEN: Guard = Guard {
        allow_private: true,
        allow_http: true,
    };
    const STRICT: Guard = Guard {
        allow_private: false,
        allow_http: true,
    };
    const AT: OffsetDateTime = datetime!(2026-11-15 14:07:31 UTC); // A Sunday.
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const LONG: Duration = Duration::from_secs(30);
    const SHORT: Duration = Duration::from_secs(1);

    fn sender(guard: Guard, total: Duration) -> Sender {
        let connect = LONG;
        Sender::new(guard, Timeouts { connect, total }).unwrap()
    }

    fn secrets() -> [Secret; 1] {
        ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".parse().unwrap()]
    }

    async fn attempt(sender: &Sender, url: &str) -> Attempt {
        let outgoing = Outgoing {
            url,
            secrets: &secrets(),
            id: "msg_1".to_owned(),
            timestamp: AT,
            body: Bytes::from_static(BODY),
        };
        sender.send(&outgoing).await
    }

    async fn listen() -> (TcpListener, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener, port)
    }

    /// Connections are accepted in the order they came: if ours is the first, there was none.
    async fn assert_untouched(listener: &TcpListener) {
        let address = listener.local_addr().unwrap();
        let ours = TcpStream::connect(address).await.unwrap();
        let (_stream, first) = listener.accept().await.unwrap();
        assert_eq!(first, ours.local_addr().unwrap());
    }

    async fn read_request(stream: &mut TcpStream) -> String {
        let mut bytes: Vec<u8> = Vec::new();
        while !bytes.ends_with(BODY) {
            let count = stream.read_buf(&mut bytes).await.unwrap();
            assert_ne!(count, 0, "the request broke off");
        }
        String::from_utf8(bytes).unwrap()
    }

    /// Gives each connection the same answer and keeps it open: what is unfinished stays so.
    struct Server {
        url: String,
        requests: Arc<Mutex<Vec<String>>>,
        _running: JoinSet<()>,
    }

    impl Server {
        async fn answering(answer: impl Into<String>) -> Self {
            let (listener, port) = listen().await;
            let requests = Arc::new(Mutex::new(Vec::new()));
            let mut running = JoinSet::new();
            running.spawn(serve(listener, answer.into(), Arc::clone(&requests)));
            Self {
                url: format!("http://127.0.0.1:{port}/hook?token=t0ken"),
                requests,
                _running: running,
            }
        }
    }

    async fn serve(listener: TcpListener, answer: String, requests: Arc<Mutex<Vec<String>>>) {
        let mut open = Vec::new();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let request = read_request(&mut stream).await;
            requests.lock().unwrap().push(request);
            stream.write_all(answer.as_bytes()).await.unwrap();
            open.push(stream);
        }
    }

    #[tokio::test]
    async fn a_delivery_arrives_whole_and_signed() {
        let server = Server::answering("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
        let done = attempt(&sender(OPEN, LONG), &server.url).await;
        assert_eq!((done.status, done.verdict), (Some(200), Verdict::Delivered));
        assert_eq!(done.excerpt, "ok");

        let requests = server.requests.lock().unwrap();
        let [request] = requests.as_slice() else {
            panic!("{requests:?}");
        };
        assert!(request.starts_with("POST /hook?token=t0ken HTTP/1.1\r\n"));
        assert!(request.contains("\r\ncontent-type: application/json\r\n"));
        assert!(request.contains(&format!("\r\nuser-agent: {USER_AGENT}\r\n")));
        for (name, value) in sign::headers(&secrets(), "msg_1", AT, BODY) {
            let line = format!("\r\n{name}: {value}\r\n");
            assert!(request.contains(&line), "{request}");
        }
    }

    #[tokio::test]
    async fn the_status_decides() {
        let failed = |reason: &str| Verdict::Failed(reason.to_owned());
        let sender = sender(OPEN, LONG);
        for (head, status, verdict) in [
            ("204 No Content", 204, Verdict::Delivered),
            ("410 Gone", 410, Verdict::Gone),
            ("404 Not Found", 404, failed("answered 404")),
            ("500 Oops", 500, failed("answered 500")),
            ("429 Slow", 429, failed("answered 429")),
            (
                "429 Slow\r\nretry-after: 120",
                429,
                Verdict::Later(Duration::from_secs(120)),
            ),
            (
                "503 Busy\r\nretry-after: Sun, 15 Nov 2026 14:08:31 GMT",
                503,
                Verdict::Later(Duration::from_secs(60)),
            ),
            ("500 Oops\r\nretry-after: 9", 500, failed("answered 500")),
        ] {
            let answer = format!("HTTP/1.1 {head}\r\ncontent-length: 0\r\n\r\n");
            let server = Server::answering(answer).await;
            let done = attempt(&sender, &server.url).await;
            assert_eq!((done.status, done.verdict), (Some(status), verdict));
        }
    }

    #[tokio::test]
    async fn a_redirect_is_a_failure_and_its_target_is_not_called() {
        let (target, port) = listen().await;
        let head = format!("HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:{port}/");
        let server = Server::answering(format!("{head}\r\ncontent-length: 0\r\n\r\n")).await;
        let done = attempt(&sender(OPEN, LONG), &server.url).await;
        let verdict = Verdict::Failed("redirects are not followed".to_owned());
        assert_eq!((done.status, done.verdict), (Some(302), verdict));
        assert_untouched(&target).await;
    }

    #[tokio::test]
    async fn an_answer_that_does_not_come_ends_the_attempt_in_time() {
        let server = Server::answering("").await;
        let done = attempt(&sender(OPEN, SHORT), &server.url).await;
        let verdict = Verdict::Failed("no answer in time".to_owned());
        assert_eq!((done.status, done.verdict), (None, verdict));
        assert!(done.took >= SHORT);
    }

    #[tokio::test]
    async fn a_body_that_does_not_end_changes_nothing_about_the_status() {
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf";
        let server = Server::answering(answer).await;
        let done = attempt(&sender(OPEN, SHORT), &server.url).await;
        assert_eq!(done.verdict, Verdict::Delivered);
        assert_eq!(done.excerpt, "half");
    }

    #[tokio::test]
    async fn of_a_long_answer_only_the_start_is_read() {
        const SIZE: usize = 256 * 1024 * 1024;
        let (listener, port) = listen().await;
        let mut server = JoinSet::new();
        server.spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            read_request(&mut stream).await;
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {SIZE}\r\n\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            let part = vec![b'x'; 64 * 1024];
            let mut sent = 0;
            while sent < SIZE {
                match stream.write(&part).await {
                    Ok(count) => sent += count,
                    Err(_) => break,
                }
            }
            sent
        });
        let url = format!("http://127.0.0.1:{port}/");
        let done = attempt(&sender(OPEN, LONG), &url).await;
        assert_eq!(done.verdict, Verdict::Delivered);
        assert_eq!(done.excerpt, "x".repeat(EXCERPT_BYTES));
        let sent = timeout(LONG, server.join_next()).await.unwrap();
        assert!(sent.unwrap().unwrap() < SIZE, "the client has read it all");
    }

    #[tokio::test]
    async fn no_form_of_a_private_address_is_connected_to() {
        let (listener, port) = listen().await;
        let sender = sender(STRICT, LONG);
        for host in [
            "127.0.0.1",
            "127.1",
            "0x7f.1",
            "0177.0.0.1",
            "2130706433",
            "0.0.0.0",
            "[::]",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "localhost",
            "localhost.",
        ] {
            let done = attempt(&sender, &format!("http://{host}:{port}/")).await;
            let verdict = Verdict::Refused(Refused::Private.to_string());
            assert_eq!((done.status, done.verdict), (None, verdict), "{host}");
        }
        assert_untouched(&listener).await;
    }

    #[tokio::test]
    async fn a_name_that_means_this_machine_is_refused_when_connecting() {
        let (listener, port) = listen().await;
        // Straight to the client, as for a name that the guard could not see through.
        let client = sender(STRICT, LONG).client;
        let answer = client.post(format!("http://localhost:{port}/")).send();
        let verdict = failed(answer.await.unwrap_err());
        assert_eq!(verdict, Verdict::Failed(Refused::Private.to_string()));
        assert_untouched(&listener).await;
    }

    #[tokio::test]
    async fn an_error_says_what_happened_and_nothing_of_the_query() {
        let (listener, port) = listen().await;
        drop(listener);
        let url = format!("http://127.0.0.1:{port}/hook?token=t0ken");
        let done = attempt(&sender(OPEN, LONG), &url).await;
        let Verdict::Failed(reason) = &done.verdict else {
            panic!("{done:?}");
        };
        assert!(reason.starts_with("can't connect: "), "{reason}");
        assert!(!reason.contains("t0ken"), "{reason}");
    }

    #[tokio::test]
    async fn nothing_leaves_without_a_signature() {
        let (listener, port) = listen().await;
        let outgoing = Outgoing {
            url: &format!("http://127.0.0.1:{port}/"),
            secrets: &[],
            id: "msg_1".to_owned(),
            timestamp: AT,
            body: Bytes::from_static(BODY),
        };
        let done = sender(OPEN, LONG).send(&outgoing).await;
        assert!(matches!(done.verdict, Verdict::Failed(_)), "{done:?}");
        assert_untouched(&listener).await;
    }

    #[test]
    fn what_a_receiver_asks_for_is_between_a_second_and_a_day() {
        for (value, seconds) in [
            ("0", Some(1)),
            (" 7 ", Some(7)),
            ("86401", Some(86_400)),
            ("99999999999999999999999", Some(86_400)),
            ("Sun, 15 Nov 2026 14:07:41 GMT", Some(10)),
            ("Sun, 15 Nov 2020 14:07:41 GMT", Some(1)),
            ("Sun, 15 Nov 2099 14:07:41 GMT", Some(86_400)),
            ("", None),
            ("-1", None),
            ("1.5", None),
            ("soon", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, value.parse().unwrap());
            let wait = seconds.map(Duration::from_secs);
            assert_eq!(retry_after(&headers, AT), wait, "{value}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), AT), None);
    }

    #[test]
    fn an_excerpt_is_text_whatever_came() {
        assert_eq!(
            printable(b"a\0b\x1bc\xffd\r\n"),
            "a\u{fffd}b\u{fffd}c\u{fffd}d\r\n"
        );
    }
}
