//! Gives the protocol's own refusals the error body.
//!
//! What can't be parsed as HTTP (a broken request line, too many headers, an unknown
//! version) never becomes a request: hyper answers it by itself, with an empty body, and
//! offers no hook. [`Answering`] stands between hyper and the socket, knows such an answer
//! by its exact form, and writes ours instead. Answers of services always carry
//! `x-request-id`, so they are never taken for one.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use http::StatusCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::error::ApiError;

/// A connection whose bare refusals are replaced.
#[derive(Debug)]
pub(super) struct Answering<C> {
    connection: C,
    /// What is left to write of a replacement.
    pending: Option<Replacement>,
}

#[derive(Debug)]
struct Replacement {
    bytes: Vec<u8>,
    written: usize,
    /// How many bytes of hyper's this stands for.
    stands_for: usize,
}

impl<C> Answering<C> {
    pub(super) fn on(connection: C) -> Self {
        Self {
            connection,
            pending: None,
        }
    }
}

impl<C: AsyncWrite + Unpin> Answering<C> {
    fn write(
        &mut self,
        context: &mut Context<'_>,
        answer: &[u8],
        write: impl FnOnce(Pin<&mut C>, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if self.pending.is_none() {
            let Some(bytes) = replacement(answer) else {
                return write(Pin::new(&mut self.connection), context);
            };
            self.pending = Some(Replacement {
                bytes,
                written: 0,
                stands_for: answer.len(),
            });
        }
        let Some(pending) = &mut self.pending else {
            return Poll::Ready(Ok(0));
        };
        while let Some(rest @ [_, ..]) = pending.bytes.get(pending.written..) {
            match Pin::new(&mut self.connection).poll_write(context, rest) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(written)) => pending.written += written,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        let stands_for = pending.stands_for;
        self.pending = None;
        Poll::Ready(Ok(stands_for))
    }
}

/// Our answer for one that hyper made by itself; `None` for every other piece of output.
fn replacement(answer: &[u8]) -> Option<Vec<u8>> {
    // The common case ends at the first byte that differs.
    let rest = answer.strip_prefix(b"HTTP/1.1 ")?;
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

impl<C: AsyncRead + Unpin> AsyncRead for Answering<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_read(context, buffer)
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for Answering<C> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.write(context, bytes, |connection, context| {
            connection.poll_write(context, bytes)
        })
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // A refusal is a head without a body: one slice.
        let first = slices.first().map(|slice| &**slice).unwrap_or_default();
        self.write(context, first, |connection, context| {
            connection.poll_write_vectored(context, slices)
        })
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_bare_refusal_is_replaced() {
        let bare = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\ndate: x\r\n\r\n";
        let ours = replacement(bare).unwrap();
        assert!(
            String::from_utf8(ours)
                .unwrap()
                .ends_with(r#"{"code":"HEADERS_TOO_LARGE","message":"the headers are too large"}"#)
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
}
