//! The proxy does what it says, seen from a client and from a server that echoes.

use std::{
    io::ErrorKind,
    net::SocketAddr,
    time::{Duration, Instant},
};

use tasuki_stack::Proxy;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};

use crate::support::{DEADLINE, SILENCE};

/// A server that sends back what it gets, until it is dropped.
struct Echo {
    addr: SocketAddr,
    _task: JoinSet<()>,
}

impl Echo {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("an address");
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut stream, _peer)) = listener.accept().await {
                connections.spawn(async move {
                    let (mut read, mut write) = stream.split();
                    let _ended = tokio::io::copy(&mut read, &mut write).await;
                    let _closed = write.shutdown().await;
                });
            }
        });
        Self { addr, _task: task }
    }
}

async fn say(client: &mut TcpStream, word: &[u8]) -> std::io::Result<Vec<u8>> {
    client.write_all(word).await?;
    let mut answer = vec![0; word.len()];
    client.read_exact(&mut answer).await?;
    Ok(answer)
}

/// Waits for the end of a connection, and tells how it ended.
async fn end(client: &mut TcpStream) -> Result<usize, ErrorKind> {
    let mut rest = [0; 64];
    let read = timeout(DEADLINE, client.read(&mut rest)).await;
    read.expect("the connection ends")
        .map_err(|error| error.kind())
}

async fn is_silent(client: &mut TcpStream) -> bool {
    let mut rest = [0; 64];
    timeout(SILENCE, client.read(&mut rest)).await.is_err()
}

#[tokio::test]
async fn bytes_and_ends_pass_in_both_directions() {
    let echo = Echo::start().await;
    let proxy = Proxy::start(echo.addr).await.unwrap();
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();

    assert_eq!(say(&mut client, b"hello").await.unwrap(), b"hello");
    client.write_all(b"last words").await.unwrap();
    client.shutdown().await.unwrap();

    let mut rest = Vec::new();
    client.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"last words");
}

#[tokio::test]
async fn a_reset_breaks_open_connections_and_welcomes_new_ones() {
    let echo = Echo::start().await;
    let proxy = Proxy::start(echo.addr).await.unwrap();
    let mut spoken = TcpStream::connect(proxy.addr()).await.unwrap();
    say(&mut spoken, b"hello").await.unwrap();
    let mut silent = TcpStream::connect(proxy.addr()).await.unwrap();

    proxy.reset().await.unwrap();

    assert_eq!(end(&mut spoken).await, Err(ErrorKind::ConnectionReset));
    assert_eq!(end(&mut silent).await, Err(ErrorKind::ConnectionReset));
    let mut next = TcpStream::connect(proxy.addr()).await.unwrap();
    assert_eq!(say(&mut next, b"again").await.unwrap(), b"again");
}

#[tokio::test]
async fn refused_newcomers_do_not_disturb_open_connections() {
    let echo = Echo::start().await;
    let proxy = Proxy::start(echo.addr).await.unwrap();
    let mut open = TcpStream::connect(proxy.addr()).await.unwrap();

    for _round in 0..3 {
        proxy.refuse().await.unwrap();
        let error = TcpStream::connect(proxy.addr()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        assert_eq!(say(&mut open, b"still here").await.unwrap(), b"still here");

        proxy.heal().await.unwrap();
        let mut next = TcpStream::connect(proxy.addr()).await.unwrap();
        assert_eq!(say(&mut next, b"back").await.unwrap(), b"back");
    }
}

#[tokio::test]
async fn a_blackholed_connection_stays_open_and_silent() {
    let echo = Echo::start().await;
    let proxy = Proxy::start(echo.addr).await.unwrap();
    let mut old = TcpStream::connect(proxy.addr()).await.unwrap();
    say(&mut old, b"hello").await.unwrap();
    let mut quiet = TcpStream::connect(proxy.addr()).await.unwrap();
    say(&mut quiet, b"hello").await.unwrap();

    proxy.blackhole().await.unwrap();

    let mut new = TcpStream::connect(proxy.addr()).await.unwrap();
    old.write_all(b"anybody?").await.unwrap();
    new.write_all(b"anybody?").await.unwrap();
    assert!(is_silent(&mut old).await);
    assert!(is_silent(&mut new).await);
    old.write_all(b"still open").await.unwrap();

    proxy.heal().await.unwrap();
    assert_eq!(
        end(&mut old).await,
        Err(ErrorKind::ConnectionReset),
        "its bytes are lost"
    );
    assert_eq!(
        end(&mut new).await,
        Err(ErrorKind::ConnectionReset),
        "its bytes are lost"
    );
    assert_eq!(
        say(&mut quiet, b"nothing lost").await.unwrap(),
        b"nothing lost"
    );
    let mut next = TcpStream::connect(proxy.addr()).await.unwrap();
    assert_eq!(say(&mut next, b"back").await.unwrap(), b"back");
}

#[tokio::test]
async fn a_blackhole_hides_that_the_other_side_has_gone() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap()).await.unwrap();
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    let (mut server, _peer) = listener.accept().await.unwrap();
    client.write_all(b"x").await.unwrap();
    server.read_u8().await.unwrap();

    proxy.blackhole().await.unwrap();
    drop(server);

    assert!(is_silent(&mut client).await);
    proxy.heal().await.unwrap();
    assert_eq!(end(&mut client).await, Err(ErrorKind::ConnectionReset));
}

#[tokio::test]
async fn latency_delays_and_keeps_order() {
    const LATENCY: Duration = Duration::from_millis(150);
    let echo = Echo::start().await;
    let proxy = Proxy::start(echo.addr).await.unwrap();
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    say(&mut client, b"hello").await.unwrap();

    proxy.latency(LATENCY).await.unwrap();

    let start = Instant::now();
    say(&mut client, b"there and back").await.unwrap();
    assert!(start.elapsed() >= 2 * LATENCY, "{:?}", start.elapsed());

    // Eight million bytes are hundreds of pieces. If each waited for the one before it,
    // they would take more than a minute.
    let sent: Vec<u8> = (0..8_000_000_u32)
        .map(|number| (number % 251) as u8)
        .collect();
    let start = Instant::now();
    let (mut read, mut write) = client.split();
    let mut received = vec![0; sent.len()];
    let (wrote, got) = tokio::join!(write.write_all(&sent), read.read_exact(&mut received));
    wrote.unwrap();
    got.unwrap();
    assert!(sent == received, "the order has changed");
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "{:?}",
        start.elapsed()
    );

    proxy.heal().await.unwrap();
    say(&mut client, b"settled").await.unwrap();
    let start = Instant::now();
    say(&mut client, b"quick").await.unwrap();
    assert!(start.elapsed() < 2 * LATENCY, "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_dropped_proxy_closes_its_port_and_its_connections() {
    let echo = Echo::start().await;
    let proxy = Proxy::start(echo.addr).await.unwrap();
    let addr = proxy.addr();
    let mut client = TcpStream::connect(addr).await.unwrap();
    say(&mut client, b"hello").await.unwrap();

    drop(proxy);

    let error = TcpStream::connect(addr).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    assert!(matches!(
        end(&mut client).await,
        Ok(0) | Err(ErrorKind::ConnectionReset)
    ));
}

#[tokio::test]
async fn a_server_that_is_away_breaks_the_connection() {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = gone.local_addr().unwrap();
    drop(gone);
    let proxy = Proxy::start(addr).await.unwrap();

    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();

    assert_eq!(end(&mut client).await, Err(ErrorKind::ConnectionReset));
}
