//! One connection through the proxy: two pipes, one for each direction.
//!
//! A pipe reads as fast as it can and stamps each piece with the time when it is due;
//! the other end writes the pieces in order, each not before its time. So latency delays
//! every byte by the same amount, however many are on their way.

use std::{
    io,
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering},
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};

use super::Weather;

const PIECE_BYTES: usize = 16 * 1024;
/// Pieces on their way in one direction; more than this stops the reader.
const PIECES: usize = 4096;

/// Bytes and when they may leave; no bytes mean the end.
#[derive(Debug)]
struct Piece {
    due: Instant,
    bytes: Vec<u8>,
}

/// One direction.
#[derive(Debug)]
struct Pipe<'a> {
    weather: watch::Receiver<Weather>,
    /// Whether this connection has lost bytes, in either direction.
    holed: &'a AtomicBool,
}

/// Serves one connection until both sides have closed it, it breaks or it is cut.
pub(super) async fn run(
    client: TcpStream,
    target: SocketAddr,
    mut weather: watch::Receiver<Weather>,
    mut cuts: watch::Receiver<u64>,
) {
    let mut client = client;
    let broken = tokio::select! {
        biased;
        _ = cuts.changed() => true,
        end = wait_and_connect(&mut client, target, &mut weather) => match end {
            Ok(server) => return forward(client, server, weather, cuts).await,
            Err(_refused) => true,
        },
    };
    if broken {
        reset(&client);
    }
}

/// Connects to the server, but not through a blackhole: what the client says meanwhile is lost.
async fn wait_and_connect(
    client: &mut TcpStream,
    target: SocketAddr,
    weather: &mut watch::Receiver<Weather>,
) -> io::Result<TcpStream> {
    let mut waste = vec![0; PIECE_BYTES];
    let mut holed = false;
    let mut open = true;
    while weather.borrow_and_update().blackhole {
        tokio::select! {
            biased;
            changed = weather.changed() => changed.map_err(io::Error::other)?,
            read = client.read(&mut waste), if open => {
                holed = true;
                open = matches!(read, Ok(count) if count > 0);
            }
        }
    }
    if holed {
        return Err(io::ErrorKind::ConnectionReset.into());
    }
    let server = TcpStream::connect(target).await?;
    server.set_nodelay(true)?;
    client.set_nodelay(true)?;
    Ok(server)
}

async fn forward(
    mut client: TcpStream,
    mut server: TcpStream,
    weather: watch::Receiver<Weather>,
    mut cuts: watch::Receiver<u64>,
) {
    let holed = AtomicBool::new(false);
    let pipe = || Pipe {
        weather: weather.clone(),
        holed: &holed,
    };
    let (up, down, healed) = (pipe(), pipe(), pipe());
    let result = {
        let (client_read, client_write) = client.split();
        let (server_read, server_write) = server.split();
        tokio::select! {
            biased;
            _ = cuts.changed() => Err(io::ErrorKind::ConnectionReset.into()),
            error = healed.holed_when_healed() => Err(error),
            result = async {
                tokio::try_join!(
                    up.carry(client_read, server_write),
                    down.carry(server_read, client_write),
                )
            } => result.map(|_both| ()),
        }
    };
    if result.is_err() {
        reset(&client);
        reset(&server);
    }
}

impl Pipe<'_> {
    async fn carry(
        self,
        from: impl AsyncRead + Unpin,
        to: impl AsyncWrite + Unpin,
    ) -> io::Result<()> {
        let (pieces, queue) = mpsc::channel(PIECES);
        let reader = Pipe {
            weather: self.weather.clone(),
            holed: self.holed,
        };
        tokio::try_join!(reader.read(from, pieces), self.write(queue, to))?;
        Ok(())
    }

    async fn read(
        mut self,
        mut from: impl AsyncRead + Unpin,
        pieces: mpsc::Sender<Piece>,
    ) -> io::Result<()> {
        let mut buffer = vec![0; PIECE_BYTES];
        loop {
            let read = from.read(&mut buffer).await;
            let Weather { blackhole, latency } = *self.weather.borrow();
            if blackhole {
                self.lose();
                if !matches!(read, Ok(count) if count > 0) {
                    return Err(self.healed().await);
                }
                continue;
            }
            self.check()?;
            let bytes = buffer.get(..read?).unwrap_or_default().to_vec();
            let last = bytes.is_empty();
            let due = Instant::now() + latency;
            if pieces.send(Piece { due, bytes }).await.is_err() || last {
                return Ok(());
            }
        }
    }

    async fn write(
        mut self,
        mut queue: mpsc::Receiver<Piece>,
        mut to: impl AsyncWrite + Unpin,
    ) -> io::Result<()> {
        while let Some(piece) = queue.recv().await {
            // The queue keeps the order, also when a later piece is due earlier.
            sleep_until(piece.due).await;
            let written = self.write_piece(&piece.bytes, &mut to).await;
            if self.weather.borrow().blackhole {
                self.lose();
                if written.is_err() {
                    return Err(self.healed().await);
                }
                continue;
            }
            written?;
            self.check()?;
        }
        if self.check().is_err() {
            return Err(self.healed().await); // The end of the stream was lost.
        }
        Ok(())
    }

    /// Writes a piece, or what can be written before a blackhole opens.
    async fn write_piece(
        &mut self,
        mut bytes: &[u8],
        to: &mut (impl AsyncWrite + Unpin),
    ) -> io::Result<()> {
        let end = bytes.is_empty();
        loop {
            if self.weather.borrow_and_update().blackhole {
                return Ok(());
            }
            self.check()?;
            if end {
                return to.shutdown().await;
            }
            if bytes.is_empty() {
                return Ok(());
            }
            tokio::select! {
                written = to.write(bytes) => bytes = bytes.get(written?..).unwrap_or_default(),
                changed = self.weather.changed() => changed.map_err(io::Error::other)?,
            }
        }
    }

    fn lose(&self) {
        self.holed.store(true, Ordering::Relaxed);
    }

    /// Nothing may follow a hole.
    fn check(&self) -> io::Result<()> {
        if self.holed.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        Ok(())
    }

    /// Waits until the blackhole has closed.
    async fn healed(&mut self) -> io::Error {
        let healed = self.weather.wait_for(|weather| !weather.blackhole).await;
        drop(healed);
        io::ErrorKind::ConnectionReset.into()
    }

    /// Waits until the blackhole has closed over a connection that lost bytes.
    async fn holed_when_healed(mut self) -> io::Error {
        while self.weather.changed().await.is_ok() {
            if !self.weather.borrow().blackhole && self.check().is_err() {
                return io::ErrorKind::ConnectionReset.into();
            }
        }
        std::future::pending().await
    }
}

/// Breaks a connection with a TCP reset when it is dropped.
fn reset(stream: &TcpStream) {
    if let Err(error) = stream.set_zero_linger() {
        tracing::debug!(%error, "connection had already broken");
    }
}
