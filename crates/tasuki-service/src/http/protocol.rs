//! What stands between hyper and the socket.
//!
//! Two things that hyper does not do. It answers what can't be parsed as HTTP (a broken
//! request line, too many headers, an unknown version) by itself, with an empty body, and
//! offers no hook: [`Guarded`] writes our error body instead. And it waits without limit for
//! a client that does not read: [`Guarded`] gives such a write a deadline.
//!
//! A bare refusal is known by its exact form, and only looked for where an answer of hyper's
//! own can begin: no service answer is in progress ([`Progress`]), and the write before was
//! complete. So no body, however it looks, is ever taken for one.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::StatusCode;
use http_body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::error::ApiError;

/// Whether a service's answer is being written on this connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress(Arc<AtomicBool>);

impl Progress {
    /// From now until the body of `response` is gone, an answer is in progress. One that
    /// hands the connection over to another protocol never ends.
    pub(super) fn follow(&self, response: Response) -> Response {
        self.0.store(true, Ordering::SeqCst);
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return response;
        }
        let progress = self.clone();
        response.map(|body| Body::new(Followed { body, progress }))
    }

    fn is_on(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// A body whose end ends the answer.
struct Followed {
    body: Body,
    progress: Progress,
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.progress.0.store(false, Ordering::SeqCst);
    }
}

impl http_body::Body for Followed {
    type Data = bytes::Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A connection whose bare refusals are replaced and whose writes have a deadline.
#[derive(Debug)]
pub(super) struct Guarded<C> {
    connection: C,
    progress: Progress,
    /// Whether all that hyper had to write was written.
    at_boundary: bool,
    /// What is left to write of a replacement.
    pending: Option<Replacement>,
    limit: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
}

#[derive(Debug)]
struct Replacement {
    bytes: Vec<u8>,
    written: usize,
    /// How many bytes of hyper's this stands for.
    stands_for: usize,
}

impl<C> Guarded<C> {
    /// `limit` is how long a client may leave a write without taking a byte of it.
    pub(super) fn new(connection: C, progress: Progress, limit: Duration) -> Self {
        Self {
            connection,
            progress,
            at_boundary: true,
            pending: None,
            limit,
            stalled: None,
        }
    }

    /// `outcome`, or an error when it has been pending for too long.
    fn watched<T>(
        &mut self,
        context: &mut Context<'_>,
        outcome: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.stalled = None;
            return outcome;
        }
        let limit = self.limit;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<C: AsyncWrite + Unpin> Guarded<C> {
    /// Writes a replacement to its end, and says that what it stands for was written.
    fn replace(&mut self, context: &mut Context<'_>) -> Option<Poll<io::Result<usize>>> {
        let pending = self.pending.as_mut()?;
        while let Some(rest @ [_, ..]) = pending.bytes.get(pending.written..) {
            match Pin::new(&mut self.connection).poll_write(context, rest) {
                Poll::Ready(Ok(0)) => {
                    return Some(Poll::Ready(Err(io::ErrorKind::WriteZero.into())));
                }
                Poll::Ready(Ok(written)) => pending.written += written,
                other => return Some(self.watched(context, other)),
            }
        }
        let stands_for = pending.stands_for;
        self.pending = None;
        self.stalled = None;
        Some(Poll::Ready(Ok(stands_for)))
    }

    /// Begins a replacement if `answer` is a bare refusal.
    fn look_at(&mut self, answer: &[u8]) {
        if self.at_boundary && self.pending.is_none() && !self.progress.is_on() {
            self.pending = replacement(answer).map(|bytes| Replacement {
                bytes,
                written: 0,
                stands_for: answer.len(),
            });
        }
    }

    fn wrote(
        &mut self,
        context: &mut Context<'_>,
        offered: usize,
        outcome: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(written)) = outcome {
            self.at_boundary = written >= offered;
        }
        self.watched(context, outcome)
    }
}

/// Our answer for one that hyper made by itself; `None` for every other piece of output.
fn replacement(answer: &[u8]) -> Option<Vec<u8>> {
    let one_one = answer.strip_prefix(b"HTTP/1.1 ");
    let rest = one_one.or_else(|| answer.strip_prefix(b"HTTP/1.0 "))?;
    let (status, rest) = rest.split_first_chunk::<3>()?;
    let status = StatusCode::from_bytes(status).ok()?;
    let head = std::str::from_utf8(rest).ok()?.strip_suffix("\r\n\r\n")?;
    let refused = status.is_client_error() || status == StatusCode::HTTP_VERSION_NOT_SUPPORTED;
    let bare = head.contains("\r\ncontent-length: 0") && !head.contains("\r\nx-request-id");
    if !refused || !bare || head.contains("\r\n\r\n") {
        return None;
    }
    let error = ApiError::of_status(status);
    let body = serde_json::to_vec(&error.body()).ok()?;
    let reason = status.canonical_reason().unwrap_or("Error");
    let mut bytes = format!(
        "HTTP/1.1 {} {reason}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        status.as_u16(),
        body.len(),
    )
    .into_bytes();
    bytes.extend_from_slice(&body);
    Some(bytes)
}

impl<C: AsyncRead + Unpin> AsyncRead for Guarded<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_read(context, buffer)
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for Guarded<C> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.look_at(bytes);
        if let Some(replaced) = self.replace(context) {
            return replaced;
        }
        let outcome = Pin::new(&mut self.connection).poll_write(context, bytes);
        self.wrote(context, bytes.len(), outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // A refusal is a head without a body: one slice.
        if let [only] = slices {
            self.look_at(only);
        }
        if let Some(replaced) = self.replace(context) {
            return replaced;
        }
        let offered = slices.iter().map(|slice| slice.len()).sum();
        let outcome = Pin::new(&mut self.connection).poll_write_vectored(context, slices);
        self.wrote(context, offered, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.connection).poll_flush(context);
        self.watched(context, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const BARE: &[u8] = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\ndate: x\r\n\r\n";

    #[test]
    fn only_a_bare_refusal_is_replaced() {
        let ours = String::from_utf8(replacement(BARE).unwrap()).unwrap();
        assert!(
            ours.ends_with(r#"{"code":"HEADERS_TOO_LARGE","message":"the headers are too large"}"#)
        );
        for other in [
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nx-request-id: 1\r\n\r\n",
            "HTTP/1.1 404 Not Found\r\ncontent-length: 10\r\n\r\n",
            "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\nbody\r\n\r\n",
            "plain body",
        ] {
            assert_eq!(replacement(other.as_bytes()), None, "{other}");
        }
    }

    #[tokio::test]
    async fn a_body_that_looks_like_a_refusal_is_left_alone_while_its_answer_is_in_progress() {
        let (ours, mut theirs) = tokio::io::duplex(4096);
        let progress = Progress::default();
        let mut guarded = Guarded::new(ours, progress.clone(), Duration::from_secs(1));
        let answer = progress.follow(Response::new(Body::from(BARE)));
        guarded.write_all(BARE).await.unwrap();
        drop(answer);
        guarded.write_all(BARE).await.unwrap();
        drop(guarded);

        let mut written = Vec::new();
        theirs.read_to_end(&mut written).await.unwrap();

        assert!(written.starts_with(BARE));
        assert!(written.ends_with(b"too large\"}"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_ends_the_write() {
        let (ours, _theirs) = tokio::io::duplex(16);
        let mut guarded = Guarded::new(ours, Progress::default(), Duration::from_secs(5));
        let error = guarded.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
