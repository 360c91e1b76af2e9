//! One keep-alive connection of HTTP/1.1, as small as can be: it shares the processors with what
//! is measured.
//!
//! It knows what the services answer with: a head, and a body whose length the head tells. One
//! request at a time; whatever else comes back is an error.

use std::net::SocketAddr;

use anyhow::{Context as _, ensure};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// Room for an answer: most fit, and larger ones make more.
const ROOM: usize = 16 * 1024;
/// No answer is larger.
const LARGEST: usize = 1024 * 1024;
/// What ends a head.
const END: &[u8; 4] = b"\r\n\r\n";

/// An open connection.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
}

/// What a request was answered with.
#[derive(Debug)]
pub(crate) struct Answer<'a> {
    pub(crate) status: u16,
    pub(crate) body: &'a [u8],
}

/// What is known once a head is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    /// Bytes of the head, its end included.
    length: usize,
    /// Bytes of the body.
    body: usize,
}

impl Connection {
    /// Connects.
    pub(crate) async fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await;
        let stream = stream.with_context(|| format!("nobody listens on {address}"))?;
        // A request is one write; waiting to fill a packet would only delay it.
        stream.set_nodelay(true)?;
        let received = Vec::with_capacity(ROOM);
        Ok(Self { stream, received })
    }

    /// Sends a whole request, and reads the whole answer.
    pub(crate) async fn ask(&mut self, request: &[u8]) -> anyhow::Result<Answer<'_>> {
        self.received.clear();
        self.stream.write_all(request).await?;
        let head = loop {
            self.receive().await?;
            if let Some(head) = Head::parse(&self.received)? {
                break head;
            }
        };
        let whole = head.length.saturating_add(head.body);
        while self.received.len() < whole {
            self.receive().await?;
        }
        let received = self.received.len();
        ensure!(
            received == whole,
            "an answer of {whole} bytes came with {received}"
        );
        Ok(Answer {
            status: head.status,
            body: self.received.get(head.length..).unwrap_or_default(),
        })
    }

    async fn receive(&mut self) -> anyhow::Result<()> {
        let before = self.received.len();
        ensure!(before < LARGEST, "an answer is larger than {LARGEST} bytes");
        let more = self.stream.read_buf(&mut self.received).await?;
        ensure!(
            more > 0,
            "the service closed the connection after {before} bytes of an answer"
        );
        Ok(())
    }
}

impl Head {
    /// Reads the head; nothing while its end is missing.
    fn parse(received: &[u8]) -> anyhow::Result<Option<Self>> {
        let end = received.windows(END.len()).position(|it| it == END);
        let Some((end, head)) = end.and_then(|end| Some((end, received.get(..end)?))) else {
            return Ok(None);
        };
        let head = str::from_utf8(head).context("the head of an answer is not text")?;
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1));
        let status = status.and_then(|code| code.parse::<u16>().ok());
        let length = lines
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
            .and_then(|(_, value)| value.trim().parse::<usize>().ok());
        Ok(Some(Self {
            status: status
                .with_context(|| format!("no status in the head of an answer: {head}"))?,
            length: end + END.len(),
            body: length.with_context(|| format!("no length in the head of an answer: {head}"))?,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_once_it_is_complete() {
        let whole = b"HTTP/1.1 200 OK\r\nContent-Type: x\r\ncontent-LENGTH: 12\r\n\r\n{}";
        let head = Head::parse(whole).unwrap().unwrap();
        let expected = Head {
            status: 200,
            length: whole.len() - 2,
            body: 12,
        };
        assert_eq!(head, expected);
        assert_eq!(Head::parse(&whole[..20]).unwrap(), None);
        assert_eq!(Head::parse(b"").unwrap(), None);
    }

    #[test]
    fn an_answer_that_does_not_say_how_long_it_is_is_refused() {
        for bad in [
            &b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"[..],
            b"HTTP/1.1 OK\r\ncontent-length: 1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
            b"\xff\r\n\r\n",
        ] {
            assert!(Head::parse(bad).is_err(), "{bad:?}");
        }
    }
}
