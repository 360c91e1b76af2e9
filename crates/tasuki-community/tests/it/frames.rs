//! Bytes that no client library sends: half a handshake, broken frames, fragments, compression that nobody
//! agreed on. Whoever sends them is answered or cut, and nobody else notices.

use std::time::{Duration, Instant};

use nostr::Keys;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::{World, note, now};

const PATIENCE: Duration = Duration::from_secs(20);

const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
const LAST: u8 = 0x80;
const COMPRESSED: u8 = 0x40;

/// A web socket without a library.
struct Raw {
    stream: TcpStream,
    /// What the relay said to the handshake.
    answer: String,
}

impl Raw {
    async fn connect(world: &World) -> Self {
        Self::with(world, "").await
    }

    /// With more headers, each with its end of line.
    async fn with(world: &World, headers: &str) -> Self {
        let mut stream = TcpStream::connect(world.host.api).await.unwrap();
        let host = world.host.api;
        let request = format!(
            "GET / HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{headers}\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(timeout(PATIENCE, stream.read_u8()).await.unwrap().unwrap());
        }
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
        Self { stream, answer }
    }

    /// A frame as clients must send it: masked, with a mask that changes nothing.
    async fn frame(&mut self, first: u8, payload: &[u8]) {
        let mut bytes = vec![first];
        match payload.len() {
            short @ 0..=125 => bytes.push(0x80 | u8::try_from(short).unwrap()),
            middle @ 126..=65_535 => {
                bytes.push(0x80 | 126);
                bytes.extend(u16::try_from(middle).unwrap().to_be_bytes());
            }
            long => {
                bytes.push(0x80 | 127);
                bytes.extend(u64::try_from(long).unwrap().to_be_bytes());
            }
        }
        bytes.extend([0; 4]);
        bytes.extend(payload);
        self.bytes(&bytes).await;
    }

    /// Whoever is cut may not be able to write any more.
    async fn bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap_or_default();
    }

    /// The next frame: its opcode and payload; nothing at the end.
    async fn heard(&mut self) -> Option<(u8, Vec<u8>)> {
        self.heard_of("an answer").await
    }

    async fn heard_of(&mut self, what: &str) -> Option<(u8, Vec<u8>)> {
        let read = async {
            let opcode = self.stream.read_u8().await? & 0x0f;
            let length = match self.stream.read_u8().await? {
                126 => self.stream.read_u16().await?.into(),
                127 => self.stream.read_u64().await?,
                short => short.into(),
            };
            let mut payload = vec![0; usize::try_from(length).unwrap()];
            self.stream.read_exact(&mut payload).await?;
            Ok::<_, std::io::Error>((opcode, payload))
        };
        timeout(PATIENCE, read).await.expect(what).ok()
    }

    /// The next message.
    async fn hear(&mut self) -> Value {
        loop {
            let (opcode, payload) = self.heard().await.unwrap();
            if opcode == TEXT {
                return serde_json::from_slice(&payload).unwrap();
            }
        }
    }

    /// How it was cut: the code, if there was one. Fails if it is not.
    async fn end(mut self, what: &str) -> Option<u16> {
        while let Some((opcode, payload)) = self.heard_of(what).await {
            if opcode == CLOSE {
                let code = payload.get(..2)?;
                return Some(u16::from_be_bytes(code.try_into().unwrap()));
            }
        }
        None
    }
}

/// That others are served, and soon: of a few tries the best, because the machine has other work.
async fn others_are_served(world: &World) {
    let mut best = PATIENCE;
    for _ in 0..5 {
        let mut client = world.client().await;
        let note = note(&Keys::generate(), now());
        let began = Instant::now();
        client.store(&note).await;
        best = best.min(began.elapsed());
    }
    assert!(best < Duration::from_secs(1), "{best:?}");
}

#[tokio::test]
async fn broken_frames_end_their_connection_and_no_other() {
    let world = World::start().await;
    let mut bystander = world.client().await;
    bystander.subscribe("all", &[json!({})]).await;
    let unmasked: &[u8] = b"\x81\x02[]";
    let longest: &[u8] = b"\x81\xff\x7f\xff\xff\xff\xff\xff\xff\xff\0\0\0\0";
    let negative: &[u8] = b"\x81\xff\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0";
    let long_ping = [&b"\x89\xfe\x00\x80\0\0\0\0"[..], &[b'x'; 128]].concat();
    let broken: [(&str, &[u8]); 15] = [
        ("no mask", unmasked),
        ("more than there is memory", longest),
        ("a length below zero", negative),
        ("a ping that is too long", &long_ping),
        ("a ping in pieces", b"\x09\x80\0\0\0\0"),
        ("an unknown opcode", b"\x83\x80\0\0\0\0"),
        ("an unknown control opcode", b"\x8b\x80\0\0\0\0"),
        ("a continuation of nothing", b"\x80\x80\0\0\0\0"),
        (
            "a text within a text",
            b"\x01\x81\0\0\0\0[\x81\x81\0\0\0\0]",
        ),
        ("a text that is none", b"\x81\x82\0\0\0\0\xc3\x28"),
        ("a reserved bit", b"\xa1\x80\0\0\0\0"),
        ("compression that nobody agreed on", b"\xc1\x80\0\0\0\0"),
        ("a code that is none", b"\x88\x82\0\0\0\0\x00\x01"),
        ("half a code", b"\x88\x81\0\0\0\0\x03"),
        ("HTTP", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
    ];
    for (what, bytes) in broken {
        let mut raw = Raw::connect(&world).await;
        raw.bytes(bytes).await;
        let code = raw.end(what).await;
        assert!(code != Some(1000), "{what} was cut with {code:?}");
    }
    others_are_served(&world).await;
    bystander.news("all").await;
}

#[tokio::test]
async fn a_message_in_pieces_with_pings_between_them_is_one_message() {
    let world = World::start().await;
    let mut raw = Raw::connect(&world).await;
    let note = note(&Keys::generate(), now());
    let message = json!(["EVENT", note]).to_string();
    let mut pieces = message.as_bytes().chunks(1).peekable();
    let mut opcode = TEXT;
    let mut pings = 0;
    while let Some(piece) = pieces.next() {
        let end = if pieces.peek().is_none() { LAST } else { 0 };
        raw.frame(opcode | end, piece).await;
        if pings < 50 && end == 0 {
            pings += 1;
            raw.frame(LAST | PING, b"there?").await;
        }
        opcode = 0;
    }
    let mut pongs = 0;
    let answer = loop {
        let (opcode, payload) = raw.heard().await.unwrap();
        match opcode {
            PONG => {
                assert_eq!(payload, b"there?");
                pongs += 1;
            }
            TEXT => break serde_json::from_slice::<Value>(&payload).unwrap(),
            _ => {}
        }
    };
    assert_eq!((&answer[1], &answer[2]), (&note["id"], &json!(true)));
    assert!(
        pongs > 0,
        "a later ping may be answered for an earlier one, and one is"
    );
    // Nothing in pieces is nothing, and what is binary is no message.
    raw.frame(TEXT, b"").await;
    raw.frame(LAST, b"").await;
    raw.frame(LAST | BINARY, &[0xff; 100]).await;
    for _ in 0..2 {
        assert_eq!(raw.hear().await[0], json!("NOTICE"));
    }
}

#[tokio::test]
async fn pieces_without_end_are_cut_where_a_message_would_be() {
    let world = World::start().await;
    let mut raw = Raw::connect(&world).await;
    raw.frame(TEXT, b"[").await;
    // A message may have 256 KiB.
    for _ in 0..300 {
        raw.frame(0, &[b' '; 1024]).await;
    }
    let code = raw.end("it is cut").await;
    assert!(code.is_none_or(|code| code == 1009), "{code:?}");
    let mut empty = Raw::connect(&world).await;
    empty.frame(TEXT, b"").await;
    for _ in 0..20_000 {
        empty.frame(0, b"").await;
    }
    others_are_served(&world).await;
}

#[tokio::test]
async fn nobody_agrees_on_compression() {
    let world = World::start().await;
    let offer = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n";
    let mut raw = Raw::with(&world, offer).await;
    let answer = raw.answer.to_lowercase();
    assert!(!answer.contains("sec-websocket-extensions"), "{answer}");
    raw.frame(LAST | TEXT, b"[\"CLOSE\",\"a\"]").await;
    raw.frame(LAST | TEXT, b"[]").await;
    assert_eq!(raw.hear().await[0], json!("NOTICE"));
    // A megabyte of zeros in a thousand bytes is not unpacked.
    raw.frame(LAST | COMPRESSED | TEXT, &[0; 1_000]).await;
    let code = raw.end("it is cut").await;
    assert!(code != Some(1000), "{code:?}");
    others_are_served(&world).await;
}

#[tokio::test]
async fn pings_without_end_are_answered_and_hold_up_nobody() {
    let world = World::start().await;
    let mut raw = Raw::connect(&world).await;
    for _ in 0..5_000 {
        raw.frame(LAST | PING, b"x").await;
    }
    others_are_served(&world).await;
    assert_eq!(raw.heard().await.unwrap().0, PONG);
    raw.frame(LAST | TEXT, b"{}").await;
    assert_eq!(raw.hear().await[0], json!("NOTICE"));
}

#[tokio::test]
async fn handshakes_that_never_end_keep_nobody_out() {
    let world = World::start().await;
    let mut slow = Vec::new();
    for n in 0..200 {
        let mut stream = TcpStream::connect(world.host.api).await.unwrap();
        let begun: &[u8] = match n % 4 {
            0 => b"",
            1 => b"GET / HT",
            2 => b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n",
            _ => b"\x16\x03\x01\x02\x00\x01\x00",
        };
        stream.write_all(begun).await.unwrap();
        slow.push(stream);
    }
    others_are_served(&world).await;
    for stream in &mut slow {
        stream.write_all(b"x").await.unwrap_or_default();
    }
    others_are_served(&world).await;
}

#[tokio::test]
async fn what_is_no_handshake_is_refused() {
    let world = World::start().await;
    for headers in [
        // No key, another version, another method, another protocol.
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 8\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nContent-Length: 0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(world.host.api).await.unwrap();
        stream.write_all(headers.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        let read = timeout(PATIENCE, stream.read_exact(&mut answer));
        read.await.unwrap().unwrap();
        assert!(!answer.ends_with(b"101"), "{headers}");
    }
    others_are_served(&world).await;
}
